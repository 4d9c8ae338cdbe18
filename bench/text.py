"""The text of a benchmark: Multi30k from a folder, or the dates that ship with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.data.read.corpus import Corpus, embedded_corpus, read_pairs
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import BPE, TokenizerKind, train_tokenizers


@dataclass(frozen=True)
class Bitext:
    """Training pairs, test pairs, and the joint tokenizer of both languages."""

    name: str
    train: Corpus
    test: Corpus
    tokenizer: Tokenizer


def read_bitext(folder: Path | None, vocabulary: int | None, tokenizer: Tokenizer | None = None) -> Bitext:
    """A folder with train.{de,en} and test_2016_flickr.{de,en}; without one, dates. A given tokenizer is kept."""
    if folder is None:
        name, train, test = "dates", embedded_corpus("dates", "train"), embedded_corpus("dates", "test")
        kind: TokenizerKind = BPE(vocabulary or 3_000, split_digits=True)
    else:
        name, kind = folder.resolve().name, BPE(vocabulary or 8_000)
        train, test = (
            read_pairs(folder / f"{part}.de", folder / f"{part}.en") for part in ("train", "test_2016_flickr")
        )
    return Bitext(name, train, test, tokenizer or train_tokenizers(kind, train)[0])
