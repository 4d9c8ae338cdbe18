"""Published models say what their makers' library makes them say: the same tokens, greedily and with beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.api import LoadedModel
from regard.decode.generate import Request, answer
from regard.decode.options import Options
from tests.parity import zoo
from tests.parity.folders import ours, rows, saved, shaken

LONGEST = 14


def theirs_say(model: Any, ids: Any, padding: Any, **how: Any) -> list[list[int]]:
    """What follows, without what was given, up to the end."""
    said_end = model.generation_config.eos_token_id
    ends = said_end if isinstance(said_end, list) else [said_end]
    said = model.generate(ids, attention_mask=padding.long(), **how)
    start = 1 if model.config.is_encoder_decoder else ids.shape[1]
    return [until(row[start:].tolist(), ends) for row in said]


def until(tokens: list[int], ends: Sequence[int]) -> list[int]:
    return tokens[: min((tokens.index(end) for end in ends if end in tokens), default=len(tokens))]


def we_say(network: Any, ids: Any, padding: Any, options: Options) -> list[list[int]]:
    texts = [row[kept].tolist() for row, kept in zip(ids, padding)]
    both = network.encoder is not None
    requests = [Request((0,), tuple(text), LONGEST) if both else Request(tuple(text), None, LONGEST) for text in texts]
    return [list(found[0].tokens) for found in answer(network, requests, options, end=1)]


CASES = ["gpt2, fading scale", "gpt2, untied", "t5", "t5, 1.1", "marian", "marian, apart"]
WAYS: list[dict[str, Any]] = [
    {"num_beams": 1, "no_repeat_ngram_size": 3},
    {"num_beams": 5},
    {"num_beams": 5, "length_penalty": 0.3, "early_stopping": True, "bad_words_ids": [[0], [28]]},
    {"num_beams": 5, "length_penalty": 2.0, "early_stopping": "never", "no_repeat_ngram_size": 2,
     "repetition_penalty": 1.3},
    {"num_beams": 1, "eos_token_id": [1, 20, 31, 8], "min_new_tokens": 3, "begin_suppress_tokens": [9, 10, 11, 12]},
    {"num_beams": 4, "eos_token_id": [1, 20, 31], "forced_eos_token_id": 1, "min_new_tokens": 2},
    {"num_beams": 4, "renormalize_logits": True, "bad_words_ids": [[0], [20], [31]], "repetition_penalty": 1.4,
     "forced_eos_token_id": 1},
    {"num_beams": 4, "forced_eos_token_id": 1, "forced_bos_token_id": 7, "begin_suppress_tokens": [9, 20, 30]},
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", WAYS, ids=["greedy", "beams", "full", "never", "ends", "forced", "again", "first"])
def test_the_same_tokens(name: str, how: dict[str, Any], tmp_path: Path):
    model = shaken(zoo.ALL[name](), seed=5, by=0.5)
    model.generation_config.update(**how)
    if model.config.is_encoder_decoder:
        model.generation_config.decoder_start_token_id = 0
    loaded = ours(saved(model, tmp_path))
    options = replace(LoadedModel(loaded).defaults(), max_tokens=LONGEST)
    assert options.beam == how["num_beams"]
    # Their decoders want padding on the left, their encoders on the right; ours do not mind.
    ids, padding = rows(7, 6, 9, left=not model.config.is_encoder_decoder)
    if "no_repeat_ngram_size" in how and not model.config.is_encoder_decoder:
        # Their rules about what was said before count padding as said.
        ids, padding = ids.masked_fill(~padding, 9), torch.ones_like(padding)
    with torch.no_grad():
        expected = theirs_say(model, ids, padding, max_new_tokens=LONGEST)
    assert we_say(loaded.network, ids, padding, options) == expected
    assert len({tuple(row) for row in expected}) > 1
