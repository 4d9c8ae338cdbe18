"""Recurrent decoders with attention against their papers' equations, written out for one row at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention_decoder import Attentional, AttentionalLayer, Attentive, AttentiveLayer, Before
from regard.layers.contract import Context, Source
from regard.layers.patterns import Everything, LocalM, LocalP
from regard.layers.record import Record
from regard.layers.recurrent import GRU, LSTM, RNN, Recurrent, State
from regard.layers.scores import Additive, AnyScore, Dot, General, ReducedRank, Uniform
from regard.models import zoo
from regard.models.model import Network

WIDTH = 6
LENGTHS = [7, 3, 5]
PADDING = torch.arange(7) < torch.tensor(LENGTHS)[:, None]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def source() -> Source:
    torch.manual_seed(0)
    states, final = Recurrent(LSTM(), 2).build(WIDTH).eval()(drawn(3, 7, WIDTH), Context(padding=PADDING))
    return Source(states, PADDING, (final,))


def loud(layer: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.6)
    return layer.eval()


def row_of(states: tuple[State, ...], row: int) -> tuple[State, ...]:
    pick = slice(row, row + 1)
    return tuple(State(state.shown[pick], None if state.held is None else state.held[pick]) for state in states)


def answered(score: nn.Module, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the compared keys; SD -> D and the weights S."""
    energy = torch.stack([compared(score, query, key) for key in keys])
    weights = energy.softmax(0)
    return weights @ keys, weights


def compared(score: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    """One query and one key, as the papers write it."""
    names = dict(score.named_parameters())
    if "vector" in names:
        return names["vector"][0, :, 0] @ (names["query_matrix"][0].T @ q + names["key_matrix"][0].T @ k).tanh()
    if "query_matrix" in names:
        return (names["query_matrix"][0].T @ q) @ (names["key_matrix"][0].T @ k)
    if "matrix" in names:
        return q @ (names["matrix"][0].T @ k)
    return q @ k / math.sqrt(len(k))


@pytest.mark.parametrize("cell", [RNN(), GRU(), LSTM()])
@pytest.mark.parametrize("score", [Additive(5), General(), ReducedRank(2), Dot()])
def test_asking_before_is_bahdanaus_decoder(cell: RNN | GRU | LSTM, score: AnyScore):
    layer: AttentiveLayer = loud(Attentive(Before(), cell, 2, score).build(WIDTH))
    x, said = drawn(3, 4, WIDTH, seed=2), source()
    record = Record()
    found, _ = layer(x, Context(source=said, record=record, name="cross"))
    for row, length in enumerate(LENGTHS):
        keys = said.states[row, :length]
        states = row_of(layer.begin(said), row)
        for t in range(4):
            answer, weights = answered(layer.ask.score, states[-1].shown[0], keys)
            low = layer.steps[0](layer.read(x[row, t])[None], answer[None], states[0])
            states = low, layer.steps[1](layer.biases[0], low.shown, states[1])
            one, other = layer.out(torch.cat([states[1].shown[0], answer, x[row, t]])).chunk(2)
            torch.testing.assert_close(found[row, t], torch.maximum(one, other), atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(record.matrix("cross")[row, 0, t, :length], weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("score", [Additive(5), General(), ReducedRank(2), Dot()])
def test_asking_after_is_luongs_decoder(score: AnyScore):
    layer: AttentiveLayer = loud(Attentive(depth=2, score=score).build(WIDTH))
    x, said = drawn(3, 4, WIDTH, seed=2), source()
    found, _ = layer(x, Context(source=said))
    for row, length in enumerate(LENGTHS):
        states, fed = row_of(layer.begin(said), row), torch.zeros(WIDTH)
        for t in range(4):
            low = layer.steps[0](layer.read(x[row, t])[None], fed[None], states[0])
            states = low, layer.steps[1](layer.biases[0], low.shown, states[1])
            answer, _ = answered(layer.ask.score, states[1].shown[0], said.states[row, :length])
            fed = layer.out(torch.cat([answer, states[1].shown[0]])).tanh()
            torch.testing.assert_close(found[row, t], fed, atol=1e-6, rtol=1e-5)


def test_local_m_sees_what_is_near_the_querys_own_place():
    layer: AttentionalLayer = loud(Attentional(Dot(), LocalM(2)).build(WIDTH))
    x, said, record = drawn(3, 9, WIDTH, seed=2), source(), Record()
    found, _ = layer(x, Context(source=said, record=record, name="cross"))
    for row, length in enumerate(LENGTHS):
        for t in range(9):
            place = min(t, length - 1)
            near = range(max(0, place - 2), min(length, place + 3))
            answer, weights = answered(layer.ask.score, x[row, t], said.states[row, list(near)])
            expected = torch.zeros(7)
            expected[list(near)] = weights
            torch.testing.assert_close(record.matrix("cross")[row, 0, t], expected, atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(
                found[row, t], layer.out(torch.cat([answer, x[row, t]])).tanh(), atol=1e-6, rtol=1e-5
            )


def test_local_p_fades_from_the_place_it_predicts():
    layer: AttentionalLayer = loud(Attentional(General(), LocalP(2)).build(WIDTH))
    x, said, record = drawn(3, 9, WIDTH, seed=2), source(), Record()
    layer(x, Context(source=said, record=record, name="cross"))
    focus, places = layer.ask.focus, set()
    for row, length in enumerate(LENGTHS):
        for t in range(9):
            place = ((length - 1) * focus.place(focus.inner(x[row, t]).tanh()).sigmoid()).item()
            near = [s for s in range(length) if abs(s - place) <= 2]
            _, weights = answered(layer.ask.score, x[row, t], said.states[row, near])
            expected = torch.zeros(7)
            expected[near] = weights * torch.tensor([math.exp(-((s - place) ** 2) / (2 * 1.0**2)) for s in near])
            torch.testing.assert_close(record.matrix("cross")[row, 0, t], expected, atol=1e-6, rtol=1e-5)
            places.add(round(place, 3))
    assert len(places) > 20
    assert float(record.matrix("cross").sum(-1).max()) < 1


def test_an_unattentive_score_is_the_mean_of_the_source():
    layer: AttentionalLayer = loud(Attentional(Uniform()).build(WIDTH))
    x, said = drawn(3, 4, WIDTH, seed=2), source()
    found, _ = layer(x, Context(source=said))
    for row, length in enumerate(LENGTHS):
        mean = said.states[row, :length].mean(0)
        expected = torch.stack([layer.out(torch.cat([mean, token])).tanh() for token in x[row]])
        torch.testing.assert_close(found[row], expected, atol=1e-6, rtol=1e-5)


def test_without_feeding_the_whole_target_is_read_at_once():
    with_feeding, without = (zoo.luong(WIDTH, 2, feeding=feeding) for feeding in (True, False))
    assert [type(part) for part in with_feeding.decoder.layers[0]] == [Attentive]
    assert [type(part) for part in without.decoder.layers[0]] == [Recurrent, Attentional]


@pytest.mark.parametrize("see", [LocalM, LocalP])
def test_a_reach_must_reach(pattern: type[LocalM] | type[LocalP]):
    with pytest.raises(InputError, match="reach must be 1 or more, got 0"):
        pattern(0)


@pytest.mark.parametrize("name", ["seq2seq", "bahdanau", "luong"])
def test_gradients_reach_every_weight(name: str):
    torch.manual_seed(0)
    network: Network = getattr(zoo, name)(8, 2).build(20)
    inputs = {
        "ids": torch.randint(0, 20, (3, 5)),
        "source_ids": torch.randint(0, 20, (3, 7)),
        "source_padding": PADDING,
    }
    network.loss(inputs, torch.randint(0, 20, (3, 5))).backward()
    silent = {name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert silent == set()


def test_the_papers_sizes_are_the_defaults():
    assert zoo.seq2seq().width == zoo.bahdanau().width == zoo.luong().width == 1000
    assert zoo.luong().decoder.layers[0][0].pattern == Everything()
    with torch.device("meta"):
        counted = sum(weight.numel() for weight in zoo.seq2seq(1000, 4).build(80_000, 160_000).parameters())
    # Sutskever 2014, section 3.4: 384 million parameters, of which 64 million recurrent; ours have a second bias.
    recurrent = 8 * (4 * 1000 * 2000 + 2 * 4000)
    assert counted == 160_000 * 1000 + 80_000 * 1000 + 80_000 * 1001 + recurrent
    assert round(recurrent / 1e6) == 64


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("see", [Everything(), LocalM(2), LocalP(2)])
@pytest.mark.parametrize("cell", [RNN(), GRU(), LSTM()])
@pytest.mark.parametrize("reads", ["backward", "both"])
def test_half_precision_reads_what_full_precision_does(cell: RNN | GRU | LSTM, pattern: object, reads: str, feeding: bool):
    torch.manual_seed(0)
    network = zoo.luong(8, 2, cell=cell, pattern=pattern, reads=reads, feeding=feeding, dropout=0.0).build(20)
    inputs = {
        "ids": torch.randint(0, 20, (3, 5)),
        "source_ids": torch.randint(0, 20, (3, 7)),
        "source_padding": PADDING,
    }
    targets = torch.randint(0, 20, (3, 5))
    whole = network.loss(inputs, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = network.loss(inputs, targets)
    half.backward()
    assert half.item() == pytest.approx(whole.item(), rel=0.02)
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in network.parameters())
