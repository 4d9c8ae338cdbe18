"""Language modelling: packed rows, their documents and positions, and their targets; streams of truncated BPTT.

In truncated BPTT every token is predicted once, and each segment continues where the previous one ended.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import IGNORE_INDEX, BatchSampler, Cursor
from regard.data.read.corpus import Corpus, concatenate_corpora
from regard.data.samples import Samples
from regard.data.tasks.language_model import LanguageModel, TruncatedBPTT
from regard.data.tokenize.tokenizer import BOS, EOS, MASK, SpecialTokens, Tokenizer
from regard.errors import InputError
from tests.data.rows import BYTE, expected_targets, numbers, rows_of

CORPUS = Corpus(["a rather long document, forty bytes or so", "", "né", "x", "seven b", "eight by"], None, ("text",))
DOCUMENTS = st.lists(st.text("abc ", max_size=12), min_size=1, max_size=30)


def packed(documents: list[str], length: int) -> Samples:
    """Documents as rows."""
    return LanguageModel(length).samples(Corpus(documents, None, ("t.txt",)), (BYTE, None))


def test_documents_are_packed_each_with_bos_and_eos() -> None:
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
def test_every_packed_row_is_its_tokens_and_padding(documents: list[str], length: int, chosen: list[int]) -> None:
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
def test_a_token_that_is_both_bos_and_eos_is_predicted_as_eos(documents: list[str], length: int) -> None:
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
def test_document_ids_and_positions_restart_with_each_document_and_row(documents: list[str], length: int) -> None:
    if not any(documents):
        return
    samples = packed(documents, length)
    batch = samples.batch(range(len(samples)))
    several = any(BOS in row[1:] for row in batch.inputs["ids"].tolist())
    assert ("document" in batch.inputs) == ("positions" in batch.inputs) == several
    if not several:
        return
    for ids, positions, document in zip(*(batch.inputs[name].tolist() for name in ("ids", "positions", "document"))):
        position = which = 0
        for column, number in enumerate(ids):
            if column and number == BOS:
                position, which = 0, which + 1
            assert (positions[column], document[column]) == (position, which)
            position += 1
        assert max(positions) < length


def test_where_names_the_documents_of_a_row() -> None:
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


def segments(length: int, streams: int, corpus: Corpus = CORPUS):
    samples = TruncatedBPTT(length, streams).samples(corpus, (BYTE, None))
    sampler = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams)
    return samples, [samples.batch(step) for step in sampler.epoch(0)]


@pytest.mark.parametrize("length", [1, 2, 4, 5, 7, 200])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 100])
def test_every_stream_continues_and_every_token_is_predicted_once(length: int, count: int):
    samples, batches = segments(length, count)
    tokens = samples.stream.tokens.tolist()
    starts = {start for start, size in zip(samples.stream.starts.tolist(), samples.stream.lengths.tolist()) if size}
    streams = [[] for _ in range(samples.streams)]
    targets = [[] for _ in range(samples.streams)]
    for batch in batches:
        assert set(batch.inputs) <= {"ids", "padding"}
        assert batch.inputs["ids"].shape[1] <= length + 1
        for stream in range(samples.streams):
            real = batch.inputs["padding"][stream] if "padding" in batch.inputs else slice(None)
            streams[stream] += batch.inputs["ids"][stream][real].tolist()
            targets[stream] += batch.targets[stream][real].tolist()
    assert [*chain(*streams)] == tokens[:-1]
    assert max(map(len, streams)) - min(map(len, streams)) <= 1
    expected = [IGNORE_INDEX if index in starts else token for index, token in enumerate(tokens)][1:]
    assert [*chain(*targets)] == expected


def test_targets_are_those_of_packed_rows():
    _, batches = segments(5, 3)
    rows = LanguageModel(5).samples(CORPUS, (BYTE, None))
    assert sum(batch.tokens for batch in batches) == rows.batch(range(len(rows))).tokens


def test_lengths_are_those_of_the_batches():
    samples, batches = segments(4, 3)
    sampler = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams)
    for step, batch in zip(sampler.in_order(), batches):
        longest = batch.inputs["ids"].shape[1]
        assert samples.lengths[step].max() == longest
        assert batch.inputs.get("padding", np.ones((samples.streams, longest))).sum() == samples.lengths[step].sum()


def test_every_epoch_is_the_same_and_any_cursor_is_reached_at_once():
    samples, _ = segments(4, 3)
    sampler, cursor, visited = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams), Cursor(), []
    while cursor.epoch == 0:
        fresh = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams).next_step(cursor)[0]
        step, cursor = sampler.next_step(cursor)
        assert fresh.tolist() == step.tolist()
        visited += step.tolist()
    assert visited == list(range(len(samples)))
    assert cursor == Cursor(1)


def test_a_short_text_has_fewer_streams():
    assert segments(200, 16)[0].streams == 1
    assert segments(20, 16)[0].streams == 3


def test_wrong_settings_and_weights_are_refused():
    with pytest.raises(InputError, match=r"streams must be 1 or more, got 0 \(text\.task\.streams\)"):
        TruncatedBPTT(streams=0)
    with pytest.raises(InputError, match=r"length = 0 leaves no room"):
        TruncatedBPTT(length=0)
    with pytest.raises(InputError, match=r"once per epoch \(text\.train\)\. Leave out the weights\."):
        TruncatedBPTT().samples(concatenate_corpora([(CORPUS, 2.0), (CORPUS, 1.0)]), (BYTE, None))
