"""python -m torch_hvd.report, and the switches that leave it something to report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch import launch
from torch_hvd import report


def test_stats_table() -> None:
    """Of two sizes that are used, among four."""
    used = [
        # Together 4e6 bytes/s; each for itself 5e6 and 6e6 on the average.
        {"upto": 1e6, "count": 4, "tensors": 10, "bytes": 2e6, "seconds": 0.5, "rates": 20e6},
        {"upto": None, "count": 2, "tensors": 2, "bytes": 6e6, "seconds": 1.2, "rates": 12e6},
    ]
    unused = [{"upto": upto, "count": 0} for upto in (1e3, 2e7)]
    group = {
        **{"group": "0", "tensors": 12, "responses": 6, "frames": 3, "messages": 5},
        **{"tensor_bytes": 8_000_000, "wire_bytes": 7_000_000, "shared_memory_bytes": 3_500_000},
        **{"fusion_buffer_bytes": 500_000, "elapsed": 10.0, "waiting": 2.25},
        "rows": [unused[0], used[0], unused[1], used[1]],
    }
    assert report.stats_table(1, group).splitlines() == [
        "Rank 1, group 0: 12 tensors in 6 responses, 3 of them frames; 5 messages.",
        "8.0 MB of tensors, 7.0 MB sent over the network, 3.5 MB through shared memory; "
        "fusion buffer up to 0.5 MB.",
        "10.00 s in all: waiting for communication 2.25 s, everything else 7.75 s.",
        "",
        "| response size | count | tensors each | average MB | Mbit/s, mean | Mbit/s, aggregate "
        "| total s | average ms | % of time |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| (1 KB, 1 MB] | 4 | 2.5 | 0.5 | 40 | 32 | 0.500 | 125.000 | 5.0 |",
        "| > 20 MB | 2 | 1.0 | 3 | 48 | 40 | 1.200 | 600.000 | 12.0 |",
    ]


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
        text = json.dumps({"rank": rank, "run": "", "ended": True, "groups": [group, group]})
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


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    """Is one sentence. A file of another name is not looked at."""
    content = json.dumps({"rank": 0, "run": "", "ended": True, "groups": []})
    file, events = tmp_path / "rank-0.stats.json", tmp_path / "rank-0.timeline.json"
    file.write_text(content)
    (tmp_path / "rank-0copy.stats.json").write_text("")
    report.main(["stats", str(tmp_path)])
    for plot in ("nodir/x.png", "x.txt"):
        with pytest.raises(SystemExit, match=f"--plot {tmp_path / plot}: "):
            report.main(["stats", str(tmp_path), "--plot", str(tmp_path / plot)])
    foreign = ('{"rank": 0, "run": ""}', '"groups": null', '"groups": [{}]', "[" * 100_000)
    for text in (content[:-3], "[]", "", *(content.replace('"groups": []', f) for f in foreign)):
        file.write_text(text)
        with pytest.raises(SystemExit, match=f"{file} cannot be read: "):
            report.main(["stats", str(tmp_path)])
    first = '{"name": "process_name", "ph": "M", "args": {"wall_clock_offset_us": 0}}'
    for text in ("[]", '[{"args": {}}]', f"[{first}, 1]", f"[{first}, {{}}]", "[" * 100_000):
        events.write_text(text)
        with pytest.raises(SystemExit, match=f"{events} cannot be read: "):
            report.main(["timeline", str(tmp_path)])
    events.write_text(f"[{first}]")
    (tmp_path / "timeline.json").mkdir()
    with pytest.raises(SystemExit, match=r"/timeline\.json cannot be written: Is a directory"):
        report.main(["timeline", str(tmp_path)])


def test_statistics_of_a_rank_that_a_signal_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As torchrun ends those that are well, once one fails."""
    script = "dist.all_reduce(torch.ones(4))\nif rank == 1: os.kill(os.getpid(), 15)"
    ended = launch(script, 2, env={"HVD_STATS": str(tmp_path)})
    assert [process.returncode for process in ended] == [0, -15], ended
    report.main(["stats", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "Rank 0, group 0: 1 tensors in 1 responses" in printed
    assert "Rank 1 has not written its statistics: it is still running, or did not end" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"rank-{rank}.stats.json" for rank in range(2)
    ]


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
