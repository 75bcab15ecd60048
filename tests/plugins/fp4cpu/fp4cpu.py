"""Tests only: a vLLM plugin with which the CPU build serves NVFP4 and MXFP4 checkpoints, by emulation.

It registers kernels through vLLM's own `register_linear_kernel`. The engine decodes the weights with its own functions where it
has them (NVFP4), else with the ones here (MXFP4, whose emulation in vLLM wants a package of AMD's). Nothing here is shared with
the gate's dequantizer, so that each checks the other.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as functional

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
GROUP = 32
USERS_OF_INIT = (
    "compressed_tensors.schemes.compressed_tensors_w4a4_nvfp4",
    "modelopt",
)
"""Modules of vLLM that hold `init_nvfp4_linear_kernel` by name."""


def register() -> None:
    """Called by vLLM in each of its processes; does nothing on other platforms and the second time."""
    from vllm.platforms import PlatformEnum, current_platform

    if not current_platform.is_cpu():
        return
    import vllm.model_executor.kernels.linear as linear

    if getattr(linear, "fp4cpu_is_registered", False):
        return
    linear.fp4cpu_is_registered = True
    kernels = _kernels(linear)
    linear.register_linear_kernel(kernels["nvfp4"], PlatformEnum.CPU, "nvfp4")
    linear.register_linear_kernel(kernels["mxfp4"], PlatformEnum.CPU, "mxfp4")
    original = linear.init_nvfp4_linear_kernel

    def init_nvfp4_linear_kernel(use_a16: bool = False) -> Any:
        # vLLM allows weight-only kernels from a list of its own alone
        return kernels["nvfp4a16"](linear.NvFp4LinearLayerConfig()) if use_a16 else original()

    for name in USERS_OF_INIT:
        module = importlib.import_module(f"vllm.model_executor.layers.quantization.{name}")
        module.init_nvfp4_linear_kernel = init_nvfp4_linear_kernel  # type: ignore[attr-defined]


def _kernels(linear: Any) -> dict[str, type]:
    from vllm.model_executor.layers.quantization.utils import nvfp4_emulation_utils as emulation

    def expand_nvfp4(layer: torch.nn.Module) -> None:
        packed, scale, scalar = layer.weight.data, layer.weight_scale.data, layer.weight_global_scale.data
        weight = emulation.dequantize_to_dtype(packed, scale, scalar, torch.bfloat16, 16, swizzle=False)
        layer.weight = torch.nn.Parameter(weight.contiguous(), requires_grad=False)

    class Nvfp4Weights(linear.NvFp4LinearKernel):  # type: ignore[misc, name-defined]
        """W4A16."""

        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
            return True, None

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            return True, None

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            expand_nvfp4(layer)

        def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return functional.linear(x, layer.weight.to(x.dtype), bias)

    class Nvfp4(Nvfp4Weights):
        """W4A4; vLLM's own emulation gives the same numbers and expands every weight at every step."""

        def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1])
            rounded = emulation.ref_nvfp4_quant_dequant(rows, layer.input_global_scale_inv, 16)
            return functional.linear(rounded.view(x.shape), layer.weight.to(x.dtype), bias)

    class Mxfp4(linear.MxFp4LinearKernel):  # type: ignore[misc, name-defined]
        """W4A4 or W4A16, as the checkpoint says: vLLM leaves the choice to the kernel."""

        is_supported = classmethod(lambda cls, compute_capability=None: (True, None))
        can_implement = classmethod(lambda cls, config: (True, None))

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.rounds_activations = _checkpoint_rounds_activations()

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            packed = layer.weight.data
            codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
            weight = _mxfp4_values(codes.view(packed.shape[0], -1, GROUP), layer.weight_scale.data.float() - 127)
            layer.weight = torch.nn.Parameter(weight.to(torch.bfloat16), requires_grad=False)

        def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            if self.rounds_activations:
                x = _mxfp4_values(*_mxfp4_codes(x)).to(x.dtype).view(x.shape)
            return functional.linear(x, layer.weight.to(x.dtype), bias)

    return {"nvfp4": Nvfp4, "nvfp4a16": Nvfp4Weights, "mxfp4": Mxfp4}


def _checkpoint_rounds_activations() -> bool:
    from vllm.config import get_current_vllm_config

    config = getattr(get_current_vllm_config().model_config.hf_config, "quantization_config", None) or {}
    return any(group.get("input_activations") for group in config.get("config_groups", {}).values())


def _mxfp4_codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [groups, 32] and exponents [groups]; the exponent is rounded as llm-compressor and AMD's quark round it ("even")."""
    groups = x.float().reshape(-1, GROUP)
    largest = groups.abs().amax(-1).clamp(min=2.0**-120)
    largest = ((largest.view(torch.int32) + 0x200000) & 0x7F800000).view(torch.float32)
    exponents = torch.log2(largest).floor() - 2
    scaled = (groups / torch.exp2(exponents).unsqueeze(-1)).clamp(-6, 6)
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    low, high = torch.bucketize(scaled.abs(), middles), torch.bucketize(scaled.abs(), middles, right=True)
    nearest = torch.where((low != high) & (low % 2 == 1), high, low)
    return nearest | (torch.signbit(scaled).long() << 3), exponents


def _mxfp4_values(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    return (E2M1[codes] * torch.exp2(exponents).unsqueeze(-1)).flatten(-2)
