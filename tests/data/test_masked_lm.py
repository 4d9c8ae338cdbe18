"""Masked language model: which tokens are masked, how often, as a function of seed and sample only."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batching import IGNORE_INDEX, Batch, BatchSampler
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, Subcorpus
from regard.data.tasks import Task
from regard.data.tasks.masked_lm import MaskedLM, ordinary_tokens, word_boundaries
from regard.data.tokenize.tokenizer import BOS, EOS, MASK, PAD, Tokenizer
from regard.data.tokenize.train import BPE, Byte, Character, TokenizerKind, Unigram, Word, WordPiece
from regard.errors import InputError
from regard.schema import from_dict, to_dict

_RANDOM = random.Random(5)
WORDS = ["".join(_RANDOM.choices("abcdefghij", k=_RANDOM.randint(1, 9))) for _ in range(300)]
DOCUMENTS = [" ".join(_RANDOM.choices(WORDS, k=_RANDOM.randint(1, 120))) + "." for _ in range(120)]
CORPUS = Corpus(DOCUMENTS, None, ("t.txt",))
TOKENIZER = BPE(600).train(DOCUMENTS)


def original(batch: Batch) -> torch.Tensor:
    """The tokens before masking."""
    return torch.where(batch.targets == IGNORE_INDEX, batch.inputs["ids"], batch.targets)


def real(batch: Batch) -> torch.Tensor:
    """The padding mask."""
    return batch.inputs.get("padding", torch.ones_like(batch.targets, dtype=torch.bool))


def test_chunks_cover_the_documents_and_have_bounded_length() -> None:
    samples = MaskedLM(length=32).samples(CORPUS, (TOKENIZER, None))
    found: dict[int, list[int]] = {}
    for index in range(len(samples)):
        batch = samples.batch([index], seed=3)
        row = original(batch)[0].tolist()
        assert set(batch.inputs) == {"ids"}
        assert batch.auxiliary is None
        assert len(row) == samples.lengths[index, 0] <= 32
        assert (row[0], row[-1]) == (BOS, EOS)
        found.setdefault(batch.samples[0], []).extend(row[1:-1])
    assert found == {index: TOKENIZER.encode(text) for index, text in enumerate(DOCUMENTS)}
    assert samples.bytes == sum(len(text.encode()) for text in DOCUMENTS)


def test_the_chunks_of_a_document_have_similar_lengths() -> None:
    text = "a" * 131
    samples = MaskedLM(length=34).samples(Corpus([text], None, ("t",)), (Byte().train([]), None))
    assert samples.lengths[:, 0].tolist() == [28, 28, 28, 28, 29]


@pytest.mark.parametrize("whole_word_masking", [False, True])
@pytest.mark.parametrize("next_sentence", [False, True])
def test_masked_replaced_and_kept_fractions_are_those_of_the_paper(
    whole_word_masking: bool, next_sentence: bool
) -> None:
    task = MaskedLM(length=64, whole_word_masking=whole_word_masking, next_sentence=next_sentence)
    samples = task.samples(CORPUS, (TOKENIZER, None))
    tokens = chosen = masked = same = other = 0
    for seed in range(12):
        batch = samples.batch(range(len(samples)), seed)
        ids, predicted = batch.inputs["ids"], batch.targets != IGNORE_INDEX
        before = original(batch)
        assert bool(predicted.any(1).all()), "at least one per chunk"
        assert not bool((predicted & (before <= MASK)).any()), "special tokens are never predicted"
        assert not bool((predicted & ~real(batch)).any())
        replaced = predicted & (ids != MASK) & (ids != before)
        assert bool((ids[replaced] > MASK).all()), "nor do they replace others"
        tokens += int((real(batch) & (before > MASK)).sum())
        chosen += int(predicted.sum())
        masked += int((predicted & (ids == MASK)).sum())
        same += int((predicted & (ids == before)).sum())
        other += int(replaced.sum())
    assert chosen / tokens == pytest.approx(0.15, abs=0.006)
    assert masked / chosen == pytest.approx(0.8, abs=0.015)
    assert same / chosen == pytest.approx(0.1, abs=0.012)
    assert other / chosen == pytest.approx(0.1, abs=0.012)


def test_every_position_is_chosen_about_equally_often() -> None:
    samples = MaskedLM(length=34).samples(Corpus(["x" * 32], None, ("t",)), (Byte().train([]), None))
    counts = sum((samples.batch([0], seed).targets[0] != IGNORE_INDEX).int() for seed in range(2000))
    assert counts[0] == counts[-1] == 0
    assert int(counts.sum()) == 2000 * 5
    expected = 2000 * 5 / 32
    assert bool(((counts[1:-1] - expected).abs() < 5 * expected**0.5).all())


@settings(deadline=None, max_examples=25)
@given(chosen=st.lists(st.integers(0, 200), min_size=1, max_size=12), seed=st.none() | st.integers(0, 2**62))
@pytest.mark.parametrize(
    "task", [MaskedLM(32), MaskedLM(32, whole_word_masking=True), MaskedLM(32, next_sentence=True)]
)
def test_a_sample_is_the_same_in_any_batch(task: MaskedLM, chosen: list[int], seed: int | None) -> None:
    samples = task.samples(CORPUS, (TOKENIZER, None))
    indices = [index % len(samples) for index in chosen]
    together = samples.batch(indices, seed)
    for row, index in enumerate(indices):
        alone = samples.batch([index], seed)
        length = alone.targets.shape[1]
        for name in ("ids", "segments"):
            if name in alone.inputs:
                assert torch.equal(together.inputs[name][row, :length], alone.inputs[name][0])
        assert torch.equal(together.targets[row, :length], alone.targets[0])
        assert bool((together.targets[row, length:] == IGNORE_INDEX).all())
        assert bool((together.inputs["ids"][row, length:] == PAD).all())
        assert real(together)[row].sum() == length
        if alone.auxiliary is not None and together.auxiliary is not None:
            assert together.auxiliary[row] == alone.auxiliary[0]


def test_different_seeds_mask_different_tokens() -> None:
    samples = MaskedLM(64).samples(CORPUS, (TOKENIZER, None))
    found = [samples.batch(range(20), seed).targets for seed in (None, 0, 1, 2)]
    for index, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[index + 1 :])


@pytest.mark.parametrize("kind", [BPE(600), Unigram(400), WordPiece(200), Word(1000), Character(), Byte()])
def test_whole_word_masking_chooses_whole_words(kind: TokenizerKind) -> None:
    tokenizer = kind.train(DOCUMENTS)
    samples = MaskedLM(length=128, whole_word_masking=True).samples(CORPUS, (tokenizer, None))
    partial = 0
    for index in range(40):
        batch = samples.batch([index], seed=1)
        if batch.inputs["ids"].shape[1] < 20:
            continue
        ids, predicted = original(batch)[0].tolist()[1:-1], (batch.targets[0] != IGNORE_INDEX).tolist()[1:-1]
        words: list[list[int]] = []
        texts = tokenizer.token_texts(ids)
        for column, text in enumerate(texts):
            new_word = text.startswith("▁") or text == "." or (column > 0 and texts[column - 1] == "▁")
            continues = text.startswith("##") if isinstance(kind, WordPiece) else not new_word
            if continues and words:
                words[-1].append(column)
            else:
                words.append([column])
        for word in words:
            assert len({predicted[column] for column in word}) == 1, [texts[column] for column in word]
            partial += len(word) > 1 and predicted[word[0]]
    assert partial > 20 or isinstance(kind, Word)


def test_tokens_that_continue_a_word_are_recognized() -> None:
    tokenizer = BPE(270).train(["ab ab abc. 中中文\n12 é"] * 9)
    marks, texts = word_boundaries(tokenizer), tokenizer.token_texts(range(tokenizer.vocabulary))
    found = {text: bool(marks.continues[number]) for number, text in enumerate(texts)}
    assert found["a"]
    assert found["1"]
    assert found["\\xc3"]
    assert found["\\xad"]
    assert not found["▁ab"]
    assert not found["."]
    assert not found["\\xe4"], "a character of a script without spaces is a word"
    ids = np.array([tokenizer.encode("a\nb")])
    assert word_boundaries(tokenizer).word_starts(ids)[0].tolist() == [False, True, True]


def test_unknown_tokens_are_masked_only_if_there_is_nothing_else() -> None:
    tokenizer = Character().train(["abc "])
    samples = MaskedLM().samples(Corpus(["ab" + "€" * 30, "€€€"], None, ("t",)), (tokenizer, None))
    unknown = tokenizer.unk
    for seed in range(50):
        batch = samples.batch([0, 1], seed)
        predicted = [row[row != IGNORE_INDEX].tolist() for row in batch.targets]
        assert unknown not in predicted[0]
        assert predicted[1] == [unknown]
    assert not ordinary_tokens(tokenizer)[:5].any()
    assert ordinary_tokens(tokenizer)[5:].all()


def two_segments(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The two segments of each row before masking."""
    found = []
    for row, mask, segments in zip(original(batch), real(batch), batch.inputs["segments"]):
        ids, numbers = row[mask].tolist(), segments[mask].tolist()
        seam = numbers.index(1)
        assert numbers == [0] * seam + [1] * (len(numbers) - seam)
        assert (ids[0], ids[seam - 1], ids[-1]) == (BOS, EOS, EOS)
        assert bool((segments[~mask] == 0).all())
        found.append((ids[1 : seam - 1], ids[seam:-1]))
    return found


def test_the_second_segment_follows_or_is_from_another_document() -> None:
    samples = MaskedLM(length=48, next_sentence=True).samples(CORPUS, (TOKENIZER, None))
    streams = [" ".join(map(str, TOKENIZER.encode(text))) + " " for text in DOCUMENTS]
    elsewhere = total = equal = 0
    for seed in range(6):
        batch = samples.batch(range(len(samples)), seed)
        assert batch.auxiliary is not None
        for index, (first, second), auxiliary in zip(batch.samples, two_segments(batch), batch.auxiliary.tolist()):
            assert first
            assert second
            one, other = ("".join(f"{number} " for number in part) for part in (first, second))
            if auxiliary:
                others = [number for number, stream in enumerate(streams) if other in stream and number != index]
                assert one in streams[index]
                assert others
            else:
                assert one + other in streams[index]
            elsewhere, total = elsewhere + auxiliary, total + 1
        lengths = samples.lengths[:, 0]
        widths = real(batch).sum(1).numpy()
        assert (widths <= lengths).all()
        equal += int((widths == lengths).sum())
    assert elsewhere / total == pytest.approx(0.5, abs=0.05)
    assert equal / total > 0.95


def test_with_one_document_the_second_segment_is_from_another_chunk() -> None:
    tokenizer = Byte().train([])
    text = "a" * 26 + "b" * 26 + "c" * 26
    samples = MaskedLM(length=29, next_sentence=True).samples(Corpus([text], None, ("t",)), (tokenizer, None))
    assert len(samples) == 3
    seen = set()
    for seed in range(60):
        batch = samples.batch([0, 1, 2], seed)
        assert batch.auxiliary is not None
        for own, (first, second), auxiliary in zip("abc", two_segments(batch), batch.auxiliary.tolist()):
            assert {*tokenizer.decode(first)} == {own}
            assert ({*tokenizer.decode(second)} == {own}) == (not auxiliary)
            seen.add((own, tokenizer.decode(second)[0]))
    assert len(seen) == 9
    with pytest.raises(InputError, match=r"^t is one chunk of text.*next_sentence = false"):
        MaskedLM(next_sentence=True).samples(Corpus(["abc"], None, ("t",)), (tokenizer, None))


def test_left_out_documents_are_counted() -> None:
    corpus = Corpus(["ab cd", "", "x", "abc"], None, ("t.txt",))
    samples = MaskedLM(next_sentence=True).samples(corpus, (Byte().train([]), None))
    assert samples.left_out.counts() == {"empty": 1, "shorter than 2 tokens": 1}
    assert samples.where([0, 1]) == "t.txt:1, 4"
    assert samples.bytes == 8


def test_the_mixture_counts_chunks_per_subcorpus() -> None:
    corpus = Corpus(DOCUMENTS, None, ("a", "b"), subcorpora=(Subcorpus(("a",), 50), Subcorpus(("b",), 70, 2.0)))
    samples = MaskedLM(32).samples(corpus, (TOKENIZER, None))
    owners = [samples.batch([index]).samples[0] for index in range(len(samples))]
    assert [(share.samples, share.weight) for share in samples.mixture] == [
        (sum(owner < 50 for owner in owners), 1.0),
        (sum(owner >= 50 for owner in owners), 2.0),
    ]


def test_a_cache_changes_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    expected = MaskedLM(32).samples(CORPUS, (TOKENIZER, None)).batch([5, 1], 7)
    for _ in range(2):
        found = MaskedLM(32).samples(CORPUS, (TOKENIZER, None), cache).batch([5, 1], 7)
        assert torch.equal(found.inputs["ids"], expected.inputs["ids"])
        assert torch.equal(found.targets, expected.targets)


def test_batches_of_chunks_stay_in_the_budget() -> None:
    samples = MaskedLM(64, next_sentence=True).samples(CORPUS, (TOKENIZER, None))
    for step in BatchSampler(samples.lengths, 700, 1, samples.mixture).epoch(0):
        assert samples.batch(step, 1).inputs["ids"].numel() <= 700


def test_no_indices_give_an_empty_batch() -> None:
    for task in (MaskedLM(), MaskedLM(whole_word_masking=True), MaskedLM(next_sentence=True)):
        batch = task.samples(CORPUS, (TOKENIZER, None)).batch(np.zeros(0, np.int64), 1)
        assert batch.tokens == 0
        assert batch.targets.shape == (0, 0)


def test_wrong_settings_and_texts_are_refused() -> None:
    for wrong in ({"length": 3}, {"mlm_probability": 0.0}, {"mlm_probability": 1.0}, {"mlm_probability": float("nan")}):
        with pytest.raises(InputError, match=r"text\.task\."):
            MaskedLM(**wrong)
    with pytest.raises(InputError, match="has two sides"):
        MaskedLM().samples(Corpus(["a"], ["b"], ("t",)), (TOKENIZER, None))
    with pytest.raises(InputError, match=r"text\.bpe_dropout"):
        MaskedLM().samples(CORPUS, (TOKENIZER, None), bpe_dropout=0.1)
    plain = Tokenizer.from_json(TOKENIZER.to_json().replace("<mask>", "<hide>"))
    with pytest.raises(InputError, match="no <mask> token"):
        MaskedLM().samples(CORPUS, (plain, None))


def test_the_task_survives_a_round_trip_through_a_dict() -> None:
    task = MaskedLM(64, 0.2, whole_word_masking=True, next_sentence=True)
    assert from_dict(Task, to_dict(task), where="text.task") == task
