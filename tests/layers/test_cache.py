"""The KV cache, and the layout of caches that beams share."""

from __future__ import annotations

import pytest
import torch

from regard.layers.cache import Layout, fill_gaps, make_cache, write_memory
from regard.layers.contract import concatenate


def numbered(rows: int, length: int) -> torch.Tensor:
    """Entries that say their row and slot: 100 * row + slot."""
    return (100 * torch.arange(rows)[:, None] + torch.arange(length))[..., None].float()


def test_a_cache_grows_and_keeps_its_entries():
    cache, x = None, numbered(2, 50)
    for start in range(0, 50, 5):
        cache = write_memory(cache, x[:, start : start + 5])
    assert cache.length == 50
    assert torch.equal(cache.used[0], x)


def test_writing_keeps_the_entries_that_gradients_need():
    x = torch.randn(1, 3, 2, requires_grad=True)
    cache = write_memory(write_memory(None, x), x)
    kept = cache.used[0].square().sum()
    write_memory(cache, x)
    kept.backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())


@pytest.mark.parametrize("stay", [[0, 1, 2], [1, 2], [2], [0, 4, 5], [3, 4, 5], []])
def test_rows_that_stay_fill_the_gaps(stay: list[int]):
    order = fill_gaps(stay)
    assert sorted(order) == stay
    assert all(row == place for place, row in enumerate(order) if row < len(stay))
    places = torch.tensor([place for place, row in enumerate(order) if row != place], dtype=torch.long)
    moves = torch.tensor([order[place] for place in places.tolist()], dtype=torch.long), places
    found = make_cache(numbered(6, 2)).moved(moves, len(stay)).used[0]
    assert found[:, 0, 0].tolist() == [100 * row for row in order]


def test_beams_attend_to_their_own_tokens():
    layout = Layout.of_prompts(torch.tensor([[True, True, False], [True, True, True]]))
    layout = layout.reordered(torch.zeros(2, 2, dtype=torch.long)).advanced(torch.tensor([2, 3]))
    layout = layout.reordered(torch.tensor([[1, 1], [1, 0]])).advanced(torch.tensor([3, 4]))
    assert layout.positions.tolist() == [[0, 1, 2, 2, 2, 3, 3], [0, 1, 2, 3, 3, 4, 4]]
    assert layout.visible.int().tolist() == [
        [[1, 1, 0, 0, 1, 1, 0], [1, 1, 0, 0, 1, 0, 1]],
        [[1, 1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 0, 0, 1]],
    ]
    assert layout.query_positions.tolist() == [[3, 3], [4, 4]]
    assert layout.needed(None).int().tolist() == [[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]
    assert layout.needed(1).int().tolist() == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1]]


def test_compacted_slots_are_those_needed_at_the_right():
    layout = Layout.of_prompts(torch.tensor([[True, True, False, True], [False, True, False, True]]))
    smaller, slots = layout.compacted(layout.needed(None), 3)
    assert slots[0].tolist() == [0, 1, 3]
    assert slots[1, 1:].tolist() == [1, 3]
    assert smaller.visible[:, 0].tolist() == [[True, True, True], [False, True, True]]
    assert smaller.positions[:, 1:].tolist() == [[1, 3], [1, 3]]
    cache = make_cache(numbered(2, 4)).compacted(slots, end=4, room=5)
    assert cache.length == 3
    assert cache.tensors[0].shape[1] == 8
    assert cache.used[0][0, :, 0].tolist() == [0, 1, 3]
    assert cache.used[0][1, 1:, 0].tolist() == [101, 103]


def test_a_cache_that_lacks_the_first_slots_is_compacted_from_the_right():
    slots = torch.tensor([[1, 3, 4]])
    assert make_cache(numbered(1, 2)).compacted(slots, end=5, room=0).used[0][0, 1:, 0].tolist() == [0, 1]


def test_joined_rows_end_in_the_same_slot():
    one, other = Layout.of_prompts(torch.ones(1, 3, dtype=torch.bool)), Layout.of_prompts(torch.ones(1, 2) > 0)
    joined = one.joined(other)
    assert joined.visible[:, 0].tolist() == [[True, True, True], [False, True, True]]
    assert joined.positions.tolist() == [[0, 1, 2], [0, 0, 1]]
    cache = concatenate((make_cache(numbered(1, 3)),), (write_memory(make_cache(numbered(1, 1)), numbered(1, 1) + 1),))[
        0
    ]
    assert cache.used[0][..., 0].tolist() == [[0, 1, 2], [0, 0, 1]]
