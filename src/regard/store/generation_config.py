"""How a published model speaks: generation_config.json."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.errors import DamagedFile, InputError, Note
from regard.models.model import Network
from regard.schema import from_dict
from regard.store.files import read_json

_KINDS: dict[str, Any] = {
    "num_beams": int, "length_penalty": float, "early_stopping": bool | str, "max_length": int, "max_new_tokens": int,
    "min_length": int, "min_new_tokens": int, "no_repeat_ngram_size": int, "repetition_penalty": float,
    "do_sample": bool, "temperature": float, "top_k": int, "top_p": float, "decoder_start_token_id": int,
    "forced_eos_token_id": int | list[int], "forced_bos_token_id": int, "bos_token_id": int,
    "eos_token_id": int | list[int], "pad_token_id": int, "bad_words_ids": list[list[int]],
    "suppress_tokens": list[int], "begin_suppress_tokens": list[int], "renormalize_logits": bool,
}  # fmt: skip
_TOKENS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "eos_token_id",
           "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")  # fmt: skip
_UNSAID = 50256  # what GPT-2's settings say ends a text where nobody said it, whatever the vocabulary
# What would change answers and is not done, with the values that change nothing.
_UNHEARD: dict[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1,), "exponential_decay_length_penalty": (), "num_beam_groups": (1,),
    "diversity_penalty": (0,), "encoder_no_repeat_ngram_size": (0,), "sequence_bias": (), "force_words_ids": (),
    "constraints": (), "penalty_alpha": (0,), "guidance_scale": (1,),
}  # fmt: skip


def read_generation(folder: Path, older: Mapping[str, Any], network: Network) -> dict[str, Any]:
    """generation_config.json, over what older folders say in config.json; each setting of the kind it must be."""
    path = folder / "generation_config.json"
    said = {**older, **(read_json(path) if path.exists() else {})}
    found = {name: value for name, value in said.items() if value is not None and name in _KINDS}
    for name, value in found.items():
        try:
            found[name] = from_dict(_KINDS[name], value, where=str(path))
        except InputError as error:
            raise DamagedFile(f"{path} cannot be used: {name}: {error}") from None
    if network.decoder is not None:
        if found.get("eos_token_id") == _UNSAID >= network.vocabulary:
            del found["eos_token_id"]
        require_tokens(found, network, path)
        unheard = list(_unheard(said, found))
        if unheard:
            warnings.warn(f"{path} asks for {', '.join(unheard)}, which regard does not do.", Note, stacklevel=2)
    return found


def require_tokens(generation: Mapping[str, Any], network: Network, path: Path) -> None:
    """Refuse tokens that the model does not have, and a text that nothing ends."""
    vocabulary = network.vocabulary
    # Who does not say what a decoder begins with begins with the padding.
    unsaid = network.encoder is not None and generation.get("decoder_start_token_id") is None
    for name in (*_TOKENS, "pad_token_id") if unsaid else _TOKENS:
        said = generation.get(name)
        for token in _flat(said):
            if type(token) is not int or not 0 <= token < vocabulary:
                raise DamagedFile(f"{path} cannot be used: {name} names token {str(token)[:20]}, the model has 0 to "
                                  f"{vocabulary - 1:,}. Copy or download it again.")  # fmt: skip
        if said == [] and name.endswith("eos_token_id"):
            raise DamagedFile(f"{path} cannot be used: {name} is empty. Copy or download it again.")


def _flat(said: Any) -> Iterator[Any]:
    """The tokens of a setting: one, several, or several words of several."""
    if isinstance(said, list):
        for one in said:
            yield from _flat(one)
    elif said is not None:
        yield said


def _unheard(said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """The settings that would change answers and are not done."""
    yield from (name for name, idle in _UNHEARD.items() if said.get(name) is not None and said[name] not in idle)
    if any(len(word) > 1 for word in found.get("bad_words_ids", ())):
        yield "bad_words_ids of several tokens"


def published_generation(generation: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json for others: what came from them as it came, ours in their names."""
    kept = {name: value for name, value in generation.items() if name in _KINDS}
    return {**kept, **ids}


def own_generation(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What a published folder says and leaves unsaid, for a folder of ours, where unsaid means another thing."""
    return {"length_penalty": 1.0, "early_stopping": False, **generation, "normalization": "length"}
