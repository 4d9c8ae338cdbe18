"""Span corruption: the target has the removed spans, and source and target together are the text."""

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
    """The text that source and target make, and the lengths of its spans."""
    assert (source[-1], target[-1]) == (EOS, EOS)
    known = set(sentinels)
    used = [number for number in source if number in known]
    assert used == [number for number in target if number in known] == sentinels[: len(used)]
    assert target[0] == sentinels[0]
    assert source[0] not in known, "a text starts with a kept run"
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
    noise_density=st.floats(0.01, 0.99),
    mean_length=st.floats(1, 12),
    seed=st.none() | st.integers(0, 2**62),
)
def test_source_and_target_together_are_the_text(
    length: int, noise_density: float, mean_length: float, seed: int | None
) -> None:
    tokenizer = Byte(sentinels=300).train([])
    samples = SpanCorruption(length, noise_density, mean_length).samples(CORPUS, (tokenizer, None))
    indices = list(range(len(samples)))[:: max(1, len(samples) // 40)]
    batch = samples.batch(indices, seed)
    chunks = samples.chunks.tokens(np.array(indices))
    for row, index in enumerate(indices):
        source_length, target_length = samples.lengths[index].tolist()
        source, target = (batch.inputs["source_ids"][row].tolist(), batch.targets[row].tolist())
        assert set(source[source_length:]) <= {PAD}
        assert set(target[target_length:]) <= {IGNORE_INDEX}
        text, spans = rebuilt(source[:source_length], target[:target_length], tokenizer.sentinels)
        expected = chunks.tokens[chunks.starts[row] : chunks.starts[row] + chunks.lengths[row]].tolist()
        assert text == expected
        noise = min(max(round(len(text) * noise_density), 1), len(text) - 1)
        assert sum(spans) == noise
        assert len(spans) == min(max(round(noise / mean_length), 1), noise, len(text) - noise)
        ids = batch.inputs["ids"][row].tolist()
        assert ids[:target_length] == [BOS, *target[: target_length - 1]]
        assert set(ids[target_length:]) <= {PAD}
        alone = samples.batch([index], seed)
        assert alone.inputs["source_ids"].tolist() == [source[:source_length]]
        assert alone.targets.tolist() == [target[:target_length]]
    for name, side in (("source_padding", 0), ("padding", 1)):
        if name in batch.inputs:
            assert batch.inputs[name].sum(1).tolist() == samples.lengths[indices, side].tolist()


def test_span_positions_and_lengths_are_random() -> None:
    samples = SpanCorruption(101).samples(Corpus(["x" * 100], None, ("t",)), (TOKENIZER, None))
    noise, known = np.zeros(100), set(TOKENIZER.sentinels)
    sizes: list[int] = []
    for seed in range(600):
        batch = samples.batch([0], seed)
        source = batch.inputs["source_ids"][0].tolist()
        _, spans = rebuilt(source, batch.targets[0].tolist(), TOKENIZER.sentinels)
        assert len(spans) == 5
        position, left = 0, iter(spans)
        for number in source[:-1]:
            size = next(left) if number in known else 0
            noise[position : position + size] += 1
            position += size or 1
        sizes += spans
    assert noise[0] == 0
    assert noise[-1] == 600, "the last run is a span, as published"
    # A random partition of 15 tokens into 5 spans: the chance of a span of one is C(13, 3) / C(14, 4).
    assert np.mean(np.array(sizes) == 1) == pytest.approx(286 / 1001, abs=0.03)
    assert noise[10:90].std() / noise[10:90].mean() < 0.35


def test_two_seeds_differ_and_validation_is_fixed() -> None:
    samples = SpanCorruption(64).samples(CORPUS, (TOKENIZER, None))
    one, other = (samples.batch(range(9), seed).inputs["source_ids"] for seed in (1, 2))
    assert one.shape == other.shape
    assert not torch.equal(one, other)
    fixed = [samples.batch(range(9)).targets for _ in range(2)]
    assert torch.equal(*fixed)


def test_batches_of_spans_stay_in_the_budget() -> None:
    samples = SpanCorruption(64).samples(CORPUS, (TOKENIZER, None))
    for step in BatchSampler(samples.lengths, 500, 1, samples.mixture).epoch(0):
        batch = samples.batch(step, 1)
        assert batch.inputs["ids"].numel() + batch.inputs["source_ids"].numel() <= 500


def test_too_few_sentinels_are_refused_with_a_remedy() -> None:
    for tokenizer in (Byte().train([]), Byte(sentinels=3).train([])):
        with pytest.raises(InputError, match=r"has \d sentinels for them \(text\.tokenizer\)\. Use sentinels = 100"):
            SpanCorruption().samples(CORPUS, (tokenizer, None))


@pytest.mark.parametrize("kind", [BPE, Unigram, WordPiece, Word, Character, Byte])
def test_every_tokenizer_takes_sentinels_after_its_own_tokens(kind: type[BPE]) -> None:
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


def test_no_indices_give_an_empty_batch() -> None:
    batch = SpanCorruption().samples(CORPUS, (TOKENIZER, None)).batch(np.zeros(0, np.int64), 1)
    assert batch.tokens == 0
    assert batch.targets.shape == (0, 0)


def test_wrong_settings_are_refused() -> None:
    for wrong in (
        {"length": 3},
        {"noise_density": 0.0},
        {"mean_noise_span_length": 0.5},
        {"mean_noise_span_length": float("nan")},
    ):
        with pytest.raises(InputError, match=r"text\.task\."):
            SpanCorruption(**wrong)
    task = SpanCorruption(64, 0.2, 2.0)
    assert from_dict(Task, to_dict(task), where="text.task") == task
