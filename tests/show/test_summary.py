"""Attention summaries of hand-made matrices."""

from __future__ import annotations

import math

import pytest
import torch

from regard.layers.record import WeightBlock
from regard.show.summary import PooledTiles, block_statistics, head_statistics, merge_words, rollout, top_keys


def random_weights(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).softmax(-1)


def test_words_sum_over_keys_and_average_over_queries():
    weights = torch.tensor([[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]]])
    found = merge_words(weights, [(0, 2), (2, 3)], [(0, 1), (1, 3)])
    torch.testing.assert_close(found, torch.tensor([[[0.2, 0.8], [1.0, 0.0]]]))
    many = merge_words(random_weights(3, 7, 5), [(0, 1), (1, 4), (4, 7)], [(0, 2), (2, 5)])
    torch.testing.assert_close(many.sum(-1), torch.ones(3, 3))


def test_rollout_is_the_product_of_layers_that_are_half_residual():
    first = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    second = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    # Layer 1 gives token 2 half of token 1; layer 2 mixes a quarter of token 1 into it.
    torch.testing.assert_close(rollout([first, second]), torch.tensor([[1.0, 0.0], [0.625, 0.375]]))
    faded = 0.5 * first  # weights that sum to a half
    torch.testing.assert_close(rollout([faded])[1], torch.tensor([1 / 3, 2 / 3]))


def test_entropy_distance_and_confidence_are_sums_over_queries():
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.5]])
    entropy, distance, confidence = head_statistics(weights)
    assert entropy.item() == pytest.approx(1 + 2 + 0)
    assert distance.item() == pytest.approx(0.5 + 1.0 + 1.0)  # weights are normalised
    assert confidence.item() == pytest.approx(0.5 + 0.25 + 0.5)
    late = head_statistics(weights[2:], first=2)
    torch.testing.assert_close(head_statistics(weights[:2]) + late, head_statistics(weights))
    assert not head_statistics(torch.zeros(1, 4)).any()
    assert head_statistics(random_weights(3, 7, 5)).shape == (3, 3)


@pytest.mark.parametrize(("queries", "keys", "most"), [(10, 10, 3), (7, 13, 5), (64, 64, 8), (5, 4, 9), (9, 3, 4)])
def test_tiles_hold_the_maximum_however_the_blocks_are_cut(queries: int, keys: int, most: int):
    weights = random_weights(queries, keys)
    rows, columns = min(most, queries), min(most, keys)
    expected = torch.zeros(rows, columns)
    for t in range(queries):
        for s in range(keys):
            at = math.floor(t * rows / queries), math.floor(s * columns / keys)
            expected[at] = max(expected[at], weights[t, s])
    tiles = PooledTiles(queries, keys, most)
    for first in range(0, queries, 3):
        tiles.add(first, weights[first : first + 3])
    assert torch.equal(tiles.weights, expected)


def test_tiles_of_blocks_that_end_before_later_keys_of_weight_zero():
    weights = random_weights(12, 12).tril()
    tiles, narrow = PooledTiles(12, 12, 5), PooledTiles(12, 12, 5)
    for first in range(0, 12, 4):
        tiles.add(first, weights[first : first + 4])
        narrow.add(first, weights[first : first + 4, : first + 4])
    assert torch.equal(narrow.weights, tiles.weights)


def test_statistics_of_blocks_are_those_of_the_definition():
    weights = random_weights(2, 6, 40)
    for first in (0, 17, 34, 60):
        distances = (torch.arange(first, first + 6)[:, None] - torch.arange(40)).abs()
        _, distance, _ = head_statistics(weights, first)
        torch.testing.assert_close(distance, (weights * distances).sum((-1, -2)))


def test_top_keys_of_long_rows_are_those_of_a_full_sort():
    weights = random_weights(3, 1001)
    keys, most = top_keys(weights, 7)
    assert torch.equal(most, weights.sort(dim=-1, descending=True).values[:, :7])
    assert torch.equal(weights.gather(1, keys), most)
    assert top_keys(torch.zeros(2, 1001), 7)[0].eq(-1).all()


def test_summaries_of_listed_keys_are_those_of_whole_rows():
    weights = torch.zeros(40, 300)
    keys = torch.stack([torch.randperm(300)[:20] for _ in range(40)])
    listed = random_weights(40, 20).masked_fill(torch.rand(40, 20) < 0.3, 0.0)
    weights.scatter_(1, keys, listed)
    whole, few = PooledTiles(300, 300, 30), PooledTiles(300, 300, 30)
    whole.add(200, weights)
    few.add(200, listed, keys)
    assert torch.equal(few.weights, whole.weights)
    torch.testing.assert_close(block_statistics(WeightBlock(listed, keys), 200), head_statistics(weights, 200))
    found, most = top_keys(listed, 5, keys)
    assert torch.equal(most, top_keys(weights, 5)[1])
    assert torch.equal(weights.gather(1, found), most)


def test_top_keys_are_sorted_by_weight_and_minus_one_at_weight_zero():
    weights = torch.tensor([[0.1, 0.6, 0.0, 0.3], [0.0, 0.0, 1.0, 0.0]])
    keys, most = top_keys(weights, 3)
    assert keys.tolist() == [[1, 3, 0], [2, -1, -1]]
    torch.testing.assert_close(most, torch.tensor([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]]))
    assert top_keys(weights, 9)[0].shape == (2, 4)
