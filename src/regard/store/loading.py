"""What all kinds of model folders share: checks of paths, pickles and weights, and generation_config.json."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import messages
from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import DamagedFile, InputError, Note
from regard.models.device import available
from regard.models.model import Model, Network
from regard.schema import from_dict
from regard.store.files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_TEXT_LENGTH = "max_text_length"  # key of config.json: tokens of a text that are embedded; the rest is cut off
TRAINED_LENGTH = "trained_length"  # key of config.json: the longest sequence, in tokens, of the training
_SPARE_LAYERS = 100  # layers may have no parameters
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "model.ckpt", "model.bin")
_TYPES: dict[str, Any] = {
    "num_beams": int, "length_penalty": float, "early_stopping": bool | str, "max_length": int, "max_new_tokens": int,
    "min_length": int, "min_new_tokens": int, "no_repeat_ngram_size": int, "repetition_penalty": float,
    "do_sample": bool, "temperature": float, "top_k": int, "top_p": float, "decoder_start_token_id": int,
    "forced_eos_token_id": int | list[int], "forced_bos_token_id": int, "bos_token_id": int,
    "eos_token_id": int | list[int], "pad_token_id": int, "bad_words_ids": list[list[int]],
    "suppress_tokens": list[int], "begin_suppress_tokens": list[int], "renormalize_logits": bool,
}  # fmt: skip
_TOKEN_SETTINGS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "eos_token_id",
                   "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")  # fmt: skip
LIMITS: dict[str, tuple[float, float]] = {
    "num_beams": (1, 1024), "length_penalty": (-10, 10), "no_repeat_ngram_size": (0, 1 << 20),
    "repetition_penalty": (0.01, 100),
}  # fmt: skip
_LENGTHS = dict.fromkeys(("max_length", "max_new_tokens", "min_length", "min_new_tokens"), (0, 1 << 17))
_GPT2_EOS = 50256  # GPT-2's default eos_token_id, written whatever the vocabulary
# Settings that would change the output but are not supported, with the values that have no effect.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1,), "exponential_decay_length_penalty": (), "num_beam_groups": (1,),
    "diversity_penalty": (0,), "encoder_no_repeat_ngram_size": (0,), "sequence_bias": (), "force_words_ids": (),
    "constraints": (), "penalty_alpha": (0,), "guidance_scale": (1,),
}  # fmt: skip

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
    """Copy tensors into the parameters of the same names."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[name])


def read_generation_config(folder: Path, older: Mapping[str, Any], network: Network) -> dict[str, Any]:
    """Read generation_config.json, which overrides the `older` settings in config.json; check their types."""
    path = folder / "generation_config.json"
    settings = {**older, **(read_json(path) if path.exists() else {})}
    found = {name: value for name, value in settings.items() if value is not None and name in _TYPES}
    found = {name: _typed(_TYPES[name], name, value, path) for name, value in found.items()}
    if network.shape != "encoder":
        if found.get("eos_token_id") == _GPT2_EOS >= network.vocabulary:
            del found["eos_token_id"]
        _require_usable(found, network, path)
        unsupported = list(_unsupported(settings, found))
        if unsupported:
            warnings.warn(f"{path} sets {', '.join(unsupported)}, which regard does not support.", Note, stacklevel=2)
    return found


def read_own_generation_config(folder: Path, network: Network) -> dict[str, Any]:
    """Read generation_config.json of a folder of ours, and check the types of the settings we use."""
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    types: dict[str, Any] = {**_TYPES, "alignment_heads": tuple[tuple[int, int], ...]}
    found = {name: value for name, value in read_json(path).items() if value is not None}
    found |= {name: _typed(types[name], name, value, path) for name, value in found.items() if name in types}
    _require_usable(found, network, path)
    return found


def _typed(annotation: Any, name: str, value: Any, path: Path) -> Any:
    """A setting of generation_config.json, which must be of this type."""
    try:
        return from_dict(annotation, value, where=str(path))
    except InputError as error:
        raise DamagedFile(f"{path} cannot be used: {name}: {error}") from None


def _require_usable(generation_config: Mapping[str, Any], network: Network, path: Path) -> None:
    """Raise an error for numbers out of range, token ids outside the vocabulary, and an empty list of end tokens."""
    for name, (least, most) in {**LIMITS, **_LENGTHS}.items():
        number = generation_config.get(name)
        if number is not None and not least <= number <= most:
            raise DamagedFile(f"{path} cannot be used: {name} must be {least:,} to {most:,}, got {number:,}. "
                              "Correct it, or copy it again.")  # fmt: skip
    vocabulary = network.vocabulary
    # Without a decoder_start_token_id, a decoder starts with the padding token.
    starts_with_pad = network.shape != "decoder" and generation_config.get("decoder_start_token_id") is None
    for name in (*_TOKEN_SETTINGS, "pad_token_id") if starts_with_pad else _TOKEN_SETTINGS:
        value = generation_config.get(name)
        for token in _flat(value):
            if type(token) is not int or not 0 <= token < vocabulary:
                raise DamagedFile(f"{path} cannot be used: {name} names token {str(token)[:20]}, the model has 0 to "
                                  f"{vocabulary - 1:,}. Copy or download it again.")  # fmt: skip
        if value == [] and name.endswith("eos_token_id"):
            raise DamagedFile(f"{path} cannot be used: {name} is empty. Copy or download it again.")


def _flat(value: Any) -> Iterator[Any]:
    """The token ids of a setting: one, a list, or a list of lists."""
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield value


def _unsupported(settings: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """The settings that would change the output but are not supported."""
    for name, harmless in _UNSUPPORTED.items():
        if settings.get(name) is not None and settings[name] not in harmless:
            yield name
    if any(len(word) > 1 for word in found.get("bad_words_ids", ())):
        yield "bad_words_ids of several tokens"


def to_huggingface(generation_config: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of generation_config.json that Hugging Face knows, with the ids of special tokens."""
    return {**{name: value for name, value in generation_config.items() if name in _TYPES}, **ids}


def to_regard(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """A published generation config with Hugging Face's defaults written out, since ours differ."""
    return {"length_penalty": 1.0, "early_stopping": False, **generation_config, "normalization": "length"}
