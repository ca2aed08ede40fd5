"""Timelines: what each rank writes, and how they are put together."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_hvd
from calls import LARGE, SMALL, cpu_backend, expect_error
from launch import launch
from ranks import RankPool
from torch_hvd import report


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


IN_ONE_CALL = 10


def described(folder: str) -> str:
    group = dist.new_group()
    dist.barrier(group=group)
    torch_hvd.start_timeline(folder)
    for count in (SMALL, LARGE):
        dist.all_reduce(torch.ones(count), group=group)
    expect_error(lambda: dist.all_reduce(torch.ones(SMALL + dist.get_rank()), group=group))
    dist.all_reduce_coalesced([torch.ones(SMALL) for _ in range(IN_ONE_CALL)], group=group)
    torch_hvd.stop_timeline()
    dist.barrier(group=group)
    return str(cpu_backend(group).options.transport)


@pytest.mark.ranks(2)
def test_details(pool: RankPool, tmp_path: Path) -> None:
    """Of each collective but the one that has failed. Those of one call are ready together, so
    the first frame takes them all.
    """
    transports = pool.run(described, str(tmp_path))
    for rank, transport in enumerate(transports):
        events = json.loads((tmp_path / f"rank-{rank}.timeline.json").read_text())
        begun = [event for event in events if "seq" in event.get("args", {})]
        assert [event["name"] for event in begun] == [
            f"all_reduce(float32[{count}], SUM)" for count in (SMALL, LARGE, *[SMALL] * IN_ONE_CALL)
        ]
        details = [event["args"] for event in begun]
        numbers = [1, 2, *range(4, 4 + IN_ONE_CALL)]
        assert [each["seq"] for each in details] == numbers
        assert [each["bytes"] for each in details] == [
            *(4 * count for count in (SMALL, LARGE, *[SMALL] * IN_ONE_CALL))
        ]
        assert {each["transport"] for each in details} == {transport}
        assert all(event["id"].endswith(f"/{n}") for event, n in zip(begun, numbers, strict=True))
        batches = [each["batch"] for each in details]
        assert batches == sorted(batches)
        assert len(set(batches[:3])) == 3 and len(set(batches[2:])) == 1, batches


def test_timeline_before_there_is_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK says whose it is, as launchers set it; ranks of a spawn have none."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match=r"call it after init_process_group, or set RANK"):
        torch_hvd.start_timeline(tmp_path)
    monkeypatch.setenv("RANK", "3")
    torch_hvd.start_timeline(tmp_path)
    torch_hvd.stop_timeline()
    assert [path.name for path in tmp_path.iterdir()] == ["rank-3.timeline.json"]


def test_timeline_before_there_is_a_group_of_hvd(tmp_path: Path) -> None:
    script = f"""
    import torch_hvd
    del os.environ["RANK"]
    torch_hvd.start_timeline({str(tmp_path)!r})
    """
    ended = launch(script, 2, backend="gloo")
    assert [process.returncode for process in ended] == [0, 0], ended
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"rank-{rank}.timeline.json" for rank in range(2)]


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


def events_of(wall_clock: float, *calls: tuple[str, float, float]) -> list[report.Event]:
    """Calls by name, each with when it left and when everything had come in."""
    events: list[report.Event] = [
        {"ph": "M", "name": "process_name", "args": {"wall_clock_offset_us": wall_clock}}
    ]
    for number, (name, left, came) in enumerate(calls):
        events += [
            {"ph": "b", "name": name, "id": f"0/{number}", "ts": left, "args": {}},
            {"ph": "b", "name": "pack", "id": f"0/{number}", "ts": left},
            {"ph": "e", "name": "exchange", "id": f"0/{number}", "ts": came},
        ]
    return events


# By the first the offset is from -1010 to -990, by the second at most -996, by the third at least
# -1004.
CALLS = ("all_reduce", "all_gather", "barrier")
HERE = [(0.0, 10.0), (100.0, 104.0), (200.0, 210.0)]
THERE = [(1000.0, 1010.0), (1100.0, 1110.0), (1200.0, 1204.0)]
REFERENCE = [(name, *times) for name, times in zip(CALLS, HERE, strict=True)]
AHEAD = [(name, *times) for name, times in zip(CALLS, THERE, strict=True)]


@pytest.mark.parametrize("guess", [-1004.0, -1003.0, -996.0])
def test_a_wall_clock_that_may_be_right_is_believed(guess: float) -> None:
    assert report.clock_offset(events_of(5e6, *REFERENCE), events_of(5e6 + guess, *AHEAD)) == guess


@pytest.mark.parametrize("guess", [-1004.5, -995.5])
def test_clocks_are_bound_from_each_side(guess: float) -> None:
    """By another collective; of what is left the middle is taken."""
    assert report.clock_offset(events_of(0.0, *REFERENCE), events_of(guess, *AHEAD)) == -1000.0


@pytest.mark.parametrize("name", ["broadcast", "reduce", "scatter"])
def test_clocks_are_not_bound_by_what_goes_one_way(name: str) -> None:
    """Who sends has it before the others have come."""
    one_way = (name, 300.0, 301.0), (name, 1350.0, 1360.0)  # as if it were -1049 at most
    reference, ahead = [*REFERENCE, one_way[0]], [*AHEAD, one_way[1]]
    assert report.clock_offset(events_of(0.0, *reference), events_of(7.0, *ahead)) == -1000.0
    assert report.clock_offset(events_of(0.0, one_way[0]), events_of(7.0, one_way[1])) == 7.0


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
        of_child = json.loads(process.stdout)
        assert (of_child["groups"], of_child["ended"]) == ([], False)
        events = json.loads((tmp_path / f"rank-{rank}.timeline.json").read_text())
        names = Counter(e["name"] for e in events if e["ph"] == "b" and "args" in e)
        assert names["all_reduce(float32[4], SUM)"] == 2
        groups = json.loads((tmp_path / "s" / f"rank-{rank}.stats.json").read_text())["groups"]
        assert groups[0]["tensors"] == 2


FILE_THAT_CANNOT_GROW = """
import resource
for _ in range(200):  # until it is longer than all other files
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
length = os.path.getsize(f"{os.environ['HVD_TIMELINE']}/rank-{rank}.timeline.json")
resource.setrlimit(resource.RLIMIT_FSIZE, (length, most))
"""


def test_timeline_that_cannot_be_written_to_its_end(tmp_path: Path) -> None:
    """Is an error at the program's end, and takes nothing from the statistics."""
    env = {"HVD_TIMELINE": str(tmp_path), "HVD_STATS": str(tmp_path)}
    for rank, process in enumerate(launch(FILE_THAT_CANNOT_GROW, 2, env=env)):
        path = tmp_path / f"rank-{rank}.timeline.json"
        assert f"the timeline {path} is cut short" in process.stderr
        groups = json.loads((tmp_path / f"rank-{rank}.stats.json").read_text())["groups"]
        assert groups[0]["tensors"] == 200


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
