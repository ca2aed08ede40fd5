"""Gradient compression: what a codec gains on a slow link, and costs where there is none.

    pytest benchmarks/test_compression.py --link 1gbit

With `--link`, every codec against stock gloo in fp32, and DDP also against PyTorch's own fp16 hook
and PowerSGD of rank 1. That sends far less, and what it returns is not near the mean: its gradients
are checked to be finite and the same on all ranks, no more.
Without, on loopback, every codec against hvd without one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks import test_ddp
from benchmarks.contenders import Contender, sent_bytes
from benchmarks.measure import Bench
from benchmarks.payload import pattern
from benchmarks.ranks import Rank
from benchmarks.test_all_reduce import bus_factor, reduce_all, sync

pytestmark = pytest.mark.timeout(300)

QUICK_SIZES = (16 << 20,)
SIZES = (4 << 20, 16 << 20, 64 << 20)

CODECS = ("none", "fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4")
LOSSLESS = "hvd:transport=tcp,compression=none"
FP16_HOOK, POWER_SGD = "gloo+fp16_compress_hook", "gloo+powerSGD_hook"

# Ratios to gloo in fp32 that are aimed at, of an all_reduce of 16 MB or more.
TARGETS = {
    "fp16": 1 / 1.9,
    "bf16": 1 / 1.9,
    "fp8": 1 / 3.5,
    "fp8_e5m2": 1 / 3.5,
    "int8": 1 / 3.5,
    "int4": 1 / 6,
}
DDP_TARGETS = {("int8", 2): 1 / 2.5, ("int8", 4): 1 / 2.3}
LOOPBACK_TARGET = 1.3  # against hvd without compression


def against(baseline: str, codecs: tuple[str, ...] = CODECS) -> list[tuple[str, str]]:
    # By name: inside a host hvd would take shared memory, where nothing is compressed.
    return [(f"hvd:transport=tcp,compression={codec}", baseline) for codec in codecs]


def codec_of(bench: Bench) -> str:
    return str(Contender.parse(bench.ranks.backend).options.get("compression"))


def sent_by(call: Callable[[], object]) -> float | None:
    """Bytes that this rank sends in `call` through hvd; None where hvd sends nothing."""
    before = sent_bytes()
    call()
    return sent_bytes() - before or None


def sent_by_reduction(rank: Rank, *, count: int) -> float | None:
    """Runs on a rank."""
    tensor = pattern(count)
    return sent_by(lambda: dist.all_reduce(tensor, group=rank.backend[0]))


def sent_by_step(rank: Rank) -> float | None:
    """Runs on a rank. DDP settles its buckets in the second step; this is the third."""
    inputs = test_ddp.batch(rank.rank)
    model = DistributedDataParallel(test_ddp.mlp(), process_group=rank.backend[0])
    for _ in range(2):
        test_ddp.step(model, inputs)
    return sent_by(lambda: test_ddp.step(model, inputs))


def mean_over_ranks(
    bench: Bench, case: Callable[..., float | None], **arguments: int
) -> float | None:
    sent = [each for each in bench.ranks.run(case, timeout_s=60, **arguments) if each is not None]
    return sum(sent) / bench.ranks.size if sent else None


@pytest.mark.contenders(
    loopback=against(LOSSLESS),
    quick=against(LOSSLESS, ("fp16", "int8", "int4")),
    link=against("gloo"),
)
def test_all_reduce(bench: Bench, nbytes: int) -> None:
    target: float | None = LOOPBACK_TARGET
    if bench.ranks.link:
        target = TARGETS.get(codec_of(bench)) if nbytes >= 16 << 20 else None
    bench.row(
        reduce_all,
        op="all_reduce",
        size=nbytes,
        bus_factor=bus_factor(bench.ranks.size),
        target=target,
        wire_bytes=mean_over_ranks(bench, sent_by_reduction, count=nbytes // 4),
        count=nbytes // 4,
        burst=1,
        issue=sync,
    )


@pytest.mark.contenders(
    loopback=against(LOSSLESS, ("fp16", "fp8", "int8")),
    quick=against(LOSSLESS, ("int8",)),
    link=[
        *against("gloo"),
        *against(FP16_HOOK, ("fp16", "fp8", "int8")),
        *against(POWER_SGD, ("int8", "int4")),
        (FP16_HOOK, "gloo"),
        (POWER_SGD, "gloo"),
    ],
)
def test_ddp_step(bench: Bench) -> None:
    target = None
    if bench.ranks.link and bench.ranks.baseline == "gloo":
        target = DDP_TARGETS.get((codec_of(bench), bench.ranks.size))
    bench.row(
        test_ddp.steps,
        op="ddp step",
        size=test_ddp.NBYTES,
        target=target,
        hooks=True,
        wire_bytes=mean_over_ranks(bench, sent_by_step),
    )
