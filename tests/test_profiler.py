"""What torch's profiler writes of calls, in the manner of the backend for NCCL."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

pytestmark = pytest.mark.ranks(2, 3)


def traced(run: Callable[[], object]) -> list[dict[str, object]]:
    """The arguments of each "record_param_comms"."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        run()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [event["args"] for event in events if event["name"] == "record_param_comms"]


def assert_has(record: dict[str, object], **expected: object) -> None:
    named = {key.replace("_", " "): value for key, value in expected.items()}
    assert {key: record.get(key) for key in named} == named


def test_sizes() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sends = [2 * rank + peer + 1 for peer in range(size)]
    expects = [rank + 2 * peer + 1 for peer in range(size)]

    def run() -> None:
        dist.all_gather_into_tensor(torch.empty(2 * size, 3), torch.ones(2, 3))
        dist.all_reduce(torch.ones(5, dtype=torch.float64), async_op=True).wait()
        exchanged = torch.ones(sum(sends), dtype=torch.int32)
        dist.all_to_all_single(exchanged.new_empty(sum(expects)), exchanged, expects, sends)

    gather, reduce, exchange = traced(run)
    assert_has(gather, Collective_name="all_gather", dtype="Float")
    assert_has(gather, In_msg_nelems=6, Out_msg_nelems=6 * size, Is_asynchronized_op=0)
    assert_has(reduce, Collective_name="all_reduce", dtype="Double", Is_asynchronized_op=1)
    assert_has(reduce, In_msg_nelems=5, Out_msg_nelems=5, Seq=cast(int, gather["Seq"]) + 1)
    assert_has(exchange, Collective_name="all_to_all", dtype="Int", In_msg_nelems=sum(sends))
    assert_has(exchange, Out_msg_nelems=sum(expects))
    assert_has(exchange, In_split_size=str(sends), Out_split_size=str(expects))


def test_groups() -> None:
    """By name, and by the numbers of its ranks in the job."""
    peers = [0, dist.get_world_size() - 1]
    for ranks in [peers, list(range(dist.get_world_size()))]:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            (record,) = traced(partial(dist.barrier, group))
            assert_has(record, Collective_name="barrier", Group_size=len(ranks))
            assert_has(record, Rank=dist.get_rank(group), Process_Group_Ranks=str(ranks))
            assert record["Process Group Name"] == group.group_name


@pytest.mark.ranks(4)
def test_a_group_of_ranks_at_no_one_distance() -> None:
    """Its first rank and a distance are all that there is room for, so the others are left out."""
    for ranks in [[0, 1, 3], [2]]:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            (record,) = traced(partial(dist.barrier, group))
            assert_has(record, Process_Group_Ranks="[]", Global_rank_start=ranks[0])
            assert_has(record, Group_size=len(ranks))


def test_messages() -> None:
    tensor = torch.ones(4)
    rank = dist.get_rank()
    if rank == 0:
        (record,) = traced(lambda: dist.send(tensor, 1))
        assert_has(record, Collective_name="send", Dst_Rank=1, In_msg_nelems=4)
    elif rank == 1:
        (record,) = traced(lambda: dist.recv(tensor, 0))
        assert_has(record, Collective_name="recv", Src_Rank=0, Out_msg_nelems=4)


def observed(run: Callable[[], object]) -> list[dict[str, list[Any]]]:
    """What goes into each "record_param_comms" of an execution trace, and what comes out."""
    observer = ExecutionTraceObserver()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        observer.register_callback(str(path))
        observer.start()
        run()
        observer.stop()
        observer.unregister_callback()
        nodes = json.loads(path.read_text())["nodes"]
    return [
        {way: node[way]["values"] for way in ("inputs", "outputs")}
        for node in nodes
        if node["name"] == "record_param_comms"
    ]


def test_execution_trace() -> None:
    """By the places of its values a trace is run again."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    sends = [2 * rank + peer + 1 for peer in range(size)]
    expects = [rank + 2 * peer + 1 for peer in range(size)]

    def run() -> None:
        dist.barrier(group)
        exchanged = torch.ones(sum(sends))
        dist.all_to_all_single(torch.empty(sum(expects)), exchanged, expects, sends, group=group)
        if rank == 0:
            dist.send(torch.ones(4), 1, group=group)
        elif rank == 1:
            dist.recv(torch.ones(4), 0, group=group)

    barrier, exchange, *messages = observed(run)
    name = [group.group_name, ""]
    assert barrier["inputs"][1:] == [[0, False], name, rank, "barrier", [], [], 0, 1, size, False]
    assert exchange["inputs"][1:] == [
        *([1, False], name, rank, "all_to_all", sends, expects, 0, 1, size, False)
    ]
    elements = [tensors[0][3] for tensors in (exchange["inputs"][0], exchange["outputs"][0])]
    assert elements == [sum(sends), sum(expects)]
    assert len(messages) == (rank < 2)
    for message in messages:
        verb = ["send", "recv"][rank]
        assert message["inputs"][1:] == [
            *([2, True], name, 1 - rank, verb, [], [], 0, 1, size, True)
        ]
