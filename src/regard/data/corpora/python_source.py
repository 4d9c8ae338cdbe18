"""The embedded corpus "python": the source code of the Python standard library on this machine.

Python ships with about ten megabytes of it, so a language model trains without a download. The text depends on the
version of Python; the split of a file does not. Licence: the PSF licence of Python.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from regard.data.corpora import Split, require_split, split_of
from regard.errors import InputError

_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


def python_documents(split: Split) -> list[tuple[str, str]]:
    """The (name, text) of every standard library file of a split, sorted by name: ("json/decoder.py", "...")."""
    require_split(split)
    folder = Path(sysconfig.get_path("stdlib"))
    names = sorted(_source_names(folder))
    if not names:
        raise InputError(f"no Python source files in {folder}. Use a Python whose standard library is not zipped.")
    texts = [(name, _text(folder / name)) for name in names if split_of(name) == split]
    return [(name, text) for name, text in texts if text]


def _source_names(folder: Path) -> Iterator[str]:
    """The relative names of the source files below a folder, without tests and installed packages."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from ((Path(parent) / name).relative_to(folder).as_posix() for name in files if name.endswith(".py"))


def _text(path: Path) -> str:
    """The text of a file, unchanged; empty if it is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return ""
