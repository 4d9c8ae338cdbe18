"""Recurrent layers against torch's own stacked, packed and bidirectional modules."""

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
    Cell,
    Copied,
    Projected,
    Recurrent,
    RecurrentLayer,
    State,
    Step,
    UnidirectionalRNN,
)
from regard.models import zoo
from regard.models.model import Model

WIDTH, DEPTH = 6, 3
CELLS = {"rnn": RNN(), "gru": GRU(), "lstm": LSTM()}
MODULES = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
LENGTHS = torch.tensor([5, 2, 8, 8])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def built(description: Recurrent) -> RecurrentLayer:
    torch.manual_seed(1)
    layer = description.build(WIDTH).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.6)
    return layer


def torch_module(layer: RecurrentLayer, kind: str, directions: int) -> nn.RNNBase:
    """Torch's module of the same depth and directions, with the layer's weights."""
    module = MODULES[kind](WIDTH, WIDTH // directions, DEPTH, batch_first=True, bidirectional=directions == 2)
    with torch.no_grad():
        for number, unidirectional in enumerate(layer.layers):
            for direction, suffix in zip(unidirectional, ("", "_reverse")):
                for name, weight in direction.rnn.named_parameters():
                    getattr(module, f"{name[:-1]}{number}{suffix}").copy_(weight)
    return module


def flat(states: tuple[State, ...]) -> list[Tensor]:
    return [part for state in states for part in (state.hidden, state.cell) if part is not None]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_recurrent_layer_computes_what_torchs_module_does(kind: str, direction: str, padded: bool):
    directions = 2 if direction == "bidirectional" else 1
    layer = built(Recurrent(CELLS[kind], DEPTH, direction))
    module = torch_module(layer, kind, directions)
    x = random(4, 8, WIDTH)
    lengths = LENGTHS if padded else torch.full((4,), 8)
    padding = torch.arange(8) < lengths[:, None]
    found, states = layer(x, Context(padding=padding if padded else None))
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, final = module(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(expected, batch_first=True, total_length=8)
    torch.testing.assert_close(found[padding], expected[padding], atol=1e-6, rtol=1e-5)
    final = final if isinstance(final, tuple) else (final,)
    for number, state in enumerate(states):
        for ours, theirs in zip((state.hidden, state.cell), final):
            both = theirs.unflatten(0, (DEPTH, directions))[number]
            torch.testing.assert_close(ours, torch.cat(list(both), dim=-1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
def test_backward_is_forward_over_the_reversed_text(kind: str):
    backward, forward = (built(Recurrent(CELLS[kind], DEPTH, direction)) for direction in ("backward", "forward"))
    x = random(4, 8, WIDTH)
    found, states = backward(x, Context(padding=torch.arange(8) < LENGTHS[:, None]))
    for row, length in enumerate(LENGTHS.tolist()):
        expected, final = forward(x[row : row + 1, :length].flip(1), Context())
        torch.testing.assert_close(found[row, :length], expected[0].flip(0))
        for ours, theirs in zip(flat(states), flat(final)):
            torch.testing.assert_close(ours[row], theirs[0])


@pytest.mark.parametrize("kind", CELLS)
def test_a_row_without_tokens_keeps_its_state(kind: str):
    layer = built(Recurrent(CELLS[kind], DEPTH))
    _, before = layer(random(2, 3, WIDTH), Context())
    padding = torch.tensor([[True, True], [False, False]])
    _, after = layer(random(2, 2, WIDTH, seed=1), Context(padding=padding, remember=True), before)
    for old, new in zip(flat(before), flat(after)):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[0], new[0])


@pytest.mark.parametrize(("cell", "module"), [(RNN(), nn.RNNCell), (GRU(), nn.GRUCell), (LSTM(), nn.LSTMCell)])
def test_a_step_is_torchs_cell(cell: Cell, module: type[nn.RNNCellBase]):
    torch.manual_seed(2)
    step: Step = cell.build_step(4, WIDTH)
    theirs = module(WIDTH + 4, WIDTH)
    with torch.no_grad():
        theirs.weight_ih[:, WIDTH:] = step.inputs.weight
        theirs.weight_hh.copy_(step.hidden.weight)
        if step.hidden.bias is None:
            theirs.bias_hh.zero_()
        else:
            theirs.bias_hh.copy_(step.hidden.bias.normal_())
    x, inputs, h, c = random(3, WIDTH), random(3, 4), random(3, WIDTH), random(3, WIDTH, seed=1)
    projected = x @ theirs.weight_ih[:, :WIDTH].T + theirs.bias_ih
    found = step(projected, inputs, State(h, c if cell.has_cell else None))
    expected = theirs(torch.cat([x, inputs], dim=1), (h, c) if cell.has_cell else h)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, right in zip((found.hidden, found.cell), expected):
        torch.testing.assert_close(ours, right)


def test_the_forget_gates_initial_bias_is_one():
    layer = Recurrent(LSTM(), 2).build(WIDTH)
    for directions in layer.layers:
        bias = directions[0].rnn.bias_ih_l0.detach()
        assert bias.unflatten(0, (4, WIDTH)).tolist() == [[0.0] * WIDTH, [1.0] * WIDTH, [0.0] * WIDTH, [0.0] * WIDTH]


def encoded_source(depth: int, cell: Cell) -> Source:
    padding = torch.arange(8) < LENGTHS[:, None]
    states, final = built(Recurrent(cell, depth))(random(4, 8, WIDTH), Context(padding=padding))
    return Source(states, padding, (final,))


def test_a_copied_initial_state_is_the_encoders_final_state():
    source = encoded_source(2, LSTM())
    lowest, middle, highest = Copied().build(LSTM(), 3, WIDTH, WIDTH)(source)
    assert lowest is source.final_state[0][0]
    assert middle is highest is source.final_state[0][1]


def test_different_cells_need_a_projected_initial_state():
    with pytest.raises(InputError, match='initial_state = "projected"'):
        Copied().build(LSTM(), 1, WIDTH, WIDTH)(encoded_source(1, GRU()))
    (state,) = Projected().build(LSTM(), 1, WIDTH, WIDTH)(encoded_source(1, GRU()))
    assert state.cell is not None


def test_an_encoder_without_recurrence_needs_an_averaged_initial_state():
    source = Source(random(4, 8, WIDTH), torch.arange(8) < LENGTHS[:, None], (None, None))
    with pytest.raises(InputError, match='initial_state = "averaged"'):
        Projected().build(GRU(), 1, WIDTH, WIDTH)(source)
    module = Averaged().build(GRU(), 2, WIDTH, WIDTH)
    for state, projection in zip(module(source), module.projections):
        means = [source.states[row, :length].mean(0) for row, length in enumerate(LENGTHS.tolist())]
        torch.testing.assert_close(state.hidden, torch.stack([projection(mean).tanh() for mean in means]))


def test_a_decoder_without_attention_knows_only_the_bottleneck():
    network = zoo.seq2seq(WIDTH, 2).build(20).eval()
    ids = torch.arange(5)[None]
    source = network.encode_source(torch.tensor([[3, 4, 5, 6]]))
    found, _ = network.decode(ids, Context(source=source))
    other, _ = network.decode(ids, Context(source=Source(random(1, 9, WIDTH), None, source.final_state)))
    assert torch.equal(found, other)


@pytest.mark.parametrize("description", [{"depth": 0}, {"direction": "bidirectional"}])
def test_impossible_layers_are_refused(description: dict[str, object]):
    with pytest.raises(InputError):
        Recurrent(**description).build(7)


@pytest.mark.parametrize("model", [zoo.lstm_lm(WIDTH, 2), zoo.sha_rnn(WIDTH, 2)])
def test_a_language_model_never_steps_through_padded_rows(model: Model, monkeypatch: pytest.MonkeyPatch):
    network, ids = model.build(20).eval(), torch.ones(4, 8, dtype=torch.long)
    padding = torch.arange(8) < LENGTHS[:, None]
    with torch.no_grad():
        isolated = [network(ids[:1, :length])[0] for length in LENGTHS]
        monkeypatch.setattr(UnidirectionalRNN, "run_padded", None)
        for row, length, expected in zip(network(ids, padding=padding), LENGTHS, isolated):
            torch.testing.assert_close(row[:length], expected)
