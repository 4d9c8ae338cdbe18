"""Streaming: the text of greedy search or sampling, piece by piece, as soon as later tokens cannot change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from regard import messages
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.constraints import ConstraintCompiler
from regard.decode.generate import encode_sources, end_token, generated_texts, met_texts, stopping_criterion
from regard.decode.options import Options
from regard.decode.requests import Request
from regard.decode.search import Search
from regard.errors import InputError
from regard.models.generator import Generator


def stream_text(
    network: Generator, tokenizer: Tokenizer, request: Request, options: Options, compiler: ConstraintCompiler
) -> Iterator[str]:
    """The pieces of the text that `generate_texts` would return, without the prompt of a language model."""
    if (options.beam > 1 and options.temperature == 0) or options.n_best > 1:
        raise InputError("a stream is one text, token by token, and beams know theirs only at the end (stream). "
                         "Set beam and n_best to 1.")  # fmt: skip
    if request.constraints is not None and request.constraints.requires:
        raise InputError("a required term takes a beam search, which is not streamed (must). Leave one of them out.")
    return _pieces(network, tokenizer, request, options, compiler)


def _pieces(
    network: Generator, tokenizer: Tokenizer, request: Request, options: Options, compiler: ConstraintCompiler
) -> Iterator[str]:
    prompt = request.prompt[request.special_tokens :]
    sent = 0 if request.source is not None else len(tokenizer.decode(prompt))
    with torch.inference_mode():
        search = Search(
            network, [request.prompt], options, eos=end_token(tokenizer), limits=[request.max_tokens],
            source=encode_sources(network, [request.source]), seeds=[request.seed],
            stopping_criteria=[stopping_criterion(tokenizer, options)],
            constraint=compiler.constraint([request], next(network.parameters()).device),
        )  # fmt: skip
    while len(search.active):
        with torch.inference_mode():
            search.step()
        if len(search.active):
            text = tokenizer.decode([*prompt, *search.tokens[0, 0].tolist()])
            certain = certain_text(text[sent:], options.stop)
            if certain:
                sent += len(certain)
                yield certain
    texts = generated_texts(tokenizer, request, search.results[0], options)
    (whole, *_) = met_texts(texts, request, compiler, tokenizer)
    if whole.impossible is not None:
        raise messages.IMPOSSIBLE(what="the text", why=whole.impossible)
    if len(whole.text) > sent:
        yield whole.text[sent:]


def certain_text(text: str, stops: Sequence[str]) -> str:
    """A text without its end, as far as the next tokens may change it: half a character, or the start of a stop."""
    for stop in stops:
        if (end := text.find(stop)) >= 0:
            text = text[:end]
    text = text.rstrip("\ufffd")
    held = 0
    for stop in stops:
        sizes = range(min(len(stop) - 1, len(text)), 0, -1)
        held = max(held, next((size for size in sizes if text.endswith(stop[:size])), 0))
    return text[: len(text) - held]
