"""The programs of docs/horovod.md run as they stand there; the last also where a rank dies."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch import launch

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "horovod.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def test_there_are_programs() -> None:
    assert [program.count('init_process_group("hvd")') for program in PROGRAMS] == [1, 1, 1, 1]


END = "dist.destroy_process_group()"
ALIKE = """
found = torch.cat([p.detach().flatten() for p in model.parameters()])
theirs = [torch.empty_like(found) for _ in range(2)]
dist.all_gather(theirs, found)
assert torch.equal(*theirs), theirs
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", PROGRAMS, ids=["ddp", "loop", "restarts", "goes on"])
def test_program(program: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(program.replace(END, ALIKE + END))
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for _ in range(2):  # the second time from what the first has left, if it leaves something
        done = subprocess.run(
            [sys.executable, "-m", *torchrun, script], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_program_that_goes_on_without_a_rank() -> None:
    program = PROGRAMS[-1].replace('dist.init_process_group("hvd")', "")
    for before, after in (
        ("    try:", "    if rank == 1 and step == 4:\n        os.kill(os.getpid(), 9)\n    try:"),
        ("lost_ranks()", "lost_ranks(patience=datetime.timedelta(seconds=8))"),
        (END, ALIKE + "print(step, optimizer.state_dict()['param_groups'][0]['lr'])\n" + END),
    ):
        assert before in program
        program = program.replace(before, after)
    first, killed, last = launch("import datetime\n" + program, 3)
    assert killed.returncode == -signal.SIGKILL
    for survivor in (first, last):
        assert survivor.returncode == 0, survivor.stderr
        assert survivor.stdout == "10 0.01\n"
