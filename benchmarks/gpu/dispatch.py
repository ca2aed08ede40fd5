"""What a call of `hvd` costs the host beyond one of NCCL: `python -m benchmarks.gpu.dispatch`.

All of it in one process with a group of one, asynchronous all_reduces that are waited for, 100 in a
row and then the device; hvd and NCCL take turns. The target is 1.2.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

CALLS, ROUNDS, TARGET = 100, 200, 1.2


def microseconds(group: dist.ProcessGroup, tensor: torch.Tensor) -> float:
    """Of the host, per call and wait."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(CALLS):
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        work.wait()
    taken = time.perf_counter() - begun
    torch.cuda.synchronize()
    return taken / CALLS * 1e6


def main() -> int:
    if not torch.cuda.is_available():
        print("torch finds no GPU here", file=sys.stderr)
        return 1
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl")
    groups = {name: dist.new_group(backend=name) for name in ("nccl", "hvd")}
    worst = 0.0
    print("| elements | nccl us | hvd us | ratio |\n|---:|---:|---:|---:|")
    for count in (1, 1000, 1_000_000):
        tensor = torch.ones(count, device="cuda")
        times: dict[str, list[float]] = {name: [] for name in groups}
        for number in range(ROUNDS):
            for name in sorted(groups, reverse=bool(number % 2)):
                times[name].append(microseconds(groups[name], tensor))
        nccl, hvd = (statistics.median(times[name][5:]) for name in ("nccl", "hvd"))
        worst = max(worst, hvd / nccl)
        print(f"| {count} | {nccl:.1f} | {hvd:.1f} | {hvd / nccl:.2f} |")
    dist.destroy_process_group()
    print(f"target {TARGET}: {'PASS' if worst <= TARGET else 'MISS'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
