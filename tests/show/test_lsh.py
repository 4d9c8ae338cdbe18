"""LSH recall: visible keys are those that attention weighs, and recall is their share of the attention mass."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.attention import split_heads
from regard.layers.contract import Context
from regard.layers.lsh.attention import Chunks, Full, LSHAttention, LSHAttentionLayer, RankWindow
from regard.layers.positions import Learned
from regard.layers.record import Record
from regard.models import zoo
from regard.show import lsh as module
from regard.show.lsh import lsh_layers, recall_by_rounds, sample_queries, visible_keys
from tests.small import small

TEXT = "the cat sat on the mat and the dog ran in the park " * 4


def layer(pattern: RankWindow | Chunks = RankWindow(8), causal: bool = True, rounds: int = 3) -> LSHAttentionLayer:  # noqa: B008
    torch.manual_seed(2)
    return LSHAttention(2, pattern=pattern, buckets=8, rounds=rounds, seed=4, causal=causal).build(16).eval()


def given(length: int = 61) -> Tensor:
    return torch.randn(1, length, 16, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pattern", [RankWindow(8), Chunks(8), Chunks(8, before=0, after=1), Chunks(64)])
def test_visible_keys_are_those_with_a_weight(pattern: RankWindow | Chunks, causal: bool):
    attention, x, record = layer(pattern, causal), given(), Record()
    with torch.inference_mode():
        attention(x, Context(record=record, name="here"))
        visible = visible_keys(attention, split_heads(attention.query_key(x), 2), 3, torch.arange(61))
    others = ~torch.eye(61, dtype=torch.bool)  # a query may attend to itself with weight zero
    if causal:
        others = others.tril()
    weights = record.matrix("here")[0]
    assert torch.equal((weights > 0)[:, others], visible[:, others])
    assert visible[:, others].any()
    assert pattern == Chunks(64) or not visible[:, others].all()


def test_visible_keys_of_some_queries_are_those_among_all():
    attention, some = layer(), torch.tensor([3, 17, 60])
    q = split_heads(attention.query_key(given()), 2)
    assert torch.equal(visible_keys(attention, q, 2, torch.arange(61))[:, some], visible_keys(attention, q, 2, some))


def test_recall_is_the_visible_share_of_the_mass():
    attention, x, top = layer(), given(), 5
    recall = recall_by_rounds(attention, x, torch.arange(61), top, (2,))[2]
    q = split_heads(attention.query_key(x), 2).detach()
    visible = visible_keys(attention, q, 2, torch.arange(61))
    for head in range(2):
        parts = []
        for at in range(1, 61):
            keys = torch.nn.functional.normalize(q[0, head, :at], dim=-1)
            weights = (keys @ q[0, head, at]).softmax(0)
            best = weights.argsort(descending=True)[:top]
            parts.append(float(weights[best][visible[head, at, best]].sum() / weights[best].sum()))
        assert recall[head] == pytest.approx(sum(parts) / len(parts), abs=1e-4)
        assert 0.1 < recall[head] < 0.9


def test_more_rounds_have_a_higher_recall():
    recall = recall_by_rounds(layer(), given(), torch.arange(61), 8, (1, 2, 4, 8, 32))
    means = [sum(heads) for heads in recall.values()]
    assert means == sorted(means)
    assert means[0] < 1.0 < 1.9 < means[-1] <= 2.0


def test_a_long_text_is_sampled_with_its_last_query(monkeypatch: pytest.MonkeyPatch):
    assert sample_queries(61, 2).tolist() == list(range(61))
    monkeypatch.setattr(module, "_MAX_WEIGHTS", 2 * 61 * 4)
    assert sample_queries(61, 2).tolist() == [14, 29, 44, 60]
    model = small(zoo.reformer(16, 2, 2, pattern=RankWindow(8), buckets=8, position=Learned(256)))
    found = model.lsh_recall(TEXT)
    assert found.queries < found.tokens
    assert f"{found.queries} of {found.tokens} tokens" in str(found)


def test_recall_of_every_lsh_layer():
    model = small(
        zoo.reformer(16, 3, 2, attention=("lsh", "full", "lsh"), pattern=RankWindow(8), buckets=8, position=None)
    )
    found = model.lsh_recall(TEXT, top=4)
    assert [one.layer for one in found.layers] == ["decoder.0.self", "decoder.2.self"]
    assert [len(heads) for one in found.layers for heads in one.recall.values()] == [2] * 8
    lines = found.text().splitlines()
    assert len(lines) == 2 + 2 * 3
    assert lines[2].startswith("decoder.0.self  mean")
    assert lines[2].count("*") == 1
    assert json.loads(json.dumps(found.to_json()))["top"] == 4
    assert not any(module._forward_pre_hooks for module in model.network.modules())
    assert found == model.lsh_recall(TEXT, top=4)


def test_recall_of_both_stacks_of_a_translator():
    model = small(
        zoo.reformer(16, 1, 2, shape="both", attention=("lsh",), pattern=RankWindow(8), buckets=8, position=None)
    )
    found = model.lsh_recall(TEXT, "the dog sat on the mat")
    assert [one.layer for one in found.layers] == ["encoder.0.self", "decoder.0.self"]
    assert found.tokens > 40
    with pytest.raises(InputError, match="a single token has no other token"):
        model.lsh_recall("", "the dog sat on the mat")


def test_a_model_without_lsh_layers_is_refused():
    full = small(zoo.reformer(16, 1, 2, attention=("full",), position=None))
    assert lsh_layers(full.network) == []
    assert LSHAttention(2, Full()).build(16)
    for model in (full, small(zoo.gpt2(16, 1, 2))):
        with pytest.raises(InputError, match="no layer of this model hashes"):
            model.lsh_recall(TEXT)
    with pytest.raises(InputError, match="top and rounds"):
        small(zoo.reformer(16, 1, 2, attention=("lsh",), pattern=RankWindow(8), buckets=8)).lsh_recall(TEXT, top=0)
