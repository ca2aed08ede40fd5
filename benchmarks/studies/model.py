"""How long would all_reduce take on more ranks than there are here? A model, fitted and checked.

    for transport in shm tcp mpi; do
        pytest benchmarks/test_all_reduce.py -k "sync and not async" \\
            --world-size 2 --backend hvd:transport=$transport --json out/all_reduce-$transport.jsonl
    done
    pytest benchmarks/test_all_reduce.py -k "sync and not async" --link 1gbit --full \\
        --json out/all_reduce-1gbit.jsonl    # 2 ranks, and 4 to check the model's growth; root
    python -m benchmarks.studies.model out/all_reduce-*.jsonl
    python -m benchmarks.studies.model out/all_reduce-*.jsonl --report docs/studies

The model is that of `benchmarks.studies.alpha_beta`. Prints its lines and its error at sizes that
it was not fitted to.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.studies import model_report
from benchmarks.studies.alpha_beta import fit_model, points_of
from benchmarks.studies.model_report import Transport
from benchmarks.studies.results import Results, read


def name_of(row: dict[str, Any]) -> str | None:
    """Of the transport that a row's ranks had; None where they were not all on one."""
    backend = Contender.parse(row["backend"])
    if backend.backend != "hvd" or backend.options.get("compression", "none") != "none":
        return None
    wanted = str(backend.options.get("transport", "auto"))
    name = {"auto": "tcp" if row["link"] else "shm"}.get(wanted, wanted)
    return f"{name}, {row['link'] or 'one host'}"


def transports(rows: Results) -> list[Transport]:
    """Those that can be fitted, each to its rows with the fewest ranks."""
    named: dict[str, dict[int, Results]] = {}
    for row in rows:
        if name := name_of(row):
            named.setdefault(name, {}).setdefault(row["world_size"], []).append(row)
    found = []
    for name, by_ranks in named.items():
        fewest, *others = sorted(by_ranks)
        try:
            fitted = fit_model(points_of(by_ranks[fewest]), fewest)
        except ValueError as error:
            print(f"without {name}, {fewest} ranks: {error}")
            continue
        beyond = {ranks: points_of(by_ranks[ranks]) for ranks in others}
        found.append(Transport(name, fitted, beyond))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of `pytest benchmarks`")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write model.md and .png")
    args = parser.parse_args()

    rows = [row for file in args.files for row in read(file)]
    found = transports(rows)
    if not found:
        raise SystemExit("no rows of all_reduce to fit a model to")
    print(model_report.fits(found))
    if args.report:
        model_report.write(found, rows, args.report)


if __name__ == "__main__":
    main()
