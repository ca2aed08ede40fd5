"""Which MPI is opened, of which ABI, under which launcher, and who answers its PMI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from calls import check_group
from libmpi import MPICH, MPICH_ABI, OPEN_MPI, OVER_MPI, make_libmpi, needs_mpich, needs_open_mpi
from ranks import RankPool, bare_store
from torch_hvd import _mpi

OF_SRUN = {
    **dict.fromkeys(("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"), "2"),
    "SLURM_STEP_NODELIST": "n1",
}
OF_HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, "Open MPI"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "5"}, "PMI"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_PORT": "host:5"}, "PMI"),
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "2"}, "PMIx"),
        ({"PMIX_RANK": "0", "TORCHELASTIC_RUN_ID": "7"}, None),  # srun torchrun
    ],
)
def test_launcher(environ: dict[str, str], expected: str | None) -> None:
    assert _mpi.launcher(environ) == expected


@pytest.mark.parametrize(
    ("environ", "loaded", "expected"),
    [
        ({}, "", False),
        ({"PMI_RANK": "0", "PMI_FD": "5"}, "", True),
        ({**OF_SRUN, "PMI_RANK": "0", "PMI_FD": "5"}, "", False),
        ({**OF_SRUN, "PMI_RANK": "0", "PMI_FD": "5"}, "libpmi2.so.0", True),
        ({**OF_SRUN, **OF_HYDRA, "PMI_FD": "5"}, "", True),  # mpirun in a job of Slurm
        ({**OF_SRUN, "PMIX_RANK": "0"}, "", True),
    ],
)
def test_who_answers_pmi(
    environ: dict[str, str], loaded: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not Slurm, but to its own library."""
    monkeypatch.setattr(_mpi._C, "mpi_is_loaded", lambda name: name == loaded)
    assert _mpi._answers(environ) is expected


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([0, 0], "(vector,(0,1,2))"),
        ([0, 1, 2], "(vector,(0,3,1))"),
        ([0, 0, 1, 1], "(vector,(0,2,2))"),
        ([0, 0, 1], "(vector,(0,1,2),(1,1,1))"),
        ([0, 1, 0, 1], "(vector,(0,2,1),(0,2,1))"),
    ],
)
def test_mapping(hosts: list[int], expected: str) -> None:
    assert _mpi._mapping(hosts) == expected


def test_candidates() -> None:
    """What fits the launcher comes first, and a name that the user gives is the only one."""
    assert _mpi.candidates({"HVD_LIBMPI": "/opt/libmpi.so"}) == ["/opt/libmpi.so"]
    unlaunched = _mpi.candidates({})
    assert unlaunched.index("libmpi.so.12") < unlaunched.index("libmpi.so.40")
    launched = _mpi.candidates({"OMPI_COMM_WORLD_SIZE": "2"})
    assert launched.index("libmpi.so.40") < launched.index("libmpi.so.12")


def error_of_joining(prefix: str, files: list[str]) -> str:
    """What a rank that has the MPI library of that file is told."""
    rank = int(os.environ["RANK"])
    os.environ["HVD_LIBMPI"] = files[rank]
    store = dist.PrefixStore(prefix, bare_store())
    with pytest.raises(ValueError) as caught:
        dist.init_process_group("hvd", store=store, rank=rank, world_size=len(files))
    return str(caught.value)


def same_error(files: list[str]) -> str:
    """The one error that all ranks get."""
    with RankPool(len(files), backend="", env=OVER_MPI) as pool:
        (error,) = set(pool.run(error_of_joining, "any", files))
    return error


@needs_mpich
def test_a_rank_without_a_library() -> None:
    error = same_error([str(MPICH), "/nowhere/libmpi.so"])
    assert "rank 1: no libmpi can be opened: /nowhere/libmpi.so" in error


@needs_mpich
def test_a_library_that_is_no_mpi() -> None:
    error = same_error(["libm.so.6", str(MPICH)])
    assert "rank 0:" in error and "has no MPI_Get_library_version" in error


def says_it_is(says: str) -> str:
    """What a library has that says it is that MPI."""
    return (
        "int MPI_Get_library_version(char* text, int*) "
        f'{{ __builtin_strcpy(text, "{says}\\nand more"); return 0; }}'
    )


@needs_mpich
@pytest.mark.parametrize(
    ("like", "says", "told"),
    [
        (
            MPICH,
            "MPI VERSION    : CRAY MPICH version 8.1.29.2 (ANL base 3.4a2)",
            r"CRAY MPICH 8\.1\.29\.2, ABI of MPICH, [^;]*; not CUDA-aware$",
        ),
        (
            MPICH_ABI,
            "Acme MPI 1.0",
            r"Acme MPI 1\.0, ABI of MPI 5, [^;]*; not CUDA-aware; only under mpirun$",
        ),
    ],
    ids=["mpich", "mpi-5"],
)
def test_the_kin_of_an_mpi(tmp_path: Path, like: Path, says: str, told: str) -> None:
    environ = {**os.environ, "HVD_LIBMPI": str(make_libmpi(tmp_path, says_it_is(says), like))}
    command = [sys.executable, "-m", "torch_hvd"]
    table = subprocess.check_output(command, text=True, env=environ, timeout=60)
    assert re.search(rf"yes: {told}", table, re.MULTILINE), table


@pytest.mark.parametrize(
    ("says", "has"),
    [("Acme MPI 1.0", "int MPI_Send;"), ("Open MPI v3.1.6, package", "int ompi_mpi_comm_world;")],
)
def test_an_mpi_that_is_not_known(tmp_path: Path, says: str, has: str) -> None:
    library = make_libmpi(tmp_path, has + says_it_is(says))
    with pytest.raises(ValueError, match="is an MPI that is not known here") as caught:
        _mpi._C.open_mpi([str(library)])
    assert f"{library} is an MPI that is not known here: {says}; known are" in str(caught.value)


@needs_open_mpi
def test_open_mpi_without_a_launcher() -> None:
    error = same_error([str(OPEN_MPI)] * 2)
    assert "rank 0: Open MPI 5" in error
    assert "start with mpirun, hvdrun or srun --mpi=pmix, or pip install mpich" in error


def both_abis(files: list[str]) -> str:
    os.environ["HVD_LIBMPI"] = files[int(os.environ["RANK"])]
    dist.init_process_group(
        "hvd", store=bare_store(), rank=int(os.environ["RANK"]), world_size=len(files)
    )
    check_group()
    left = [name for name in os.environ if name.startswith("PMI")]
    dist.destroy_process_group()
    return f"{left}"


@needs_mpich
@pytest.mark.parametrize(
    "files", [[MPICH, MPICH], [MPICH_ABI, MPICH_ABI]], ids=["mpich-abi", "standard-abi"]
)
def test_abis_of_mpich(files: list[Path]) -> None:
    with RankPool(2, backend="", env=OVER_MPI) as pool:
        assert pool.run(both_abis, [str(file) for file in files]) == ["[]"] * 2
