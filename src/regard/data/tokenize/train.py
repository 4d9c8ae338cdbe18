"""Tokenizer training: a description of each kind (character, byte, word, BPE, unigram, WordPiece), trained on text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard import messages
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus
from regard.data.read.texts import ChainedTexts, read_text, text_parts, texts_digest
from regard.data.tokenize.tokenizer import BERT_SPECIALS, BYTES, SPECIALS, UNK, Tokenizer
from regard.errors import InputError
from regard.schema import to_dict

# Runs of letters, of digits or of other signs, with the space before them; a run is cut at 64 characters because
# training time is quadratic in the longest run. No run can be a special token, which mixes letters and signs.
_WORDS = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,64}| ?[^\s\p{L}\p{M}\p{N}]{1,64}|\s{1,64}(?!\S)|\s{1,64}"
_MOST, _MOST_SENTINELS = 1_000_000, 10_000
_WORDS_AND_DIGITS = _WORDS.replace(r" ?\p{N}{1,64}", r"\p{N}")


@dataclass(frozen=True)
class Character:
    """One token per character; a character that is not in the training text is unknown."""

    joint: bool = True
    sentinels: int = 0

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The distinct characters of the texts, sorted."""
        vocabulary = _vocabulary(_characters(texts))
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIALS[UNK]))
        tokenizer.decoder = decoders.Fuse()
        return _with_sentinels(_with_specials(tokenizer), self.sentinels)


@dataclass(frozen=True)
class Byte:
    """One token per byte of UTF-8: nothing is unknown, nothing is trained."""

    joint: bool = True
    sentinels: int = 0

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes; the texts do not matter."""
        vocabulary = _vocabulary(sorted(BYTES, key=BYTES.__getitem__))
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return _with_sentinels(_with_specials(tokenizer), self.sentinels)


@dataclass(frozen=True)
class Word:
    """The most frequent words, each with the space before it; other words are unknown."""

    size: int = 30_000
    joint: bool = True
    sentinels: int = 0

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """At most `size` tokens; fewer if the texts have fewer words."""
        tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIALS[UNK]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
        tokenizer.decoder = decoders.Fuse()
        trainer = trainers.WordLevelTrainer(vocab_size=self.size, special_tokens=list(SPECIALS), show_progress=False)
        return _with_sentinels(Tokenizer(_train(tokenizer, trainer, texts)), self.sentinels)


@dataclass(frozen=True)
class BPE:
    """Byte-level byte pair encoding (BPE; Sennrich 2016, GPT-2): lossless."""

    size: int = 8_000
    split_digits: bool = False
    joint: bool = True
    sentinels: int = 0

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + len(BYTES))

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes, and merges of pairs that occur twice or more."""
        trainer = trainers.BpeTrainer(
            vocab_size=self.size,
            min_frequency=2,
            special_tokens=list(SPECIALS),
            initial_alphabet=list(BYTES),
            show_progress=False,
        )
        tokenizer = _train(_byte_level(models.BPE(), self.split_digits), trainer, texts)
        return _with_sentinels(_require_size(Tokenizer(tokenizer), self.size), self.sentinels)


@dataclass(frozen=True)
class Unigram:
    """Byte-level unigram language model (Kudo 2018): lossless."""

    size: int = 8_000
    split_digits: bool = False
    joint: bool = True
    sentinels: int = 0

    def __post_init__(self) -> None:
        # The trainer never returns for a size that holds only the bytes.
        _require_room(self.size, len(SPECIALS) + len(BYTES) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The 256 bytes and the most probable pieces."""
        trainer = trainers.UnigramTrainer(
            vocab_size=self.size,
            unk_token=SPECIALS[UNK],
            special_tokens=list(SPECIALS),
            initial_alphabet=list(BYTES),
            show_progress=False,
        )
        trained = _train(_byte_level(models.Unigram(), self.split_digits), trainer, texts)
        pieces = [(text, score) for text, score in json.loads(trained.to_str())["model"]["vocab"]]
        finished = _with_specials(_byte_level(models.Unigram(_canonical(pieces), UNK), self.split_digits))
        return _with_sentinels(_require_size(finished, self.size), self.sentinels)


@dataclass(frozen=True)
class SentencePiece:
    """A unigram model over characters, as SentencePiece's: other programs read it. Rare characters are unknown."""

    size: int = 8_000
    joint: bool = True
    sentinels: int = 0
    kind: ClassVar[str] = "sentencepiece"

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """Every character, and the most probable pieces; a space is "▁" at the start of a piece."""
        library = _sentencepiece(models.Unigram())
        first = sorted({"▁", *(one for one in _characters(texts) if not one.isspace())})
        _require_room(self.size, len(SPECIALS) + len(first) + 1)
        trainer = trainers.UnigramTrainer(
            vocab_size=self.size, unk_token=SPECIALS[UNK], special_tokens=list(SPECIALS), initial_alphabet=first,
            show_progress=False,
        )  # fmt: skip
        pieces = [
            (text, score) for text, score in json.loads(_train(library, trainer, texts).to_str())["model"]["vocab"]
        ]
        finished = _with_specials(_sentencepiece(models.Unigram(_canonical(pieces), UNK)))
        return _with_sentinels(_require_size(finished, self.size), self.sentinels)


@dataclass(frozen=True)
class WordPiece:
    """WordPiece (BERT): signs are words of their own, ## continues a word, and the spacing of words is lost."""

    size: int = 8_000
    joint: bool = True
    sentinels: int = 0

    def __post_init__(self) -> None:
        _require_room(self.size, len(SPECIALS) + 1)

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """Every character, at the start of a word and inside it, and merges of pairs that occur twice or more."""
        characters = [character for character in _characters(texts) if not character.isspace()]
        first = [*BERT_SPECIALS, *characters, *(f"##{character}" for character in characters)]
        # Listed first, in order: else ids follow the order of a hash table, and ties are broken by id.
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.size, min_frequency=2, special_tokens=first, show_progress=False
        )
        short = pre_tokenizers.Split(Regex(r"\S{1,64}"), "isolated")
        library = _bert(models.WordPiece())
        library.pre_tokenizer = pre_tokenizers.Sequence([library.pre_tokenizer, short])
        vocabulary = _train(library, trainer, texts).get_vocab()
        finished = _with_specials(_bert(models.WordPiece(vocabulary, unk_token=BERT_SPECIALS[UNK])), BERT_SPECIALS)
        return _with_sentinels(_require_size(finished, self.size), self.sentinels)


@dataclass(frozen=True)
class Saved:
    """An existing tokenizer.json; it must have </s> and <pad>, or BERT's [SEP] and [PAD]."""

    path: str
    joint: bool = True
    sentinels: int = 0

    def train(self, texts: Sequence[str]) -> Tokenizer:
        """The tokenizer of the file; the texts do not matter."""
        tokenizer = Tokenizer.from_json(read_text(self.path))
        _ = tokenizer.eos, tokenizer.pad  # raises here if the file lacks them
        return _with_sentinels(tokenizer, self.sentinels)


TokenizerKind = Character | Byte | Word | BPE | Unigram | SentencePiece | WordPiece | Saved


def train_tokenizers(
    kind: TokenizerKind, corpus: Corpus, cache: Cache = Cache()  # noqa: B008 (frozen)
) -> tuple[Tokenizer, Tokenizer | None]:  # fmt: skip
    """Train the tokenizer of a corpus, and a second one for the targets if the two sides do not share one."""
    if corpus.targets is None:
        return _cached(kind, corpus.sources, cache), None
    if kind.joint:
        return _cached(kind, ChainedTexts([corpus.sources, corpus.targets]), cache), None
    return _cached(kind, corpus.sources, cache), _cached(kind, corpus.targets, cache)


def _cached(kind: TokenizerKind, texts: Sequence[str], cache: Cache) -> Tokenizer:
    """The tokenizer of these texts, from the cache if it was trained before."""
    if cache.root is None or isinstance(kind, Saved):
        return kind.train(texts)
    key = [to_dict(kind), texts_digest(texts), tokenizers.__version__, SPECIALS, BERT_SPECIALS]
    table = cache.table("tokenizer", key, lambda columns: {"json": kind.train(texts).to_json()})
    return Tokenizer.from_json(table.metadata["json"])


def _train(tokenizer: tokenizers.Tokenizer, trainer: trainers.Trainer, texts: Sequence[str]) -> tokenizers.Tokenizer:
    tokenizer.train_from_iterator((part for _, part in text_parts(texts)), trainer)
    return tokenizer


def _with_specials(tokenizer: tokenizers.Tokenizer, names: Sequence[str] = SPECIALS) -> Tokenizer:
    """Mark the special tokens, which the model already holds, as special."""
    tokenizer.add_special_tokens(list(names))
    return Tokenizer(tokenizer)


def _with_sentinels(tokenizer: Tokenizer, sentinels: int) -> Tokenizer:
    """Add sentinels after all other tokens; they do not count towards the size."""
    if not 0 <= sentinels <= _MOST_SENTINELS:
        raise InputError(f"sentinels = {sentinels:,} is not 0 to {_MOST_SENTINELS:,} (text.tokenizer.sentinels). "
                         "T5 has 100.")  # fmt: skip
    if len(tokenizer.sentinels) >= sentinels:
        return tokenizer
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    library.add_special_tokens([f"<extra_id_{number}>" for number in range(sentinels)])
    return Tokenizer(library, special_tokens=tokenizer.special_tokens)


def _characters(texts: Sequence[str]) -> list[str]:
    """The distinct characters of the texts, sorted."""
    found: set[str] = set()
    for _, part in text_parts(texts):
        found.update(part)
    return sorted(found)


def _vocabulary(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate((*SPECIALS, *tokens))}


def _byte_level(model: models.Model, split_digits: bool) -> tokenizers.Tokenizer:
    """A byte-level tokenizer of this model."""
    tokenizer = tokenizers.Tokenizer(model)
    words = pre_tokenizers.Split(Regex(_WORDS_AND_DIGITS if split_digits else _WORDS), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(model: models.Unigram) -> tokenizers.Tokenizer:
    """A tokenizer of this model that joins runs of spaces, and puts one before the text."""
    tokenizer = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(Regex(r"[ \t\n\r]+"), " "), normalizers.Replace(Regex("^ | $"), "")
    tokenizer.normalizer = normalizers.Sequence(list(spaces))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", split=True)
    tokenizer.decoder = decoders.Metaspace("▁", "always")
    return tokenizer


def _bert(model: models.WordPiece) -> tokenizers.Tokenizer:
    """A tokenizer of this model with BERT's pre-tokenizer."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # "Cleaning up" would turn "do not" into "don't".
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def _canonical(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Make the order and scores of unigram pieces deterministic.

    The trainer sums in the order of a hash table, which changes last digits, and gives bytes that are not in the text
    scores slightly above the lowest, in that order.
    """
    specials, trained = pieces[: len(SPECIALS)], pieces[len(SPECIALS) :]
    lowest = min(score for _, score in trained)
    unseen = lowest + 0.0001 * (len(BYTES) + 1)
    scores = {text: lowest if len(text) == 1 and score < unseen else score for text, score in trained}
    rounded = [(text, round(score, 6)) for text, score in scores.items()]
    return specials + sorted(rounded, key=lambda piece: (-piece[1], piece[0]))


def _require_room(size: int, least: int) -> None:
    if size < least:
        raise messages.VOCABULARY_TOO_SMALL(asked=size, least=least)
    if size > _MOST:  # for which the trainer would allocate memory at once
        raise InputError(f"asked for {size:,} tokens, at most {_MOST:,} can be trained (text.tokenizer.size). "
                         "Use 8,000 to 32,000.")  # fmt: skip


def _require_size(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """The tokenizer; an error unless it has the requested size."""
    found = tokenizer.vocabulary
    if found < size:
        usable = found // 100 * 100 if found >= 1000 else found
        raise messages.VOCABULARY_TOO_LARGE(asked=size, found=found, usable=usable)
    _require_room(size, found)
    return tokenizer
