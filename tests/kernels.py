"""What the kernels of a device must do, whichever it is: the bits of `_C`'s codecs on the host.

tests/test_device_kernels.py asks it of the host, tests/gpu/test_kernels.py of a GPU.
"""

from __future__ import annotations

import torch

from torch_hvd import _C

CASTS = ["fp16", "bf16"]
BLOCKED = ["fp8", "fp8_e5m2", "int8", "int4"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
COUNTS = [0, 1, 2, 3, 31, 33, 127, 128, 129, 1000, 1023, 1024, 1025, 2049, 70_001]
NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, INF, -INF, -0.0, 2.0**-149, torch.finfo(torch.float32).max, 1e38, -NAN]


def hard_values(count: int, seed: int) -> torch.Tensor:
    """Runs of 64 values of every kind: any bits, zeros, tiny, huge and ordinary, some special."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (count,), generator=generator).int()
    runs = count // 64 + 1
    exponents = torch.randint(-150, 120, (runs,), generator=generator)
    values = torch.randn(count, generator=generator).double()
    values = (values * 2.0 ** exponents.double().repeat_interleave(64)[:count]).float()
    kind = torch.randint(0, 8, (runs,), generator=generator).repeat_interleave(64)[:count]
    values = torch.where(kind == 0, bits.view(torch.float32), values)
    values[kind == 1] = 0
    where = torch.randint(0, 500, (count,), generator=generator)
    special = torch.tensor(SPECIAL)[where.clamp(max=7)]
    return torch.where((where < 8) & (kind > 5), special, values)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For comparisons to the bit, where a NaN is equal to itself."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.cpu().view(widths[tensor.element_size()])


def placed(tensor: torch.Tensor, device: torch.device, offset: int = 0) -> torch.Tensor:
    """The tensor on that device, `offset` elements behind an aligned address."""
    whole = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=device)
    whole[offset:].copy_(tensor)
    return whole[offset:]


def packed(tensors: list[torch.Tensor], compression: str, block: int) -> torch.Tensor:
    """The tensors in float32, one behind the other, each filled up to whole blocks with zeros."""
    unit = 1 if compression in CASTS else block
    parts = []
    for tensor in tensors:
        filling = -tensor.numel() % unit
        parts += [tensor.float(), torch.zeros(filling)]
    return torch.cat(parts)


def unpacked(values: torch.Tensor, like: list[torch.Tensor], unit: int) -> list[torch.Tensor]:
    parts, begin = [], 0
    for tensor in like:
        parts.append(values[begin : begin + tensor.numel()].to(tensor.dtype))
        begin += tensor.numel() + -tensor.numel() % unit
    return parts


def empty_message(compression: str, block: int, count: int, offset: int) -> torch.Tensor:
    return torch.zeros(_C.encoded_bytes(count, compression, block) + offset, dtype=torch.uint8)


def check_encode(device: torch.device, compression: str, block: int, dtype: torch.dtype) -> None:
    """Tensors of all sizes in one message, aligned or not, with residuals or without."""
    for offset, factor in ((0, 1.0), (1, 0.3), (3, -2.5)):
        tensors = [hard_values(n, seed).to(dtype) for seed, n in enumerate(COUNTS)]
        residuals = [hard_values(n, seed + 100) for seed, n in enumerate(COUNTS)] * (offset > 0)
        whole = packed(tensors, compression, block)
        rest = packed(residuals, compression, block) if residuals else None
        expected = _C.encode(whole, compression, block, factor, rest)

        there = [placed(tensor, device, offset) for tensor in tensors]
        rests = [placed(residual, device, offset) for residual in residuals]
        message = empty_message(compression, block, whole.numel(), offset).to(device)[offset:]
        _C.encode_pieces(there, message, compression, block, factor, rests)

        assert torch.equal(message.cpu(), expected), (offset, factor)
        unit = 1 if compression in CASTS else block
        if rest is not None:
            for found, lost in zip(rests, unpacked(rest, residuals, unit), strict=True):
                assert torch.equal(bits(found), bits(lost))


def check_decode(device: torch.device, compression: str, block: int, dtype: torch.dtype) -> None:
    """Messages of numbers and of any bytes, to tensors of all sizes, aligned or not."""
    for offset, garbage in ((0, False), (1, False), (3, True)):
        like = [torch.empty(n, dtype=dtype) for n in COUNTS]
        count = packed(like, compression, block).numel()
        message = _C.encode(hard_values(count, 7), compression, block)
        if garbage:
            any_bytes = torch.Generator().manual_seed(8)
            message = torch.randint(0, 256, message.shape, generator=any_bytes).to(torch.uint8)
        unit = 1 if compression in CASTS else block
        # Each from a message of its own, since a NaN would lose its bits on the way through fp32.
        expected, begin = [], 0
        whole = _C.decode(message, compression, block, out=torch.empty(count, dtype=dtype))
        for tensor in like:
            expected.append(whole[begin : begin + tensor.numel()])
            begin += tensor.numel() + -tensor.numel() % unit

        found = [placed(torch.zeros(n, dtype=dtype), device, offset) for n in COUNTS]
        _C.decode_pieces(placed(message, device, offset), found, compression, block)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(bits(one), bits(other)), (offset, one.numel())


def check_sum(device: torch.device, compression: str, block: int) -> None:
    """Of 1 to 9 messages, aligned or not, with a residual or without, into one of them."""
    count = 9 * 1024 + (0 if compression in CASTS else block)
    for size, offset in ((1, 0), (2, 0), (3, 1), (4, 0), (8, 0), (9, 3)):
        values = [hard_values(count, seed) for seed in range(size)]
        messages = [_C.encode(one, compression, block) for one in values]
        residual = hard_values(count, 50) if size % 2 == 0 else None
        there = [placed(message, device, offset) for message in messages]
        rest = None if residual is None else placed(residual, device)
        expected, _ = _C.decode_sum_encode(
            messages, compression, block, result=torch.empty(count), residual=residual
        )
        _C.sum_messages(there, there[-1], count, compression, block, rest)
        assert torch.equal(there[-1].cpu(), expected), (size, offset)
        if residual is not None and rest is not None:
            assert torch.equal(bits(rest), bits(residual)), (size, offset)


def check_copy(device: torch.device) -> None:
    """Two thousand of all sizes and alignments at once."""
    generator = torch.Generator().manual_seed(0)
    sizes = [*torch.randint(0, 3000, (2000,), generator=generator).tolist(), 100_003]
    content = [torch.randint(0, 256, (n,), generator=generator).to(torch.uint8) for n in sizes]
    source = [placed(one, device, index % 17) for index, one in enumerate(content)]
    there = [placed(torch.zeros_like(one), device, i // 17 % 17) for i, one in enumerate(content)]
    _C.copy_pieces(there, source)
    assert all(torch.equal(one.cpu(), other) for one, other in zip(there, content, strict=True))
