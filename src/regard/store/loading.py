"""What all kinds of model folders share: checks of paths, pickles and weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import messages
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import DamagedFile, InputError
from regard.layers.lora import changing_parameters
from regard.models.device import available
from regard.models.model import Model, Network

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_TEXT_LENGTH = "max_text_length"  # key of config.json: tokens of a text that are embedded; the rest is cut off
TRAINED_LENGTH = "trained_length"  # key of config.json: the longest sequence, in tokens, of the training
_SPARE_LAYERS = 100  # layers may have no parameters
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "model.ckpt", "model.bin")

_CHECKPOINTS, _NUMPY = (".pt", ".ckpt", ".pth"), ".npz"  # of other toolkits
_BEST = ("checkpoint_best.pt", "model.pt", "best.ckpt", "checkpoint_last.pt")

Vocabularies = tuple[int, int | None]
"""Vocabulary sizes of a network: its own, and the source's where that differs."""


@dataclass(frozen=True)
class Loaded:
    """The contents of a model folder."""

    network: Network
    tokenizers: tuple[Tokenizer, Tokenizer | None]
    config: dict[str, Any]
    generation_config: dict[str, Any]


def is_inside(folder: Path, name: str, file: str = "") -> bool:
    """Whether `name` is a plain name and its path (or that of a file in it) resolves to a path inside the folder."""
    plain = Path(name).name == name and name.isprintable() and "\\" not in name and len(name.encode()) < 256
    try:
        root = folder.resolve()
        # The files of a snapshot of the hub are links into its cache.
        root = root.parent.parent if root.parent.name == "snapshots" else root
        return plain and (folder / name / file).resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a symbolic link to itself
        return False


def refuse_pickles(folder: Path) -> None:
    """Raise an error if a folder's only weights are a pickle, which could run code."""
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        return
    for name in _PICKLES:
        if (folder / name).exists():
            raise messages.PICKLE(path=folder / name, folder=folder)


def find_orphan(source: Path) -> Path | None:
    """The checkpoint of another toolkit that a path names: the file itself, or the best one of a folder."""
    if source.is_file():
        return source if source.suffix in (*_CHECKPOINTS, _NUMPY) else None
    if not source.is_dir() or any((source / name).exists() for name in ("config.json", WEIGHTS, "pytorch_model.bin")):
        return None
    found = sorted(path for path in source.iterdir() if path.suffix in (*_CHECKPOINTS, _NUMPY) and path.is_file())
    for name in _BEST:
        if source / name in found:
            return source / name
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise InputError(f"{source} holds several checkpoints: {names}. Name one of these files.")
    return found[0] if found else None


def refuse_orphan(source: Path) -> None:
    """Raise an error that names the command to convert it if a path is, or holds, a checkpoint of another toolkit."""
    checkpoint = find_orphan(source)
    if checkpoint is not None:
        allow = "" if checkpoint.suffix == _NUMPY else " --allow-pickle"
        raise InputError(f"{checkpoint} is a file, not a model folder. If another toolkit wrote it and you trust its "
                         f"maker: regard convert {checkpoint} NEW --to regard{allow}.")  # fmt: skip


def require_finite(name: str, tensor: Tensor, folder: Path) -> None:
    """Raise an error if a weight is NaN or infinite."""
    if not tensor.isfinite().all():
        raise DamagedFile(f"{name} holds a value that is not finite ({folder}). Copy or download the weights again.")


def require_depth(depth: int, tensors: int, folder: Path) -> None:
    """Raise an error if config.json describes many more layers than the weights can hold: building them takes long."""
    if depth > tensors + _SPARE_LAYERS:
        what = f"config.json says {depth:,} layers, the weights hold {tensors:,} tensors"
        raise messages.CONFIG_AND_WEIGHTS(what=what, folder=folder)


def require_memory(
    shapes: Iterable[tuple[int, ...]], files: Iterable[Path], device: torch.device, folder: Path
) -> None:
    """Raise an error if the weights, as read from their files and in the network, do not fit in memory."""
    parameters = sum(map(math.prod, shapes))
    network, read = 4 * parameters, sum(path.stat().st_size for path in files)
    needs = {torch.device("cpu"): read + network} | ({} if device.type == "cpu" else {device: network})
    for place, needed in needs.items():
        free = available(place)
        if needed > free:
            raise messages.DOES_NOT_FIT(
                folder=folder, parameters=parameters, needed=needed / 1e9, free=free / 1e9, place=place.type
            )


def parameter_shapes(model: Model, vocabularies: Vocabularies, where: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's parameters, without allocating them."""
    with torch.device("meta"):
        network = build_network(model, vocabularies, where)
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def build_network(model: Model, vocabularies: Vocabularies, where: str) -> Network:
    """The network that config.json describes."""
    try:
        return model.build(*vocabularies)
    except (InputError, RuntimeError, ValueError, ArithmeticError, TypeError) as error:
        raise DamagedFile(f"{where} cannot be used: {str(error).splitlines()[0]}") from error


def load_parameters(network: Network, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters of the same names; with adapters, into those that are trained."""
    with torch.no_grad():
        for name, parameter in changing_parameters(network).items():
            parameter.copy_(tensors[name])
