"""Memory of a process: how much is available, peak use, out-of-memory errors."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch

# Messages of torch's CPU allocators and of C++.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")

# glibc's malloc: parameter numbers, and the smallest and largest size from which it returns freed blocks to the system.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_SMALLEST, _LARGEST = 128 << 10, 32 << 20


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)


def available(device: torch.device) -> int:
    """The bytes that this process can still allocate: of the device, or of the machine within all its limits."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    free_bytes = [_machine(), *_containers()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free_bytes.append(limit - _own("VmSize"))
    return max(0, min(free_bytes))


def peak(work: Callable[[], object], device: torch.device, *, exact: bool = True) -> int:
    """Do some work; -> its peak memory in bytes, beyond what was allocated before.

    On a CPU this is resident memory on Linux; other systems report only the peak of the whole process. If exact, freed
    blocks that the C library retains do not count, as they depend on earlier work; returning them is slower.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before: int = torch.cuda.memory_allocated(device)
        work()
        highest: int = torch.cuda.max_memory_allocated(device)
        return highest - before
    _return_freed()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before, name = _own("VmRSS"), "VmHWM"
    except OSError:
        before, name = _highest(), ""
    with _nothing_retained() if exact else nullcontext():
        work()
    return max(0, (_own(name) if name else _highest()) - before)


def _return_freed() -> None:
    """Make the C library return freed memory; work that reused it would seem to need none."""
    with suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _nothing_retained() -> Iterator[None]:
    """Make the C library return large blocks when they are freed; afterwards it retains them again, which is faster."""
    _retain_blocks_below(_SMALLEST)
    try:
        yield
    finally:
        _retain_blocks_below(_LARGEST)


def _retain_blocks_below(size: int) -> None:
    with suppress(AttributeError, OSError):
        for name, value in ((_MMAP_THRESHOLD, size), (_TRIM_THRESHOLD, 2 * size)):
            ctypes.CDLL(None).mallopt(name, value)


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


def _own(name: str) -> int:
    """A row of /proc/self/status, in bytes."""
    return _table("/proc/self/status").get(name, 0)


def _table(path: str) -> dict[str, int]:
    """The rows "name: number kB" of a file, in bytes; none where there is no such file."""
    try:
        rows = (line.split() for line in Path(path).read_text().splitlines())
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[-1] == "kB"}


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
