"""What each reduce op may be asked, and how exact it is beyond the closed forms of the table."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import rows
import torch_hvd
from calls import LARGE, SMALL
from ranks import RankPool

pytestmark = pytest.mark.ranks(1, 2, 3, 4, hosts=[3, 4], by_name=[2, 3])


def all_reduce(dtype: torch.dtype, op: str) -> None:
    dist.all_reduce(torch.zeros(4).to(dtype), op=rows.reduce_op(op))


def all_reduce_coalesced(dtype: torch.dtype, op: str) -> None:
    dist.all_reduce_coalesced([torch.zeros(4).to(dtype)], op=rows.reduce_op(op))


def reduce(dtype: torch.dtype, op: str) -> None:
    dist.reduce(torch.zeros(4).to(dtype), dst=0, op=rows.reduce_op(op))


def reduce_scatter(dtype: torch.dtype, op: str) -> None:
    pieces = [torch.zeros(4).to(dtype) for _ in range(dist.get_world_size())]
    dist.reduce_scatter(pieces[0].clone(), pieces, op=rows.reduce_op(op))


def reduce_scatter_tensor(dtype: torch.dtype, op: str) -> None:
    whole = torch.zeros(4 * dist.get_world_size()).to(dtype)
    dist.reduce_scatter_tensor(torch.zeros(4).to(dtype), whole, op=rows.reduce_op(op))


REDUCING = (all_reduce, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_tensor)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("verb", REDUCING, ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("dtype", [*rows.REDUCIBLE, *rows.FP8], ids=rows.name)
def test_forbidden(verb: Callable[[torch.dtype, str], None], dtype: torch.dtype) -> None:
    """An op without meaning is an error at the call, naming op and dtype; the group goes on."""
    for op in rows.OPS:
        if rows.allowed(dtype, op) or (dtype.is_complex and op == "PRODUCT"):
            continue
        print(op)
        with pytest.raises((RuntimeError, ValueError)) as caught:
            verb(dtype, op)
        text = str(caught.value)
        # PyTorch's own gate speaks first for most complex tensors, and says "complex tensors".
        assert op in text and ("complex" if dtype.is_complex else rows.name(dtype)) in text, text
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [dist.get_world_size()] * 3


EXACT = torch.complex128


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, *rows.COMPLEX], ids=rows.name)
@pytest.mark.parametrize("op", ["SUM", "AVG", "PRODUCT"])
def test_complex(dtype: torch.dtype, op: str) -> None:
    """PyTorch lets PRODUCT through to the backend in reduce and reduce_scatter, not in all_reduce.

    torch computes little with complex32: expected values are made of wider numbers.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    exact = [torch.tensor([1 + 1j * r, 2 - 1j, 1j] * 11, dtype=EXACT) for r in range(size)]
    inputs = torch.stack(exact)
    expected = inputs.prod(0) if op == "PRODUCT" else inputs.sum(0)
    expected = (expected / size if op == "AVG" else expected).to(dtype).to(EXACT)
    mine = inputs[rank].to(dtype)
    tensor = mine.clone()
    dist.reduce(tensor, dst=0, op=rows.reduce_op(op))
    assert torch.equal(tensor.to(EXACT), expected if rank == 0 else inputs[rank])
    dist.reduce_scatter(tensor, [mine] * size, op=rows.reduce_op(op))
    assert torch.equal(tensor.to(EXACT), expected)


@pytest.mark.parametrize("dtype", rows.COMPLEX, ids=rows.name)
def test_complex_product_of_all(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="PRODUCT"):
        all_reduce(dtype, "PRODUCT")


def digest_of_sum(dtype: torch.dtype, count: int, op: str) -> str:
    """Reduce random numbers twice; both results are near the exact one and equal to the bit."""
    size = dist.get_world_size()
    source = [
        torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        for rank in range(size)
    ]
    exact = torch.stack([value.to(dtype).double() for value in source]).sum(0)
    exact = exact / size if op == "AVG" else exact
    digests = set()
    for _ in range(2):
        tensor = source[dist.get_rank()].to(dtype, copy=True)
        dist.all_reduce(tensor, op=rows.reduce_op(op))
        # Rounded once: half a unit in the last place, and what float32 itself loses.
        error = torch.finfo(dtype).eps / 2 + size * torch.finfo(max_of(dtype)).eps
        scale = torch.stack([value.abs() for value in source]).sum(0)
        assert ((tensor.double() - exact).abs() <= error * scale).all(), (tensor, exact)
        digests.add(hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest())
    assert len(digests) == 1, "two equal calls differ"
    return digests.pop()


def sum_of_denormals(codec: str, late: int) -> list[int]:
    """Bits of a sum of denormal numbers while the thread flushes them; one rank does not wait, so a
    thread sums that knows nothing of it.
    """
    bits = []
    with torch_hvd.compression(codec):
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        torch.set_flush_denormal(True)
        try:
            for count in (SMALL, LARGE):
                tensor = torch.full((count,), 0x1000, dtype=torch.int32).view(torch.float32)
                is_late = dist.get_rank() == late
                work = dist.all_reduce(tensor, async_op=is_late)
                if is_late:
                    while not work.is_completed():
                        time.sleep(0.001)
                bits += tensor.view(torch.int32).unique().tolist()
        finally:
            torch.set_flush_denormal(False)
    return bits


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_denormals_whatever_a_thread_does_with_them(pool: RankPool, codec: str) -> None:
    loses = 0.01 if codec == "int8" else 0
    for late in range(pool.size):
        bits = pool.run(sum_of_denormals, codec, late)
        assert bits == bits[:1] * pool.size
        assert bits[0] == pytest.approx([0x1000 * pool.size] * 2, rel=loses)


def max_of(dtype: torch.dtype) -> torch.dtype:
    """The type that sums of `dtype` are made in."""
    return torch.float64 if dtype is torch.float64 else torch.float32


@pytest.mark.parametrize("dtype", rows.FLOATS, ids=rows.name)
@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_identical_on_all_ranks(pool: RankPool, dtype: torch.dtype, op: str) -> None:
    for count in (5, 1001, 20_011, 400_009):
        digests = pool.run(digest_of_sum, dtype, count, op)
        assert len(set(digests)) == 1, f"ranks hold different bits for {count} elements"


@pytest.mark.parametrize("dtype", rows.FLOATS, ids=rows.name)
@pytest.mark.parametrize("count", [3, 100_003])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_finite(dtype: torch.dtype, count: int, bad: float) -> None:
    """A NaN or infinity of one rank arrives on all, in its place alone."""
    size = dist.get_world_size()
    tensor = torch.ones(count, dtype=dtype)
    if dist.get_rank() == size - 1:
        tensor[count // 2] = bad
    dist.all_reduce(tensor)
    expected = torch.full((count,), size, dtype=dtype)
    expected[count // 2] = bad
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", rows.FLOATS, ids=rows.name)
@pytest.mark.parametrize("count", [5, 100_003])
@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_not_a_number_is_no_extreme(dtype: torch.dtype, count: int, op: str) -> None:
    """It wins, whichever rank has it, as in torch.minimum and torch.maximum."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((count,), rank, dtype=dtype)
    tensor[rank] = float("nan")
    dist.all_reduce(tensor, op=rows.reduce_op(op))
    expected = torch.full((count,), 0 if op == "MIN" else size - 1, dtype=dtype)
    expected[:size] = float("nan")
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", rows.FLOATS, ids=rows.name)
def test_premul_by_tensor(dtype: torch.dtype) -> None:
    """PREMUL_SUM takes its factor from a one-element tensor too."""
    tensor = torch.arange(6).to(dtype)
    dist.all_reduce(tensor, op=rows.premul_sum(torch.tensor([0.25], dtype=dtype)))
    assert torch.equal(tensor.double(), torch.arange(6).double() * dist.get_world_size() / 4)


@pytest.mark.parametrize("count", [6, 300_000])
def test_premul_by_a_sum_under_way(count: int) -> None:
    """A factor that an earlier call has yet to make is waited for."""
    size = dist.get_world_size()
    for _ in range(20):
        factor, tensor = torch.ones(1), torch.ones(count)
        works: list[Any] = [dist.all_reduce(factor, async_op=True)]
        works.append(dist.all_reduce(tensor, op=rows.premul_sum(factor), async_op=True))
        works.append(dist.all_reduce(factor, async_op=True))
        for work in works:
            work.wait()
        assert rows.filled(tensor, size * size)
        assert rows.filled(factor, size * size)


@pytest.mark.parametrize("count", [6, 300_000])
def test_premul_by_factors_that_differ(count: int) -> None:
    """Each rank scales its own input."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(count).double()
    dist.all_reduce(tensor, op=rows.premul_sum(float(rank + 1)))
    assert torch.equal(tensor, torch.arange(count).double() * (size * (size + 1) // 2))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64], ids=rows.name
)
@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_sparse(dtype: torch.dtype, op: str) -> None:
    """Sparse tensors with other places and another number of them on each rank, some with none."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for trailing in ((), (3,)):
        for async_op in (False, True):
            parts = [_sparse(other, trailing, dtype) for other in range(size)]
            tensor = parts[rank]
            work = dist.all_reduce(tensor, op=rows.reduce_op(op), async_op=async_op)
            if work is not None:
                work.wait()
            inputs = [_sparse(other, trailing, dtype).to_dense() for other in range(size)]
            assert tensor.is_sparse
            assert torch.equal(tensor.to_dense(), rows.combine(op, inputs))


def _sparse(rank: int, trailing: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rank r fills places 0, 2r and 3r + 1 of 12 x 2; the second rank fills none."""
    where = [] if rank == 1 else [[0, 0], [2 * rank, 1], [3 * rank + 1, 0]]
    indices = torch.tensor(where, dtype=torch.int64).reshape(-1, 2).t()
    count = indices.shape[1] * torch.Size(trailing).numel()
    filled = torch.arange(-2, count - 2) * (rank + 1)  # a mean below 0 shows how it is rounded
    return torch.sparse_coo_tensor(
        indices, filled.to(dtype).reshape(-1, *trailing), (12, 2, *trailing)
    )
