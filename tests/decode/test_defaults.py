"""How a model searches when nobody says otherwise."""

from __future__ import annotations

import pytest

from regard.decode.options import Options, default_options
from regard.models import zoo
from tests.small import TEXTS, small

THEIRS = {"length_penalty": 1.0, "normalization": "length", "ending": "likely"}


@pytest.mark.parametrize(
    ("ours", "generation", "expected"),
    [
        (True, {}, {}),
        (True, {"num_beams": 4, "length_penalty": 0.8}, {"beam": 4, "length_penalty": 0.8}),
        (True, {"early_stopping": True}, {"ending": "full"}),
        (False, {}, THEIRS),
        (False, {"num_beams": 6, "length_penalty": 2.0}, {**THEIRS, "beam": 6, "length_penalty": 2.0}),
        (False, {"early_stopping": False}, THEIRS),
        (False, {"early_stopping": True}, {**THEIRS, "ending": "full"}),
        (False, {"early_stopping": "never"}, {**THEIRS, "ending": "exact"}),
        (False, {"early_stopping": None, "num_beams": None, "max_length": None}, THEIRS),
        (False, {"max_length": 512}, {**THEIRS, "max_tokens": 511}),
        (False, {"max_length": 512, "max_new_tokens": 30}, {**THEIRS, "max_tokens": 30}),
        (False, {"min_length": 3, "no_repeat_ngram_size": 2}, {**THEIRS, "min_tokens": 2, "no_repeat_ngram": 2}),
        (False, {"bad_words_ids": [[7], [8, 9]], "suppress_tokens": [3]}, {**THEIRS, "never": (3, 7)}),
        (False, {"eos_token_id": 2, "forced_eos_token_id": 2}, {**THEIRS, "last": (2,)}),
        (False, {"eos_token_id": [2, 5, 2, 7], "forced_bos_token_id": 4}, {**THEIRS, "also_end": (5, 7), "first": 4}),
        (False, {"begin_suppress_tokens": [9, 3]}, {**THEIRS, "not_first": (3, 9)}),
        (
            True,
            {"normalization": "length", "repetition_penalty": 1.5},
            {"normalization": "length", "repetition_penalty": 1.5},
        ),
    ],
)
def test_options_are_what_the_generation_config_says(ours: bool, generation: dict, expected: dict):
    assert default_options(generation, ours=ours, translates=True) == Options(**expected)


def test_a_length_that_counts_the_prompt_bounds_no_continuation():
    assert default_options({"max_length": 5}, ours=True, translates=False).max_tokens is None
    assert default_options({"max_new_tokens": 5}, ours=True, translates=False).max_tokens == 5


def test_a_model_stops_where_its_folder_says_unless_told_otherwise():
    model = small(zoo.gpt2(16, 1, 2), generation={"max_new_tokens": 3})
    words = len(model.tokenizer.encode(TEXTS[2]))
    said = model.continuations([TEXTS[2]], Options(temperature=1.0, max_tokens=3))[0][0]
    assert model.generate(TEXTS[2], seed=0) == said.text
    assert len(said.tokens) <= 3 < words + 3
    assert model.generate(TEXTS[2], max_tokens=0) == model.tokenizer.decode(model.tokenizer.encode(TEXTS[2]))
    translator = small(zoo.transformer(16, 1, 2), generation={"max_length": 4})
    found = translator.translations(TEXTS)
    assert max(len(answers[0].tokens) for answers in found) == 3


def test_who_made_the_folder_says_how_length_counts():
    assert small(zoo.gpt2(16, 1, 2), config={"model_type": "regard"}).defaults() == Options()
    assert small(zoo.gpt2(16, 1, 2), config={"model_type": "gpt2"}).defaults() == Options(**THEIRS)
