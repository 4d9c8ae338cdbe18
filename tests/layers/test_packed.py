"""Packed weights: close to float32, and the outputs of a row never depend on the other rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers import linear as module
from regard.layers import packed
from regard.layers.linear import Linear, linear
from regard.layers.packed import BFloat16Weight, Int8Weight, PackWeight


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pack", [BFloat16Weight, Int8Weight])
@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 96)])
def test_products_are_close_to_those_of_float32(pack: PackWeight, bias: Tensor | None):
    rows, weight = drawn(7, 64), drawn(96, 64)
    expected = F.linear(rows, weight, bias)
    error = torch.linalg.vector_norm(pack(weight)(rows, bias) - expected) / torch.linalg.vector_norm(expected)
    assert error < 0.02


@pytest.mark.parametrize("block", [1, 96 * 3, 1 << 20])
def test_rows_in_int8_do_not_depend_on_their_neighbours(block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed, "_BLOCK", block)
    rows, int8 = drawn(9, 64), Int8Weight(drawn(96, 64))
    rows[4] *= 1000  # would take the precision of the others, if they shared its scale
    together, bias = int8(rows, torch.ones(96)), torch.ones(96)
    for row, found in zip(rows, together):
        assert torch.equal(int8(row[None], bias)[0], found)


def test_int8_takes_zeros_and_huge_numbers():
    rows, int8 = torch.zeros(3, 64), Int8Weight(torch.cat([torch.zeros(1, 64), drawn(7, 64)]))
    rows[1] = 1e30
    found = int8(rows, None)
    assert not found[0].any()
    assert not found[:, 0].any()
    assert found.isfinite().all()


def test_the_precision_is_by_matrix_not_by_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LEAST_INT8", 64 * 96)
    small, large = linear(64, 95).eval(), linear(64, 96).eval()
    with torch.no_grad():
        for layer in (small, large):
            assert isinstance(layer, Linear)
            layer.precision = "int8"
            for count in (1, 70):
                layer(drawn(count, 64))
        assert small._packed is None
        assert large._packed is not None
        assert isinstance(large._packed[1], Int8Weight)
    x = drawn(2, 64).requires_grad_()
    assert torch.equal(large(x), F.linear(x, large.weight, large.bias))  # with gradients, float32


@pytest.mark.skipif(not module.ONEDNN, reason="MKL is faster on this processor")
def test_a_single_row_takes_packed_weights_where_the_matrix_is_large():
    small, large = linear(64, 64).eval(), linear(256, 512).eval()
    with torch.no_grad():
        for layer in (small, large):
            x = drawn(1, layer.in_features)
            assert isinstance(layer, Linear)
            assert torch.allclose(layer(x), F.linear(x, layer.weight, layer.bias), atol=1e-5)
        assert not len(large(drawn(0, 256)))
    assert small._packed is None
    assert large._packed is not None
