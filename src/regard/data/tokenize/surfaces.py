"""Token surfaces: the text that each token of a vocabulary adds, at the start of a text and after other text."""

from __future__ import annotations

from dataclasses import dataclass

from regard.data.tokenize.tokenizer import Tokenizer

_LONE = 0xDC00  # Python's "surrogateescape": the byte 0x80 of an unfinished character is U+DC80


@dataclass(frozen=True)
class Surfaces:
    """What each token adds to a text; None for special tokens and numbers without a token.

    A byte of an unfinished character is a lone surrogate, as Python's "surrogateescape" decodes it.
    """

    first: tuple[str | None, ...]  # at the start of a text
    later: tuple[str | None, ...]  # after other text


def token_surfaces(tokenizer: Tokenizer, size: int) -> Surfaces:
    """The surfaces of tokens 0 to size - 1."""
    before = tokenizer.encode("a")
    after = [tokenizer.surface(number, before) for number in range(size)]
    first = after if tokenizer.context_free else [tokenizer.surface(number, []) for number in range(size)]
    return Surfaces(tuple(first), tuple(after))


def is_lone_byte(character: str) -> bool:
    """Whether a character of a surface is a byte of an unfinished character."""
    return _LONE + 0x80 <= ord(character) <= _LONE + 0xFF


def lone_bytes(character: str) -> str:
    """A character as the bytes that tokens may spell it with; one ASCII character is itself."""
    return character if character.isascii() else "".join(chr(_LONE + byte) for byte in character.encode("utf-8"))
