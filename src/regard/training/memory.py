"""How much memory there is, how much some work takes, and whether it ran out."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch

# What torch's allocators for processors say, and C++ itself.
_SAID = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


# Of glibc: what settings are called, and the least and greatest size from which a freed block is the system's again.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


_LARGE, _LARGEST = 128 << 10, 32 << 20


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory has run out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)


def available(device: torch.device) -> int:
    """The bytes this process can still take: of the device, or of the machine within all limits that are set."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    rooms = [_machine(), *_containers()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        rooms.append(limit - _own("VmSize"))
    return max(0, min(rooms))


def peak(work: Callable[[], object], device: torch.device, *, steady: bool = True) -> int:
    """Do some work; -> the most bytes held during it, beyond what was held before.

    For a processor that is what Linux counts as resident; other systems tell only the highest of the process' life.
    When steady, what the C library keeps of freed blocks is not counted, since that depends on all that went before;
    giving every block back makes the work slower, though.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before: int = torch.cuda.memory_allocated(device)
        work()
        highest: int = torch.cuda.max_memory_allocated(device)
        return highest - before
    _give_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before, name = _own("VmRSS"), "VmHWM"
    except OSError:
        before, name = _highest(), ""
    with _nothing_kept() if steady else nullcontext():
        work()
    return max(0, (_own(name) if name else _highest()) - before)


def _give_back() -> None:
    """Let the C library return what it keeps of freed memory, else work that uses it again seems to need none."""
    with suppress(AttributeError, OSError):  # where it is another library
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """Have the C library return every large block when it is freed; afterwards it keeps them again, which is faster."""
    _keep_blocks_below(_LARGE)
    try:
        yield
    finally:
        _keep_blocks_below(_LARGEST)


def _keep_blocks_below(size: int) -> None:
    with suppress(AttributeError, OSError):
        for name, value in ((_MMAP_THRESHOLD, size), (_TRIM_THRESHOLD, 2 * size)):
            ctypes.CDLL(None).mallopt(name, value)


def _machine() -> int:
    """What the machine has left; where it does not tell, all it has."""
    found = _table("/proc/meminfo").get("MemAvailable")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if found is None else found


def _containers() -> list[int]:
    """What is left of the limits of a container; files that it can drop from its cache count as free."""
    rooms = []
    for folder, most, now, droppable in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, used = (Path(folder, name).read_text().strip() for name in (most, now))
            rows = (line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            if limit != "max":
                rooms.append(int(limit) - int(used) + int(dict(rows).get(droppable, 0)))
        except OSError:
            continue
    return rooms


def _own(name: str) -> int:
    """What Linux says of this process, in bytes."""
    return _table("/proc/self/status").get(name, 0)


def _table(path: str) -> dict[str, int]:
    """The lines "name: number kB" of a file, in bytes; nothing where there is no such file."""
    try:
        rows = (line.split() for line in Path(path).read_text().splitlines())
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[-1] == "kB"}


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
