"""Encoding of texts: in slices, with prefixes, from a file; BPE-dropout: lossless, a function of the seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, concatenate_corpora, read_corpus
from regard.data.read.texts import ReadOptions, StoredTexts, byte_lengths, prefixed, texts_digest
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.translation import Translation
from regard.data.tokenize import encode as encode_module
from regard.data.tokenize.encode import BPEDropout, encode_texts
from regard.data.tokenize.tokenizer import BOS, EOS
from regard.data.tokenize.train import BPE, Character
from regard.errors import InputError
from tests.data.rows import BYTE, numbers


@given(texts=st.lists(st.text("ab \n", max_size=60), max_size=20))
def test_encoding_in_slices_changes_nothing(texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "_SLICE_TEXTS", 3)
        patch.setattr(encode_module, "_SLICE_CHARACTERS", 50)
        patch.setattr("regard.data.read.texts._PART", 20)
        rows = encode_texts(BYTE, texts)
    assert [rows.tokens[start : start + size].tolist() for start, size in zip(rows.starts, rows.lengths)] == [
        [BOS, *numbers(text), EOS] if text else [] for text in texts
    ]
    assert rows.tokens.dtype == np.uint16


def test_prefixed_texts_stay_on_disk_and_have_their_own_digest(tmp_path: Path) -> None:
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


WORDS = enumerate(["walk", "talk", "bark"] * 30)
LINES = [f"the {word} and the {word}s were {word}ing, said {number}" for number, word in WORDS]
PAIRS = Corpus(LINES, LINES, ("t.a", "t.b"))
TOKENIZER = BPE(size=300).train(LINES)


@given(st.text(st.one_of(st.sampled_from("walkingtheb ,s\n"), st.characters(codec="utf-8")), max_size=40))
def test_with_probability_zero_bpe_dropout_equals_bpe(text: str) -> None:
    assert BPEDropout(TOKENIZER, 0.0).encode(text, 1) == TOKENIZER.encode(text)


@given(st.text(max_size=40), st.floats(0.01, 0.99), st.integers(0, 2**60))
def test_bpe_dropout_is_lossless_and_a_function_of_the_seed(text: str, probability: float, seed: int) -> None:
    dropout = BPEDropout(TOKENIZER, probability)
    assert TOKENIZER.decode(dropout.encode(text, seed)) == text
    assert dropout.encode(text, seed) == dropout.encode(text, seed)


def test_a_higher_probability_gives_more_tokens() -> None:
    lengths = [
        sum(len(BPEDropout(TOKENIZER, probability).encode(line, seed)) for seed, line in enumerate(LINES))
        for probability in (0.0, 0.1, 0.5, 0.999)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[1] < lengths[2] < lengths[3]
    assert lengths[3] > 0.95 * sum(map(len, LINES))


def test_bpe_dropout_applies_to_training_batches_and_not_to_validation() -> None:
    samples = Translation().samples(PAIRS, (TOKENIZER, None), bpe_dropout=0.3)
    plain = samples.batch([0, 1, 2])
    first, again, other = samples.batch([0, 1, 2], 7), samples.batch([0, 1, 2], 7), samples.batch([0, 1, 2], 8)
    assert first.targets.tolist() == again.targets.tolist()
    assert first.targets.tolist() != other.targets.tolist()
    assert first.targets.numel() > plain.targets.numel()
    without = Translation().samples(PAIRS, (TOKENIZER, None)).batch([0, 1, 2], 7)
    assert plain.targets.tolist() == without.targets.tolist()
    alone = samples.batch([2], 7)  # independent of the other samples of the batch
    assert first.targets[2, : alone.targets.shape[1]].tolist() == alone.targets[0].tolist()


def test_bpe_dropout_never_exceeds_the_maximal_length() -> None:
    longest = max(len(TOKENIZER.encode(line)) for line in LINES) + 1
    samples = Translation(longest).samples(PAIRS, (TOKENIZER, None), bpe_dropout=0.9)
    assert samples.batch(range(len(samples)), 1).targets.shape[1] <= longest


def test_bpe_dropout_needs_bpe_and_translation() -> None:
    with pytest.raises(InputError, match="needs a tokenizer that merges"):
        BPEDropout(Character().train(LINES), 0.1)
    with pytest.raises(InputError, match=r"text\.bpe_dropout"):
        LanguageModel().samples(Corpus(LINES, None, ("t",)), (TOKENIZER, None), bpe_dropout=0.1)


def test_tokens_are_encoded_once_and_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.txt").write_text("\n".join(LINES))
    cache = Cache(tmp_path / "cache")
    corpus = read_corpus(str(tmp_path / "t.txt"), ReadOptions("line"), cache)
    first = LanguageModel(16).samples(corpus, (TOKENIZER, None), cache)
    monkeypatch.setattr(type(TOKENIZER), "encode_batch", None)
    second = LanguageModel(16).samples(corpus, (TOKENIZER, None), cache)
    one, other = (samples.batch(range(len(samples))).inputs["ids"] for samples in (first, second))
    assert one.tolist() == other.tolist()
    assert second.stream.tokens.flags.owndata is False
    tokens = next((tmp_path / "cache").glob("tokens-*/tokens"))
    tokens.write_bytes(tokens.read_bytes()[:-2])  # a truncated file is not used
    with pytest.raises(TypeError):
        LanguageModel(16).samples(corpus, (TOKENIZER, None), cache)
