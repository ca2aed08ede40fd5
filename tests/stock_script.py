"""What a user's script looks like: torchrun, DDP, and nothing of torch_hvd but the string."""

import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("hvd")
rank, size = dist.get_rank(), dist.get_world_size()

ranks = torch.tensor([float(rank)])
dist.all_reduce(ranks)
assert ranks.item() == size * (size - 1) / 2, ranks

layer = torch.nn.Linear(3, 1, bias=False)
torch.nn.init.ones_(layer.weight)
model = DistributedDataParallel(layer)
model(torch.full((1, 3), float(rank))).sum().backward()
# The gradient on each rank is its own number; DDP averages.
expected = torch.full((1, 3), (size - 1) / 2)
torch.testing.assert_close(layer.weight.grad, expected)

print(f"rank {rank} of {size}: {dist.get_backend()}")
if hasattr(torch._C._distributed_c10d, "FlightRecorderHook"):
    # This torch attaches its flight recorder to plug-ins, so it has every operation of ours.
    recorder: Any = torch._C._distributed_c10d
    dump = pickle.loads(recorder._dump_fr_trace(backend="hvd"))
    names = [entry["profiling_name"] for entry in dump["entries"]]
    assert any("hvd:all_reduce" in name for name in names), names
    # And it splits groups on the host, too.
    turned: Any = dist.split_group(split_ranks=[list(reversed(range(size)))])
    assert turned.rank() == size - 1 - rank, turned
    dist.all_reduce(ranks.fill_(1.0), group=turned)
    assert ranks.item() == size, ranks
dist.destroy_process_group()
