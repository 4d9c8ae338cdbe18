"""Dropout drops the share that it should, keeps the mean, and follows the seed."""

from __future__ import annotations

import pytest
import torch

from regard.layers.dropout import Dropout


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_share_is_dropped_and_the_mean_kept(p: float, dtype: torch.dtype):
    y = Dropout(p)(torch.ones(1000, 333, dtype=dtype))
    assert y.dtype == dtype
    assert float((y == 0).double().mean()) == pytest.approx(p, abs=0.004)
    assert float(y.double().mean()) == pytest.approx(1.0, abs=0.02)
    assert len(y.unique()) == 2


def test_the_same_seed_drops_the_same_elements():
    dropout, x = Dropout(0.3), torch.randn(50, 33)
    torch.manual_seed(1)
    first = dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(dropout(x), first)


def test_neighbours_are_dropped_independently():
    dropped = (Dropout(0.5)(torch.ones(200_003)) == 0).double()
    for distance in (1, 2, 3, 4, 8):
        both = (dropped[distance:] * dropped[:-distance]).mean()
        assert float(both) == pytest.approx(0.25, abs=0.01)


def test_gradients_are_those_of_what_was_kept():
    x = torch.randn(7, 9, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    assert torch.allclose(x.grad * x, y)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_all_or_nothing(p: float):
    x = torch.randn(5, 3)
    assert torch.equal(Dropout(p)(x), x * (1 - p))
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert Dropout(0.5)(torch.empty(0, 3)).shape == (0, 3)
