"""manifest.json of a model folder: the SHA-256 of every file, so that a damaged or foreign one is not loaded.

A file is replaced in three steps: the manifest lists the new digest besides the old one, the file is renamed into
place, the manifest lists the new digest alone. A reader, or a crash, in between finds a file that the manifest lists.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from regard import messages
from regard.errors import Note
from regard.models.memory import available_memory
from regard.store.files import (
    ignore_write_point,
    json_bytes,
    read_bounded,
    require_file,
    sha256,
    sync_folder,
    write_file,
)

MANIFEST = "manifest.json"
EDITED_BY_PEOPLE = ("generation_config.json", "README.md", "recipe.toml")

_KEY = "regard_files"  # distinguishes our manifest from other files of this name
_ATTEMPTS = 20  # to read the manifest while a run replaces files again and again

Digests = dict[str, list[str]]
"""The digests that a file may have: one, or two while it is replaced."""


def write_model_files(
    folder: Path, contents: Mapping[str, bytes], on_write_point: Callable[[str], None] = ignore_write_point
) -> None:
    """Write files of a model folder atomically, in this order, and their digests to the manifest."""
    known = _read(folder / MANIFEST) or {}
    new = {name: sha256(content) for name, content in contents.items()}
    before = {name: known.get(name) or _digest_on_disk(folder / name) for name in new}
    _write(folder, known | {name: [*before[name], new[name]] for name in new}, on_write_point)
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_file(folder / name, content, on_write_point)
    sync_folder(folder)
    _write(folder, known | {name: [new[name]] for name in new}, on_write_point)


def write_manifest(folder: Path) -> None:
    """Write the manifest of a new folder, which is complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    _write(folder, {str(path.relative_to(folder)): _digest_on_disk(path) for path in files}, ignore_write_point)


def require_unchanged(folder: Path) -> set[str]:
    """Raise an error if a file differs from the manifest; a note is enough for the files that people edit.

    -> the names of the files that were compared.
    """
    path = folder / MANIFEST
    for _ in range(_ATTEMPTS):
        digests = _read(path)
        changed = [] if digests is None else _changed(folder, digests)
        if not changed or digests == _read(path):
            break
    else:
        return set()  # a run replaces files all the time, and each that was read had just been replaced
    refused = [name for name in changed if name not in EDITED_BY_PEOPLE]
    if refused:
        require_file(folder / refused[0])  # a Git LFS pointer has a message of its own
        raise messages.CHANGED_FILE(path=folder / refused[0], manifest=path)
    if changed:
        verb = "differ" if len(changed) > 1 else "differs"
        warnings.warn(f"{' and '.join(changed)} {verb} from what was saved ({folder}).", Note, stacklevel=2)
    return set(digests or ())


def _changed(folder: Path, digests: Digests) -> list[str]:
    """The files that are not as the manifest says; one that is missing or does not fit is the loader's concern."""
    most = available_memory()
    return [name for name, known in digests.items() if not set(_digest_on_disk(folder / name, most)) <= set(known)]


def _digest_on_disk(path: Path, most: float = math.inf) -> list[str]:
    """The digest of a file; [] for one that is missing, cannot be read, or has more than `most` bytes."""
    try:
        if not path.is_file() or path.stat().st_size > most:
            return []
        with open(path, "rb") as file:
            return [hashlib.file_digest(file, "sha256").hexdigest()]
    except OSError:
        return []


def _write(folder: Path, digests: Digests, on_write_point: Callable[[str], None]) -> None:
    write_file(folder / MANIFEST, json_bytes({_KEY: digests}), on_write_point)
    sync_folder(folder)


def _read(path: Path) -> Digests | None:
    """The digests of a manifest of ours; None without one, or for a file of another program."""
    if not path.is_file():
        return None
    written = read_bounded(path)
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        raise messages.CHANGED_FILE(path=path, manifest=path) from None
    digests = found.get(_KEY) if isinstance(found, dict) else None
    if digests is None:
        return None
    if written != json_bytes({_KEY: digests}) or not _is_valid(digests):
        raise messages.CHANGED_FILE(path=path, manifest=path)
    return dict(digests)


def _is_valid(digests: object) -> bool:
    """Whether every name is a plain path inside the folder, with a list of digests."""
    return isinstance(digests, dict) and all(
        isinstance(known, list) and not Path(name).is_absolute() and ".." not in Path(name).parts
        for name, known in digests.items()
    )
