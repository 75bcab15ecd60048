"""The layouts of a packed matrix: which tensors make it up, and its values as float32.

A matrix is known by the names and types of its tensors. Shapes: rows are outputs, columns inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from serving.gate.checkpoints import e2m1
from serving.gate.checkpoints.scheme import Format

Tensors = Mapping[str, torch.Tensor]
"""The tensors of one module by the last part of their names, such as `weight_packed`."""

NVFP4_GROUP = 16
MXFP4_GROUP = 32
E8M0_BIAS = 127
INT4_PER_WORD = 8


class Unreadable(Exception):
    """A module's tensors do not fit together; the message says how, as a phrase."""


@dataclass(frozen=True)
class Layout:
    """`types` are the tensors by which it is known; `beside` those that only an engine with quantized activations needs."""

    format: Format
    types: Mapping[str, tuple[torch.dtype, ...]]
    expand: Callable[[Tensors], torch.Tensor]
    beside: frozenset[str] = frozenset()

    def matches(self, tensors: Tensors) -> bool:
        """Whether the module has exactly these tensors, in these types."""
        return tensors.keys() - self.beside == self.types.keys() and all(
            tensors[name].dtype in types for name, types in self.types.items()
        )


def nvfp4_values(packed: torch.Tensor, scale: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """[rows, columns] from [rows, columns / 2] bytes, [rows, columns / 16] E4M3 scales and the scalar that multiplies them."""
    return _grouped(e2m1.values(e2m1.unpack(packed)), scale.float() * global_scale.float().reshape(-1)[0], NVFP4_GROUP)


def mxfp4_values(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """[rows, columns] from [rows, columns / 2] bytes and [rows, columns / 32] exponents of two, biased by 127 (E8M0)."""
    return _grouped(e2m1.values(e2m1.unpack(packed)), torch.exp2(scale.float() - E8M0_BIAS), MXFP4_GROUP)


def int4_codes(packed: torch.Tensor, columns: int) -> torch.Tensor:
    """[rows, columns] from -8 to 7, of 32-bit words that hold eight unsigned codes each, the first lowest."""
    shifts = torch.arange(INT4_PER_WORD, dtype=torch.int32) * 4
    return (((packed.unsqueeze(-1) >> shifts) & 15) - 8).flatten(-2)[:, :columns]


def _nvfp4(tensors: Tensors) -> torch.Tensor:
    # the file holds the divisor; an engine multiplies by its reciprocal, and so does the reference
    return nvfp4_values(tensors["weight_packed"], tensors["weight_scale"], 1.0 / tensors["weight_global_scale"].float())


def _nvfp4_modelopt(tensors: Tensors) -> torch.Tensor:
    return nvfp4_values(tensors["weight"], tensors["weight_scale"], tensors["weight_scale_2"])


def _mxfp4(tensors: Tensors) -> torch.Tensor:
    return mxfp4_values(tensors["weight_packed"], tensors["weight_scale"])


def _int4(tensors: Tensors) -> torch.Tensor:
    rows, columns = tensors["weight_shape"].tolist()
    packed, scale = tensors["weight_packed"], tensors["weight_scale"].float()
    if packed.shape != (rows, -(-columns // INT4_PER_WORD)):
        raise Unreadable(f"weight_packed is {list(packed.shape)} and weight_shape says {rows} × {columns}")
    return _grouped(int4_codes(packed, columns).float(), scale, columns // scale.shape[-1])


def _scaled(tensors: Tensors) -> torch.Tensor:
    weight, scale = tensors["weight"].float(), tensors["weight_scale"].float()
    if scale.numel() not in (1, weight.shape[0]):
        raise Unreadable(
            f"weight_scale is {list(scale.shape)}; it must have one value, or one for each of {weight.shape[0]} rows"
        )
    return weight * scale.reshape(-1, 1)


def _grouped(matrix: torch.Tensor, scale: torch.Tensor, size: int) -> torch.Tensor:
    rows, columns = matrix.shape
    if size == 0 or scale.shape != (rows, columns // size) or columns % size:
        raise Unreadable(f"weight_scale is {list(scale.shape)}, which does not fit {rows} × {columns} in groups of {size}")
    return (matrix.reshape(rows, -1, size) * scale.unsqueeze(-1)).reshape(rows, columns)


REAL = (torch.float32, torch.bfloat16, torch.float16)
COMPRESSED_LAYOUTS = (
    Layout(
        "nvfp4",
        {"weight_packed": (torch.uint8,), "weight_scale": (torch.float8_e4m3fn,), "weight_global_scale": (torch.float32,)},
        _nvfp4,
        frozenset({"input_global_scale"}),
    ),
    Layout("mxfp4", {"weight_packed": (torch.uint8,), "weight_scale": (torch.uint8,)}, _mxfp4),
    Layout("int4", {"weight_packed": (torch.int32,), "weight_scale": REAL, "weight_shape": (torch.int64, torch.int32)}, _int4),
    Layout("int8", {"weight": (torch.int8,), "weight_scale": REAL}, _scaled, frozenset({"input_scale"})),
    Layout("fp8", {"weight": (torch.float8_e4m3fn,), "weight_scale": REAL}, _scaled, frozenset({"input_scale"})),
)
MODELOPT_LAYOUTS = (
    Layout(
        "nvfp4",
        {"weight": (torch.uint8,), "weight_scale": (torch.float8_e4m3fn,), "weight_scale_2": (torch.float32,)},
        _nvfp4_modelopt,
        frozenset({"input_scale"}),
    ),
)
LAYOUTS = {"compressed-tensors": COMPRESSED_LAYOUTS, "modelopt": MODELOPT_LAYOUTS}
