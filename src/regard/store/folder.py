"""A model folder as the ecosystem expects it: config.json, model.safetensors, tokenizer.json and their like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import messages
from regard.data.tokenize.tokenizer import Roles, Tokenizer
from regard.errors import DamagedFile, InputError
from regard.models.model import Model, Network
from regard.schema import from_dict, to_dict
from regard.store.download import located
from regard.store.elmo import is_elmo, load_elmo
from regard.store.files import (
    json_bytes,
    read_bounded,
    read_json,
    read_shapes,
    read_tensors,
    require_file,
    tensors_to_bytes,
    unwatched,
    write_file,
)
from regard.store.generation_config import require_tokens
from regard.store.huggingface.folder import read_hub
from regard.store.loading import LEARNT_LENGTH, LONGEST_TEXT, WEIGHTS, refuse_pickles, require_finite
from regard.store.loading import Loaded as Loaded
from regard.store.loading import fill as fill
from regard.version import __version__


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
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Everything of a model folder but the weights; config.json says these facts besides."""
    config = {
        "model_type": "regard",
        "architectures": ["Network"],
        "dtype": "float32",
        "tie_word_embeddings": network.description.readout.tied,
        "task": task,
        "vocabulary": network.vocabulary,
        "source_vocabulary": network.source_vocabulary,
        "regard_version": __version__,
        "model": to_dict(network.description),
    }
    if any(tokenizer is not None and tokenizer.roles is not None for tokenizer in tokenizers):
        config["roles"] = [to_dict(tokenizer.roles) if tokenizer else None for tokenizer in tokenizers]
    write_file(folder / "config.json", json_bytes({**config, **(facts or {})}))
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
    """Load a model folder, ours or a published one; never runs code, never unpickles."""
    folder = located(folder)
    if not folder.is_dir():
        raise InputError(f"no such model folder: {folder}. Train one with: regard train dates --out {folder}.")
    if is_elmo(folder):
        return load_elmo(folder, device)
    config = read_json(folder / "config.json")
    if config.get("model_type") != "regard":
        return read_hub(folder, device)
    refuse_pickles(folder)
    description, vocabularies = _described(folder, config)
    _compare(folder, description, vocabularies)
    network = description.build(*vocabularies)
    tensors = read_tensors(folder / WEIGHTS)
    for name, tensor in tensors.items():
        require_finite(name, tensor, folder)
    fill(network, tensors)
    tokenizers = _tokenizers(folder, vocabularies)
    generation = _generation(folder / "generation_config.json", network)
    return Loaded(network.to(device).eval(), tokenizers, config, generation)


def read_description(folder: Path) -> tuple[Model, tuple[int, int | None]]:
    """What the model of a folder of ours is, and its vocabularies, whether it has weights yet or not."""
    return _described(folder, read_json(folder / "config.json"))


def _described(folder: Path, config: dict[str, Any]) -> tuple[Model, tuple[int, int | None]]:
    try:
        where = f"{folder}/config.json: model"
        description: Model = from_dict(Model, config.get("model"), where=where)
        vocabulary = from_dict(int, config.get("vocabulary"), where=f"{folder}/config.json: vocabulary")
        other = from_dict(int | None, config.get("source_vocabulary"), where=f"{folder}/config.json")
        for fact in (LONGEST_TEXT, LEARNT_LENGTH):
            found = from_dict(int | None, config.get(fact), where=f"{folder}/config.json: {fact}")
            if found is not None and found < 1:
                raise ValueError(f"{fact} is {found}")
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
            raise messages.CONFIG_AND_WEIGHTS(what=f"{WEIGHTS} lacks {name}, which config.json asks for", folder=folder)
        if found[name] != shape:
            what = f"{name} is {found[name]} in {WEIGHTS}, config.json says {shape}"
            raise messages.CONFIG_AND_WEIGHTS(what=what, folder=folder)
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        what = f"{WEIGHTS} holds {unknown[0]}, which config.json knows nothing of"
        raise messages.CONFIG_AND_WEIGHTS(what=what, folder=folder)


def _generation(path: Path, network: Network) -> dict[str, Any]:
    """How the model speaks; what we read of it must be what it should be."""
    if not path.exists():
        return {}
    found = read_json(path)
    kinds: dict[str, Any] = {"num_beams": int, "length_penalty": float, "alignment_heads": tuple[tuple[int, int], ...]}
    for name, kind in kinds.items():
        try:
            found[name] = from_dict(kind, found[name], where=str(path)) if name in found else None
        except InputError as error:
            raise DamagedFile(f"{path} cannot be used: {name}: {error}") from None
    require_tokens(found, network, path)
    return {name: value for name, value in found.items() if value is not None}


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizers of a model folder of ours."""
    roles = _roles(folder)
    first = _tokenizer(folder / "tokenizer.json", roles[0])
    path = folder / "target_tokenizer.json"
    return first, _tokenizer(path, roles[1]) if path.exists() else None


def _roles(folder: Path) -> tuple[Roles | None, Roles | None]:
    """What the tokens of either tokenizer play, where config.json says so."""
    path = folder / "config.json"
    said = read_json(path).get("roles") if path.exists() else None
    if said is None:
        return None, None
    try:
        first, second = from_dict(tuple[Roles | None, Roles | None], said, where=f"{path}: roles")
    except (InputError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be used: {error}") from error
    return first, second


def _tokenizers(folder: Path, vocabularies: tuple[int, int | None]) -> tuple[Tokenizer, Tokenizer | None]:
    """Tokenizers that the model knows every token of."""
    if vocabularies[1] is not None:
        require_file(folder / "target_tokenizer.json")
    made = read_tokenizers(folder)
    known = vocabularies[1] or vocabularies[0], vocabularies[0]
    for tokenizer, size, name in zip(made, known, ("tokenizer.json", "target_tokenizer.json")):
        if tokenizer is not None and tokenizer.vocabulary > size:
            raise messages.FOREIGN_TOKENIZER(path=folder / name, found=tokenizer.vocabulary, known=size)
        if tokenizer is not None and tokenizer.roles is not None:
            _require_tokens(tokenizer.roles, size, vocabularies[0], folder)
    return made


def _require_tokens(roles: Roles, size: int, said: int, folder: Path) -> None:
    """Refuse parts that are played by tokens the model does not have; it begins with one of those it says."""
    parts = roles.end, roles.pad, roles.unknown, roles.mask, *(roles.opening or ())
    known = all(token is None or token in range(size) for token in parts)
    if not known or not (roles.begin is None or roles.begin in range(said)) or roles.between not in (1, 2):
        raise DamagedFile(f"{folder}/config.json cannot be used: roles names tokens that the model does not have. "
                          "Restore it from a copy.")  # fmt: skip


def _tokenizer(path: Path, roles: Roles | None) -> Tokenizer:
    try:
        return Tokenizer.from_json(read_bounded(path).decode(), roles)
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path} cannot be used: it is not UTF-8. Restore it from a copy.") from error
    except DamagedFile as error:
        raise DamagedFile(f"{error} ({path})") from None
