"""Attention patterns: which keys are visible, and which slots take which patterns."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.contract import Source
from regard.layers.patterns import Causal, CentredWindow, ChunkWindow, Full, LocalM, LocalP, Pattern, Window
from regard.schema import kind_of

SELF = (Full(), Causal(), Window(4), CentredWindow(4), ChunkWindow(4))
SOURCE = (Full(), LocalM(4), LocalP(4))


@pytest.mark.parametrize("pattern", [Causal(), Window(4), CentredWindow(4), ChunkWindow(4), ChunkWindow(3, 2)])
def test_what_a_pattern_says_of_its_mask_is_true(pattern: Pattern):
    slots = torch.arange(20)
    mask = pattern.mask(slots, slots)
    assert pattern.causal == (not mask.triu(1).any())
    assert pattern.lower_triangular == torch.equal(mask, torch.ones_like(mask).tril())
    for slot in range(20):
        assert not mask[slot:, : pattern.first_key(slot)].any()
    span = pattern.chunk_span(20)
    if span is not None:
        chunks = slots // span.chunk
        apart = chunks[:, None] - chunks
        assert not mask[(apart > span.before) | (-apart > span.after)].any()


@pytest.mark.parametrize("pattern", SELF + SOURCE, ids=str)
def test_self_and_cross_attention_refuse_each_others_patterns(pattern: Pattern):
    for description, known in ((SelfAttention, SELF), (CrossAttention, SOURCE)):
        if pattern in known:
            description(2, pattern=pattern).build(8)
        else:
            with pytest.raises(InputError, match=rf"^{kind_of(type(pattern))} is a pattern .*Use full"):
                description(2, pattern=pattern)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_local_p_predicts_in_single_precision_at_least(dtype: torch.dtype):
    torch.manual_seed(0)
    layer = LocalP(3).source_mask(8).to(dtype)
    queries, source = torch.randn(2, 5, 8).to(dtype), Source(torch.randn(2, 40, 8))
    _, factor = layer(queries, torch.arange(5), source)
    assert factor.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_local_p_has_exact_gradients_in_double_precision():
    torch.manual_seed(0)
    layer, source = LocalP(3).source_mask(6).double(), Source(torch.randn(2, 9, 6))
    queries = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q: layer(q, torch.arange(3), source)[1], (queries,), atol=1e-7)
