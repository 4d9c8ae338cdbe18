"""How a tokenizer is made: a description of each kind, and its training on text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from regard import messages
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.read.files import read_text
from regard.data.read.texts import Chained, pieces, side_digest
from regard.data.tokenize.tokenizer import BYTES, SPECIALS, UNKNOWN, Tokenizer
from regard.errors import InputError
from regard.schema import to_dict

# Runs of letters, of digits or of signs, with the space before them; a run is cut at 64 characters because training
# takes quadratic time in the longest one. No run can spell a special token, whose last sign stands behind letters.
_WORDS = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,64}| ?[^\s\p{L}\p{M}\p{N}]{1,64}|\s{1,64}(?!\S)|\s{1,64}"
_WORDS_AND_DIGITS = _WORDS.replace(r" ?\p{N}{1,64}", r"\p{N}")


@dataclass(frozen=True)
class Character:
    """One token a character; a character that training did not see is unknown."""

    joint: bool = True
    sentinels: int = 0

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The characters of the texts, in order."""
        vocabulary = _numbered(_characters(texts))
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIALS[UNKNOWN]))
        tokenizer.decoder = decoders.Fuse()
        return _closed(_finished(tokenizer), self.sentinels)


@dataclass(frozen=True)
class Byte:
    """One token a byte of UTF-8, so nothing is unknown and nothing is learnt."""

    joint: bool = True
    sentinels: int = 0

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes, whatever the texts."""
        vocabulary = _numbered(sorted(BYTES, key=BYTES.__getitem__))
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return _closed(_finished(tokenizer), self.sentinels)


@dataclass(frozen=True)
class Word:
    """The commonest words, each with the space before it; other words are unknown and lost."""

    size: int = 30_000
    joint: bool = True
    sentinels: int = 0

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """At most `size` tokens: fewer where the texts have fewer words."""
        tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIALS[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
        tokenizer.decoder = decoders.Fuse()
        trainer = trainers.WordLevelTrainer(vocab_size=self.size, special_tokens=list(SPECIALS), show_progress=False)
        return _closed(Tokenizer(_trained(tokenizer, trainer, texts)), self.sentinels)


@dataclass(frozen=True)
class BPE:
    """Byte pair encoding (Sennrich 2016) of bytes, as GPT-2 has it: every text comes back as it was."""

    size: int = 8_000
    split_digits: bool = False
    joint: bool = True
    sentinels: int = 0

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + len(BYTES))

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes and the merges of pairs that occur twice or more."""
        trainer = trainers.BpeTrainer(
            vocab_size=self.size,
            min_frequency=2,
            special_tokens=list(SPECIALS),
            initial_alphabet=list(BYTES),
            show_progress=False,
        )
        tokenizer = _trained(_byte_level(models.BPE(), self.split_digits), trainer, texts)
        return _closed(_of_size(Tokenizer(tokenizer), self.size), self.sentinels)


@dataclass(frozen=True)
class Unigram:
    """The unigram language model (Kudo 2018) over bytes: every text comes back as it was."""

    size: int = 8_000
    split_digits: bool = False
    joint: bool = True
    sentinels: int = 0

    def __post_init__(self) -> None:
        # The trainer does not stop at a size that holds the bytes and nothing else.
        _require_room(self.size, len(SPECIALS) + len(BYTES) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes and the likeliest pieces."""
        trainer = trainers.UnigramTrainer(
            vocab_size=self.size,
            unk_token=SPECIALS[UNKNOWN],
            special_tokens=list(SPECIALS),
            initial_alphabet=list(BYTES),
            show_progress=False,
        )
        trained = _trained(_byte_level(models.Unigram(), self.split_digits), trainer, texts)
        pieces = [(text, score) for text, score in json.loads(trained.to_str())["model"]["vocab"]]
        model = models.Unigram(_settled(pieces), UNKNOWN)
        return _closed(_of_size(_finished(_byte_level(model, self.split_digits)), self.size), self.sentinels)


@dataclass(frozen=True)
class WordPiece:
    """WordPiece as BERT has it: signs stand alone, ## continues a word, and how words were spaced is lost."""

    size: int = 8_000
    joint: bool = True
    sentinels: int = 0

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """Every character, at a word's start and inside it, and the merges of pairs that occur twice or more."""
        characters = [character for character in _characters(texts) if not character.isspace()]
        first = [*SPECIALS, *characters, *(f"##{character}" for character in characters)]
        # Named first, in order: else they are numbered as a hash table has them, and ties fall as the numbers do.
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.size, min_frequency=2, special_tokens=first, show_progress=False
        )
        short = pre_tokenizers.Split(Regex(r"\S{1,64}"), "isolated")
        learner = _bert(models.WordPiece())
        learner.pre_tokenizer = pre_tokenizers.Sequence([learner.pre_tokenizer, short])
        vocabulary = _trained(learner, trainer, texts).get_vocab()
        finished = _finished(_bert(models.WordPiece(vocabulary, unk_token=SPECIALS[UNKNOWN])))
        return _closed(_of_size(finished, self.size), self.sentinels)


@dataclass(frozen=True)
class Saved:
    """A tokenizer.json that exists; it must know </s> and <pad>, or BERT's [SEP] and [PAD]."""

    path: str
    joint: bool = True
    sentinels: int = 0

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The file's tokenizer, whatever the texts."""
        tokenizer = Tokenizer.from_json(read_text(self.path))
        _ = tokenizer.end, tokenizer.pad  # asked for at once, so that a file without them is refused here
        return _closed(tokenizer, self.sentinels)


TokenizerKind = Character | Byte | Word | BPE | Unigram | WordPiece | Saved


def train_tokenizers(
    kind: TokenizerKind, corpus: Corpus, cache: Cache = Cache()  # noqa: B008 (frozen)
) -> tuple[Tokenizer, Tokenizer | None]:  # fmt: skip
    """The tokenizer of a corpus, and a second one for the targets when the two sides do not share it."""
    if corpus.targets is None:
        return _known(kind, corpus.sources, cache), None
    if kind.joint:
        return _known(kind, Chained([corpus.sources, corpus.targets]), cache), None
    return _known(kind, corpus.sources, cache), _known(kind, corpus.targets, cache)


def _known(kind: TokenizerKind, texts: Sequence[str], cache: Cache) -> Tokenizer:
    """The tokenizer of these texts, trained once."""
    if cache.root is None or isinstance(kind, Saved):
        return kind.train(texts)
    key = [to_dict(kind), side_digest(texts), tokenizers.__version__]
    table = cache.table("tokenizer", key, lambda columns: {"json": kind.train(texts).to_json()})
    return Tokenizer.from_json(table.facts["json"])


def _trained(tokenizer: tokenizers.Tokenizer, trainer: trainers.Trainer, texts: Sequence[str]) -> tokenizers.Tokenizer:
    tokenizer.train_from_iterator((part for _, part in pieces(texts)), trainer)
    return tokenizer


def _finished(tokenizer: tokenizers.Tokenizer) -> Tokenizer:
    """A tokenizer whose model holds the special tokens, told that they are special."""
    tokenizer.add_special_tokens(list(SPECIALS))
    return Tokenizer(tokenizer)


def _closed(tokenizer: Tokenizer, sentinels: int) -> Tokenizer:
    """A tokenizer with so many sentinels behind all other tokens, beyond the size that was asked for."""
    if sentinels < 0:
        raise InputError(f"sentinels = {sentinels} is negative (text.tokenizer.sentinels). Use 0 or more.")
    if len(tokenizer.sentinels) >= sentinels:
        return tokenizer
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    library.add_special_tokens([f"<extra_id_{number}>" for number in range(sentinels)])
    return Tokenizer(library, roles=tokenizer.roles)


def _characters(texts: Sequence[str]) -> list[str]:
    """Every character of the texts, in order."""
    found: set[str] = set()
    for _, part in pieces(texts):
        found.update(part)
    return sorted(found)


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
    unseen = lowest + 0.0001 * (len(BYTES) + 1)
    scores = {text: lowest if len(text) == 1 and score < unseen else score for text, score in learnt}
    rounded = [(text, round(score, 6)) for text, score in scores.items()]
    return specials + sorted(rounded, key=lambda piece: (-piece[1], piece[0]))


def _require_room(size: int, least: int) -> None:
    if size < least:
        raise messages.VOCABULARY_TOO_SMALL(asked=size, least=least)


def _of_size(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """The tokenizer, refused unless it has the size asked for."""
    found = tokenizer.vocabulary
    if found < size:
        usable = found // 100 * 100 if found >= 1000 else found
        raise messages.VOCABULARY_TOO_LARGE(asked=size, found=found, usable=usable)
    _require_room(size, found)
    return tokenizer
