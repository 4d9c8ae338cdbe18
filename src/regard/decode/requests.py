"""Requests to generate and their results, as torch and other engines take and give them; imported without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from regard import messages
from regard.data.tokenize.encode import Reads, Template
from regard.data.tokenize.tokenizer import Tokenizer
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


def translation_requests(
    reader: Reader,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str],
    options: Options,
    *,
    prefixes: Sequence[str] | None = None,
    first_line: int = 1,
    trained_length: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Request]:
    """The requests to translate these texts, as `translate` makes them."""
    source, target = tokenizers
    prefixes = [""] * len(texts) if prefixes is None else prefixes
    if len(prefixes) != len(texts):
        raise InputError(f"{len(texts):,} texts and {len(prefixes):,} prefixes: give one prefix per text.")
    requests = []
    for index, (ids, prefix) in enumerate(zip(source.encode_batch(texts), target.encode_batch(prefixes))):
        source_ids = add_special_tokens(reader, source, ids)
        check_length(reader, len(source_ids), f"line {first_line + index:,}")
        request = translation_request(reader, target, source_ids, options, prefix=prefix)
        if trained_length is not None and len(source_ids) > trained_length:
            note(
                f"line {first_line + index:,} has {len(source_ids):,} tokens, and this model was trained on at most "
                f"{trained_length:,}; its translation may be poor and cut short. Split it into sentences, one per line."
            )
            if options.max_tokens is None:
                request = replace(request, max_tokens=min(request.max_tokens, _most_tokens(trained_length)))
        # An empty source has an empty translation.
        requests.append(replace(request, seed=options.seed + index, max_tokens=request.max_tokens if ids else 0))
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
    encoded = iter(tokenizer.encode_batch([prompt for prompt in prompts if isinstance(prompt, str)]))
    for index, given in enumerate(prompts):
        prompt = add_special_tokens(reader, tokenizer, next(encoded) if isinstance(given, str) else given)
        check_length(reader, len(prompt), f"prompt {index + 1:,}")
        max_tokens = clamp_max_tokens(reader, 200 if options.max_tokens is None else options.max_tokens, len(prompt))
        requests.append(Request(prompt, None, max_tokens, options.seed + index, start))
    return requests


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


def cut_at_stop(text: str, start: int, stops: tuple[str, ...]) -> str:
    """The text up to the first stop string from `start` on, where the prompt ends."""
    ends = [end for stop in stops if (end := text.find(stop, start)) >= 0]
    return text[: min(ends)] if ends else text
