"""COMET (Rei 2020), a learnt metric, if its package is installed and a model is on disk; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.errors import DamagedFile, InputError

_BATCH = 16


def comet_score(model: Path, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The mean score of all lines by a COMET model: a checkpoint file, or a folder with checkpoints/model.ckpt."""
    try:
        comet: Any = import_module("comet")
    except ImportError:
        raise InputError("COMET needs the package unbabel-comet (--comet). Install it, or leave it out.") from None
    checkpoint = model / "checkpoints" / "model.ckpt" if model.is_dir() else model
    if not checkpoint.is_file():
        raise InputError(f"no COMET model is at {checkpoint} (--comet). Name a checkpoint file, or its folder.")
    rows = [{"src": one, "mt": two, "ref": three} for one, two, three in zip(sources, hypotheses, references)]
    try:
        loaded = comet.load_from_checkpoint(str(checkpoint))
        found = loaded.predict(rows, batch_size=_BATCH, gpus=0, progress_bar=False)
    except Exception as error:  # the package raises many classes for a file that is none of its models
        raise DamagedFile(f"{checkpoint} is no COMET model: {str(error)[:100]} (--comet). Copy it again.") from error
    return float(found.system_score)
