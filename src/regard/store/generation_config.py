"""generation_config.json: the default options of decoding, checked; read without torch, which starts slowly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from regard.errors import DamagedFile, InputError, Note
from regard.schema import from_dict
from regard.store.files import read_json

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
START = "regard_start_token_id"
"""In Marian's files of ours: the token that the last of the vocabulary stands for, with which the decoder starts."""

_GPT2_EOS = 50256  # GPT-2's default eos_token_id, written whatever the vocabulary
# Settings that would change the output but are not supported, with the values that have no effect.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1,), "exponential_decay_length_penalty": (), "num_beam_groups": (1,),
    "diversity_penalty": (0,), "encoder_no_repeat_ngram_size": (0,), "sequence_bias": (), "force_words_ids": (),
    "constraints": (), "penalty_alpha": (0,), "guidance_scale": (1,), "stop_strings": (), "forced_decoder_ids": ([],),
    "watermarking_config": (), "dola_layers": (), "token_healing": (False,),
}  # fmt: skip
# Settings of sampling that our own options set, with the values that have no effect.
_SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (1,), "top_k": (0,), "top_p": (1,), "min_p": (0,), "typical_p": (1,), "epsilon_cutoff": (0,),
}  # fmt: skip


class Generates(Protocol):
    """What the settings are checked against: the shape of a model and its vocabulary."""

    @property
    def shape(self) -> str:
        """Which stacks it has."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens that it can generate."""


def read_generation_config(folder: Path, older: Mapping[str, Any], reader: Generates) -> dict[str, Any]:
    """Read generation_config.json, which overrides the `older` settings in config.json; check their types."""
    path = folder / "generation_config.json"
    settings = {**older, **(read_json(path) if path.exists() else {})}
    if START in settings:
        settings = _without_start_row(settings, reader.vocabulary)
    found = {name: value for name, value in settings.items() if value is not None and name in _TYPES}
    found = {name: _typed(_TYPES[name], name, value, path) for name, value in found.items()}
    if reader.shape != "encoder":
        if found.get("eos_token_id") == _GPT2_EOS >= reader.vocabulary:
            del found["eos_token_id"]
        _require_usable(found, reader, path)
        unsupported = list(_unsupported(settings, found))
        if unsupported:
            warnings.warn(f"{path} sets {', '.join(unsupported)}, which regard does not support.", Note, stacklevel=2)
        sampling = list(_sampling(settings))
        if sampling:
            message = f"{path} samples with {', '.join(sampling)}; regard takes these from its own options."
            warnings.warn(message, Note, stacklevel=2)
    return found


def _without_start_row(settings: dict[str, Any], last: int) -> dict[str, Any]:
    """The settings with our start token in place of the one that was added after the last."""
    bad = settings.get("bad_words_ids")
    words = [word for word in bad if word != [last]] if isinstance(bad, list) else bad
    return {**settings, "decoder_start_token_id": settings[START], "bad_words_ids": words or None}


def read_own_generation_config(folder: Path, reader: Generates) -> dict[str, Any]:
    """Read generation_config.json of a folder of ours, and check the types of the settings we use."""
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    types: dict[str, Any] = {**_TYPES, "alignment_heads": tuple[tuple[int, int], ...]}
    found = {name: value for name, value in read_json(path).items() if value is not None}
    found |= {name: _typed(types[name], name, value, path) for name, value in found.items() if name in types}
    _require_usable(found, reader, path)
    return found


def _typed(annotation: Any, name: str, value: Any, path: Path) -> Any:
    """A setting of generation_config.json, which must be of this type."""
    try:
        return from_dict(annotation, value, where=str(path))
    except InputError as error:
        raise DamagedFile(f"{path} cannot be used: {name}: {error}") from None


def _require_usable(generation_config: Mapping[str, Any], reader: Generates, path: Path) -> None:
    """Raise an error for numbers out of range, token ids outside the vocabulary, and an empty list of end tokens."""
    for name, (least, most) in {**LIMITS, **_LENGTHS}.items():
        number = generation_config.get(name)
        if number is not None and not least <= number <= most:
            raise DamagedFile(f"{path} cannot be used: {name} must be {least:,} to {most:,}, got {number:,}. "
                              "Correct it, or copy it again.")  # fmt: skip
    vocabulary = reader.vocabulary
    # Without a decoder_start_token_id, a decoder starts with the padding token.
    starts_with_pad = reader.shape != "decoder" and generation_config.get("decoder_start_token_id") is None
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


def _sampling(settings: Mapping[str, Any]) -> Iterator[str]:
    """The settings of sampling, if texts are sampled, that differ from those of no options."""
    for name, harmless in _SAMPLING.items() if settings.get("do_sample") is True else ():
        if settings.get(name) is not None and settings[name] not in harmless:
            yield f"{name} = {str(settings[name])[:20]}"


def to_huggingface(generation_config: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of generation_config.json that Hugging Face knows, with the ids of special tokens."""
    return {**{name: value for name, value in generation_config.items() if name in _TYPES}, **ids}


def to_regard(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """A published generation config with Hugging Face's defaults written out, since ours differ."""
    return {"length_penalty": 1.0, "early_stopping": False, **generation_config, "normalization": "length"}
