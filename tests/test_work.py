"""The Work that every call returns: future, wait, numbers, names, and what it keeps alive."""

from __future__ import annotations

import gc
import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from calls import LARGE, SMALL, check_group, cpu_backend
from rows import filled
from starts import STARTS, Start, start_all_reduce, start_barrier, start_reduce, start_send_recv

pytestmark = pytest.mark.ranks(1, 2, 3, by_name=[2])

every_start = pytest.mark.parametrize(
    "start", STARTS, ids=lambda start: start.__name__.removeprefix("start_")
)
small_and_large = pytest.mark.parametrize("count", [3, LARGE])


def same_memory(got: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    return [t.data_ptr() for t in got] == [t.data_ptr() for t in outputs]


@every_start
@small_and_large
def test_future(start: Start, count: int) -> None:
    """Its value is the list of result tensors, filled; `then` runs a Python callback with it."""
    work, outputs = start(count)
    sums: list[float] = []

    def note(future: torch.futures.Future[list[torch.Tensor]]) -> int:
        sums.extend(tensor.sum().item() for tensor in future.value())
        return 7

    chained = work.get_future().then(note)
    assert chained.wait() == 7
    value = work.get_future().value()
    assert isinstance(value, list) and work.get_future().done()
    assert sums == [tensor.sum().item() for tensor in outputs]
    if start is not start_reduce:
        assert same_memory(value, outputs)
    work.wait()


def test_future_asked_for_as_the_work_completes() -> None:
    """It completes once, whoever is first."""
    for turn in range(300):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        end = time.perf_counter() + turn * 1e-6
        while time.perf_counter() < end:
            pass
        assert work is not None
        work.get_future().wait()


@every_start
@small_and_large
def test_completion(start: Start, count: int) -> None:
    """is_completed turns true without anyone waiting; then wait, result and the rest answer."""
    work, outputs = start(count)
    end = time.monotonic() + 10
    while not work.is_completed():
        assert time.monotonic() < end, "never completed though nobody failed"
        time.sleep(0.002)
    assert work.wait() is True or work.wait() is None
    assert work.is_success()
    if start not in (start_reduce, start_send_recv):
        assert same_memory(work.result(), outputs)


@pytest.mark.ranks(2)
@small_and_large
def test_result_before_the_end(count: int) -> None:
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait([f"asked for {count}"])
    work = dist.all_reduce(torch.ones(count), async_op=True)
    assert work is not None
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"result\(\) of work that is not done; call wait"):
            work.result()
        store.set(f"asked for {count}", "")
    work.wait()
    assert filled(work.result()[0], 2)


@every_start
def test_wait_twice_and_drop(start: Start) -> None:
    work, _ = start(5)
    work.wait()
    work.wait(timedelta(seconds=5))
    del work
    start(5)[0].wait()


def test_source_rank() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        with pytest.raises(ValueError):
            dist.send(torch.ones(1), dst=0)
        with pytest.raises(RuntimeError, match="recv in a group of one rank; it has no peers"):
            dist.recv(torch.ones(1))
        check_group()
        return
    if rank == 0:
        for _ in range(size - 1):
            received = torch.zeros(2)
            work = dist.irecv(received)
            assert work is not None
            work.wait()
            assert received.tolist() == [work._source_rank()] * 2
    else:
        sent = dist.isend(torch.full((2,), float(rank)), dst=0)
        assert sent is not None
        sent.wait()
        with pytest.raises(RuntimeError, match="source rank of send to rank 0; only what is rec"):
            sent._source_rank()


@small_and_large
def test_tensors_are_kept(count: int) -> None:
    """Nothing but the Work holds the tensors of a call; their memory is asked for again at once."""
    size = dist.get_world_size()
    works = []
    for k in range(8):
        tensor = torch.full((count,), float(k))
        works.append(dist.all_reduce(tensor, async_op=True))
        works.append(
            dist.all_gather(
                [torch.zeros(count) for _ in range(size)], torch.full((count,), 3.0), async_op=True
            )
        )
        del tensor
        gc.collect()
        torch.full((count,), float("nan"))
    for k, work in enumerate(works):
        value = work.get_future().wait()
        expected = [float(k // 2) * size] if k % 2 == 0 else [3.0] * size
        assert all(filled(tensor, x) for tensor, x in zip(value, expected, strict=True))


def test_works_dropped_at_once_still_run() -> None:
    size = dist.get_world_size()
    tensors = [torch.ones(count) for count in (3, LARGE, 5)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    assert all(filled(tensor, size) for tensor in tensors)


@small_and_large
def test_send_dropped_at_once_still_arrives(count: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(count)
    if size == 1:
        return
    dist.isend(torch.full((count,), float(rank)), dst=(rank + 1) % size)
    gc.collect()
    torch.full((count,), float("nan"))
    dist.recv(received, src=(rank - 1) % size)
    assert filled(received, (rank - 1) % size)
    dist.barrier()


@pytest.mark.ranks(1)
@small_and_large
def test_alone_all_is_done_at_once(count: int) -> None:
    """There is nobody to wait for, so no other thread is asked."""
    work = dist.all_reduce(torch.ones(count), async_op=True)
    assert work is not None
    assert work.is_completed()


@pytest.mark.ranks(2, 3)
def test_futures_dropped_at_once_beside_messages() -> None:
    """Their tensors are freed by whoever completes them, which takes the GIL, as messages do."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(500):
        dist.all_reduce(torch.ones(3), async_op=True).get_future()
        sent = dist.isend(torch.ones(3), (rank + 1) % size)
        received = dist.irecv(torch.ones(3), (rank - 1) % size)
        for work in (sent, received):
            assert work is not None
            work.get_future().wait()


@pytest.mark.parametrize("order", ["forward", "backward", "last only", "by rank"])
def test_many_in_flight(order: str) -> None:
    """A hundred calls of mixed sizes, waited for in other orders than issued."""
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = [(1, 700, 5000, 30_000)[k % 4] for k in range(100)]
    tensors = [torch.full((count,), float(k + rank)) for k, count in enumerate(counts)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    waited = {
        "forward": works,
        "backward": works[::-1],
        "last only": works[-1:],
        "by rank": works[rank::2] + works[::-1],
    }[order]
    for work in waited:
        work.wait()
    for k, tensor in enumerate(tensors):
        assert filled(tensor, k * size + size * (size - 1) / 2), k


def test_sequence_numbers() -> None:
    """They count the collectives of the group, the same on every rank."""
    backend = cpu_backend()
    before = backend._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    dist.broadcast(torch.ones(LARGE), src=0)
    assert backend._get_sequence_number_for_group() == before + 4
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, before)
    assert everyone == [before] * len(everyone)


PROFILED = {
    "start_all_reduce": "hvd:all_reduce",
    "start_reduce": "hvd:reduce",
    "start_broadcast": "hvd:broadcast",
    "start_all_gather": "hvd:all_gather",
    "start_scatter": "hvd:scatter",
    "start_reduce_scatter": "hvd:reduce_scatter",
    "start_all_to_all": "hvd:all_to_all",
    "start_barrier": "hvd:barrier",
}


@every_start
@small_and_large
def test_profiler(start: Start, count: int) -> None:
    """One event for each call, under hvd:verb, with the shapes that went in."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        start(count)[0].wait()
        dist.barrier()
    named = [event for event in trace.events() if event.name.startswith("hvd:")]
    names = [event.name for event in named]
    if start.__name__ in PROFILED:
        assert names.count(PROFILED[start.__name__]) == 1 + (start is start_barrier), names
    if start is start_all_reduce:
        event = next(event for event in named if event.name == "hvd:all_reduce")
        assert event.input_shapes == [[count]], event.input_shapes


def test_threads_with_their_own_groups() -> None:
    """Three Python threads, each with its own group, and the main thread on the default one."""
    size = dist.get_world_size()
    groups = [dist.new_group() for _ in range(3)]
    wrong: list[object] = []

    def work(number: int, group: dist.ProcessGroup | None) -> None:
        for k in range(60):
            tensor = torch.full((1 + 5000 * (k % 3),), float(k + number))
            dist.all_reduce(tensor, group=group)
            if not filled(tensor, (k + number) * size):
                wrong.append((number, k, tensor))

    threads = [threading.Thread(target=work, args=(n, group)) for n, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    work(10, None)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not wrong, wrong[0]


def test_wait_from_another_thread() -> None:
    tensor = torch.ones(LARGE)
    work = dist.all_reduce(tensor, async_op=True)
    threads = [threading.Thread(target=work.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert tensor[0] == dist.get_world_size()


@small_and_large
def test_callback_may_call_collectives(count: int) -> None:
    """As communication hooks do: a second call is issued from the callback of the first."""
    size = dist.get_world_size()
    first = torch.ones(count)
    second = torch.full((count,), 2.0)

    def chain(_: object) -> dist.Work:
        return dist.all_reduce(second, async_op=True)

    next_work = dist.all_reduce(first, async_op=True).get_future().then(chain).wait()
    next_work.wait()
    assert first[0] == size and second[0] == 2 * size


@pytest.mark.parametrize("waits_for", ["future", "work"])
@pytest.mark.parametrize("counts", [(3, 3), (3, LARGE), (LARGE, 3)], ids=str)
def test_callback_may_wait_for_what_completes_with_it(
    counts: tuple[int, int], waits_for: str
) -> None:
    """Both are done at once where the other ranks are late; neither future waits for the other's
    callback.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    for turn in range(10):
        dist.barrier()
        time.sleep(0.02 * (rank > 0))
        tensors = [torch.ones(count) for count in counts]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works]
        mine, others = turn % 2, 1 - turn % 2
        wait = futures[others].wait if waits_for == "future" else works[others].wait
        futures[mine].then(lambda _, wait=wait: wait()).wait()
        assert all(filled(tensor, size) for tensor in tensors)


def test_callbacks_that_all_wait_for_the_last() -> None:
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(9)]
    futures = [work.get_future() for work in works]
    waiting = [future.then(lambda _: futures[-1].wait()) for future in futures[:-1]]
    for future in waiting:
        future.wait()


def test_slow_callbacks_take_few_threads() -> None:
    """Those that compute want Python's lock, and wait for no other."""

    def compute(_: object) -> None:
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass

    before = len(os.listdir("/proc/self/task"))
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(300)]
    for future in [work.get_future().then(compute) for work in works]:
        future.wait()
    assert len(os.listdir("/proc/self/task")) - before < 30


def test_wait_does_not_wait_for_callbacks_of_others() -> None:
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    group = dist.new_group()
    release = threading.Event()
    if rank == 1 and dist.get_world_size() > 1:
        store.wait([f"called {group.group_name}"])  # so nothing is done before
    works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(3)]
    if rank != 0 or dist.get_world_size() == 1:
        release.set()
    futures = [work.get_future() for work in works]
    blocked = futures[0].then(lambda _: release.wait(20))
    store.set(f"called {group.group_name}", "")
    works[1].wait(timedelta(seconds=5))
    futures[2].wait()
    assert blocked.done() == release.is_set() or rank > 0
    release.set()
    assert blocked.wait() is True


def test_callbacks_do_not_meet_what_a_waiting_thread_has_set() -> None:
    """Here that what it makes are inference tensors, which cannot be saved for backward."""
    weight = torch.ones(3, requires_grad=True)
    for turn in range(30):
        made: list[torch.Tensor] = []

        def note(_: object, made: list[torch.Tensor] = made) -> None:
            made.append(torch.ones(3))

        time.sleep(0.002 * (turn % 2 == dist.get_rank()))
        chained = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(note)
        with torch.inference_mode():
            dist.barrier()
        chained.wait()
        (weight * made[0]).sum().backward()


@pytest.mark.ranks(2, hosts=[2], by_name=[2])
def test_callbacks_of_messages_do_not_run_where_somebody_waits() -> None:
    """Nor does who waits for the message wait for them."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 1:
        store.wait(["asked"])
        store.delete_key("asked")
        dist.send(torch.ones(3), 0)
    else:
        work = dist.irecv(torch.zeros(3), 1)
        assert work is not None
        waits, release = threading.Event(), threading.Event()

        def wait() -> None:
            with torch.inference_mode():
                waits.set()
                work.wait()

        def note(_: object) -> tuple[int, bool, bool]:
            return threading.get_ident(), torch.is_inference_mode_enabled(), release.wait(10)

        waiter = threading.Thread(target=wait)
        waiter.start()
        waits.wait()
        time.sleep(0.1)
        noted = work.get_future().then(note)
        store.set("asked", "")
        waiter.join(5)
        assert not waiter.is_alive()
        release.set()
        thread, inference, released = noted.wait()
        assert thread != waiter.ident and not inference and released
    dist.barrier()


def test_waits_under_a_dispatch_mode() -> None:
    """Results are written as data: a mode of the thread that waits sees nothing of it."""
    size = dist.get_world_size()
    strided = [torch.ones(2 * count)[::2] for count in (SMALL, LARGE)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in strided]
    peers = [rank for rank in range(size) if rank != dist.get_rank()]
    received = [torch.zeros(2 * SMALL)[::2] for _ in peers]
    works += [dist.isend(torch.ones(SMALL), peer) for peer in peers]
    works += [dist.irecv(each, peer) for each, peer in zip(received, peers, strict=True)]
    with FakeTensorMode():
        for work in works:
            work.wait()
    assert all(filled(tensor, size) for tensor in strided)
    assert all(filled(tensor, 1) for tensor in received)


def test_callback_that_raises() -> None:
    """The error stays in the future that `then` made; the Work and the group are well."""

    def fail(_: object) -> None:
        raise KeyError("from the callback")

    work = dist.all_reduce(torch.ones(3), async_op=True)
    with pytest.raises(RuntimeError, match="from the callback"):
        work.get_future().then(fail).wait()
    work.wait()
    dist.barrier()
