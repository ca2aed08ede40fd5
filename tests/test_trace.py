"""What users see of the engine: statistics, timeline, reports, and the report of a stall."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_hvd
from calls import LARGE, SMALL, cpu_backend, expect_error
from launch import launch
from ranks import RankPool
from torch_hvd import report

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
    if cpu_backend(group).options.transport == "shm":
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
def test_a_burst_in_one_call_takes_four_frames_at_most() -> None:
    assert max(frames_of_bursts(in_one_call)) <= 4


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


def traced(folder: str) -> int:
    group = dist.new_group()
    dist.barrier(group=group)
    torch_hvd.start_timeline(folder)
    with pytest.raises(RuntimeError, match="already"):
        torch_hvd.start_timeline(folder)
    works = [
        dist.all_reduce(torch.ones(count), group=group, async_op=True)
        for count in (3, 700, LARGE, 5) * 10
    ]
    for work in works:
        assert work is not None
        work.wait()
    dist.broadcast(torch.ones(LARGE), src=0, group=group)
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(SMALL), 1, group=group)
    elif rank == 1:
        dist.recv(torch.ones(SMALL), 0, group=group)
    dist.barrier(group=group)
    torch_hvd.stop_timeline()
    torch_hvd.stop_timeline()
    dist.barrier(group=group)
    return len(works) + 2


MESSAGES = {0: ["send to rank 1"], 1: ["recv from rank 0"]}  # beside those
STAGES = ["agree", "pack", "exchange", "unpack", "complete"]


def check_nest(events: list[report.Event]) -> None:
    """One collective: an outer slice, and in it the stages, one after the other."""
    outer, *inner, end = events
    assert (outer["ph"], end["ph"], outer["name"]) == ("b", "e", end["name"])
    assert set(outer["args"]) == {"seq", "bytes", "batch", "transport"}
    assert [e["name"] for e in inner] == [stage for stage in STAGES for _ in "be"]
    assert [e["ph"] for e in inner] == ["b", "e"] * len(STAGES)
    times = [e["ts"] for e in events]
    assert times == sorted(times)


@pytest.mark.ranks(2, 3)
def test_timeline(pool: RankPool, tmp_path: Path) -> None:
    made = pool.run(traced, str(tmp_path))
    report.main(["timeline", str(tmp_path)])
    events = json.loads((tmp_path / "timeline.json").read_text())
    for rank in range(pool.size):
        of_rank = [e for e in events if e["pid"] == rank]
        assert of_rank[0]["args"]["name"] == f"rank {rank}"
        nests: dict[str, list[report.Event]] = {}
        for event in of_rank[1:]:
            nests.setdefault(event["id"], []).append(event)
        messages = [nests.pop(name) for name in list(nests) if len(nests[name]) == 2]
        assert [begin["name"] for begin, _ in messages] == MESSAGES.get(rank, [])
        for begin, end in messages:
            assert (begin["ph"], end["ph"]) == ("b", "e")
            assert begin["ts"] <= end["ts"]
            assert begin["args"]["bytes"] == 4 * SMALL
        assert len(nests) == made[rank], "an operation is missing"
        for nest in nests.values():
            check_nest(nest)
        names = Counter(nest[0]["name"].split("(")[0] for nest in nests.values())
        assert names == {"all_reduce": made[rank] - 2, "broadcast": 1, "barrier": 1}


@pytest.mark.ranks(2)
def test_timelines_of_hosts_with_other_clocks(pool: RankPool, tmp_path: Path) -> None:
    """A rank whose clock is 5 s ahead, and whose wall clock is an hour wrong, is put in place."""
    pool.run(traced, str(tmp_path))
    reference, ahead = (
        json.loads((tmp_path / f"rank-{rank}.timeline.json").read_text()) for rank in range(2)
    )
    for event in ahead[1:]:
        event["ts"] += 5e6
    ahead[0]["args"]["wall_clock_offset_us"] += 3.6e9
    found = report.clock_offset(reference, ahead)
    assert found == pytest.approx(-5e6, abs=20e3)


def test_timeline_of_a_rank_that_died(tmp_path: Path) -> None:
    whole = (
        '[{"ph":"M","name":"process_name","pid":0,"args":{"wall_clock_offset_us":0.0}},\n'
        '{"ph":"b","name":"a","pid":0,"id":"0/0","ts":1.0},\n'
    )
    (tmp_path / "rank-0.timeline.json").write_text(whole + '{"ph":"e","na')
    (tmp_path / "rank-1.timeline.json").write_text(whole.splitlines()[0].removesuffix(","))
    names = [event["name"] for event in report.merge_timelines(tmp_path)]
    assert names == ["process_name", "a", "process_name"]


FORKS = """
dist.all_reduce(torch.ones(4))
if os.fork() == 0:
    sys.exit()  # runs what was registered with atexit
os.wait()
print(open(f"{os.environ['HVD_STATS']}/rank-{rank}.stats.json").read())
dist.all_reduce(torch.ones(4))
"""


def test_forked_child_that_exits(tmp_path: Path) -> None:
    """It writes neither to its parent's timeline nor its statistics."""
    ended = launch(FORKS, 2, env={"HVD_TIMELINE": str(tmp_path), "HVD_STATS": str(tmp_path / "s")})
    for rank, process in enumerate(ended):
        assert process.returncode == 0, process.stderr
        assert json.loads(process.stdout)["groups"] == []
        events = json.loads((tmp_path / f"rank-{rank}.timeline.json").read_text())
        names = Counter(e["name"] for e in events if e["ph"] == "b" and "args" in e)
        assert names["all_reduce(float32[4], SUM)"] == 2
        groups = json.loads((tmp_path / "s" / f"rank-{rank}.stats.json").read_text())["groups"]
        assert groups[0]["tensors"] == 2


AGAIN = """
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
store = dist.FileStore(os.environ["AGAIN"], size)
dist.init_process_group("hvd", store=store, rank=rank, world_size=size)
dist.all_reduce(torch.ones(4))
"""


def test_ids_are_unique(tmp_path: Path) -> None:
    """Also where a program destroys its group and makes a new one; on all ranks they are alike."""
    folder = tmp_path / "timeline"
    ended = launch(AGAIN, 2, env={"HVD_TIMELINE": str(folder), "AGAIN": str(tmp_path / "store")})
    assert [process.returncode for process in ended] == [0, 0], ended[0].stderr
    ids = [
        [e["id"] for e in report._load_events(path) if e["ph"] == "b" and "args" in e]
        for path in (folder / "rank-0.timeline.json", folder / "rank-1.timeline.json")
    ]
    assert len(ids[0]) == len(set(ids[0])) == 2
    assert ids[0] == ids[1]


def test_files_of_an_earlier_run(tmp_path: Path) -> None:
    """A run of fewer ranks leaves files of the one before; they are not mixed with its own."""
    environment = {name: str(tmp_path / name) for name in ("HVD_STATS", "HVD_TIMELINE")}
    for size in (3, 2):
        ended = launch("dist.all_reduce(torch.ones(4))", size, env=environment)
        assert [process.returncode for process in ended] == size * [0], ended[0].stderr
    for command, name in (("stats", "HVD_STATS"), ("timeline", "HVD_TIMELINE")):
        with pytest.raises(
            SystemExit,
            match=rf"files of several runs: rank-0\.{command}\.json, rank-1\.{command}\.json "
            rf"of world size 2, .*; rank-2\.{command}\.json of world size 3, ",
        ):
            report.main([command, environment[name]])
        (tmp_path / name / f"rank-2.{command}.json").unlink()
        report.main([command, environment[name]])


def test_plot(tmp_path: Path) -> None:
    """A bar for each size that has responses, of each rank; the groups of a rank are one."""
    from matplotlib import image, pyplot

    counts = [[(3, 1.0), (0, 0.0), (2, 4.0)], [(1, 2.0), (0, 0.0), (5, 0.5)]]
    for rank, of_rank in enumerate(counts):
        uptos = (1e3, 1e6, None)
        rows = [
            {"upto": upto, "count": count, "seconds": seconds}
            for upto, (count, seconds) in zip(uptos, of_rank, strict=True)
        ]
        group = {"responses": 0, "messages": 0, "rows": rows}  # 0: it need not be printed
        text = json.dumps({"rank": rank, "run": "", "groups": [group, group]})
        (tmp_path / f"rank-{rank}.stats.json").write_text(text)
    file = tmp_path / "stats.png"
    report.main(["stats", str(tmp_path), "--plot", str(file)])

    assert image.imread(file).shape == (600, 800, 4)
    figure: Any = pyplot.gcf()
    responses, seconds = figure.axes
    assert [bar.get_height() for bar in responses.patches] == [6, 4, 2, 10]
    assert [bar.get_height() for bar in seconds.patches] == [2.0, 8.0, 4.0, 1.0]
    sizes = [label.get_text() for label in seconds.get_xticklabels()]
    assert sizes == ["(0, 1 KB]", "> 1 MB"]
    assert [text.get_text() for text in responses.get_legend().get_texts()] == ["rank 0", "rank 1"]
    pyplot.close("all")


@pytest.mark.parametrize("name", ["HVD_TIMELINE", "HOROVOD_TIMELINE", "HVD_STATS"])
def test_a_folder_that_is_a_file(name: str, tmp_path: Path) -> None:
    """As Horovod's timeline was: every rank hears of it when the group is made."""
    file = tmp_path / "timeline.json"
    file.touch()
    ended = launch("", 2, env={name: str(file)})
    for process in ended:
        assert process.returncode != 0
        assert f"{name} is '{file}'; allowed is a folder that can be written" in process.stderr


def test_report_of_nothing(tmp_path: Path) -> None:
    for command in ("timeline", "stats"):
        with pytest.raises(
            SystemExit,
            match=rf"holds no rank-N\.{command}\.json; was it given as HVD_{command.upper()}",
        ):
            report.main([command, str(tmp_path)])


def test_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HVD_STATS and HVD_TIMELINE need no change of a program; one folder may be for both."""
    environment = dict.fromkeys(("HVD_STATS", "HVD_TIMELINE"), str(tmp_path / "out"))
    ended = launch(
        "for n in (4, 300_000): dist.all_reduce(torch.ones(n))",
        2,
        env={**environment, "HVD_STATS_EDGES": "0.001,2"},
    )
    assert [process.returncode for process in ended] == [0, 0], ended
    out = tmp_path / "out"
    report.main(["timeline", str(out)])
    events = json.loads((out / "timeline.json").read_text())
    assert sum(e["name"].startswith("all_reduce") and e["ph"] == "b" for e in events) == 4
    capsys.readouterr()
    report.main(["stats", str(out), "--rank", "1"])
    printed = capsys.readouterr().out
    assert "Rank 1" in printed and "Rank 0" not in printed
    assert "| (0, 1 KB] | 1 | 1.0 |" in printed
    assert "| (1 KB, 2 MB] | 1 | 1.0 | 1.2 |" in printed
    with pytest.raises(SystemExit, match="nothing of rank 7"):
        report.main(["stats", str(out), "--rank", "7"])


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """What is written to file descriptor 2, by C++ too; the list is filled at the end."""
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read().splitlines()


def late(count: int) -> None:
    """The last rank is late by four check times; the others learn who is missing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.broadcast(torch.ones(SMALL), src=0)
    with captured_stderr() as lines:
        if rank == size - 1:
            time.sleep(4)
        dist.all_reduce(torch.ones(count))
    said = [line for line in lines if "has been waiting" in line]
    if rank == size - 1:
        assert not said, said
        return
    assert 1 <= len(said) <= 4, lines
    called = f"all_reduce(float32[{count}], SUM), number 1"
    assert called in said[-1], said
    assert f"Missing: rank {size - 1}, which last called broadcast(float32[4], root=0)" in said[-1]
    assert f"on rank {rank}" in said[-1]


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_stall_report(count: int) -> None:
    with RankPool(3, env={"HVD_STALL_CHECK_TIME": "1", "TORCH_CPP_LOG_LEVEL": "WARNING"}) as pool:
        pool.run(late, count)


def never_comes() -> None:
    group = dist.new_group(timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(SMALL), group=group)
    if dist.get_rank() == 0:
        text = expect_error(lambda: dist.all_reduce(torch.ones(LARGE), group=group), within=6)
        assert "HVD_STALL_SHUTDOWN_TIME" in text and "Missing: rank 1" in text, text
    else:
        time.sleep(3)


def test_stall_shutdown() -> None:
    with RankPool(2, env={"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1.5"}) as pool:
        pool.run(never_comes)
