"""Nearest neighbours, against all cosines computed at once."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from regard.data.tasks.masked_lm import ordinary_tokens
from regard.data.tokenize.train import BPE
from regard.models import zoo
from regard.show import neighbours as module
from regard.show.neighbours import nearest_neighbours
from tests.laws.zoo import MODELS
from tests.small import TEXTS, WORDPIECE, small

ORDINARY = ordinary_tokens(WORDPIECE)
IDS = [WORDPIECE.bos, *WORDPIECE.encode("the cat sat on the mat"), WORDPIECE.eos]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def expected(weight: torch.Tensor, token: int, count: int = 8) -> list[tuple[str, float]]:
    """The nearest ordinary tokens without the token itself."""
    cosines = F.cosine_similarity(weight[token][None], weight)
    ordinary = [n for n in range(WORDPIECE.vocabulary) if ORDINARY[n] and n != token]
    best = sorted(ordinary, key=lambda n: -float(cosines[n]))[:count]
    return [(WORDPIECE.token_texts([n])[0], float(cosines[n])) for n in best]


def check(found: list, weight: torch.Tensor, ids: list[int], count: int = 8) -> None:
    assert len(found) == len(ids)
    for token, row in zip(ids, found):
        texts, cosines = zip(*expected(weight, token, count))
        assert [text for text, _ in row] == list(texts)
        assert [cosine for _, cosine in row] == pytest.approx(cosines, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if not MODELS[name].embed.characters])
def test_the_nearest_neighbours_have_the_highest_cosines(name: str):
    network = small(MODELS[name]).network
    found = json.loads(json.dumps(nearest_neighbours(network, WORDPIECE, IDS, side="decoder_input"), allow_nan=False))
    check(found, network.embed.table.weight, IDS)


def test_each_side_has_its_own_embedding():
    network = small(zoo.transformer(16, 1, 2, shared=False)).network
    check(nearest_neighbours(network, WORDPIECE, IDS, side="source"), network.source_embed.table.weight, IDS)
    check(nearest_neighbours(network, WORDPIECE, IDS, side="target"), network.embed.table.weight, IDS)
    assert nearest_neighbours(network, WORDPIECE, IDS, side="source") != nearest_neighbours(
        network, WORDPIECE, IDS, side="decoder_input"
    )


def test_a_large_vocabulary_is_compared_in_blocks(monkeypatch: pytest.MonkeyPatch):
    network = small(zoo.gpt2(16, 1, 2)).network
    monkeypatch.setattr(module, "_ROWS", 7)
    monkeypatch.setattr(module, "_QUERIES", 3)
    check(
        nearest_neighbours(network, WORDPIECE, IDS, side="decoder_input", count=5), network.embed.table.weight, IDS, 5
    )


def test_a_small_vocabulary_returns_all_its_tokens():
    network = small(zoo.gpt2(16, 1, 2)).network
    ordinary = int(ORDINARY.sum())
    found = nearest_neighbours(network, WORDPIECE, [IDS[0], IDS[1]], side="decoder_input", count=500)
    assert [len(row) for row in found] == [ordinary, ordinary - 1]


def test_rows_beyond_the_vocabulary_are_no_neighbours():
    tokenizer = BPE(270).train(TEXTS * 4)
    network = zoo.gpt2(16, 1, 2).build(300)
    network.embed.table.weight[270:] = network.embed.table.weight[100]
    (row,) = nearest_neighbours(network, tokenizer, [100], side="decoder_input")
    assert len(row) == 8
    assert all(cosine < 0.9999 for _, cosine in row)


def test_no_tokens_have_no_neighbours_and_characters_no_table():
    assert nearest_neighbours(small(zoo.gpt2(16, 1, 2)).network, WORDPIECE, [], side="decoder_input") == []
    assert nearest_neighbours(zoo.elmo("small", width=16, inner=8).build(40), WORDPIECE, IDS, side="source") is None
