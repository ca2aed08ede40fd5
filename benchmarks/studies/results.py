"""What the studies of speed have in common: a file of rows, and a page made of them."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import facts
from benchmarks.rows import Row

Results = list[dict[str, Any]]  # rows as `Row.as_json` has them, with "machine" and a study's own

QUIET = 0.3  # cores that others may take before a page warns of it


def read(file: Path) -> Results:
    """The lines of a file of JSON lines; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def read_given(files: Sequence[Path], parser: ArgumentParser) -> list[Results]:
    """Of files that the user has named; one that is not there ends the program."""
    if absent := [str(file) for file in files if not file.exists()]:
        parser.error(f"there is no {', '.join(absent)}")
    return [read(file) for file in files]


def append(file: Path, rows: Iterable[Row | Mapping[str, Any]], **more: object) -> None:
    """Write rows to a file of results, each with what is known of it besides."""
    file.parent.mkdir(parents=True, exist_ok=True)
    machine = facts()
    with file.open("a") as lines:
        for row in rows:
            known = row.as_json() if isinstance(row, Row) else dict(row)
            lines.write(json.dumps(known | more | {"machine": machine}) + "\n")


def parser_of(name: str, doc: str) -> ArgumentParser:
    """The command line of a study, as far as all have it; `doc`: of its module."""
    parser = ArgumentParser(description=doc.splitlines()[0])
    results = Path("out", f"{name}.jsonl")
    parser.add_argument("--results", type=Path, default=results, help="of all cells, kept")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help=f"write {name}.md and .png; needs matplotlib"
    )
    return parser


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """In Markdown; numbers, which stand behind the columns of text, are aligned to the right."""
    rules = ["---" if place < text_columns else "--:" for place in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rules, *rows))


def milliseconds(spread: Mapping[str, float], name: str = "median") -> str:
    """Of microseconds in a row's spread, to three digits."""
    value = spread[name] / 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def p10_p90(spread: Mapping[str, float]) -> str:
    """Of microseconds, in milliseconds: from the 10th to the 90th percentile."""
    return f"{milliseconds(spread, 'p10')}-{milliseconds(spread, 'p90')}"


def ratio(row: Mapping[str, Any]) -> str:
    """To the baseline, with its 95 % interval."""
    return f"{row['ratio']:.3f} ({row['low']:.2f}-{row['high']:.2f})"


def where(results: Results) -> str:
    """The paragraph about the machine, and how much others have disturbed the measurement."""
    machine = results[-1]["machine"]
    revisions = sorted({str(result["machine"]["revision"]) for result in results})
    foreign = max(result["foreign"] for result in results)
    warning = " That is not little: repeat it on a quiet machine." if foreign > QUIET else ""
    return (
        f"## Where\n\n{machine['cpu']}, {machine['cores']} cores, {machine['system']}, torch "
        f"{machine['torch']}, revision {', '.join(revisions)}, {machine['utc'][:10]}. Other "
        f"processes took {foreign:.2f} cores at most meanwhile.{warning}"
    )


def write_page(folder: Path, name: str, parts: Iterable[str]) -> None:
    """NAME.md in the folder of the pages; parts are paragraphs and tables."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text("\n\n".join(parts) + "\n")
