"""Which toolkit wrote a model, and the reading of it; a pickle is opened only in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import messages
from regard.errors import InputError
from regard.store.files import read_tensors
from regard.store.loading import WEIGHTS, Loaded
from regard.store.orphans.fairseq import is_fairseq, read_fairseq
from regard.store.orphans.joey import is_joey, read_joey
from regard.store.orphans.marian import read_marian
from regard.store.orphans.opennmt import is_opennmt, read_opennmt
from regard.store.orphans.tables import assemble
from regard.store.unpickle import unpickle

_PICKLES = (".pt", ".ckpt", ".pth")
_BEST = ("checkpoint_best.pt", "model.pt", "best.ckpt", "checkpoint_last.pt")


def find_orphan(source: Path) -> Path | None:
    """The checkpoint of another toolkit that a path names: the file itself, or the best one of a folder."""
    if source.is_file():
        return source if source.suffix in (*_PICKLES, ".npz") else None
    if not source.is_dir() or any((source / name).exists() for name in ("config.json", WEIGHTS, "pytorch_model.bin")):
        return None
    found = sorted(path for path in source.iterdir() if path.suffix in (*_PICKLES, ".npz") and path.is_file())
    for name in _BEST:
        if source / name in found:
            return source / name
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise InputError(f"{source} holds several checkpoints: {names}. Name one of these files.")
    return found[0] if found else None


def read_orphan(checkpoint: Path, *, pickles: bool) -> Loaded:
    """Read a checkpoint of another toolkit, with the vocabularies beside it."""
    if checkpoint.suffix == ".npz":
        return assemble(*read_marian(checkpoint), checkpoint)
    if not pickles:
        raise messages.PICKLE(path=checkpoint, folder=checkpoint)
    with tempfile.TemporaryDirectory(prefix="regard-") as temporary:
        safe = Path(temporary) / WEIGHTS
        settings = unpickle([checkpoint], safe)
        tensors = read_tensors(safe)
    found, named = _read(checkpoint, settings, tensors)
    return assemble(found, named, checkpoint)


def _read(checkpoint: Path, settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    folder = checkpoint.parent
    if is_fairseq(settings):
        return read_fairseq(folder, settings, tensors)
    if is_joey(settings, tensors):
        return read_joey(folder, tensors)
    if is_opennmt(settings):
        return read_opennmt(folder, settings, tensors)
    raise InputError(
        f"{checkpoint} is of no toolkit that regard reads. It reads fairseq, OpenNMT-py, Joey NMT and Marian."
    )
