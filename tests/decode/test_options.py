"""Default decoding options of generation_config.json."""

from __future__ import annotations

import pytest
import torch

from regard.decode.candidates import constrain
from regard.decode.options import Options, default_options
from regard.models import zoo
from tests.small import TEXTS, small

HUGGING_FACE = {"length_penalty": 1.0, "normalization": "length", "early_stopping": False}


@pytest.mark.parametrize(
    ("ours", "generation_config", "expected"),
    [
        (True, {}, {}),
        (True, {"num_beams": 4, "length_penalty": 0.8}, {"beam": 4, "length_penalty": 0.8}),
        (True, {"early_stopping": True}, {"early_stopping": True}),
        (False, {}, HUGGING_FACE),
        (False, {"num_beams": 6, "length_penalty": 2.0}, {**HUGGING_FACE, "beam": 6, "length_penalty": 2.0}),
        (False, {"early_stopping": False}, HUGGING_FACE),
        (False, {"early_stopping": True}, {**HUGGING_FACE, "early_stopping": True}),
        (False, {"early_stopping": "never"}, {**HUGGING_FACE, "early_stopping": "never"}),
        (False, {"early_stopping": None, "num_beams": None, "max_length": None}, HUGGING_FACE),
        (False, {"max_length": 512}, {**HUGGING_FACE, "max_tokens": 511}),
        (False, {"max_length": 512, "max_new_tokens": 30}, {**HUGGING_FACE, "max_tokens": 30}),
        (False, {"min_length": 3, "no_repeat_ngram_size": 2}, {**HUGGING_FACE, "min_tokens": 2, "no_repeat_ngram": 2}),
        (False, {"bad_words_ids": [[7], [8, 9]], "suppress_tokens": [3]}, {**HUGGING_FACE, "suppress_tokens": (3, 7)}),
        (False, {"eos_token_id": 2, "forced_eos_token_id": 2}, {**HUGGING_FACE, "forced_eos": (2,)}),
        (
            False,
            {"eos_token_id": [2, 5, 2, 7], "forced_bos_token_id": 4},
            {**HUGGING_FACE, "extra_eos": (5, 7), "forced_bos": 4},
        ),
        (False, {"begin_suppress_tokens": [9, 3]}, {**HUGGING_FACE, "begin_suppress_tokens": (3, 9)}),
        (
            True,
            {"normalization": "length", "repetition_penalty": 1.5},
            {"normalization": "length", "repetition_penalty": 1.5},
        ),
    ],
)
def test_options_are_those_of_the_generation_config(ours: bool, generation_config: dict, expected: dict):
    assert default_options(generation_config, ours=ours, translates=True) == Options(**expected)


def test_a_length_that_counts_the_prompt_does_not_limit_a_continuation():
    assert default_options({"max_length": 5}, ours=True, translates=False).max_tokens is None
    assert default_options({"max_new_tokens": 5}, ours=True, translates=False).max_tokens == 5


def test_the_limit_of_the_folder_applies_unless_another_is_given():
    model = small(zoo.gpt2(16, 1, 2), generation_config={"max_new_tokens": 3})
    words = len(model.tokenizer.encode(TEXTS[2]))
    generated = model.continuations([TEXTS[2]], Options(temperature=1.0, max_tokens=3))[0][0]
    assert model.generate(TEXTS[2], seed=0) == generated.text
    assert len(generated.tokens) <= 3 < words + 3
    assert model.generate(TEXTS[2], max_tokens=0) == model.tokenizer.decode(model.tokenizer.encode(TEXTS[2]))
    translator = small(zoo.transformer(16, 1, 2), generation_config={"max_length": 4})
    found = translator.translations(TEXTS)
    assert max(len(hypotheses[0].tokens) for hypotheses in found) == 3


def test_a_published_folder_keeps_the_length_normalization_of_hugging_face():
    assert small(zoo.gpt2(16, 1, 2), config={"model_type": "regard"}).defaults() == Options()
    assert small(zoo.gpt2(16, 1, 2), config={"model_type": "gpt2"}).defaults() == Options(**HUGGING_FACE)


def test_penalties_count_generated_tokens_only_and_a_bias_is_added():
    history = torch.tensor([[1, 1, 2, 3, 3, -1], [1, -1, 4, 4, 4, 4]])  # prompts, then 2 and 3 generated tokens
    options = Options(presence_penalty=1.0, frequency_penalty=0.25, logit_bias=((0, 5.0), (4, -2.0)))
    found = constrain(torch.zeros(2, 5), history, options, new_tokens=torch.tensor([2, 3]), eos=2)
    assert found.tolist() == [[5.0, 0.0, 0.0, -1.5, -2.0], [5.0, 0.0, 0.0, 0.0, -3.75]]
    same = constrain(torch.zeros(1, 5), torch.tensor([[1, 3, 3]]), options, new_tokens=2, eos=2)
    assert same.tolist() == [[5.0, 0.0, 0.0, -1.5, -2.0]]
