"""Classification and regression: predict the label, or the number, of a text or of a pair of texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from regard.data.batching import IGNORE_INDEX, Batch, Indices
from regard.data.read.cache import Cache, Columns
from regard.data.read.corpus import Corpus
from regard.data.read.texts import split_pairs
from regard.data.samples import LabelledSamples, LengthLimit, TokenizedSide, filter_texts
from regard.data.tasks.base import LabelledTask, Outputs, Tokenizers, require_no_bpe_dropout, require_targets
from regard.data.tokenize.encode import Template, padding_mask, without_bos_and_eos
from regard.errors import InputError, suggest

_MAX_LABELS = 1000
_FEW_LABELS = 20

ParseTarget = Callable[[int, str], float]
"""The target of a text, given the index of the text and how the target is written."""


@dataclass(frozen=True)
class Classification(LabelledTask):
    """Predict the label of a text or pair."""

    labels: tuple[str, ...] = ()  # (): those of the training text
    outputs: ClassVar[Outputs] = "labels"

    def with_labels_from(self, corpus: Corpus) -> Classification:
        return self if self.labels else replace(self, labels=find_labels(corpus, lambda text: [text.strip()]))

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> TextSamples:  # fmt: skip
        labels = self.with_labels_from(corpus).labels
        label_id = label_ids(corpus, labels)
        require_no_bpe_dropout(bpe_dropout, "labelled text")
        return _text_samples(
            corpus, tokenizers, cache, self.max_length, ["labels", *labels],
            lambda index, text: label_id(index, text.strip()), np.int64,
        )  # fmt: skip


@dataclass(frozen=True)
class Regression(LabelledTask):
    """Predict the number of a text or pair."""

    outputs: ClassVar[Outputs] = "numbers"

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> TextSamples:  # fmt: skip
        require_no_bpe_dropout(bpe_dropout, "text with numbers")
        return _text_samples(
            corpus, tokenizers, cache, self.max_length, ["numbers"], partial(_parse_number, corpus), np.float32
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TextSamples(LabelledSamples):
    """Texts or pairs of texts, each with one label or number."""

    @property
    def pairs(self) -> bool:
        """Whether each sample is two texts."""
        return len(self.sides) > 1

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of texts; targets are B."""
        chosen = np.asarray(indices, dtype=np.int64)
        texts = self.filtered.kept[chosen]
        filled = self.template.fill([without_bos_and_eos(side, texts) for side in self.sides])
        inputs = {"ids": torch.from_numpy(filled.ids), **padding_mask("padding", filled.lengths)}
        if self.pairs:
            inputs["segments"] = torch.from_numpy(filled.segments)
        targets = torch.from_numpy(np.array(self.filtered.columns["targets"][chosen]))
        return Batch(inputs, targets, tuple(texts.tolist()))


def _text_samples(
    corpus: Corpus, tokenizers: Tokenizers, cache: Cache, max_length: int, key: list[Any],
    parse: ParseTarget, dtype: DTypeLike,
) -> TextSamples:  # fmt: skip
    """The texts of a corpus with their targets."""
    tokenizer, template = tokenizers[0], Template.of(tokenizers[0])
    targets = require_targets(corpus)
    texts = split_pairs(corpus.sources) if corpus.paired_sources else (corpus.sources,)
    sides = [TokenizedSide.encode(side, tokenizer, cache) for side in texts]

    def add_columns(kept: Indices, columns: Columns) -> None:
        tokens = np.stack([side.rows.lengths[kept] - 2 for side in sides], axis=1).sum(1, keepdims=True)
        columns.append("lengths", (tokens + template.num_special_tokens(len(sides))).astype(np.int32))
        columns.append("targets", _parse_targets(targets, kept, parse, dtype))

    filtered = filter_texts(
        corpus, sides, LengthLimit(max_length, template), cache,
        kind="labelled", key=key, counted=corpus.sources, labels=targets, add_columns=add_columns,
    )  # fmt: skip
    return TextSamples(filtered=filtered, sides=tuple(side.rows for side in sides), template=template)


def find_labels(corpus: Corpus, split: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """The distinct labels of a corpus, sorted; as numbers, if all are numbers."""
    found: set[str] = set()
    count = 0
    for text in require_targets(corpus):
        labels = [label for label in split(text) if label]
        count += len(labels)
        found.update(labels)
        if len(found) > _MAX_LABELS:
            break
    if len(found) > _MAX_LABELS or (len(found) > _FEW_LABELS // 2 and len(found) > count / 2):
        raise InputError(
            f"{corpus.names[0]} has {len(found):,} different labels among the first {count:,} (text.fields). "
            "Is it the right column? Name that of the labels last."
        )
    values = {label: _number(label) for label in found}
    if all(value is not None for value in values.values()):
        return tuple(sorted(found, key=lambda label: (values[label] or 0.0, label)))
    return tuple(sorted(found))


def label_ids(corpus: Corpus, labels: Sequence[str]) -> Callable[[int, str], int]:
    """A function from the index of a text and a label to the label's id."""
    ids = {label: number for number, label in enumerate(labels)}

    def label_id(index: int, label: str) -> int:
        if label not in ids:
            known = suggest(label, labels) if len(labels) <= _FEW_LABELS else f"It has {len(labels):,} others."
            raise InputError(
                f'{corpus.where([index])}: the training text has no label "{label}" (text.valid). {known}'
            )  # fmt: skip
        return ids[label]

    return label_id


def _parse_targets(targets: Sequence[str], kept: Indices, parse: ParseTarget, dtype: DTypeLike) -> NDArray[Any]:
    """The targets of the texts that are kept."""
    if not len(kept):
        return np.zeros(0, dtype=dtype)
    first = int(kept[0])
    texts = targets[first : int(kept[-1]) + 1]  # one slice, because stored texts are read from a file
    found = np.array([parse(index, texts[index - first]) for index in kept.tolist()], dtype=dtype)
    if found.dtype == np.float32:
        found[found == IGNORE_INDEX] = np.nextafter(np.float32(IGNORE_INDEX), np.float32(0))  # it is no missing target
    return found


def _parse_number(corpus: Corpus, index: int, text: str) -> float:
    """The number in a text, or an error that locates it."""
    value = _number(text)
    if value is None:
        raise InputError(
            f'{corpus.where([index])}: "{text.strip()[:40]}" is no number (text.fields). '
            "Correct it, or name the column of numbers last."
        )
    return value


def _number(text: str) -> float | None:
    """A finite number in Python's notation, without underscores; else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None
