"""Disk cache of derived data: memory-mapped tables, named by a digest of the content that they were computed from."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.errors import RegardError

_FORMAT = 4  # raised when the content of tables changes
_UNFINISHED = ".part-"  # prefix of the folder of an unfinished table
_DAY = 86_400.0


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, and metadata about them."""

    columns: Mapping[str, NDArray[Any]]
    metadata: Mapping[str, Any]


class Columns:
    """Columns that grow block by block: files in a folder, or arrays in memory when there is no folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._blocks: dict[str, list[NDArray[Any]]] = {}
        self._shapes: dict[str, tuple[str, list[int]]] = {}

    def append(self, name: str, block: NDArray[Any]) -> None:
        """Add rows to a column; the first block sets its dtype."""
        kind, shape = self._shapes.setdefault(name, (block.dtype.str, [0, *block.shape[1:]]))
        assert kind == block.dtype.str
        shape[0] += len(block)
        if self._folder is None:
            self._blocks.setdefault(name, []).append(block)
            return
        if name not in self._files:
            self._files[name] = open(self._folder / name, "wb")  # noqa: SIM115 (open until all is written)
        np.ascontiguousarray(block).tofile(self._files[name])

    def finish(self, metadata: Mapping[str, Any]) -> Table:
        """The finished table; in a folder, it is flushed to disk together with its metadata."""
        if self._folder is None:
            return Table({name: np.concatenate(blocks) for name, blocks in self._blocks.items()}, metadata)
        description = json.dumps({"columns": self._shapes, "metadata": metadata}).encode()
        self._files["table.json"] = open(self._folder / "table.json", "wb")  # noqa: SIM115 (closed below, as the last)
        self._files["table.json"].write(description)
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return open_table(self._folder)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


@dataclass(frozen=True)
class Cache:
    """A folder of tables; without a folder every table is computed anew, in memory."""

    root: Path | None = None

    def table(self, kind: str, key: Any, make: Callable[[Columns], Mapping[str, Any]]) -> Table:
        """The table of this kind and key; if it is missing, `make` fills its columns and returns its metadata."""
        if self.root is None:
            columns = Columns()
            return columns.finish(make(columns))
        folder = self.root / f"{kind}-{digest_of([_FORMAT, key])[:40]}"
        try:
            return open_table(folder)
        except (OSError, ValueError, KeyError, TypeError):
            return self._build(folder, make)

    def _build(self, folder: Path, make: Callable[[Columns], Mapping[str, Any]]) -> Table:
        unfinished = None
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(folder.parent)
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
            columns = Columns(unfinished)
            try:
                columns.finish(make(columns))
            finally:
                columns.close()
            return _publish(unfinished, folder)
        except OSError as error:
            named = error.filename
            # Of a home that cannot be written, a folder above the cache is named.
            above = named is not None and self.root is not None and Path(named) in self.root.parents
            if named is not None and not above and not str(named).startswith(str(self.root)):
                raise
            raise cache_error(self.root, error) from None
        finally:
            if unfinished is not None:
                shutil.rmtree(unfinished, ignore_errors=True)


def cache_error(root: Path | None, error: OSError) -> RegardError:
    """The error for a cache that cannot be written; only a full disk needs more space."""
    remedy = "Free some space, or name" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Name"
    return messages.CACHE_FULL(path=root, why=error.strerror or error, remedy=remedy)


def _remove_stale(root: Path) -> None:
    """Remove unfinished tables of killed processes, once nothing has been written to them for a day."""
    for unfinished in root.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):  # another process may remove it at the same time
            if max(path.stat().st_mtime for path in (unfinished, *unfinished.iterdir())) < time.time() - _DAY:
                shutil.rmtree(unfinished)


def _publish(unfinished: Path, folder: Path) -> Table:
    """Rename a finished table to its final name, unless another process was faster; replace a damaged table."""
    for _ in range(3):
        with suppress(OSError):
            unfinished.rename(folder)
        try:
            return open_table(folder)
        except (OSError, ValueError, KeyError, TypeError):
            shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return open_table(folder)


def default_cache() -> Cache:
    """The cache of this user: $REGARD_CACHE, else regard under $XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("REGARD_CACHE")
    home = os.environ.get("XDG_CACHE_HOME")
    return Cache(Path(named) if named else (Path(home) if home else Path.home() / ".cache") / "regard")


def open_table(folder: Path) -> Table:
    """Memory-map a table; an error if the size of a file is not that in table.json."""
    described = json.loads((folder / "table.json").read_bytes())
    columns: dict[str, NDArray[Any]] = {}
    for name, (kind, shape) in described["columns"].items():
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        if (folder / name).stat().st_size != size:
            raise ValueError(f"{name} is damaged")
        mapped = np.memmap(folder / name, kind, mode="r", shape=tuple(shape)) if size else np.zeros(shape, kind)
        columns[name] = mapped
    return Table(columns, described["metadata"])


def release_pages(*columns: NDArray[Any]) -> None:
    """Release the memory of mapped columns that have been read; the next access reads them from disk again."""
    for column in columns:
        mapped = getattr(column, "_mmap", None)
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def digest_of(value: Any) -> str:
    """The hexadecimal SHA-256 of a value that JSON can write."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
