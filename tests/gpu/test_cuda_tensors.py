"""Collectives of CUDA tensors, by NCCL and by way of the host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import rows
import standin
import torch_hvd
import verbs
from calls import expect_error
from gpus import LONG, pool_on_gpus
from libmpi import needs_mpich
from ranks import RankPool
from rows import Row, filled
from training import new_model, new_optimizer, train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

NCCL_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM")
CODECS = ["fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4"]


@pytest.fixture(
    scope="module", params=["auto", "gloo", "shm", pytest.param("mpi", marks=needs_mpich)]
)
def pool(request: pytest.FixtureRequest, gpu: torch.device) -> Iterator[RankPool]:
    """Two ranks whose CUDA tensors go by NCCL, or by way of the host.

    By MPI large ones that are only moved do not where it is CUDA-aware: that of PyPI is not, but
    HVD_LIBMPI may name one of MPICH that is.
    """
    with pool_on_gpus(request.param) as ranks:
        yield ranks


@pytest.fixture
def nccl(pool: RankPool) -> RankPool:
    """The same, by NCCL only."""
    if pool.env["HVD_TRANSPORT"] != "auto":
        pytest.skip("about streams and launches")
    return pool


def by_nccl() -> bool:
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    return str(backend.transport).endswith("+nccl")


def _contract(name: str, dtype: torch.dtype, op: str) -> None:
    check = getattr(verbs, name)
    for shape in (*rows.SMALL_SHAPES, *rows.LARGE_SHAPES):
        if by_nccl() and shape.layout != "contiguous":
            continue  # which NCCL's group refuses
        for async_op in (False, True):
            row = Row(dtype, op, shape, async_op)
            print(f"{name} {row}")
            check(row)


@pytest.mark.parametrize("check", verbs.REDUCING, ids=lambda check: check.__name__)
@pytest.mark.parametrize("op", NCCL_OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=rows.name)
def test_reducing(pool: RankPool, check: verbs.Check, dtype: torch.dtype, op: str) -> None:
    if not rows.allowed(dtype, op):
        pytest.skip("means nothing")
    if pool.env["HVD_TRANSPORT"] == "auto" and (dtype, op) == (torch.bfloat16, "PREMUL_SUM"):
        pytest.skip("NCCL's group makes zeros of them")
    pool.run(_contract, check.__name__, dtype, op)


@pytest.mark.parametrize("check", verbs.MOVING, ids=lambda check: check.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8], ids=rows.name)
def test_moving(pool: RankPool, check: verbs.Check, dtype: torch.dtype) -> None:
    if pool.env["HVD_TRANSPORT"] == "auto":
        if check is verbs.all_gather_views:
            pytest.skip("NCCL's group refuses views that are not contiguous")
        if check is verbs.all_gather_coalesced:
            pytest.skip("NCCL's group does not have it")
    pool.run(_contract, check.__name__, dtype, "SUM")


def _behind_the_callers_stream(count: int, burst: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.empty(count) for _ in range(burst)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)  # results that come late, to whoever does not wait for them
        for number, tensor in enumerate(tensors):
            tensor.fill_(rank + number)
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        sums = [tensor.clone() for tensor in tensors]
    stream.synchronize()
    for number, tensor in enumerate(sums):
        assert filled(tensor.cpu(), size * number + sum(range(size))), number


@pytest.mark.parametrize("burst", [1, 100])
@pytest.mark.parametrize("count", [7, 3_000_000])
def test_behind_the_callers_stream(pool: RankPool, count: int, burst: int) -> None:
    """What is reduced is what the stream computes first, and what follows on it sees the sum."""
    if count * burst > 10_000_000:
        pytest.skip("too much memory")
    pool.run(_behind_the_callers_stream, count, burst)


def _moved_behind_the_callers_stream(count: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, gathered = torch.zeros(count), [torch.zeros(count) for _ in range(size)]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(LONG)
        mine.fill_(rank)
        for tensor in gathered:
            tensor.fill_(-1)  # before what is gathered, not over it
        work: Any = dist.all_gather(gathered, mine, async_op=True)
        work.wait()
        mine.fill_(-2)
        copies = [tensor.cpu() for tensor in gathered]
    for peer, tensor in enumerate(copies):
        assert filled(tensor, peer)


@pytest.mark.parametrize("count", [7, 3_000_000])
def test_moved_behind_the_callers_stream(pool: RankPool, count: int) -> None:
    pool.run(_moved_behind_the_callers_stream, count)


def _received_behind_the_callers_stream(count: int) -> None:
    rank = dist.get_rank()
    tensor = torch.zeros(count)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    tensor.fill_(7 if rank == 0 else -1)
    if rank == 0:
        dist.send(tensor, 1)
    else:
        work: Any = dist.irecv(tensor, 0)
        work.wait()
        assert filled(tensor.cpu(), 7)


@pytest.mark.parametrize("count", [7, 3_000_000])
def test_received_behind_the_callers_stream(pool: RankPool, count: int) -> None:
    pool.run(_received_behind_the_callers_stream, count)


def _host_does_not_block(count: int) -> None:
    tensor = torch.ones(count)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    torch.cuda._sleep(4 * LONG)
    begun = time.monotonic()
    work: Any = dist.all_reduce(tensor, async_op=True)
    work.wait()
    done = torch.cuda.Event()
    done.record()
    assert not done.query(), f"the host waited {time.monotonic() - begun:.2f} s for the device"
    done.synchronize()
    assert work.is_completed()
    assert filled(tensor.cpu(), dist.get_world_size() ** 2)


@pytest.mark.parametrize("count", [7, 3_000_000])
def test_host_does_not_block(nccl: RankPool, count: int) -> None:
    nccl.run(_host_does_not_block, count)


def _future_and_timeout() -> None:
    tensor = torch.ones(1000)
    work: Any = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2).wait()
    assert filled(doubled.cpu(), 2 * dist.get_world_size())
    torch.cuda._sleep(4 * LONG)
    late: Any = dist.all_reduce(tensor, async_op=True)
    expect_error(lambda: late.wait(timedelta(milliseconds=100)), within=1.0)
    torch.cuda.synchronize()


def test_future_and_timeout(nccl: RankPool) -> None:
    nccl.run(_future_and_timeout)


def _dropped() -> None:
    for _ in range(50):  # the memory of each is free for the next while it is still in use
        tensor = torch.full((10_000,), float(dist.get_rank()))
        dist.all_reduce(tensor, async_op=True)
        del tensor
    again = torch.ones(10_000)
    dist.all_reduce(again)
    assert filled(again.cpu(), dist.get_world_size())


def test_dropped_without_a_wait(pool: RankPool) -> None:
    pool.run(_dropped)


def _compressed(codec: str, dtype: torch.dtype) -> None:
    options: dict[str, Any] = {
        "compression": codec,
        "compression_min_bytes": 1,
        "error_feedback": False,
    }
    with standin.hosts_apart():
        group = dist.new_group(pg_options=torch_hvd.Options(**options))
    generator = torch.Generator().manual_seed(dist.get_rank())
    values = [
        torch.randn(count, generator=generator, device="cpu").to(dtype)
        for count in (70_001, 4096, 33, 1_000_003, 9_000_001)
    ]
    there = [value.cuda() for value in values]
    works = [dist.all_reduce(t, dist.ReduceOp.AVG, group=group, async_op=True) for t in there]
    for work in works:
        work.wait()
    for value, tensor in zip(values, there, strict=True):
        dist.all_reduce(value, dist.ReduceOp.AVG, group=group)
        assert torch.equal(value, tensor.cpu())
    dist.destroy_process_group(group)


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_like_on_the_host(pool: RankPool, codec: str) -> None:
    if pool.env["HVD_TRANSPORT"] == "shm":
        pytest.skip("compresses nothing")
    pool.run(_compressed, codec, torch.float32)


def _capture() -> None:
    tensor = torch.ones(4)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="while a graph is captured"), torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    dist.all_reduce(tensor)
    assert filled(tensor.cpu(), dist.get_world_size())


def test_capture_is_refused(nccl: RankPool) -> None:
    nccl.run(_capture)


def _ring() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 1_000_000):
        small = [torch.ones(3) for _ in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in small]
        out, into = torch.full((count,), float(rank)), torch.empty(count)
        messages = [
            dist.P2POp(dist.isend, out, (rank + 1) % size),
            dist.P2POp(dist.irecv, into, (rank - 1) % size),
        ]
        for work in [*dist.batch_isend_irecv(messages), *works]:
            work.wait()
        assert filled(into.cpu(), (rank - 1) % size)
        assert all(filled(tensor.cpu(), size) for tensor in small)


def test_messages_both_ways(pool: RankPool) -> None:
    """Batches of sends and receives, with small collectives under way that others must join."""
    pool.run(_ring)


def _ranks_on_cpu_and_gpu() -> None:
    device = "cpu" if dist.get_rank() == 0 else "cuda"
    for count in (5, 300_000):
        tensor = torch.ones(count, device=device)
        dist.all_reduce(tensor)
        assert filled(tensor.cpu(), dist.get_world_size())


def test_ranks_on_cpu_and_gpu(pool: RankPool) -> None:
    """By way of the host it makes no difference where a rank's tensor is."""
    if pool.env["HVD_TRANSPORT"] == "auto":
        pytest.skip("NCCL takes tensors on GPUs alone")
    pool.run(_ranks_on_cpu_and_gpu)


def _trained(device: str) -> Tensor:
    model = new_model(batch_norm=False).to(device)
    parallel = DistributedDataParallel(model)

    def forward(inputs: Tensor) -> Tensor:
        result: Tensor = parallel(inputs.to(device)).to("cpu")
        return result

    with torch.device("cpu"):
        return train(forward, new_optimizer(model), dist.get_rank())


def _ddp() -> None:
    torch.testing.assert_close(_trained("cuda"), _trained("cpu"), rtol=1e-3, atol=1e-3)


def test_ddp_trains_as_on_the_host(pool: RankPool) -> None:
    pool.run(_ddp)


def _mesh() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cuda", (1, dist.get_world_size()), mesh_dim_names=("one", "all"))
    tensor = torch.full((5,), float(rank))
    dist.all_reduce(tensor, group=mesh["all"].get_group())
    assert filled(tensor.cpu(), sum(range(dist.get_world_size())))


def test_device_mesh(nccl: RankPool) -> None:
    nccl.run(_mesh)
