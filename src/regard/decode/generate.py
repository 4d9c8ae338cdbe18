"""Text generation: translation and continuation of prompts, searched in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.inputs import BATCH_TOKENS, batch_by_length, check_length, clamp_max_tokens, pad, prompt_ids
from regard.decode.options import Options
from regard.decode.search import Hypothesis, StepCallback, search
from regard.errors import InputError
from regard.layers.contract import Ablation, Context, Source
from regard.models.model import Network

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
class GeneratedText:
    """A generated text, with the score and the tokens of its hypothesis."""

    text: str
    score: float
    log_probability: float
    tokens: tuple[int, ...]
    ended: bool  # by an end token or a stop string, not by the length limit
    alignment: tuple[tuple[int, int], ...] | None = None  # (source word, target word), when requested


Progress = Callable[[float], None]
"""Called with the number of texts done since the last call."""

QUIET: Progress = lambda done: None  # noqa: E731


def translate(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str],
    options: Options,
    *,
    prefixes: Sequence[str] | None = None,
    progress: Progress = QUIET,
    first_line: int = 1,
) -> list[list[GeneratedText]]:
    """The n-best translations of each text, each starting with its target prefix, if there is one.

    `first_line` is the line number of the first text, for error messages.
    """
    source, target = tokenizers
    prefixes = [""] * len(texts) if prefixes is None else prefixes
    if len(prefixes) != len(texts):
        raise InputError(f"{len(texts):,} texts and {len(prefixes):,} prefixes: give one prefix per text.")
    requests = []
    for index, (ids, prefix) in enumerate(zip(source.encode_batch(texts), target.encode_batch(prefixes))):
        source_ids = (*ids, source.eos)
        check_length(network, len(source_ids), f"line {first_line + index:,}")
        request = translation_request(network, target, source_ids, options, prefix=prefix)
        requests.append(replace(request, seed=options.seed + index))
    return generate_texts(network, target, requests, options, progress)


def translation_request(
    network: Network, target: Tokenizer, source_ids: tuple[int, ...], options: Options, *, prefix: Sequence[int] = ()
) -> Request:
    """The request to translate a source, EOS included."""
    max_tokens = options.max_tokens if options.max_tokens is not None else 2 * len(source_ids) + 50
    # An empty source has an empty translation.
    max_tokens = clamp_max_tokens(network, max_tokens, len(prefix) + 1) if len(source_ids) > 1 else 0
    return Request((target.bos, *prefix), source_ids, max_tokens, options.seed)


def continue_prompts(
    network: Network, tokenizer: Tokenizer, prompts: Sequence[str], options: Options, *, progress: Progress = QUIET
) -> list[list[GeneratedText]]:
    """The n-best continuations of each prompt by a language model; their text includes the prompt."""
    return generate_texts(network, tokenizer, prompt_requests(network, tokenizer, prompts, options), options, progress)


def prompt_requests(network: Network, tokenizer: Tokenizer, prompts: Sequence[str], options: Options) -> list[Request]:
    """The requests to continue these prompts."""
    requests = []
    for index, ids in enumerate(tokenizer.encode_batch(prompts)):
        prompt = prompt_ids(tokenizer, ids)
        check_length(network, len(prompt), f"prompt {index + 1:,}")
        max_tokens = clamp_max_tokens(network, 200 if options.max_tokens is None else options.max_tokens, len(prompt))
        requests.append(Request(prompt, None, max_tokens, options.seed + index, len(prompt) - len(ids)))
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

    def holds_stop_string(tokens: list[int]) -> bool:
        text = tokenizer.decode(tokens)
        return any(stop in text for stop in options.stop)

    # One search finds the n best; n samples are drawn one by one, each with its own seed.
    samples = options.n_best if options.temperature > 0 else 1
    strides = range(0, samples * _SEED_STRIDE, _SEED_STRIDE)
    repeated = [replace(request, seed=request.seed + stride) for stride in strides for request in requests]
    found = generate_tokens(
        network, repeated, options, eos=tokenizer.eos, progress=progress, on_step=on_step, ablation=ablation,
        stopping_criterion=holds_stop_string if options.stop else None,
    )  # fmt: skip
    generated = []
    for index, request in enumerate(requests):
        hypotheses = [hypothesis for row in found[index :: len(requests)] for hypothesis in row]
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        prompt = request.prompt[request.special_tokens :]
        start = len(tokenizer.decode(prompt))
        texts = [cut_at_stop(tokenizer.decode([*prompt, *h.tokens]), start, options.stop) for h in hypotheses]
        rows = zip(texts, hypotheses)
        generated.append([GeneratedText(text, h.score, h.log_probability, h.tokens, h.ended) for text, h in rows])
    return generated


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
    stopping_criterion: Callable[[list[int]], bool] | None = None,
    progress: Progress = QUIET,
    on_step: StepCallback | None = None,
    ablation: Ablation | None = None,
) -> list[list[Hypothesis]]:
    """The n-best hypotheses of each request; `on_step` is called at each step, `ablation` switches heads off."""
    results: list[list[Hypothesis]] = [[] for _ in requests]
    with torch.inference_mode():
        for indices in batch_requests(requests, BATCH_TOKENS // options.beam):
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


def batch_requests(requests: Sequence[Request], tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices of requests, longest first, in batches of at most this many tokens."""
    return batch_by_length([request.length for request in requests], tokens)
