"""Two readers apart: torch's own LSTM where nothing is clipped, the same step by step where it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.bidirectional import Apart, ApartLayer, ClippedLSTM, Projected
from regard.layers.contract import Context

WIDTH, INNER = 6, 5
LENGTHS = torch.tensor([5, 2, 8, 1])
PADDING = torch.arange(8) < LENGTHS[:, None]
CELLS = [Projected(INNER), Projected(INNER, 0.4, 0.2), Projected(WIDTH // 2), Projected(WIDTH // 2, 0.4)]


def built(cell: Projected, *, skip: bool = False) -> ApartLayer:
    torch.manual_seed(1)
    layer = Apart(cell, skip).build(WIDTH).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=1.2)
    return layer


def drawn(seed: int = 0) -> Tensor:
    return torch.randn(4, 8, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cell", CELLS)
def test_each_half_is_read_from_its_own_end(cell: Projected):
    layer, x = built(cell), drawn()
    found, memory = layer(x, Context(padding=PADDING))
    assert memory is None
    first, second = (reader.cell for reader in layer.readers)
    nothing = torch.zeros(1, 1, WIDTH // 2), torch.zeros(1, 1, cell.inner)
    for row, length in enumerate(LENGTHS.tolist()):
        left, right = x[row : row + 1, :length].chunk(2, dim=-1)
        expected = [first(left, nothing)[0], second(right.flip(1), nothing)[0].flip(1)]
        torch.testing.assert_close(found[row, :length], torch.cat(expected, dim=-1)[0])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("skip", [False, True])
def test_padding_and_neighbours_change_nothing(cell: Projected, skip: bool):
    layer, x = built(cell, skip=skip), drawn()
    found, _ = layer(x, Context(padding=PADDING))
    other = torch.where(PADDING[..., None], x, 1e3)
    torch.testing.assert_close(layer(other, Context(padding=PADDING))[0][PADDING], found[PADDING])
    for row, length in enumerate(LENGTHS.tolist()):
        alone, _ = layer(x[row : row + 1, :length], Context())
        torch.testing.assert_close(alone[0], found[row, :length])


def test_no_half_hears_of_the_other():
    layer, x = built(CELLS[0]), drawn()
    changed = x.clone()
    changed[..., WIDTH // 2 :] += 1.0
    before, after = layer(x, Context())[0], layer(changed, Context())[0]
    assert before[..., : WIDTH // 2].equal(after[..., : WIDTH // 2])
    assert not before[..., WIDTH // 2 :].allclose(after[..., WIDTH // 2 :])


def test_a_skip_adds_what_was_read():
    x = drawn()
    plain, skipping = (built(CELLS[1], skip=skip)(x, Context())[0] for skip in (False, True))
    torch.testing.assert_close(skipping, plain + x)


@pytest.mark.parametrize("inner", [WIDTH // 2, INNER])
def test_clipping_what_never_goes_so_far_is_torchs_lstm(inner: int):
    plain, clipped = built(Projected(inner)), built(Projected(inner, 1e6, 1e6))
    assert isinstance(clipped.readers[0].cell, ClippedLSTM)
    assert not isinstance(plain.readers[0].cell, ClippedLSTM)
    clipped.load_state_dict(plain.state_dict())
    x = drawn()
    torch.testing.assert_close(clipped(x, Context())[0], plain(x, Context())[0])


def test_what_is_held_is_clipped_before_it_is_shown_and_what_is_shown_before_it_is_read():
    cell = built(Projected(INNER, 0.3, 0.1)).readers[0].cell
    x = drawn()[:1, :, : WIDTH // 2]
    shown, held = torch.zeros(WIDTH // 2), torch.zeros(INNER)
    reached = False
    for t in range(8):
        gates = cell.weight_ih_l0 @ x[0, t] + cell.weight_hh_l0 @ shown + cell.bias_ih_l0 + cell.bias_hh_l0
        write, keep, new, show = gates.split(INNER)
        held = keep.sigmoid() * held + write.sigmoid() * new.tanh()
        reached = reached or bool((held.abs() > 0.3).any())
        held = held.clamp(-0.3, 0.3)
        shown = (cell.weight_hr_l0 @ (show.sigmoid() * held.tanh())).clamp(-0.1, 0.1)
        found, _ = cell(x[:, : t + 1], (torch.zeros(1, 1, WIDTH // 2), torch.zeros(1, 1, INNER)))
        torch.testing.assert_close(found[0, t], shown)
    assert reached


def test_at_first_nothing_is_forgotten_and_the_projection_is_drawn_whole():
    torch.manual_seed(2)
    cell = Projected(400, 3.0, 3.0).whole(100, 100)
    bias = (cell.bias_ih_l0 + cell.bias_hh_l0).unflatten(0, (4, 400))
    assert bias[1].eq(1.0).all()
    assert not bias[[0, 2, 3]].any()
    assert cell.weight_hr_l0.abs().max() <= (6 / 500) ** 0.5


def test_gradients_reach_every_weight():
    layer = built(CELLS[1])
    layer(drawn(), Context(padding=PADDING))[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match=r"even width, got 7\. Try 8"):
        Apart(Projected(9)).build(7)
    with pytest.raises(InputError, match="inner = 2 cannot show 3 numbers"):
        Apart(Projected(2)).build(6)
    with pytest.raises(InputError, match="clip_held must be above 0"):
        Projected(2, 0.0)
    with pytest.raises(InputError, match="cannot write word by word"):
        built(CELLS[0])(drawn(), Context(remember=True))
