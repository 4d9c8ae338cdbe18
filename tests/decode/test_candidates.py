"""The best tokens of a step."""

from __future__ import annotations

import pytest
import torch

from regard.decode.candidates import best_tokens


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
