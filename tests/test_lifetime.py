"""How groups end: twice, from another thread, with work pending; and how they begin again."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from calls import LARGE, SMALL, check_group, cpu_backend, expect_error
from launch import launch
from ranks import RankPool, bare_store
from rows import filled


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("method", ["shutdown", "abort"])
def test_twice(method: str) -> None:
    """shutdown and abort may be called again, in any order; later calls say what has happened."""
    group = dist.new_group()
    check_group(group)
    backend = cpu_backend(group)
    for name in (method, method, "shutdown", "abort"):
        getattr(backend, name)()
    if dist.get_world_size() > 1:
        with pytest.raises(dist.DistBackendError, match=r"shut down|abort"):
            dist.all_reduce(torch.ones(SMALL), group=group)
    dist.destroy_process_group(group)
    check_group()


@pytest.mark.ranks(3, by_name=[3])
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_abort_from_another_thread(count: int) -> None:
    """Rank 0 waits for peers that do not come, until another thread of it aborts the group."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    if dist.get_rank() == 0:
        behind = [
            dist.all_reduce(torch.ones(count), group=group, async_op=True),
            dist.irecv(torch.ones(count), 1, group=group),
            dist.irecv(torch.ones(count), group=group),
        ]
        timer = threading.Timer(0.5, cpu_backend(group).abort)
        timer.start()
        text = expect_error(lambda: dist.all_reduce(torch.ones(count), group=group), within=6)
        assert "abort" in text, text
        for work in behind:
            assert work is not None
            assert "abort" in expect_error(work.wait, within=1)
        timer.join(6)
        assert not timer.is_alive()
    dist.barrier()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_shutdown_from_another_thread(count: int) -> None:
    """shutdown waits for what is pending; that fails in time, and its waiter gets the error."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    if dist.get_rank() == 0:
        timer = threading.Timer(0.5, cpu_backend(group).shutdown)
        timer.start()
        text = expect_error(lambda: dist.all_reduce(torch.ones(count), group=group))
        assert "all_reduce" in text, text
        timer.join(6)
        assert not timer.is_alive()
    dist.barrier()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_drop_a_group_with_pending_work(count: int) -> None:
    """The last reference goes while a call waits for peers and a callback wants the GIL."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    called: list[bool] = []
    if dist.get_rank() == 0:
        begun = time.monotonic()
        work = dist.all_reduce(torch.ones(count), group=group, async_op=True)
        future = work.get_future().then(lambda done: called.append(done.value() is None))
        dist.destroy_process_group(group)
        del group
        gc.collect()
        assert "all_reduce" in expect_error(work.wait)
        with pytest.raises(RuntimeError):
            future.wait()
        assert time.monotonic() - begun < 8
    dist.barrier()


@pytest.mark.ranks(3)
def test_callbacks_while_the_main_thread_waits() -> None:
    """Python callbacks run while the main thread waits for other Works, then destroys the group."""
    group = dist.new_group()
    seen: list[int] = []

    def note(number: int) -> None:
        time.sleep(0.01)
        seen.append(number)

    works = [
        dist.all_reduce(torch.ones(1 + 9000 * (k % 2)), group=group, async_op=True)
        for k in range(20)
    ]
    futures = [w.get_future().then(lambda _, k=k: note(k)) for k, w in enumerate(works)]
    for work in works:
        work.wait()
    dist.barrier(group=group)
    dist.destroy_process_group(group)
    for future in futures:
        future.wait()
    assert sorted(seen) == list(range(20))


@pytest.mark.ranks(2)
def test_work_outlives_its_group() -> None:
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(LARGE), group=group, async_op=True)
    work.wait()
    dist.barrier()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert work.is_completed() and work.result()[0][0] == 2
    assert work.get_future().value()[0][0] == 2


@pytest.mark.ranks(2)
def test_future_of_a_message_after_its_group() -> None:
    """Nobody waits for the message any more: the future says so, and the work is over."""
    group = dist.new_group()
    work = dist.irecv(torch.zeros(SMALL), src=1 - dist.get_rank(), group=group)
    assert work is not None
    dist.barrier()
    dist.destroy_process_group(group)
    with pytest.raises(RuntimeError, match=r"recv from rank \d.*shut down"):
        work.get_future().wait()
    assert work.is_completed()


def poll(work: dist.Work) -> None:
    while not work.is_completed():
        time.sleep(0.01)


def follow(work: dist.Work) -> None:
    with pytest.raises(RuntimeError):
        work.get_future().wait()


@pytest.mark.ranks(3, hosts=[3], by_name=[3], mpi_hosts=[3])
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("sees_to_it", [poll, follow], ids=lambda f: f.__name__)
def test_leave_with_messages_that_nobody_answers(
    count: int, sees_to_it: Callable[[dist.Work], None]
) -> None:
    """They end with the group, whoever sees to them; the others go on."""
    rank, group = dist.get_rank(), dist.new_group()
    tensor = torch.full((count,), float(rank))
    check_group(group)
    if rank == 2:
        begun = [dist.irecv(tensor, 0, group=group), dist.irecv(tensor, group=group)]
        if count == LARGE:
            begun.append(dist.isend(tensor, 1, group=group))
        works = [work for work in begun if work is not None]
        with ThreadPoolExecutor(len(works)) as threads:
            seen = [threads.submit(sees_to_it, work) for work in works]
            time.sleep(0.2)
            dist.destroy_process_group(group)
            for each in seen:
                each.result(5)
        for work in works:
            assert "left" in expect_error(work.wait, within=1)
    else:
        time.sleep(0.5)
        for _ in range(2):
            if rank == 0:
                dist.send(tensor, 1, group=group)
            else:
                dist.recv(tensor, 0, group=group)
                assert filled(tensor, 0)
            time.sleep(0.2)
    dist.barrier()


@pytest.mark.ranks(4, hosts=[4], by_name=[3])
def test_leave_a_barrier_with_a_message_that_nobody_answers() -> None:
    """The others may not have come out of it yet."""
    for _ in range(40):
        group = dist.new_group()
        dist.barrier(group=group)
        if dist.get_rank() == 0:
            work = dist.irecv(torch.zeros(SMALL), 1, group=group)
            assert work is not None
            for _ in range(2):
                assert not work.is_completed()
        check_group(group)
        dist.barrier(group=group)
        dist.destroy_process_group(group)
        dist.barrier()


@pytest.mark.ranks(2)
def test_callback_asks_for_the_message_that_ends_its_group() -> None:
    """The message is too long. A collective fails of it, whose callback waits for the message."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    if dist.get_rank() == 1:
        sent = dist.isend(torch.ones(10), dst=0, group=group)
        dist.barrier()
        del sent
    else:
        message = dist.irecv(torch.zeros(3), src=1, group=group)
        assert message is not None
        behind = dist.all_reduce(torch.ones(SMALL), group=group, async_op=True)
        asked = behind.get_future().then(lambda _: expect_error(message.wait, within=5))
        text = expect_error(message.wait)
        assert asked.wait() == text
        dist.barrier()


@pytest.fixture(scope="module")
def bare() -> Iterator[RankPool]:
    """Two ranks that have joined nothing."""
    with RankPool(2, backend="") as pool:
        yield pool


def again(backend: str, times: int) -> None:
    for number in range(times):
        dist.init_process_group(
            backend,
            store=bare_store(),
            rank=int(os.environ["RANK"]),
            world_size=2,
            timeout=timedelta(seconds=20),
        )
        assert dist.get_backend() == backend or ":" in backend
        group = dist.new_group([1, 0])
        check_group()
        check_group(group)
        if number % 2:
            tensor = torch.full((3,), float(dist.get_rank()))
            dist.broadcast(tensor, src=1)
            assert filled(tensor, 1)
        dist.destroy_process_group()
        assert not dist.is_initialized()


def test_again_on_the_same_store(bare: RankPool) -> None:
    bare.run(again, "hvd", 5)


@pytest.mark.parametrize("backend", ["cpu:hvd", "cpu:hvd,cuda:hvd", "cpu:hvd,cuda:gloo"])
def test_mixed_strings(bare: RankPool, backend: str) -> None:
    bare.run(again, backend, 1)  # once: stock gloo cannot begin again on a store


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NCCL's backend asks for a GPU when made")
def test_beside_nccl(bare: RankPool) -> None:
    bare.run(again, "cpu:hvd,cuda:nccl", 1)


def half_gone() -> None:
    """One rank ends its group before the other; the next generation is not confused by it."""
    for number in range(3):
        dist.init_process_group(
            "hvd", store=bare_store(), rank=int(os.environ["RANK"]), world_size=2
        )
        check_group()
        if dist.get_rank() == number % 2:
            time.sleep(0.5)
        dist.destroy_process_group()


def test_ranks_leave_at_different_times(bare: RankPool) -> None:
    bare.run(half_gone)


def come_and_go() -> None:
    """Rank 0 goes on without rank 1, then with it again, all on one store."""
    rank = int(os.environ["RANK"])
    for size in (2, 1, 2):
        if rank < size:
            dist.init_process_group("hvd", store=bare_store(), rank=rank, world_size=size)
            check_group()
            dist.destroy_process_group()


def test_with_fewer_ranks_on_the_same_store(bare: RankPool) -> None:
    bare.run(come_and_go)


def under_detail() -> None:
    """What DETAIL wraps still works, and compares calls by its own means."""
    size = dist.get_world_size()
    check_group()
    outputs = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(outputs, torch.full((3,), float(dist.get_rank())))
    assert [t[0].item() for t in outputs] == list(range(size))
    output = torch.zeros(2)
    dist.reduce_scatter_tensor(output, torch.ones(2 * size))
    assert output.tolist() == [size] * 2
    dist.all_gather_object([None] * size, "x")
    dist.barrier()
    check_group(dist.new_group())
    group = dist.new_group()
    with pytest.raises(RuntimeError, match="mismatch"):
        dist.all_reduce(torch.ones(3 + dist.get_rank()), group=group)
    check_group()


@pytest.mark.parametrize("size", [2, 3])
def test_detail(size: int) -> None:
    with RankPool(size, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as pool:
        pool.run(under_detail)


WITHOUT_MORE_THREADS = """
import contextlib, resource
from pathlib import Path

@contextlib.contextmanager
def without_more_threads():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
"""

NO_THREAD = (
    WITHOUT_MORE_THREADS
    + """
tensor = torch.ones(4)
dist.all_reduce(tensor)
if rank == 0:
    with without_more_threads():
        try:
            dist.all_reduce(tensor, async_op=True)
        except RuntimeError as error:
            print(error, tensor.tolist())
dist.all_reduce(tensor, async_op=True).wait()
print(tensor.tolist())
dist.destroy_process_group()
"""
)

NO_SECOND_THREAD = (
    WITHOUT_MORE_THREADS
    + """
MESSAGE = torch.arange(1 << 21)  # 16 MB
tensor = torch.empty_like(MESSAGE)
if rank == 0:
    dist.send(MESSAGE[:4], 1)
    dist.send(MESSAGE, 1)
else:
    dist.recv(tensor[:4], 0)
    with without_more_threads():
        dist.recv(tensor, 0)
    print(torch.equal(tensor, MESSAGE))
dist.destroy_process_group()
"""
)


def test_long_message_for_which_there_is_no_second_thread() -> None:
    _, receiver = launch(NO_SECOND_THREAD, 2)
    assert receiver.stdout == "True\n", receiver.stderr


def test_call_for_which_there_is_no_thread() -> None:
    """It is an error of that call, which has not been made, and the next one works."""
    first, second = launch(NO_THREAD, 2)
    assert first.stdout == (
        "Resource temporarily unavailable [2.0, 2.0, 2.0, 2.0]\n[4.0, 4.0, 4.0, 4.0]\n"
    ), first.stderr
    assert second.stdout == "[4.0, 4.0, 4.0, 4.0]\n", second.stderr
