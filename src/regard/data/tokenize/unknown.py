"""Unknown text: the characters outside a tokenizer's vocabulary, and what it costs to spell them."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regard.data.read.texts import text_parts
from regard.data.tokenize.tokenizer import Tokenizer

_BYTE = math.log(256)  # nats of a byte, all being equally likely


@dataclass(frozen=True, eq=False)
class UnknownText:
    """The unknown characters of each text, and the nats to spell them: P(unk) is shared by all that unk may stand for.

    They are spelled in UTF-8, 8 bits per byte. A character ends by itself, several characters with one more byte, so
    that the probabilities of all that unk may stand for sum to at most 1.
    """

    characters: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    nats: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    total: int = 0  # characters of all texts; 0 if nothing can be unknown

    @property
    def share(self) -> float:
        """The unknown share of all characters."""
        return int(self.characters.sum()) / max(1, self.total)

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Sequence[str], left_out: Container[int] = ()) -> UnknownText:
        """What a tokenizer does not know of some texts, without those that are left out."""
        found = cls(np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts)))
        if tokenizer.knows_all_bytes:
            return found
        total = 0
        for owner, text in text_parts(texts):
            if owner in left_out:
                continue
            total += len(text)
            for part in tokenizer.unknown_parts(text):
                found.characters[owner] += len(part)
                found.nats[owner] += _BYTE * (len(part.encode("utf-8", "surrogatepass")) + (len(part) > 1))
        return cls(found.characters, found.nats, total)
