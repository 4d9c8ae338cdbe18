"""Weights in fewer numbers, on matrices made by hand."""

from __future__ import annotations

import math

import pytest
import torch

from regard.show.summary import Tiles, by_words, measured, rollout, tile_columns, weightiest


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).softmax(-1)


def test_keys_of_a_word_add_up_and_its_queries_are_averaged():
    weights = torch.tensor([[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]]])
    found = by_words(weights, [(0, 2), (2, 3)], [(0, 1), (1, 3)])
    torch.testing.assert_close(found, torch.tensor([[[0.2, 0.8], [1.0, 0.0]]]))
    many = by_words(drawn(3, 7, 5), [(0, 1), (1, 4), (4, 7)], [(0, 2), (2, 5)])
    torch.testing.assert_close(many.sum(-1), torch.ones(3, 3))


def test_rollout_is_the_product_of_layers_that_are_half_the_stream():
    first = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    second = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    # The first layer is half the first token; the second's heads agree on a quarter of what the first says of it.
    torch.testing.assert_close(rollout([first, second]), torch.tensor([[1.0, 0.0], [0.625, 0.375]]))
    faded = 0.5 * first  # weights that sum to a half
    torch.testing.assert_close(rollout([faded])[1], torch.tensor([1 / 3, 2 / 3]))


def test_entropy_distance_and_peak_are_sums_over_queries():
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.5]])
    entropy, distance, peak = measured(weights)
    assert entropy.item() == pytest.approx(1 + 2 + 0)
    assert distance.item() == pytest.approx(0.5 + 1.0 + 1.0)  # half of a weight is still all there is
    assert peak.item() == pytest.approx(0.5 + 0.25 + 0.5)
    late = measured(weights[2:], first=2)
    torch.testing.assert_close(measured(weights[:2]) + late, measured(weights))
    assert not measured(torch.zeros(1, 4)).any()
    assert measured(drawn(3, 7, 5)).shape == (3, 3)


@pytest.mark.parametrize(("queries", "keys", "most"), [(10, 10, 3), (7, 13, 5), (64, 64, 8), (5, 4, 9), (9, 3, 4)])
def test_tiles_hold_the_greatest_weight_whichever_blocks_it_comes_in(queries: int, keys: int, most: int):
    weights = drawn(queries, keys)
    rows, columns = min(most, queries), min(most, keys)
    expected = torch.zeros(rows, columns)
    for t in range(queries):
        for s in range(keys):
            at = math.floor(t * rows / queries), math.floor(s * columns / keys)
            expected[at] = max(expected[at], weights[t, s])
    tiles = Tiles(queries, keys, most)
    for first in range(0, queries, 3):
        tiles.put(first, weights[first : first + 3])
    assert torch.equal(tiles.weights, expected)
    assert torch.equal(tile_columns(weights, keys), weights)


def test_the_weightiest_keys_come_first_and_none_where_nothing_weighs():
    weights = torch.tensor([[0.1, 0.6, 0.0, 0.3], [0.0, 0.0, 1.0, 0.0]])
    keys, most = weightiest(weights, 3)
    assert keys.tolist() == [[1, 3, 0], [2, -1, -1]]
    torch.testing.assert_close(most, torch.tensor([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]]))
    assert weightiest(weights, 9)[0].shape == (2, 4)
