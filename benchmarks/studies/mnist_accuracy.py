"""MNIST, fp32, one seed: does hvd train to the accuracy that gloo trains to?

    python benchmarks/studies/mnist_accuracy.py ../shared/data/mnist

Prints a Markdown table. With two ranks the accuracies must be equal to the digit; with more, the
order of a sum may differ, and 0.2 points are allowed. Exit status 1 where that does not hold.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from demo import train

BACKENDS = ("gloo", "hvd")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="of MNIST's IDX files")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--epochs", default="2")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS))
    args = parser.parse_args()

    options = ("--data", args.folder, "--epochs", args.epochs, "--seed", args.seed)
    rows = [
        "| ranks | backend | accuracy | loss | images/s | seconds |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    held = True
    for ranks in args.ranks:
        results = [train(backend, ranks, *options) for backend in args.backends]
        rows += [
            f"| {ranks} | {result['backend']} | {result['accuracy']:.2%} | {result['loss']:.6f} "
            f"| {result['images_per_s']:,.0f} | {result['seconds']:.1f} |"
            for result in results
        ]
        right = [result["correct"] for result in results]
        allowed = 0 if ranks == 2 else 0.002 * results[0]["tested"]
        held = held and max(right) - min(right) <= allowed
    print("\n" + "\n".join(rows))
    print("\nheld" if held else "\nNOT held: the accuracies are further apart than allowed")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
