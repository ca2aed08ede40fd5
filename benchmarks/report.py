"""Markdown tables of measured rows: `python -m benchmarks.report FILE.jsonl`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HEAD = (
    "size",
    "type",
    "op",
    "backend",
    "time us",
    "p10-p90",
    "algbw GB/s",
    "busbw GB/s",
    "baseline us",
    "p10-p90",
    "ratio",
    "95 %",
    "% of limit",
    "wire bytes",
    "foreign",
    "target",
)
TEXT_COLUMNS = ("type", "op", "backend")


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """One table for each baseline, world size and link, in the order measured."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        title = f"against {row['baseline']}, {row['world_size']} ranks"
        if row["link"]:
            title += f", links of {row['link']}"
        tables.setdefault(title, []).append(_cells(row))
    return "\n\n".join(f"### {title}\n\n{_table(lines)}" for title, lines in tables.items())


def describe(facts: Mapping[str, Any]) -> str:
    """The machine facts in one line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    target = row["target"]
    missed = target is not None and row["ratio"] > target
    verdict = "" if target is None else f"<= {target:.3g} {'MISS' if missed else 'PASS'}"
    return (
        in_bytes(row["size"]),
        row["dtype"],
        row["op"],
        row["backend"],
        _us(row["time"]["median"]),
        f"{_us(row['time']['p10'])}-{_us(row['time']['p90'])}",
        f"{row['algbw']:.3f}",
        f"{row['busbw']:.3f}",
        _us(row["baseline_time"]["median"]),
        f"{_us(row['baseline_time']['p10'])}-{_us(row['baseline_time']['p90'])}",
        f"{row['ratio']:.3f}",
        f"{row['low']:.2f}-{row['high']:.2f}",
        f"{row['percent_of_limit']:.1f}",
        "" if row["wire_bytes"] is None else f"{row['wire_bytes']:.0f}",
        f"{row['foreign']:.2f}",
        verdict,
    )


def _table(lines: list[tuple[str, ...]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(HEAD, *lines, strict=True)]
    rules = tuple(
        "-" * width if name in TEXT_COLUMNS else "-" * (width - 1) + ":"
        for name, width in zip(HEAD, widths, strict=True)
    )
    return "\n".join(
        "| " + " | ".join(_pad(*cell) for cell in zip(HEAD, line, widths, strict=True)) + " |"
        for line in (HEAD, rules, *lines)
    )


def _pad(name: str, cell: str, width: int) -> str:
    return cell.ljust(width) if name in TEXT_COLUMNS else cell.rjust(width)


def _us(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"


def in_bytes(size: int) -> str:
    """Sizes as the tables show them: 4 B, 16 KB, 64 MB."""
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="JSON lines written by a benchmark run")
    rows = [json.loads(line) for line in parser.parse_args().file.read_text().splitlines()]
    for machine in dict.fromkeys(describe(row["machine"]) for row in rows):
        print(machine)
    print(f"\n{markdown(rows)}")


if __name__ == "__main__":
    main()
