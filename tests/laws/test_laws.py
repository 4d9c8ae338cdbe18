"""The laws that every model obeys (ARCHITECTURE.md, Laws)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.models.model import Network
from regard.parts.contract import Change, Context, Record, Source, map_rows, select
from tests.laws.zoo import LANGUAGE_MODELS, MODELS, TRANSLATORS, VOCABULARY, build

TOLERANCE = 1e-4
every = pytest.mark.parametrize("name", MODELS)
LENGTHS = torch.tensor([9, 4, 6])


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padding(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width) < lengths[:, None]


def sources(network: Network) -> Source | None:
    return None if network.encoder is None else network.encode(tokens(3, 9, seed=1), padding(LENGTHS, 9))


def logits(network: Network, ids: Tensor, context: Context) -> Tensor:
    return network.readout(network.decode(ids, context)[0])


def gap(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@every
@pytest.mark.parametrize("step", [1, 3, 7])
def test_stepping_with_memory_equals_reading_at_once(name: str, step: int):
    network, ids = build(name), tokens(3, 19)
    context = Context(source=sources(network))
    whole = logits(network, ids, context)
    memory, parts = None, []
    for start in range(0, 19, step):
        now = replace(context, start=start, remember=True)
        states, memory = network.decode(ids[:, start : start + step], now, memory)
        parts.append(network.readout(states))
    assert gap(torch.cat(parts, dim=1), whole) < TOLERANCE


@every
def test_prompts_of_unequal_length_go_on_as_if_alone(name: str):
    network, ids, following = build(name), tokens(3, 8), tokens(3, 70, seed=2)
    lengths, source = torch.tensor([8, 3, 5]), sources(network)
    context = Context(source=source, padding=padding(lengths, 8), remember=True)
    states, memory = network.decode(ids, context)
    for t in range(20):
        now = Context(source=source, start=lengths + t, end=8 + t + 1, remember=True)
        states, memory = network.decode(following[:, t : t + 1], now, memory)
    for row in range(3):
        alone = None if source is None else map_rows(lambda tensor, row=row: tensor[row : row + 1], source)
        read = torch.cat([ids[row : row + 1, : lengths[row]], following[row : row + 1, :20]], dim=1)
        expected = logits(network, read, Context(source=alone))[:, -1]
        assert gap(network.readout(states[row : row + 1, -1]), expected) < TOLERANCE


@every
def test_the_future_does_not_change_the_past(name: str):
    network, ids = build(name), tokens(3, 12)
    context = Context(source=sources(network))
    whole = logits(network, ids, context)
    changed = torch.cat([ids[:, :7], tokens(3, 5, seed=9)], dim=1)
    assert gap(logits(network, changed, context)[:, :7], whole[:, :7]) < 1e-5
    assert gap(logits(network, changed, context)[:, 7:], whole[:, 7:]) > 1e-3


@every
def test_padding_changes_nothing(name: str):
    network, ids, lengths = build(name), tokens(3, 12), torch.tensor([12, 7, 3])
    source = sources(network)
    whole = logits(network, ids, Context(source=source))
    more = torch.cat([ids, tokens(3, 4, seed=5)], dim=1)
    padded = logits(network, more, Context(source=source, padding=padding(lengths, 16)))
    for row, length in enumerate(lengths.tolist()):
        assert gap(padded[row, :length], whole[row, :length]) < TOLERANCE


@pytest.mark.parametrize("name", TRANSLATORS)
def test_padding_of_the_source_changes_nothing(name: str):
    network, ids, short = build(name), tokens(3, 12), tokens(3, 9, seed=1)
    seen = padding(LENGTHS, 9)
    whole = network(ids, source_ids=short, source_padding=seen)
    junk = torch.cat([torch.where(seen, short, tokens(3, 9, seed=7)), tokens(3, 5, seed=8)], dim=1)
    more = torch.cat([seen, torch.zeros(3, 5, dtype=torch.bool)], dim=1)
    assert gap(network(ids, source_ids=junk, source_padding=more), whole) < TOLERANCE
    other = torch.cat([tokens(3, 1, seed=11), short[:, 1:]], dim=1)
    assert gap(network(ids, source_ids=other, source_padding=seen), whole) > 1e-3


@every
def test_padding_on_the_left_is_moved_to_the_right_and_back(name: str):
    network, ids, lengths = build(name), tokens(3, 9), LENGTHS
    sides = {}
    if network.encoder is not None:
        sides = {"source_ids": tokens(3, 9, seed=1), "source_padding": padding(LENGTHS, 9).flip(1)}
    right = network(ids, padding=padding(lengths, 9), **sides)
    left_ids = torch.stack([row.roll(9 - n) for row, n in zip(ids, lengths.tolist())])
    left = network(left_ids, padding=padding(lengths, 9).flip(1), **sides)
    for row, n in enumerate(lengths.tolist()):
        assert gap(left[row, 9 - n :], right[row, :n]) < TOLERANCE


@every
def test_a_sentence_gets_the_same_answer_alone_and_in_a_batch(name: str):
    network, ids = build(name), tokens(3, 12)
    whole = logits(network, ids, Context(source=sources(network)))
    for row, length in enumerate(LENGTHS.tolist()):
        source = None
        if network.encoder is not None:
            source = network.encode(tokens(3, 9, seed=1)[row : row + 1, :length])
        assert gap(logits(network, ids[row : row + 1], Context(source=source)), whole[row : row + 1]) < TOLERANCE


@every
def test_looking_changes_nothing_and_weights_sum_to_one(name: str):
    network, ids = build(name), tokens(3, 12)
    context = Context(source=sources(network))
    record = Record()
    seen = logits(network, ids, replace(context, record=record))
    assert torch.equal(seen, logits(network, ids, context))
    assert record.rows
    for layer in record.rows:
        weights = record.matrix(layer)
        assert weights.shape[:3] == (3, weights.shape[1], 12)
        assert gap(weights.sum(-1), torch.ones(())) < 1e-5
        assert weights.min() >= 0


@every
def test_stepping_records_what_reading_at_once_does(name: str):
    network, ids = build(name), tokens(3, 10)
    context = Context(source=sources(network))
    whole, stepped, memory = Record(), Record(), None
    logits(network, ids, replace(context, record=whole))
    for start in range(10):
        now = replace(context, start=start, remember=True, record=stepped)
        _, memory = network.decode(ids[:, start : start + 1], now, memory)
    assert whole.rows.keys() == stepped.rows.keys()
    for layer in whole.rows:
        assert gap(stepped.matrix(layer), whole.matrix(layer)) < 1e-5


@every
def test_rows_of_memory_can_be_repeated_reordered_and_dropped(name: str):
    network, ids, following = build(name), tokens(3, 6), tokens(3, 1, seed=3)
    context = Context(source=sources(network), remember=True)
    _, memory = network.decode(ids, context)
    two = torch.tensor([0, 0, 1, 1, 2, 2])
    memory = select(memory, two)
    wide, memory = network.decode(following[two], replace(context, start=6), memory)
    keep, rows = torch.tensor([0, 2]), torch.tensor([1, 0, 5, 4])
    memory = select(memory, rows, keep)
    source = map_rows(lambda tensor: tensor[keep], context.source)
    last = tokens(4, 1, seed=4)
    narrow, _ = network.decode(last, Context(source=source, start=7, remember=True), memory)
    for row, old in enumerate(two[rows].tolist()):
        alone = map_rows(lambda tensor, old=old: tensor[old : old + 1], context.source)
        read = torch.cat([ids[old], following[old], last[row]])[None]
        assert gap(network.decode(read, Context(source=alone))[0][0, -1], narrow[row, 0]) < TOLERANCE
    assert gap(wide[0], wide[1]) < 1e-5


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_source_without_tokens_hurts_nobody(name: str):
    network, ids, ids_source = build(name), tokens(3, 12), tokens(3, 9, seed=1)
    seen = padding(LENGTHS, 9)
    whole = network(ids, source_ids=ids_source, source_padding=seen)
    nothing = seen.clone()
    nothing[1] = False
    source = network.encode(ids_source, nothing)
    answer = logits(network, ids, Context(source=source))
    assert answer.isfinite().all()
    assert max(gap(answer[0], whole[0]), gap(answer[2], whole[2])) < TOLERANCE


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_packed_documents_do_not_see_each_other(name: str):
    network = build(name)
    lengths = [5, 3, 6]
    row = tokens(2, 14)
    document = torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)]).expand(2, -1)
    positions = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    packed = network(row, document=document, positions=positions)
    start = 0
    for n in lengths:
        assert gap(packed[:, start : start + n], network(row[:, start : start + n])) < TOLERANCE
        start += n
    seen = torch.ones(2, 14, dtype=torch.bool)
    seen[0, :5] = False
    left = network(row, document=document, positions=positions, padding=seen)
    assert gap(left[0, 5:], packed[0, 5:]) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in MODELS if "recurrent" not in name])
def test_a_head_that_is_switched_off_is_silent(name: str):
    network, ids = build(name), tokens(3, 6)
    inputs = {} if network.encoder is None else {"source_ids": tokens(3, 9, seed=1)}
    whole = network.states(ids, **inputs)
    off = network.states(ids, **inputs, change=Change({"decoder.0.self": (0,)}))
    assert gap(off, whole) > 1e-3
    assert torch.equal(network.states(ids, **inputs, change=Change({"decoder.9.self": (0,)})), whole)
