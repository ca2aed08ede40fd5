"""`python -m torch_hvd.report`: what HVD_TIMELINE and HVD_STATS left behind, for people to look at.

python -m torch_hvd.report timeline DIR              # DIR/timeline.json, for ui.perfetto.dev
python -m torch_hvd.report stats DIR [--rank N] [--plot FILE.png]
"""

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Event = dict[str, Any]
# What comes of files that are cut off, or somebody else's.
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RecursionError),
)
T = TypeVar("T")


def _of_ranks(
    folder: Path, kind: str, load: Callable[[Path], T], run_of: Callable[[T], Any]
) -> list[T]:
    """What each rank of a run has left in the folder."""
    end = f".{kind}.json"
    numbers = {
        path: int(match[1])
        for path in folder.glob(f"rank-*{end}")
        if (match := re.fullmatch(rf"rank-([0-9]+)\.{kind}\.json", path.name))
    }
    if not numbers:
        raise SystemExit(f"{folder} holds no rank-N{end}; was it given as HVD_{kind.upper()}?")
    loaded: list[T] = []
    runs: dict[Any, list[str]] = {}
    for path in sorted(numbers, key=numbers.__getitem__):
        try:
            content = load(path)
            runs.setdefault(run_of(content), []).append(path.name)
        except _UNREADABLE as error:
            raise SystemExit(f"{path} cannot be read: {error!r}") from error
        loaded.append(content)
    if len(runs) > 1:
        found = "; ".join(f"{', '.join(names)} of {run}" for run, names in runs.items())
        raise SystemExit(
            f"{folder} holds files of several runs: {found}. Remove those of other runs, and give "
            "each run a folder of its own."
        )
    return loaded


def _load_events(path: Path) -> list[Event]:
    text = path.read_text()
    try:
        events: list[Event] = json.loads(text)
    except json.JSONDecodeError:
        # A rank that died left no end, and perhaps half a line; or the first line alone.
        end = text.rfind("},\n") + 1
        events = json.loads((text[:end] or text) + "]")
    _ = events[0]["args"]["wall_clock_offset_us"] + sum(e.get("ts", 0.0) for e in events)
    _stages(events)
    return events


def _load_statistics(path: Path) -> Mapping[str, Any]:
    rank: Mapping[str, Any] = json.loads(path.read_text())
    _ = rank["ended"], _tables(rank)
    return rank


def _stages(events: Sequence[Event]) -> dict[str, tuple[float, float]]:
    """When each collective left this rank, and when everything had come in, by its id."""
    begins = {e["id"]: e["ts"] for e in events if e["name"] == "pack" and e["ph"] == "b"}
    ends = {e["id"]: e["ts"] for e in events if e["name"] == "exchange" and e["ph"] == "e"}
    return {name: (begins[name], ends[name]) for name in begins.keys() & ends.keys()}


# What nobody has before everybody has sent it.
_SYMMETRIC = ("all_reduce", "all_gather", "barrier")


def clock_offset(reference: Sequence[Event], events: Sequence[Event]) -> float:
    """Microseconds to add to the times of `events`, so that they fit those of `reference`.

    Neither rank can have all of a symmetric collective before the other has sent its part: each
    one bounds the offset from both sides, as a message there and back does in NTP (RFC 5905).
    """
    guess = events[0]["args"]["wall_clock_offset_us"] - reference[0]["args"]["wall_clock_offset_us"]
    symmetric = {
        e["id"]
        for e in events
        if e["ph"] == "b" and "args" in e and e["name"].startswith(_SYMMETRIC)
    }
    there, here = _stages(reference), _stages(events)
    shared = symmetric & there.keys() & here.keys()
    if not shared:
        return float(guess)
    most = min(there[name][1] - here[name][0] for name in shared)
    least = max(there[name][0] - here[name][1] for name in shared)
    return float(guess) if least <= guess <= most else (least + most) / 2


def merge_timelines(folder: Path) -> list[Event]:
    """The events of all ranks on the clock of the lowest one, from zero."""
    ranks = _of_ranks(folder, "timeline", _load_events, lambda events: events[0]["args"].get("run"))
    merged = []
    for events in ranks:
        offset = clock_offset(ranks[0], events) if events is not ranks[0] else 0.0
        merged += [{**e, "ts": e["ts"] + offset} if "ts" in e else e for e in events]
    start = min((e["ts"] for e in merged if "ts" in e), default=0.0)
    return [{**e, "ts": round(e["ts"] - start, 3)} if "ts" in e else e for e in merged]


def _size(upto: float | None, above: float) -> str:
    def text(size: float) -> str:
        if size == 0:
            return "0"
        return f"{size / 1e6:g} MB" if size >= 1e6 else f"{size / 1e3:g} KB"

    return f"> {text(above)}" if upto is None else f"({text(above)}, {text(upto)}]"


def _rows(group: Mapping[str, Any]) -> Iterator[list[str]]:
    above = 0.0
    for row in group["rows"]:
        if row["count"]:
            count, seconds = row["count"], row["seconds"]
            yield [
                _size(row["upto"], above),
                f"{count}",
                f"{row['tensors'] / count:.1f}",
                f"{row['bytes'] / count / 1e6:.4g}",
                f"{row['rates'] / count * 8e-6:.0f}",
                f"{row['bytes'] / seconds * 8e-6:.0f}",
                f"{seconds:.3f}",
                f"{1e3 * seconds / count:.3f}",
                f"{100 * seconds / group['elapsed']:.1f}",
            ]
        above = row["upto"]


_COLUMNS = [
    "response size",
    "count",
    "tensors each",
    "average MB",
    "Mbit/s, mean",
    "Mbit/s, aggregate",
    "total s",
    "average ms",
    "% of time",
]


def stats_table(rank: int, group: Mapping[str, Any]) -> str:
    """The responses of one group on one rank as a Markdown table, and a few sums."""
    lines = [_COLUMNS, ["---", *["---:"] * (len(_COLUMNS) - 1)], *_rows(group)]
    computing = group["elapsed"] - group["waiting"]
    return "\n".join(
        [
            f"Rank {rank}, group {group['group']}: {group['tensors']} tensors in "
            f"{group['responses']} responses, {group['frames']} of them frames; "
            f"{group['messages']} messages.",
            f"{group['tensor_bytes'] / 1e6:.1f} MB of tensors, {group['wire_bytes'] / 1e6:.1f} MB "
            f"sent over the network, {group['shared_memory_bytes'] / 1e6:.1f} MB through shared "
            f"memory; fusion buffer up to {group['fusion_buffer_bytes'] / 1e6:.1f} MB.",
            f"{group['elapsed']:.2f} s in all: waiting for communication {group['waiting']:.2f} s, "
            f"everything else {computing:.2f} s.",
            "",
            *("| " + " | ".join(cells) + " |" for cells in lines),
            "",
        ]
    )


def _tables(rank: Mapping[str, Any]) -> list[str]:
    return [
        stats_table(rank["rank"], group)
        for group in rank["groups"]
        if group["responses"] or group["messages"]
    ]


def plot(ranks: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw count and total time of the responses by size, each rank a bar, as a PNG."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes: list[str] = []
    bars: list[dict[str, tuple[int, float]]] = []
    for rank in ranks:
        of_rank: dict[str, tuple[int, float]] = {}
        for group in rank["groups"]:
            above = 0.0
            for row in group["rows"]:
                size = _size(row["upto"], above)
                count, seconds = of_rank.get(size, (0, 0.0))
                of_rank[size] = (count + row["count"], seconds + row["seconds"])
                above = row["upto"]
        bars.append(of_rank)
        sizes += [size for size in of_rank if size not in sizes]
    sizes = [size for size in sizes if any(of_rank.get(size, (0,))[0] for of_rank in bars)]

    figure, axes = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6), layout="constrained")
    width = 0.8 / len(ranks)
    for part, (axis, label) in enumerate(zip(axes, ("responses", "seconds"), strict=True)):
        for index, (rank, of_rank) in enumerate(zip(ranks, bars, strict=True)):
            places = [place + index * width for place in range(len(sizes))]
            heights = [of_rank.get(size, (0, 0.0))[part] for size in sizes]
            axis.bar(places, heights, width, label=f"rank {rank['rank']}")
        axis.set_ylabel(label)
    axes[0].legend()
    axes[1].set_xticks([place + 0.4 - width / 2 for place in range(len(sizes))], sizes, rotation=30)
    axes[1].set_xlabel("size of the response")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--plot {file}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m torch_hvd.report")
    commands = parser.add_subparsers(dest="command", required=True)
    timeline = commands.add_parser("timeline", help="put the timelines of all ranks in one file")
    timeline.add_argument("folder", type=Path, help="what HVD_TIMELINE was")
    stats = commands.add_parser("stats", help="print the response statistics")
    stats.add_argument("folder", type=Path, help="what HVD_STATS was")
    stats.add_argument("--rank", type=int, help="of this rank only")
    stats.add_argument("--plot", type=Path, metavar="FILE", help="draw them, as a PNG")
    options = parser.parse_args(arguments)
    if options.command == "timeline":
        target = options.folder / "timeline.json"
        merged = json.dumps(merge_timelines(options.folder))
        try:
            target.write_text(merged)
        except OSError as error:
            raise SystemExit(f"{target} cannot be written: {error.strerror}") from error
        print(f"{target}: open it in ui.perfetto.dev or chrome://tracing")
        return
    ranks = _of_ranks(options.folder, "stats", _load_statistics, lambda rank: rank["run"])
    if options.rank is not None:
        ranks = [rank for rank in ranks if rank["rank"] == options.rank]
        if not ranks:
            raise SystemExit(f"{options.folder} holds nothing of rank {options.rank}")
    for rank in ranks:
        if not rank["ended"]:
            print(
                f"Rank {rank['rank']} has not written its statistics: it is still running, or did "
                "not end by itself; once a rank fails, torchrun ends the others by a signal."
            )
        for table in _tables(rank):
            print(table)
    if options.plot:
        plot(ranks, options.plot)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, without a traceback
    main(sys.argv[1:])
