"""What a model folder holds, whoever wrote it."""

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


LONGEST_TEXT = "longest_text"  # in config.json: how many tokens of a text become its vector
LEARNT_LENGTH = "learnt_length"  # in config.json: how many tokens it has learnt to read at once
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "model.ckpt", "model.bin")


@dataclass(frozen=True)
class Loaded:
    """What a folder holds."""

    network: Network
    tokenizers: tuple[Tokenizer, Tokenizer | None]
    config: dict[str, Any]
    generation: dict[str, Any]


def root_of(folder: Path) -> Path:
    """Where a folder's files may lie: inside it, or, where it was downloaded, in the store its links point to."""
    root = folder.resolve()
    return root.parent.parent if root.parent.name == "snapshots" else root


def is_inside(folder: Path, name: str, file: str = "") -> bool:
    """Whether this is the name of something in the folder, and it (or a file in it) leads nowhere else."""
    plain = Path(name).name == name and name.isprintable() and "\\" not in name and len(name.encode()) < 256
    try:
        return plain and (folder / name / file).resolve().is_relative_to(root_of(folder))
    except (OSError, RuntimeError):  # a link that leads to itself
        return False


def refuse_pickles(folder: Path) -> None:
    """A pickle could run code, so it is refused by name when there is nothing better."""
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        return
    for name in PICKLES:
        if (folder / name).exists():
            raise messages.PICKLE(path=folder / name, folder=folder)


def require_finite(name: str, tensor: Tensor, folder: Path) -> None:
    """Refuse weights that would make every answer nothing."""
    if not tensor.isfinite().all():
        raise DamagedFile(f"{name} holds a value that is not finite ({folder}). Copy or download the weights again.")


def fill(network: Network, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters of their names."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[name])
