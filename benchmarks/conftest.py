"""Options and fixtures of the benchmarks.

A test module may define SIZES and QUICK_SIZES (bytes, for tests that take `nbytes`) and
WORLD_SIZES (where it does not make sense with any number of ranks). A test that compares more
than --backend with --baseline is marked with its pairs of `benchmarks.contenders`:
`@pytest.mark.contenders(loopback=[(backend, baseline), ...], link=[...], quick=[...])`, where quick
may be left out: those of loopback with --quick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contenders import Contender
from benchmarks.effort import Effort, effort
from benchmarks.links import link_bytes_per_s, rails
from benchmarks.machine import facts
from benchmarks.measure import Bench
from benchmarks.peers import PEERS, parse_peers, why_not
from benchmarks.ranks import Ranks
from benchmarks.report import describe, in_bytes, markdown
from benchmarks.rows import Row
from rig import skips
from rig.hosts import complaint
from torch_hvd._settings import COMPRESSIONS, TRANSPORTS

PAIRS = pytest.StashKey[list[tuple[str, str]]]()
EFFORT = pytest.StashKey[Effort]()
ROWS = pytest.StashKey[list[Row]]()

pytest_sessionfinish = skips.pytest_sessionfinish


def pytest_addoption(parser: pytest.Parser) -> None:
    skips.add_option(parser)
    options = parser.getgroup("benchmarks")
    options.addoption("--quick", action="store_true", help="fewer sizes, half a second for each")
    options.addoption("--full", action="store_true", help="2 and 4 ranks")
    options.addoption("--seconds", type=float, help="for a row (default: 4; 0.5 with --quick)")
    options.addoption(
        "--world-size", type=int, action="append", help="ranks; may be repeated (default: 2)"
    )
    options.addoption("--backend", default="hvd", help="what is measured (default: hvd)")
    options.addoption("--transport", choices=TRANSPORTS, help="of the backend")
    options.addoption("--compression", choices=COMPRESSIONS, help="of the backend")
    options.addoption("--baseline", default="gloo", help="what it is compared to (default: gloo)")
    options.addoption(
        "--peer", metavar="PEERS", help=f"instead of --baseline, some of {','.join(PEERS)}"
    )
    options.addoption(
        "--link",
        metavar="RATE",
        help="ranks on hosts of their own behind such links: 1gbit, or two each: 2x1gbit; root",
    )
    options.addoption(
        "--per-host", type=int, default=1, metavar="N", help="with --link: ranks on each host"
    )
    options.addoption("--bind", action="store_true", help="each rank to a core")
    options.addoption("--json", type=Path, metavar="FILE", help="write one JSON line per row")
    options.addoption("--gate", action="store_true", help="fail where a target is missed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contenders(loopback, link, quick): the pairs to compare")
    option = config.getoption
    try:
        if link := option("--link"):
            link_bytes_per_s(link)
            if reason := complaint(rails(link)[1]):
                raise ValueError(f"--link {link}: {reason}")
        config.stash[EFFORT] = effort(quick=option("--quick"), full=option("--full"))
        config.stash[PAIRS] = pairs(config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[ROWS] = []
    if file := option("--json"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")


def pairs(config: pytest.Config) -> list[tuple[str, str]]:
    """What is compared by a test that does not say it itself. ValueError: an option is wrong."""
    option = config.getoption
    wanted = {name: option(f"--{name}") for name in ("transport", "compression")}
    backend = Contender.parse(option("--backend"))
    backend = backend.with_options({name: value for name, value in wanted.items() if value})
    peers = parse_peers(option("--peer")) if option("--peer") else [option("--baseline")]
    return [(str(backend), peer) for peer in peers]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "nbytes" in metafunc.fixturenames:
        sizes = getattr(metafunc.module, metafunc.config.stash[EFFORT].sizes)
        metafunc.parametrize("nbytes", sizes, ids=lambda size: in_bytes(size).replace(" ", ""))
    if "ranks" in metafunc.fixturenames:
        metafunc.parametrize("ranks", list(places(metafunc)), indirect=True, scope="module")


def places(metafunc: pytest.Metafunc) -> Iterator[Any]:
    """The parameters of `ranks`: how many, and what is compared; or why it cannot be."""
    config = metafunc.config
    wanted = config.getoption("--world-size") or config.stash[EFFORT].world_sizes
    possible = getattr(metafunc.module, "WORLD_SIZES", wanted)
    pairs = config.stash[PAIRS]
    if mark := metafunc.definition.get_closest_marker("contenders"):
        kinds = ["link"] if config.getoption("--link") else config.stash[EFFORT].contenders
        pairs = next(mark.kwargs[kind] for kind in kinds if kind in mark.kwargs)
    for size in wanted:
        for pair in pairs if size in possible else ():
            reason = why_not(pair[1], config.getoption("--link"))
            marks = [pytest.mark.skip(reason)] if reason else []
            name = "-".join([f"n{size}", *(pair if mark or len(pairs) > 1 else ())])
            yield pytest.param((size, *pair), id=name, marks=marks)


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    size, backend, baseline = request.param
    option = request.config.getoption
    link, per_host, bind = option("--link"), option("--per-host"), option("--bind")
    ranks = Ranks(size, backend, baseline, link, per_host=per_host, bind=bind)
    yield ranks
    ranks.close()


@pytest.fixture
def budget_s(pytestconfig: pytest.Config) -> float:
    """Seconds for a row."""
    return float(pytestconfig.getoption("--seconds") or pytestconfig.stash[EFFORT].budget_s)


@pytest.fixture
def keep(pytestconfig: pytest.Config) -> Callable[[Row], None]:
    """Takes a row for the table; fails the test when the gate is on and the target is missed."""
    file = pytestconfig.getoption("--json")

    def keep(row: Row) -> None:
        pytestconfig.stash[ROWS].append(row)
        if file:
            with file.open("a") as lines:
                lines.write(json.dumps(row.as_json() | {"machine": facts()}) + "\n")
        if pytestconfig.getoption("--gate") and row.missed:
            pytest.fail(
                f"{row.op}, {row.size} B: ratio {row.ratio:.3f} is above {row.target}",
                pytrace=False,
            )

    return keep


@pytest.fixture
def bench(ranks: Ranks, budget_s: float, keep: Callable[[Row], None]) -> Bench:
    return Bench(ranks, budget_s, keep)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if rows := config.stash[ROWS]:
        terminalreporter.section("benchmarks")
        terminalreporter.write_line(describe(facts()) + "\n")
        terminalreporter.write_line(markdown(row.as_json() for row in rows))
