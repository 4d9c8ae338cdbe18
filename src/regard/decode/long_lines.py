"""Lines longer than those of the training: cut into sentences and clauses, whose translations are put together.

Nothing here imports torch, so that every engine cuts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from regard.data.sentences import split_to_fit
from regard.data.tokenize.tokenizer import Tokenizer, is_unspaced, word_offsets
from regard.decode.options import Options
from regard.decode.requests import GeneratedText, Reader, add_special_tokens, check_length
from regard.decode.terms import Constraints
from regard.progress import Progress

Value = TypeVar("Value")


@dataclass(frozen=True)
class CutLines:
    """Lines as pieces that are no longer than the texts of the training; most lines are one piece."""

    lines: Sequence[Sequence[str]]

    @property
    def pieces(self) -> list[str]:
        """All pieces in order, without the white space after them."""
        return [piece.rstrip() for pieces in self.lines for piece in pieces]

    def per_piece(self, values: Sequence[Value] | None, none: Value) -> list[Value] | None:
        """Values of lines as values of pieces: those of the first piece are the line's, of the others `none`."""
        if values is None:
            return None
        return [first for value, pieces in zip(values, self.lines) for first in [value, *[none] * (len(pieces) - 1)]]

    def progress(self, advance: Progress) -> Progress:
        """Progress that counts pieces, from one that counts lines."""
        share = len(self.lines) / sum(map(len, self.lines))
        return lambda pieces: advance(pieces * share)

    def put_together(self, found: Sequence[list[GeneratedText]], options: Options) -> list[list[GeneratedText]]:
        """The translations of the lines, from those of their pieces."""
        rest = iter(found)
        return [[_joined(pieces, translated, options)] if len(pieces) > 1 else translated[0]
                for pieces in self.lines if (translated := [next(rest) for _ in pieces])]  # fmt: skip


def cut_long_lines(
    reader: Reader, tokenizer: Tokenizer, texts: Sequence[str], encoded: Sequence[Sequence[int]], options: Options, *,
    trained_length: int | None, prefixes: Sequence[str] | None, constraints: Sequence[Constraints | None] | None = None,
    first_line: int, note: Callable[[str], None],
) -> CutLines | None:  # fmt: skip
    """Cut the lines that are too long and have neither target prefix nor constraints; None if nothing is cut.

    `encoded` are the token ids of the lines, without special tokens.
    Lines are cut for the one best translation of a search: a sample, an n-best list and a number of tokens are those of
    a line as a whole.
    """
    best = options.n_best == 1 and options.temperature == 0 and options.max_tokens is None
    prefixes, constraints = prefixes or [""] * len(texts), constraints or [None] * len(texts)
    if trained_length is None or not best or not len(prefixes) == len(constraints) == len(texts):
        return None

    def count(text: str) -> int:
        return with_special_tokens(tokenizer.encode(text))

    def with_special_tokens(ids: Sequence[int]) -> int:
        return len(add_special_tokens(reader, tokenizer, ids))

    lines: list[list[str]] = []
    for number, (text, ids, prefix, constraint) in enumerate(zip(texts, encoded, prefixes, constraints), first_line):
        length, pieces = with_special_tokens(ids), [text]
        if length > trained_length and (prefix or constraint):
            check_length(reader, length, f"line {number:,}")
        elif length > trained_length:
            pieces = split_to_fit(text, count, trained_length) or pieces
            note(
                f"line {number:,} has {length:,} tokens, and this model was trained on at most {trained_length:,}. It "
                f"is cut at sentences and clauses into {len(pieces):,} pieces, which are translated one by one."
            )
        lines.append(pieces)
    return CutLines(lines) if len(lines) < sum(map(len, lines)) else None


def _joined(pieces: Sequence[str], found: Sequence[list[GeneratedText]], options: Options) -> GeneratedText:
    """The translation of a line, from the best of each piece."""
    best = [texts[0] for texts in found]
    tokens = tuple(token for one in best for token in one.tokens)
    total, ended = sum(one.log_probability for one in best), all(one.ended for one in best)
    text, starts = "", []
    for piece, one in zip(pieces, best):
        starts.append(len(text))
        text += one.text + (_space(piece, one.text) if one.text else "")
    aligned = all(one.alignment is not None for one in best)
    links = tuple(_links(pieces, best, text, starts)) if aligned else None
    score = total / options.penalty(float(len(tokens) + ended))
    return GeneratedText(text.rstrip(), score, total, tokens, ended, links)


def _space(piece: str, translation: str) -> str:
    """What stands between a piece's translation and the next one: what stands there in the source, or a space."""
    return piece[len(piece.rstrip()) :] or ("" if is_unspaced(translation[-1]) else " ")


def _links(
    pieces: Sequence[str], best: Sequence[GeneratedText], text: str, starts: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """The alignments of the pieces, with words counted from the start of the line."""
    sources, targets = word_offsets("".join(pieces)), word_offsets(text)
    start = 0
    for piece, one, begins in zip(pieces, best, starts):
        before = sum(end <= start for _, end in sources), sum(end <= begins for _, end in targets)
        yield from ((source + before[0], target + before[1]) for source, target in one.alignment or ())
        start += len(piece)
