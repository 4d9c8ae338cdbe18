"""Tokenizers: text to token ids and back, with character offsets; and the words of a text, which alignments count."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count, takewhile
from types import MappingProxyType

import tokenizers
from tokenizers import decoders, models

from regard import messages
from regard.data.tokenize.safety import require_safe, require_safe_rules
from regard.errors import DamagedFile, InputError

Offsets = tuple[int, int]
"""Start and end of a token or word in a text, in characters."""

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
BERT_SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")  # the same, as a WordPiece tokenizer names them
PAD, BOS, EOS, UNK, MASK = range(5)

# GPT-2's characters for bytes: printable bytes are themselves, the others start at U+0100.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(0x100) if byte not in _PRINTABLE)
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + index): byte for index, byte in enumerate(_OTHERS)}

LOOKUP_ONLY = "\uffff"  # prefix of entries that segmentation never yields, only looked up for unknown pieces

# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Chinese characters, kana and their signs.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
_VISIBLE = str.maketrans({" ": "▁", "\n": "↵", "\t": "⇥"})
_NO_REPLACEMENTS: Mapping[int, str] = MappingProxyType({})

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

FIRST_TEXT, SECOND_TEXT = -1, -2

Pieces = tuple[tuple[int, int], ...]
"""A row of special tokens and texts, each (token, segment); -1 and -2 stand for the first and the second text."""


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of special tokens; None: found by their usual spelling, as <s> or [CLS] for bos."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    mask: int | None = None
    single: Pieces | None = None  # a text and what stands around it; None: as the model's kind needs it
    pair: Pieces | None = None  # the same for a pair of texts
    first_unknown: int | None = None  # ids from here on are pieces of text that the model reads as unk


@dataclass(frozen=True)
class EncodedText:
    """Token ids of a text, their offsets, and units: tokens with equal units would be one unk together."""

    ids: list[int]
    offsets: list[Offsets]
    units: list[int]


class Tokenizer:
    """A trained tokenizer; any text, even "</s>", is encoded as text and never as a special token."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, text: str | None = None, special_tokens: SpecialTokens | None = None
    ) -> None:
        self.special_tokens = special_tokens
        # Kept, because the library reads and writes the scores of a unigram model with small errors.
        self._json: str = tokenizer.to_str() if text is None else text
        # None of these three is a property of the vocabulary, and the first is not even stored in the JSON.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        # In these models unk is a whole word; in the others, a character.
        self._word_level = isinstance(tokenizer.model, (models.WordLevel, models.WordPiece))
        added = tokenizer.get_added_tokens_decoder()
        self.added_tokens: dict[str, int] = {token.content: number for number, token in added.items()}
        self._specials = {token.content: number for number, token in added.items() if token.special}
        given = special_tokens or SpecialTokens()
        usual = self._specials.get("<unk>", self._specials.get("[UNK]"))
        self._unk: int | None = usual if given.unk is None else given.unk
        self._forbidden = set(self._specials.values()) - {self._unk}
        size = max(tokenizer.get_vocab().values(), default=-1) + 1
        self.vocabulary: int = size if given.first_unknown is None else min(size, given.first_unknown)
        self._has_unknown_pieces = given.first_unknown is not None

    @cached_property
    def pad(self) -> int:
        """The token that pads a batch."""
        return self._special("pad", "<pad>", "[PAD]", "<|endoftext|>")

    @cached_property
    def bos(self) -> int:
        """The beginning-of-sequence token."""
        return self._special("bos", "<s>", "[CLS]", "<|endoftext|>")

    @cached_property
    def eos(self) -> int:
        """The end-of-sequence token."""
        return self._special("eos", "</s>", "[SEP]", "<|endoftext|>")

    @cached_property
    def marks(self) -> frozenset[int]:
        """Those of `pad`, `bos` and `eos` that there are; published tokenizers may lack any of them."""
        found = set()
        for role in ("pad", "bos", "eos"):
            with suppress(InputError):
                found.add(getattr(self, role))
        return frozenset(found)

    @cached_property
    def has_eos(self) -> bool:
        """Whether there is an end-of-sequence token; published language models may lack it."""
        try:
            return self.eos >= 0
        except InputError:
            return False

    @cached_property
    def unk(self) -> int:
        """The unknown token, for text outside the vocabulary."""
        return self._special("unk", "<unk>", "[UNK]")

    @cached_property
    def mask(self) -> int:
        return self._special("mask", "<mask>", "[MASK]")

    @cached_property
    def mask_takes_space(self) -> bool:
        """Whether a mask replaces the space before it: as a published folder says, else wherever words include it."""
        if self.special_tokens is not None and self.special_tokens.single is not None:
            return bool(self._tokenizer.get_added_tokens_decoder()[self.mask].lstrip)
        return len(self.words("a b")) > 1

    @cached_property
    def sentinels(self) -> list[int]:
        """The sentinel tokens <extra_id_0>, <extra_id_1>, ... that stand for spans of text (T5), in that order."""
        names = takewhile(self._specials.__contains__, (f"<extra_id_{number}>" for number in count()))
        return [self._specials[name] for name in names]

    def encode(self, text: str) -> list[int]:
        """Text to token ids, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for several texts at once."""
        rows: list[list[int]] = [self._ids(encoding) for encoding in self._encodings(texts)]
        for index, ids in enumerate(rows):
            if not self._forbidden.isdisjoint(ids):
                parts = self._encodings(self._cut_specials(texts[index]))
                rows[index] = [number for encoding in parts for number in self._ids(encoding)]
        return rows

    def encode_with_offsets(self, text: str) -> EncodedText:
        """Text to token ids as in `encode`, with their offsets."""
        parts = [text]
        encodings = self._encodings(parts, with_offsets=True)
        if not self._forbidden.isdisjoint(encodings[0].ids):
            parts = self._cut_specials(text)
            encodings = self._encodings(parts, with_offsets=True)
        ids, offsets, units = [], [], []
        starts, single = accumulate(map(len, parts), initial=0), count()
        for start, encoding in zip(starts, encodings):
            for number, (first, last), word in zip(self._ids(encoding), encoding.offsets, encoding.word_ids):
                ids.append(number)
                offsets.append((start + first, start + last))
                # A part has no more words than characters, so words of different parts have different numbers.
                units.append(start + (word or 0) if self._word_level else next(single))
        return EncodedText(ids, offsets, units)

    def words(self, text: str) -> list[str]:
        """The pre-tokenized words of a text, in the tokenizer's own characters."""
        normalizer, pre_tokenizer = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        text = text if normalizer is None else str(normalizer.normalize_str(text))
        return [text] if pre_tokenizer is None else [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text, without special tokens."""
        return str(self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=True))

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` for several texts at once."""
        found: list[str] = self._tokenizer.decode_batch([list(ids) for ids in rows], skip_special_tokens=True)
        return found

    def decode_with_offsets(
        self, ids: Sequence[int], replacements: Mapping[int, str] = _NO_REPLACEMENTS
    ) -> tuple[str, list[Offsets]]:
        """Token ids to text, and the offsets of each token in it; `replacements` are other tokens at some positions.

        The parts of a character share its offsets; a special token has (0, 0).
        """
        written = [(index, replacements.get(index, self._tokenizer.id_to_token(int(n)))) for index, n in enumerate(ids)]
        hidden = {*self._specials, None}
        visible = [index for index, token in written if index in replacements or token not in hidden]
        tokens = [str(written[index][1]) for index in visible]
        offsets: list[Offsets] = [(0, 0)] * len(ids)
        length = begun = done = 0
        for end in range(1, len(tokens) + 1):
            # Decoded together with the token before it: at the start of a text, some tokens lose their space.
            known, grown = self._decode_tokens(tokens[begun:done]), self._decode_tokens(tokens[begun:end])
            if end < len(tokens) and (len(grown) <= len(known) or grown.endswith("\ufffd")):
                continue
            for index in visible[done:end]:
                offsets[index] = length, length + len(grown) - len(known)
            length += len(grown) - len(known)
            begun, done = done, end
        return self._decode_tokens(tokens), offsets

    def unknown_positions(self, ids: Sequence[int]) -> list[int]:
        """The positions of unk; [] for a vocabulary without it."""
        return [index for index, number in enumerate(ids) if number == self._unk]

    @cached_property
    def knows_all_bytes(self) -> bool:
        """Whether every text can be encoded, because the vocabulary has all bytes."""
        bytewise = self._byte_level and not self._word_level
        return bytewise and all(self._tokenizer.token_to_id(character) is not None for character in BYTES)

    def unknown_parts(self, text: str) -> list[str]:
        """The parts of a text outside the vocabulary, in order: what unk stands for, or what no token stands for."""
        model = self._tokenizer.model
        if self._unk is None or (isinstance(model, models.BPE) and model.unk_token is None):
            known = dict(zip(set(text), self.encode_batch([*set(text)])))
            return [character for character in text if not known[character] and not character.isspace()]
        if self._unk not in self.encode(text):
            return []
        encoded = self.encode_with_offsets(text)
        return [text[slice(*encoded.offsets[index])] for index in self.unknown_positions(encoded.ids)]

    def token_for_text(self, text: str, *, new_word: bool) -> str:
        """The token that would decode to this text, as a new word or as part of the word before it."""
        if not self._word_level:
            return text
        return "".join(self.words(f"a {text.strip()}")[1:] if new_word else self.words(text.strip()))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Readable text of each token: a space is ▁, a part of a character is its bytes."""
        return [self._token_text(int(number)) for number in ids]

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if the vocabulary lacks it."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    @property
    def context_free(self) -> bool:
        """Whether a token adds the same text at the start of a text and after other text."""
        return self._byte_level

    def surface(self, number: int, before: Sequence[int]) -> str | None:
        """What a token adds to the text of others, bytes of unfinished characters as lone surrogates; None: special."""
        token = self._tokenizer.id_to_token(number) if number < self.vocabulary else None
        if token is None or token in self._specials:
            return None
        if self._byte_level and all(character in BYTES for character in token):
            return bytes(BYTES[character] for character in token).decode("utf-8", "surrogateescape")
        known = self.decode(before)
        text = self.decode([*before, number])[len(known) :]
        return lone_byte(token) if text == "\ufffd" else text

    def to_json(self) -> str:
        """The content of a tokenizer.json."""
        return self._json

    @classmethod
    def from_json(cls, text: str, special_tokens: SpecialTokens | None = None) -> Tokenizer:
        """The inverse of `to_json`, also for a tokenizer.json of another program."""
        try:
            require_safe_rules(text)
            library = tokenizers.Tokenizer.from_str(text)
            require_safe(library)
            tokenizer = cls(library, text, special_tokens)
            tokenizer.encode("A probe, 1.")
        except (KeyboardInterrupt, SystemExit, DamagedFile):
            raise
        except BaseException as error:  # a panic of the Rust library is not an Exception
            raise messages.BAD_TOKENIZER(why=error) from None
        if not tokenizer.vocabulary:
            raise messages.BAD_TOKENIZER(why="it has no tokens")
        return tokenizer

    def with_special_tokens(self, special_tokens: SpecialTokens) -> Tokenizer:
        """The same tokenizer with these special tokens in place of those that were given."""
        return Tokenizer(self._tokenizer, self._json, special_tokens)

    def with_added_words(self, words: Sequence[str]) -> Tokenizer:
        """The same tokenizer with added words, each of which becomes one token."""
        library = tokenizers.Tokenizer.from_str(self._json)
        library.add_tokens([tokenizers.AddedToken(word, single_word=True) for word in words])
        grown = Tokenizer(library, special_tokens=self.special_tokens)
        for word in words:
            if self._tokenizer.token_to_id(word) is not None:
                raise InputError(f'this tokenizer knows "{word}" already (model.words). Leave it out.')
            decoded = grown.decode(grown.encode(word))
            if len(grown.encode(word)) != 1 or decoded not in (word, self.decode(self.encode(word))):
                raise InputError(f'this tokenizer cannot take "{word}" as a word (model.words). Leave it out.')
        return grown

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the JSON and of the special tokens that were given."""
        return hashlib.sha256(f"{self._json}{self.special_tokens or ''}".encode()).hexdigest()

    def _special(self, role: str, *spellings: str) -> int:
        given: int | None = getattr(self.special_tokens, role, None)
        if given is not None:
            return given
        for spelling in spellings:
            if spelling in self._specials:
                return self._specials[spelling]
        if self.special_tokens is not None and self.special_tokens.single is not None:
            raise InputError(f"this model's tokenizer has no {role} token ({role}_token), which this needs. "
                             "If the model was trained with one, name it in tokenizer_config.json.")  # fmt: skip
        raise InputError(f"the tokenizer has no {spellings[0]} token (text.tokenizer). Add it as a special token.")

    def _encodings(self, texts: Sequence[str], *, with_offsets: bool = False) -> list[tokenizers.Encoding]:
        slow = with_offsets or self._has_unknown_pieces  # the fast function returns no offsets and no unknown pieces
        encode = self._tokenizer.encode_batch if slow else self._tokenizer.encode_batch_fast
        try:
            return list(encode(list(texts), add_special_tokens=False))
        except TypeError:
            _refuse_surrogates(texts)
            raise

    def _ids(self, encoding: tokenizers.Encoding) -> list[int]:
        """The ids of an encoding, pieces that the model does not know as unk."""
        ids: list[int] = encoding.ids
        if not self._has_unknown_pieces:
            return ids
        known = [number if number < self.vocabulary else self.unk for number in ids]
        if self.unk in ids:
            for index, token in enumerate(encoding.tokens):
                found = self._tokenizer.token_to_id(LOOKUP_ONLY + token) if ids[index] == self.unk else None
                known[index] = known[index] if found is None else found
        return known

    def _cut_specials(self, text: str) -> list[str]:
        """Cut a text inside everything that is spelled like a special token, so that it is encoded as text."""
        inside = (f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in self._specials)
        return [part for part in re.split("|".join(inside), text) if part]

    def _decode_tokens(self, tokens: list[str]) -> str:
        """Tokens, in the tokenizer's own characters, to text."""
        decoder = self._tokenizer.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))

    def _token_text(self, number: int) -> str:
        token = self._tokenizer.id_to_token(number)
        if token is None:
            return f"<{number}>"
        if self._byte_level and token not in self._specials and BYTES.keys() >= set(token):
            token = bytes(BYTES[character] for character in token).decode(errors="backslashreplace")
        return str(token).translate(_VISIBLE)


def word_offsets(text: str) -> list[Offsets]:
    """The offsets of each word, as in `text.split()`; in a text without spaces, unspaced characters are words.

    A text with a space is always cut at its spaces, so that word numbers agree with tools that split at spaces.
    """
    found = [match.span() for match in re.finditer(r"\S+", text)]
    return _cut_unspaced(text, *found[0]) if len(found) == 1 else found


def text_units(text: str) -> list[Offsets]:
    """The offsets of the smallest units that markup surrounds: runs of letters, signs, Chinese characters."""
    units: list[Offsets] = []
    for index, character in enumerate(text):
        kind = unicodedata.category(character)[0]
        if kind == "M" and units and units[-1][1] == index:
            units[-1] = units[-1][0], index + 1
        elif character.isspace():
            continue
        elif (
            kind in "LN"
            and units
            and units[-1][1] == index
            and text[units[-1][0]].isalnum()
            and not (_UNSPACED.search(text, index - 1, index + 1))
        ):
            units[-1] = units[-1][0], index + 1
        else:
            units.append((index, index + 1))
    return units


def word_ids(text: str, offsets: Sequence[Offsets]) -> list[int]:
    """The word that each token starts in, by its first visible character; -1 if it has none."""
    starts = [start for start, _ in word_offsets(text)]
    found = []
    for start, end in offsets:
        token = text[start:end]
        space = len(token) - len(token.lstrip())
        found.append(bisect_right(starts, start + space) - 1 if space < len(token) else -1)
    return found


def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    return _UNSPACED.match(character) is not None


def _cut_unspaced(text: str, start: int, end: int) -> list[Offsets]:
    """A word cut around the characters of unspaced scripts, each with its combining marks."""
    starts = [start]
    for index in range(start + 1, end):
        if unicodedata.category(text[index])[0] != "M" and _UNSPACED.search(text, index - 1, index + 1):
            starts.append(index)
    return list(zip(starts, [*starts[1:], end]))


def _refuse_surrogates(texts: Sequence[str]) -> None:
    """Raise an error that names the first unpaired surrogate, if there is one."""
    for text in texts:
        half = re.search("[\ud800-\udfff]", text)
        if half is not None:
            raise InputError(
                f"the text holds an unpaired surrogate (U+{ord(half.group()):04X}) at position {half.start() + 1}. "
                "Give valid Unicode."
            )


def lone_byte(token: str) -> str:
    """The surface of a token of one byte, as <0xE2>: a lone surrogate, as Python's "surrogateescape" decodes it."""
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(found[1], 16)]).decode("utf-8", "surrogateescape") if found else "\ufffd"
