"""The example on a GPU: every codec trains handwritten digits as well as fp32 does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"
# Two ranks on one GPU are on different hosts, to NCCL and, so that they compress, to hvd.
RANK = 'NCCL_HOSTID=rank$RANK HVD_HOST_ID=rank$RANK exec "$@"'
CODECS = ["fp16", "bf16", "int8", "fp8", "fp8_e5m2", "int4"]


def accuracy(backend: str, compression: str, folder: Path) -> float:
    result = folder / f"{backend}-{compression}.json"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    example = [str(EXAMPLE), "--backend", backend, "--device", "cuda", "--json", str(result)]
    ran = subprocess.run(
        [sys.executable, *launch, "bash", "-c", RANK, "-", sys.executable, *example],
        env={
            **os.environ,
            "HVD_COMPRESSION": compression,
            "HVD_COMPRESSION_MIN_BYTES": "1024",
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return float(json.loads(result.read_text())["accuracy"])


@pytest.fixture(scope="module")
def fp32(gpu: torch.device, tmp_path_factory: pytest.TempPathFactory) -> float:
    return accuracy("nccl", "none", tmp_path_factory.mktemp("fp32"))


@pytest.mark.parametrize("compression", ["none", *CODECS])
def test_as_good_as_fp32(fp32: float, compression: str, tmp_path: Path) -> None:
    assert accuracy("hvd", compression, tmp_path) > fp32 - 0.015
