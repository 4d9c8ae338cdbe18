"""The words of a text, which alignments count: what stands between spaces, or characters where nothing does."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count, takewhile
from types import MappingProxyType

import tokenizers
from tokenizers import decoders, models

from regard import messages
from regard.data.tokenize.regex_safety import require_steady
from regard.errors import DamagedFile, InputError

Span = tuple[int, int]
"""From where to where in a text, counted in characters."""

# Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Chinese characters, kana and their signs.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)


def cut_words(text: str) -> list[Span]:
    """Where each word stands: as `text.split()` has it; without any space, an unspaced script's characters are words.

    A text with a space in it is always cut at its spaces, so that no number is read wrongly by who cuts there.
    """
    found = [match.span() for match in re.finditer(r"\S+", text)]
    return _characters(text, *found[0]) if len(found) == 1 else found


def word_numbers(text: str, tokens: Sequence[Span]) -> list[int]:
    """The word that each token of a text begins in, by its first visible character; -1 where it shows none."""
    starts = [start for start, _ in cut_words(text)]
    numbers = []
    for start, end in tokens:
        shown = text[start:end]
        space = len(shown) - len(shown.lstrip())
        numbers.append(bisect_right(starts, start + space) - 1 if space < len(shown) else -1)
    return numbers


def _characters(text: str, start: int, end: int) -> list[Span]:
    """A word cut around the characters of unspaced scripts, each with the marks on it."""
    places = [start]
    for place in range(start + 1, end):
        if unicodedata.category(text[place])[0] != "M" and _UNSPACED.search(text, place - 1, place + 1):
            places.append(place)
    return list(zip(places, [*places[1:], end]))


SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")


PAD, BEGIN, END, UNKNOWN, MASK = range(5)


_VISIBLE = str.maketrans({" ": "▁", "\n": "↵", "\t": "⇥"})

# How GPT-2 writes bytes as characters: as themselves where they can be seen, else from U+0100 on.
_SEEN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_UNSEEN = tuple(byte for byte in range(0x100) if byte not in _SEEN)
BYTES = {chr(byte): byte for byte in _SEEN} | {chr(0x100 + place): byte for place, byte in enumerate(_UNSEEN)}

ELSEWHERE = "\uffff"  # before pieces that are found in no text, only where all else of a text is unknown

_NOTHING: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class Roles:
    """Which tokens play a part, where their spelling does not say so; None leaves it to the spelling."""

    begin: int | None = None
    end: int | None = None
    pad: int | None = None
    unknown: int | None = None
    mask: int | None = None
    opening: tuple[int, ...] | None = None  # what stands before a language model's prompt; (begin,) when not said
    between: int = 1  # how many ends stand between two texts of a pair
    known: int | None = None  # tokens from this number on are pieces of text that the model reads as unknown


@dataclass(frozen=True)
class Encoded:
    """A text's tokens, where in it each stands, and which of them an unknown token would stand for together."""

    ids: list[int]
    spans: list[Span]
    units: list[int]


class Tokenizer:
    """A trained tokenizer; whatever a text holds, even "</s>", is encoded as text and never as a special token."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, text: str | None = None, roles: Roles | None = None) -> None:
        self.roles = roles
        # Kept, because the library reads and writes the scores of a unigram model with small errors.
        self._json: str = tokenizer.to_str() if text is None else text
        # None of these three is a property of the vocabulary, and the first is not even kept in the JSON.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        # With these an unknown token is a whole word; with the others, a character.
        self._knows_words = isinstance(tokenizer.model, (models.WordLevel, models.WordPiece))
        added = tokenizer.get_added_tokens_decoder()
        self._specials = {token.content: number for number, token in added.items() if token.special}
        played = roles or Roles()
        spelled = (self._specials[name] for name in ("<unk>", "[UNK]") if name in self._specials)
        self._unknown: int | None = next(spelled, None) if played.unknown is None else played.unknown
        self._forbidden = set(self._specials.values()) - {self._unknown}
        found = max(tokenizer.get_vocab().values(), default=-1) + 1
        self.vocabulary: int = found if played.known is None else min(found, played.known)
        self._knows_all = played.known is None

    @cached_property
    def pad(self) -> int:
        """The token that fills a batch."""
        return self._special("pad", "<pad>", "[PAD]", "<|endoftext|>")

    @cached_property
    def begin(self) -> int:
        """The token before the first."""
        return self._special("begin", "<s>", "[CLS]", "<|endoftext|>")

    @cached_property
    def end(self) -> int:
        """The token after the last."""
        return self._special("end", "</s>", "[SEP]", "<|endoftext|>")

    @cached_property
    def unknown(self) -> int:
        """The token for what the vocabulary lacks."""
        return self._special("unknown", "<unk>", "[UNK]")

    @cached_property
    def mask(self) -> int:
        """The token that hides another."""
        return self._special("mask", "<mask>", "[MASK]")

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """What stands before a language model's prompt."""
        said = self.roles.opening if self.roles else None
        return (self.begin,) if said is None else said

    @cached_property
    def sentinels(self) -> list[int]:
        """The tokens <extra_id_0>, <extra_id_1>, ... that stand for spans of text, in that order."""
        found = (self._specials.get(f"<extra_id_{number}>") for number in count())
        return [number for number in takewhile(lambda number: number is not None, found) if number is not None]

    def encode(self, text: str) -> list[int]:
        """Text to tokens, no special ones added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text as `encode` has it, several at a time."""
        rows: list[list[int]] = [self._read(encoding) for encoding in self._encodings(texts)]
        for place, ids in enumerate(rows):
            if not self._forbidden.isdisjoint(ids):
                parts = self._encodings(self._parts(texts[place]))
                rows[place] = [number for encoding in parts for number in self._read(encoding)]
        return rows

    def encode_in_place(self, text: str) -> Encoded:
        """Text to tokens as `encode` has them, with their places in it."""
        parts = [text]
        encodings = self._encodings(parts, located=True)
        if not self._forbidden.isdisjoint(encodings[0].ids):
            parts = self._parts(text)
            encodings = self._encodings(parts, located=True)
        ids, spans, units = [], [], []
        starts, single = accumulate(map(len, parts), initial=0), count()
        for start, encoding in zip(starts, encodings):
            for number, (first, last), word in zip(self._read(encoding), encoding.offsets, encoding.word_ids):
                ids.append(number)
                spans.append((start + first, start + last))
                # A part has no more words than characters, so none of its words shares a number with another part's.
                units.append(start + (word or 0) if self._knows_words else next(single))
        return Encoded(ids, spans, units)

    def words(self, text: str) -> list[str]:
        """A text cut into what is encoded word by word, in the tokenizer's own characters."""
        normalizer, cutter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        text = text if normalizer is None else str(normalizer.normalize_str(text))
        return [text] if cutter is None else [word for word, _ in cutter.pre_tokenize_str(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens to text, special ones left out."""
        return str(self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=True))

    def decode_in_place(self, ids: Sequence[int], instead: Mapping[int, str] = _NOTHING) -> tuple[str, list[Span]]:
        """Tokens to text, and where in it each stands; `instead` writes tokens at some places another way.

        The parts of a character share its place; a special token has none.
        """
        written = [(place, instead.get(place, self._tokenizer.id_to_token(int(n)))) for place, n in enumerate(ids)]
        hidden = {*self._specials, None}
        places = [place for place, token in written if place in instead or token not in hidden]
        tokens = [str(written[place][1]) for place in places]
        spans: list[Span] = [(0, 0)] * len(ids)
        length = begun = done = 0
        for end in range(1, len(tokens) + 1):
            # What a token adds shows behind the one before it: at a text's start, some are written without their space.
            known, grown = self._joined(tokens[begun:done]), self._joined(tokens[begun:end])
            if end < len(tokens) and (len(grown) <= len(known) or grown.endswith("\ufffd")):
                continue
            for place in places[done:end]:
                spans[place] = length, length + len(grown) - len(known)
            length += len(grown) - len(known)
            begun, done = done, end
        return self._joined(tokens), spans

    def unknowns(self, ids: Sequence[int]) -> list[int]:
        """The places of unknown tokens; none in a vocabulary without one."""
        return [place for place, number in enumerate(ids) if number == self._unknown]

    def spell(self, text: str, *, apart: bool) -> str:
        """What a token would be that reads as this text, `apart` from a word before it."""
        if not self._knows_words:
            return text
        return "".join(self.words(f"a {text.strip()}")[1:] if apart else self.words(text.strip()))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """What to write under each token in a picture; a space is shown as ▁, half a character as its bytes."""
        return [self._token_text(int(number)) for number in ids]

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._json

    @classmethod
    def from_json(cls, text: str, roles: Roles | None = None) -> Tokenizer:
        """The opposite of `to_json`, also for a tokenizer.json made elsewhere."""
        try:
            library = tokenizers.Tokenizer.from_str(text)
            require_steady(library)
            tokenizer = cls(library, text, roles)
            tokenizer.encode("A probe, 1.")
        except (KeyboardInterrupt, SystemExit, DamagedFile):
            raise
        except BaseException as error:  # a panic of the Rust library is not an Exception
            raise messages.BAD_TOKENIZER(why=error) from None
        if not tokenizer.vocabulary:
            raise messages.BAD_TOKENIZER(why="it has no tokens")
        return tokenizer

    def extended(self, words: Sequence[str]) -> Tokenizer:
        """The same tokenizer with some words, each of which is one token from now on."""
        grown = tokenizers.Tokenizer.from_str(self._json)
        grown.add_tokens([tokenizers.AddedToken(word, single_word=True) for word in words])
        found = Tokenizer(grown, roles=self.roles)
        for word in words:
            if self._tokenizer.token_to_id(word) is not None:
                raise InputError(f'this tokenizer knows "{word}" already (model.words). Leave it out.')
            spelled = found.decode(found.encode(word))
            if len(found.encode(word)) != 1 or spelled not in (word, self.decode(self.encode(word))):
                raise InputError(f'this tokenizer cannot take "{word}" as a word (model.words). Leave it out.')
        return found

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the JSON, and of the roles where some are said."""
        return hashlib.sha256(f"{self._json}{self.roles or ''}".encode()).hexdigest()

    def _special(self, role: str, *spellings: str) -> int:
        said: int | None = getattr(self.roles, role, None)
        if said is not None:
            return said
        for spelling in spellings:
            if spelling in self._specials:
                return self._specials[spelling]
        raise InputError(f"the tokenizer has no {spellings[0]} token (text.tokenizer). Add it as a special token.")

    def _encodings(self, texts: Sequence[str], *, located: bool = False) -> list[tokenizers.Encoding]:
        slow = located or not self._knows_all  # the fast way does not say what was unknown
        encode = self._tokenizer.encode_batch if slow else self._tokenizer.encode_batch_fast
        try:
            return list(encode(list(texts), add_special_tokens=False))
        except TypeError:
            _refuse_surrogates(texts)
            raise

    def _read(self, encoding: tokenizers.Encoding) -> list[int]:
        """The tokens as the model knows them."""
        ids: list[int] = encoding.ids
        if self._knows_all:
            return ids
        known = [number if number < self.vocabulary else self.unknown for number in ids]
        if self.unknown in ids:  # what is unknown here may have a number all the same
            for place, token in enumerate(encoding.tokens):
                elsewhere = self._tokenizer.token_to_id(ELSEWHERE + token) if ids[place] == self.unknown else None
                known[place] = known[place] if elsewhere is None else elsewhere
        return known

    def _parts(self, text: str) -> list[str]:
        """A text whose model would take some of it for a special token, in parts that cut that one open."""
        inside = (f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in self._specials)
        return [part for part in re.split("|".join(inside), text) if part]

    def _joined(self, tokens: list[str]) -> str:
        """Tokens in the tokenizer's own characters as text."""
        decoder = self._tokenizer.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))

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
