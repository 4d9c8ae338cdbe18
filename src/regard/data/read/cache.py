"""What was once worked out of a text, kept on the disk under a name made of its content, and mapped, not read."""

from __future__ import annotations

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

_FORMAT = 3  # raised when what tables hold changes
_PART = ".part-"  # what the name of an unfinished table begins with
_DAY = 86_400.0


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, and what else is known of them."""

    columns: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]


class Columns:
    """Columns that grow piece by piece: files in a folder, or arrays in memory when there is none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._pieces: dict[str, list[NDArray[Any]]] = {}
        self._shapes: dict[str, tuple[str, list[int]]] = {}

    def append(self, name: str, piece: NDArray[Any]) -> None:
        """Add rows to a column; the first piece says what kind of numbers it holds."""
        kind, shape = self._shapes.setdefault(name, (piece.dtype.str, [0, *piece.shape[1:]]))
        assert kind == piece.dtype.str
        shape[0] += len(piece)
        if self._folder is None:
            self._pieces.setdefault(name, []).append(piece)
            return
        if name not in self._files:
            self._files[name] = open(self._folder / name, "wb")  # noqa: SIM115 (open until all is written)
        np.ascontiguousarray(piece).tofile(self._files[name])

    def finish(self, facts: Mapping[str, Any]) -> Table:
        """All that was added; in a folder, flushed to the disk with a description of it."""
        if self._folder is None:
            return Table({name: np.concatenate(pieces) for name, pieces in self._pieces.items()}, facts)
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        with open(self._folder / "table.json", "wb") as description:
            description.write(json.dumps({"columns": self._shapes, "facts": facts}).encode())
            description.flush()
            os.fsync(description.fileno())
        return open_table(self._folder)

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()


@dataclass(frozen=True)
class Cache:
    """A folder of tables, or, without a folder, none: every table is then made anew, in memory."""

    root: Path | None = None

    def table(self, kind: str, key: Any, make: Callable[[Columns], Mapping[str, Any]]) -> Table:
        """The table of a kind and key, made by `make` if it is not there; -> its columns and the facts it returned."""
        if self.root is None:
            columns = Columns()
            return columns.finish(make(columns))
        folder = self.root / f"{kind}-{digest_of([_FORMAT, key])[:40]}"
        try:
            return open_table(folder)
        except (OSError, ValueError, KeyError, TypeError):
            return self._made(folder, make)

    def _made(self, folder: Path, make: Callable[[Columns], Mapping[str, Any]]) -> Table:
        beside = None
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _sweep(folder.parent)
            beside = Path(tempfile.mkdtemp(prefix=_PART, dir=folder.parent))
            columns = Columns(beside)
            try:
                columns.finish(make(columns))
            finally:
                columns.close()
            return _settled(beside, folder)
        except OSError as error:
            if error.filename is not None and not str(error.filename).startswith(str(self.root)):
                raise
            raise messages.CACHE_FULL(path=self.root, why=error.strerror or error) from None
        finally:
            if beside is not None:
                shutil.rmtree(beside, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what processes that were killed left unfinished, once nobody has touched it for a day."""
    for part in root.glob(f"{_PART}*"):
        with suppress(OSError):  # another process may sweep too
            if max(path.stat().st_mtime for path in (part, *part.iterdir())) < time.time() - _DAY:
                shutil.rmtree(part)


def _settled(beside: Path, folder: Path) -> Table:
    """Give a finished table its name, unless another process was faster; what is damaged makes way."""
    for _ in range(3):
        try:
            beside.rename(folder)
            return open_table(folder)
        except OSError:
            try:
                return open_table(folder)
            except (OSError, ValueError, KeyError, TypeError):
                shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    return open_table(folder)


def default_cache() -> Cache:
    """The cache of this user: $REGARD_CACHE, else regard under $XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("REGARD_CACHE")
    home = os.environ.get("XDG_CACHE_HOME")
    return Cache(Path(named) if named else (Path(home) if home else Path.home() / ".cache") / "regard")


def open_table(folder: Path) -> Table:
    """A table that was written; an error if a file is not as long as it should be."""
    described = json.loads((folder / "table.json").read_bytes())
    columns: dict[str, NDArray[Any]] = {}
    for name, (kind, shape) in described["columns"].items():
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        if (folder / name).stat().st_size != size:
            raise ValueError(f"{name} is damaged")
        mapped = np.memmap(folder / name, dtype=kind, mode="r", shape=tuple(shape)) if size else None
        columns[name] = np.zeros(shape, dtype=kind) if mapped is None else mapped
    return Table(columns, described["facts"])


def forget(column: NDArray[Any]) -> None:
    """Let go of the memory of a mapped column that has been read; it is read again when it is asked for again."""
    mapped = getattr(column, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def digest_of(value: Any) -> str:
    """The hexadecimal SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
