"""The best tokens of a step, and constraints on the logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.decode.candidates import best_tokens, constrain
from regard.decode.options import Options


@pytest.mark.parametrize("size", [40, 2048, 8000, 8003])
@pytest.mark.parametrize("count", [1, 2, 10])
def test_the_best_tokens_are_those_of_topk(size: int, count: int):
    values = torch.randn(7, 3, size)
    values[0, 0, -count:] = 9.0 + torch.arange(count)  # in the columns that folding leaves over
    values[1, 1] = -torch.inf
    values[1, 1, size // 2] = 0.0
    best, tokens = best_tokens(values, count)
    expected = values.topk(count)
    assert torch.equal(best, expected.values)
    assert torch.equal(values.gather(-1, tokens), best)
    assert torch.equal(tokens[2:], expected.indices[2:])


@pytest.mark.parametrize(
    "given",
    [
        {"suppress_tokens": (1,)}, {"begin_suppress_tokens": (1,)}, {"min_tokens": 3}, {"repetition_penalty": 2.0},
        {"presence_penalty": 1.0}, {"frequency_penalty": 1.0}, {"logit_bias": ((1, 2.0),)}, {"no_repeat_ngram": 1},
        {"forced_bos": 3}, {"forced_eos": (2,)},
    ],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_options_that_change_logits_say_so(given: dict[str, Any]):
    logits, history = torch.randn(1, 8), torch.tensor([[1]])
    options, counts = Options(**given), 1 if "penalty" in next(iter(given)) else 0
    changed = constrain(logits, history, options, new_tokens=counts, eos=2, at_limit=torch.tensor([True]))
    assert not torch.equal(changed, logits)
    assert options.constrains_logits
    assert not Options().constrains_logits
    assert torch.equal(constrain(logits, history, Options(), new_tokens=0, eos=2), logits)
