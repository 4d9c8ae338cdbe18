"""ELMo's bidirectional LSTM: torch's own LSTM where nothing is clipped, the same step by step where it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.bidirectional import BidirectionalLSTM, BidirectionalLSTMLayer, ClippedLSTM, ProjectedLSTM
from regard.layers.contract import Context

WIDTH, INNER = 6, 5
LENGTHS = torch.tensor([5, 2, 8, 1])
PADDING = torch.arange(8) < LENGTHS[:, None]
CELLS = [
    ProjectedLSTM(INNER), ProjectedLSTM(INNER, 0.4, 0.2), ProjectedLSTM(WIDTH // 2), ProjectedLSTM(WIDTH // 2, 0.4),
]  # fmt: skip


def built(cell: ProjectedLSTM, *, skip: bool = False) -> BidirectionalLSTMLayer:
    torch.manual_seed(1)
    layer = BidirectionalLSTM(cell, skip).build(WIDTH).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=1.2)
    return layer


def random(seed: int = 0) -> Tensor:
    return torch.randn(4, 8, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cell", CELLS)
def test_each_direction_runs_over_its_half_of_the_width(cell: ProjectedLSTM):
    layer, x = built(cell), random()
    found, _ = layer(x, Context(padding=PADDING))
    forward, backward = (direction.rnn for direction in layer.directions)
    zeros = torch.zeros(1, 1, WIDTH // 2), torch.zeros(1, 1, cell.inner)
    for row, length in enumerate(LENGTHS.tolist()):
        first, second = x[row : row + 1, :length].chunk(2, dim=-1)
        expected = [forward(first, zeros)[0], backward(second.flip(1), zeros)[0].flip(1)]
        torch.testing.assert_close(found[row, :length], torch.cat(expected, dim=-1)[0])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("skip", [False, True])
def test_padding_and_other_rows_change_nothing(cell: ProjectedLSTM, skip: bool):
    layer, x = built(cell, skip=skip), random()
    found, _ = layer(x, Context(padding=PADDING))
    other = torch.where(PADDING[..., None], x, 1e3)
    torch.testing.assert_close(layer(other, Context(padding=PADDING))[0][PADDING], found[PADDING])
    for row, length in enumerate(LENGTHS.tolist()):
        isolated, _ = layer(x[row : row + 1, :length], Context())
        torch.testing.assert_close(isolated[0], found[row, :length])


def test_no_direction_reads_the_others_half():
    layer, x = built(CELLS[0]), random()
    changed = x.clone()
    changed[..., WIDTH // 2 :] += 1.0
    before, after = layer(x, Context())[0], layer(changed, Context())[0]
    assert before[..., : WIDTH // 2].equal(after[..., : WIDTH // 2])
    assert not before[..., WIDTH // 2 :].allclose(after[..., WIDTH // 2 :])


def test_a_skip_connection_adds_the_input():
    x = random()
    plain, skipping = (built(CELLS[1], skip=skip)(x, Context())[0] for skip in (False, True))
    torch.testing.assert_close(skipping, plain + x)


@pytest.mark.parametrize("inner", [WIDTH // 2, INNER])
def test_an_lstm_whose_clip_is_never_reached_is_torchs(inner: int):
    plain, clipped = built(ProjectedLSTM(inner)), built(ProjectedLSTM(inner, 1e6, 1e6))
    assert isinstance(clipped.directions[0].rnn, ClippedLSTM)
    assert not isinstance(plain.directions[0].rnn, ClippedLSTM)
    clipped.load_state_dict(plain.state_dict())
    x = random()
    torch.testing.assert_close(clipped(x, Context())[0], plain(x, Context())[0])


def test_the_cell_state_is_clipped_before_the_output_and_the_projection_before_the_next_step():
    lstm = built(ProjectedLSTM(INNER, 0.3, 0.1)).directions[0].rnn
    x = random()[:1, :, : WIDTH // 2]
    hidden, cell = torch.zeros(WIDTH // 2), torch.zeros(INNER)
    clipped = False
    for t in range(8):
        gates = lstm.weight_ih_l0 @ x[0, t] + lstm.weight_hh_l0 @ hidden + lstm.bias_ih_l0 + lstm.bias_hh_l0
        i, f, g, o = gates.split(INNER)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        clipped = clipped or bool((cell.abs() > 0.3).any())
        cell = cell.clamp(-0.3, 0.3)
        hidden = (lstm.weight_hr_l0 @ (o.sigmoid() * cell.tanh())).clamp(-0.1, 0.1)
        found, _ = lstm(x[:, : t + 1], (torch.zeros(1, 1, WIDTH // 2), torch.zeros(1, 1, INNER)))
        torch.testing.assert_close(found[0, t], hidden)
    assert clipped


def test_the_forget_gates_initial_bias_is_one_and_the_projection_has_glorots_bound():
    torch.manual_seed(2)
    lstm = ProjectedLSTM(400, 3.0, 3.0).build(100, 100)
    bias = (lstm.bias_ih_l0 + lstm.bias_hh_l0).unflatten(0, (4, 400))
    assert bias[1].eq(1.0).all()
    assert not bias[[0, 2, 3]].any()
    assert lstm.weight_hr_l0.abs().max() <= (6 / 500) ** 0.5


def test_gradients_reach_every_weight():
    layer = built(CELLS[1])
    layer(random(), Context(padding=PADDING))[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_impossible_layers_are_refused():
    with pytest.raises(InputError, match=r"even width, got 7\. Try 8"):
        BidirectionalLSTM(ProjectedLSTM(9)).build(7)
    with pytest.raises(InputError, match="inner = 2 is less than the hidden width 3"):
        BidirectionalLSTM(ProjectedLSTM(2)).build(6)
    with pytest.raises(InputError, match="cell_clip must be above 0"):
        ProjectedLSTM(2, 0.0)
    with pytest.raises(InputError, match="cannot generate token by token"):
        built(CELLS[0])(random(), Context(remember=True))
