"""hvd beside all that can be had here: stock gloo, DDP's hooks, plain MPI, MPI's own algorithms.

    python -m benchmarks.studies.peers                        # two hosts by link, and one; root
    python -m benchmarks.studies.peers --links "one host"     # needs no root
    python -m benchmarks.studies.peers --report docs/studies  # peers.md and .png: matplotlib

All contenders of a link take turns in one run, whose ranks hvdrun starts by mpirun; mpi4py and hvd
have one MPI library. Open MPI reads at its start which algorithm it is to take, so each has a run
of its own, beside hvd and stock gloo. Rows are lines of the results file, and a run that has some
is not measured again.
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path

from benchmarks.mpirun import mpirun
from benchmarks.report import markdown
from benchmarks.studies import peers_report
from benchmarks.studies.peers_report import ALGORITHMS
from benchmarks.studies.results import append, parser_of, read
from benchmarks.studies.steps_cells import ONE_HOST
from torch_hvd import hvdrun

TUNED = {"OMPI_MCA_coll": "^han", "OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}
ALGORITHM = "OMPI_MCA_coll_tuned_allreduce_algorithm"


def main() -> None:
    parser = parser_of("peers", __doc__)
    parser.add_argument("--links", nargs="+", metavar="RATE", default=[ONE_HOST, "5gbit", "1gbit"])
    parser.add_argument(
        "--algorithms",
        nargs="*",
        choices=ALGORITHMS,
        default=[*ALGORITHMS],
        help="of Open MPI, to be measured alone",
    )
    parser.add_argument("--ranks", type=int, default=2, help="each on a host of its own")
    parser.add_argument("--mpirun", help="Open MPI's; hvdrun finds one")
    parser.add_argument("--seconds", type=float, default=10.0, help="for a case, about")
    args = parser.parse_args()
    program = args.mpirun or hvdrun.find_mpirun()
    version = hvdrun.version_of(program) if program else "missing"
    if program is None or not version.startswith("Open MPI"):
        parser.error(f"mpirun is {version}, and has to be Open MPI's: --mpirun names one")

    done = {(row["place"], row["algorithm"]) for row in read(args.results)}
    for place, algorithm in product(args.links, ["", *args.algorithms]):
        if (place, algorithm) in done:
            continue
        chosen = TUNED | {ALGORITHM: str(ALGORITHMS[algorithm])} if algorithm else {}
        link = None if place == ONE_HOST else place
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "rows.jsonl")
            script = ["benchmarks.studies.peers_rank", place, algorithm, str(args.seconds)]
            mpirun([*script, str(file)], args.ranks, program, link, variables=chosen)
            rows = read(file)
        append(args.results, rows)
        print(f"{algorithm or 'all'}\n{markdown(rows)}", flush=True)
    if args.report:
        peers_report.write(read(args.results), args.report)


if __name__ == "__main__":
    main()
