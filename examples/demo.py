"""Train on handwritten digits with stock gloo and with hvd, and show the two side by side."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TRAINING = Path(__file__).with_name("train_digits.py")
BACKENDS = ("gloo", "hvd")
RANKS = 2
LEAST_ACCURACY = 0.96
BIN = os.path.relpath(Path(sys.executable).parent)
NEXT = f"""
The two runs differ in one string: init_process_group("gloo"), init_process_group("hvd").
With two ranks their accuracy is equal to the digit. Speed varies from run to run: for
figures to rely on, see benchmarks/.

Where to go next:
  {BIN}/torchrun --nproc-per-node {RANKS} examples/train_digits.py --backend hvd --model mlp
  {BIN}/python examples/train_digits.py --help    all that it can be told
  {BIN}/python -m torch_hvd    what was built, and which transports work here
  in a script of yours: torch.distributed.init_process_group("hvd"); no import is needed
"""


def train(backend: str, ranks: int, *options: str) -> dict[str, Any]:
    """Run train_digits.py under torchrun with `options`; return what it wrote with --json.

    Raises CalledProcessError when it fails.
    """
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        own = [f"--nproc-per-node={ranks}", str(TRAINING), "--backend", backend, *options]
        command = [*launch, *own, "--json", str(results)]
        # What torchrun would set, without its warning.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=environment) as torchrun:
            try:
                status = torchrun.wait()
            except BaseException:
                torchrun.terminate()  # and not kill: it takes its ranks along
                raise
        if status:
            raise subprocess.CalledProcessError(status, command)
        return json.loads(results.read_text())


def table(results: list[dict[str, Any]]) -> str:
    """Return accuracy, images/s and seconds of each training, one line per backend."""
    lines = [f"{'backend':8} {'accuracy':>9} {'images/s':>9} {'seconds':>8}"]
    for result in results:
        lines.append(
            f"{result['backend']:8} {result['accuracy']:>9.2%} "
            f"{result['images_per_s']:>9,.0f} {result['seconds']:>8.1f}"
        )
    return "\n".join(lines)


def complaints(results: list[dict[str, Any]]) -> list[str]:
    """Return what the results fall short of, nothing when all is well."""
    found = [
        f"{result['backend']}: accuracy {result['accuracy']:.2%} is below {LEAST_ACCURACY:.0%}"
        for result in results
        if result["accuracy"] < LEAST_ACCURACY
    ]
    if len({result["accuracy"] for result in results}) > 1:
        found.append("the accuracies differ, and with two ranks they must not")
    return found


def main() -> int:
    results = []
    for backend in BACKENDS:
        print(f"\n--- backend {backend}, {RANKS} ranks", flush=True)
        try:
            results.append(train(backend, RANKS))
        except subprocess.CalledProcessError as error:
            print(f"the training with {backend} failed (exit status {error.returncode})")
            return 1
    print("\n" + table(results))
    found = complaints(results)
    print("\n".join(found) if found else NEXT)
    return 1 if found else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of `train`
    sys.exit(main())
