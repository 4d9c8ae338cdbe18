"""Masked words, as BERT learns them: some tokens are hidden, and said from what stands around them (Devlin 2019)."""

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

from regard.data.batching import IGNORE, Batch
from regard.data.draws import Drawn, Draws, Indices
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.tasks.base import TaskBase, PieceSamples, Tokenizers, cut, require_plain, require_room, require_share
from regard.data.tokenize.encode import Frame, Framed, Rows, padding_of
from regard.data.tokenize.tokenizer import Tokenizer, cut_words
from regard.errors import InputError

_CHOICE, _FATE, _INSTEAD, _PLACE, _HALF, _OTHER, _OFFSET = range(1, 8)  # what is drawn


_HIDDEN, _REPLACED = 0.8, 0.9


_TRIES = 8


@dataclass(frozen=True)
class MaskedLM(TaskBase):
    """Say the tokens that are hidden: a share of each piece of `length` tokens; of these, 10 % stay, 10 % are others.

    With `next_sentence` a piece is two texts, of which the second is, half of the time, from another document.
    """

    length: int = 128
    share: float = 0.15
    whole_words: bool = False
    next_sentence: bool = False
    stacks: ClassVar[tuple[bool, bool] | None] = (True, False)
    like: ClassVar[str] = "bert"

    def __post_init__(self) -> None:
        require_room("length", self.length, 6)
        require_share("share", self.share)

    def samples(
        self, corpus: Corpus, tokenizers: Tokenizers, cache: Cache = Cache(), *, dropout: float = 0.0  # noqa: B008
    ) -> MaskedSamples:  # fmt: skip
        """The pieces of a corpus."""
        require_plain(corpus, dropout)
        tokenizer, mask = tokenizers[0], tokenizers[0].mask
        framing, least = (3, 2) if self.next_sentence else (2, 1)
        pieces = cut(corpus, tokenizer, cache, room=self.length - framing, least=least)
        if self.next_sentence and len(pieces) < 2:
            raise InputError(
                f"{corpus.names[0]} is one piece of text, which none can follow (text.task.next_sentence). "
                "Use more text, or next_sentence = false."
            )
        return MaskedSamples(
            pieces=pieces,
            frame=Frame.of(tokenizer),
            share=self.share,
            mask=mask,
            ordinary=ordinary_tokens(tokenizer),
            words=word_marks(tokenizer) if self.whole_words else None,
            next_sentence=self.next_sentence,
        )


@dataclass(frozen=True, eq=False)
class Words:
    """Of every token: whether it goes on with a word, and whether a word cannot go on behind it."""

    goes_on: NDArray[np.bool_]
    closes: NDArray[np.bool_]

    def begins(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """BT: where words begin."""
        found = ~self.goes_on[ids]
        found[:, 1:] |= self.closes[ids[:, :-1]]
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class MaskedSamples(PieceSamples):
    """Pieces of documents with some tokens hidden."""

    share: float
    mask: int
    ordinary: NDArray[np.bool_]  # of every token, whether it is no special one
    words: Words | None
    next_sentence: bool

    @property
    def lengths(self) -> NDArray[Any]:
        """Pieces by one side; fewer where no piece of another document is as long as the text it replaces."""
        return np.asarray(self.pieces.counts)[:, None] + (3 if self.next_sentence else 2)

    def batch(self, indices: Sequence[int] | Indices, draw: int | None = None) -> Batch:
        """Some of the pieces, with what the draw hides; targets are what was hidden."""
        places = np.asarray(indices, dtype=np.int64)
        draws = Draws(draw, places)
        texts, auxiliary = self._two(places, draws) if self.next_sentence else ([self.pieces.rows(places)], None)
        framed = self.frame.put(texts)
        chosen = self._chosen(framed, texts, draws)
        inputs = {"ids": torch.from_numpy(self._hidden(framed.ids, chosen, draws))}
        if auxiliary is not None:
            inputs["segments"] = torch.from_numpy(framed.segments)
        return Batch(
            {**inputs, **padding_of("padding", framed.lengths)},
            torch.from_numpy(np.where(chosen, framed.ids, IGNORE)),
            tuple(self.pieces.owners[places].tolist()),
            None if auxiliary is None else torch.from_numpy(auxiliary),
        )

    def _chosen(self, framed: Framed, texts: list[Rows], draws: Draws) -> NDArray[np.bool_]:
        """BT: which tokens are asked for. Words are taken in a drawn order, as long as that comes nearer the share."""
        ids = framed.ids
        columns = np.arange(ids.shape[1])
        inside = (columns > 0) & (columns < framed.lengths[:, None] - 1)
        seams = np.zeros_like(inside)
        if len(texts) > 1:
            seams[np.arange(len(ids)), texts[0].lengths + 1] = True
            inside &= ~seams
        usual = inside & self.ordinary[ids]
        possible = np.where(usual.any(1, keepdims=True), usual, inside)  # a piece may be all unknown
        keys = draws.uniform(_CHOICE, ids.shape[1])
        if self.words is not None:
            begins = self.words.begins(ids) | seams | (columns <= 1)  # behind a seam, no word is that before it
            keys = np.take_along_axis(keys, np.maximum.accumulate(np.where(begins, columns, 0), axis=1), axis=1)
        wanted = np.maximum(np.rint(inside.sum(1) * self.share), 1)
        return possible & _taken(np.where(possible, keys, 2.0), wanted)

    def _hidden(self, ids: NDArray[np.int64], chosen: NDArray[np.bool_], draws: Draws) -> NDArray[np.int64]:
        """The tokens with the chosen ones hidden, replaced or left."""
        fate = draws.uniform(_FATE, ids.shape[1])
        pool = np.flatnonzero(self.ordinary)
        other = pool[(draws.uniform(_INSTEAD, ids.shape[1]) * len(pool)).astype(np.int64)]
        changed = np.where(fate < _HIDDEN, self.mask, np.where(fate < _REPLACED, other, ids))
        return np.where(chosen, changed, ids)

    def _two(self, places: Indices, draws: Draws) -> tuple[list[Rows], NDArray[np.int64]]:
        """Each piece as two texts, and whether the second is from elsewhere."""
        whole = self.pieces.rows(places)
        first = 1 + draws.below(_PLACE, whole.lengths - 1)
        starts, counts = whole.starts + first, whole.lengths - first
        elsewhere = draws.uniform(_HALF, 1)[:, 0] < 0.5
        others = self._others(places, counts, draws)
        other_counts = np.minimum(self.pieces.counts[others], counts)
        offsets = draws.below(_OFFSET, self.pieces.counts[others] - other_counts + 1)
        second = Rows(
            whole.flat,
            np.where(elsewhere, self.pieces.starts[others] + offsets, starts),
            np.where(elsewhere, other_counts, counts),
        )
        return [Rows(whole.flat, whole.starts, first), second], elsewhere.astype(np.int64)

    def _others(self, places: Indices, wanted: Indices, draws: Draws) -> Indices:
        """For each piece one of another document, or, if there is but one, another: the first drawn that is as long."""
        owners = self.pieces.owners
        own = owners[places]
        if owners[0] != owners[-1]:
            first, stop = np.searchsorted(owners, own), np.searchsorted(owners, own, side="right")
        else:
            first, stop = places, places + 1
        outside = (len(owners) - (stop - first))[:, None]
        drawn = (draws.uniform(_OTHER, _TRIES) * outside).astype(np.int64)
        drawn += np.where(drawn >= first[:, None], (stop - first)[:, None], 0)
        length = np.minimum(self.pieces.counts[drawn], wanted[:, None])
        return np.asarray(drawn[np.arange(len(places)), length.argmax(1)] if len(places) else drawn[:, 0])


def _taken(keys: Drawn, wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """BT: tokens from the lowest key on, those of equal keys (a word) together, while that comes nearer the wanted."""
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
    """Of every number of the vocabulary, whether it is a token of text."""
    texts = tokenizer.token_texts(range(tokenizer.vocabulary))
    found = np.array([text != f"<{number}>" for number, text in enumerate(texts)], dtype=bool)
    added = json.loads(tokenizer.to_json())["added_tokens"]
    special = {tokenizer.begin, tokenizer.end, tokenizer.pad, *(token["id"] for token in added if token["special"])}
    found[[number for number in special if number < len(found)]] = False
    return found


def word_marks(tokenizer: Tokenizer) -> Words:
    """Which tokens of a vocabulary go on with a word: what is marked so, else letters that no space stands before."""
    texts = tokenizer.token_texts(range(tokenizer.vocabulary))
    marked = json.loads(tokenizer.to_json())["model"].get("continuing_subword_prefix")
    goes_on = [text.startswith(marked) if marked else _goes_on(text) for text in texts]
    closes = [not marked and text[-1:] in ("▁", "↵", "⇥") for text in texts]
    return Words(np.array(goes_on, dtype=bool), np.array(closes, dtype=bool))


def _goes_on(text: str) -> bool:
    """Whether a token, as it is written in a picture, belongs to the word before it."""
    part = re.match(r"\\x([0-9a-f]{2})", text)
    if part is not None:  # of a character: only scripts that begin in 0xE0 or above may have no spaces
        return int(part[1], 16) < 0xE0
    return unicodedata.category(text[:1] or " ")[0] in "LNM" and len(cut_words(f"a{text[:1]}")) == 1
