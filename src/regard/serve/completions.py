"""Completions: a request is checked and planned; what the worker decodes is written as choices with logprobs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from regard.decode.generate import (
    GeneratedText,
    Request,
    prompt_requests,
    sample_requests,
    translation_request,
    translation_requests,
)
from regard.decode.inputs import add_special_tokens, text_template
from regard.decode.options import Options
from regard.errors import InputError
from regard.serve.refusal import Refusal, require_count, require_range
from regard.serve.schemas import CompletionRequest
from regard.serve.settings import Settings
from regard.store.loading import TRAINED_LENGTH

if TYPE_CHECKING:
    from regard.data.tokenize.tokenizer import Tokenizer
    from regard.decode.generate import TokenLogprobs
    from regard.serve.models import ServedModel

_MAX_TOKENS = 16  # OpenAI's default
_LEAST = -9999.0  # stands for minus infinity, which JSON cannot write
_BIAS = 100.0
_CONTEXT = 8  # tokens before a token that decide what it adds to a text: more than a character has bytes
_NOT_FILLING = ("best_of", "stream", "logprobs", "echo", "stop", "presence_penalty", "frequency_penalty",
                "logit_bias", "top_p", "top_k", "min_p", "beam")  # fmt: skip

TopTokens = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Piece:
    """A token in a choice's text: what it adds, where, its log-probability and those of the best few instead."""

    text: str
    offset: int
    logprob: float | None
    top: dict[str, float] | None


@dataclass(frozen=True)
class Prompt:
    """A prompt: its text, its token ids without special tokens, and how many special tokens stand before them."""

    text: str
    ids: tuple[int, ...]
    start: int
    offsets: tuple[tuple[int, int], ...] = ()  # of the ids in the text


@dataclass(frozen=True)
class Plan:
    """A checked request: `rows` per prompt are decoded, of which each gives one text or the best few of a beam."""

    served: ServedModel
    prompts: list[Prompt]
    requests: list[Request]
    options: Options
    rows: int
    choices: int  # per prompt
    best_of: int
    echo: bool
    top: int | None  # logprobs
    generates: bool

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of what is generated."""
        return self.served.model.target_tokenizer

    @property
    def streams(self) -> bool:
        """Whether tokens are known as they come; a beam search knows them at its end."""
        return self.options.beam == 1

    @property
    def tokens(self) -> int:
        """The tokens that are read."""
        return sum(len(prompt.ids) for prompt in self.prompts)


def make_plan(served: ServedModel, asked: CompletionRequest, settings: Settings) -> Plan:
    """Check a request and encode its prompts; not for the event loop."""
    translates = served.can("translate")
    if not translates:
        served.require("generate", "complete text")
    n = asked.n or 1
    best_of = asked.best_of or n
    _check_limits(asked, n, best_of, settings)
    prompts = _prompts(served, asked.prompt, settings, translates)
    require_range("texts x choices", len(prompts) * best_of, 1, settings.max_rows)
    options = _options(served, asked, settings, translates, best_of)
    samples = options.temperature > 0
    rows = best_of if samples else 1
    if translates:
        if asked.echo:
            raise Refusal(400, "echo is for language models; /v1/score scores a target", param="echo")
        requests = _translation_requests(served, asked.prompt, prompts, options)
    else:
        _check_context(served, prompts, options)
        given = [prompt.ids for prompt in prompts]
        requests = prompt_requests(served.model.network, served.model.tokenizer, given, options)
    repeated = [
        row for one in requests for row in sample_requests(one, replace(options, n_best=rows if samples else 1))
    ]
    return Plan(
        served, prompts, repeated, options, rows=rows, choices=n, best_of=best_of, echo=bool(asked.echo),
        top=asked.logprobs, generates=asked.max_tokens != 0,
    )  # fmt: skip


def _check_limits(asked: CompletionRequest, n: int, best_of: int, settings: Settings) -> None:
    require_range("n", n, 1, settings.max_choices)
    require_range("best_of", best_of, 1, settings.max_choices)
    require_range("beam", asked.beam, 1, settings.max_choices)
    require_range("max_tokens", asked.max_tokens, 0, settings.max_tokens)
    require_range("logprobs", asked.logprobs, 0, settings.max_logprobs)
    if best_of < n:
        raise Refusal(400, f"best_of must be at least n, got best_of {best_of} and n {n}", param="best_of")
    if asked.stream and best_of > n:
        raise Refusal(400, "best_of is known only at the end; leave it or stream out", param="best_of")
    if asked.stream_options is not None and not asked.stream:
        raise Refusal(400, "stream_options is for a stream; set stream", param="stream_options")
    if asked.beam is not None and asked.temperature:
        raise Refusal(400, "beam is for a search; set temperature to 0 or leave beam out", param="beam")


def _prompts(served: ServedModel, given: Any, settings: Settings, translates: bool) -> list[Prompt]:
    """The prompts of a request, encoded."""
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    if given == []:
        raise Refusal(400, "prompt is an empty list; give at least one text", param="prompt")
    require_count("prompt", len(several), settings.max_items, "texts")
    model = served.model
    tokenizer = model.tokenizer
    start = len(text_template(model.network, tokenizer).prefix)
    known = (model.network.source_vocabulary if translates else None) or model.network.vocabulary
    found = []
    for one in several:
        if isinstance(one, str):
            require_text("prompt", one, settings)
            encoded = tokenizer.encode_with_offsets(one)
            found.append(Prompt(one, tuple(encoded.ids), start, tuple(encoded.offsets)))
            continue
        require_count("prompt", len(one), settings.max_characters, "tokens")
        if not all(0 <= token < known for token in one):
            raise Refusal(400, f"prompt holds a token id outside of 0 to {known - 1:,}", param="prompt")
        text, offsets = tokenizer.decode_with_offsets(one)
        found.append(Prompt(text, tuple(one), start, tuple(offsets)))
    return found


def require_text(name: str, text: str, settings: Settings) -> None:
    """Refuse a text that is too long."""
    if len(text) > settings.max_characters:
        message = f"{name} has {len(text):,} characters, limit {settings.max_characters:,}"
        raise Refusal(400, message, param=name, code="text_too_long")


def _options(
    served: ServedModel, asked: CompletionRequest, settings: Settings, translates: bool, best_of: int
) -> Options:
    """The decoding options of a request."""
    own = served.model.defaults()
    temperature = asked.temperature
    if temperature is None:
        temperature = 0.0 if translates or asked.beam is not None else 1.0
    if temperature == 0:
        for name in ("top_p", "top_k", "min_p"):
            if getattr(asked, name) is not None and not (name == "top_p" and asked.top_p == 1):
                raise Refusal(400, f"{name} is for sampling; set temperature above 0 or leave it out", param=name)
    base = own if translates else Options(length_penalty=1.0, normalization="length").with_tokens_of(own)
    beam = asked.beam or (own.beam if translates else 1)
    searches = temperature == 0 and (beam > 1 or translates)
    max_tokens = asked.max_tokens if translates or asked.max_tokens is not None else _MAX_TOKENS
    if max_tokens is None:
        max_tokens = own.max_tokens
    return replace(
        base, temperature=temperature, max_tokens=max_tokens, beam=max(beam, best_of) if searches else 1,
        n_best=best_of if searches else 1, top_p=1.0 if asked.top_p is None else asked.top_p, top_k=asked.top_k or 0,
        min_p=asked.min_p or 0.0, seed=secrets.randbits(32) if asked.seed is None else asked.seed,
        stop=_stops(asked, settings), presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0, logit_bias=_logit_bias(served, asked, settings),
    )  # fmt: skip


def _stops(asked: CompletionRequest, settings: Settings) -> tuple[str, ...]:
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    require_count("stop", len(stops), settings.max_stops, "texts")
    for stop in stops:
        if not 0 < len(stop) <= settings.max_stop_characters:
            message = f"a stop text must have 1 to {settings.max_stop_characters} characters, got {len(stop):,}"
            raise Refusal(400, message, param="stop")
    return tuple(stops)


def _logit_bias(
    served: ServedModel, asked: CompletionRequest, settings: Settings
) -> tuple[tuple[int, float], ...]:  # fmt: skip
    given, known = asked.logit_bias or {}, served.model.network.vocabulary
    require_count("logit_bias", len(given), settings.max_bias, "tokens")
    for token, bias in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 12 and int(token) < known):
            raise Refusal(400, f"logit_bias names a token id outside of 0 to {known - 1:,}", param="logit_bias")
        require_range("logit_bias", bias, -_BIAS, _BIAS)
    return tuple(sorted((int(token), float(bias)) for token, bias in given.items()))


def _check_context(served: ServedModel, prompts: Sequence[Prompt], options: Options) -> None:
    """Refuse a prompt that leaves no room for its completion."""
    most, new = served.model.network.max_positions, options.max_tokens or 0
    for prompt in prompts:
        count = max(1, prompt.start + len(prompt.ids))
        if most is not None and count + new > most:
            message = f"prompt {count:,} + max_tokens {new:,} = {count + new:,} tokens, limit {most:,}"
            raise Refusal(400, message, param="max_tokens", code="context_length_exceeded")


def _translation_requests(
    served: ServedModel, given: Any, prompts: Sequence[Prompt], options: Options
) -> list[Request]:  # fmt: skip
    """The requests to translate prompts that are sources; token ids are taken as they are."""
    model, network = served.model, served.model.network
    for prompt in prompts:
        count = len(add_special_tokens(network, model.tokenizer, prompt.ids))
        if network.max_positions is not None and count > network.max_positions:
            message = f"prompt has {count:,} tokens, limit {network.max_positions:,}"
            raise Refusal(400, message, param="prompt", code="context_length_exceeded")
    if isinstance(given, str) or isinstance(given[0], str):
        texts = [prompt.text for prompt in prompts]
        length: int | None = model.config.get(TRAINED_LENGTH)
        return translation_requests(network, model.tokenizers, texts, options, trained_length=length)
    found = []
    for index, prompt in enumerate(prompts):
        source = add_special_tokens(network, model.tokenizer, prompt.ids)
        request = translation_request(network, model.target_tokenizer, source, options)
        found.append(replace(request, seed=options.seed + index))
    return found


def chosen_texts(plan: Plan, found: Sequence[list[GeneratedText]]) -> list[list[GeneratedText]]:
    """The choices of each prompt; a search that finds fewer repeats its best, as sampling at temperature 0 would."""
    choices = []
    for index in range(len(plan.prompts)):
        texts = [text for row in found[index * plan.rows : (index + 1) * plan.rows] for text in row]
        if plan.best_of > plan.choices and plan.rows > 1:
            texts.sort(key=lambda text: -text.log_probability / max(1, len(text.tokens)))
        texts = texts[: plan.choices]
        choices.append(texts + texts[:1] * (plan.choices - len(texts)))
    return choices


def completion_text(plan: Plan, prompt: Prompt, text: str) -> str:
    """A generated text without its prompt; that of a translator has none."""
    return text if plan.served.can("translate") else text[len(plan.tokenizer.decode(prompt.ids)) :]


def generated_pieces(
    plan: Plan, prompt: Prompt, logprobs: TokenLogprobs, *, end: int, offset: int = 0, known: Sequence[Piece] = ()
) -> list[Piece]:  # fmt: skip
    """The generated tokens of a choice, up to the end of its text, without those that are known already.

    Only the last of the known tokens are read again, so that a stream does not read its whole text for each token.
    """
    tokenizer, before = plan.tokenizer, () if plan.served.can("translate") else prompt.ids
    ids = [*before, *logprobs.tokens]
    first_new = len(before) + len(known)
    first_read = max(0, first_new - _CONTEXT) if known else 0
    text, offsets = tokenizer.decode_with_offsets(ids[first_read:])
    at = max((piece.offset - offset + len(piece.text) for piece in known[-_CONTEXT:]), default=0)
    read = offsets[: first_new - first_read]
    shift = at - max(last for _, last in read) if known else -len(tokenizer.decode(before))
    found, previous = [], (-1, -1)
    tops: Sequence[TopTokens] = logprobs.top or [()] * len(logprobs.tokens)
    for index in range(len(known), len(logprobs.tokens)):
        first, last = offsets[len(before) + index - first_read]
        if first + shift >= end and last > first:
            break
        piece = "" if (first, last) == previous else text[first:last]
        previous = first, last
        token, value, context = logprobs.tokens[index], logprobs.log_probabilities[index], len(before) + index - 1
        before_it = ids[context] if context >= 0 else None
        named = _top_names(tokenizer, before_it, token, piece, value, tops[index]) if plan.top else None
        start = max(0, first + shift) if last > first else at  # a special token has no offsets
        at = max(at, start + len(piece))
        found.append(Piece(piece, offset + start, _finite(value), named))
    return found


def prompt_pieces(plan: Plan, prompt: Prompt, scored: TokenLogprobs) -> list[Piece]:
    """The tokens of a prompt that is echoed; the first has no log-probability if nothing stands before it."""
    values: list[tuple[float | None, TopTokens]] = [*zip(scored.log_probabilities, scored.top)]
    values = [(None, ())] * (len(prompt.ids) - len(values)) + values
    found, previous = [], (-1, -1)
    for index, (token, (first, last), (value, top)) in enumerate(zip(prompt.ids, prompt.offsets, values)):
        piece = "" if (first, last) == previous else prompt.text[first:last]
        previous = first, last
        context = prompt.ids[index - 1] if index else None
        named = None
        if plan.top and value is not None:
            named = _top_names(plan.tokenizer, context, token, piece, value, top)
        found.append(Piece(piece, first, None if value is None else _finite(value), named))
    return found


def _top_names(
    tokenizer: Tokenizer, context: int | None, token: int, piece: str, value: float, top: TopTokens
) -> dict[str, float]:
    """The best few tokens by what they would add, and the token itself."""
    found = {(_added(tokenizer, context, other) if other != token else piece): _finite(number) for other, number in top}
    found.setdefault(piece, _finite(value))
    return found


def _added(tokenizer: Tokenizer, context: int | None, token: int) -> str:
    """What a token adds to a text after the token before it."""
    before = [] if context is None else [context]
    known, grown = tokenizer.decode(before), tokenizer.decode([*before, token])
    added = grown[len(known) :] if grown.startswith(known) else tokenizer.decode([token])
    return added if added and "\ufffd" not in added else tokenizer.token_texts([token])[0]


def _finite(value: float) -> float:
    return max(float(value), _LEAST)


def logprobs_of(plan: Plan, pieces: Sequence[Piece]) -> dict[str, Any] | None:
    """Pieces in OpenAI's shape; None if no log-probabilities were asked."""
    if plan.top is None:
        return None
    return {
        "tokens": [piece.text for piece in pieces],
        "token_logprobs": [piece.logprob for piece in pieces],
        "top_logprobs": [piece.top for piece in pieces] if plan.top else None,
        "text_offset": [piece.offset for piece in pieces],
    }


def check_filling(served: ServedModel, asked: CompletionRequest, settings: Settings) -> str:
    """The text around the gap that a suffix leaves, with a mask in the gap."""
    served.require("fill", "fill gaps; leave suffix out")
    if not isinstance(asked.prompt, str):
        raise Refusal(400, "prompt must be one text if there is a suffix", param="prompt")
    for name in _NOT_FILLING:
        if getattr(asked, name) not in (None, False):
            raise Refusal(400, f"{name} is not supported with suffix; leave it out", param=name)
    if asked.temperature:
        raise Refusal(400, "temperature must be 0 with suffix, which searches", param="temperature")
    require_range("n", asked.n, 1, settings.max_choices)
    require_range("max_tokens", asked.max_tokens, 1, settings.max_tokens)
    suffix = asked.suffix or ""
    require_text("prompt", asked.prompt + suffix, settings)
    tokenizer = served.model.tokenizer
    sentinels = served.model.shape != "encoder"
    masks = tokenizer.token_texts(tokenizer.sentinels if sentinels else [tokenizer.mask])
    if any(mask in asked.prompt + suffix for mask in (*masks, "[MASK]", "<mask>")):
        raise InputError("prompt and suffix must hold no mask; /v1/fill fills masks.")
    return f"{asked.prompt}{masks[0]}{suffix}"
