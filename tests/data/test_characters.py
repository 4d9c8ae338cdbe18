"""Characters of words, numbered as in the published ELMo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regard.data.character_samples import CharacterSamples
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tokenize.characters import (
    CHARACTER_VOCABULARY,
    bos_and_eos_characters,
    text_characters,
    token_characters,
    word_characters,
)
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import Character, Word, train_tokenizers
from regard.errors import InputError

# One more than the published numbers of marks and padding, because 0 is batch padding.
BEGIN, END, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261


def tokenizer(kind: Word | Character) -> Tokenizer:
    return train_tokenizers(kind, Corpus(["the cat sat", "the größte dog"], None, ("text",)))[0]


def test_a_word_is_its_bytes_between_two_boundary_marks():
    (row,) = word_characters(["cät"])
    assert row.tolist() == [BEGIN_WORD, *(byte + 1 for byte in "cät".encode()), END_WORD, *44 * [PADDING]]
    assert row.shape == (50,)
    assert word_characters([]).shape == (0, 50)
    assert word_characters([""])[0, :3].tolist() == [BEGIN_WORD, END_WORD, PADDING]


def test_a_long_word_is_truncated_before_its_end_mark():
    short, long = word_characters(["a" * 48, "a" * 47 + "bc" * 9])
    assert short.tolist() == [BEGIN_WORD, *48 * [98], END_WORD]
    assert long.tolist() == [BEGIN_WORD, *47 * [98], 99, END_WORD]


def test_an_unpaired_surrogate_is_left_out():
    assert (word_characters(["a\ud800b"]) == word_characters(["ab"])).all()


def test_characters_are_between_one_and_the_size_of_the_table():
    rows = word_characters(["\x00", "\uffff", "plain", *map(chr, range(300))])
    assert rows.min() == 1
    assert rows.max() == CHARACTER_VOCABULARY - 1


def test_texts_get_bos_and_eos_and_are_padded_with_zeros():
    characters, real = text_characters([["a", "b"], []])
    assert real.tolist() == [[True, True, True, True], [True, True, False, False]]
    begin, end = bos_and_eos_characters()
    assert begin.tolist() == [BEGIN_WORD, BEGIN, END_WORD, *47 * [PADDING]]
    assert end.tolist() == [BEGIN_WORD, END, END_WORD, *47 * [PADDING]]
    assert (characters[0] == np.stack([begin, *word_characters(["a", "b"]), end])).all()
    assert (characters[1, :2] == np.stack([begin, end])).all()
    assert not characters[1, 2:].any()


def test_the_characters_of_a_vocabulary_are_cached(tmp_path: Path):
    words = tokenizer(Word())
    table = token_characters(words)
    ids = [words.bos, *words.encode("the größte cat"), words.eos, words.pad]
    characters, _ = text_characters([["the", "größte", "cat"]])
    assert (table[np.array(ids[:-1])] == characters[0]).all()
    assert not table[words.pad].any()
    assert table.shape == (words.vocabulary, 50)
    assert table.dtype == np.int16
    kept = token_characters(words, Cache(tmp_path))
    again = token_characters(words, Cache(tmp_path))
    assert (kept == table).all()
    assert isinstance(again, np.memmap)
    assert (again == table).all()


def test_words_may_have_fewer_characters():
    table = token_characters(tokenizer(Character()), characters=5)
    assert table.shape[1] == 5
    assert word_characters(["abcdef"], 5).tolist() == [[BEGIN_WORD, 98, 99, 100, END_WORD]]
    with pytest.raises(InputError, match="no room between its marks"):
        word_characters(["a"], 2)


def test_samples_have_characters_as_inputs_and_token_ids_as_targets(tmp_path: Path):
    corpus = Corpus(["the cat sat", "the größte dog sat"], None, ("text",))
    words = train_tokenizers(Word(), corpus)[0]
    plain = BidirectionalLM(length=8).samples(corpus, (words, None))
    samples = CharacterSamples(plain, token_characters(words, Cache(tmp_path)))
    batch, numbers = samples.batch([0, 1]), plain.batch([0, 1])
    characters, real = text_characters([["the", "cat", "sat"], ["the", "größte", "dog", "sat"]])
    assert (batch.inputs["ids"].numpy() == characters).all()
    assert (batch.inputs["padding"].numpy() == real).all()
    assert batch.targets.equal(numbers.targets)
    assert (batch.samples, batch.tokens) == (numbers.samples, numbers.tokens)
    for name in ("corpus", "bytes", "mixture", "left_out"):
        assert getattr(samples, name) is getattr(plain, name) or getattr(samples, name) == getattr(plain, name)
    assert (samples.lengths == plain.lengths).all()
    assert len(samples) == len(plain) == 2
    assert samples.where([1]) == plain.where([1])
