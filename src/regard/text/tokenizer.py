"""Text to numbers and back: descriptions of tokenizers, how each is trained, and what a trained one can do."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from regard.errors import DamagedFile, InputError
from regard.text.corpus import Corpus, cut_text, read_text

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
PAD, BEGIN, END, UNKNOWN, MASK = range(5)

# Runs of letters, of digits or of signs, with the space before them; a run is cut at 64 characters because training
# takes quadratic time in the longest one. No run can spell a special token, whose last sign stands behind letters.
_WORDS = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,64}| ?[^\s\p{L}\p{M}\p{N}]{1,64}|\s{1,64}(?!\S)|\s{1,64}"
_WORDS_AND_DIGITS = _WORDS.replace(r" ?\p{N}{1,64}", r"\p{N}")
_VISIBLE = str.maketrans({" ": "▁", "\n": "↵", "\t": "⇥"})

# How GPT-2 writes bytes as characters: as themselves where they can be seen, else from U+0100 on.
_SEEN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_UNSEEN = tuple(byte for byte in range(0x100) if byte not in _SEEN)
_BYTES = {chr(byte): byte for byte in _SEEN} | {chr(0x100 + place): byte for place, byte in enumerate(_UNSEEN)}


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
            raise DamagedFile(f"tokenizer.json cannot be used: {error}. Copy or download it again.") from None
        if not tokenizer.vocabulary:
            raise DamagedFile("tokenizer.json cannot be used: it has no tokens. Copy or download it again.")
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
        if self._byte_level and token not in self._specials and _BYTES.keys() >= set(token):
            token = bytes(_BYTES[character] for character in token).decode(errors="backslashreplace")
        return str(token).translate(_VISIBLE)


@dataclass(frozen=True)
class Character:
    """One token a character; a character that training did not see is unknown."""

    joint: bool = True

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The characters of the texts, in order."""
        vocabulary = _numbered(sorted(set[str]().union(*texts)))
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIALS[UNKNOWN]))
        tokenizer.decoder = decoders.Fuse()
        return _finished(tokenizer)


@dataclass(frozen=True)
class Byte:
    """One token a byte of UTF-8, so nothing is unknown and nothing is learnt."""

    joint: bool = True

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes, whatever the texts."""
        vocabulary = _numbered(sorted(_BYTES, key=_BYTES.__getitem__))
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return _finished(tokenizer)


@dataclass(frozen=True)
class Word:
    """The commonest words, each with the space before it; other words are unknown and lost."""

    size: int = 30_000
    joint: bool = True

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """At most `size` tokens: fewer where the texts have fewer words."""
        tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIALS[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
        tokenizer.decoder = decoders.Fuse()
        trainer = trainers.WordLevelTrainer(vocab_size=self.size, special_tokens=list(SPECIALS), show_progress=False)
        return Tokenizer(_trained(tokenizer, trainer, texts))


@dataclass(frozen=True)
class BPE:
    """Byte pair encoding (Sennrich 2016) of bytes, as GPT-2 has it: every text comes back as it was."""

    size: int = 8_000
    split_digits: bool = False
    joint: bool = True

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + len(_BYTES))

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes and the merges of pairs that occur twice or more."""
        trainer = trainers.BpeTrainer(
            vocab_size=self.size,
            min_frequency=2,
            special_tokens=list(SPECIALS),
            initial_alphabet=list(_BYTES),
            show_progress=False,
        )
        tokenizer = _trained(_byte_level(models.BPE(), self.split_digits), trainer, texts)
        return _of_size(Tokenizer(tokenizer), self.size)


@dataclass(frozen=True)
class Unigram:
    """The unigram language model (Kudo 2018) over bytes: every text comes back as it was."""

    size: int = 8_000
    split_digits: bool = False
    joint: bool = True

    def __post_init__(self) -> None:
        # The trainer does not stop at a size that holds the bytes and nothing else.
        _require_room(self.size, len(SPECIALS) + len(_BYTES) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes and the likeliest pieces."""
        trainer = trainers.UnigramTrainer(
            vocab_size=self.size,
            unk_token=SPECIALS[UNKNOWN],
            special_tokens=list(SPECIALS),
            initial_alphabet=list(_BYTES),
            show_progress=False,
        )
        trained = _trained(_byte_level(models.Unigram(), self.split_digits), trainer, texts)
        pieces = [(text, score) for text, score in json.loads(trained.to_str())["model"]["vocab"]]
        model = models.Unigram(_settled(pieces), UNKNOWN)
        return _of_size(_finished(_byte_level(model, self.split_digits)), self.size)


@dataclass(frozen=True)
class WordPiece:
    """WordPiece as BERT has it: signs stand alone, ## continues a word, and how words were spaced is lost."""

    size: int = 8_000
    joint: bool = True

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """Every character, at a word's start and inside it, and the merges of pairs that occur twice or more."""
        characters = [character for character in sorted(set[str]().union(*texts)) if not character.isspace()]
        first = [*SPECIALS, *characters, *(f"##{character}" for character in characters)]
        # Named first, in order: else they are numbered as a hash table has them, and ties fall as the numbers do.
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.size, min_frequency=2, special_tokens=first, show_progress=False
        )
        short = pre_tokenizers.Split(Regex(r"\S{1,64}"), "isolated")
        learner = _bert(models.WordPiece())
        learner.pre_tokenizer = pre_tokenizers.Sequence([learner.pre_tokenizer, short])
        vocabulary = _trained(learner, trainer, texts).get_vocab()
        return _of_size(_finished(_bert(models.WordPiece(vocabulary, unk_token=SPECIALS[UNKNOWN]))), self.size)


@dataclass(frozen=True)
class Saved:
    """A tokenizer.json that exists; it must know </s> and <pad>, or BERT's [SEP] and [PAD]."""

    path: str
    joint: bool = True

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The file's tokenizer, whatever the texts."""
        tokenizer = Tokenizer.from_json(read_text(self.path))
        _ = tokenizer.end, tokenizer.pad  # asked for at once, so that a file without them is refused here
        return tokenizer


TokenizerKind = Character | Byte | Word | BPE | Unigram | WordPiece | Saved


def train_tokenizers(kind: TokenizerKind, corpus: Corpus) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer of a corpus, and a second one for the targets when the two sides do not share it."""
    if corpus.targets is None:
        return kind.train(corpus.sources), None
    if kind.joint:
        return kind.train([*corpus.sources, *corpus.targets]), None
    return kind.train(corpus.sources), kind.train(corpus.targets)


def _trained(tokenizer: tokenizers.Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]) -> tokenizers.Tokenizer:
    tokenizer.train_from_iterator((part for text in texts for part in cut_text(text)), trainer)
    return tokenizer


def _finished(tokenizer: tokenizers.Tokenizer) -> Tokenizer:
    """A tokenizer whose model holds the special tokens, told that they are special."""
    tokenizer.add_special_tokens(list(SPECIALS))
    return Tokenizer(tokenizer)


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate((*SPECIALS, *tokens))}


def _byte_level(model: models.Model, split_digits: bool) -> tokenizers.Tokenizer:
    """A model that reads words as bytes."""
    tokenizer = tokenizers.Tokenizer(model)
    words = pre_tokenizers.Split(Regex(_WORDS_AND_DIGITS if split_digits else _WORDS), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bert(model: models.WordPiece) -> tokenizers.Tokenizer:
    """A model that reads words and signs apart."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # "Cleaning up" would turn "do not" into "don't".
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def _settled(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Pieces in an order and with scores that depend on the text alone.

    The trainer adds up in the order of a hash table, which moves last digits, and gives the bytes it never saw scores
    that are a little above the lowest in that same order.
    """
    specials, learnt = pieces[: len(SPECIALS)], pieces[len(SPECIALS) :]
    lowest = min(score for _, score in learnt)
    unseen = lowest + 0.0001 * (len(_BYTES) + 1)
    scores = {text: lowest if len(text) == 1 and score < unseen else score for text, score in learnt}
    rounded = [(text, round(score, 6)) for text, score in scores.items()]
    return specials + sorted(rounded, key=lambda piece: (-piece[1], piece[0]))


def _require_room(size: int, least: int) -> None:
    if size < least:
        raise InputError(
            f"asked for {size:,} tokens, special ones and single characters need {least:,} (text.tokenizer.size). "
            f"Use size = {least} or more."
        )


def _of_size(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """The tokenizer, refused unless it has the size asked for."""
    found = tokenizer.vocabulary
    if found < size:
        usable = found // 100 * 100 if found >= 1000 else found
        raise InputError(
            f"asked for {size:,} tokens, the text supports {found:,} (text.tokenizer.size). Use size = {usable}."
        )
    _require_room(size, found)
    return tokenizer


def _refuse_surrogates(texts: Sequence[str]) -> None:
    """Name the half of a character pair that makes a text invalid, if that is what is wrong."""
    for text in texts:
        half = re.search("[\ud800-\udfff]", text)
        if half is not None:
            raise InputError(
                f"the text holds an unpaired surrogate (U+{ord(half.group()):04X}) at position {half.start() + 1}. "
                "Give valid Unicode."
            )
