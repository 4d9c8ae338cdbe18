"""Recurrent decoders with attention against their papers' equations, written out for one row at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention_decoder import (
    AttentionalVector,
    AttentionalVectorLayer,
    AttentionDecoder,
    AttentionDecoderLayer,
)
from regard.layers.contract import Context, Source
from regard.layers.patterns import Full, LocalM, LocalP
from regard.layers.record import Record
from regard.layers.recurrent import GRU, LSTM, RNN, Recurrent, State
from regard.layers.scores import Additive, Dot, General, ReducedRank, Score, Uniform
from regard.models import zoo
from regard.models.model import Network

WIDTH = 6
LENGTHS = [7, 3, 5]
PADDING = torch.arange(7) < torch.tensor(LENGTHS)[:, None]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def encoded_source() -> Source:
    torch.manual_seed(0)
    states, final = Recurrent(LSTM(), 2).build(WIDTH).eval()(random(3, 7, WIDTH), Context(padding=PADDING))
    return Source(states, PADDING, (final,))


def batch() -> tuple[dict[str, Tensor], Tensor]:
    ids, source_ids, targets = (torch.randint(0, 20, (3, length)) for length in (5, 7, 5))
    return {"ids": ids, "source_ids": source_ids, "source_padding": PADDING}, targets


def with_large_weights(layer: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.6)
    return layer.eval()


def row_of(states: tuple[State, ...], row: int) -> tuple[State, ...]:
    rows = slice(row, row + 1)
    return tuple(State(state.hidden[rows], None if state.cell is None else state.cell[rows]) for state in states)


def attention(score: nn.Module, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The context vector D of a query D over keys SD, and the weights S."""
    weights = torch.stack([score_of(score, query, key) for key in keys]).softmax(0)
    return weights @ keys, weights


def score_of(score: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    """The score of one query and one key, as the papers write it."""
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
def test_attention_before_the_cell_is_bahdanaus_decoder(cell: RNN | GRU | LSTM, score: Score):
    layer: AttentionDecoderLayer = with_large_weights(AttentionDecoder("before", cell, 2, score).build(WIDTH))
    x, source = random(3, 4, WIDTH, seed=2), encoded_source()
    record = Record()
    found, _ = layer(x, Context(source=source, record=record, name="cross"))
    for row, length in enumerate(LENGTHS):
        annotations = source.states[row, :length]
        states = row_of(layer.initial_state(source), row)
        for t in range(4):
            c, weights = attention(layer.attention.score, states[-1].hidden[0], annotations)
            low = layer.cells[0](layer.token_projection(x[row, t])[None], c[None], states[0])
            states = low, layer.cells[1](layer.biases[0], low.hidden, states[1])
            one, other = layer.out(torch.cat([states[1].hidden[0], c, x[row, t]])).chunk(2)
            torch.testing.assert_close(found[row, t], torch.maximum(one, other), atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(record.matrix("cross")[row, 0, t, :length], weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("score", [Additive(5), General(), ReducedRank(2), Dot()])
def test_attention_after_the_cell_is_luongs_decoder(score: Score):
    layer: AttentionDecoderLayer = with_large_weights(AttentionDecoder(depth=2, score=score).build(WIDTH))
    x, source = random(3, 4, WIDTH, seed=2), encoded_source()
    found, _ = layer(x, Context(source=source))
    for row, length in enumerate(LENGTHS):
        states, attentional = row_of(layer.initial_state(source), row), torch.zeros(WIDTH)
        for t in range(4):
            low = layer.cells[0](layer.token_projection(x[row, t])[None], attentional[None], states[0])
            states = low, layer.cells[1](layer.biases[0], low.hidden, states[1])
            c, _ = attention(layer.attention.score, states[1].hidden[0], source.states[row, :length])
            attentional = layer.out(torch.cat([c, states[1].hidden[0]])).tanh()
            torch.testing.assert_close(found[row, t], attentional, atol=1e-6, rtol=1e-5)


def test_local_m_attends_near_the_querys_own_position():
    layer: AttentionalVectorLayer = with_large_weights(AttentionalVector(Dot(), LocalM(2)).build(WIDTH))
    x, source, record = random(3, 9, WIDTH, seed=2), encoded_source(), Record()
    found, _ = layer(x, Context(source=source, record=record, name="cross"))
    for row, length in enumerate(LENGTHS):
        for t in range(9):
            centre = min(t, length - 1)
            near = range(max(0, centre - 2), min(length, centre + 3))
            c, weights = attention(layer.attention.score, x[row, t], source.states[row, list(near)])
            expected = torch.zeros(7)
            expected[list(near)] = weights
            torch.testing.assert_close(record.matrix("cross")[row, 0, t], expected, atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(found[row, t], layer.out(torch.cat([c, x[row, t]])).tanh(), atol=1e-6, rtol=1e-5)


def test_local_p_fades_from_the_centre_it_predicts():
    layer: AttentionalVectorLayer = with_large_weights(AttentionalVector(General(), LocalP(2)).build(WIDTH))
    x, source, record = random(3, 9, WIDTH, seed=2), encoded_source(), Record()
    layer(x, Context(source=source, record=record, name="cross"))
    mask, centres = layer.attention.source_mask, set()
    for row, length in enumerate(LENGTHS):
        for t in range(9):
            centre = ((length - 1) * mask.centre(mask.inner(x[row, t]).tanh()).sigmoid()).item()
            near = [s for s in range(length) if abs(s - centre) <= 2]
            _, weights = attention(layer.attention.score, x[row, t], source.states[row, near])
            expected = torch.zeros(7)
            expected[near] = weights * torch.tensor([math.exp(-((s - centre) ** 2) / (2 * 1.0**2)) for s in near])
            torch.testing.assert_close(record.matrix("cross")[row, 0, t], expected, atol=1e-6, rtol=1e-5)
            centres.add(round(centre, 3))
    assert len(centres) > 20
    assert float(record.matrix("cross").sum(-1).max()) < 1


def test_a_uniform_score_is_the_mean_of_the_source():
    layer: AttentionalVectorLayer = with_large_weights(AttentionalVector(Uniform()).build(WIDTH))
    x, source = random(3, 4, WIDTH, seed=2), encoded_source()
    found, _ = layer(x, Context(source=source))
    for row, length in enumerate(LENGTHS):
        mean = source.states[row, :length].mean(0)
        expected = torch.stack([layer.out(torch.cat([mean, token])).tanh() for token in x[row]])
        torch.testing.assert_close(found[row], expected, atol=1e-6, rtol=1e-5)


def test_without_input_feeding_attention_follows_the_recurrent_layer():
    fed, unfed = (zoo.luong(WIDTH, 2, input_feeding=input_feeding) for input_feeding in (True, False))
    assert [type(part) for part in fed.decoder.layers[0]] == [AttentionDecoder]
    assert [type(part) for part in unfed.decoder.layers[0]] == [Recurrent, AttentionalVector]


@pytest.mark.parametrize("pattern", [LocalM, LocalP])
def test_a_window_of_0_is_refused(pattern: type[LocalM] | type[LocalP]):
    with pytest.raises(InputError, match="window must be 1 or more, got 0"):
        pattern(0)


@pytest.mark.parametrize("name", ["seq2seq", "bahdanau", "luong"])
def test_gradients_reach_every_weight(name: str):
    torch.manual_seed(0)
    network: Network = getattr(zoo, name)(8, 2).build(20)
    inputs, targets = batch()
    network.loss(inputs, targets).backward()
    without = {name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert without == set()


def test_the_papers_sizes_are_the_defaults():
    assert zoo.seq2seq().width == zoo.bahdanau().width == zoo.luong().width == 1000
    assert zoo.luong().decoder.layers[0][0].pattern == Full()
    with torch.device("meta"):
        counted = sum(weight.numel() for weight in zoo.seq2seq(1000, 4).build(80_000, 160_000).parameters())
    # Sutskever 2014, section 3.4: 384 million parameters, of which 64 million recurrent; ours have a second bias.
    recurrent = 8 * (4 * 1000 * 2000 + 2 * 4000)
    assert counted == 160_000 * 1000 + 80_000 * 1000 + 80_000 * 1001 + recurrent
    assert round(recurrent / 1e6) == 64


@pytest.mark.parametrize("input_feeding", [True, False])
@pytest.mark.parametrize("pattern", [Full(), LocalM(2), LocalP(2)])
@pytest.mark.parametrize("cell", [RNN(), GRU(), LSTM()])
@pytest.mark.parametrize("direction", ["backward", "bidirectional"])
def test_half_precision_computes_what_full_precision_does(
    cell: RNN | GRU | LSTM, pattern: Full | LocalM | LocalP, direction: str, input_feeding: bool
):
    torch.manual_seed(0)
    network = zoo.luong(
        8, 2, cell=cell, pattern=pattern, direction=direction, input_feeding=input_feeding, dropout=0.0
    ).build(20)
    inputs, targets = batch()
    full = network.loss(inputs, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = network.loss(inputs, targets)
    half.backward()
    assert half.item() == pytest.approx(full.item(), rel=0.02)
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in network.parameters())
