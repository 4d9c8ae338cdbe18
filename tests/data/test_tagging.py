"""Tagging: tags at the first token of each word."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.data.batching import IGNORE_INDEX
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.tasks.tagging import Tagging
from regard.data.tokenize.train import BPE, Byte, Character, TokenizerKind, Unigram, Word, WordPiece
from regard.errors import InputError
from tests.data.rows import BYTE, labelled

TAGGED = [("Anna lives in Rome", "PER O O LOC"), ("  Rome ", "LOC"), ("in , Annaland", "O O LOC")]


@pytest.fixture(params=["memory", "cached"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" if request.param == "cached" else None)


@pytest.mark.parametrize("kind", [BPE(280), Unigram(262), WordPiece(40), Word(30), Character(), Byte()])
def test_tags_are_at_the_first_token_of_each_word(kind: TokenizerKind, cache: Cache) -> None:
    corpus = labelled(TAGGED)
    task = Tagging().with_labels_from(corpus)
    assert task.labels == ("LOC", "O", "PER")
    tokenizer = kind.train([text for text, _ in TAGGED] * 3)
    samples = task.samples(corpus, (tokenizer, None), cache)
    batch = samples.batch(range(len(samples)))
    assert batch.targets.shape == batch.inputs["ids"].shape
    for (text, tags), ids, targets in zip(TAGGED, batch.inputs["ids"].tolist(), batch.targets.tolist()):
        assert [task.labels[number] for number in targets if number != IGNORE_INDEX] == tags.split()
        encoded = tokenizer.encode_with_offsets(text)
        assert ids[1 : len(encoded.ids) + 1] == encoded.ids
        parts = [
            text[slice(*encoded.offsets[index - 1])] for index, number in enumerate(targets) if number != IGNORE_INDEX
        ]
        assert all(
            word.startswith(part.strip()) and part.strip() for word, part in zip(text.split(), parts)
        ), parts  # fmt: skip
    assert torch.equal(samples.batch([2]).targets[0], batch.targets[2][: samples.lengths[2, 0]])


def test_tags_and_words_must_be_equally_many() -> None:
    with pytest.raises(InputError, match=r"^t\.tsv:2: 2 words have 3 tags \(text\.fields\)\. Give each word one"):
        Tagging().samples(labelled([("a", "X"), ("a b", "X X X")]), (BYTE, None))
    with pytest.raises(InputError, match=r't\.tsv:1: the training text has no label "Z"'):
        Tagging(labels=("X", "Y")).samples(labelled([("a", "Z")]), (BYTE, None))
    with pytest.raises(InputError, match="two texts per line"):
        Tagging().samples(Corpus(["a\tb"], ["X"], ("t",), paired_sources=True), (BYTE, None))
