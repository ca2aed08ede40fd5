"""all_reduce by size, a line for each backend: `python -m benchmarks.plot FILE.jsonl --out PNG`

    pytest benchmarks/test_all_reduce.py --json out/hvd.jsonl
    pytest benchmarks/test_all_reduce.py --json out/hvd-tcp.jsonl --transport tcp
    python -m benchmarks.plot out/hvd.jsonl out/hvd-tcp.jsonl --out out/all_reduce.png

Baselines have lines, too. The limit is dashed: two copies of the tensor, or the rate of a link
between hosts of one rank, which a codec may beat. There is a picture for each number of ranks and
link. Needs matplotlib, `pip install "torch_hvd[plot]"`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.links import link_bytes_per_s
from benchmarks.report import in_bytes
from benchmarks.studies.results import read_given

Place = tuple[int, str | None]  # ranks, and the rate of the links between them
Lines = dict[str, dict[int, float]]  # of a backend, by size in bytes

TWO_COPIES, LINK = "limit: two copies", "limit: the link, float32"
LINK_SIZE = 1 << 20  # bytes; a link lets 256 KB pass at once, so less does not meet its rate


def pictures(rows: Iterable[Mapping[str, Any]], op: str, quantity: str) -> dict[Place, Lines]:
    """The lines of an operation: `quantity` is "time", in us, or "busbw", in GB/s.

    What several rows tell of, as they do of a common baseline, is the median of theirs.
    """
    told: dict[Place, dict[str, dict[int, list[float]]]] = {}
    for row in rows:
        if row["op"] == op:
            lines = told.setdefault((row["world_size"], row["link"]), {})
            for name, time in times(row).items():
                value = time if quantity == "time" else bytes_moved(row) / time / 1e3
                lines.setdefault(name, {}).setdefault(row["size"], []).append(value)
    return {
        place: {
            name: {size: median(values[size]) for size in sorted(values)}
            for name, values in lines.items()
        }
        for place, lines in told.items()
    }


def times(row: Mapping[str, Any]) -> dict[str, float]:
    """Microseconds of the baseline, the backend and, where it says something, the limit."""
    contenders = {row["baseline"]: row["baseline_time"], row["backend"]: row["time"]}
    found = {name: spread["median"] for name, spread in contenders.items()}
    if not row["link"]:
        found[TWO_COPIES] = row["limit_time"]["median"]
    elif row["size"] >= LINK_SIZE:
        found[LINK] = 1e6 * bytes_moved(row) / link_bytes_per_s(row["link"])
    return found


def bytes_moved(row: Mapping[str, Any]) -> float:
    """What a rank must send, at least, as nccl-tests counts it for busbw."""
    return row["size"] * row["busbw"] / row["algbw"]


def is_limit(name: str) -> bool:
    return name in (TWO_COPIES, LINK)


def draw(drawn: Mapping[Place, Lines], op: str, quantity: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(
        1, len(drawn), figsize=(6.5 * len(drawn), 4.5), layout="constrained", squeeze=False
    )
    for axes, ((ranks, link), lines) in zip(row[0], drawn.items(), strict=True):
        for name in sorted(lines, key=is_limit):
            style = "k--" if is_limit(name) else "o-"
            axes.plot([*lines[name]], [*lines[name].values()], style, markersize=4, label=name)
        sizes = sorted({size for line in lines.values() for size in line})
        axes.set(xscale="log", yscale="log", xlabel="a rank's tensor")
        axes.set_ylabel("us" if quantity == "time" else "busbw, GB/s")
        axes.set_xticks(sizes, map(in_bytes, sizes), rotation=60)
        axes.minorticks_off()
        axes.set_title(f"{op}, {ranks} ranks, " + (f"links of {link}" if link else "one host"))
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of `pytest benchmarks`")
    parser.add_argument("--out", type=Path, required=True, metavar="PNG", help="the picture")
    parser.add_argument("--op", default="all_reduce", help="of the rows (default: all_reduce)")
    parser.add_argument("--time", action="store_true", help="time, and not bandwidth")
    args = parser.parse_args()

    quantity = "time" if args.time else "busbw"
    rows = list(chain.from_iterable(read_given(args.files, parser)))
    drawn = pictures(rows, args.op, quantity)
    if not drawn:
        parser.error(f"there are no rows of {args.op!r}")
    draw(drawn, args.op, quantity, args.out)


if __name__ == "__main__":
    main()
