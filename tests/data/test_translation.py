"""Translation: the rows of a batch, their targets, and the pairs that are left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import BatchSampler
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, read_corpus
from regard.data.read.texts import ReadOptions
from regard.data.tasks import Task
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.translation import Translation
from regard.data.tokenize.tokenizer import BOS, EOS
from regard.data.tokenize.train import BPE, Byte, Character, TokenizerKind, Unigram, Word, WordPiece
from regard.errors import InputError
from regard.schema import from_dict, to_dict
from tests.data.rows import BYTE, expected_targets, numbers, pairs_of, rows_of

LETTERS = Character().train(["abcdefghij "])
WORDS = st.text("abc ", max_size=12)
PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30)


def filled(pair: tuple[str, str]) -> bool:
    """Whether neither side is blank."""
    return all(side.strip() for side in pair)


def test_a_pair_is_source_and_eos_then_bos_and_target() -> None:
    batch = Translation().samples(pairs_of([("ab", "cde")]), (BYTE, None)).batch([0])
    assert batch.inputs["source_ids"].tolist() == [[*numbers("ab"), EOS]]
    assert batch.inputs["ids"].tolist() == [[BOS, *numbers("cde")]]
    assert batch.targets.tolist() == [[*numbers("cde"), EOS]]
    assert set(batch.inputs) == {"ids", "source_ids"}
    assert batch.tokens == 4


@given(pairs=PAIRS, chosen=st.lists(st.integers(0, 29), max_size=8))
def test_every_row_of_pairs_is_its_tokens_and_padding(pairs: list[tuple[str, str]], chosen: list[int]) -> None:
    full = [index for index, pair in enumerate(pairs) if filled(pair)]
    if not full:
        return
    samples = Translation().samples(pairs_of(pairs), (BYTE, LETTERS))
    indices = [index % len(full) for index in chosen]
    batch = samples.batch(np.array(indices, dtype=np.int64))
    kept = [full[index] for index in indices]
    assert len(samples) == len(full)
    assert batch.samples == tuple(kept)
    targets = [LETTERS.encode(pairs[index][1]) for index in kept]
    assert rows_of(batch, "source_ids", "source_padding") == [[*numbers(pairs[i][0]), EOS] for i in kept]
    assert rows_of(batch, "ids", "padding") == [[BOS, *ids] for ids in targets]
    assert expected_targets(batch) == [[*ids, EOS] for ids in targets]
    assert batch.tokens == sum(len(ids) + 1 for ids in targets)
    assert batch.inputs["ids"].shape == batch.targets.shape


@given(pairs=PAIRS)
def test_lengths_are_those_of_the_batch(pairs: list[tuple[str, str]]) -> None:
    if not any(map(filled, pairs)):
        return
    samples = Translation().samples(pairs_of(pairs), (BYTE, None))
    assert samples.lengths.shape == (len(samples), 2)
    for index, (source, target) in enumerate(samples.lengths):
        batch = samples.batch([index])
        assert batch.inputs["source_ids"].shape == (1, source)
        assert batch.inputs["ids"].shape == (1, target)


def test_there_is_no_padding_mask_without_padding() -> None:
    samples = Translation().samples(pairs_of([("ab", "c"), ("de", "fgh")]), (BYTE, None))
    batch = samples.batch([0, 1])
    assert "source_padding" not in batch.inputs
    assert batch.inputs["padding"].tolist() == [[True, True, False, False], [True, True, True, True]]


@given(pairs=PAIRS, max_length=st.integers(2, 14))
def test_left_out_pairs_are_counted_by_reason(pairs: list[tuple[str, str]], max_length: int) -> None:
    empty = sum(not filled(pair) for pair in pairs)
    long = sum(filled(pair) and max(map(len, pair)) + 1 > max_length for pair in pairs)
    corpus = pairs_of(pairs)
    if empty + long == len(pairs):
        with pytest.raises(InputError, match=f"t.de has 0 usable lines of {len(pairs)}: "):
            Translation(max_length).samples(corpus, (BYTE, None))
        return
    samples = Translation(max_length).samples(corpus, (BYTE, None))
    assert len(samples) + empty + long == len(pairs)
    assert samples.left_out.counts().get("empty", 0) == empty
    assert samples.left_out.counts().get(f"longer than {max_length} tokens", 0) == long
    assert samples.lengths.max() <= max_length


@pytest.mark.parametrize("kind", [Byte(), Character(), BPE(264), Unigram(263), Word(20), WordPiece(11)])
def test_a_blank_side_is_empty(kind: TokenizerKind) -> None:
    blank = [" ", " " * 300, "\t ", "\u3000", "\u00a0\u00a0", "\u2003"]
    kept = [("a b", "\u3000c"), ("\u00a0a", " b"), (" \u20ac", "a")]  # the last of an unknown character
    given = [*kept, *((one, "c") for one in blank), *(("c", one) for one in blank)]
    texts = [side for pair in [*kept[:2], ("b c", "\u3000 \u2003\u00a0\t")] for side in pair]
    samples = Translation(max_length=1000).samples(pairs_of(given), (kind.train(texts * 20), None))
    assert samples.left_out.counts() == {"empty": 2 * len(blank)}
    assert samples.where(range(len(samples))) == "t.de:1-3"


def test_a_pair_may_be_exactly_as_long_as_allowed() -> None:
    samples = Translation(max_length=4).samples(pairs_of([("abc", "abc"), ("abcd", "a"), ("a", "abcd")]), (BYTE, None))
    assert len(samples) == 1
    assert samples.left_out.counts() == {"longer than 4 tokens": 2}


def test_an_error_explains_why_every_pair_is_left_out() -> None:
    corpus = pairs_of([("a" * 300, "b")] * 1200 + [("", "b")] * 9)
    with pytest.raises(InputError) as caught:
        Translation().samples(corpus, (BYTE, None))
    assert str(caught.value) == (
        "t.de has 0 usable lines of 1,209: 1,200 longer than 256 tokens, 9 empty. "
        "Raise text.task.max_length or split the text."
    )


def test_where_names_the_original_lines() -> None:
    samples = Translation().samples(pairs_of([("a", "b"), ("", "b"), ("a", "b"), ("a", "b")]), (BYTE, None))
    assert samples.where([0, 1, 2]) == "t.de:1, 3-4"
    assert samples.batch([1]).samples == (2,)


def test_bytes_are_those_of_the_targets_that_are_kept() -> None:
    samples = Translation().samples(pairs_of([("aaaa", "é"), ("", "bbbb"), ("a", "b")]), (BYTE, None))
    assert samples.bytes == 3


def test_no_indices_give_an_empty_batch() -> None:
    pairs = Translation().samples(pairs_of([("a", "b")]), (BYTE, None))
    for samples in (pairs, LanguageModel(4).samples(Corpus(["ab"], None, ("t.txt",)), (BYTE, None))):
        batch = samples.batch(np.zeros(0, np.int64))
        assert batch.tokens == 0
        assert batch.samples == ()
        assert batch.targets.shape == (0, 0)


def test_batches_of_pairs_stay_in_the_budget() -> None:
    pairs = [("a" * (1 + number % 17), "b" * (1 + number % 11)) for number in range(300)]
    samples = Translation().samples(pairs_of(pairs), (BYTE, None))
    for step in BatchSampler(samples.lengths, 200, 1).epoch(0):
        batch = samples.batch(step)
        assert batch.inputs["ids"].numel() + batch.inputs["source_ids"].numel() <= 200


def test_a_task_refuses_the_wrong_number_of_sides() -> None:
    with pytest.raises(
        InputError, match=r"^t\.txt has one side \(text\.train\)\. Name two, as in data/train\.\{de,en\}"
    ):
        Translation().samples(Corpus(["a"], None, ("t.txt",)), (BYTE, None))
    with pytest.raises(InputError, match=r"^t\.de has two sides"):
        LanguageModel().samples(pairs_of([("a", "b")]), (BYTE, None))


@pytest.mark.parametrize("kind", [Translation, LanguageModel])
def test_no_room_for_a_token_is_refused(kind: type[LanguageModel]) -> None:
    with pytest.raises(InputError, match=r"text\.task\."):
        kind(0)


@pytest.mark.parametrize("task", [Translation(max_length=9, prefix="to English: "), LanguageModel(length=9)])
def test_a_task_survives_a_round_trip_through_a_dict(task: Translation | LanguageModel) -> None:
    assert from_dict(Task, to_dict(task), where="text.task") == task


def test_the_prefix_is_before_every_source(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_bytes(b"ab\tx\n\ty\n \tz\n\xff\tw\ncd\tv\n")
    task, reading = Translation(prefix="say: "), ReadOptions(bad_utf8="skip")
    for cache in (Cache(), Cache(tmp_path / "cache")):
        corpus = read_corpus(str(tmp_path / "t.tsv"), reading, cache)
        samples = task.samples(corpus, (BYTE, None), cache)
        plain = Translation().samples(corpus, (BYTE, None), cache)
        assert samples.left_out.counts() == plain.left_out.counts() == {"not UTF-8": 1, "empty": 2}
        assert samples.bytes == plain.bytes == 2
        batch = samples.batch([0, 1])
        assert batch.inputs["source_ids"].tolist() == [[*numbers(f"say: {text}"), EOS] for text in ("ab", "cd")]
        assert torch.equal(batch.targets, plain.batch([0, 1]).targets)
        assert samples.where([1]) == plain.where([1])
        assert task.tokenizer_text(corpus).sources[-1] == "say: cd"
        assert Translation().tokenizer_text(corpus).sources is corpus.sources
