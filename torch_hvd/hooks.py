"""Communication hooks for DistributedDataParallel."""

import os
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torch_hvd import _settings
from torch_hvd._compression import compression
from torch_hvd._load import _C

Future = torch.futures.Future[torch.Tensor]
Hook = Callable[[Any, dist.GradBucket], Future]


def compress(name: str) -> Hook:
    """A hook that averages gradients in `name`, over any backend.

        model.register_comm_hook(None, torch_hvd.hooks.compress("int8"))

    Where the group's backend is hvd it does the work, by the group's settings and behind the
    backward pass. Elsewhere the same two stages run over all_to_all and all_gather of bytes, for
    fp32, fp16 and bf16 gradients on the CPU, by HVD_COMPRESSION_BLOCK and HVD_ERROR_FEEDBACK as
    they are now; they are waited for within the hook, because other backends need all ranks to
    issue both stages of all buckets in one order.

    The hook's state is the process group, None for the default one.

    Args:
        name: fp16, bf16, fp8, fp8_e5m2, int8 or int4.

    Raises:
        ValueError: another name, or a variable has a value that is not allowed.
    """
    _settings.check_compression(name, _settings.COMPRESSIONS[1:])
    elsewhere = _TwoStages(name)

    def hook(state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future:
        group = state or dist.group.WORLD
        assert group is not None
        gradients = bucket.buffer()
        if group._get_backend(gradients.device).name() == "hvd":
            with compression(name):
                work = dist.all_reduce(gradients, dist.ReduceOp.AVG, group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])
        elsewhere.average(gradients, group)
        done: Future = torch.futures.Future()
        done.set_result(gradients)
        return done

    return hook


class _TwoStages:
    """As csrc/collectives/compressed_allreduce.cpp, but in one piece, over any backend."""

    def __init__(self, name: str) -> None:
        settings: dict[str, Any] = _settings.resolve(_C.Options(), os.environ)
        self._name = name
        self._block, self._feeds_back = _C.codec_parameters(
            name, settings["block"], settings["error_feedback"]
        )
        self._feedback: WeakKeyDictionary[dist.ProcessGroup, _C.ErrorFeedback] = WeakKeyDictionary()

    def average(self, gradients: torch.Tensor, group: dist.ProcessGroup) -> None:
        """In place."""
        if group.size() == 1:
            return
        name, block, size = self._name, self._block, group.size()
        missing = -gradients.numel() % (size * block)
        padded = torch.nn.functional.pad(gradients, (0, missing)) if missing else gradients
        shards = padded.chunk(size)
        feedback = self._feedback.setdefault(group, _C.ErrorFeedback())
        residual = feedback.begin(gradients, name, block) if self._feeds_back else None
        lost, lost_sum = self._lost(residual, padded.numel(), group.size())
        contributions = torch.cat(
            [
                _C.encode(shard, name, block, 1 / size, lost_of_it)
                for shard, lost_of_it in zip(shards, lost, strict=True)
            ]
        )
        arrived = torch.empty_like(contributions)
        dist.all_to_all_single(arrived, contributions, group=group)
        own = shards[group.rank()]
        own_sum, _ = _C.decode_sum_encode(
            list(arrived.chunk(size)), name, block, result=own, residual=lost_sum
        )
        dist.all_gather_single(arrived, own_sum, group=group)
        for shard, encoded in zip(shards, arrived.chunk(size), strict=True):
            _C.decode(encoded, name, block, out=shard)
        if residual is not None:
            feedback.end(residual, padded)
        if missing:
            gradients.copy_(padded[: gradients.numel()])

    @staticmethod
    def _lost(
        residual: _C.Residual | None, count: int, size: int
    ) -> tuple[Sequence[torch.Tensor | None], torch.Tensor | None]:
        """In an earlier step: of the contribution to each shard, and of the own sum."""
        if residual is None:
            return [None] * size, None
        if residual.contribution is None:
            # Whatever the program has made its default.
            residual.contribution = torch.zeros(count, dtype=torch.float32, device="cpu")
            residual.shard = residual.contribution.new_zeros(count // size)
        return residual.contribution.chunk(size), residual.shard
