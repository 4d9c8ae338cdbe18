"""How a model searches when nobody says otherwise, as its generation_config.json has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.decode.choose import Ending, Options

_ENDINGS: tuple[tuple[object, Ending], ...] = ((False, "likely"), (True, "full"), ("never", "exact"))
_KNOWN = {
    "num_beams": "beam",
    "length_penalty": "length_penalty",
    "normalization": "normalization",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "renormalize_logits": "renormalised",
}


def default_options(generation: Mapping[str, Any], *, ours: bool, translates: bool) -> Options:
    """The options; a folder that is not ours counts length and ends as Hugging Face does."""
    said: dict[str, Any] = {} if ours else {"length_penalty": 1.0, "normalization": "length", "ending": "likely"}
    if translates:  # their lengths count the token that begins, and a language model's prompt
        for theirs, name in (("min_length", "min_tokens"), ("max_length", "max_tokens")):
            if generation.get(theirs) is not None:
                said[name] = max(0, generation[theirs] - 1)
    said |= {name: generation[theirs] for theirs, name in _KNOWN.items() if generation.get(theirs) is not None}
    stopping = generation.get("early_stopping")
    for value, ending in _ENDINGS:
        if type(value) is type(stopping) and value == stopping:
            said["ending"] = ending
    words = [word[0] for word in generation.get("bad_words_ids") or () if len(word) == 1]
    said["never"] = tuple(sorted({*words, *(generation.get("suppress_tokens") or ())}))
    said["not_first"] = tuple(sorted(set(generation.get("begin_suppress_tokens") or ())))
    if translates:  # a language model begins with its prompt
        said["first"] = generation.get("forced_bos_token_id")
    said["also_end"] = _several(generation.get("eos_token_id"))[1:]
    said["last"] = _several(generation.get("forced_eos_token_id"))
    return Options(**said)


def _several(said: int | list[int] | None) -> tuple[int, ...]:
    """One token or several, each once."""
    return tuple(dict.fromkeys(said)) if isinstance(said, list) else () if said is None else (said,)
