"""Communication hooks for DistributedDataParallel."""

from collections.abc import Callable
from typing import Any

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
    fp32, fp16 and bf16 gradients on the CPU; they are waited for within the hook, because other
    backends need all ranks to issue both stages of all buckets in one order.

    The hook's state is the process group, None for the default one.

    Args:
        name: fp16, bf16, fp8, fp8_e5m2, int8 or int4.

    Raises:
        ValueError: another name.
    """
    _settings.check_compression(name, _settings.COMPRESSIONS[1:])

    def hook(state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future:
        group = state or dist.group.WORLD
        assert group is not None
        gradients = bucket.buffer()
        if group._get_backend(gradients.device).name() == "hvd":
            with compression(name):
                work = dist.all_reduce(gradients, dist.ReduceOp.AVG, group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])
        _average(gradients, name, group)
        done: Future = torch.futures.Future()
        done.set_result(gradients)
        return done

    return hook


def _average(gradients: torch.Tensor, name: str, group: dist.ProcessGroup) -> None:
    """In place, as csrc/collectives/compressed_allreduce.cpp does it, but in one piece."""
    size = group.size()
    block = 32 if name == "int4" else 128
    missing = -gradients.numel() % (size * block)
    padded = torch.nn.functional.pad(gradients, (0, missing)) if missing else gradients
    shards = padded.chunk(size)
    contributions = torch.cat([_C.encode(shard, name, block, 1 / size) for shard in shards])
    arrived = torch.empty_like(contributions)
    dist.all_to_all_single(arrived, contributions, group=group)
    own = shards[group.rank()]
    own_sum, _ = _C.decode_sum_encode(list(arrived.chunk(size)), name, block, result=own)
    dist.all_gather_into_tensor(arrived, own_sum, group=group)
    for shard, encoded in zip(shards, arrived.chunk(size), strict=True):
        _C.decode(encoded, name, block, out=shard)
    if missing:
        gradients.copy_(padded[: gradients.numel()])
