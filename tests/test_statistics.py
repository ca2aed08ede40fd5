"""torch_hvd.statistics: what is counted of collectives, messages and waiting."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_hvd
from calls import CALLS, LARGE, SMALL, Call, cpu_backend, environment, expect_error
from ranks import RankPool

FRAME_HEAD = 16 + 64  # its length, and what the ranks agree by


def counts() -> dict[str, Any]:
    """Of the group made last."""
    return torch_hvd.statistics()[-1]


def sent() -> tuple[float, float]:
    """Over the network, and through shared memory."""
    seen = counts()
    return seen["wire_bytes"], seen["shared_memory_bytes"]


@pytest.mark.ranks(2, 3)
def test_lone_calls_have_no_extra_exchange() -> None:
    size = dist.get_world_size()
    group = dist.new_group()
    tensor = torch.ones(SMALL)
    for _ in range(10):
        dist.all_reduce(tensor, group=group)
    seen = counts()
    assert (seen["frames"], seen["responses"], seen["tensors"]) == (10, 10, 10)
    assert seen["tensor_bytes"] == 10 * tensor.nbytes
    way, other = "wire_bytes", "shared_memory_bytes"
    if cpu_backend(group).transport == "shm":
        way, other = other, way
    assert seen[way] == 10 * (FRAME_HEAD + tensor.nbytes) * (size - 1)

    dist.all_reduce(torch.ones(LARGE), group=group)
    after = counts()
    assert (after["frames"], after["responses"]) == (10, 11)
    # Shards out and sums back, and the longer ones where the size does not divide.
    least = 2 * 4 * LARGE * (size - 1) // size
    assert 0 <= after[way] - seen[way] - least <= 4 * 2 * size
    assert after[other] == 0
    assert after["fusion_buffer_bytes"] == 0
    assert 0 < after["waiting"] < after["elapsed"]


@pytest.mark.ranks(2)
def test_what_is_longer_than_the_cutoff_takes_no_frame() -> None:
    """What is not may be packed with others, behind a frame that tells of it."""
    with environment({"HVD_FUSION_CUTOFF": "400000"}):
        group = dist.new_group()
    for count, frames, responses in [(100_000, 1, 1), (100_001, 1, 2)]:  # of 4 bytes
        dist.all_reduce(torch.ones(count), group=group)
        seen = counts()
        assert (seen["frames"], seen["responses"]) == (frames, responses), (count, seen)
        assert seen["fusion_buffer_bytes"] == 0, "what is alone is not packed"


@pytest.mark.ranks(2, 8, transports=["shm"])
def test_the_longest_frame() -> None:
    """Of many ranks it is shorter, for each sends it to all others."""
    longest = min(64, 256 // dist.get_world_size()) * 1024
    group = dist.new_group()
    for nbytes in (longest, longest + 4):
        dist.broadcast(torch.ones(nbytes // 4), src=0, group=group)
        assert counts()["frames"] == 1
    assert counts()["responses"] == 2


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("verb", ["broadcast", "scatter", "gather"])
def test_who_gives_nothing_sends_no_more_than_the_head_of_a_frame(verb: str) -> None:
    """Of what only the root gives. What all give goes to all, though one alone takes it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    tensor = torch.ones(1000)
    if verb == "broadcast":
        dist.broadcast(tensor, src=1, group=group)
        given = tensor.nbytes * (rank == 1)
    elif verb == "scatter":
        parts = [tensor] * size if rank == 1 else None
        dist.scatter(torch.empty(1000), parts, src=1, group=group)
        given = size * tensor.nbytes * (rank == 1)
    else:
        parts = [torch.empty(1000) for _ in range(size)] if rank == 1 else None
        dist.gather(tensor, parts, dst=1, group=group)
        given = tensor.nbytes
    assert counts()["frames"] == 1
    assert sum(sent()) == (FRAME_HEAD + given) * (size - 1)


@pytest.mark.ranks(2)
def test_what_has_failed_is_not_counted() -> None:
    """Of calls that differ nothing comes out."""
    group = dist.new_group()
    tensor = torch.ones(SMALL)
    dist.all_reduce(tensor, group=group)
    expect_error(lambda: dist.all_reduce(torch.ones(SMALL + dist.get_rank()), group=group))
    dist.all_reduce(tensor, group=group)
    seen = counts()
    assert (seen["responses"], seen["tensors"]) == (2, 2)
    assert seen["tensor_bytes"] == 2 * tensor.nbytes


@pytest.mark.ranks(2)
def test_what_was_sent_is_known_when_the_group_is_gone() -> None:
    group = dist.new_group()
    dist.all_reduce(torch.ones(LARGE), group=group)
    before = sent()
    assert sum(before) >= 4 * LARGE
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert sent() == before


def saved_by_int8() -> tuple[float, float]:
    """How many times fewer bytes go over the network, and through shared memory."""
    before = []
    for codec in ("none", "int8"):
        group = dist.new_group(pg_options=torch_hvd.Options(compression=codec))
        dist.all_reduce(torch.ones(1 << 20), group=group)
        before.append(sent())
    (wire, memory), (encoded_wire, encoded_memory) = before
    return wire / encoded_wire, memory / encoded_memory


def test_bytes_of_two_hosts_with_two_ranks() -> None:
    """What goes through shared memory is counted apart, and not encoded."""
    with RankPool(4, hosts=["one", "one", "other", "other"]) as pool:
        for over_network, in_memory in pool.run(saved_by_int8):
            assert over_network >= 3.9
            assert in_memory == pytest.approx(1.0, abs=0.01)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("transport", ["shm", "tcp", "gloo", "mpi"])
def test_messages_are_counted(transport: str) -> None:
    """Also in a program that calls no collective."""
    group = dist.new_group(pg_options=torch_hvd.Options(transport=transport))
    rank = dist.get_rank()
    before = sum(sent())
    tensor = torch.full((1000,), float(rank))
    for _ in range(3):
        if rank == 0:
            dist.send(tensor, 1, group=group)
        else:
            dist.recv(tensor, 0, group=group)
    assert not tensor.any()
    assert sum(sent()) - before == (3 * tensor.nbytes if rank == 0 else 0)
    assert counts()["messages"] == 3
    assert counts()["responses"] == 0


STEPS, LATE_S = 8, 0.1


def waited_in_steps() -> tuple[float, float]:
    """Seconds that this rank has waited in steps for which rank 1 is late, and what they took."""
    group = dist.new_group()
    model = DistributedDataParallel(torch.nn.Linear(64, 64), process_group=group)
    before, start = counts()["waiting"], time.monotonic()
    for _ in range(STEPS):
        loss = model(torch.ones(1, 64)).sum()
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        loss.backward()
    return counts()["waiting"] - before, time.monotonic() - start


@pytest.mark.ranks(2)
def test_waiting_for_futures(pool: RankPool) -> None:
    """DDP waits for futures, which tell nobody of it."""
    (punctual, took), (late, _) = pool.run(waited_in_steps)
    assert 0.9 * STEPS * LATE_S <= punctual <= took
    assert late <= 0.3 * STEPS * LATE_S


def waited_for_a_message() -> tuple[float, float]:
    group = dist.new_group()
    if dist.get_rank() == 1:
        time.sleep(0.5)
        dist.send(torch.ones(SMALL), 0, group=group)
    else:
        dist.recv(torch.ones(SMALL), 1, group=group)
    seen = counts()
    return seen["waiting"], seen["elapsed"]


@pytest.mark.ranks(2)
def test_waiting_for_a_message(pool: RankPool) -> None:
    (waiting, elapsed), _ = pool.run(waited_for_a_message)
    assert 0.4 <= waiting <= elapsed


def waited_by_threads() -> tuple[float, float]:
    group = dist.new_group()
    if dist.get_rank() == 1:
        time.sleep(0.5)
    work = dist.all_reduce(torch.ones(LARGE), group=group, async_op=True)
    assert work is not None
    threads = [threading.Thread(target=work.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = counts()
    return seen["waiting"], seen["elapsed"]


@pytest.mark.ranks(2)
def test_threads_that_wait_together(pool: RankPool) -> None:
    """Their time is counted once."""
    (waiting, elapsed), _ = pool.run(waited_by_threads)
    assert 0.4 <= waiting <= elapsed


# Small tensors in the sizes of a ResNet, and larger ones between them.
RESNET_LIKE = [(64, 64, 256, 4096, 36_864)[k % 5] for k in range(161)]
RESNET_LIKE_SMALL = sum(4 * size <= 65536 for size in RESNET_LIKE)


def one_by_one(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        assert work is not None
        work.wait()


def in_one_call(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    with dist._coalescing_manager(group, async_ops=True) as coalesced:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    coalesced.wait()


def frames_of_bursts(issue: Callable[[list[torch.Tensor], dist.ProcessGroup], None]) -> list[int]:
    group = dist.new_group()
    frames = []
    for _ in range(10):
        before = counts()["frames"]
        issue([torch.ones(size) for size in RESNET_LIKE], group)
        frames.append(counts()["frames"] - before)
    assert counts()["fusion_buffer_bytes"] > 65536
    return frames


@pytest.mark.ranks(2, 3)
def test_a_burst_takes_few_frames() -> None:
    """A rank that loses its core in the midst of a burst is met halfway, not waited for. How few
    frames there are where none does, the model's test_burst counts."""
    frames = frames_of_bursts(one_by_one)
    assert min(frames) < RESNET_LIKE_SMALL / 2, frames
    assert max(frames) < RESNET_LIKE_SMALL, frames


@pytest.mark.ranks(2, 3)
def test_a_burst_in_one_call_takes_one_frame() -> None:
    assert set(frames_of_bursts(in_one_call)) == {1}


def uneven_all_to_all(group: dist.ProcessGroup | None, count: int) -> None:
    """Rank r gives each r + 1 pieces."""
    rank, size = dist.get_rank(), dist.get_world_size()
    expects = [count * (peer + 1) for peer in range(size)]
    dist.all_to_all_single(
        *(torch.empty(sum(expects)), torch.ones(count * size * (rank + 1))),
        *(expects, [count * (rank + 1)] * size),
        group=group,
    )


# How many elements count, of so many in each piece, for a rank in a group.
VERBS: dict[str, tuple[Call, Callable[[int, int, int], int]]] = {
    "reduce": (CALLS["reduce"], lambda count, rank, size: count),
    "broadcast": (CALLS["broadcast"], lambda count, rank, size: count),
    "all_gather": (CALLS["all_gather"], lambda count, rank, size: count),
    "reduce_scatter": (CALLS["reduce_scatter"], lambda count, rank, size: count * size),
    "all_to_all": (CALLS["all_to_all"], lambda count, rank, size: count * size),
    "barrier": (CALLS["barrier"], lambda count, rank, size: 0),
    "uneven": (uneven_all_to_all, lambda count, rank, size: count * size * (rank + 1)),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("verb", VERBS)
def test_tensor_bytes(verb: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    call, elements = VERBS[verb]
    for count in (SMALL, LARGE):
        group = dist.new_group()
        call(group, count)
        assert counts()["tensor_bytes"] == 4 * elements(count, rank, size)


@pytest.mark.ranks(2)
def test_a_sparse_tensor_counts_as_what_it_was() -> None:
    group = dist.new_group()
    indices = torch.arange(1000)[None] + 1000 * dist.get_rank()
    tensor = torch.sparse_coo_tensor(indices, torch.ones(1000), (2000,)).coalesce()
    dist.all_reduce(tensor, group=group)
    assert tensor._nnz() == 2000
    assert counts()["tensor_bytes"] == indices.nbytes + 4 * 1000


@pytest.mark.ranks(2, 3)
def test_large_tensors_take_no_frames() -> None:
    """That they overlap all the same, the model's test_ahead shows."""
    group = dist.new_group(pg_options=torch_hvd.Options(transport="gloo"))
    size = dist.get_world_size()
    tensors = [torch.full((1 << 18,), float(k)) for k in range(40)]
    one_by_one(tensors, group)
    assert all(torch.equal(t, torch.full_like(t, size * k)) for k, t in enumerate(tensors))
    seen = counts()
    assert seen["frames"] == 0
    assert seen["tensors"] == 40
    assert seen["responses"] == 40  # each is done when it is


@pytest.mark.ranks(2)
def test_rows_by_size() -> None:
    group = dist.new_group()
    for count in (100, 1000, 5_000_000):
        dist.all_reduce(torch.ones(count), group=group)
    rows = [row for row in counts()["rows"] if row["count"]]
    assert [row["upto"] for row in rows] == [1e3, 1e6, 2e7]
    assert [row["bytes"] for row in rows] == [400, 4000, 2e7]
    for row in rows:
        assert row["tensors"] == 1
        assert row["rates"] == pytest.approx(row["bytes"] / row["seconds"])
