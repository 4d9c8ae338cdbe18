"""Device choice (CUDA, MPS, CPU), mixed precision (autocast), and the memory of a device."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn

from regard.errors import InputError, Note, suggest
from regard.layers.linear import Linear
from regard.layers.packed import PRECISIONS, InferencePrecision
from regard.models.memory import available_memory
from regard.models.memory import own_memory as own_memory

Precision = Literal["auto", "float32", "bfloat16"]


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the fastest of this machine. Every command calls it before it runs models."""
    _bound_onednn_cache()
    if name == "auto":
        return torch.device(devices()[0])
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f'no device "{name}" on this machine (--device). Use {" or ".join(devices())}.') from None
    return device


def devices() -> list[str]:
    """The devices of this machine, the fastest first."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, found in available.items() if found]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Mixed precision (autocast) in bfloat16 where requested; "auto": on GPUs that support it natively."""
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bfloat16" or (precision == "auto" and fast):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def set_precision(network: nn.Module, precision: InferencePrecision) -> None:
    """Let the linear maps of a network compute in this precision, where no gradients are needed."""
    if precision not in PRECISIONS:
        raise InputError(f'no precision is called "{precision}" (--precision). {suggest(precision, PRECISIONS)}')
    device = next(network.parameters()).device.type
    if precision == "int8" and device != "cpu":
        raise InputError(f"int8 is computed on a CPU here, not on {device} (--precision). Use bfloat16.")
    if device == "cpu" and precision != "float32" and not is_native(precision):
        slower = {"bfloat16": "up to 5 times slower than float32", "int8": "possibly slower than float32"}[precision]
        warnings.warn(f"this processor has no instructions for {precision}, which is {slower} (--precision).", Note,
                      stacklevel=3)  # fmt: skip
    if not gains_from(network, precision):
        raise InputError(f"this model has no linear map that is large enough for {precision} (--precision). Leave out "
                         "--precision.")  # fmt: skip
    for layer in _linear_maps(network):
        layer.precision = precision


def gains_from(network: nn.Module, precision: InferencePrecision) -> bool:
    """Whether some matrix of a network is large enough for this precision."""
    return precision == "float32" or any(layer.gains_from(precision) for layer in _linear_maps(network))


def _linear_maps(network: nn.Module) -> list[Linear]:
    return [module for module in network.modules() if isinstance(module, Linear)]


def is_native(precision: InferencePrecision) -> bool:
    """Whether the processor multiplies numbers of this precision."""
    if precision == "float32":
        return True
    facts = torch.cpu.get_capabilities()
    names = {
        "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm"),
    }[precision]  # fmt: skip
    return any(facts.get(name) for name in names)


def available(device: torch.device) -> int:
    """The bytes that this process can still allocate: of the device, or of the machine within all its limits."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return available_memory()


def _bound_onednn_cache() -> None:
    """Bound oneDNN's primitive cache: an LSTM on a CPU fills it with about 1 MB per input shape, for 1,024 shapes.

    oneDNN reads the variable once, before its first primitive. A training step of a Transformer has about 40 shapes,
    each of which takes 2 ms to compile anew; a value of the user's own stays.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
