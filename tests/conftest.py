"""How tests meet ranks.

`@pytest.mark.ranks(2, 3)` makes the body of a test run on every rank of pools of those sizes, over
tcp and shm or those in `transports=[...]`, instead of in pytest's process; with `hosts=[...]` also
on so many ranks of two hosts, with `by_name=[...]` over Gloo and MPICH, with `rails=[...]` over TCP
on two rails, and with `standin=[...]` on the way of tensors on a GPU, see `standin`. A test that
asks for the `pool` fixture under the same mark gets the pool itself. One pool lives at a time; the
tests of a module are ordered so that each starts once.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

import standin
from libmpi import needs_mpich
from ranks import RankPool
from rig import skips

# torch's store looks up the name of who connects, and serves nobody meanwhile: where an answer of
# the name server is lost, for 5 s, longer than a test allows an error to take.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"

# Settings of the shell would count in every rank. What is left names a library to test with, and
# what a build is to have.
for _name in os.environ.keys() - {"HVD_LIBMPI", "HVD_BUILD_CUDA"}:
    if _name.startswith(("HVD_", "HOROVOD_")) or _name == "GLOO_SOCKET_IFNAME":
        del os.environ[_name]

TRANSPORTS = ["tcp", "shm"]
BY_NAME = ["gloo", "mpi"]
RAILS = "tcp on two rails"
HOSTS = "shm+tcp"  # what auto takes for ranks 0 and 1 on a host, and the rest on another
MPI_HOSTS = "shm+mpi"  # for such ranks

pytest_sessionfinish = skips.pytest_sessionfinish


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend", default="hvd", help="run the ranks on another c10d backend, to test the tests"
    )
    skips.add_option(parser)
    parser.addoption(
        "--kills",
        type=int,
        default=50,
        help="twice the rounds of each kind in tests/test_kills.py, of which there are three",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ranks(*sizes): run on pools of these world sizes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is not None:
        backend = metafunc.config.getoption("--backend")
        transports = mark.kwargs.get("transports", TRANSPORTS)
        pools = [
            (backend, transport, size)
            for transport in transports
            for size in mark.args
            if size > 1 or transport == transports[0]  # alone, a rank has none
        ]
        pools += [(backend, HOSTS, size) for size in mark.kwargs.get("hosts", ())]
        pools += [(backend, MPI_HOSTS, size) for size in mark.kwargs.get("mpi_hosts", ())]
        sizes = mark.kwargs.get("by_name", ())
        pools += [(backend, transport, size) for transport in BY_NAME for size in sizes]
        pools += [(backend, RAILS, size) for size in mark.kwargs.get("rails", ())]
        pools += [(standin.NAME, "auto", size) for size in mark.kwargs.get("standin", ())]
        params = [
            pytest.param(
                (backend, transport, size),
                id=f"{backend}-{transport}-{size}",
                marks=[needs_mpich] if "mpi" in transport else [],
            )
            for backend, transport, size in pools
        ]
        metafunc.fixturenames.append("pool")
        metafunc.parametrize("pool", params, indirect=True, scope="module")
    if "seeds" in metafunc.fixturenames:  # a test, and its timeout, for so many at most
        rounds = range(metafunc.config.getoption("--kills") // 2)  # of each kind
        some = [rounds[first : first + 25] for first in rounds[::25]]
        metafunc.parametrize("seeds", some, ids=lambda part: f"{part.start}-{part.stop - 1}")


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """The pool of ranks that the `ranks` mark asks for."""
    backend, transport, size = request.param
    apart = transport in (HOSTS, MPI_HOSTS)
    hosts = [f"host{rank // 2}" for rank in range(size)] if apart else None
    env = {"HVD_TRANSPORT": "auto" if transport == HOSTS else transport}
    if transport == RAILS:
        env = {"HVD_TRANSPORT": "tcp", "GLOO_SOCKET_IFNAME": "lo,lo"}
    with RankPool(size, backend, env, hosts=hosts) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The first GPU and the kernels for it; skips a test where there are none."""
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    from torch_hvd import _build

    if _build.CUDA.startswith("no"):
        pytest.skip(f"torch_hvd._cuda is not built: {_build.CUDA}")
    from torch_hvd import _cuda

    assert _cuda
    return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def ranks(request: pytest.FixtureRequest) -> RankPool | None:
    """The pool for a test that is marked, whether or not it asks for it."""
    marked = request.node.get_closest_marker("ranks")
    return request.getfixturevalue("pool") if marked else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    __tracebackhide__ = True
    asked = inspect.signature(pyfuncitem.function).parameters
    ranks = cast("RankPool | None", pyfuncitem.funcargs["ranks"])
    if ranks is None or "pool" in asked:
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in asked}
    ranks.run(pyfuncitem.function, **arguments)
    return True
