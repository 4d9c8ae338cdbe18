"""Recorded attention weights: any slice of queries of any head, the inputs of their scores, and value norms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers.attention import CrossAttention, SelfAttention, split_heads
from regard.layers.contract import Context, Source, facts_of
from regard.layers.gated_attention import GatedAttention
from regard.layers.lsh import masks
from regard.layers.lsh.attention import LSHAttention
from regard.layers.lsh.masks import Chunks, RankWindow
from regard.layers.patterns import Causal, CentredWindow, ChunkWindow, Full, Window
from regard.layers.record import AttentionWeights, Record, ScoreInputs
from regard.models import zoo as ours
from regard.models.model import Model, Network
from tests.laws import zoo

LENGTH = 23
CHUNKED = {
    "chunks": ours.reformer(
        24, 2, 3, inner=40, pattern=Chunks(4, all_windows=(4,), max_positions=64), buckets=4, attention=("lsh", "local")
    ),
    "chunks, reading": ours.reformer(
        24, 2, 3, inner=40, pattern=Chunks(4, after=1, max_positions=64), buckets=4, attention=("lsh",), shape="encoder"
    ),
}


class LazyRecord(Record):
    """Keeps the lazy weights and the output of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, list[AttentionWeights]] = {}
        self.outputs: dict[str, list[Tensor]] = {}

    def record_attention(self, name: str, weights: AttentionWeights, output: Tensor) -> None:
        self.parts.setdefault(name, []).append(weights)
        self.outputs.setdefault(name, []).append(output)


def built(name: str) -> Network:
    if name not in CHUNKED:
        return zoo.build(name)
    torch.manual_seed(0)
    return CHUNKED[name].build(zoo.VOCABULARY).eval()


def inputs_for(description: Model, rows: int = 2) -> dict[str, Tensor]:
    ids = torch.randint(3, zoo.VOCABULARY, (2 * rows, LENGTH), generator=torch.Generator().manual_seed(1))
    padding = torch.ones(rows, LENGTH, dtype=torch.bool)
    padding[-1, -4:] = False
    inputs = {"ids": ids[:rows], "padding": padding}
    if description.shape == "encoder-decoder":
        inputs |= {"source_ids": ids[rows:, :17], "source_padding": padding[:, 6:]}
    return inputs


ATTENTION_MODELS = [
    name for name, model in {**zoo.MODELS, **CHUNKED}.items() if any(facts_of(part).heads for part in model.parts)
]


@torch.no_grad()
@pytest.mark.parametrize("name", ATTENTION_MODELS)
def test_a_slice_of_queries_has_the_rows_of_the_whole_matrix(name: str):
    network, whole, kept = built(name), Record(), LazyRecord()
    inputs = inputs_for(network.description)
    network.hidden_states(**inputs, record=whole)
    network.hidden_states(**inputs, record=kept)
    assert whole.rows.keys() == kept.parts.keys()
    for layer, parts in kept.parts.items():
        matrix = whole.matrix(layer)
        assert matrix.shape == (2, parts[0].heads, sum(part.queries for part in parts), parts[0].keys)
        cuts = [[*range(0, part.queries, 5), part.queries] for part in parts]
        for head in range(parts[0].heads):
            blocks = [
                part.head(head)(slice(first, last)) for part, ends in zip(parts, cuts) for first, last in pairwise(ends)
            ]
            # A slice may end at its last query's key: no later one has a weight.
            blocks = [F.pad(block, (0, parts[0].keys - block.shape[-1])) for block in blocks]
            torch.testing.assert_close(torch.cat(blocks, dim=1), matrix[:, head], atol=1e-6, rtol=1e-5)
        first = matrix[:, :, : parts[0].queries]
        torch.testing.assert_close(parts[0].weights(slice(0, 4)), first[:, :, :4], atol=1e-6, rtol=1e-5)


def scores_of(inputs: ScoreInputs) -> Tensor:
    """Every query with every key."""
    q, k = inputs.query[:, :, :, None], inputs.key[:, :, None]
    if inputs.kind == "additive":
        return (torch.tanh(q + k) * inputs.vector[:, None, None]).sum(-1)
    return (q * k).sum(-1) * (0 if inputs.kind == "uniform" else inputs.scale)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in ATTENTION_MODELS if "local-p" not in name])
def test_weights_follow_from_the_score_inputs(name: str):
    network, kept = built(name), LazyRecord()
    if not network.description.incremental:
        pytest.skip("a key that two rounds find counts twice")
    network.hidden_states(**inputs_for(network.description, rows=1), record=kept)
    for parts in kept.parts.values():
        for part in parts:
            inputs, weights = part.score_inputs(), part.weights(slice(0, part.queries))
            scores = scores_of(inputs)
            scores = scores if inputs.bias is None else scores + inputs.bias
            expected = scores.masked_fill(weights == 0, -torch.inf).softmax(-1).nan_to_num(0)
            torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("pattern", [Full(), Causal(), Window(4), CentredWindow(3), ChunkWindow(4)])
def test_self_attention_records_the_weights_that_it_computes_with(pattern: object):
    torch.manual_seed(0)
    layer, x, kept = SelfAttention(3, pattern=pattern).build(12), drawn(1, 9, 12), LazyRecord()
    y, _ = layer(x, Context(record=kept))
    (part,) = kept.parts[""]
    q, k, v = (split_heads(one, 3) for one in layer.query_key_value(x).chunk(3, dim=-1))
    slots = torch.arange(9)
    mask = pattern.mask(slots, slots)
    scores = q @ k.mT / 2
    weights = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
    torch.testing.assert_close(part.weights(slice(0, 9)), weights)
    matrices = layer.out.weight.unflatten(1, (3, 4))
    projected = torch.einsum("bhsv,dhv->bhsd", v, matrices)
    torch.testing.assert_close(part.value_norms(), projected.norm(dim=-1))
    torch.testing.assert_close(y, torch.einsum("bhts,bhsd->btd", weights, projected) + layer.out.bias)
    torch.testing.assert_close(kept.outputs[""][0], weights @ v)


@torch.no_grad()
def test_each_beam_is_recorded_as_a_row():
    torch.manual_seed(0)
    layer, x, kept = CrossAttention(2).build(8, 8), drawn(6, 3, 8), LazyRecord()
    source = Source(drawn(2, 5, 8, seed=1), torch.arange(5) < torch.tensor([[5], [3]]))
    layer(x, Context(source=source, record=kept))
    (part,) = kept.parts[""]
    isolated = []
    for row in range(6):
        record = LazyRecord()
        one = Source(source.states[row // 3][None], source.padding[row // 3][None])
        layer(x[row : row + 1], Context(source=one, record=record))
        isolated.append(record.parts[""][0].weights(slice(1, 3)))
    assert part.queries == 3
    torch.testing.assert_close(part.weights(slice(1, 3)), torch.cat(isolated))
    torch.testing.assert_close(part.head(1)(slice(1, 3)), torch.cat(isolated)[:, 1])
    assert kept.outputs[""][0].shape == part.score_inputs().query.shape == (6, 2, 3, 4)
    assert part.score_inputs().key.shape == (6, 2, 5, 4)


@torch.no_grad()
def test_states_that_left_the_cache_weigh_zero():
    torch.manual_seed(0)
    layer, x, kept, whole = GatedAttention(2, pattern=Window(4)).build(8), drawn(1, 14, 8), LazyRecord(), LazyRecord()
    layer(x, Context(record=whole))
    memory = None
    for at in range(14):
        _, memory = layer(x[:, at : at + 1], Context(start=at, remember=True, record=kept), memory)
    last = kept.parts[""][-1]
    assert memory.length < x.shape[1]
    assert last.keys == last.score_inputs().key.shape[2] == last.value_norms().shape[-1] == 14
    expected = whole.parts[""][0]
    torch.testing.assert_close(last.weights(slice(0, 1)), expected.weights(slice(13, 14)))
    torch.testing.assert_close(last.value_norms()[..., -3:], expected.value_norms()[..., -3:])
    gate = split_heads(layer.output_gate()[None, None], 2)
    torch.testing.assert_close(expected.value_norms(), (split_heads(x, 2) * gate).norm(dim=-1))


@torch.no_grad()
@pytest.mark.parametrize("pattern", [masks.Full(), RankWindow(3), Chunks(4)])
def test_a_slice_of_one_head_never_allocates_queries_times_keys(pattern: object):
    torch.manual_seed(0)
    length = 512
    layer = LSHAttention(2, pattern=pattern, buckets=8).build(8)
    kept = LazyRecord()
    layer(drawn(1, length, 8), Context(record=kept))
    with Largest() as largest:
        found = kept.parts[""][0].head(1)(slice(100, 104))
    assert found.shape == (1, 4, length)
    assert 4 * length <= largest.elements <= 32 * length


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The number of elements of the largest tensor that is allocated."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        found = function(*arguments, **(named or {}))
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return found


def test_only_the_wanted_layers_are_recorded():
    record = LazyRecord()
    record.wanted = lambda name: name == "decoder.1.self"
    network = zoo.build("gpt2")
    network.hidden_states(**inputs_for(network.description), record=record)
    assert list(record.parts) == ["decoder.1.self"]
    assert replace(Context(), record=record, name="decoder.1.self").recording
