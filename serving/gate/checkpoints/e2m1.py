"""The 4-bit float E2M1 of NVFP4 and MXFP4: its sixteen values, rounding to them, and two to the byte.

Written out here and not taken from the engine or the quantizer, whose mistakes it is to show.
"""

from __future__ import annotations

import torch

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By the code's low three bits; the fourth is the sign."""
MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
LARGEST = 6.0


def values(codes: torch.Tensor) -> torch.Tensor:
    """float32 of the same shape. Code 8 is minus zero."""
    positive = torch.tensor(VALUES)
    return torch.cat((positive, -positive))[codes.long()]


def codes(numbers: torch.Tensor) -> torch.Tensor:
    """The nearest codes as uint8 of the same shape; a number in the middle goes to the even code, one beyond 6 to 6."""
    size = numbers.abs().contiguous()
    middles = torch.tensor(MIDDLES)
    low, high = torch.bucketize(size, middles), torch.bucketize(size, middles, right=True)
    nearest = torch.where((low != high) & (low % 2 == 1), high, low)
    return (nearest | (torch.signbit(numbers).long() << 3)).to(torch.uint8)


def pack(unpacked: torch.Tensor) -> torch.Tensor:
    """[…, columns] codes to […, columns / 2] bytes; the even column is the low half."""
    return (unpacked[..., 0::2] | (unpacked[..., 1::2] << 4)).contiguous()


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """[…, bytes] to […, 2 × bytes] codes."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
