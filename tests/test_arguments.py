"""What a caller gets wrong is that call's own error: it says what is wrong, and nothing is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from calls import check_group
from verbs import gather_into

pytestmark = pytest.mark.ranks(3, transports=["shm"])

Call = Callable[[], object]


def of(*counts: int) -> list[Tensor]:
    """A tensor of each of these lengths."""
    return [torch.ones(count) for count in counts]


def whole(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(count, dtype=dtype)


def world() -> Any:
    """Some calls only the object takes, or dist does not let through."""
    return dist.group.WORLD


def gathered_off_the_root() -> None:
    options = dist.GatherOptions()
    options.rootRank = 1
    world().gather([of(4, 4, 4)], of(4), options)


def scattered_off_the_root() -> None:
    options = dist.ScatterOptions()
    options.rootRank = 1
    world().scatter(of(4), [of(4, 4, 4)], options)


def exchanged(sends: list[int] | None, expects: list[int] | None = None) -> Call:
    return lambda: dist.all_to_all_single(whole(6), whole(6), expects, sends)


# As rank 0 makes them in a group of three; what the error says.
WRONG: dict[str, tuple[Call, str]] = {
    "root-too-high": (
        lambda: world().broadcast(whole(4), 3),
        "broadcast: root 3 is not a rank of the group; ranks are 0 to 2",
    ),
    "root-below-0": (
        lambda: world().reduce(whole(4), -1),
        "reduce: root -1 is not a rank of the group; ranks are 0 to 2",
    ),
    "several-tensors": (
        lambda: world().allreduce(of(4, 4)),
        "all_reduce takes 1 tensor(s) or list(s) here, not 2",
    ),
    "sparse-op": (
        lambda: dist.all_reduce(torch.eye(3).to_sparse(), op=dist.ReduceOp.MAX),
        "all_reduce of sparse tensors with ReduceOp.MAX; it takes SUM and AVG",
    ),
    "all-gather-count": (
        lambda: dist.all_gather(of(4, 4), whole(4)),
        "all_gather: 2 output tensors in a group of 3 ranks; there must be one per rank",
    ),
    "all-gather-own": (
        lambda: dist.all_gather(of(5, 4, 4), whole(4)),
        "all_gather: the output for this rank's own tensor has 5 elements (shape [5]) where 4 are",
    ),
    "all-gather-into": (
        lambda: dist.all_gather_into_tensor(whole(11), whole(4)),
        "all_gather: the output has 11 elements (shape [11]) where 12 are needed",
    ),
    "all-gather-into-dtype": (
        lambda: dist.all_gather_into_tensor(whole(12, torch.int32), whole(4)),
        "all_gather of tensors of different dtypes, float32 and int32; all must be the same",
    ),
    "all-gather-coalesced-ranks": (
        lambda: dist.all_gather_coalesced([of(4)] * 2, of(4)),
        "all_gather_coalesced takes 3 tensor(s) or list(s) here, not 2",
    ),
    "all-gather-coalesced-tensors": (
        lambda: dist.all_gather_coalesced([of(4, 4)] * 3, of(4)),
        "all_gather_coalesced takes 1 tensor(s) or list(s) here, not 2",
    ),
    "all-gather-into-coalesced": (
        lambda: world().allgather_into_tensor_coalesced(of(12, 12), of(4)),
        "all_gather_into_tensor_coalesced takes 1 tensor(s) or list(s) here, not 2",
    ),
    "gather-count": (
        lambda: dist.gather(whole(4), of(4, 4)),
        "gather: 2 output tensors in a group of 3 ranks; there must be one per rank",
    ),
    "gather-off-the-root": (
        gathered_off_the_root,
        "gather: 3 output tensors on rank 0; only the root, rank 1, has any",
    ),
    "gather-size": (
        lambda: dist.gather(whole(4), of(4, 4, 3)),
        "gather: an output has 3 elements (shape [3]) where 4 are needed",
    ),
    "gather-into": (
        lambda: gather_into(whole(11), whole(4), dst=0),
        "gather: the output has 11 elements (shape [11]) where 12 are needed",
    ),
    "gather-into-dtype": (
        lambda: gather_into(whole(12, torch.int32), whole(4), dst=0),
        "gather of tensors of different dtypes, float32 and int32; all must be the same",
    ),
    "gather-into-root": (
        lambda: gather_into(whole(12), whole(4), dst=3),
        "gather: root 3 is not a rank of the group; ranks are 0 to 2",
    ),
    "scatter-count": (
        lambda: dist.scatter(whole(4), of(4, 4)),
        "scatter: 2 input tensors in a group of 3 ranks; there must be one per rank",
    ),
    "scatter-off-the-root": (
        scattered_off_the_root,
        "scatter: 3 input tensors on rank 0; only the root, rank 1, has any",
    ),
    "scatter-size": (
        lambda: dist.scatter(whole(4), of(4, 4, 3)),
        "scatter: an input has 3 elements (shape [3]) where 4 are needed",
    ),
    "reduce-scatter-too-few": (
        lambda: dist.reduce_scatter(whole(4), of(4, 4)),
        "reduce_scatter: 2 input tensors in a group of 3 ranks; there must be one per rank",
    ),
    "reduce-scatter-too-many": (
        lambda: dist.reduce_scatter(whole(4), of(4, 4, 4, 4)),
        "reduce_scatter: 4 input tensors in a group of 3 ranks; there must be one per rank",
    ),
    "reduce-scatter-own": (
        lambda: dist.reduce_scatter(whole(4), of(3, 4, 4)),
        "reduce_scatter: the output has 4 elements (shape [4]) where 3 are needed",
    ),
    "reduce-scatter-tensor": (
        lambda: dist.reduce_scatter_tensor(whole(4), whole(11)),
        "reduce_scatter: the input has 11 elements (shape [11]) where 12 are needed",
    ),
    "reduce-scatter-tensor-dtype": (
        lambda: dist.reduce_scatter_tensor(whole(4), whole(12, torch.int32)),
        "reduce_scatter of tensors of different dtypes, float32 and int32; all must be the same",
    ),
    "reduce-scatter-coalesced": (
        lambda: world().reduce_scatter_tensor_coalesced(of(4), of(12, 12)),
        "reduce_scatter_tensor_coalesced takes 2 tensor(s) or list(s) here, not 1",
    ),
    "all-to-all-inputs": (
        lambda: dist.all_to_all(of(4, 4, 4), of(4, 4)),
        "all_to_all: 2 input tensors in a group of 3 ranks; there must be one per rank",
    ),
    "all-to-all-outputs": (
        lambda: dist.all_to_all(of(4, 4), of(4, 4, 4)),
        "all_to_all: 2 output tensors in a group of 3 ranks; there must be one per rank",
    ),
    "all-to-all-own": (
        lambda: dist.all_to_all(of(5, 4, 4), of(4, 4, 4)),
        "all_to_all: this rank's output from itself has 5 elements (shape [5]) where 4 are needed",
    ),
    "all-to-all-single-dtype": (
        lambda: world().alltoall_base(whole(6, torch.int32), whole(6), [], []),
        "all_to_all of tensors of different dtypes, float32 and int32; all must be the same",
    ),
    "scalar-input": (
        lambda: dist.all_to_all_single(whole(6), torch.tensor(1.0)),
        "all_to_all: the input is a scalar; it needs a first dimension to cut",
    ),
    "scalar-output": (
        lambda: dist.all_to_all_single(torch.tensor(1.0), whole(6)),
        "all_to_all: the output is a scalar; it needs a first dimension to cut",
    ),
    "not-divisible": (
        lambda: dist.all_to_all_single(whole(6), whole(7)),
        "all_to_all: the first dimension of the input, 7, is not divisible by the 3 ranks of the "
        "group; give split sizes",
    ),
    "splits-count": (
        exchanged(None, [3, 3]),
        "all_to_all: 2 split sizes in a group of 3 ranks; there must be one per rank",
    ),
    "splits-sum": (
        exchanged([1, 2, 4]),
        "all_to_all: split sizes 1 2 4 of the input must not be negative and must add up to its "
        "first dimension, 6",
    ),
    "splits-below-0": (
        exchanged(None, [3, 4, -1]),
        "all_to_all: split sizes 3 4 -1 of the output must not be negative and must add up to its "
        "first dimension, 6",
    ),
    "splits-own": (
        exchanged(None, [1, 2, 3]),
        "all_to_all: this rank's output from itself has 1 elements (shape [1]) where 2 are needed",
    ),
    "several-messages": (
        lambda: world().send(of(4, 4), 1, 0),
        "send takes 1 tensor(s) or list(s) here, not 2",
    ),
    "tag-below-0": (
        lambda: dist.send(whole(4), 1, tag=-1),
        "send with tag -1; tags are 0 to 2147483647",
    ),
    "peer-too-high": (
        lambda: world().send(of(4), 3, 0),
        "send with rank 3 on rank 0; peers are the other ranks of 0 to 2",
    ),
    "peer-below-0": (
        lambda: world().recv(of(4), -1, 0),
        "recv with rank -1 on rank 0; peers are the other ranks of 0 to 2",
    ),
    "oneself": (
        lambda: world().recv(of(4), 0, 0),
        "recv with rank 0 on rank 0; peers are the other ranks of 0 to 2",
    ),
}


# Of which dist does not let these through: of which one tensor has another dtype.
MIXED: list[tuple[str, Callable[[list[Tensor], Tensor], object]]] = [
    ("all_gather", lambda several, one: world().allgather([several], [one])),
    ("gather", lambda several, one: world().gather([several], [one], dist.GatherOptions())),
    ("scatter", lambda several, one: world().scatter([one], [several], dist.ScatterOptions())),
    ("reduce_scatter", lambda several, one: world().reduce_scatter([one], [several])),
    ("all_to_all", lambda several, one: world().alltoall(several, [one] * 3)),
    ("all_to_all", lambda several, one: world().alltoall([one] * 3, several)),
]


@pytest.mark.parametrize("what", WRONG)
def test_refused(what: str) -> None:
    """The other ranks make no such call, and the next one fits theirs."""
    if dist.get_rank() == 0:
        call, says = WRONG[what]
        with pytest.raises(RuntimeError, match=re.escape(f"hvd: {says}")):
            call()
    check_group()


@pytest.mark.parametrize("place", range(len(MIXED)))
def test_one_dtype_for_all(place: int) -> None:
    """Nothing is converted, and no bytes are taken for other numbers."""
    if dist.get_rank() == 0:
        verb, call = MIXED[place]
        several = [*of(4, 4), whole(4, torch.int32)]
        says = f"hvd: {verb} of tensors of different dtypes, float32 and int32; all must be the"
        with pytest.raises(RuntimeError, match=says):
            call(several, whole(4))
    check_group()
