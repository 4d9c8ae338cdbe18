"""Confidence per word of a translation or generated text, and alternatives for a word after the prefix before it.

Words are those that alignments count (`word_offsets`): as `text.split()`, or the characters of unspaced scripts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Offsets, Tokenizer, word_ids, word_offsets
from regard.decode.generate import GeneratedText, Request, encode_sources, generate_texts, translation_request
from regard.decode.inputs import add_special_tokens, check_length, clamp_max_tokens, text_template
from regard.decode.options import Options
from regard.decode.score import forced_log_probabilities
from regard.decode.terms import contains
from regard.errors import InputError
from regard.layers.contract import Context, Memory, select
from regard.models.model import Network

_TOKENS_PER_WORD = 32
_TRIED_PER_ALTERNATIVE = 4  # words completed per word wanted: several may be the same
_MOST_FIRST_TOKENS = 1024  # looked at: some only make the word before longer


@dataclass(frozen=True)
class WordConfidence:
    """A word of a text, its probability, and its start and end in the text, in characters.

    The probability is the geometric mean over the word's tokens, so that long words are not worse than short ones.
    """

    word: str
    probability: float
    start: int
    end: int


@dataclass(frozen=True)
class Alternative:
    """A word, its probability after the prefix (the product over its tokens), and the whole text with it."""

    word: str
    text: str
    probability: float


@dataclass(frozen=True)
class AlternativeRequest:
    """A word with its probability, and the request whose generated text has this word after the forced prefix."""

    word: str
    probability: float
    request: Request

    def answer(self, generated: GeneratedText) -> Alternative:
        """The alternative, from what was generated for its request."""
        return Alternative(self.word, generated.text, self.probability)


def word_confidences(
    tokenizer: Tokenizer, tokens: Sequence[int], log_probabilities: Sequence[float]
) -> list[WordConfidence]:
    """The confidence in each word of the text that these tokens decode to."""
    if len(tokens) != len(log_probabilities):
        raise InputError(
            f"{len(tokens):,} tokens and {len(log_probabilities):,} log-probabilities: give one per token."
        )
    return _confidences(*tokenizer.decode_with_offsets(tokens), log_probabilities)


def text_confidences(
    network: Network, tokenizers: tuple[Tokenizer, Tokenizer], text: str, translation: str
) -> list[WordConfidence]:
    """The confidence in each word of a translation, or of a generated text that begins with its prompt."""
    forced = _ForcedText.read(network, tokenizers, text, translation)
    request = forced.request(forced.ids, max_tokens=0)
    values = forced_log_probabilities(network, [request])[0] if forced.ids else []
    return _confidences(translation, forced.offsets, values)


def _confidences(text: str, offsets: Sequence[Offsets], values: Sequence[float]) -> list[WordConfidence]:
    """The confidence in each word, in order; a word without a token is certain."""
    spans = word_offsets(text)
    totals, counts = [0.0] * len(spans), [0] * len(spans)
    for word, value in zip(word_ids(text, offsets), values):
        if word >= 0:
            totals[word] += value
            counts[word] += 1
    means = (math.exp(total / max(1, count)) for total, count in zip(totals, counts))
    return [WordConfidence(text[start:end], mean, start, end) for (start, end), mean in zip(spans, means)]


def alternatives(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    text: str,
    translation: str,
    at: int | str,
    options: Options,
    *,
    count: int = 5,
) -> list[Alternative]:
    """The most probable words at word `at` of a translation (or of a generated text), each with the text completed.

    `at` is the number of a word, from 0, or the word itself: the first such one. The text before the word is forced,
    the text after it is searched for with the options.
    """
    found = alternative_requests(network, tokenizers, text, translation, at, options, count=count)
    plain = completion_options(options)
    generated = generate_texts(network, tokenizers[1], [one.request for one in found], plain) if found else []
    return [one.answer(texts[0]) for one, texts in zip(found, generated)]


def completion_options(options: Options) -> Options:
    """The options to complete a text with: the best one, without sampling."""
    return replace(options, temperature=0.0, n_best=1)


@torch.inference_mode()
def alternative_requests(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    text: str,
    translation: str,
    at: int | str,
    options: Options,
    *,
    count: int = 5,
) -> list[AlternativeRequest]:
    """The most probable words at word `at`, best first, each with the request to complete the text after it.

    Each of the most probable first tokens is completed greedily until the next word begins. The token that begins the
    next word is forced too, so that the search cannot make the word longer.
    """
    if count < 1:
        raise InputError(f"count must be 1 or more, got {count}.")
    at = _word_number(translation, at)
    forced = _ForcedText.read(network, tokenizers, text, translation)
    found: dict[str, AlternativeRequest] = {}
    for candidate in _complete_words(forced, forced.prefix(translation, at), options, count):
        known = found.get(candidate.word)
        if candidate.word and (known is None or known.probability < candidate.probability):
            request = forced.completion(candidate.ids, options)
            found[candidate.word] = AlternativeRequest(candidate.word, candidate.probability, request)
    return sorted(found.values(), key=lambda one: -one.probability)[:count]


def _word_number(text: str, at: int | str) -> int:
    """The number of a word, given as one or as the word itself, with or without the punctuation around it."""
    words = [text[start:end] for start, end in word_offsets(text)]
    if isinstance(at, int):
        if not 0 <= at < len(words):
            raise InputError(f"the text has {len(words):,} words, counted from 0; there is no word {at} (at).")
        return at
    for equal in (str.__eq__, contains):
        if at and (found := next((number for number, word in enumerate(words) if equal(word, at)), None)) is not None:
            return found
    raise InputError(f'there is no word "{at}" in "{text}" (at). Give one of its words, or its number from 0.')


@dataclass(frozen=True)
class _ForcedText:
    """A given target as tokens with offsets, and what stands before them: special tokens, and the source."""

    network: Network
    tokenizer: Tokenizer
    special: tuple[int, ...]
    source: tuple[int, ...] | None
    ids: list[int]
    offsets: list[Offsets]

    @classmethod
    def read(
        cls, network: Network, tokenizers: tuple[Tokenizer, Tokenizer], text: str, translation: str
    ) -> _ForcedText:
        """Encode a source and its translation, or a generated text, which begins with its prompt."""
        first, tokenizer = tokenizers
        source: tuple[int, ...] | None = None
        if network.shape == "decoder":
            if not translation.startswith(text):
                raise InputError("the generated text does not begin with its prompt (text). Give both as generated.")
            special = text_template(network, tokenizer).prefix or (tokenizer.bos,)
        else:
            source, special = add_special_tokens(network, first, first.encode(text)), (tokenizer.bos,)
            check_length(network, len(source), "the text")
        encoded = tokenizer.encode_with_offsets(translation)
        check_length(network, len(special) + len(encoded.ids), "the translation" if source else "the generated text")
        return cls(network, tokenizer, special, source, encoded.ids, encoded.offsets)

    def request(self, ids: Sequence[int], max_tokens: int) -> Request:
        """A request whose prompt is these tokens."""
        return Request((*self.special, *ids), self.source, max_tokens, 0, len(self.special))

    def prefix(self, translation: str, at: int) -> list[int]:
        """The tokens before word `at`; where a token reaches into it, the text before the word is encoded anew."""
        words = word_ids(translation, self.offsets)
        start = next((index for index, word in enumerate(words) if word >= at), len(words))
        if start < len(words) and words[start] == at:
            return self.ids[:start]
        return self.tokenizer.encode(translation[: word_offsets(translation)[at][0]])

    def completion(self, ids: Sequence[int], options: Options) -> Request:
        """The request to continue these tokens, unless the last of them is an end token.

        A language model writes as many tokens as the given text had left.
        """
        tokens = ids[:-1] if self.ends(ids[-1], options) else ids
        if self.source is not None:
            request = translation_request(self.network, self.tokenizer, self.source, options, prefix=tokens)
        else:
            left = max(0, len(self.ids) - len(tokens)) if options.max_tokens is None else options.max_tokens
            used = len(self.special) + len(tokens)
            request = self.request(tokens, clamp_max_tokens(self.network, left, used))
        return request if len(tokens) == len(ids) else replace(request, max_tokens=0)

    def ends(self, token: int, options: Options) -> bool:
        """Whether a token ends a text."""
        return (self.tokenizer.has_eos and token == self.tokenizer.eos) or token in options.extra_eos


class _Candidate:
    """A word after a prefix, token by token, until the next word begins."""

    def __init__(self, forced: _ForcedText, prefix: list[int], token: int, log_probability: float) -> None:
        self.forced, self.before = forced, _spans(forced.tokenizer, prefix)[1]
        self.ids, self.total = [*prefix, token], log_probability
        self.word, self.complete = "", False
        # It neither makes the word before it longer, nor begins two words.
        self.possible = self._read()

    @property
    def probability(self) -> float:
        return math.exp(self.total)

    def append(self, token: int, log_probability: float, options: Options) -> None:
        """The next token: part of the word, or else kept as what follows it."""
        self.ids.append(token)
        self.complete = self.forced.ends(token, options) or not self._read()
        self.total += 0.0 if self.complete else log_probability

    def _read(self) -> bool:
        """Whether the tokens are the prefix and at most one word, which is then kept."""
        text, spans = _spans(self.forced.tokenizer, self.ids)
        known = len(self.before)
        if spans[:known] != self.before or len(spans) > known + 1:
            return False
        self.word = text[slice(*spans[known])] if len(spans) > known else ""
        return True


def _complete_words(forced: _ForcedText, prefix: list[int], options: Options, count: int) -> list[_Candidate]:
    """The words that the most probable first tokens begin, completed greedily; one token more follows each word.

    At the model's last position none does. A word that does not end after many tokens is left out.
    """
    reader = _Reader(forced, (*forced.special, *prefix))
    values = reader.next_log_probabilities()[0]
    never = list(options.suppress_tokens)
    ends = [*options.extra_eos, *([forced.tokenizer.eos] if forced.tokenizer.has_eos else [])]
    best, tokens = _suppress(values, [*never, *ends]).topk(min(len(values), _MOST_FIRST_TOKENS))
    firsts = [(token, value) for token, value in zip(tokens.tolist(), best.tolist()) if value > -math.inf]
    tried = (_Candidate(forced, prefix, token, value) for token, value in firsts)
    candidates = list(islice((one for one in tried if one.possible), _TRIED_PER_ALTERNATIVE * count))
    inputs = [candidate.ids[-1] for candidate in candidates]
    room = clamp_max_tokens(forced.network, _TOKENS_PER_WORD, reader.length)
    for _ in range(room):
        if all(candidate.complete for candidate in candidates):
            break
        values = reader.next_log_probabilities(inputs)
        inputs = _suppress(values, never).argmax(dim=-1).tolist()
        for index, (candidate, token) in enumerate(zip(candidates, inputs)):
            if not candidate.complete:
                candidate.append(token, float(values[index, token]), options)
    whole = (one for one in candidates if one.complete or room < _TOKENS_PER_WORD)
    return [candidate for candidate in whole if "\ufffd" not in candidate.word]


def _suppress(values: Tensor, tokens: Sequence[int]) -> Tensor:
    """RN or N with minus infinity for these tokens."""
    return values.index_fill(-1, torch.tensor(tokens, device=values.device, dtype=torch.long), -torch.inf)


def _spans(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, list[Offsets]]:
    """The text of some tokens and the offsets of its words, without the parts of an unfinished character at its end."""
    text = tokenizer.decode(ids).rstrip("\ufffd")
    return text, word_offsets(text)


class _Reader:
    """Reads a prefix once, then one token per row and step; all rows are continuations of the prefix (KV cache)."""

    def __init__(self, forced: _ForcedText, prompt: tuple[int, ...]) -> None:
        self.network = forced.network
        self.device = next(self.network.parameters()).device
        source = encode_sources(self.network, [forced.source])
        self.context = Context(source=source, remember=True)
        self.memory: Memory = None
        self.ids, self.rows = torch.tensor([prompt], device=self.device), 1
        self.length = len(prompt)

    def next_log_probabilities(self, tokens: Sequence[int] = ()) -> Tensor:
        """-> RN: the log-probabilities of the next token, after the prefix, or after one more token per row."""
        if tokens:
            if len(tokens) != self.rows:
                self.memory = select(self.memory, torch.zeros(len(tokens), dtype=torch.long, device=self.device))
                self.rows = len(tokens)
            self.ids = torch.tensor(tokens, device=self.device)[:, None]
            self.context = replace(self.context, start=self.length)
            self.length += 1
        states, self.memory = self.network.decode(self.ids, self.context, self.memory)
        found: Tensor = self.network.readout(states[:, -1]).float().log_softmax(dim=-1)
        return found
