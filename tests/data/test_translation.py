"""Problems: what the rows of a batch hold, what is to be predicted, what was dropped and where it came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import IGNORE_INDEX, Batch, BatchSampler
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, concatenate_corpora, read_corpus
from regard.data.read.files import ReadOptions
from regard.data.read.texts import StoredTexts, byte_lengths, prefixed, texts_digest
from regard.data.samples import Samples
from regard.data.tasks import Task, default_task
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.translation import Translation
from regard.data.tokenize import encode as encode_module
from regard.data.tokenize.encode import encode_texts
from regard.data.tokenize.tokenizer import BOS, EOS, MASK, PAD, SpecialTokens, Tokenizer
from regard.data.tokenize.train import BPE, Byte, Character, TokenizerKind, Unigram, Word, WordPiece
from regard.errors import InputError
from regard.schema import from_dict, to_dict

BYTE = Byte().train([])
LETTERS = Character().train(["abcdefghij "])
WORDS = st.text("abc ", max_size=12)
PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30)
DOCUMENTS = st.lists(WORDS, min_size=1, max_size=30)


def pairs_of(pairs: list[tuple[str, str]]) -> Corpus:
    """A corpus of pairs."""
    return Corpus([source for source, _ in pairs], [target for _, target in pairs], ("t.de", "t.en"))


def filled(pair: tuple[str, str]) -> bool:
    """Whether there is something to learn from on both sides."""
    return all(side.strip() for side in pair)


def numbers(text: str, tokenizer: Tokenizer = BYTE) -> list[int]:
    """A text's tokens."""
    return tokenizer.encode(text)


def rows_of(batch: Batch, name: str, padding: str) -> list[list[int]]:
    """A batch's rows without what fills them up."""
    values = batch.inputs[name]
    real = batch.inputs.get(padding, torch.ones(values.shape, dtype=torch.bool))
    assert real.dtype == torch.bool
    assert values.dtype == torch.int64
    assert bool((values[~real] == PAD).all())
    assert real.any(dim=0).all(), "a column of padding alone"
    assert torch.equal(real, real.cummin(1).values), "padding is on the right"
    return [row[mask].tolist() for row, mask in zip(values, real)]


def expected_targets(batch: Batch) -> list[list[int]]:
    """What is to be predicted, row by row."""
    return [row[row != IGNORE_INDEX].tolist() for row in batch.targets]


def test_a_pair_is_source_and_end_then_begin_and_target() -> None:
    batch = Translation().samples(pairs_of([("ab", "cde")]), (BYTE, None)).batch([0])
    assert batch.inputs["source_ids"].tolist() == [[*numbers("ab"), EOS]]
    assert batch.inputs["ids"].tolist() == [[BOS, *numbers("cde")]]
    assert batch.targets.tolist() == [[*numbers("cde"), EOS]]
    assert set(batch.inputs) == {"ids", "source_ids"}
    assert batch.tokens == 4


@given(pairs=PAIRS, chosen=st.lists(st.integers(0, 29), max_size=8))
def test_every_row_of_pairs_is_itself_up_to_padding(pairs: list[tuple[str, str]], chosen: list[int]) -> None:
    full = [index for index, pair in enumerate(pairs) if filled(pair)]
    if not full:
        return
    samples = Translation().samples(pairs_of(pairs), (BYTE, LETTERS))
    indices = [index % len(full) for index in chosen]
    batch = samples.batch(np.array(indices, dtype=np.int64))
    kept = [full[index] for index in indices]
    assert len(samples) == len(full)
    assert batch.samples == tuple(kept)
    targets = [numbers(pairs[index][1], LETTERS) for index in kept]
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


def test_a_padding_is_left_out_when_nothing_is_padded() -> None:
    samples = Translation().samples(pairs_of([("ab", "c"), ("de", "fgh")]), (BYTE, None))
    batch = samples.batch([0, 1])
    assert "source_padding" not in batch.inputs
    assert batch.inputs["padding"].tolist() == [[True, True, False, False], [True, True, True, True]]


@given(pairs=PAIRS, max_length=st.integers(2, 14))
def test_dropped_pairs_are_counted_by_reason(pairs: list[tuple[str, str]], max_length: int) -> None:
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
def test_a_side_of_nothing_but_space_is_empty(kind: TokenizerKind) -> None:
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


def test_nothing_left_says_why_and_what_to_do() -> None:
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


def packed(documents: list[str], length: int) -> Samples:
    """Documents as rows."""
    return LanguageModel(length).samples(Corpus(documents, None, ("t.txt",)), (BYTE, None))


def test_documents_stand_one_after_the_other_each_between_begin_and_end() -> None:
    samples = packed(["ab", "", "c"], 5)
    first, second = samples.batch([0]), samples.batch([1])
    a, b, c = numbers("abc")
    assert first.inputs["ids"].tolist() == [[BOS, a, b, EOS, BOS]]
    assert first.targets.tolist() == [[a, b, EOS, IGNORE_INDEX, c]]
    assert first.inputs["document"].tolist() == [[0, 0, 0, 0, 1]]
    assert first.inputs["positions"].tolist() == [[0, 1, 2, 3, 0]]
    assert second.inputs["ids"].tolist() == [[c]]
    assert second.targets.tolist() == [[EOS]]
    assert set(second.inputs) == {"ids"}
    assert samples.lengths.tolist() == [[5], [1]]
    assert samples.left_out.counts() == {"empty": 1}
    assert samples.bytes == 3


def test_rows_of_one_document_each_need_neither_positions_nor_documents() -> None:
    batch = packed(["abcdefgh"], 4).batch([0, 1, 2])
    assert set(batch.inputs) == {"ids", "padding"}
    assert batch.inputs["padding"].tolist() == [[True] * 4, [True] * 4, [True, False, False, False]]


@given(documents=DOCUMENTS, length=st.integers(1, 20))
def test_every_token_of_every_document_is_predicted_exactly_once(documents: list[str], length: int) -> None:
    full = [text for text in documents if text]
    if not full:
        return
    samples = packed(documents, length)
    batch = samples.batch(range(len(samples)))
    predicted = [number for row in expected_targets(batch) for number in row]
    assert predicted == [number for text in full for number in [*numbers(text), EOS]]
    inputs = [number for row in rows_of(batch, "ids", "padding") for number in row]
    assert inputs == [number for text in full for number in [BOS, *numbers(text), EOS]][:-1]
    assert samples.bytes == sum(len(text.encode()) for text in full)


@given(documents=DOCUMENTS, length=st.integers(1, 20), chosen=st.lists(st.integers(0, 99), max_size=6))
def test_every_packed_row_is_itself_up_to_padding(documents: list[str], length: int, chosen: list[int]) -> None:
    if not any(documents):
        return
    samples = packed(documents, length)
    indices = [index % len(samples) for index in chosen]
    batch = samples.batch(indices)
    for row, index in enumerate(indices):
        alone = samples.batch([index])
        real = alone.targets.shape[1]
        assert real == samples.lengths[index, 0]
        assert torch.equal(batch.inputs["ids"][row, :real], alone.inputs["ids"][0])
        assert torch.equal(batch.targets[row, :real], alone.targets[0])
        assert bool((batch.targets[row, real:] == IGNORE_INDEX).all())
        positions = alone.inputs.get("positions", torch.arange(real)[None])
        if "positions" in batch.inputs:
            assert torch.equal(batch.inputs["positions"][row, :real], positions[0])


@given(documents=DOCUMENTS, length=st.integers(1, 20))
def test_a_token_that_both_begins_and_ends_texts_is_still_said_at_their_end(documents: list[str], length: int) -> None:
    if not any(documents):
        return
    one = Tokenizer.from_json(BYTE.to_json(), SpecialTokens(bos=EOS, eos=EOS))
    corpus = Corpus(documents, None, ("t.txt",))
    expected, found = (LanguageModel(length).samples(corpus, (tokenizer, None)) for tokenizer in (BYTE, one))
    rows = range(len(expected))
    theirs, ours = expected.batch(rows), found.batch(rows)
    assert torch.equal(ours.targets, theirs.targets)
    assert ours.inputs.keys() == theirs.inputs.keys()
    for name in theirs.inputs.keys() - {"ids"}:
        assert torch.equal(ours.inputs[name], theirs.inputs[name])


@given(documents=DOCUMENTS, length=st.integers(1, 20))
def test_documents_and_positions_restart_where_a_document_or_a_row_begins(documents: list[str], length: int) -> None:
    if not any(documents):
        return
    samples = packed(documents, length)
    batch = samples.batch(range(len(samples)))
    several = any(BOS in row[1:] for row in batch.inputs["ids"].tolist())
    assert ("document" in batch.inputs) == ("positions" in batch.inputs) == several
    if not several:
        return
    for ids, positions, document in zip(*(batch.inputs[name].tolist() for name in ("ids", "positions", "document"))):
        place = which = 0
        for column, number in enumerate(ids):
            if column and number == BOS:
                place, which = 0, which + 1
            assert (positions[column], document[column]) == (place, which)
            place += 1
        assert max(positions) < length


def test_where_names_the_documents_a_row_touches() -> None:
    samples = packed(["aaaa", "", "b", "cccc"], 6)
    assert [samples.where([row]) for row in range(len(samples))] == ["t.txt:1", "t.txt:3-4", "t.txt:4"]
    assert samples.where([0, 2]) == "t.txt:1, 4"
    assert samples.batch([1, 2]).samples == (2, 3)


def test_documents_without_text_are_refused() -> None:
    with pytest.raises(InputError, match=r"^t\.txt has 0 usable documents of 2: 2 empty\. "):
        packed(["", ""], 4)


def test_special_tokens_written_in_a_text_do_not_end_it() -> None:
    batch = packed(["a</s><s>b"], 100).batch([0])
    assert int((batch.inputs["ids"] <= MASK).sum()) == 1
    assert set(batch.inputs) == {"ids"}


def test_an_empty_slice_of_a_step_is_an_empty_batch() -> None:
    pairs = Translation().samples(pairs_of([("a", "b")]), (BYTE, None))
    for samples in (pairs, packed(["ab"], 4)):
        batch = samples.batch(np.zeros(0, np.int64))
        assert batch.tokens == 0
        assert batch.samples == ()
        assert batch.targets.shape == (0, 0)


def test_a_plan_of_samples_stays_in_its_budget() -> None:
    pairs = [("a" * (1 + number % 17), "b" * (1 + number % 11)) for number in range(300)]
    samples = Translation().samples(pairs_of(pairs), (BYTE, None))
    for step in BatchSampler(samples.lengths, 200, 1).epoch(0):
        batch = samples.batch(step)
        assert batch.inputs["ids"].numel() + batch.inputs["source_ids"].numel() <= 200


@given(texts=st.lists(st.text("ab \n", max_size=60), max_size=20))
def test_texts_encoded_in_slices_are_the_texts(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "_SLICE_TEXTS", 3)
        patch.setattr(encode_module, "_SLICE_CHARACTERS", 50)
        patch.setattr("regard.data.read.texts._PART", 20)
        rows = encode_texts(BYTE, texts)
    assert [rows.flat[start : start + size].tolist() for start, size in zip(rows.starts, rows.lengths)] == [
        [BOS, *numbers(text), EOS] if text else [] for text in texts
    ]
    assert rows.flat.dtype == np.uint16


def test_the_problem_follows_from_the_corpus() -> None:
    assert default_task(pairs_of([("a", "b")])) == Translation()
    assert default_task(Corpus(["a"], None, ("t.txt",))) == LanguageModel()


def test_a_problem_refuses_the_wrong_number_of_sides() -> None:
    with pytest.raises(
        InputError, match=r"^t\.txt has one side \(text\.train\)\. Name two, as in data/train\.\{de,en\}"
    ):
        Translation().samples(Corpus(["a"], None, ("t.txt",)), (BYTE, None))
    with pytest.raises(InputError, match=r"^t\.de has two sides"):
        LanguageModel().samples(pairs_of([("a", "b")]), (BYTE, None))


@pytest.mark.parametrize("kind", [Translation, LanguageModel])
def test_no_room_for_a_token_is_refused(kind: type[LanguageModel]) -> None:
    with pytest.raises(InputError, match=r"text\.problem\."):
        kind(0)


@pytest.mark.parametrize("problem", [Translation(max_length=9, prefix="to English: "), LanguageModel(length=9)])
def test_a_problem_can_be_written_and_read(task: Translation | LanguageModel) -> None:
    assert from_dict(Task, to_dict(task), where="text.task") == task


def test_a_prefix_stands_before_every_source(tmp_path: Path) -> None:
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
        assert task.wording(corpus).sources[-1] == "say: cd"
        assert Translation().wording(corpus).sources is corpus.sources


def test_prefixed_texts_stay_on_the_disk_and_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"one\n\ntwo\n")
    stored = read_corpus(str(tmp_path / "t.txt"), ReadOptions("line")).sources
    assert isinstance(stored, StoredTexts)
    assert prefixed(stored, "") is stored
    texts, other = prefixed(stored, "a: "), prefixed(stored, "b: ")
    assert list(texts) == ["a: one", "", "a: two"] == [texts[0], texts[1], texts[-1]]
    assert texts[1:] == ["", "a: two"]
    assert len({texts_digest(stored), texts_digest(texts), texts_digest(other)}) == 3
    assert texts_digest(texts) == texts_digest(prefixed(stored, "a: "))
    assert byte_lengths(texts, 1).tolist() == [0, 3]
    parts = [Corpus(texts, texts, ("a",)), Corpus(other, other, ("b",))]
    joined = concatenate_corpora([(part, 1.0) for part in parts])
    assert list(joined.sources) == [*texts, *other]
    assert byte_lengths(joined.sources, 2, 4).tolist() == [3, 3]
    rows = encode_texts(BYTE, joined.sources)
    assert rows.lengths.tolist() == [8, 0, 8, 8, 0, 8]
