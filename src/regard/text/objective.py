"""What all problems have in common: names that are found in the text, and texts that cannot be learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from regard import catalogue
from regard.errors import InputError
from regard.text.corpus import Corpus
from regard.text.encode import Rows
from regard.text.samples import LeftOut
from regard.text.tokenizer import Tokenizer

Tokenizers = tuple[Tokenizer, Tokenizer | None]


class Objective:
    """A problem, as far as all are alike."""

    stacks: ClassVar[tuple[bool, bool] | None] = None  # whether an encoder and a decoder are needed; None: either
    sides: ClassVar[int] = 1  # of each token from which it is to be said
    like: ClassVar[str] = ""  # a model that is made for it
    aligned: ClassVar[bool] = False  # whether a pair's sides say the same, so that one that is shifted shows

    @property
    def reach(self) -> int:
        """How many positions rows may stand in, when they do not begin at 0."""
        return 0

    def named(self, corpus: Corpus) -> Self:
        """The problem with the names of what can be answered, as the training text has them."""
        return self

    def wording(self, corpus: Corpus) -> Corpus:
        """What of a corpus is cut into tokens, so that a tokenizer is trained on it."""
        return corpus


def blank(texts: Sequence[str], rows: Rows, tokenizer: Tokenizer, first: int, stop: int) -> NDArray[np.bool_]:
    """Which texts hold nothing but space; only those whose first token may be some are looked at."""
    found = np.zeros(stop - first, dtype=bool)
    filled = np.flatnonzero(rows.lengths[first:stop] > 2)
    leading = rows.flat[rows.starts[first + filled] + 1]
    space = [number for number in np.unique(leading).tolist() if not tokenizer.decode([number]).strip().strip("\ufffd")]
    for place in filled[np.isin(leading, space)].tolist():
        found[place] = not texts[first + place].strip()
    return found


def bad(corpus: Corpus, first: int, stop: int) -> NDArray[np.bool_]:
    """Which texts are not UTF-8."""
    return np.isin(np.arange(first, stop), list(corpus.bad)) if corpus.bad else np.zeros(stop - first, dtype=bool)


def require_room(name: str, value: int, least: int = 1) -> None:
    """Refuse a length in which nothing fits."""
    if value < least:
        raise InputError(f"{name} = {value} leaves no room for a token (text.problem.{name}). Use {least} or more.")


def require_share(name: str, value: float) -> None:
    """Refuse a share of nothing, or of all."""
    if not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1, got {value} (text.problem.{name}).")


def require_plain(corpus: Corpus, dropout: float) -> None:
    """Refuse pairs where plain text is learnt."""
    if corpus.targets is not None:
        raise InputError(f"{corpus.names[0]} has two sides (text.train). Name one file, or learn a translation.")
    require_no_dropout(dropout, "plain text")


def require_no_dropout(dropout: float, texts: str) -> None:
    """Refuse BPE-dropout where words are not cut anew."""
    if dropout:
        raise InputError(f"bpe_dropout is for translations (text.bpe_dropout). Leave it out for {texts}.")


def require_some(kept: int, corpus: Corpus, texts: str, left_out: LeftOut, remedy: str) -> None:
    """Refuse a corpus of which nothing is left."""
    if not kept:
        counts = sorted(left_out.counts().items(), key=lambda pair: -pair[1])
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts)
        raise catalogue.NOTHING_USABLE(
            path=corpus.names[0], texts=texts, count=len(corpus), reasons=reasons, remedy=remedy
        )
