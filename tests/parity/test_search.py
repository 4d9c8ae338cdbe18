"""Parity with transformers: the same tokens from greedy and beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.api import LoadedModel
from regard.decode.generate import Request, generate_tokens
from regard.decode.options import Options
from tests.parity import zoo
from tests.parity.folders import ours, perturbed, rows, save_theirs

MAX_TOKENS = 14


def their_tokens(model: Any, ids: Any, padding: Any, **settings: Any) -> list[list[int]]:
    """The generated tokens, without the prompt, up to the end token."""
    eos = model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [eos]
    output = model.generate(ids, attention_mask=padding.long(), **settings)
    start = 1 if model.config.is_encoder_decoder else ids.shape[1]
    return [until(row[start:].tolist(), ends) for row in output]


def until(tokens: list[int], ends: Sequence[int]) -> list[int]:
    return tokens[: min((tokens.index(end) for end in ends if end in tokens), default=len(tokens))]


def our_tokens(network: Any, ids: Any, padding: Any, options: Options) -> list[list[int]]:
    texts = [row[kept].tolist() for row, kept in zip(ids, padding)]
    both = network.encoder is not None
    requests = [
        Request((0,), tuple(text), MAX_TOKENS) if both else Request(tuple(text), None, MAX_TOKENS) for text in texts
    ]
    return [list(found[0].tokens) for found in generate_tokens(network, requests, options, eos=1)]


CASES = ["gpt2, scaled by layer", "gpt2, untied", "t5", "t5, 1.1", "marian", "marian, separate"]
SETTINGS: list[dict[str, Any]] = [
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
@pytest.mark.parametrize(
    "settings", SETTINGS, ids=["greedy", "beams", "full", "never", "ends", "forced", "again", "first"]
)
def test_search_gives_the_same_tokens(name: str, settings: dict[str, Any], tmp_path: Path):
    model = perturbed(zoo.ALL[name](), seed=5, by=0.5)
    model.generation_config.update(**settings)
    if model.config.is_encoder_decoder:
        model.generation_config.decoder_start_token_id = 0
    loaded = ours(save_theirs(model, tmp_path))
    options = replace(LoadedModel(loaded).defaults(), max_tokens=MAX_TOKENS)
    assert options.beam == settings["num_beams"]
    # Their decoders want padding on the left, their encoders on the right; ours accept either.
    ids, padding = rows(7, 6, 9, left=not model.config.is_encoder_decoder)
    if "no_repeat_ngram_size" in settings and not model.config.is_encoder_decoder:
        # Their rules about repetition count padding as generated.
        ids, padding = ids.masked_fill(~padding, 9), torch.ones_like(padding)
    with torch.no_grad():
        expected = their_tokens(model, ids, padding, max_new_tokens=MAX_TOKENS)
    assert our_tokens(loaded.network, ids, padding, options) == expected
    assert len({tuple(row) for row in expected}) > 1
