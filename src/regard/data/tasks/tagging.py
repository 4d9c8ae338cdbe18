"""Tagging (token classification): predict a tag for every word, as in named entity recognition or part of speech."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import IGNORE_INDEX, Batch, Indices
from regard.data.read.cache import Cache, Columns
from regard.data.read.corpus import Corpus
from regard.data.samples import FilteredSamples, LengthLimit, TokenizedSide, filter_texts
from regard.data.tasks.base import LabelledTask, Outputs, Tokenizers, require_no_bpe_dropout, require_targets
from regard.data.tasks.classification import find_labels, label_ids
from regard.data.tokenize.encode import Template, TokenRows, padding_mask, ragged_indices, without_bos_and_eos
from regard.data.tokenize.tokenizer import Tokenizer, word_ids, word_offsets
from regard.errors import InputError


@dataclass(frozen=True)
class Tagging(LabelledTask):
    """Predict the tag of each word at its first token."""

    labels: tuple[str, ...] = ()  # the tags; (): those of the training text
    outputs: ClassVar[Outputs] = "tags"

    def with_labels_from(self, corpus: Corpus) -> Tagging:
        return self if self.labels else replace(self, labels=find_labels(corpus, str.split))

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> TagSamples:  # fmt: skip
        require_no_bpe_dropout(bpe_dropout, "tagged text")
        if corpus.paired_sources:
            raise InputError(f"{corpus.names[0]} has two texts per line (text.fields). Name one text and its tags.")
        tokenizer, template = tokenizers[0], Template.of(tokenizers[0])
        labels = self.with_labels_from(corpus).labels
        side = TokenizedSide.encode(corpus.sources, tokenizer, cache)
        label_id = label_ids(corpus, labels)

        def add_columns(kept: Indices, columns: Columns) -> None:
            columns.append("tags", np.zeros(0, dtype=np.int32))
            for index in kept.tolist():
                columns.append("tags", _token_tags(corpus, index, tokenizer, label_id, int(side.rows.lengths[index])))

        filtered = filter_texts(
            corpus, [side], LengthLimit(self.max_length, template), cache,
            kind="labelled", key=["tags", *labels], counted=corpus.sources, labels=require_targets(corpus),
            add_columns=add_columns,
        )  # fmt: skip
        lengths = side.rows.lengths[filtered.kept].astype(np.int64)
        tags = TokenRows(filtered.columns["tags"], np.cumsum(lengths) - lengths, lengths)
        return TagSamples(filtered=filtered, sides=(side.rows,), tags=tags, template=template)


@dataclass(frozen=True, eq=False, kw_only=True)
class TagSamples(FilteredSamples):
    """Texts with a tag per token, IGNORE_INDEX except at the first token of a word."""

    tags: TokenRows
    template: Template

    @property
    def lengths(self) -> NDArray[Any]:
        return np.asarray(self.tags.lengths)[:, None] - 2 + self.template.num_special_tokens(1)

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of texts; targets are BT."""
        chosen = np.asarray(indices, dtype=np.int64)
        texts, tags = self.filtered.kept[chosen], without_bos_and_eos(self.tags, chosen)
        filled = self.template.fill([without_bos_and_eos(self.sides[0], texts)])
        targets = np.full(filled.ids.shape, IGNORE_INDEX, dtype=np.int64)
        owners, inside = ragged_indices(tags.lengths)
        targets[owners, inside + len(self.template.prefix)] = tags.tokens[tags.starts[owners] + inside]
        inputs = {"ids": torch.from_numpy(filled.ids), **padding_mask("padding", filled.lengths)}
        return Batch(inputs, torch.from_numpy(targets), tuple(texts.tolist()))


def _token_tags(
    corpus: Corpus, index: int, tokenizer: Tokenizer, label_id: Callable[[int, str], int], length: int
) -> NDArray[np.int32]:
    """The tags of a text's tokens, bos and eos included."""
    text, tags = corpus.sources[index], require_targets(corpus)[index].split()
    words = word_offsets(text)
    if len(tags) != len(words):
        raise InputError(
            f"{corpus.where([index])}: {len(words):,} words have {len(tags):,} tags (text.fields). "
            "Give each word one, all separated by spaces."
        )
    owners = np.array([-1, *word_ids(text, tokenizer.encode_with_offsets(text).offsets), -1])
    first = np.unique(owners, return_index=True)[1]
    first = first[owners[first] >= 0]
    found = np.full(length, IGNORE_INDEX, dtype=np.int32)
    found[first] = np.array([label_id(index, tag) for tag in tags], dtype=np.int32)[owners[first]]
    return found
