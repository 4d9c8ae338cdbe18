"""The memory of this machine that a process can still allocate, within all its limits."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def available_memory() -> int:
    """The bytes that this process can still allocate: of the machine, within all limits."""
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
