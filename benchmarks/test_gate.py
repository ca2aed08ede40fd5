"""The gate on made-up rows: what is kept, what is worse, and what nobody measured."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gate
from benchmarks.gate import findings
from benchmarks.promises import PROMISES, Promise

PLAIN = Promise("all_reduce", 1 << 20, ratio=0.4)
WIDE = Promise("barrier", 4, ratio=0.1, high=0.3)
LINK = Promise("all_reduce", 16 << 20, ratio=0.5, ranks=4, link="1gbit")
MPI = Promise("all_reduce", 4, ratio=9.0, backend="hvd:transport=mpi", baseline="MPI_Allreduce")


def row(promise: Promise, ratio: float, **fields: Any) -> dict[str, Any]:
    """What `pytest benchmarks --json` writes of a promise's measurement, as far as it matters."""
    return {
        "op": promise.op,
        "size": promise.size,
        "world_size": promise.ranks,
        "backend": promise.backend,
        "baseline": promise.baseline,
        "link": promise.link,
        "ratio": ratio,
        "low": 0.9 * ratio,
        "high": 1.1 * ratio,
        "foreign": 0.0,
        "machine": {"cores": 2, "utc": "2026-01-01"},
    } | fields


@pytest.mark.parametrize(
    ("promise", "ratio", "verdict"),
    [
        (PLAIN, 0.50, "kept"),  # 0.4 x 1.25 = 0.5, and half of README's last digit
        (PLAIN, 0.504, "kept"),
        (PLAIN, 0.506, "worse"),
        (PLAIN, 0.51, "worse"),
        (WIDE, 0.30, "kept"),  # the end of the interval is more than 0.1 x 1.25
        (WIDE, 0.31, "worse"),
        (LINK, 0.55, "kept"),  # 0.5 x 1.1
        (LINK, 0.56, "worse"),
    ],
)
def test_verdicts(promise: Promise, ratio: float, verdict: str) -> None:
    (finding,) = findings([row(promise, ratio)], [promise])
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    "other",
    [{"size": 4}, {"world_size": 2}, {"link": None}, {"backend": "gloo"}, {"baseline": "hvd"}],
)
def test_other_rows_tell_nothing(other: dict[str, Any]) -> None:
    (finding,) = findings([row(LINK, 0.1, **other)], [LINK])
    assert finding.verdict == "not measured"


def test_the_last_row_counts() -> None:
    (finding,) = findings([row(PLAIN, 9.0), row(PLAIN, 0.4)], [PLAIN])
    assert finding.verdict == "kept"


def test_a_plain_loop_is_one_on_any_library() -> None:
    (finding,) = findings([row(MPI, 8.0, baseline="MPI_Allreduce of Open MPI v5.0.11")], [MPI])
    assert finding.verdict == "kept"


@pytest.mark.parametrize(
    ("factor", "left_out", "options", "status"),
    [
        (1.0, 0, [], 0),
        (1.0, 1, [], 1),
        (1.0, 1, ["--partial"], 0),
        (1.0, len(PROMISES), ["--partial"], 1),
        (10.0, 0, ["--partial"], 1),
    ],
)
def test_exit_status(
    factor: float,
    left_out: int,
    options: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All promises, as measured, or ten times slower, or without some rows."""
    file = tmp_path / "rows.jsonl"
    rows = [row(promise, factor * promise.ratio) for promise in PROMISES[left_out:]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["gate", str(file), *options])
    assert gate.main() == status
    kept = len(rows) if factor == 1 else 0
    assert f"{len(PROMISES)} promises: {kept} kept" in capsys.readouterr().out


def test_a_promise_is_made_once() -> None:
    assert len({promise.measurement for promise in PROMISES}) == len(PROMISES)


MB = 1 << 20
ALL, FEW_KB = 102_228_128, 663_712  # bytes of ResNet-50's gradients, and of those up to 64 KB

# What the tables call it, and its operation and size in a row.
CASES = {
    "4 B": ("all_reduce", 4),
    "1 KB": ("all_reduce", 1024),
    "16 KB": ("all_reduce", 16384),
    "64 KB": ("all_reduce", 65536),
    "1 MB": ("all_reduce", MB),
    "4 MB": ("all_reduce", 4 * MB),
    "16 MB": ("all_reduce", 16 * MB),
    "64 MB": ("all_reduce", 64 * MB),
    "barrier": ("barrier", 4),
    "100 asynchronous all_reduce of 1 KB": ("all_reduce async x100", 102_400),
    "reduce_scatter 16 MB": ("reduce_scatter", 16 * MB),
    "all_gather, 16 MB from each": ("all_gather", 16 * MB),
    "all_to_all 16 MB": ("all_to_all", 16 * MB),
    "broadcast 16 MB": ("broadcast", 16 * MB),
    "DDP step, 40 MB": ("ddp step", 40 * MB),
    "DDP step, 40 MB of parameters": ("ddp step", 40 * MB),
    "DDP step of 40 MB": ("ddp step", 40 * MB),
    "its 115 gradients of up to 64 KB, asynchronous": ("all_reduce async, 115 small", FEW_KB),
    "115 gradients of up to 64 KB, asynchronous": ("all_reduce async, 115 small", FEW_KB),
    "all 161 gradients (102 MB), asynchronous": ("all_reduce async, 161", ALL),
    "all 161, asynchronous": ("all_reduce async, 161", ALL),
    "the same, one after the other": ("all_reduce, 161", ALL),
    "all 161, one after the other": ("all_reduce, 161", ALL),
    "the same packed by hand into one": ("all_reduce, 161 in one", ALL),
    "parameter broadcast of DDP": ("ddp broadcast of 161", ALL),
}
SHM, TCP, MPI_TRANSPORT = "hvd", "hvd:transport=tcp", "hvd:transport=mpi"
UNFUSED = "hvd:transport=tcp,fusion_threshold=0"
# Rows of the tables that `benchmarks.promises` leaves out, as it says.
LEFT_OUT = {
    ("all_reduce", 64 * MB, 2, SHM, "gloo", None),
    ("all_reduce, 161", ALL, 2, TCP, UNFUSED, None),
    ("all_reduce", 1024, 2, MPI_TRANSPORT, "gloo", None),
    ("all_reduce", 65536, 2, MPI_TRANSPORT, "gloo", None),
}


def table(text: str, header: str) -> tuple[list[str], list[list[str]]]:
    """The columns of the one table whose header begins so, and its rows."""
    assert text.count(f"\n{header}") == 1, header
    begin = text.index(f"\n{header}") + 1
    lines = text[begin : text.index("\n\n", begin)].splitlines()
    columns, _, *rows = ([cell.strip(" `") for cell in line[1:-1].split("|")] for line in lines)
    return columns, rows


def case(name: str) -> tuple[str, int]:
    return CASES[name.removeprefix("ResNet-50: ").removeprefix("all_reduce ")]


def interval(text: str) -> tuple[float, float]:
    """The ratio and the end of its interval, of 0.04 (0.01-0.18)."""
    found = re.match(r"([\d.]+) \([\d.]+-([\d.]+)\)", text)
    assert found, text
    return float(found[1]), float(found[2])


def of_two_ranks(
    text: str, header: str, backend: str, baseline: str, column: str = "ratio"
) -> Iterator[Promise]:
    """A row each of the one table whose header begins so."""
    columns, rows = table(text, header)
    for row in rows:
        ratio = interval(row[columns.index(column)])
        yield Promise(*case(row[0]), *ratio, backend, baseline, 2)


def in_readme(text: str) -> Iterator[Promise]:
    """Its column for 4 ranks over shared memory is left out."""
    yield from of_two_ranks(text, "| case | hvd | ratio | share", SHM, "gloo")
    yield from of_two_ranks(text, "| ResNet-50 | fusion on", TCP, UNFUSED)

    columns, rows = table(text, "| | 2 hosts")
    for row in rows:
        for hosts in (2, 4):
            at = columns.index("ratio", columns.index(f"{hosts} hosts"))
            yield Promise(*case(row[0]), *interval(row[at]), SHM, "gloo", hosts, "2x1gbit")

    columns, (gloo, *rows) = table(text, "| | 16 MB, 2 hosts")
    assert gloo[0] == "Gloo, fp32" and columns[2::2] == ["times faster"] * 5
    for codec, *cells in rows:
        for column, faster in zip(columns[1::2], cells[1::2], strict=True):
            name, _, ranks = column.removesuffix(" hosts").rpartition(", ")
            yield at_1gbit(name, int(ranks), codec, faster)
    found = re.search(r"With (4) hosts a DDP step takes \d+ ms with `(int8)`, ([\d.]+) times", text)
    assert found
    yield at_1gbit("DDP step of 40 MB", int(found[1]), found[2], found[3])


def at_1gbit(name: str, ranks: int, codec: str, faster: str) -> Promise:
    backend = f"hvd:transport=tcp,compression={codec}"
    return Promise(*case(name), 1 / float(faster), 0.0, backend, "gloo", ranks, "1gbit")


def in_results(text: str) -> Iterator[Promise]:
    yield from of_two_ranks(text, "| case | hvd | ratio |", TCP, "gloo")
    for baseline, column in {
        "gloo": "ratio to Gloo",
        "MPI_Allreduce": "ratio to plain MPI",
    }.items():
        yield from of_two_ranks(
            text, "| all_reduce | hvd over MPI", MPI_TRANSPORT, baseline, column
        )

    flat = " ".join(text[text.index("## Many tensors against one") :].split())
    for backend, words in (
        (SHM, "over shared memory with 2 ranks they take "),
        (TCP, "Over TCP inside one host the calls compete with the bytes for the cores: "),
    ):
        ratio = interval(flat.partition(words)[2])
        yield Promise("all_reduce async, 161 against one", ALL, *ratio, backend, "gloo", 2)


def test_promises_are_those_of_the_readme() -> None:
    """All rows of its tables, and of those of docs/results.md, but for what is left out."""
    root = Path(__file__).parent.parent
    said = [*in_readme((root / "README.md").read_text())]
    said += in_results((root / "docs" / "results.md").read_text())
    assert {promise.measurement for promise in said} >= LEFT_OUT
    made = Counter(promise for promise in said if promise.measurement not in LEFT_OUT)
    assert made == Counter(PROMISES)
