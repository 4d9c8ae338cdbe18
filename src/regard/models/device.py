"""Where a model runs, and in what precision it learns."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from regard.errors import InputError

Precision = Literal["auto", "float32", "bfloat16"]


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the fastest this machine has."""
    if name == "auto":
        return torch.device(devices()[0])
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f'no device "{name}" on this machine (--device). Use {" or ".join(devices())}.') from None
    return device


def devices() -> list[str]:
    """The devices this machine has, the fastest first."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, there in found.items() if there]


def mixed(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Mixed precision where it was asked for, or, when left to us, on GPUs that are built for it."""
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bfloat16" or (precision == "auto" and fast):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
