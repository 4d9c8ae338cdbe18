"""Device choice (CUDA, MPS, CPU), mixed precision (autocast), and the memory of a device."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from regard.errors import InputError
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
