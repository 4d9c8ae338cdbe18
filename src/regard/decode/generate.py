"""Text generation: translation and continuation of prompts, searched in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.constraints import ConstraintCompiler
from regard.decode.diverse import diverse_search
from regard.decode.hypotheses import Hypothesis
from regard.decode.inputs import BATCH_TOKENS, batch_by_length, pad
from regard.decode.options import MOST_BEAMS, Options
from regard.decode.requests import GeneratedText as GeneratedText
from regard.decode.requests import Request as Request
from regard.decode.requests import TokenLogprobs as TokenLogprobs
from regard.decode.requests import cut_at_stop as cut_at_stop
from regard.decode.requests import prompt_requests as prompt_requests
from regard.decode.requests import translation_request as translation_request
from regard.decode.requests import translation_requests as translation_requests
from regard.decode.search import NO_EOS, StepCallback, StoppingCriterion, search
from regard.decode.terms import Constraints
from regard.decode.workers import Workers
from regard.errors import InputError
from regard.layers.contract import Ablation, Context, Source
from regard.models.generator import Generator
from regard.progress import QUIET as QUIET
from regard.progress import Progress as Progress

_BATCH_ROWS = 128  # beams included: with fewer, a search takes longer per row
BEAMS_FOR_TERMS = 5  # of a search for required terms, if it has none
_SEED_STRIDE = 1_000_003  # between the seeds of the samples of one prompt


def translate(
    network: Generator,
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Sequence[str],
    options: Options,
    *,
    prefixes: Sequence[str] | None = None,
    constraints: Sequence[Constraints | None] | None = None,
    compiler: ConstraintCompiler | None = None,
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
    requests = constrained_requests(requests, constraints)
    return generate_texts(network, tokenizers[1], requests, options, progress, compiler=compiler)


def continue_prompts(
    network: Generator, tokenizer: Tokenizer, prompts: Sequence[str], options: Options, *,
    constraints: Sequence[Constraints | None] | None = None, compiler: ConstraintCompiler | None = None,
    progress: Progress = QUIET,
) -> list[list[GeneratedText]]:  # fmt: skip
    """The n-best continuations of each prompt by a language model; their text includes the prompt.

    Constraints are on the continuation alone.
    """
    requests = constrained_requests(prompt_requests(network, tokenizer, prompts, options), constraints)
    return generate_texts(network, tokenizer, requests, options, progress, compiler=compiler)


def constrained_requests(
    requests: list[Request], constraints: Sequence[Constraints | None] | None
) -> list[Request]:  # fmt: skip
    """The requests with the constraints of each."""
    if constraints is None:
        return requests
    if len(constraints) != len(requests):
        raise InputError(f"{len(requests):,} texts and {len(constraints):,} constraints: give one per text.")
    return [replace(request, constraints=one or None) for request, one in zip(requests, constraints)]


def generate_texts(
    network: Generator,
    tokenizer: Tokenizer,
    requests: Sequence[Request],
    options: Options,
    progress: Progress = QUIET,
    *,
    on_step: StepCallback | None = None,
    ablation: Ablation | None = None,
    compiler: ConstraintCompiler | None = None,
) -> list[list[GeneratedText]]:
    """Generate tokens and decode them to texts, without the prompts' special tokens and cut at stop strings."""
    if any(request.constraints for request in requests):
        compiler = compiler or ConstraintCompiler(tokenizer, network.vocabulary)
        if any(request.constraints and request.constraints.requires for request in requests):
            return _with_required_terms(network, tokenizer, requests, options, progress, compiler)
    return _searched(
        network, tokenizer, requests, options, progress, on_step=on_step, ablation=ablation, compiler=compiler
    )


def _searched(
    network: Generator, tokenizer: Tokenizer, requests: Sequence[Request], options: Options, progress: Progress, *,
    on_step: StepCallback | None = None, ablation: Ablation | None = None, compiler: ConstraintCompiler | None = None,
) -> list[list[GeneratedText]]:  # fmt: skip
    """The texts of one search for all requests."""
    samples = [sample_requests(request, options) for request in requests]
    found = generate_tokens(
        network, [one for rows in zip(*samples) for one in rows], options, eos=end_token(tokenizer), progress=progress,
        on_step=on_step, ablation=ablation, stopping_criterion=stopping_criterion(tokenizer, options),
        compiler=compiler,
    )  # fmt: skip
    return [
        met_texts(
            generated_texts(tokenizer, request, [h for row in found[index :: len(requests)] for h in row], options),
            request, compiler, tokenizer,
        )
        for index, request in enumerate(requests)
    ]  # fmt: skip


def _with_required_terms(
    network: Generator, tokenizer: Tokenizer, requests: Sequence[Request], options: Options, progress: Progress,
    compiler: ConstraintCompiler,
) -> list[list[GeneratedText]]:  # fmt: skip
    """The texts of requests of which some have required terms.

    A search that does not know of these terms comes first: what meets them by itself is its own best text. Only the
    others are searched for again, with beams that lack a term.
    """
    wider = beams_for_terms(options)
    free = [one if one.constraints is None else replace(one, constraints=one.constraints.allowed) for one in requests]
    needy = [bool(one.constraints and one.constraints.requires) for one in requests]
    share = len(requests) / (len(requests) + sum(needy))  # of a search in the progress of a request
    found = _searched(network, tokenizer, free, options, lambda count: progress(count * share), compiler=compiler)
    again = [
        index
        for index, request in enumerate(requests)
        if needy[index] and not all(_unmet(text, request, compiler, tokenizer) is None for text in found[index])
    ]
    progress((sum(needy) - len(again)) * share)
    rest = [requests[index] for index in again]
    others = _searched(network, tokenizer, rest, wider, lambda count: progress(count * share), compiler=compiler)
    for index, texts in zip(again, others):
        found[index] = texts
    return found


def beams_for_terms(options: Options) -> Options:
    """The options of a search for required terms: more beams by three fifths, as those that lack a term take some."""
    if options.temperature > 0 or options.beam_groups > 1:
        what = "a temperature above 0 samples" if options.temperature > 0 else "beam_groups shares them otherwise"
        raise InputError(f"a required term takes a beam search, and {what} (must). Leave one of them out.")
    beam = options.beam if options.beam > 1 else BEAMS_FOR_TERMS
    return replace(options, beam=min(beam + -(-beam * 3 // 5), MOST_BEAMS))


def _unmet(
    text: GeneratedText, request: Request, compiler: ConstraintCompiler, tokenizer: Tokenizer
) -> str | None:  # fmt: skip
    """What a text does not meet of the request's constraints."""
    assert request.constraints is not None
    if text.impossible is not None:
        return text.impossible
    prompt = "" if request.source is not None else tokenizer.decode(request.prompt[request.special_tokens :])
    return compiler.unmet(request.constraints, text.text[len(prompt) :])


def met_texts(
    texts: list[GeneratedText], request: Request, compiler: ConstraintCompiler | None, tokenizer: Tokenizer
) -> list[GeneratedText]:
    """The texts that meet the request's constraints; if there is none, an empty one that tells why."""
    if compiler is None or request.constraints is None:
        return texts
    unmet = [_unmet(text, request, compiler, tokenizer) for text in texts]
    met = [text for text, why in zip(texts, unmet) if why is None]
    if met:
        return met
    return [GeneratedText("", 0.0, 0.0, (), False, impossible=compiler.impossible(request, unmet[0] or ""))]


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
    network: Generator,
    requests: Sequence[Request],
    options: Options,
    *,
    eos: int,
    stopping_criterion: StoppingCriterion | None = None,
    progress: Progress = QUIET,
    on_step: StepCallback | None = None,
    ablation: Ablation | None = None,
    compiler: ConstraintCompiler | None = None,
) -> list[list[Hypothesis]]:
    """The n-best hypotheses of each request; `on_step` is called at each step, `ablation` switches heads off."""
    device = next(network.parameters()).device
    if options.beam_groups > 1 and any(request.constraints for request in requests):
        raise InputError("beam_groups does not honour constraints (beam_groups). Leave one of them out.")
    results: list[list[Hypothesis]] = [[] for _ in requests]
    workers = Workers(network, in_order=on_step is not None or ablation is not None)

    def decode(indices: list[int]) -> list[list[Hypothesis]]:
        batch = [requests[index] for index in indices]
        constraint = None if compiler is None else compiler.constraint(batch, device)
        plain_or_diverse = diverse_search if options.beam_groups > 1 else partial(search, constraint=constraint)
        return plain_or_diverse(
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
    network: Generator, sources: Sequence[Sequence[int] | None], ablation: Ablation | None = None
) -> Source | None:
    """Encode a batch of sources of different lengths; None for a model without an encoder."""
    if network.shape == "decoder":
        return None
    ids, padding = pad([source or () for source in sources], next(network.parameters()).device)
    return network.encode_source(ids, context=Context(padding=padding, ablation=ablation))


def _batches(network: Generator, requests: Sequence[Request], options: Options) -> Iterator[list[int]]:
    """Batches for a search: two or more, where each still has enough rows with its beams to be efficient."""
    rows = max(-(-len(requests) // 2), -(-_BATCH_ROWS // options.beam))
    lengths = [request.length for request in requests]
    return batch_by_length(network, lengths, BATCH_TOKENS // options.beam, rows=rows)


def batch_requests(network: Generator, requests: Sequence[Request], tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices of requests, longest first, in batches of at most this many tokens."""
    return batch_by_length(network, [request.length for request in requests], tokens)
