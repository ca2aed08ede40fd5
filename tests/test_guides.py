"""The programs of docs/horovod.md run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "horovod.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def test_there_are_programs() -> None:
    assert [program.count('init_process_group("hvd")') for program in PROGRAMS] == [1, 1, 1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", PROGRAMS, ids=["ddp", "loop", "elastic"])
def test_program(program: str, tmp_path: Path) -> None:
    alike = """
found = torch.cat([p.detach().flatten() for p in model.parameters()])
theirs = [torch.empty_like(found) for _ in range(2)]
dist.all_gather(theirs, found)
assert torch.equal(*theirs), theirs
"""
    end = "dist.destroy_process_group()"
    script = tmp_path / "train.py"
    script.write_text(program.replace(end, alike + end))
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for _ in range(2):  # the second time from what the first has left, if it leaves something
        done = subprocess.run(
            [sys.executable, "-m", *torchrun, script], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
