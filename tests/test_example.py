"""The example and the demo: results, data files, errors."""

import gzip
import json
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import demo
import digits
import train_digits
from mnist import MNIST, needs_mnist
from mpiruns import environment, left_of

BACKENDS = ("gloo", "hvd")
pytestmark = pytest.mark.timeout(180)


def write_idx(path: Path, values: Tensor) -> None:
    """Write uint8 `values` as an IDX file, gzipped when the name ends in .gz."""
    shape = struct.pack(f">{values.dim()}I", *values.shape)
    content = struct.pack(">I", 0x0800 + values.dim()) + shape + values.numpy().tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_set(folder: Path, labels: dict[str, list[int]], suffix: str = "") -> dict[str, Tensor]:
    """Write images, a gray of their own each, and `labels`, both by part; return the images."""
    images = {}
    for part, of_part in labels.items():
        grays = torch.arange(len(of_part), dtype=torch.uint8)
        images[part] = grays[:, None, None].expand(-1, 28, 28).contiguous()
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images[part])
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", torch.tensor(of_part).byte())
    return images


def losses(result: dict[str, Any]) -> list[tuple[float, float]]:
    return [(epoch["loss"], epoch["accuracy"]) for epoch in result["epochs"]]


@pytest.fixture(scope="module")
def trained() -> dict[str, dict[str, Any]]:
    """The mlp trained on digits with two ranks, by backend."""
    options = ("--model", "mlp", "--epochs", "10")
    return {backend: demo.train(backend, 2, *options) for backend in BACKENDS}


@pytest.mark.parametrize("backend", BACKENDS)
def test_results(trained: dict[str, dict[str, Any]], backend: str) -> None:
    result = trained[backend]
    assert (result["backend"], result["world_size"], result["model"]) == (backend, 2, "mlp")
    assert result["tested"] == 360  # a fifth of 1797
    assert result["accuracy"] == result["correct"] / 360 >= 0.96
    assert [epoch["epoch"] for epoch in result["epochs"]] == list(range(1, 11))
    assert {epoch["images"] for epoch in result["epochs"]} == {1438}  # 1437, one seen twice
    assert result["seconds"] == pytest.approx(sum(e["seconds"] for e in result["epochs"]))
    assert result["images_per_s"] == pytest.approx(14380 / result["seconds"])
    assert result["epochs"][0]["loss"] > 5 * result["loss"]


def test_two_ranks_agree_to_the_digit(trained: dict[str, dict[str, Any]]) -> None:
    assert losses(trained["hvd"]) == losses(trained["gloo"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_test_image_counts_once(tmp_path: Path, backend: str) -> None:
    # All training images are threes, so all answers are "three": 4 of 7 are right. Three ranks
    # have 3, 2 and 2 of the seven.
    write_set(tmp_path, {"train": [3] * 100, "t10k": [3, 1, 3, 3, 7, 3, 0]})
    options = ("--data", str(tmp_path), "--model", "mlp", "--epochs", "3", "--batch-size", "5")
    result = demo.train(backend, 3, *options)
    assert (result["correct"], result["tested"]) == (4, 7)


def test_one_process_without_a_launcher(tmp_path: Path) -> None:
    write_set(tmp_path, {"train": [3] * 100, "t10k": [3, 1]})
    results = tmp_path / "results.json"
    options = ["--data", str(tmp_path), "--backend", "gloo", "--epochs", "1"]
    command = [sys.executable, str(demo.TRAINING), *options, "--json", str(results)]
    subprocess.run(command, check=True, timeout=100)
    assert json.loads(results.read_text())["world_size"] == 1


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", [".", "MNIST/raw"])
def test_idx_files(tmp_path: Path, place: str, suffix: str) -> None:
    labels = {"train": [5, 0, 4], "t10k": [7, 2]}
    images = write_set(tmp_path / place, labels, suffix)
    for part, loaded in zip(labels, digits.load(str(tmp_path), seed=1), strict=True):
        expected = (images[part][:, None] / 255 - 0.1307) / 0.3081
        torch.testing.assert_close(loaded.tensors[0], expected)
        assert loaded.tensors[1].tolist() == labels[part]


@needs_mnist
def test_mnist() -> None:
    train, test = digits.load(str(MNIST), seed=1)
    assert train.tensors[0].shape == (60000, 1, 28, 28)
    assert test.tensors[0].shape == (10000, 1, 28, 28)
    # MNIST's own mean and deviation are what the pixels are normalised with.
    assert train.tensors[0].mean().abs() < 1e-3
    assert (train.tensors[0].std() - 1).abs() < 1e-3
    assert test.tensors[1].bincount().tolist()[:3] == [980, 1135, 1032]


def message(monkeypatch: pytest.MonkeyPatch, capsys: Any, *options: str) -> str:
    """Return the last line that the script says when it refuses `options`."""
    monkeypatch.setattr(sys, "argv", ["train_digits.py", "--backend", "gloo", *options])
    with pytest.raises(SystemExit) as refused:
        train_digits.main()
    assert refused.value.code == 2
    return str(capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--backend nccl", "--backend nccl needs --device cuda"),
        ("--backend mpi", "has no such backend here"),
        ("--device cuda", "finds no GPU here"),
        ("--epochs 0", "--epochs, --batch-size and --lr must be positive"),
        ("--lr nan", "--epochs, --batch-size and --lr must be positive"),
        ("--json /no/such/place.json", "--json /no/such/place.json: no folder /no/such"),
        ("--data /no/such/data", "no folder /no/such/data"),
    ],
)
def test_refused_options(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, options: str, says: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert says in message(monkeypatch, capsys, *options.split())


def test_refused_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def says() -> str:
        return message(monkeypatch, capsys, "--data", str(tmp_path))

    assert f"neither {tmp_path} nor {tmp_path}/MNIST/raw holds train-images-idx3-ubyte" in says()
    write_set(tmp_path, {"train": [1, 2], "t10k": [3]})
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    assert f"{images} is no IDX file of unsigned bytes in 3 dimensions" in says()
    images.write_bytes(b"\0")
    assert f"{images} is no IDX file of unsigned bytes in 3 dimensions" in says()
    write_idx(images, torch.zeros(5, 28, 28, dtype=torch.uint8))
    assert "images (5, 28, 28) and 2 labels" in says()
    images.rename(images.with_suffix(".gz"))
    assert f"{images}.gz cannot be unzipped" in says()


def test_a_demo_that_is_ended_leaves_no_process() -> None:
    env, token = environment({"PYTHONUNBUFFERED": "1"})
    command = [sys.executable, demo.__file__]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert any(line.startswith("epoch") for line in run.stdout)
        run.terminate()
        assert run.wait(timeout=60) == 128 + signal.SIGTERM
    assert left_of(token) == []


def test_demo_complains() -> None:
    def found(gloo: float, hvd: float) -> str:
        pair = (("gloo", gloo), ("hvd", hvd))
        return "\n".join(demo.complaints([{"backend": b, "accuracy": a} for b, a in pair]))

    assert found(0.97, 0.97) == ""
    assert "differ" in found(0.97, 0.9725)
    assert found(0.95, 0.95).splitlines() == [
        f"{backend}: accuracy 95.00% is below 96%" for backend in BACKENDS
    ]


def test_demo_fails_when_a_training_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = tmp_path / "train_digits.py"
    broken.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(demo, "TRAINING", broken)
    assert demo.main() == 1
    assert "the training with gloo failed" in capsys.readouterr().out


def test_demo(capfd: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    rows = [row.split() for row in capfd.readouterr().out.splitlines()]
    assert [row[0] for row in rows if len(row) == 4 and row[1].endswith("%")] == list(BACKENDS)
