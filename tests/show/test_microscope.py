"""The microscope sees what the attention saw, and counts what it missed."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.attention import split_heads
from regard.layers.contract import Context
from regard.layers.lsh.attention import Chunks, LSHAttention, LSHAttentionLayer, Ranks, Whole
from regard.layers.positions import Learned
from regard.layers.record import Record
from regard.models import zoo
from regard.show import lsh as module
from regard.show.lsh import caught, hashing_layers, met, sample
from tests.small import small

TEXT = "the cat sat on the mat and the dog ran in the park " * 4


def layer(pattern: Ranks | Chunks = Ranks(8), causal: bool = True, rounds: int = 3) -> LSHAttentionLayer:  # noqa: B008
    torch.manual_seed(2)
    return LSHAttention(2, pattern=pattern, buckets=8, rounds=rounds, seed=4, causal=causal).build(16).eval()


def given(length: int = 61) -> Tensor:
    return torch.randn(1, length, 16, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("see", [Ranks(8), Chunks(8), Chunks(8, before=0, after=1), Chunks(64)])
def test_what_is_met_is_what_weighs_something(pattern: Ranks | Chunks, causal: bool):
    attention, x, record = layer(pattern, causal), given(), Record()
    with torch.inference_mode():
        attention(x, Context(record=record, name="here"))
        seen = met(attention, split_heads(attention.query_key(x), 2), 3, torch.arange(61))
    others = ~torch.eye(61, dtype=torch.bool)  # a token's own weight is there, and nothing
    if causal:
        others = others.tril()
    weights = record.matrix("here")[0]
    assert torch.equal((weights > 0)[:, others], seen[:, others])
    assert seen[:, others].any()
    assert pattern == Chunks(64) or not seen[:, others].all()


def test_some_queries_see_what_they_see_among_all():
    attention, some = layer(), torch.tensor([3, 17, 60])
    q = split_heads(attention.query_key(given()), 2)
    assert torch.equal(met(attention, q, 2, torch.arange(61))[:, some], met(attention, q, 2, some))


def test_a_share_is_the_mass_seen_of_the_mass_there_is():
    attention, x, top = layer(), given(), 5
    shares = caught(attention, x, torch.arange(61), top, (2,))[2]
    q = split_heads(attention.query_key(x), 2).detach()
    seen = met(attention, q, 2, torch.arange(61))
    for head in range(2):
        parts = []
        for at in range(1, 61):
            keys = torch.nn.functional.normalize(q[0, head, :at], dim=-1)
            weights = (keys @ q[0, head, at]).softmax(0)
            best = weights.argsort(descending=True)[:top]
            parts.append(float(weights[best][seen[head, at, best]].sum() / weights[best].sum()))
        assert shares[head] == pytest.approx(sum(parts) / len(parts), abs=1e-4)
        assert 0.1 < shares[head] < 0.9


def test_more_rounds_catch_more_and_many_catch_all():
    shares = caught(layer(), given(), torch.arange(61), 8, (1, 2, 4, 8, 32))
    means = [sum(heads) for heads in shares.values()]
    assert means == sorted(means)
    assert means[0] < 1.0 < 1.9 < means[-1] <= 2.0


def test_of_a_long_text_some_queries_are_asked_the_last_among_them(monkeypatch: pytest.MonkeyPatch):
    assert sample(61, 2).tolist() == list(range(61))
    monkeypatch.setattr(module, "_AT_ONCE", 2 * 61 * 4)
    assert sample(61, 2).tolist() == [14, 29, 44, 60]
    model = small(zoo.reformer(16, 2, 2, pattern=Ranks(8), buckets=8, position=Learned(256)))
    found = model.microscope(TEXT)
    assert found.queries < found.tokens
    assert f"{found.queries} of {found.tokens} tokens" in str(found)


def test_a_model_is_looked_into_layer_by_layer():
    model = small(zoo.reformer(16, 3, 2, attention=("lsh", "full", "lsh"), pattern=Ranks(8), buckets=8, position=None))
    found = model.microscope(TEXT, top=4)
    assert [caught.layer for caught in found.layers] == ["decoder.0.self", "decoder.2.self"]
    assert [len(heads) for caught in found.layers for heads in caught.shares.values()] == [2] * 8
    lines = found.text().splitlines()
    assert len(lines) == 2 + 2 * 3
    assert lines[2].startswith("decoder.0.self  mean")
    assert lines[2].count("*") == 1
    assert json.loads(json.dumps(found.to_json()))["top"] == 4
    assert not any(module._forward_pre_hooks for module in model.network.modules())
    assert found == model.microscope(TEXT, top=4)


def test_both_sides_of_a_translator_are_looked_into():
    model = small(zoo.reformer(16, 1, 2, shape="both", attention=("lsh",), pattern=Ranks(8), buckets=8, position=None))
    found = model.microscope(TEXT, "the dog sat on the mat")
    assert [caught.layer for caught in found.layers] == ["encoder.0.self", "decoder.0.self"]
    assert found.tokens > 40
    with pytest.raises(InputError, match="one token has nobody to attend to"):
        model.microscope("", "the dog sat on the mat")


def test_what_does_not_hash_has_nothing_to_look_at():
    full = small(zoo.reformer(16, 1, 2, attention=("full",), position=None))
    assert hashing_layers(full.network) == []
    assert LSHAttention(2, Whole()).build(16)
    for model in (full, small(zoo.gpt2(16, 1, 2))):
        with pytest.raises(InputError, match="no layer of this model hashes"):
            model.microscope(TEXT)
    with pytest.raises(InputError, match="top and rounds"):
        small(zoo.reformer(16, 1, 2, attention=("lsh",), pattern=Ranks(8), buckets=8)).microscope(TEXT, top=0)
