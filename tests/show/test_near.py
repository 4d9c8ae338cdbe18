"""Which words stand near each other: against all cosines, computed at once."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from regard.data.tasks.masked_lm import ordinary_tokens
from regard.data.tokenize.train import BPE
from regard.models import zoo
from regard.show import neighbours as near
from regard.show.neighbours import nearest
from tests.laws.zoo import MODELS
from tests.small import TEXTS, WORDS, small

ORDINARY = ordinary_tokens(WORDS)
IDS = [WORDS.begin, *WORDS.encode("the cat sat on the mat"), WORDS.end]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def expected(weight: torch.Tensor, token: int, count: int = 8) -> list[tuple[str, float]]:
    """The nearest of all ordinary words but the token itself."""
    cosines = F.cosine_similarity(weight[token][None], weight)
    words = [n for n in range(WORDS.vocabulary) if ORDINARY[n] and n != token]
    best = sorted(words, key=lambda n: -float(cosines[n]))[:count]
    return [(WORDS.token_texts([n])[0], float(cosines[n])) for n in best]


def check(found: list, weight: torch.Tensor, ids: list[int], count: int = 8) -> None:
    assert len(found) == len(ids)
    for token, row in zip(ids, found):
        texts, cosines = zip(*expected(weight, token, count))
        assert [text for text, _ in row] == list(texts)
        assert [cosine for _, cosine in row] == pytest.approx(cosines, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if not MODELS[name].embed.letters])
def test_the_nearest_words_have_the_highest_cosines(name: str):
    network = small(MODELS[name]).network
    found = json.loads(json.dumps(nearest(network, WORDS, IDS, side="read"), allow_nan=False))
    check(found, network.embed.table.weight, IDS)


def test_a_side_has_its_own_embedding():
    network = small(zoo.transformer(16, 1, 2, shared=False)).network
    check(nearest(network, WORDS, IDS, side="source"), network.source_embed.table.weight, IDS)
    check(nearest(network, WORDS, IDS, side="said"), network.embed.table.weight, IDS)
    assert nearest(network, WORDS, IDS, side="source") != nearest(network, WORDS, IDS, side="read")


def test_a_large_vocabulary_is_compared_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch):
    network = small(zoo.gpt2(16, 1, 2)).network
    monkeypatch.setattr(near, "_ROWS", 7)
    monkeypatch.setattr(near, "_ASKED", 3)
    check(nearest(network, WORDS, IDS, side="read", count=5), network.embed.table.weight, IDS, 5)


def test_a_small_vocabulary_has_no_more_words_than_it_has():
    network = small(zoo.gpt2(16, 1, 2)).network
    ordinary = int(ORDINARY.sum())
    found = nearest(network, WORDS, [IDS[0], IDS[1]], side="read", count=500)
    assert [len(row) for row in found] == [ordinary, ordinary - 1]


def test_rows_beyond_the_vocabulary_are_nobodys_neighbours():
    tokenizer = BPE(270).train(TEXTS * 4)
    network = zoo.gpt2(16, 1, 2).build(300)
    network.embed.table.weight[270:] = network.embed.table.weight[100]
    (row,) = nearest(network, tokenizer, [100], side="read")
    assert len(row) == 8
    assert all(cosine < 0.9999 for _, cosine in row)


def test_no_tokens_have_no_neighbours_and_letters_no_table():
    assert nearest(small(zoo.gpt2(16, 1, 2)).network, WORDS, [], side="read") == []
    assert nearest(zoo.elmo("small", width=16, inner=8).build(40), WORDS, IDS, side="source") is None
