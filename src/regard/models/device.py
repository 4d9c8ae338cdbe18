"""Device choice (CUDA, MPS, CPU), mixed precision (autocast), and the memory that is available."""

from __future__ import annotations

import os
import resource
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import torch

from regard.errors import InputError

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
    free_bytes = [_machine(), *_containers()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free_bytes.append(limit - own_memory("VmSize"))
    return max(0, min(free_bytes))


def _machine() -> int:
    """Available memory of the machine; all of it where the system does not report it."""
    found = _table("/proc/meminfo").get("MemAvailable")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if found is None else found


def _containers() -> list[int]:
    """Free memory within the limits of a container (cgroup); its file cache counts as free."""
    found = []
    for folder, most, now, droppable in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, used = (Path(folder, name).read_text().strip() for name in (most, now))
            rows = (line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            if limit != "max":
                found.append(int(limit) - int(used) + int(dict(rows).get(droppable, 0)))
        except OSError:
            continue
    return found


def own_memory(name: str) -> int:
    """A row of /proc/self/status, in bytes."""
    return _table("/proc/self/status").get(name, 0)


def _table(path: str) -> dict[str, int]:
    """The rows "name: number kB" of a file, in bytes; none where there is no such file."""
    try:
        rows = (line.split() for line in Path(path).read_text().splitlines())
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[-1] == "kB"}


def _bound_onednn_cache() -> None:
    """Bound oneDNN's primitive cache: an LSTM on a CPU fills it with about 1 MB per input shape, for 1,024 shapes.

    oneDNN reads the variable once, before its first primitive. 16 shapes are as fast; a value of the user's own stays.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
