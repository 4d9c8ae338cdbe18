"""BPE-dropout: without it nothing changes, with it words are cut otherwise, and the same draw cuts alike."""

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
from regard.data.tokenize.encode import Dropout
from regard.data.tokenize.train import BPE, Character
from regard.errors import InputError

LINES = [
    f"the {word} and the {word}s were {word}ing, said {number}"
    for number, word in enumerate(["walk", "talk", "bark"] * 30)
]
TOKENIZER = BPE(size=300).train(LINES)


@given(st.text(st.one_of(st.sampled_from("walkingtheb ,s\n"), st.characters(codec="utf-8")), max_size=40))
def test_without_dropping_a_text_is_cut_as_ever(text: str) -> None:
    assert Dropout(TOKENIZER, 0.0).encode(text, 1) == TOKENIZER.encode(text)


@given(st.text(max_size=40), st.floats(0.01, 0.99), st.integers(0, 2**60))
def test_however_it_is_cut_the_text_stays(text: str, rate: float, seed: int) -> None:
    dropout = Dropout(TOKENIZER, rate)
    assert TOKENIZER.decode(dropout.encode(text, seed)) == text
    assert dropout.encode(text, seed) == dropout.encode(text, seed)


def test_more_is_dropped_the_higher_the_rate() -> None:
    lengths = [
        sum(len(Dropout(TOKENIZER, rate).encode(line, seed)) for seed, line in enumerate(LINES))
        for rate in (0.0, 0.1, 0.5, 0.999)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[1] < lengths[2] < lengths[3]
    assert lengths[3] > 0.95 * sum(map(len, LINES))


def test_a_draw_cuts_training_batches_anew_and_validation_never() -> None:
    corpus = Corpus(LINES, LINES, ("t.a", "t.b"))
    samples = Translation().samples(corpus, (TOKENIZER, None), dropout=0.3)
    plain = samples.batch([0, 1, 2])
    first, again, other = samples.batch([0, 1, 2], 7), samples.batch([0, 1, 2], 7), samples.batch([0, 1, 2], 8)
    assert first.targets.tolist() == again.targets.tolist()
    assert first.targets.tolist() != other.targets.tolist()
    assert first.targets.numel() > plain.targets.numel()
    assert (
        plain.targets.tolist() == Translation().samples(corpus, (TOKENIZER, None)).batch([0, 1, 2], 7).targets.tolist()
    )
    alone = samples.batch([2], 7)  # a sample's draw is its own, whatever the batch
    assert first.targets[2, : alone.targets.shape[1]].tolist() == alone.targets[0].tolist()


def test_a_row_never_grows_beyond_the_longest() -> None:
    corpus = Corpus(LINES, LINES, ("t.a", "t.b"))
    longest = max(len(TOKENIZER.encode(line)) for line in LINES) + 1
    samples = Translation(longest).samples(corpus, (TOKENIZER, None), dropout=0.9)
    assert samples.batch(range(len(samples)), 1).targets.shape[1] <= longest


def test_what_cannot_drop_is_refused() -> None:
    with pytest.raises(InputError, match="needs a tokenizer that merges"):
        Dropout(Character().train(LINES), 0.1)
    with pytest.raises(InputError, match=r"text\.bpe_dropout"):
        LanguageModel().samples(Corpus(LINES, None, ("t",)), (TOKENIZER, None), dropout=0.1)


def test_tokens_are_worked_out_once_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.txt").write_text("\n".join(LINES))
    cache = Cache(tmp_path / "cache")
    corpus = read_corpus(str(tmp_path / "t.txt"), ReadOptions("line"), cache)
    first = LanguageModel(16).samples(corpus, (TOKENIZER, None), cache)
    monkeypatch.setattr(type(TOKENIZER), "encode_batch", None)
    second = LanguageModel(16).samples(corpus, (TOKENIZER, None), cache)
    assert (
        first.batch(range(len(first))).inputs["ids"].tolist() == second.batch(range(len(second))).inputs["ids"].tolist()
    )
    assert second.stream.flat.flags.owndata is False
    tokens = next((tmp_path / "cache").glob("tokens-*/tokens"))
    tokens.write_bytes(tokens.read_bytes()[:-2])  # a file that is not whole is not believed
    with pytest.raises(TypeError):
        LanguageModel(16).samples(corpus, (TOKENIZER, None), cache)
