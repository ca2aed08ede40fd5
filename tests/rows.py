"""The contract table's cells: dtypes, reduce ops, shapes, and inputs with results in closed form.

Every rank can compute every rank's input, so it computes the expected result too. Sums of inputs
are exact in the accumulation type (float32 for 16-bit floats), and need all the bits of the dtype:
a backend that went through a narrower type, or rounded a 16-bit sum more than once, gives another
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _make_nccl_premul_sum as premul_sum

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
REDUCIBLE = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
MOVABLE = (*REDUCIBLE, *FP8)

OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
FACTOR = 0.5  # of PREMUL_SUM

# Units that use up the bits of a wide dtype: lost on the way through the next narrower one.
_FINE = {torch.float64: 2.0**-40, torch.float32: 2.0**-16}
_COARSE = {torch.int64: 2**55 + 1, torch.int32: 2**26 + 1, torch.int16: 2**11 + 1}


def allowed(dtype: torch.dtype, op: str) -> bool:
    """Whether `op` means something on `dtype`."""
    if dtype in FLOATS:
        return op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM")
    if dtype in COMPLEX:
        return op in ("SUM", "AVG", "PREMUL_SUM")
    if dtype is torch.bool:
        return op not in ("AVG", "PREMUL_SUM")
    return dtype in INTEGERS and op != "PREMUL_SUM"


def reduce_op(op: str) -> Any:
    """The c10d object for the name of a reduce op."""
    return premul_sum(FACTOR) if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op)


def name(dtype: torch.dtype) -> str:
    """float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Shape:
    """Dimensions, or a size in bytes for one dimension, and how the elements lie in memory."""

    label: str
    dims: tuple[int, ...] = ()
    nbytes: int = 0
    layout: str = "contiguous"

    def of(self, dtype: torch.dtype, grow: int = 0) -> tuple[int, ...]:
        """The dimensions for `dtype`, with `grow` rows more in the first one."""
        dims = (self.nbytes // dtype.itemsize + 1,) if self.nbytes else self.dims
        return (dims[0] + grow, *dims[1:]) if dims else (grow,) * (grow > 0)


SMALL_SHAPES = (
    Shape("scalar"),
    Shape("empty", (0,)),
    Shape("empty-rows", (0, 3)),
    Shape("one", (1,)),
    Shape("odd", (7,)),
    Shape("matrix", (3, 5)),
    Shape("transposed", (3, 5), layout="transposed"),
    Shape("strided", (4, 5), layout="strided"),
    Shape("unaligned", (9,), layout="offset"),
    Shape("3 KB", nbytes=3000),
)
LARGE_SHAPES = (Shape("70 KB", nbytes=70_000),)
HUGE_SHAPES = (Shape("1.1 MB strided", nbytes=1_100_000, layout="strided"),)


def laid_out(dims: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    """An uninitialised tensor of `dims` whose elements lie as `layout` says."""
    if layout == "transposed":
        return torch.empty(dims[::-1], dtype=dtype).t()
    if layout == "strided":
        return torch.empty((*dims, 2), dtype=dtype)[..., 1]
    if layout == "offset":
        return torch.empty(dims[0] + 1, dtype=dtype)[1:]
    return torch.empty(dims, dtype=dtype)


@lru_cache(maxsize=128)
def values(
    dims: tuple[int, ...], dtype: torch.dtype, rank: int, slot: int, product: bool
) -> Tensor:
    """The values that `rank` puts into its tensor number `slot`.

    `product`: small ones, so that they multiply exactly.
    """
    index = torch.arange(torch.Size(dims).numel()).reshape(dims)
    seed = index * 3 + rank * 7 + slot * 5
    if dtype in FP8:
        return (seed % 251).to(torch.uint8).view(dtype)
    if dtype is torch.bool:
        return seed % 3 != 0
    if dtype in COMPLEX:
        part = torch.float32 if dtype is torch.complex64 else torch.float64
        return torch.complex(
            values(dims, part, rank, slot, product), values(dims, part, rank, slot + 1, product)
        )
    small = seed % 4 - (1 if dtype.is_signed else 0)
    if product:
        return small.to(dtype)
    if dtype in (torch.float16, torch.bfloat16):
        # Full mantissas at different scales: a partial sum kept in 16 bits would round.
        steps = 256 if dtype is torch.float16 else 64
        scale = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])[seed % 5]
        return ((1 + seed % steps / steps) * scale).to(dtype)
    unit = seed % 11 + 1
    if dtype in _FINE:
        return (small + unit.double() * _FINE[dtype]).to(dtype)
    return (small + _COARSE.get(dtype, 0) * (1 + rank % 2)).to(dtype)


def combine(op: str, inputs: list[Tensor]) -> Tensor:
    """The expected result of reducing `inputs`, given by rank: exact, or rounded once."""
    dtype = inputs[0].dtype
    if dtype in FLOATS and op in ("SUM", "AVG", "PRODUCT", "PREMUL_SUM"):
        inputs = [value.double() for value in inputs]
    stack = torch.stack(inputs)
    if dtype is torch.bool:
        counted = stack.sum(0)
        every = counted == len(inputs)
        odd = counted % 2 == 1
        chosen = {"PRODUCT": every, "MIN": every, "BAND": every, "BXOR": odd}
        return chosen.get(op, counted > 0)
    if op in ("MIN", "MAX"):
        return stack.amin(0) if op == "MIN" else stack.amax(0)
    if op == "PRODUCT":
        return stack.prod(0, dtype=stack.dtype).to(dtype)
    if op in ("BAND", "BOR", "BXOR"):
        fold = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
        result = inputs[0]
        for value in inputs[1:]:
            result = fold(result, value)
        return result
    total = stack.sum(0, dtype=stack.dtype)
    if op == "AVG" and dtype in INTEGERS:
        total = total.div(len(inputs), rounding_mode="trunc")
    elif op == "AVG":
        total = total / len(inputs)
    elif op == "PREMUL_SUM":
        total = total * FACTOR
    return total.to(dtype)


@dataclass(frozen=True)
class Row:
    """One call of the table, as a rank sees it."""

    dtype: torch.dtype
    op: str
    shape: Shape
    async_op: bool

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    def values(self, rank: int, slot: int = 0, grow: int = 0) -> Tensor:
        """What `rank` puts in; not to be written to."""
        return values(self.shape.of(self.dtype, grow), self.dtype, rank, slot, self.op == "PRODUCT")

    def input(self, rank: int | None = None, slot: int = 0, grow: int = 0) -> Tensor:
        """A fresh tensor in the row's layout with the values of `rank` (this one)."""
        source = self.values(self.rank if rank is None else rank, slot, grow)
        tensor = laid_out(tuple(source.shape), self.dtype, self.shape.layout)
        return as_bytes(tensor).copy_(as_bytes(source)).view(self.dtype)

    def output(self, grow: int = 0) -> Tensor:
        """A fresh tensor in the row's layout, holding values that no rank sends."""
        return self.input(rank=97, slot=3, grow=grow)

    def reduced(self, slot: int = 0, grow: int = 0) -> Tensor:
        """The expected result of reducing tensor number `slot` over all ranks."""
        return combine(self.op, [self.values(rank, slot, grow) for rank in range(self.size)])

    def call(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Make the call, sync or async as the row says, and wait for it."""
        if self.async_op:
            verb(*args, async_op=True, **kwargs).wait()
        else:
            verb(*args, **kwargs)

    def equal(self, got: Tensor, expected: Tensor, what: str = "result") -> None:
        """Fail unless `got` is `expected`, to the bit.

        A mean of float32 and wider may differ in the last one.
        """
        assert got.dtype is expected.dtype and got.shape == expected.shape, (got, expected)
        if torch.equal(as_bytes(got), as_bytes(expected)):
            return
        is_rounded = self.op == "AVG" and self.dtype.itemsize > 2 and self.dtype not in INTEGERS
        eps = torch.finfo(self.dtype).eps if is_rounded else 0.0
        torch.testing.assert_close(
            got, expected, rtol=eps, atol=0.0, msg=lambda text: f"rank {self.rank}, {what}: {text}"
        )


def filled(tensor: Tensor, value: float) -> bool:
    """Whether every element of `tensor` is `value`."""
    return bool((tensor == value).all())


def as_bytes(tensor: Tensor) -> Tensor:
    """fp8 tensors as uint8, since few operations know them; others as they are."""
    return tensor.view(torch.uint8) if tensor.dtype in FP8 else tensor
