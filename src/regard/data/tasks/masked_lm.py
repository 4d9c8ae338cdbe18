"""Masked language model, as in BERT (Devlin 2019): predict masked tokens from their context on both sides."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching import IGNORE_INDEX, Batch, Floats, Indices, SampleRandom
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.samples import ChunkSamples, chunk_documents
from regard.data.tasks.base import ModelShape, TaskBase, Tokenizers, require_fraction, require_one_side, require_room
from regard.data.tokenize.encode import FilledTemplate, Template, TokenRows, padding_mask
from regard.data.tokenize.tokenizer import Tokenizer, word_offsets
from regard.errors import InputError

_CHOICE, _ACTION, _RANDOM_TOKEN, _SEAM, _IS_RANDOM, _OTHER, _OFFSET = range(1, 8)  # purposes of random numbers
_MASKED, _REPLACED = 0.8, 0.9  # of the chosen tokens 80 % become mask, 10 % a random token, 10 % stay
_TRIES = 8


@dataclass(frozen=True)
class MaskedLM(TaskBase):
    """Predict a fraction `mlm_probability` of the tokens of each chunk of `length` tokens.

    Of these tokens, 80 % are replaced by the mask token, 10 % by a random token, and 10 % stay. `whole_word_masking`
    chooses all tokens of a word together. With `next_sentence` (next sentence prediction) a chunk is two segments; half
    of the time the second is from another document.
    """

    length: int = 128
    mlm_probability: float = 0.15
    whole_word_masking: bool = False
    next_sentence: bool = False
    model_shape: ClassVar[ModelShape | None] = "encoder"
    suggested_model: ClassVar[str] = "bert"

    def __post_init__(self) -> None:
        require_room("length", self.length, 6)
        require_fraction("mlm_probability", self.mlm_probability)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, bpe_dropout: float = 0.0  # noqa: B008
    ) -> MaskedSamples:  # fmt: skip
        require_one_side(corpus, bpe_dropout)
        tokenizer, mask, template = tokenizers[0], tokenizers[0].mask, Template.of(tokenizers[0])
        texts = least = 2 if self.next_sentence else 1
        special = template.num_special_tokens(texts)
        chunks = chunk_documents(corpus, tokenizer, cache, max_tokens=self.length - special, min_tokens=least)
        if self.next_sentence and len(chunks) < 2:
            raise InputError(
                f"{corpus.names[0]} is one chunk of text, so there is no other to follow it (text.task.next_sentence). "
                "Use more text, or next_sentence = false."
            )
        return MaskedSamples(
            chunks=chunks, template=template, task=self, mask=mask, ordinary=ordinary_tokens(tokenizer),
            boundaries=word_boundaries(tokenizer) if self.whole_word_masking else None,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class WordBoundaries:
    """For each token of the vocabulary: whether it continues a word, and whether a word ends after it."""

    continues: NDArray[np.bool_]
    ends: NDArray[np.bool_]

    def word_starts(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """BT: True where a word starts."""
        found = ~self.continues[ids]
        found[:, 1:] |= self.ends[ids[:, :-1]]
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class MaskedSamples(ChunkSamples):
    """Chunks of documents with masked tokens."""

    task: MaskedLM
    mask: int
    ordinary: NDArray[np.bool_]  # for each token of the vocabulary, whether it is not special
    boundaries: WordBoundaries | None

    @property
    def lengths(self) -> NDArray[Any]:
        """Chunks by one side; an upper bound with `next_sentence`, where a random second segment may be shorter."""
        special = self.template.num_special_tokens(2 if self.task.next_sentence else 1)
        return np.asarray(self.chunks.lengths)[:, None] + special

    def batch(self, indices: Sequence[int] | Indices, seed: int | None = None) -> Batch:
        """A batch of chunks, masked at random; targets are the original tokens at chosen positions."""
        chosen = np.asarray(indices, dtype=np.int64)
        random = SampleRandom(seed, chosen)
        texts, is_random = [self.chunks.tokens(chosen)], None
        if self.task.next_sentence:
            texts, is_random = self._two_segments(chosen, random)
        filled = self.template.fill(texts)
        predicted = self._choose(filled, random)
        inputs = {"ids": torch.from_numpy(self._masked(filled.ids, predicted, random))}
        if is_random is not None:
            inputs["segments"] = torch.from_numpy(filled.segments)
        return Batch(
            {**inputs, **padding_mask("padding", filled.lengths)},
            torch.from_numpy(np.where(predicted, filled.ids, IGNORE_INDEX)),
            tuple(self.chunks.owners[chosen].tolist()),
            None if is_random is None else torch.from_numpy(is_random),
        )

    def _choose(self, filled: FilledTemplate, random: SampleRandom) -> NDArray[np.bool_]:
        """BT: the tokens to predict. Tokens, or words, are taken in random order until the fraction is reached."""
        ids = filled.ids
        columns = np.arange(ids.shape[1])
        inside = (columns < filled.lengths[:, None]) & ~filled.special
        ordinary = inside & self.ordinary[ids]
        possible = np.where(ordinary.any(1, keepdims=True), ordinary, inside)  # a chunk may be all unk
        keys = random.uniform(_CHOICE, ids.shape[1])
        if self.boundaries is not None:
            # No word continues across a special token, as between two segments.
            starts = self.boundaries.word_starts(ids) | filled.special | (columns <= 1)
            keys = np.take_along_axis(keys, np.maximum.accumulate(np.where(starts, columns, 0), axis=1), axis=1)
        wanted = np.maximum(np.rint(inside.sum(1) * self.task.mlm_probability), 1)
        return possible & _take_lowest(np.where(possible, keys, 2.0), wanted)

    def _masked(
        self, ids: NDArray[np.int64], predicted: NDArray[np.bool_], random: SampleRandom
    ) -> NDArray[np.int64]:  # fmt: skip
        """The ids with the tokens to predict masked, replaced or left."""
        action = random.uniform(_ACTION, ids.shape[1])
        ordinary = np.flatnonzero(self.ordinary)
        other = ordinary[(random.uniform(_RANDOM_TOKEN, ids.shape[1]) * len(ordinary)).astype(np.int64)]
        changed = np.where(action < _MASKED, self.mask, np.where(action < _REPLACED, other, ids))
        return np.where(predicted, changed, ids)

    def _two_segments(self, chosen: Indices, random: SampleRandom) -> tuple[list[TokenRows], NDArray[np.int64]]:
        """Each chunk as two segments, and 1 where the second is from another document."""
        whole = self.chunks.tokens(chosen)
        first = 1 + random.integers(_SEAM, whole.lengths - 1)
        starts, counts = whole.starts + first, whole.lengths - first
        is_random = random.uniform(_IS_RANDOM, 1)[:, 0] < 0.5
        others = self._other_chunks(chosen, counts, random)
        other_counts = np.minimum(self.chunks.lengths[others], counts)
        offsets = random.integers(_OFFSET, self.chunks.lengths[others] - other_counts + 1)
        second = TokenRows(
            whole.tokens,
            np.where(is_random, self.chunks.starts[others] + offsets, starts),
            np.where(is_random, other_counts, counts),
        )
        return [TokenRows(whole.tokens, whole.starts, first), second], is_random.astype(np.int64)

    def _other_chunks(self, chosen: Indices, wanted: Indices, random: SampleRandom) -> Indices:
        """For each chunk one of another document, or of the only one: the first drawn that has the wanted tokens."""
        owners = self.chunks.owners
        own = owners[chosen]
        if owners[0] != owners[-1]:
            first, stop = np.searchsorted(owners, own), np.searchsorted(owners, own, side="right")
        else:
            first, stop = chosen, chosen + 1
        outside = (len(owners) - (stop - first))[:, None]
        drawn = (random.uniform(_OTHER, _TRIES) * outside).astype(np.int64)
        drawn += np.where(drawn >= first[:, None], (stop - first)[:, None], 0)
        length = np.minimum(self.chunks.lengths[drawn], wanted[:, None])
        return np.asarray(drawn[np.arange(len(chosen)), length.argmax(1)] if len(chosen) else drawn[:, 0])


def _take_lowest(keys: Floats, wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """BT: tokens in order of their keys, equal keys (a word) together, while the count comes nearer to `wanted`."""
    order = keys.argsort(axis=1, kind="stable")
    ranked = np.take_along_axis(keys, order, axis=1)
    columns = np.arange(keys.shape[1])
    new = np.ones(keys.shape, dtype=bool)
    new[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    before = np.maximum.accumulate(np.where(new, columns, 0), axis=1)
    last = np.ones(keys.shape, dtype=bool)
    last[:, :-1] = new[:, 1:]
    after = np.minimum.accumulate(np.where(last, columns + 1, len(columns))[:, ::-1], axis=1)[:, ::-1]
    found = np.empty(keys.shape, dtype=bool)
    np.put_along_axis(found, order, (before == 0) | (before + after <= 2 * wanted[:, None]), axis=1)
    return found


def ordinary_tokens(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """For each token of the vocabulary, whether it is text and not special."""
    texts = tokenizer.token_texts(range(tokenizer.vocabulary))
    found = np.array([text != f"<{number}>" for number, text in enumerate(texts)], dtype=bool)
    added = json.loads(tokenizer.to_json())["added_tokens"]
    special = {*tokenizer.marks, *(token["id"] for token in added if token["special"])}
    found[[number for number in special if number < len(found)]] = False
    return found


def word_boundaries(tokenizer: Tokenizer) -> WordBoundaries:
    """Which tokens continue a word: those with the prefix for it (as ##), else letters without a space before them."""
    texts = tokenizer.token_texts(range(tokenizer.vocabulary))
    prefix = json.loads(tokenizer.to_json())["model"].get("continuing_subword_prefix")
    continues = [text.startswith(prefix) if prefix else _continues_word(text) for text in texts]
    ends = [not prefix and text[-1:] in ("▁", "↵", "⇥") for text in texts]
    return WordBoundaries(np.array(continues, dtype=bool), np.array(ends, dtype=bool))


def _continues_word(text: str) -> bool:
    """Whether a token, given as `token_texts` writes it, continues the word before it."""
    byte = re.match(r"\\x([0-9a-f]{2})", text)
    if byte is not None:  # part of a character; scripts without spaces start at 0xE0
        return int(byte[1], 16) < 0xE0
    return unicodedata.category(text[:1] or " ")[0] in "LNM" and len(word_offsets(f"a{text[:1]}")) == 1
