"""The ends of programs: every way out is a quick one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from launch import launch

ENDS = {
    "without-destroy": ("dist.all_reduce(torch.ones(4)); dist.all_reduce(torch.ones(300000))", 0),
    "with-destroy": ("dist.all_reduce(torch.ones(4)); dist.destroy_process_group()", 0),
    "idle": ("pass", 0),
    "exit-code": ("dist.barrier(); sys.exit(3)", 3),
    "exception": ("dist.barrier(); raise ValueError('mine')", 1),
    "works-held": (
        "w = [dist.all_reduce(torch.ones(n), async_op=True) for n in (4, 300000)]; w[1].wait()",
        0,
    ),
    "pending": (
        "if rank == 0: w = dist.all_reduce(torch.ones(4), async_op=True)\nelse: time.sleep(1)",
        0,
    ),
    "pending-large": (
        "if rank == 0: w = dist.all_reduce(torch.ones(300000), async_op=True)\nelse: time.sleep(1)",
        0,
    ),
    "groups-held": ("g = [dist.new_group() for _ in range(3)]; dist.barrier(group=g[1])", 0),
    "thread": (
        "import threading\n"
        "t = threading.Thread(target=lambda: [dist.all_reduce(torch.ones(4)) for _ in range(50)])\n"
        "t.start(); t.join()",
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_end_of_program(end: str) -> None:
    """Every way out ends the interpreter soon, with its own exit code and no crash on stderr."""
    script, code = ENDS[end]
    script += "" if code else "\nprint('end', flush=True)"
    for rank, ended in enumerate(launch(script, size=2, timeout=30.0)):
        assert ended.returncode == code, (rank, ended.returncode, ended.stderr)
        if not code:
            assert ended.stdout == "end\n"
            assert "terminate" not in ended.stderr and "Traceback" not in ended.stderr, ended.stderr


CALLS_OF_A_DAEMON = {
    "small": "dist.all_reduce(torch.ones(4))",
    "large": "dist.all_reduce(torch.ones(300000))",
    "future": "dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()",
    "dropped": "dist.all_reduce(torch.ones(4), async_op=True); time.sleep(60)",
    "recv": "dist.recv(torch.ones(4), src=1)",
}


@pytest.mark.parametrize("transport", ["shm", "tcp", "gloo"])
@pytest.mark.parametrize("call", CALLS_OF_A_DAEMON)
def test_a_daemon_thread_that_waits(call: str, transport: str) -> None:
    """It keeps nobody from ending, and the others learn that this rank has ended."""
    script = f"""
        import threading
        if rank == 0:
            def wait():
                {CALLS_OF_A_DAEMON[call]}
            threading.Thread(target=wait, daemon=True).start()
            time.sleep(0.5)
        else:
            try:
                dist.recv(torch.ones(1), src=0)
            except dist.DistBackendError:
                print("end", flush=True)
    """
    ended = launch(script, size=2, env={"HVD_TRANSPORT": transport}, timeout=30.0)
    assert [each.returncode for each in ended] == [0, 0], [each.stderr for each in ended]
    assert ended[1].stdout == "end\n"


def test_what_is_under_way_at_the_end_is_finished(tmp_path: Path) -> None:
    """Before the statistics are written, which count it."""
    script = """
        time.sleep(rank)
        works = [dist.all_reduce(torch.ones(n), async_op=True) for n in (4, 300000)]
    """
    for ended in launch(script, size=2, env={"HVD_STATS": str(tmp_path)}):
        assert ended.returncode == 0, ended.stderr
    for rank in range(2):
        (group,) = json.loads((tmp_path / f"rank-{rank}.stats.json").read_text())["groups"]
        assert group["tensors"] == 2


AT_EXIT = """
import atexit
import torch
import torch.distributed as dist

def leave():
    ranks = torch.tensor([1 << dist.get_rank()])
    dist.all_reduce(ranks)
    print(f"{ranks.item()}\\n", end="", flush=True)

atexit.register(leave)
dist.init_process_group("hvd")
dist.barrier()
"""


def test_a_handler_from_before_the_group(tmp_path: Path) -> None:
    """What a program has registered with atexit since it imported torch finds its group alive."""
    script = tmp_path / "script.py"
    script.write_text(AT_EXIT)
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [sys.executable, "-m", *launcher, script], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "3\n3\n"), ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr


def test_the_host_of_the_store_leaves_first() -> None:
    """A rank has joined only when nobody needs the store any more to join."""
    port = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
    script = f"""
        from torch_hvd import _backend
        dist.destroy_process_group()
        make = _backend._C.ProcessGroupHVD
        def make_late(*arguments):
            time.sleep(2 * rank)
            return make(*arguments)
        _backend._C.ProcessGroupHVD = make_late
        address = "tcp://127.0.0.1:{port}"
        dist.init_process_group("hvd", init_method=address, rank=rank, world_size=size)
    """
    for ended in launch(script, size=2):
        assert ended.returncode == 0, ended.stderr


def test_the_host_of_the_store_leaves_after_a_monitored_barrier() -> None:
    """It has passed only when the others have heard of it, by the store."""
    port = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
    script = f"""
        dist.destroy_process_group()
        address = "tcp://127.0.0.1:{port}"
        dist.init_process_group("hvd", init_method=address, rank=rank, world_size=size)
        dist.group.WORLD.monitored_barrier()
        os._exit(0) if rank == 0 else print("passed")
    """
    ended = launch(script, size=4)
    assert [each.returncode for each in ended] == [0] * 4, [each.stderr for each in ended]
    assert [each.stdout for each in ended[1:]] == ["passed\n"] * 3
