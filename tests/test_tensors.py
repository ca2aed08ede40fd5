"""Tensors of special kinds: expanded, sparse, tracked by autograd, made for inference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _make_nccl_premul_sum as premul_sum

from calls import check_group, expect_error, together
from rows import filled

pytestmark = pytest.mark.ranks(2, 3, by_name=[2], rails=[2])

Call = Callable[[Tensor], object]


def everyone(tensor: Tensor) -> list[Tensor]:
    return [tensor.clone() for _ in range(dist.get_world_size())]


INTO: dict[str, Call] = {
    "all_reduce": dist.all_reduce,
    "all_to_all": lambda tensor: dist.all_to_all([tensor, *everyone(tensor)[1:]], everyone(tensor)),
    "all_gather": lambda tensor: dist.all_gather(
        [tensor, *everyone(tensor)[1:]], torch.ones_like(tensor)
    ),
    "reduce_scatter": lambda tensor: dist.reduce_scatter(tensor, everyone(tensor)),
    "recv": lambda tensor: dist.recv(tensor, (dist.get_rank() + 1) % dist.get_world_size()),
}


@pytest.mark.parametrize("verb", INTO)
def test_into_an_expanded_tensor(verb: str) -> None:
    """Refused before anything is sent, with the strides that are to blame; the group works on."""
    expanded = torch.zeros(1).expand(4)
    with pytest.raises(RuntimeError, match=rf"hvd: {verb} into .* shape \[4\] and strides \[0\]"):
        INTO[verb](expanded)
    check_group()


@pytest.mark.parametrize("count", [8, 20_000, 3_000_000])
def test_output_in_the_input(count: int) -> None:
    """Results are as if the input were apart, wherever in it the output lies."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def whole(of: int) -> Tensor:
        return torch.arange(size * count, dtype=torch.float32).add_(1000 * of)

    for place in range(size):
        tensor = whole(rank)
        expected = reduce(torch.add, map(whole, range(size))).chunk(size)[rank]
        output = tensor.chunk(size)[place]
        dist.reduce_scatter_tensor(output, tensor)
        assert torch.equal(output, expected), f"reduce_scatter into piece {place}"

        gathered = whole(rank)
        pieces = [whole(other).chunk(size)[(place + other) % size] for other in range(size)]
        dist.all_gather_into_tensor(gathered, gathered.chunk(size)[(place + rank) % size])
        assert torch.equal(gathered, torch.cat(pieces)), f"all_gather from piece {place + rank}"

    exchanged = whole(rank)
    dist.all_to_all_single(exchanged, exchanged)
    pieces = [whole(other).chunk(size)[rank] for other in range(size)]
    assert torch.equal(exchanged, torch.cat(pieces)), "all_to_all"


def test_from_an_expanded_tensor() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [torch.empty(3, 4) for _ in range(size)]
    dist.all_gather(gathered, torch.full((3, 1), float(rank)).expand(3, 4))
    assert all(filled(tensor, float(other)) for other, tensor in enumerate(gathered))


def test_conjugates() -> None:
    """Lazy ones: views of what they are the conjugates or negatives of."""
    rank, size = dist.get_rank(), dist.get_world_size()
    number = torch.full((3,), complex(rank + 1, rank + 2))
    gathered = [torch.empty_like(number) for _ in range(size)] if rank == 0 else None
    dist.gather(number.conj(), gathered)
    for other, tensor in enumerate(gathered or []):
        assert torch.equal(tensor, torch.full((3,), complex(other + 1, -(other + 2))))

    negative = number[:1].conj().imag
    assert negative.is_neg() and negative.is_contiguous()
    parts = [torch.empty(1) for _ in range(size)]
    dist.all_gather(parts, negative)
    assert [part.item() for part in parts] == [-(other + 2.0) for other in range(size)]
    sent, received = dist.isend(negative, (rank + 1) % size), torch.empty(1)
    dist.recv(received, (rank - 1) % size)
    assert sent is not None
    sent.wait()
    assert received.item() == -((rank - 1) % size + 2.0)


def test_recv_into_what_autograd_tracks() -> None:
    """A leaf that is not contiguous gets the message, and no history."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = dist.isend(torch.full((3, 2), float(rank)), (rank + 1) % size)
    leaf = torch.zeros(2, 3).t().requires_grad_()
    dist.recv(leaf, (rank - 1) % size)
    assert sent is not None
    sent.wait()
    assert leaf.is_leaf and leaf.requires_grad
    assert filled(leaf.detach(), float((rank - 1) % size))
    check_group()


@torch.inference_mode()
def test_inference_tensors() -> None:
    """They have no versions, and their views no history; contiguous, not contiguous, and long."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for tensor in (torch.ones(4), torch.ones(3, 4).t(), torch.ones(1 << 18), torch.ones(8)[2:5]):
        for async_op in (False, True):
            tensor.fill_(rank + 1)
            work = dist.all_reduce(tensor, async_op=async_op)
            if work is not None:
                work.wait()
            assert filled(tensor, size * (size + 1) / 2)


def test_factors_of_one_element() -> None:
    for shape in ((), (1,), (1, 1)):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, op=premul_sum(torch.full(shape, 0.5)))
        assert filled(tensor, dist.get_world_size() / 2)


def sparse(rows: int, columns: int) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1), (rows, columns))


OTHER_SHAPES: dict[str, Callable[[], Tensor]] = {
    "4x8": lambda: sparse(4, 8),
    "16x4": lambda: sparse(16, 4),
    "8x4-of-rows": lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 4), (8, 4)),
}


def differs(shape: str, group: dist.ProcessGroup) -> None:
    tensor = sparse(8, 4) if dist.get_rank() == 0 else OTHER_SHAPES[shape]()
    text = expect_error(lambda: dist.all_reduce(tensor, group=group))
    assert "all_reduce_sparse" in text


def test_sparse_tensors_of_different_shapes() -> None:
    groups = {shape: dist.new_group() for shape in OTHER_SHAPES}
    together({shape: partial(differs, shape, group) for shape, group in groups.items()})
    check_group()


def test_a_sparse_tensor_that_is_reduced_twice() -> None:
    """The second is of what the first has made, though both were called at once. That has more
    entries: those of all ranks.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    places = torch.tensor([[0, rank], [1, 2]])
    tensor = torch.sparse_coo_tensor(places, torch.ones(2), (8, 4))
    for work in [dist.all_reduce(tensor, async_op=True) for _ in range(3)]:
        work.wait()
    assert tensor._nnz() == 1 + size
    assert tensor.to_dense().sum() == 2 * size**3


def test_coalescing_on_the_host() -> None:
    """The manager for messages takes tensors on the host as well."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty(3)
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.isend(torch.full((3,), float(rank)), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
    assert filled(received, float((rank - 1) % size))
