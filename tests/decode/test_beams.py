"""The decoder's memory in a search: unneeded slots are dropped, and recurrent states follow the beams."""

from __future__ import annotations

import pytest
import torch

from regard.decode.beams import BeamMemory
from regard.decode.options import Options
from regard.decode.search import Search
from regard.layers.cache import Layout
from tests.decode.test_search import often_ending
from tests.laws.zoo import BEGIN


@torch.no_grad()
def running(name: str, options: Options, lengths: tuple[int, ...], steps: int) -> Search:
    prompts = [[BEGIN, *[5] * (length - 1)] for length in lengths]
    search = Search(often_ending(name), prompts, options, eos=2, limits=[steps + 1] * len(prompts))
    with torch.inference_mode():
        for _ in range(steps):
            search.step()
    return search


def cached_slots(search: Search) -> int:
    return search.memory.tree[0].length


@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_needs_few_more_slots_than_tokens(beam: int):
    search = running("gpt2, rotary", Options(beam=beam, min_tokens=60), (3, 9), 60)
    assert len(search.active) == 2
    assert 60 < cached_slots(search) < 2 * 69 + 20


def test_a_search_drops_slots_that_left_every_window():
    search = running("windowed", Options(beam=2, min_tokens=80), (3, 9), 80)
    assert len(search.active) == 2
    assert search.network.description.window is not None
    assert cached_slots(search) < 60


def test_greedy_search_of_equal_prompts_needs_no_layout():
    assert running("gpt2", Options(min_tokens=5), (3, 3), 4).memory.layout is None
    assert running("gpt2", Options(min_tokens=5), (3, 4), 4).memory.layout is not None


def test_states_per_row_follow_their_beams_and_what_sentences_share_stays():
    memory = BeamMemory(None)
    memory.remember({"state": torch.arange(2.0)}, 1)
    memory.use_layout(Layout.of_prompts(torch.ones(2, 1, dtype=torch.bool)))
    memory.advance(torch.tensor([1, 1]), torch.zeros(2, 3, dtype=torch.long), None)
    assert memory.tree["state"].tolist() == [0, 0, 0, 1, 1, 1]
    memory.remember({"state": torch.arange(6.0)}, 3)
    memory.advance(torch.tensor([2]), torch.tensor([[2, 0, 0]]), torch.tensor([1]))
    assert memory.tree["state"].tolist() == [5, 3, 3]
