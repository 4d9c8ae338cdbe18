"""Text generation: translation and continuation of prompts, searched in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.hypotheses import Hypothesis
from regard.decode.inputs import BATCH_TOKENS, batch_by_length, pad
from regard.decode.options import Options
from regard.decode.requests import GeneratedText as GeneratedText
from regard.decode.requests import Request as Request
from regard.decode.requests import TokenLogprobs as TokenLogprobs
from regard.decode.requests import cut_at_stop as cut_at_stop
from regard.decode.requests import prompt_requests as prompt_requests
from regard.decode.requests import translation_request as translation_request
from regard.decode.requests import translation_requests as translation_requests
from regard.decode.search import NO_EOS, StepCallback, StoppingCriterion, search
from regard.decode.workers import Workers
from regard.layers.contract import Ablation, Context, Source
from regard.models.model import Network
from regard.progress import QUIET as QUIET
from regard.progress import Progress as Progress

_BATCH_ROWS = 128  # beams included: with fewer, a search takes longer per row
_SEED_STRIDE = 1_000_003  # between the seeds of the samples of one prompt


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


def continue_prompts(
    network: Network, tokenizer: Tokenizer, prompts: Sequence[str], options: Options, *, progress: Progress = QUIET
) -> list[list[GeneratedText]]:
    """The n-best continuations of each prompt by a language model; their text includes the prompt."""
    return generate_texts(network, tokenizer, prompt_requests(network, tokenizer, prompts, options), options, progress)


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
    workers = Workers(network, in_order=on_step is not None or ablation is not None)

    def decode(indices: list[int]) -> list[list[Hypothesis]]:
        batch = [requests[index] for index in indices]
        return search(
            network, [request.prompt for request in batch], options, eos=eos,
            limits=[request.max_tokens for request in batch], seeds=[request.seed for request in batch],
            source=encode_sources(network, [request.source for request in batch], ablation),
            stopping_criterion=stopping_criterion, on_step=on_step or workers.check, ablation=ablation,
        )  # fmt: skip

    with torch.inference_mode():
        for indices, found in workers.run(_batches(network, requests, options), decode):
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


def _batches(network: Network, requests: Sequence[Request], options: Options) -> Iterator[list[int]]:
    """Batches for a search: two or more, where each still has enough rows with its beams to be efficient."""
    rows = max(-(-len(requests) // 2), -(-_BATCH_ROWS // options.beam))
    lengths = [request.length for request in requests]
    return batch_by_length(network, lengths, BATCH_TOKENS // options.beam, rows=rows)


def batch_requests(network: Network, requests: Sequence[Request], tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices of requests, longest first, in batches of at most this many tokens."""
    return batch_by_length(network, [request.length for request in requests], tokens)
