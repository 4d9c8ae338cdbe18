"""Loading checks shared by all kinds of model folders: paths, pickles, finite weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import messages
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import DamagedFile
from regard.models.model import Network

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_TEXT_LENGTH = "max_text_length"  # key of config.json: tokens of a text that are embedded; the rest is cut off
TRAINED_LENGTH = "trained_length"  # key of config.json: the longest sequence, in tokens, of the training
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "model.ckpt", "model.bin")


@dataclass(frozen=True)
class Loaded:
    """The contents of a model folder."""

    network: Network
    tokenizers: tuple[Tokenizer, Tokenizer | None]
    config: dict[str, Any]
    generation_config: dict[str, Any]


def root_of(folder: Path) -> Path:
    """The folder that must contain all files: the folder itself, or the hub's cache that a snapshot links to."""
    root = folder.resolve()
    return root.parent.parent if root.parent.name == "snapshots" else root


def is_inside(folder: Path, name: str, file: str = "") -> bool:
    """Whether `name` is a plain name and its path (or that of a file in it) resolves to a path inside the folder."""
    plain = Path(name).name == name and name.isprintable() and "\\" not in name and len(name.encode()) < 256
    try:
        return plain and (folder / name / file).resolve().is_relative_to(root_of(folder))
    except (OSError, RuntimeError):  # a symbolic link to itself
        return False


def refuse_pickles(folder: Path) -> None:
    """Raise an error if a folder's only weights are a pickle, which could run code."""
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        return
    for name in PICKLES:
        if (folder / name).exists():
            raise messages.PICKLE(path=folder / name, folder=folder)


def require_finite(name: str, tensor: Tensor, folder: Path) -> None:
    """Raise an error if a weight is NaN or infinite."""
    if not tensor.isfinite().all():
        raise DamagedFile(f"{name} holds a value that is not finite ({folder}). Copy or download the weights again.")


def load_parameters(network: Network, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters of the same names."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[name])
