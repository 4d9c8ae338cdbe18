"""How a published model speaks: generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.describe import from_plain
from regard.errors import DamagedFile, InputError
from regard.store.files import read_json

_KINDS: dict[str, Any] = {
    "num_beams": int, "length_penalty": float, "early_stopping": bool | str, "max_length": int, "max_new_tokens": int,
    "min_length": int, "min_new_tokens": int, "no_repeat_ngram_size": int, "repetition_penalty": float,
    "do_sample": bool, "temperature": float, "top_k": int, "top_p": float, "decoder_start_token_id": int,
    "forced_eos_token_id": int | list[int], "forced_bos_token_id": int, "bos_token_id": int,
    "eos_token_id": int | list[int], "pad_token_id": int, "bad_words_ids": list[list[int]],
    "suppress_tokens": list[int],
}  # fmt: skip


def read_generation(folder: Path, older: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json, over what older folders say in config.json; each setting of the kind it must be."""
    path = folder / "generation_config.json"
    found = {**older, **(read_json(path) if path.exists() else {})}
    found = {name: value for name, value in found.items() if value is not None and name in _KINDS}
    for name, value in found.items():
        try:
            found[name] = from_plain(_KINDS[name], value, where=str(path))
        except InputError as error:
            raise DamagedFile(f"{path} cannot be used: {name}: {error}") from None
    return found


def published_generation(generation: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json for others: what came from them as it came, ours in their names."""
    kept = {name: value for name, value in generation.items() if name in _KINDS}
    return {**kept, **ids}


def own_generation(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What a published folder says and leaves unsaid, for a folder of ours, where unsaid means another thing."""
    return {"length_penalty": 1.0, "early_stopping": False, **generation, "normalization": "length"}
