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
from regard.store.orphans.reformer_pytorch import refuse_reformer_pytorch
from regard.store.orphans.sha_rnn import is_sha_rnn, read_sha_rnn
from regard.store.orphans.tables import assemble
from regard.store.unpickle import unpickle


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
    if is_sha_rnn(tensors):
        return read_sha_rnn(folder, tensors)
    refuse_reformer_pytorch(tensors, checkpoint)
    raise InputError(f"{checkpoint} is of no toolkit that regard reads. It reads fairseq, OpenNMT-py, Joey NMT, Marian "
                     "and sha-rnn.")  # fmt: skip
