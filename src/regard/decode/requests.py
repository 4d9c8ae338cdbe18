"""Requests to generate and their results, as torch and other engines take and give them; imported without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from regard import messages
from regard.data.tokenize.encode import FilledTemplate, Reads, Template, token_rows
from regard.data.tokenize.tokenizer import SPECIALS, Tokenizer, word_ids, word_offsets
from regard.decode.options import Options
from regard.decode.terms import Constraints
from regard.errors import InputError


class Reader(Protocol):
    """What a model reads, and how many tokens of it: a network, or a model in another engine."""

    @property
    def reads(self) -> Reads:
        """A text as a whole, a prompt to continue, or the source of a translation."""

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can read at once; None when there is no bound."""


@dataclass(frozen=True)
class Request:
    """A request to generate: the prompt, the source if there is one, the token limit, the seed for sampling."""

    prompt: tuple[int, ...]
    source: tuple[int, ...] | None
    max_tokens: int
    seed: int = 0
    special_tokens: int = 1  # at the start of the prompt, before its text (BOS)
    constraints: Constraints | None = None  # what the generated text must be like

    @property
    def length(self) -> int:
        """The number of tokens to read."""
        return len(self.prompt) + len(self.source or ())


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probabilities of the tokens of a text, in nats, and of the best few tokens in the place of each."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]  # per token, (token, log-probability), best first


@dataclass(frozen=True)
class GeneratedText:
    """A generated text, with the score and the tokens of its hypothesis."""

    text: str
    score: float
    log_probability: float
    tokens: tuple[int, ...]
    ended: bool  # by an end token or a stop string, not by the length limit
    alignment: tuple[tuple[int, int], ...] | None = None  # (source word, target word), when requested
    logprobs: TokenLogprobs | None = None  # when requested
    impossible: str | None = None  # why there is no text that meets the constraints


@dataclass(frozen=True)
class TextScore:
    """The log-probability of a text, and of each of its tokens."""

    total: float
    tokens: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class LabelPrediction:
    """The most likely label of a text, and the probability of each label; those of a multi-label head sum to any."""

    label: str
    probabilities: dict[str, float] = field(repr=False)

    @classmethod
    def of(cls, labels: Sequence[str], probabilities: Sequence[float]) -> LabelPrediction:
        """The prediction by these probabilities."""
        by_label = dict(zip(labels, probabilities))
        return cls(max(by_label, key=by_label.__getitem__), by_label)


@dataclass(frozen=True)
class NumberPrediction:
    """The number predicted for a text (regression)."""

    number: float


NO_TAG = "_"  # of a word without a token, such as a control character that the tokenizer removes


@dataclass(frozen=True)
class TagPrediction:
    """The words of a text, each with its tag."""

    words: tuple[tuple[str, str], ...]

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for _, tag in self.words)

    @classmethod
    def of(cls, tokenizer: Tokenizer, text: str, labels: Sequence[str], predicted: Sequence[int]) -> TagPrediction:
        """The tag of each word: the label predicted at its first token."""
        token_words = word_ids(text, tokenizer.encode_with_offsets(text).offsets)
        first_token = {word: token for token, word in reversed(list(enumerate(token_words)))}
        words = [text[start:end] for start, end in word_offsets(text)]
        tags = [labels[predicted[first_token[word]]] if word in first_token else NO_TAG for word in range(len(words))]
        return cls(tuple(zip(words, tags)))


Prediction = LabelPrediction | NumberPrediction | TagPrediction

Text = str | tuple[str, str]
"""A text, or a pair of texts that is classified as one."""


Vectors = NDArray[np.float32]
TokenVectors = tuple[list[str], Vectors]
"""The tokens of a text, and one row per token."""

Layer = int | Literal["mix"] | None
"""Which hidden states: a layer's (0: the embedding), "mix": the mean of all layers, None: those the readout reads."""


def translation_requests(
    reader: Reader,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str | Sequence[int]],
    options: Options,
    *,
    prefixes: Sequence[str] | None = None,
    first_line: int = 1,
    trained_length: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Request]:
    """The requests to translate these texts or their token ids, as `translate` makes them."""
    source, target = tokenizers
    if prefixes is not None and len(prefixes) != len(texts):
        raise InputError(f"{len(texts):,} texts and {len(prefixes):,} prefixes: give one prefix per text.")
    encoded = repeat([], len(texts)) if prefixes is None else target.encode_batch(prefixes)
    template, requests = text_template(reader, source), []
    for index, (ids, prefix) in enumerate(zip(_token_ids(source, texts), encoded)):
        source_ids = template.row(ids) or (source.bos,)
        check_length(reader, len(source_ids), f"line {first_line + index:,}")
        counted = len(source_ids)
        if trained_length is not None and counted > trained_length:
            note(
                f"line {first_line + index:,} has {counted:,} tokens, and this model was trained on at most "
                f"{trained_length:,}; its translation may be poor and cut short. Split it into sentences, one per line."
            )
            counted = trained_length
        # An empty source has an empty translation.
        most = 0 if not ids else _most_tokens(counted) if options.max_tokens is None else options.max_tokens
        most = clamp_max_tokens(reader, most, len(prefix) + 1)
        requests.append(Request((target.bos, *prefix), source_ids, most, options.seed + index))
    return requests


def translation_request(
    reader: Reader, target: Tokenizer, source_ids: tuple[int, ...], options: Options, *, prefix: Sequence[int] = ()
) -> Request:
    """The request to translate a source, special tokens included."""
    max_tokens = options.max_tokens if options.max_tokens is not None else _most_tokens(len(source_ids))
    max_tokens = clamp_max_tokens(reader, max_tokens, len(prefix) + 1)
    return Request((target.bos, *prefix), source_ids, max_tokens, options.seed)


def _most_tokens(source: int) -> int:
    """The maximum length of the translation of a source of so many tokens."""
    return 2 * source + 50


def prompt_requests(
    reader: Reader, tokenizer: Tokenizer, prompts: Sequence[str | Sequence[int]], options: Options
) -> list[Request]:
    """The requests to continue these prompts, which are texts or token ids; special tokens are added to both."""
    requests, start = [], len(text_template(reader, tokenizer).prefix)
    for index, ids in enumerate(_token_ids(tokenizer, prompts)):
        prompt = add_special_tokens(reader, tokenizer, ids)
        check_length(reader, len(prompt), f"prompt {index + 1:,}")
        max_tokens = clamp_max_tokens(reader, 200 if options.max_tokens is None else options.max_tokens, len(prompt))
        requests.append(Request(prompt, None, max_tokens, options.seed + index, start))
    return requests


def _token_ids(tokenizer: Tokenizer, texts: Sequence[str | Sequence[int]]) -> Iterator[Sequence[int]]:
    """The token ids of texts, some of which may be given as ids."""
    encoded = iter(tokenizer.encode_batch([text for text in texts if isinstance(text, str)]))
    return (next(encoded) if isinstance(text, str) else text for text in texts)


def scoring_requests(
    reader: Reader, tokenizers: tuple[Tokenizer, Tokenizer], texts: Sequence[str], targets: Sequence[str] | None = None
) -> list[Request]:
    """The requests to score these texts, or targets given their sources, EOS included: forced decoding."""
    source, target = tokenizers
    requests = []
    if targets is not None:
        for index, (source_ids, target_ids) in enumerate(zip(source.encode_batch(texts), target.encode_batch(targets))):
            read = add_special_tokens(reader, source, source_ids)
            check_length(reader, max(len(read), len(target_ids) + 1), f"pair {index + 1:,}")
            requests.append(Request((target.bos, *target_ids, target.eos), read, 0))
        return requests
    prefix = text_template(reader, source).prefix or (source.bos,)
    end = (source.eos,) if source.has_eos else ()
    for index, ids in enumerate(source.encode_batch(texts)):
        check_length(reader, len(prefix) + len(ids), f"text {index + 1:,}")
        requests.append(Request((*prefix, *ids, *end), None, 0, special_tokens=len(prefix)))
    return requests


def encode_classified(tokenizer: Tokenizer, texts: Sequence[Text]) -> list[list[list[int]]]:
    """The tokens of the texts, or of the first and of the second texts of pairs."""
    paired = [index for index, text in enumerate(texts) if not isinstance(text, str)]
    if paired and len(paired) < len(texts):
        raise InputError("some are texts and some are pairs of texts. Give one or the other.")
    parts = [[text] if isinstance(text, str) else list(text) for text in texts]
    return [tokenizer.encode_batch([part[segment] for part in parts]) for segment in range(2 if paired else 1)]


def encode_cut(reader: Reader, tokenizer: Tokenizer, texts: Sequence[str], max_length: int | None) -> list[list[int]]:
    """The tokens of each text, truncated to `max_length` with the special tokens counted."""
    encoded = tokenizer.encode_batch(texts)
    if max_length is None:
        return encoded
    most = max(0, max_length - text_template(reader, tokenizer).num_special_tokens(1))
    return [ids[:most] for ids in encoded]


def fill_template(
    reader: Reader, tokenizer: Tokenizer, segments: Sequence[Sequence[Sequence[int]]]
) -> FilledTemplate:  # fmt: skip
    """Rows with special tokens of texts, or of both texts of pairs; no row is empty."""
    template = text_template(reader, tokenizer)
    if not template.num_special_tokens(len(segments)):
        segments = [[ids or [tokenizer.bos] for ids in segments[0]], *segments[1:]]
    return template.fill([token_rows(texts) for texts in segments])


def input_length(reader: Reader, tokenizer: Tokenizer, texts: Sequence[Sequence[int]]) -> int:
    """The number of input tokens of a text or a pair of texts, special tokens included."""
    return max(1, sum(map(len, texts)) + text_template(reader, tokenizer).num_special_tokens(len(texts)))


def length_batches(lengths: Sequence[int], tokens: int, rows: int, *, equal: bool = False) -> Iterator[list[int]]:
    """Indices of rows of these lengths, longest first, in batches of at most so many tokens, with padding, and rows.

    `equal`: the rows of a batch are equally long.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        longest = lengths[batch[0]] if batch else 0
        full = len(batch) >= rows or (len(batch) + 1) * longest > tokens
        if batch and (full or (equal and lengths[index] < longest)):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def check_length(reader: Reader, tokens: int, what: str) -> None:
    """Raise an error if a text has more tokens than the model has positions."""
    if reader.max_positions is not None and tokens > reader.max_positions:
        raise messages.TOO_LONG(what=what, tokens=tokens, longest=reader.max_positions)


def clamp_max_tokens(reader: Reader, max_tokens: int, used: int) -> int:
    """How many of `max_tokens` new tokens fit into the model's positions after those in use."""
    return max_tokens if reader.max_positions is None else max(0, min(max_tokens, reader.max_positions - used))


def text_template(reader: Reader, tokenizer: Tokenizer) -> Template:
    """What stands around a text: what the tokenizer says, or else what a model of this kind reads."""
    return Template.of(tokenizer, reader.reads)


def add_special_tokens(reader: Reader, tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[int, ...]:
    """A text's tokens with the special tokens around them; never empty."""
    return text_template(reader, tokenizer).row(ids) or (tokenizer.bos,)


def reads_any_word(tokenizer: Tokenizer) -> bool:
    """Whether there is no vocabulary of words, because the characters of any word are read (ELMo)."""
    return tokenizer.vocabulary <= len(SPECIALS)


def token_names(reader: Reader, tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[str]:
    """The readable tokens of a text, special tokens included; of a model that reads any word, the words.

    `ids` are those of the text alone.
    """
    names = tokenizer.token_texts(add_special_tokens(reader, tokenizer, ids))
    if reads_any_word(tokenizer):
        start = len(text_template(reader, tokenizer).prefix)
        names[start : start + len(ids)] = tokenizer.words(text)[: len(ids)]
    return names


def cut_at_stop(text: str, start: int, stops: tuple[str, ...]) -> str:
    """The text up to the first stop string from `start` on, where the prompt ends."""
    ends = [end for stop in stops if (end := text.find(stop, start)) >= 0]
    return text[: min(ends)] if ends else text


def require_possible(text: GeneratedText, what: str) -> GeneratedText:
    """A text, or an error if there is none that meets its constraints."""
    if text.impossible is not None:
        raise messages.IMPOSSIBLE(what=what, why=text.impossible)
    return text
