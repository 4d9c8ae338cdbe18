"""BPE-dropout: lossless, a function of the seed, applied in training only."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, read_corpus
from regard.data.read.files import ReadOptions
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.translation import Translation
from regard.data.tokenize.encode import BPEDropout
from regard.data.tokenize.train import BPE, Character
from regard.errors import InputError

LINES = [
    f"the {word} and the {word}s were {word}ing, said {number}"
    for number, word in enumerate(["walk", "talk", "bark"] * 30)
]
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
    corpus = Corpus(LINES, LINES, ("t.a", "t.b"))
    samples = Translation().samples(corpus, (TOKENIZER, None), bpe_dropout=0.3)
    plain = samples.batch([0, 1, 2])
    first, again, other = samples.batch([0, 1, 2], 7), samples.batch([0, 1, 2], 7), samples.batch([0, 1, 2], 8)
    assert first.targets.tolist() == again.targets.tolist()
    assert first.targets.tolist() != other.targets.tolist()
    assert first.targets.numel() > plain.targets.numel()
    assert (
        plain.targets.tolist() == Translation().samples(corpus, (TOKENIZER, None)).batch([0, 1, 2], 7).targets.tolist()
    )
    alone = samples.batch([2], 7)  # independent of the other samples of the batch
    assert first.targets[2, : alone.targets.shape[1]].tolist() == alone.targets[0].tolist()


def test_bpe_dropout_never_exceeds_the_maximal_length() -> None:
    corpus = Corpus(LINES, LINES, ("t.a", "t.b"))
    longest = max(len(TOKENIZER.encode(line)) for line in LINES) + 1
    samples = Translation(longest).samples(corpus, (TOKENIZER, None), bpe_dropout=0.9)
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
    assert (
        first.batch(range(len(first))).inputs["ids"].tolist() == second.batch(range(len(second))).inputs["ids"].tolist()
    )
    assert second.stream.tokens.flags.owndata is False
    tokens = next((tmp_path / "cache").glob("tokens-*/tokens"))
    tokens.write_bytes(tokens.read_bytes()[:-2])  # a truncated file is not used
    with pytest.raises(TypeError):
        LanguageModel(16).samples(corpus, (TOKENIZER, None), cache)
