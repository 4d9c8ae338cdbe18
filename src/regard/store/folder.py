"""A model folder as the ecosystem expects it: config.json, model.safetensors, tokenizer.json and their like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import catalogue
from regard.describe import from_plain, to_plain
from regard.errors import DamagedFile, InputError
from regard.models.model import Model, Network
from regard.store.files import (
    json_bytes,
    read_json,
    read_shapes,
    read_tensors,
    require_file,
    tensors_to_bytes,
    unwatched,
    write_file,
)
from regard.text.tokenizer import Tokenizer
from regard.version import __version__

WEIGHTS = "model.safetensors"
PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.bin")


@dataclass(frozen=True)
class Loaded:
    """What a folder holds."""

    network: Network
    tokenizers: tuple[Tokenizer, Tokenizer | None]
    config: dict[str, Any]
    generation: dict[str, Any]


def unique_tensors(network: Network) -> dict[str, Tensor]:
    """Each parameter once: what is tied is kept under its first name only."""
    return dict(network.named_parameters())


def write_description(
    folder: Path,
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer | None],
    *,
    task: str,
    generation: Mapping[str, Any],
) -> None:
    """Everything of a model folder but the weights."""
    config = {
        "model_type": "regard",
        "architectures": ["Network"],
        "dtype": "float32",
        "tie_word_embeddings": network.description.readout.tied,
        "task": task,
        "vocabulary": network.vocabulary,
        "source_vocabulary": network.source_vocabulary,
        "regard_version": __version__,
        "model": to_plain(network.description),
    }
    write_file(folder / "config.json", json_bytes(config))
    write_generation(folder, generation)
    write_file(folder / "tokenizer.json", tokenizers[0].to_json().encode())
    if tokenizers[1] is not None:
        write_file(folder / "target_tokenizer.json", tokenizers[1].to_json().encode())


def write_generation(folder: Path, generation: Mapping[str, Any]) -> None:
    """How the model speaks."""
    write_file(folder / "generation_config.json", json_bytes(dict(generation)))


def write_weights(folder: Path, tensors: Mapping[str, Tensor], reached: Callable[[str], None] = unwatched) -> None:
    """The weights of a model folder, whole or not at all."""
    write_file(folder / WEIGHTS, tensors_to_bytes(tensors), reached)


def read_folder(folder: Path, device: torch.device) -> Loaded:
    """Load a model folder of ours; never runs code, never unpickles."""
    if not folder.is_dir():
        raise InputError(f"no such model folder: {folder}. Train one with: regard train dates --out {folder}.")
    config = read_json(folder / "config.json")
    if config.get("model_type") != "regard":
        raise catalogue.UNKNOWN_ARCHITECTURE(found=config.get("model_type"), folder=folder)
    refuse_pickles(folder)
    description, vocabularies = _described(folder, config)
    _compare(folder, description, vocabularies)
    network = description.build(*vocabularies)
    fill(network, read_tensors(folder / WEIGHTS))
    tokenizers = _tokenizers(folder, vocabularies)
    return Loaded(network.to(device).eval(), tokenizers, config, _generation(folder / "generation_config.json"))


def refuse_pickles(folder: Path) -> None:
    """A pickle could run code, so it is refused by name when there is nothing better."""
    if (folder / WEIGHTS).exists():
        return
    for name in PICKLES:
        if (folder / name).exists():
            raise catalogue.PICKLE(path=folder / name)


def fill(network: Network, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters of their names."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[name])


def _described(folder: Path, config: dict[str, Any]) -> tuple[Model, tuple[int, int | None]]:
    try:
        where = f"{folder}/config.json: model"
        description: Model = from_plain(Model, config.get("model"), where=where)
        vocabulary = from_plain(int, config.get("vocabulary"), where=f"{folder}/config.json: vocabulary")
        other = from_plain(int | None, config.get("source_vocabulary"), where=f"{folder}/config.json")
    except (InputError, TypeError, ValueError) as error:
        raise DamagedFile(f"{folder}/config.json cannot be used: {error}") from error
    return description, (vocabulary, other)


def _compare(folder: Path, description: Model, vocabularies: tuple[int, int | None]) -> None:
    """Hold the config against the weights before anything is allocated."""
    try:
        with torch.device("meta"):
            expected = {name: tuple(p.shape) for name, p in description.build(*vocabularies).named_parameters()}
    except (InputError, RuntimeError, ValueError, ArithmeticError, TypeError) as error:
        raise DamagedFile(f"{folder}/config.json cannot be used: {str(error).splitlines()[0]}") from error
    found = read_shapes(folder / WEIGHTS)
    for name, shape in expected.items():
        if name not in found:
            raise catalogue.CONFIG_AND_WEIGHTS(
                what=f"{WEIGHTS} lacks {name}, which config.json asks for", folder=folder
            )
        if found[name] != shape:
            what = f"{name} is {found[name]} in {WEIGHTS}, config.json says {shape}"
            raise catalogue.CONFIG_AND_WEIGHTS(what=what, folder=folder)
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        what = f"{WEIGHTS} holds {unknown[0]}, which config.json knows nothing of"
        raise catalogue.CONFIG_AND_WEIGHTS(what=what, folder=folder)


def _generation(path: Path) -> dict[str, Any]:
    """How the model speaks; what we read of it must be what it should be."""
    if not path.exists():
        return {}
    found = read_json(path)
    kinds: dict[str, Any] = {"num_beams": int, "length_penalty": float, "alignment_heads": tuple[tuple[int, int], ...]}
    for name, kind in kinds.items():
        try:
            found[name] = from_plain(kind, found[name], where=str(path)) if name in found else None
        except InputError as error:
            raise DamagedFile(f"{path} cannot be used: {name}: {error}") from None
    return {name: value for name, value in found.items() if value is not None}


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizers of a model folder."""
    require_file(folder / "tokenizer.json")
    paths = [folder / name for name in ("tokenizer.json", "target_tokenizer.json")]
    first, *second = [Tokenizer.from_json(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    return first, second[0] if second else None


def _tokenizers(folder: Path, vocabularies: tuple[int, int | None]) -> tuple[Tokenizer, Tokenizer | None]:
    first = _tokenizer(folder / "tokenizer.json", vocabularies[1] or vocabularies[0])
    if vocabularies[1] is None:
        return first, None
    return first, _tokenizer(folder / "target_tokenizer.json", vocabularies[0])


def _tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    if not path.is_file():
        raise InputError(f"no such file: {path}. Is {path.parent} a model folder?")
    try:
        tokenizer = Tokenizer.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path} cannot be used: it is not UTF-8.") from error
    except DamagedFile as error:
        raise DamagedFile(f"{error} ({path})") from None
    if tokenizer.vocabulary > vocabulary:
        raise catalogue.FOREIGN_TOKENIZER(path=path, found=tokenizer.vocabulary, known=vocabulary)
    return tokenizer
