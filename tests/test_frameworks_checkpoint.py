"""Distributed checkpoints are written and read over the backend as over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from parity import require_equal, same_as_gloo
from training import new_model, new_optimizer, train

pytestmark = pytest.mark.ranks(2, standin=[2])


def folder_of(tmp_path: Path, group: dist.ProcessGroup) -> Path:
    return tmp_path / ("default" if group is dist.group.WORLD else "gloo")


def sharded(group: dist.ProcessGroup) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = new_model(batch_norm=False)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    return model, new_optimizer(model)


def whole(state: Any) -> Any:
    """Return a nested state with every DTensor gathered."""
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [whole(value) for value in state]
    return state.full_tensor() if isinstance(state, DTensor) else state


def test_model_and_optimizer_come_back(tmp_path: Path) -> None:
    def work(group: dist.ProcessGroup) -> Any:
        folder = folder_of(tmp_path, group)
        model, optimizer = sharded(group)
        train(model, optimizer, dist.get_rank(), steps=3)
        saved, saved_optimizer = get_state_dict(model, optimizer)
        state = {"model": saved, "optimizer": saved_optimizer, "step": 3, "note": {"a": [1, "b"]}}
        dcp.save(state, checkpoint_id=folder, process_group=group)

        other, other_optimizer = sharded(group)
        train(other, other_optimizer, dist.get_rank(), steps=1)
        wanted, wanted_optimizer = get_state_dict(other, other_optimizer)
        read: dict[str, Any] = {
            "model": wanted,
            "optimizer": wanted_optimizer,
            "step": 0,
            "note": {"a": [0, ""]},
        }
        dcp.load(read, checkpoint_id=folder, process_group=group)
        set_state_dict(
            other,
            other_optimizer,
            model_state_dict=read["model"],
            optim_state_dict=read["optimizer"],
        )
        assert (read["step"], read["note"]) == (3, {"a": [1, "b"]})
        before = whole(get_state_dict(model, optimizer))
        require_equal(whole(get_state_dict(other, other_optimizer)), before, "state")
        next_losses = [
            train(m, o, dist.get_rank(), steps=2)
            for m, o in ((model, optimizer), (other, other_optimizer))
        ]
        torch.testing.assert_close(*next_losses, rtol=0, atol=0)
        return next_losses

    same_as_gloo(work)


def test_reading_into_other_placements(tmp_path: Path) -> None:
    full = torch.arange(35.0).reshape(5, 7)

    def work(group: dist.ProcessGroup) -> list[Tensor]:
        folder, mesh = folder_of(tmp_path, group), DeviceMesh.from_group(group, "cpu")
        written = {"x": distribute_tensor(full, mesh, [Shard(0)])}
        dcp.save(written, checkpoint_id=folder, process_group=group)
        results = []
        for placement in (Shard(1), Replicate(), Shard(0)):
            read = {"x": distribute_tensor(torch.zeros(5, 7), mesh, [placement])}
            dcp.load(read, checkpoint_id=folder, process_group=group)
            results.append(read["x"].full_tensor())
            torch.testing.assert_close(results[-1], full)
        return results

    same_as_gloo(work)


def test_saving_in_the_background(tmp_path: Path) -> None:
    """`async_save` talks to its group from another thread while training goes on in this one."""

    def work(group: dist.ProcessGroup) -> Tensor:
        folder = folder_of(tmp_path, group)
        backend = dist.get_backend(group)
        model, optimizer = sharded(group)
        train(model, optimizer, dist.get_rank(), steps=2)
        state = {"model": model.state_dict()}
        at_save = whole(state)
        saver = dist.new_group(backend=backend)
        saving: Any = dcp.async_save(state, checkpoint_id=folder, process_group=saver)
        losses = train(model, optimizer, dist.get_rank(), steps=4)
        saving.result()
        dist.destroy_process_group(saver)

        other, _ = sharded(group)
        read = {"model": other.state_dict()}
        dcp.load(read, checkpoint_id=folder, process_group=group)
        require_equal(whole(read), at_save, "state")
        return losses

    same_as_gloo(work)


def test_a_rank_that_cannot_write_fails_the_save_on_all(tmp_path: Path) -> None:
    class Unwritable:
        def __reduce__(self) -> Any:
            raise ValueError(f"rank {dist.get_rank()} cannot be pickled")

    def work(group: dist.ProcessGroup) -> bool:
        state: dict[str, Any] = {"x": torch.ones(3)}
        if dist.get_rank() == 1:
            state["y"] = Unwritable()
        with pytest.raises(CheckpointException, match="rank 1 cannot be pickled"):
            dcp.save(state, checkpoint_id=folder_of(tmp_path, group), process_group=group)
        return True

    same_as_gloo(work)
