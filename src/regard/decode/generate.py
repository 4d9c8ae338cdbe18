"""Text generation: translation and continuation of prompts, searched in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.hypotheses import Hypothesis
from regard.decode.inputs import (
    BATCH_TOKENS,
    add_special_tokens,
    batch_by_length,
    check_length,
    clamp_max_tokens,
    pad,
    text_template,
)
from regard.decode.options import Options
from regard.decode.search import NO_EOS, StepCallback, StoppingCriterion, search
from regard.errors import InputError
from regard.layers.contract import Ablation, Context, Source
from regard.models.model import Network
from regard.progress import QUIET as QUIET
from regard.progress import Progress as Progress

_SEED_STRIDE = 1_000_003  # between the seeds of the samples of one prompt


@dataclass(frozen=True)
class Request:
    """A request to generate: the prompt, the source if there is one, the token limit, the seed for sampling."""

    prompt: tuple[int, ...]
    source: tuple[int, ...] | None
    max_tokens: int
    seed: int = 0
    special_tokens: int = 1  # at the start of the prompt, before its text (BOS)

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


def translate(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str],
    options: Options,
    *,
    prefixes: Sequence[str] | None = None,
    progress: Progress = QUIET,
    first_line: int = 1,
    trained_length: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[list[GeneratedText]]:
    """The n-best translations of each text, each starting with its target prefix, if there is one.

    `first_line` is the line number of the first text, for messages. A text above `trained_length` tokens gets a `note`,
    and a translation as long as one of a text that long may have.
    """
    requests = translation_requests(
        network, tokenizers, texts, options, prefixes=prefixes, first_line=first_line, trained_length=trained_length,
        note=note,
    )  # fmt: skip
    return generate_texts(network, tokenizers[1], requests, options, progress)


def translation_requests(
    network: Network,
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
        source_ids = add_special_tokens(network, source, ids)
        check_length(network, len(source_ids), f"line {first_line + index:,}")
        request = translation_request(network, target, source_ids, options, prefix=prefix)
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
    network: Network, target: Tokenizer, source_ids: tuple[int, ...], options: Options, *, prefix: Sequence[int] = ()
) -> Request:
    """The request to translate a source, special tokens included."""
    max_tokens = options.max_tokens if options.max_tokens is not None else _most_tokens(len(source_ids))
    max_tokens = clamp_max_tokens(network, max_tokens, len(prefix) + 1)
    return Request((target.bos, *prefix), source_ids, max_tokens, options.seed)


def _most_tokens(source: int) -> int:
    """The maximum length of the translation of a source of so many tokens."""
    return 2 * source + 50


def continue_prompts(
    network: Network, tokenizer: Tokenizer, prompts: Sequence[str], options: Options, *, progress: Progress = QUIET
) -> list[list[GeneratedText]]:
    """The n-best continuations of each prompt by a language model; their text includes the prompt."""
    return generate_texts(network, tokenizer, prompt_requests(network, tokenizer, prompts, options), options, progress)


def prompt_requests(
    network: Network, tokenizer: Tokenizer, prompts: Sequence[str | Sequence[int]], options: Options
) -> list[Request]:
    """The requests to continue these prompts, which are texts or token ids; special tokens are added to both."""
    requests, start = [], len(text_template(network, tokenizer).prefix)
    encoded = iter(tokenizer.encode_batch([prompt for prompt in prompts if isinstance(prompt, str)]))
    for index, given in enumerate(prompts):
        prompt = add_special_tokens(network, tokenizer, next(encoded) if isinstance(given, str) else given)
        check_length(network, len(prompt), f"prompt {index + 1:,}")
        max_tokens = clamp_max_tokens(network, 200 if options.max_tokens is None else options.max_tokens, len(prompt))
        requests.append(Request(prompt, None, max_tokens, options.seed + index, start))
    return requests


def generate_texts(
    network: Network,
    tokenizer: Tokenizer,
    requests: Sequence[Request],
    options: Options,
    progress: Progress = QUIET,
    *,
    on_step: StepCallback | None = None,
    ablation: Ablation | None = None,
) -> list[list[GeneratedText]]:
    """Generate tokens and decode them to texts, without the prompts' special tokens and cut at stop strings."""
    samples = [sample_requests(request, options) for request in requests]
    found = generate_tokens(
        network, [one for rows in zip(*samples) for one in rows], options, eos=end_token(tokenizer), progress=progress,
        on_step=on_step, ablation=ablation, stopping_criterion=stopping_criterion(tokenizer, options),
    )  # fmt: skip
    return [
        generated_texts(tokenizer, request, [h for row in found[index :: len(requests)] for h in row], options)
        for index, request in enumerate(requests)
    ]


def end_token(tokenizer: Tokenizer) -> int:
    """The end token of a tokenizer, or `NO_EOS`."""
    return tokenizer.eos if tokenizer.has_eos else NO_EOS


def stopping_criterion(tokenizer: Tokenizer, options: Options) -> StoppingCriterion | None:
    """Whether tokens hold one of the options' stop strings; None if there are none."""

    def holds_stop_string(tokens: list[int]) -> bool:
        text = tokenizer.decode(tokens)
        return any(stop in text for stop in options.stop)

    return holds_stop_string if options.stop else None


def sample_requests(request: Request, options: Options) -> list[Request]:
    """The searches that a request takes: one finds the n best; n samples are drawn one by one, each with its seed."""
    samples = options.n_best if options.temperature > 0 else 1
    return [replace(request, seed=request.seed + number * _SEED_STRIDE) for number in range(samples)]


def generated_texts(
    tokenizer: Tokenizer, request: Request, hypotheses: Sequence[Hypothesis], options: Options
) -> list[GeneratedText]:
    """The hypotheses of a request as texts, best first, without the prompt's special tokens and cut at stop strings."""
    prompt = request.prompt[request.special_tokens :]
    start = len(tokenizer.decode(prompt))
    best_first = sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
    texts = [cut_at_stop(tokenizer.decode([*prompt, *h.tokens]), start, options.stop) for h in best_first]
    return [GeneratedText(text, h.score, h.log_probability, h.tokens, h.ended) for text, h in zip(texts, best_first)]


def cut_at_stop(text: str, start: int, stops: tuple[str, ...]) -> str:
    """The text up to the first stop string from `start` on, where the prompt ends."""
    ends = [end for stop in stops if (end := text.find(stop, start)) >= 0]
    return text[: min(ends)] if ends else text


def generate_tokens(
    network: Network,
    requests: Sequence[Request],
    options: Options,
    *,
    eos: int,
    stopping_criterion: StoppingCriterion | None = None,
    progress: Progress = QUIET,
    on_step: StepCallback | None = None,
    ablation: Ablation | None = None,
) -> list[list[Hypothesis]]:
    """The n-best hypotheses of each request; `on_step` is called at each step, `ablation` switches heads off."""
    results: list[list[Hypothesis]] = [[] for _ in requests]
    with torch.inference_mode():
        for indices in batch_requests(network, requests, BATCH_TOKENS // options.beam):
            batch = [requests[index] for index in indices]
            found = search(
                network, [request.prompt for request in batch], options, eos=eos,
                limits=[request.max_tokens for request in batch], seeds=[request.seed for request in batch],
                source=encode_sources(network, [request.source for request in batch], ablation),
                stopping_criterion=stopping_criterion, on_step=on_step, ablation=ablation,
            )  # fmt: skip
            for index, hypotheses in zip(indices, found):
                results[index] = hypotheses
            progress(len(indices))
    return results


def encode_sources(
    network: Network, sources: Sequence[Sequence[int] | None], ablation: Ablation | None = None
) -> Source | None:
    """Encode a batch of sources of different lengths; None for a model without an encoder."""
    if network.shape == "decoder":
        return None
    ids, padding = pad([source or () for source in sources], next(network.parameters()).device)
    return network.encode_source(ids, context=Context(padding=padding, ablation=ablation))


def batch_requests(network: Network, requests: Sequence[Request], tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices of requests, longest first, in batches of at most this many tokens."""
    return batch_by_length(network, [request.length for request in requests], tokens)
