"""Texts with a tag for every word: names of people, parts of speech."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import IGNORE, Batch
from regard.data.draws import Indices
from regard.data.read.cache import Cache, Columns
from regard.data.read.corpus import Corpus
from regard.data.tasks.base import (
    AnsweredSamples,
    Limit,
    TaskBase,
    Tokenizers,
    answers_of,
    find_usable,
    require_no_dropout,
    require_room,
)
from regard.data.tasks.classification import find_names, numbering
from regard.data.tokenize.encode import Rows, encode_texts, padding_of
from regard.data.tokenize.tokenizer import Tokenizer, cut_words, word_numbers
from regard.errors import InputError


@dataclass(frozen=True)
class Tagging(TaskBase):
    """Say the tag of each word, at its first token; a text of more than `max_length` tokens is dropped."""

    max_length: int = 256
    names: tuple[str, ...] = ()  # none: as the training text has them

    def __post_init__(self) -> None:
        require_room("max_length", self.max_length, 3)

    def named(self, corpus: Corpus) -> Tagging:
        """The problem with the tags that occur in a corpus."""
        return self if self.names else replace(self, names=find_names(corpus, str.split))

    def wording(self, corpus: Corpus) -> Corpus:
        """The texts without their tags."""
        return replace(corpus, targets=None)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> TagSamples:  # fmt: skip
        """The texts of a corpus, each token with the number of its tag."""
        require_no_dropout(dropout, "tagged text")
        if corpus.joined:
            raise InputError(f"{corpus.names[0]} has two texts a line (text.fields). Name one text and its tags.")
        tokenizer, names = tokenizers[0], self.named(corpus).names
        rows = encode_texts(tokenizer, corpus.sources, cache)
        number = numbering(corpus, names)

        def more(kept: Indices, columns: Columns) -> None:
            columns.append("tags", np.zeros(0, dtype=np.int32))
            for place in kept.tolist():
                columns.append("tags", _tags(corpus, place, tokenizer, number, int(rows.lengths[place])))

        said = ["tags", list(names)]
        limit = Limit(self.max_length)
        usable = find_usable(corpus, [(corpus.sources, rows)], tokenizer, limit, cache, said, more)
        counts = rows.lengths[usable.kept].astype(np.int64)
        tags = Rows(usable.columns["tags"], np.cumsum(counts) - counts, counts)
        return TagSamples(usable=usable, rows=rows, tags=tags, pad=tokenizer.pad)


@dataclass(frozen=True, eq=False, kw_only=True)
class TagSamples(AnsweredSamples):
    """Texts, each with as many tags as it has tokens, most of them IGNORE."""

    rows: Rows  # of all texts
    tags: Rows  # of the samples
    pad: int

    @property
    def lengths(self) -> NDArray[Any]:
        """Texts by one side."""
        return np.asarray(self.tags.lengths)[:, None]

    @property
    def text_lengths(self) -> tuple[NDArray[Any], ...]:
        """The tokens of every text."""
        return (self.rows.lengths,)

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the texts, with a tag at the first token of each word: BT."""
        places = np.asarray(indices, dtype=np.int64)
        texts = self.usable.kept[places]
        inputs = {"ids": self.rows.padded(texts, fill=self.pad), **padding_of("padding", self.rows.lengths[texts])}
        return Batch(inputs, self.tags.padded(places, fill=IGNORE), tuple(texts.tolist()))


def _tags(
    corpus: Corpus, place: int, tokenizer: Tokenizer, number: Callable[[int, str], int], length: int
) -> NDArray[np.int32]:
    """The tags of a text, framed as its tokens are."""
    text, tags = corpus.sources[place], answers_of(corpus)[place].split()
    words = cut_words(text)
    if len(tags) != len(words):
        raise InputError(
            f"{corpus.where([place])}: {len(words):,} words have {len(tags):,} tags (text.fields). "
            "Give each word one, all separated by spaces."
        )
    owners = np.array([-1, *word_numbers(text, tokenizer.encode_in_place(text).spans), -1])
    first = np.unique(owners, return_index=True)[1]
    first = first[owners[first] >= 0]
    found = np.full(length, IGNORE, dtype=np.int32)
    found[first] = np.array([number(place, tag) for tag in tags], dtype=np.int32)[owners[first]]
    return found
