"""Text to numbers and back: descriptions of tokenizers, how each is trained, and what a trained one can do."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property

import tokenizers
from tokenizers import decoders

from regard import catalogue
from regard.errors import InputError

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
PAD, BEGIN, END, UNKNOWN, MASK = range(5)

_VISIBLE = str.maketrans({" ": "▁", "\n": "↵", "\t": "⇥"})

# How GPT-2 writes bytes as characters: as themselves where they can be seen, else from U+0100 on.
_SEEN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_UNSEEN = tuple(byte for byte in range(0x100) if byte not in _SEEN)
BYTES = {chr(byte): byte for byte in _SEEN} | {chr(0x100 + place): byte for place, byte in enumerate(_UNSEEN)}


class Tokenizer:
    """A trained tokenizer; whatever a text holds, even "</s>", is encoded as text and never as a special token."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, text: str | None = None) -> None:
        # Kept, because the library reads and writes the scores of a unigram model with small errors.
        self._json: str = tokenizer.to_str() if text is None else text
        # None of these three is a property of the vocabulary, and the first is not even kept in the JSON.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        added = tokenizer.get_added_tokens_decoder()
        self._specials = {token.content: number for number, token in added.items() if token.special}
        self._forbidden = {number for text, number in self._specials.items() if text not in ("<unk>", "[UNK]")}
        self.vocabulary: int = max(tokenizer.get_vocab().values(), default=-1) + 1

    @cached_property
    def pad(self) -> int:
        """The token that fills a batch."""
        return self._special("<pad>", "[PAD]")

    @cached_property
    def begin(self) -> int:
        """The token before the first."""
        return self._special("<s>", "[CLS]")

    @cached_property
    def end(self) -> int:
        """The token after the last."""
        return self._special("</s>", "[SEP]")

    @cached_property
    def unknown(self) -> int:
        """The token for what the vocabulary lacks."""
        return self._special("<unk>", "[UNK]")

    @cached_property
    def mask(self) -> int:
        """The token that hides another."""
        return self._special("<mask>", "[MASK]")

    def encode(self, text: str) -> list[int]:
        """Text to tokens, no special ones added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text as `encode` has it, several at a time."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            _refuse_surrogates(texts)
            raise
        rows: list[list[int]] = [encoding.ids for encoding in encodings]
        for place, ids in enumerate(rows):
            if not self._forbidden.isdisjoint(ids):
                rows[place] = self._encode_apart(texts[place])
        return rows

    def words(self, text: str) -> list[str]:
        """A text cut into what is encoded word by word, in the tokenizer's own characters."""
        normalizer, cutter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        text = text if normalizer is None else str(normalizer.normalize_str(text))
        return [text] if cutter is None else [word for word, _ in cutter.pre_tokenize_str(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens to text, special ones left out."""
        return str(self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=True))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """What to write under each token in a picture; a space is shown as ▁, half a character as its bytes."""
        return [self._token_text(int(number)) for number in ids]

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._json

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The opposite of `to_json`, also for a tokenizer.json made elsewhere."""
        try:
            tokenizer = cls(tokenizers.Tokenizer.from_str(text), text)
            tokenizer.encode("A probe, 1.")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the Rust library is not an Exception
            raise catalogue.BAD_TOKENIZER(why=error) from None
        if not tokenizer.vocabulary:
            raise catalogue.BAD_TOKENIZER(why="it has no tokens")
        return tokenizer

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the JSON."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def _special(self, *spellings: str) -> int:
        for spelling in spellings:
            if spelling in self._specials:
                return self._specials[spelling]
        raise InputError(f"the tokenizer has no {spellings[0]} token (text.tokenizer). Add it as a special token.")

    def _encode_apart(self, text: str) -> list[int]:
        """A text whose model would take some of it for a special token, encoded in parts that cut that one open."""
        inside = (f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in self._specials)
        parts = [part for part in re.split("|".join(inside), text) if part]
        encodings = self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        return [number for encoding in encodings for number in encoding.ids]

    def _token_text(self, number: int) -> str:
        token = self._tokenizer.id_to_token(number)
        if token is None:
            return f"<{number}>"
        if self._byte_level and token not in self._specials and BYTES.keys() >= set(token):
            token = bytes(BYTES[character] for character in token).decode(errors="backslashreplace")
        return str(token).translate(_VISIBLE)


def _refuse_surrogates(texts: Sequence[str]) -> None:
    """Name the half of a character pair that makes a text invalid, if that is what is wrong."""
    for text in texts:
        half = re.search("[\ud800-\udfff]", text)
        if half is not None:
            raise InputError(
                f"the text holds an unpaired surrogate (U+{ord(half.group()):04X}) at position {half.start() + 1}. "
                "Give valid Unicode."
            )
