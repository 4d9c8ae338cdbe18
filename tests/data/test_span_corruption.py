"""Spans: what is taken out stands in the target, and both sides together are the text."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batching import IGNORE_INDEX, BatchSampler
from regard.data.read.corpus import Corpus
from regard.data.tasks import Task
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tokenize.tokenizer import BOS, EOS, PAD, Tokenizer
from regard.data.tokenize.train import BPE, Byte, Character, TokenizerKind, Unigram, Word, WordPiece
from regard.errors import InputError
from regard.schema import from_dict, to_dict

_RANDOM = random.Random(6)
DOCUMENTS = ["".join(_RANDOM.choices("abcdefgh ", k=_RANDOM.randint(2, 400))) for _ in range(80)]
TEXTS = ["the cat and the dog and the cow", "then a cat and a dog", "another dog, and then another"]
CORPUS = Corpus(DOCUMENTS, None, ("t.txt",))
TOKENIZER = Byte(sentinels=100).train([])


def rebuilt(source: list[int], target: list[int], sentinels: list[int]) -> tuple[list[int], list[int]]:
    """The text of both sides, and the lengths of its spans."""
    assert (source[-1], target[-1]) == (EOS, EOS)
    known = set(sentinels)
    used = [number for number in source if number in known]
    assert used == [number for number in target if number in known] == sentinels[: len(used)]
    assert target[0] == sentinels[0]
    assert source[0] not in known, "a text begins with a run that is kept"
    spans: dict[int, list[int]] = {}
    last: list[int] = []
    for number in target[:-1]:
        if number in known:
            last = spans[number] = []
        else:
            last.append(number)
    assert all(spans.values())
    text = [token for number in source[:-1] for token in spans.get(number, [number])]
    return text, [len(span) for span in spans.values()]


@settings(deadline=None, max_examples=25)
@given(
    length=st.integers(4, 300),
    share=st.floats(0.01, 0.99),
    mean=st.floats(1, 12),
    draw=st.none() | st.integers(0, 2**62),
)
def test_both_sides_together_are_the_text(length: int, share: float, mean: float, draw: int | None) -> None:
    tokenizer = Byte(sentinels=300).train([])
    samples = SpanCorruption(length, share, mean).samples(CORPUS, (tokenizer, None))
    indices = list(range(len(samples)))[:: max(1, len(samples) // 40)]
    batch = samples.batch(indices, draw)
    pieces = samples.pieces.rows(np.array(indices))
    for row, index in enumerate(indices):
        source_length, target_length = samples.lengths[index].tolist()
        source, target = (batch.inputs["source_ids"][row].tolist(), batch.targets[row].tolist())
        assert set(source[source_length:]) <= {PAD}
        assert set(target[target_length:]) <= {IGNORE_INDEX}
        text, spans = rebuilt(source[:source_length], target[:target_length], tokenizer.sentinels)
        expected = pieces.flat[pieces.starts[row] : pieces.starts[row] + pieces.lengths[row]].tolist()
        assert text == expected
        taken = min(max(round(len(text) * share), 1), len(text) - 1)
        assert sum(spans) == taken
        assert len(spans) == min(max(round(taken / mean), 1), taken, len(text) - taken)
        ids = batch.inputs["ids"][row].tolist()
        assert ids[:target_length] == [BOS, *target[: target_length - 1]]
        assert set(ids[target_length:]) <= {PAD}
        alone = samples.batch([index], draw)
        assert alone.inputs["source_ids"].tolist() == [source[:source_length]]
        assert alone.targets.tolist() == [target[:target_length]]
    for name, side in (("source_padding", 0), ("padding", 1)):
        if name in batch.inputs:
            assert batch.inputs[name].sum(1).tolist() == samples.lengths[indices, side].tolist()


def test_spans_are_where_chance_has_them() -> None:
    samples = SpanCorruption(101).samples(Corpus(["x" * 100], None, ("t",)), (TOKENIZER, None))
    taken, known = np.zeros(100), set(TOKENIZER.sentinels)
    sizes: list[int] = []
    for draw in range(600):
        batch = samples.batch([0], draw)
        source = batch.inputs["source_ids"][0].tolist()
        _, spans = rebuilt(source, batch.targets[0].tolist(), TOKENIZER.sentinels)
        assert len(spans) == 5
        place, left = 0, iter(spans)
        for number in source[:-1]:
            size = next(left) if number in known else 0
            taken[place : place + size] += 1
            place += size or 1
        sizes += spans
    assert taken[0] == 0
    assert taken[-1] == 600, "the last run is a span, as published"
    # A random partition of 15 tokens into 5 spans: the chance of a span of one is C(13, 3) / C(14, 4).
    assert np.mean(np.array(sizes) == 1) == pytest.approx(286 / 1001, abs=0.03)
    assert taken[10:90].std() / taken[10:90].mean() < 0.35


def test_two_draws_differ_and_validation_is_fixed() -> None:
    samples = SpanCorruption(64).samples(CORPUS, (TOKENIZER, None))
    one, other = (samples.batch(range(9), draw).inputs["source_ids"] for draw in (1, 2))
    assert one.shape == other.shape
    assert not torch.equal(one, other)
    fixed = [samples.batch(range(9)).targets for _ in range(2)]
    assert torch.equal(*fixed)


def test_a_plan_of_spans_stays_in_its_budget() -> None:
    samples = SpanCorruption(64).samples(CORPUS, (TOKENIZER, None))
    for step in BatchSampler(samples.lengths, 500, 1, samples.mixture).epoch(0):
        batch = samples.batch(step, 1)
        assert batch.inputs["ids"].numel() + batch.inputs["source_ids"].numel() <= 500


def test_too_few_sentinels_are_refused_with_what_to_do() -> None:
    for tokenizer in (Byte().train([]), Byte(sentinels=3).train([])):
        with pytest.raises(InputError, match=r"has \d sentinels for them \(text\.tokenizer\)\. Use sentinels = 100"):
            SpanCorruption().samples(CORPUS, (tokenizer, None))


@pytest.mark.parametrize("kind", [BPE, Unigram, WordPiece, Word, Character, Byte])
def test_every_tokenizer_takes_sentinels_behind_its_own_tokens(kind: type[BPE]) -> None:
    size = {} if kind in (Character, Byte) else {"size": 262 if kind in (BPE, Unigram) else 30}
    plain, more = (kind(**size, sentinels=count).train(TEXTS) for count in (0, 7))  # type: ignore[arg-type]
    assert plain.sentinels == []
    assert more.sentinels == list(range(plain.vocabulary, plain.vocabulary + 7))
    assert more.vocabulary == plain.vocabulary + 7
    assert more.encode(DOCUMENTS[0]) == plain.encode(DOCUMENTS[0])
    assert not set(more.sentinels) & set(more.encode("a <extra_id_0> b"))
    assert Tokenizer.from_json(more.to_json()).sentinels == more.sentinels
    described: TokenizerKind = kind(sentinels=5)
    assert from_dict(TokenizerKind, to_dict(described), where="text.tokenizer") == described
    with pytest.raises(InputError, match=r"text\.tokenizer\.sentinels"):
        kind(**size, sentinels=-1).train(TEXTS)  # type: ignore[arg-type]


def test_a_text_of_one_token_is_left_out() -> None:
    samples = SpanCorruption().samples(Corpus(["a", "ab", ""], None, ("t",)), (TOKENIZER, None))
    assert samples.left_out.counts() == {"empty": 1, "shorter than 2 tokens": 1}
    assert samples.batch([0], 1).targets.tolist() == [[TOKENIZER.sentinels[0], TOKENIZER.encode("b")[0], EOS]]


def test_an_empty_slice_is_an_empty_batch() -> None:
    batch = SpanCorruption().samples(CORPUS, (TOKENIZER, None)).batch(np.zeros(0, np.int64), 1)
    assert batch.tokens == 0
    assert batch.targets.shape == (0, 0)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"length": 3}, {"share": 0.0}, {"mean": 0.5}, {"mean": float("nan")}):
        with pytest.raises(InputError, match=r"text\.problem\."):
            SpanCorruption(**wrong)
    task = SpanCorruption(64, 0.2, 2.0)
    assert from_dict(Task, to_dict(task), where="text.task") == task
