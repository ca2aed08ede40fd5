"""The studies of speed: what they compute from measured rows, on rows that are made up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from math import ceil, inf, prod
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare
from benchmarks.links import link_bytes_per_s
from benchmarks.models import cnn, gradient_shapes, resnet18, resnet50, small_vgg, vgg16
from benchmarks.ranks import Ranks
from benchmarks.studies import (
    compression_report,
    fusion,
    fusion_report,
    model,
    peers_report,
    scaling,
    scaling_report,
    steps,
    steps_cells,
    steps_report,
)
from benchmarks.studies.alpha_beta import (
    CUTOFF,
    Line,
    Model,
    direct_bytes,
    fit,
    fit_model,
    frame_limit,
    frame_messages,
)
from benchmarks.studies.results import milliseconds, table
from benchmarks.studies.training import NAIVE
from benchmarks.test_fusion import in_bytes

SIZES = [4 ** (power + 1) for power in range(13)]
MODEL = Model(2, frame=Line(80.0, 800.0), direct=Line(200.0, 2000.0))


def row(**fields: Any) -> dict[str, Any]:
    """As `pytest benchmarks --json` writes one, with what a test is about in `fields`."""
    spread = {"median": 1000.0, "p10": 900.0, "p90": 1200.0}
    known = {"op": "all_reduce", "size": 1 << 20, "dtype": "float32", "world_size": 2}
    known |= {"backend": "hvd", "baseline": "gloo", "link": None, "foreign": 0.0}
    known |= {"time": spread, "baseline_time": spread, "limit_time": spread}
    return known | {"ratio": 1.0, "low": 0.9, "high": 1.1, "percent_of_limit": 100.0} | fields


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [(resnet50, 161, 25_557_032), (vgg16, 32, 138_357_544), (resnet18, 62, 701_178)],
)
def test_gradients_are_those_that_everybody_knows(
    model: Any, tensors: int, parameters: int
) -> None:
    shapes = gradient_shapes(model)
    assert (len(shapes), sum(map(prod, shapes))) == (tensors, parameters)


def test_a_line_is_found_again() -> None:
    line = fit([(size, 80 + size / 800) for size in SIZES])
    assert (line.alpha, line.beta) == pytest.approx((80, 800))


def test_a_line_has_no_negative_parts() -> None:
    assert fit([(1, 32.0), (2, 32.0), (4, 32.0)]) == Line(32.0, inf)
    assert fit([(1, 3.0), (2, 2.0)]).beta == inf
    through_zero = fit([(10, 1.0), (20, 4.0)])
    # Least squares of a relative error: sum(t x / t^2) / sum(x^2 / t^2) = (10 + 5) / (100 + 25)
    assert through_zero.alpha == 0
    assert through_zero.beta == pytest.approx(125 / 15)
    # The line through both starts at 2. From 2.5: sum(x (t - 2.5) / t^2) / sum(x^2 / t^2).
    above = fit([(10, 3.0), (20, 4.0)], least_alpha=2.5)
    assert above.alpha == 2.5
    assert above.beta == pytest.approx((100 / 9 + 400 / 16) / (5 / 9 + 30 / 16))
    assert fit([(1, 32.0), (2, 16.0)], least_alpha=40.0) == Line(40.0, inf)
    with pytest.raises(ValueError, match="two sizes"):
        fit([(4, 1.0), (4, 2.0)])


def test_a_model_is_found_again_and_checked_where_it_was_not_fitted() -> None:
    points = [(size, MODEL.predict(size, 2)) for size in SIZES]
    fitted = fit_model(points, ranks=2)
    assert fitted.median_error < 1e-9
    assert sorted(fitted.used + fitted.held_out) == points
    assert [size for size, _ in fitted.held_out] == [16, 256, 4096, 65536, 1 << 20, 1 << 24]

    wrong = {1 << 20: 1.25, 1 << 24: 0.5}
    fitted = fit_model([(size, time * wrong.get(size, 1)) for size, time in points], ranks=2)
    assert sorted(fitted.errors)[-2:] == pytest.approx([0.2, 1.0])


def test_a_model_needs_sizes_of_both_ways() -> None:
    with pytest.raises(ValueError, match="8 of frames and 2 above"):
        fit_model([(size, 1.0) for size in SIZES[:10]], ranks=2)


def test_what_travels_in_which_way() -> None:
    assert [frame_limit(ranks) for ranks in (2, 4, 8, 1024)] == [65536, 65536, 32768, 256]
    assert direct_bytes(1000, 4) == 1500
    assert MODEL.predict(800, 4) == 80 + 3 * 800 / 800
    assert MODEL.predict(1 << 20, 4) == 200 + 1.5 * (1 << 20) / 2000
    # Too long for the frame of 1024 ranks, and short enough to be announced by one.
    assert MODEL.predict(CUTOFF, 1024) == 5 * 80 + 200 + 2 * 1023 / 1024 * CUTOFF / 2000


def test_frames_of_many_ranks_are_passed_on() -> None:
    messages = {2: [1], 15: [14], 16: [3, 3], 20: [3, 3, 1], 64: [3, 3, 3], 1024: [3] * 5}
    assert {ranks: frame_messages(ranks) for ranks in messages} == messages
    assert MODEL.predict(8, 64) == 3 * 80 + 63 * 8 / 800
    assert MODEL.predict(8, 64, overlap=False) == 9 * 80 + 63 * 8 / 800


def test_more_ranks_never_take_less_by_the_upper_end() -> None:
    """But for frames where they begin to be passed on."""
    for size in SIZES:
        times = [MODEL.predict(size, 2**n, overlap=False) for n in range(1, 11)]
        for before, after in (*pairwise(times[:3]), *pairwise(times[3:])):
            assert before <= after, size
        assert MODEL.predict(size, 2, overlap=False) == MODEL.predict(size, 2)


def test_rows_become_transports() -> None:
    def rows(ranks: int, **fields: Any) -> list[dict[str, Any]]:
        times = {size: {"median": MODEL.predict(size, ranks)} for size in SIZES}
        return [row(size=size, time=times[size], world_size=ranks, **fields) for size in SIZES]

    found = model.transports(
        rows(4, link="1gbit") + rows(2, link="1gbit") + rows(2) + rows(2, backend="gloo")
    )
    assert [transport.name for transport in found] == ["tcp, 1gbit", "shm, one host"]
    assert [transport.fitted.model.ranks for transport in found] == [2, 2]
    assert [*found[0].beyond] == [4]
    assert model.name_of(row(backend="hvd:transport=mpi")) == "mpi, one host"
    assert model.name_of(row(backend="hvd:compression=int8")) is None


def test_runs_are_compared_by_their_ratios() -> None:
    a = [row(size=size) for size in (4, 8, 16, 32)] + [row(op="barrier")]
    b = [
        row(size=4, ratio=0.7, low=0.6, high=0.8, time={"median": 500.0}),
        row(size=8, ratio=1.2, low=1.05, high=1.3),
        row(size=16, ratio=1.4, low=1.2, high=1.5),
        row(size=32, ratio=0.85, low=0.8, high=0.95),
        row(size=16, backend="hvd:compression=int8"),
    ]
    pairs, alone = compare.pair(a, b)
    assert [pair.verdict for pair in pairs] == ["faster", "", "slower", ""]
    assert pairs[0].times == 0.5
    assert alone == 2
    assert [compare.cells(pair)[-1] for pair in pairs] == ["faster", "", "slower", ""]


@pytest.mark.parametrize(
    ("low", "options", "status"), [(1.2, ["--fail"], 1), (1.0, ["--fail"], 0), (1.2, [], 0)]
)
def test_a_comparison_fails_where_it_is_to_and_b_is_slower(
    low: float, options: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file, found in zip(files, (row(), row(low=low, high=1.5)), strict=True):
        file.write_text(json.dumps(found | {"machine": {"cores": 2}}))
    monkeypatch.setattr(sys, "argv", ["compare", *map(str, files), *options])
    assert compare.main() == status


def test_tables_are_markdown() -> None:
    assert table(("a", "b"), [("x", "1")]) == "| a | b |\n| --- | --: |\n| x | 1 |"
    spread = {"median": 123456.0, "p10": 1234.0}
    assert (milliseconds(spread), milliseconds(spread, "p10")) == ("123", "1.23")


def test_rates_of_links() -> None:
    assert link_bytes_per_s("1gbit") == 125e6
    assert link_bytes_per_s("100mbit") == 12.5e6
    assert link_bytes_per_s("2x1gbit") == 250e6
    for wrong in ("fast", "0x1gbit", "x1gbit", "2xfast"):
        with pytest.raises(ValueError, match=r"is no rate in|could not convert"):
            link_bytes_per_s(wrong)


def test_a_cell_of_fusion() -> None:
    fused, unfused, stock = fusion_report.CONTENDERS
    common = {"model": "vgg16", "link": "1gbit", "world_size": 4, "size": 100_000_000}
    bucket = {"upto": 1e6, "count": 3.0, "tensors": 30.0, "bytes": 1.5e6, "seconds": 0.03}
    common["responses"] = {fused: [bucket], unfused: [bucket | {"count": 30.0}], stock: []}
    slow = {"median": 2000.0, "p10": 1900.0, "p90": 2100.0}
    rows = [
        row(backend=fused, baseline=unfused, ratio=0.5, low=0.4, high=0.6, **common),
        row(backend=fused, baseline=stock, **common),
        row(backend=unfused, baseline=stock, time=slow, **common),
    ]
    rows[0]["baseline_time"] = slow
    cell = fusion_report.Cell(rows)
    assert cell.link_alone_ms == pytest.approx(1200)  # 150 MB at 125 MB/s
    assert [cell.time(name)["median"] for name in (fused, unfused, stock)] == [1000, 2000, 1000]
    assert cell.columns()[-2:] == ["3", "30"]
    assert next(cell.buckets())[3:] == ["<= 1 MB", "3.0", "10.0", "0.5", "400", "10.00"]
    assert "saves 50.0 % (95 %: 40.0 to 60.0); clear" in cell.seen()


def test_images_per_second_and_the_share_of_communication() -> None:
    step = row(images=128, model="cnn", threads=1, percent_of_limit=80.0)
    step["limit_time"] = {"median": 800.0, "p10": 700.0, "p90": 900.0}
    assert scaling_report.images_per_s(step) == 128_000
    assert scaling_report.images_per_s(step, "limit_time") == 160_000
    line = scaling_report._line(step, "hvd, auto", "time", one=64_000.0)
    assert line[4:8] == ["128000", "2.00", "80.0", "20.0"]
    one = row(backend="one process", baseline="one process", world_size=1, images=80, model="cnn")
    one |= {"threads": 2, "accuracy": None}
    assert len(scaling_report._tables([one])) == 1
    *_, reached = scaling_report._tables([one | {"accuracy": 98.0}, step | {"accuracy": 97.5}])
    assert reached.splitlines()[2:] == ["| one process | 98.00 |  |", "| hvd, auto |  | 97.50 |"]
    theirs, *_, ours = scaling_report._original([one, step], [step]).splitlines()[2:]
    assert theirs.endswith("| 1.00 (100%) | 1.66 (83%) | 2.04 (68%) | 2.31 (58%) |  |")
    assert ours == f"| ours: {scaling_report.TITLES['cnn']} | 1.00 (100%) | 1.60 (80%) |  |  |  |"


def steps_of(link: str | None, batch: int, times: dict[str, float]) -> list[dict[str, Any]]:
    """Rows of a cell with a computing time of 1 ms; `times` in ms, bounds 10 % around ratios."""
    stock = times["gloo"]
    rows = []
    for backend, time in times.items():
        more: dict[str, Any] = {"percent_of_limit": 100 / time, "ratio": time / stock}
        more |= {"low": 0.9 * time / stock, "high": 1.1 * time / stock}
        more["time"] = {"median": 1e3 * time, "p10": 900 * time, "p90": 1100 * time}
        rows.append(row(backend=backend, model="cnn", batch=batch, link=link, **more))
        rows[-1]["wire_bytes"] = 64_000.0 if backend.startswith("hvd") else None
    return rows


def test_cells_of_steps_left_out_come_when_asked_for() -> None:
    every = steps.wanted([*steps.WORKLOADS], steps.LINKS)
    assert len(every) == 2 * len(steps.WORKLOADS) * len(steps.LINKS) - len(steps.LEFT_OUT)
    assert steps.wanted(["vgg"], ["100mbit"]) == [("vgg", 32, "100mbit")]
    assert steps.wanted(["vgg"], ["100mbit"], [8]) == [("vgg", 8, "100mbit")]
    assert [cell.link for cell in steps.wanted(["cnn"], ["5gbit", "1gbit"])[::2]] == [
        "5gbit",
        "1gbit",
    ]


def test_few_rounds_of_steps_that_wait_seconds_for_a_link() -> None:
    vgg, cnn = steps.WORKLOADS["vgg"], steps.WORKLOADS["cnn"]
    assert vgg.nbytes == 4 * sum(map(prod, gradient_shapes(small_vgg))) > 12.5e6
    assert steps.rounds_of(vgg, "100mbit") == steps.SLOW_ROUNDS
    assert [steps.rounds_of(vgg, link) for link in ("1gbit", steps_cells.ONE_HOST)] == [None, None]
    assert steps.rounds_of(cnn, "100mbit") is None


def test_what_is_seen_of_steps() -> None:
    int8 = "hvd:compression=int8"
    known = steps_of(None, 64, {"gloo": 1.25, "hvd": 1.3})
    known += steps_of("1gbit", 64, {"gloo": 2.0, "hvd": 1.6, int8: 1.25})
    known += steps_of("1gbit", 16, {"gloo": 4.0, "hvd": 5.0, int8: 2.0})
    cells = steps_cells.cells_of(known)
    assert [(cell.link, cell.batch) for cell in cells] == [
        ("1gbit", 16),
        ("1gbit", 64),
        ("one host", 64),
    ]
    assert [cell.communication() for cell in cells] == pytest.approx([75, 50, 20])
    assert [cell.verdict("hvd") for cell in cells] == ["slower", "faster", ""]
    assert [*cells[0].lines()][2][2:] == [
        *("hvd int8", "2", "1.8-2.2", "1", "50.0", "64", "0.500 (0.45-0.55)")
    ]
    link, host, model, slower = steps_report.seen(cells)
    assert link.startswith("1gbit: communication takes 50 to 75 % of a step over stock gloo. ")
    assert "faster in 1 of 2 cells, slower in 1, neither in 0. The fastest is hvd int8 in 2" in link
    assert "at best hvd int8 takes 0.500 (0.45-0.55) of gloo's time (MNIST CNN with 16" in link
    assert "faster in 0 of 1 cells, slower in 0, neither in 1. The fastest is stock gloo" in host
    assert model.endswith(
        "from 16 to 64 inputs: communication over stock gloo goes from 75 % to 50 % at 1gbit"
    )
    assert slower.endswith("interval: hvd at 1gbit, MNIST CNN with 16 inputs: 1.250 (1.12-1.38)")


def test_what_is_seen_of_trainings() -> None:
    def training(link: str, codec: str, accuracy: float, *seconds: float) -> list[dict[str, Any]]:
        known = {"link": link, "codec": codec, "accuracy": accuracy, "wire_bytes": 64_000.0}
        return [known | {"seconds": each} for each in seconds]

    results = training("1gbit", "gloo", 99.1, 40, 60) + training("1gbit", "none", 99.2, 40)
    results += training("1gbit", "int8", 99.0, 20, 10, 12) + training("1gbit", NAIVE, 10.0, 9)
    cells = compression_report.cells_of(results)
    assert [codec for _, codec in cells] == ["gloo", "none", "int8", NAIVE]
    line = compression_report._line(cells, cells["1gbit", "int8"])
    assert line == ["1gbit", "int8", "99.00", "12.0", "20.0, 10.0, 12.0", "0.24", "64.0"]
    (seen,) = compression_report._seen(cells)
    assert seen.startswith("1gbit: from 12.0 s (int8) to 50.0 s (fp32, stock gloo), with 99.00 to")
    assert seen.endswith("99.20 %; naive fp8 9.0 s and 10.00 %")
    fp32, fp16, fp8 = compression_report._original(cells).splitlines()[2:]
    assert fp32.endswith("| 73.8 (1.00) | 51.3 (1.00) | 40.0 (1.00) |")
    assert [line.endswith(") |  |") for line in (fp16, fp8)] == [True, True]  # not measured


def test_what_is_seen_of_peers() -> None:
    def cell(op: str, algorithm: str, backend: str, time: float, stock: float) -> dict[str, Any]:
        spread = {"median": time, "p10": time, "p90": time}
        ratio = time / stock
        more = {"ratio": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio, "time": spread}
        return row(op=op, backend=backend, place="1gbit", algorithm=algorithm, **more)

    results = [
        *(cell("all_reduce", "", *each) for each in (("hvd", 50, 100), ("MPI_Allreduce", 25, 100))),
        *(cell("DDP step", "", *each) for each in (("hvd", 2000, 1000), ("gloo", 1000, 1000))),
        *(cell("all_reduce", "ring", *e) for e in (("hvd", 60, 100), ("MPI_Allreduce", 120, 100))),
    ]
    runs = peers_report.runs_of(results)
    assert [(run.place, run.algorithm) for run in runs] == [("1gbit", ""), ("1gbit", "ring")]
    assert runs[0].contenders == ["hvd", "gloo", "MPI_Allreduce"]
    assert [*peers_report._lines(runs[0])] == [
        ["all_reduce 1 MB", "50 us (0.50)", "", "25 us (0.25)"],
        ["DDP step", "2 ms (2.00)", "1 ms (1.00)", ""],
    ]
    to_gloo, to_mpi = peers_report._seen(runs[0])
    assert to_gloo.endswith(
        "0.50 to 2.00 of stock gloo's time; slower beyond the interval: DDP step, 2.00 (1.80-2.20)"
    )
    assert to_mpi.endswith("of plain MPI's time it takes 2.00 (all_reduce 1 MB)")
    own, ring = peers_report._algorithms(runs).splitlines()[2:]
    assert own == "| 1gbit | Open MPI's choice | 25 us (2.00) |"
    assert ring == "| 1gbit | ring | 120 us (0.50) |"


@pytest.fixture
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2, groups=0)
    yield ranks
    ranks.close()


def test_fusion_makes_fewer_responses_of_a_batch(two_ranks: Ranks) -> None:
    blocks, responses = two_ranks.run(fusion.reduce_batches, timeout_s=60, model="cnn", rounds=4)[0]
    assert [len(blocks[name]) for name in fusion_report.CONTENDERS] == [4, 4, 4]
    buckets = responses["hvd:fusion_threshold=0"]
    assert sum(bucket["count"] for bucket in buckets) == len(gradient_shapes(cnn)) == 8
    assert sum(bucket["bytes"] for bucket in buckets) == in_bytes(gradient_shapes(cnn))
    assert sum(bucket["tensors"] for bucket in responses["hvd"]) == 8
    assert sum(bucket["count"] for bucket in responses["hvd"]) < 8
    assert responses["gloo"] == []


def test_steps_of_all_contenders_leave_the_same_gradients(two_ranks: Ranks) -> None:
    blocks, _, missing = two_ranks.run(
        scaling.train, timeout_s=60, model="cnn", threads=1, mnist=None, budget_s=0.1, rounds=4
    )[0]
    assert {*blocks} | {*missing} == {*scaling_report.CONTENDERS, "limit"}
    assert {*missing} <= {"hvd:transport=mpi"}


def test_steps_with_codecs_send_as_many_bytes_as_they_should(two_ranks: Ranks) -> None:
    # On one host hvd encodes nothing, unless it is to take TCP.
    hvd = [f"hvd:transport=tcp,compression={codec}" for codec in ("none", "fp16", "int8", "fp8")]
    names = ("gloo", "gloo+fp16_compress_hook", *hvd)
    blocks, sent = two_ranks.run(
        steps.train, timeout_s=60, model="cnn", batch=4, names=names, budget_s=0.1, rounds=4
    )[0]
    assert [len(blocks[name]) for name in ("limit", *names)] == [4] * 7
    size = steps.WORKLOADS["cnn"].nbytes
    assert [sent[name] for name in names[:4]] == [None, None, size, size / 2]
    numbers = size // 4
    in_a_byte = numbers + 2 * ceil(numbers / 128)  # and a scale of two bytes for each 128
    assert [sent[name] for name in names[4:]] == [in_a_byte, in_a_byte]
