"""Recurrent layers against torch's own stacked, packed and both-ways modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context, Source
from regard.layers.recurrent import (
    GRU,
    LSTM,
    RNN,
    Averaged,
    Bridged,
    Carried,
    Cell,
    Reader,
    Recurrent,
    RecurrentLayer,
    State,
    Step,
)
from regard.models import zoo
from regard.models.model import Model

WIDTH, DEPTH = 6, 3
CELLS = {"tanh": RNN(), "gru": GRU(), "lstm": LSTM()}
MODULES = {"tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
LENGTHS = torch.tensor([5, 2, 8, 8])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def built(description: Recurrent) -> RecurrentLayer:
    torch.manual_seed(1)
    layer = description.build(WIDTH).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.6)
    return layer


def torch_module(layer: RecurrentLayer, kind: str, ways: int) -> nn.RNNBase:
    """Torch's module of the same depth and directions, with the layer's weights."""
    module = MODULES[kind](WIDTH, WIDTH // ways, DEPTH, batch_first=True, bidirectional=ways == 2)
    with torch.no_grad():
        for number, readers in enumerate(layer.layers):
            for reader, suffix in zip(readers, ("", "_reverse")):
                for name, weight in reader.cell.named_parameters():
                    getattr(module, f"{name[:-1]}{number}{suffix}").copy_(weight)
    return module


def flat(states: tuple[State, ...]) -> list[Tensor]:
    return [part for state in states for part in (state.shown, state.held) if part is not None]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("reads", ["forward", "both"])
@pytest.mark.parametrize("padded", [False, True])
def test_reading_is_what_torch_reads(kind: str, reads: str, padded: bool):
    ways = 2 if reads == "both" else 1
    layer = built(Recurrent(CELLS[kind], DEPTH, reads))
    module = torch_module(layer, kind, ways)
    x = drawn(4, 8, WIDTH)
    lengths = LENGTHS if padded else torch.full((4,), 8)
    padding = torch.arange(8) < lengths[:, None]
    found, states = layer(x, Context(padding=padding if padded else None))
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, last = module(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(expected, batch_first=True, total_length=8)
    torch.testing.assert_close(found[padding], expected[padding], atol=1e-6, rtol=1e-5)
    last = last if isinstance(last, tuple) else (last,)
    for number, state in enumerate(states):
        for ours, theirs in zip((state.shown, state.held), last):
            both = theirs.unflatten(0, (DEPTH, ways))[number]
            torch.testing.assert_close(ours, torch.cat(list(both), dim=-1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
def test_reading_backward_is_reading_the_reversed_text(kind: str):
    backward, forward = (built(Recurrent(CELLS[kind], DEPTH, reads)) for reads in ("backward", "forward"))
    x = drawn(4, 8, WIDTH)
    found, states = backward(x, Context(padding=torch.arange(8) < LENGTHS[:, None]))
    for row, length in enumerate(LENGTHS.tolist()):
        expected, last = forward(x[row : row + 1, :length].flip(1), Context())
        torch.testing.assert_close(found[row, :length], expected[0].flip(0))
        for ours, theirs in zip(flat(states), flat(last)):
            torch.testing.assert_close(ours[row], theirs[0])


@pytest.mark.parametrize("kind", CELLS)
def test_a_row_without_tokens_keeps_its_state(kind: str):
    layer = built(Recurrent(CELLS[kind], DEPTH))
    _, before = layer(drawn(2, 3, WIDTH), Context())
    padding = torch.tensor([[True, True], [False, False]])
    _, after = layer(drawn(2, 2, WIDTH, seed=1), Context(padding=padding, remember=True), before)
    for was, now in zip(flat(before), flat(after)):
        assert torch.equal(was[1], now[1])
        assert not torch.equal(was[0], now[0])


@pytest.mark.parametrize(("cell", "module"), [(RNN(), nn.RNNCell), (GRU(), nn.GRUCell), (LSTM(), nn.LSTMCell)])
def test_a_step_is_torchs_step(cell: Cell, module: type[nn.RNNCellBase]):
    torch.manual_seed(2)
    step: Step = cell.step(4, WIDTH)
    theirs = module(WIDTH + 4, WIDTH)
    with torch.no_grad():
        theirs.weight_ih[:, WIDTH:] = step.inputs.weight
        theirs.weight_hh.copy_(step.state.weight)
        if step.state.bias is None:
            theirs.bias_hh.zero_()
        else:
            theirs.bias_hh.copy_(step.state.bias.normal_())
    x, fed, shown, held = drawn(3, WIDTH), drawn(3, 4), drawn(3, WIDTH), drawn(3, WIDTH, seed=1)
    read = x @ theirs.weight_ih[:, :WIDTH].T + theirs.bias_ih
    found = step(read, fed, State(shown, held if cell.holds else None))
    expected = theirs(torch.cat([x, fed], dim=1), (shown, held) if cell.holds else shown)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, right in zip((found.shown, found.held), expected):
        torch.testing.assert_close(ours, right)


def test_a_memory_begins_by_keeping():
    layer = Recurrent(LSTM(), 2).build(WIDTH)
    for readers in layer.layers:
        bias = readers[0].cell.bias_ih_l0.detach()
        assert bias.unflatten(0, (4, WIDTH)).tolist() == [[0.0] * WIDTH, [1.0] * WIDTH, [0.0] * WIDTH, [0.0] * WIDTH]


def source(depth: int, cell: Cell) -> Source:
    states, final = built(Recurrent(cell, depth))(
        drawn(4, 8, WIDTH), Context(padding=torch.arange(8) < LENGTHS[:, None])
    )
    return Source(states, torch.arange(8) < LENGTHS[:, None], (final,))


def test_a_decoder_begins_where_the_encoder_ended():
    said = source(2, LSTM())
    begin = Carried().build(LSTM(), 3, WIDTH, WIDTH)
    lowest, middle, highest = begin(said)
    assert lowest is said.final[0][0]
    assert middle is highest is said.final[0][1]


def test_cells_that_remember_other_things_need_a_bridge():
    with pytest.raises(InputError, match="begin = bridged"):
        Carried().build(LSTM(), 1, WIDTH, WIDTH)(source(1, GRU()))
    (state,) = Bridged().build(LSTM(), 1, WIDTH, WIDTH)(source(1, GRU()))
    assert state.held is not None


def test_an_encoder_without_recurrence_needs_an_average():
    said = Source(drawn(4, 8, WIDTH), torch.arange(8) < LENGTHS[:, None], (None, None))
    with pytest.raises(InputError, match="begin = averaged"):
        Bridged().build(GRU(), 1, WIDTH, WIDTH)(said)
    begin = Averaged().build(GRU(), 2, WIDTH, WIDTH)
    for state, bridge in zip(begin(said), begin.bridges):
        expected = [bridge(said.states[row, :length].mean(0)).tanh() for row, length in enumerate(LENGTHS.tolist())]
        torch.testing.assert_close(state.shown, torch.stack(expected))


def test_the_bottleneck_is_all_that_a_decoder_without_attention_knows():
    network = zoo.seq2seq(WIDTH, 2).build(20).eval()
    ids = torch.arange(5)[None]
    said = network.encode_source(torch.tensor([[3, 4, 5, 6]]))
    whole, _ = network.decode(ids, Context(source=said))
    other, _ = network.decode(ids, Context(source=Source(drawn(1, 9, WIDTH), None, said.final)))
    assert torch.equal(whole, other)


@pytest.mark.parametrize("description", [{"depth": 0}, {"reads": "both"}])
def test_what_cannot_be_built_is_refused(description: dict[str, object]):
    with pytest.raises(InputError):
        Recurrent(**description).build(7)


@pytest.mark.parametrize("model", [zoo.lstm_lm(WIDTH, 2), zoo.sha_rnn(WIDTH, 2)])
def test_a_language_model_reads_padded_rows_at_one_go(model: Model, monkeypatch: pytest.MonkeyPatch):
    network, ids = model.build(20).eval(), torch.ones(4, 8, dtype=torch.long)
    padding = torch.arange(8) < LENGTHS[:, None]
    with torch.no_grad():
        alone = [network(ids[:1, :length])[0] for length in LENGTHS]
        monkeypatch.setattr(Reader, "careful", None)
        for row, length, expected in zip(network(ids, padding=padding), LENGTHS, alone):
            torch.testing.assert_close(row[:length], expected)
