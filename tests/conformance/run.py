"""Run PyTorch's distributed test suite against a backend.

    python -m tests.conformance.run --backend hvd --world-size 3

Prints a line for each test, the output of each that fails, and last
`N passed, N failed, N skipped`; exits 1 if any failed. Whatever stock gloo passes on the same
torch must pass, but for the tests listed in exceptions.py, which must fail.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter

from . import launch, suite, verdict
from .exceptions import exceptions_for


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="hvd")
    parser.add_argument("--world-size", type=int, default=3)
    parser.add_argument("-k", metavar="PATTERN", default="", help="only names that contain it")
    parser.add_argument("--jobs", type=int, default=1, help="tests at a time")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each test")
    parser.add_argument("--record", action="store_true", help="keep what passes as the baseline")
    args = parser.parse_args(argv)
    if args.record and (args.backend != "gloo" or args.k):
        parser.error("--record takes the whole suite with --backend gloo")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    tests = suite.load(args.backend, args.world_size)
    import torch

    minor = ".".join(torch.__version__.split(".")[:2])
    exceptions = exceptions_for(args.backend, minor)
    expected = [] if args.record else verdict.read_expected(minor, args.world_size)
    names = suite.names(tests)

    counts: Counter[str] = Counter()
    passed = []
    wrong_names = verdict.unknown_names(names, expected, exceptions)
    selected = [name for name in names if args.k in name]
    runs = launch.run(tests, selected, args.world_size, args.jobs, args.timeout)
    judged = (verdict.judge(outcome, expected, exceptions) for outcome in runs)
    for outcome in itertools.chain(wrong_names, judged):
        counts[outcome.status] += 1
        if outcome.status == "pass":
            passed.append(outcome.test)
        first, _, rest = outcome.detail.partition("\n")
        print(f"{outcome.status:6} {outcome.test} {outcome.seconds:.1f} s  {first}".rstrip())
        if rest:
            print(rest)
        sys.stdout.flush()
    if args.record:
        path = verdict.expected_file(minor, args.world_size)
        path.write_text("".join(f"{name}\n" for name in sorted(passed)))
    if counts["listed"]:
        print(f"{counts['listed']} failed as listed in exceptions.py")
    print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
