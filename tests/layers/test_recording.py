"""What layers tell of their weights: any queries of any head, what the weights are made of, and how long values are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from regard.evaluation.laws import steady
from regard.layers.attention import CrossAttention, SelfAttention, split_heads
from regard.layers.contract import Context, Source
from regard.layers.gated_attention import GatedAttention
from regard.layers.lsh.attention import LSHAttention
from regard.layers.lsh.masks import Chunks, Ranks, Whole
from regard.layers.patterns import Around, Causal, Everything, Neighbours, Window
from regard.layers.record import Attended, Inside, Record
from regard.models import zoo as ours
from regard.models.model import Model, Network
from tests.laws import zoo

LENGTH = 23
CHUNKED = {
    "chunks": ours.reformer(
        24, 2, 3, inner=40, pattern=Chunks(4, among=(4,), max_positions=64), buckets=4, attention=("lsh", "local")
    ),
    "chunks, reading": ours.reformer(
        24, 2, 3, inner=40, pattern=Chunks(4, after=1, max_positions=64), buckets=4, attention=("lsh",), shape="encoder"
    ),
}


class Kept(Record):
    """Keeps what can tell weights."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, list[Attended]] = {}

    def watch(self, name: str, attended: Attended) -> None:
        self.parts.setdefault(name, []).append(attended)


def built(name: str) -> Network:
    if name not in CHUNKED:
        return zoo.build(name)
    torch.manual_seed(0)
    return CHUNKED[name].build(zoo.VOCABULARY).eval()


def given(description: Model, rows: int = 2) -> dict[str, Tensor]:
    ids = torch.randint(3, zoo.VOCABULARY, (2 * rows, LENGTH), generator=torch.Generator().manual_seed(1))
    both = description.encoder is not None and description.decoder is not None
    padding = torch.ones(rows, LENGTH, dtype=torch.bool)
    padding[-1, -4:] = False
    source = {"source_ids": ids[rows:, :17], "source_padding": padding[:, 6:]} if both else {}
    return {"ids": ids[:rows], "padding": padding, **source}


def everything() -> list[str]:
    found = {**zoo.MODELS, **CHUNKED}
    return [name for name, model in found.items() if any(_attends(part) for part in _parts(model))]


def _parts(model: Model) -> list[object]:
    return [part for stack in (model.encoder, model.decoder) if stack for layer in stack.layers for part in layer]


def _attends(part: object) -> bool:
    return hasattr(part, "see")


@torch.no_grad()
@pytest.mark.parametrize("name", everything())
def test_any_queries_of_any_head_are_those_of_the_whole(name: str):
    network, whole, kept = built(name), Record(), Kept()
    inputs = given(network.description)
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
            torch.testing.assert_close(torch.cat(blocks, dim=1), matrix[:, head], atol=1e-6, rtol=1e-5)
        first = matrix[:, :, : parts[0].queries]
        torch.testing.assert_close(parts[0].weights(slice(0, 4)), first[:, :, :4], atol=1e-6, rtol=1e-5)


def compared(inside: Inside) -> Tensor:
    """Every query with every key."""
    q, k = inside.query[:, :, :, None], inside.key[:, :, None]
    if inside.kind == "additive":
        return (torch.tanh(q + k) * inside.vector[:, None, None]).sum(-1)
    return (q * k).sum(-1) * (0 if inside.kind == "even" else inside.scale)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in everything() if "local-p" not in name])
def test_weights_follow_from_what_is_inside(name: str):
    network, kept = built(name), Kept()
    if not steady(network.description):
        pytest.skip("a key that two rounds find counts twice")
    network.hidden_states(**given(network.description, rows=1), record=kept)
    for parts in kept.parts.values():
        for part in parts:
            inside, weights = part.inside(), part.weights(slice(0, part.queries))
            scores = compared(inside)
            scores = scores if inside.bias is None else scores + inside.bias
            expected = scores.masked_fill(weights == 0, -torch.inf).softmax(-1).nan_to_num(0)
            torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("see", [Everything(), Causal(), Window(4), Around(3), Neighbours(4)])
def test_self_attention_tells_what_it_computes(pattern: object):
    torch.manual_seed(0)
    layer, x, kept = SelfAttention(3, pattern=pattern).build(12), drawn(1, 9, 12), Kept()
    y, _ = layer(x, Context(record=kept))
    (part,) = kept.parts[""]
    q, k, v = (split_heads(one, 3) for one in layer.query_key_value(x).chunk(3, dim=-1))
    slots = torch.arange(9)
    seen = pattern.sees(slots, slots)
    scores = q @ k.mT / 2
    weights = (scores if seen is None else scores.masked_fill(~seen, -torch.inf)).softmax(-1)
    torch.testing.assert_close(part.weights(slice(0, 9)), weights)
    maps = layer.out.weight.unflatten(1, (3, 4))
    through = torch.einsum("bhsv,dhv->bhsd", v, maps)
    torch.testing.assert_close(part.norms(), through.norm(dim=-1))
    told = torch.einsum("bhts,bhsd->btd", weights, through) + layer.out.bias
    torch.testing.assert_close(y, told)


@torch.no_grad()
def test_beams_are_rows_of_their_own():
    torch.manual_seed(0)
    layer, x, kept = CrossAttention(2).build(8, 8), drawn(6, 3, 8), Kept()
    source = Source(drawn(2, 5, 8, seed=1), torch.arange(5) < torch.tensor([[5], [3]]))
    layer(x, Context(source=source, record=kept))
    (part,) = kept.parts[""]
    alone = []
    for row in range(6):
        record = Kept()
        one = Source(source.states[row // 3][None], source.padding[row // 3][None])
        layer(x[row : row + 1], Context(source=one, record=record))
        alone.append(record.parts[""][0].weights(slice(1, 3)))
    assert part.queries == 3
    torch.testing.assert_close(part.weights(slice(1, 3)), torch.cat(alone))
    torch.testing.assert_close(part.head(1)(slice(1, 3)), torch.cat(alone)[:, 1])
    assert part.inside().query.shape == (6, 2, 3, 4)
    assert part.inside().key.shape == (6, 2, 5, 4)


@torch.no_grad()
def test_what_is_gone_weighs_nothing():
    torch.manual_seed(0)
    layer, x, kept, whole = GatedAttention(2, pattern=Window(4)).build(8), drawn(1, 14, 8), Kept(), Kept()
    layer(x, Context(record=whole))
    memory = None
    for at in range(14):
        _, memory = layer(x[:, at : at + 1], Context(start=at, remember=True, record=kept), memory)
    last = kept.parts[""][-1]
    assert int(memory.first[0]) > 0
    assert last.keys == last.inside().key.shape[2] == last.norms().shape[-1] == 14
    expected = whole.parts[""][0]
    torch.testing.assert_close(last.weights(slice(0, 1)), expected.weights(slice(13, 14)))
    torch.testing.assert_close(last.norms()[..., -3:], expected.norms()[..., -3:])
    gate = split_heads(layer.polarity()[None, None], 2)
    torch.testing.assert_close(expected.norms(), (split_heads(x, 2) * gate).norm(dim=-1))


@torch.no_grad()
@pytest.mark.parametrize("see", [Whole(), Ranks(3), Chunks(4)])
def test_nothing_as_large_as_queries_times_keys_is_made_for_some_queries_of_one_head(pattern: object):
    torch.manual_seed(0)
    length = 512
    layer = LSHAttention(2, pattern=pattern, buckets=8).build(8)
    kept = Kept()
    layer(drawn(1, length, 8), Context(record=kept))
    with Largest() as largest:
        found = kept.parts[""][0].head(1)(slice(100, 104))
    assert found.shape == (1, 4, length)
    assert 4 * length <= largest.numbers <= 32 * length


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the numbers of the largest tensor that is made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        found = function(*arguments, **(named or {}))
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return found


def test_a_layer_that_nobody_wants_is_not_asked():
    record = Kept()
    record.wanted = lambda name: name == "decoder.1.self"
    network = zoo.build("gpt2")
    network.hidden_states(**given(network.description), record=record)
    assert list(record.parts) == ["decoder.1.self"]
    assert replace(Context(), record=record, name="decoder.1.self").looking
