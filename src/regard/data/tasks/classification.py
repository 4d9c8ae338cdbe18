"""Texts, or pairs of texts, with an answer for the whole: one of several names, or a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import IGNORE, Batch
from regard.data.draws import Indices
from regard.data.read.cache import Cache, Columns
from regard.data.read.corpus import Corpus
from regard.data.read.texts import halves
from regard.data.tasks.base import (
    FramedSamples,
    Limit,
    TaskBase,
    Tokenizers,
    answers_of,
    find_usable,
    require_no_dropout,
    require_room,
)
from regard.data.tokenize.encode import Frame, encode_texts, padding_of, unframed
from regard.errors import InputError, suggest

_MOST_NAMES = 1000
_FEW_NAMES = 20

Answer = Callable[[int, str], int | float]
"""What the answer to a text is, given the text's number and how the answer is written."""


@dataclass(frozen=True)
class Classification(TaskBase):
    """Say which of several names a text has; a text of more than `max_length` tokens is dropped."""

    max_length: int = 256
    names: tuple[str, ...] = ()  # none: as the training text has them

    def __post_init__(self) -> None:
        require_room("max_length", self.max_length, 3)

    def named(self, corpus: Corpus) -> Classification:
        """The problem with the names that occur in a corpus."""
        return self if self.names else replace(self, names=find_names(corpus, lambda label: [label.strip()]))

    def wording(self, corpus: Corpus) -> Corpus:
        """The texts without their labels."""
        return replace(corpus, targets=None)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> TextSamples:  # fmt: skip
        """The texts of a corpus with the numbers of their names."""
        names = self.named(corpus).names
        number = numbering(corpus, names)
        require_no_dropout(dropout, "labelled text")
        return _samples(
            corpus, tokenizers, cache, self.max_length, ["labels", list(names)], lambda i, text: number(i, text.strip())
        )


@dataclass(frozen=True)
class Regression(TaskBase):
    """Say which number a text has; a text of more than `max_length` tokens is dropped."""

    max_length: int = 256

    def __post_init__(self) -> None:
        require_room("max_length", self.max_length, 3)

    def wording(self, corpus: Corpus) -> Corpus:
        """The texts without their numbers."""
        return replace(corpus, targets=None)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> TextSamples:  # fmt: skip
        """The texts of a corpus with their numbers."""
        require_no_dropout(dropout, "text with numbers")
        return _samples(corpus, tokenizers, cache, self.max_length, ["scores"], partial(_number, corpus))


@dataclass(frozen=True, eq=False, kw_only=True)
class TextSamples(FramedSamples):
    """Texts or pairs of texts, each with one answer."""

    @property
    def pairs(self) -> bool:
        """Whether each sample is two texts."""
        return len(self.sides) > 1

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the texts, with an answer each: B."""
        places = np.asarray(indices, dtype=np.int64)
        texts = self.usable.kept[places]
        framed = self.frame.put([unframed(side, texts) for side in self.sides])
        inputs = {"ids": torch.from_numpy(framed.ids), **padding_of("padding", framed.lengths)}
        if self.pairs:
            inputs["segments"] = torch.from_numpy(framed.segments)
        answers = torch.from_numpy(np.array(self.usable.columns["answers"][places]))
        return Batch(inputs, answers, tuple(texts.tolist()))


def _samples(
    corpus: Corpus, tokenizers: Tokenizers, cache: Cache, max_length: int, said: list[Any], answer: Answer
) -> TextSamples:
    """The texts of a corpus with their answers."""
    tokenizer = tokenizers[0]
    texts = halves(corpus.sources) if corpus.joined else (corpus.sources,)
    sides = tuple(encode_texts(tokenizer, side, cache) for side in texts)
    frame = Frame.of(tokenizer)

    def more(kept: Indices, columns: Columns) -> None:
        bare = np.stack([side.lengths[kept] - 2 for side in sides], axis=1).sum(1, keepdims=True)
        columns.append("lengths", (bare + frame.around(len(sides))).astype(np.int32))
        columns.append("answers", _answers(corpus, kept, answer))

    usable = find_usable(corpus, list(zip(texts, sides)), tokenizer, Limit(max_length, frame), cache, said, more)
    return TextSamples(usable=usable, sides=sides, frame=frame)


def find_names(corpus: Corpus, cut: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """The distinct names in a corpus' answers, in order; numbers as numbers are."""
    found: set[str] = set()
    count = 0
    for text in answers_of(corpus):
        names = [name for name in cut(text) if name]
        count += len(names)
        found.update(names)
        if len(found) > _MOST_NAMES:
            break
    if len(found) > _MOST_NAMES or (len(found) > _FEW_NAMES // 2 and len(found) > count / 2):
        raise InputError(
            f"{corpus.names[0]} has {len(found):,} different labels among the first {count:,} (text.fields). "
            "Is it the right column? Name that of the labels last."
        )
    values = {name: _value(name) for name in found}
    if all(value is not None for value in values.values()):
        return tuple(sorted(found, key=lambda name: (values[name] or 0.0, name)))
    return tuple(sorted(found))


def numbering(corpus: Corpus, names: Sequence[str]) -> Callable[[int, str], int]:
    """A function from the number of a text and one of the names to the name's number."""
    numbers = {name: number for number, name in enumerate(names)}

    def number(place: int, name: str) -> int:
        if name not in numbers:
            known = suggest(name, names) if len(names) <= _FEW_NAMES else f"It has {len(names):,} others."
            raise InputError(f'{corpus.where([place])}: the training text has no label "{name}" (text.valid). {known}')
        return numbers[name]

    return number


def _answers(corpus: Corpus, kept: Indices, answer: Answer) -> NDArray[Any]:
    """The answers to the texts that are kept: whole numbers, or others."""
    wanted = np.zeros(len(corpus), dtype=bool)
    wanted[kept] = True
    found = [answer(place, text) for place, text in enumerate(answers_of(corpus)) if wanted[place]]
    if not any(isinstance(value, float) for value in found):
        return np.array(found, dtype=np.int64)
    numbers = np.array(found, dtype=np.float32)
    numbers[numbers == IGNORE] = np.nextafter(np.float32(IGNORE), np.float32(0))  # a number, not that none is asked
    return numbers


def _number(corpus: Corpus, place: int, text: str) -> float:
    """The number that is written, or an error that says where."""
    value = _value(text)
    if value is None:
        raise InputError(
            f'{corpus.where([place])}: "{text.strip()[:40]}" is no number (text.fields). '
            "Mend it, or name the column of numbers last."
        )
    return value


def _value(text: str) -> float | None:
    """The number a text writes, if it does."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None
