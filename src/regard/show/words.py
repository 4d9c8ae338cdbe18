"""A text as it is read or said: its tokens, and the words that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.text.tokenizer import Tokenizer
from regard.text.words import Span, word_numbers


@dataclass(frozen=True)
class Side:
    """Tokens, and the words that cover them in order; a token that stands in no word is one of its own."""

    tokens: list[str]
    numbers: list[int]  # which word of its text each token stands in; -1: none, as special tokens
    words: list[tuple[int, int]]  # from which token to before which
    word_texts: list[str]

    @classmethod
    def of(cls, tokens: Sequence[str], text: str, spans: Sequence[Span]) -> Side:
        """Tokens, and where each stands in a text: (0, 0) where it does not."""
        numbers = word_numbers(text, spans)
        firsts = [
            place
            for place, number in enumerate(numbers)
            if place == 0 or number < 0 or number != numbers[place - 1]
        ]  # fmt: skip
        words = list(zip(firsts, [*firsts[1:], len(tokens)]))
        texts = [
            text[spans[first][0] : spans[stop - 1][1]].strip() or "".join(tokens[first:stop]) for first, stop in words
        ]
        return cls(list(tokens), numbers, words, texts)

    @classmethod
    def bare(cls, tokens: Sequence[str]) -> Side:
        """Tokens of which each is a word."""
        places = range(len(tokens))
        return cls(list(tokens), list(places), [(place, place + 1) for place in places], list(tokens))

    def behind(self, token: str) -> Side:
        """The same but for its last token, behind another that stands in no word: what is read to say this."""
        last = len(self.tokens) - 1
        words = [(first + 1, min(stop, last) + 1) for first, stop in self.words if first < last]
        texts = self.word_texts[: len(words)]
        return Side([token, *self.tokens[:-1]], [-1, *self.numbers[:-1]], [(0, 1), *words], [token, *texts])

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the page has it."""
        return {"tokens": self.tokens, "words": [list(span) for span in self.words], "word_texts": self.word_texts}


def side_of(tokenizer: Tokenizer, ids: Sequence[int], text: str | None = None) -> Side:
    """Tokens of which some are those of a text, the others around it; without a text, of what they say."""
    tokens, around = tokenizer.token_texts(ids), (0, 0)
    if text is None:
        return Side.of(tokens, *tokenizer.decode_in_place(ids))
    placed = tokenizer.encode_in_place(text)
    count = len(placed.ids)
    before = next((at for at in range(len(ids) - count + 1) if list(ids[at : at + count]) == placed.ids), None)
    if before is None:
        return Side.of(tokens, *tokenizer.decode_in_place(ids))
    after = len(ids) - before - count
    return Side.of(tokens, text, [around] * before + placed.spans + [around] * after)
