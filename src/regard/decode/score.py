"""Log-probabilities of given texts in nats: forced decoding, pseudo-log-likelihood of masked language models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import QUIET, Progress, Request, TokenLogprobs, batch_requests
from regard.decode.inputs import (
    Tokens,
    batch_by_length,
    check_length,
    input_length,
    network_inputs,
    pad,
    text_template,
)
from regard.decode.requests import TextScore as TextScore
from regard.decode.requests import scoring_requests
from regard.decode.workers import Workers
from regard.models.model import Network

_LOGITS = 1 << 24  # in memory at once


def score_texts(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], progress: Progress = QUIET
) -> list[TextScore]:
    """The log-probability of each text by a language model, EOS included."""
    requests = scoring_requests(network, (tokenizer, tokenizer), texts)
    return _score_requests(network, tokenizer, requests, progress)


def score_pairs(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    pairs: tuple[Sequence[str], Sequence[str]],
    progress: Progress = QUIET,
) -> list[TextScore]:
    """The log-probability of each target given its source, EOS included."""
    requests = scoring_requests(network, tokenizers, *pairs)
    return _score_requests(network, tokenizers[1], requests, progress)


def score_masked(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], progress: Progress = QUIET
) -> list[TextScore]:
    """The pseudo-log-likelihood of each text by a masked language model (Salazar 2020, equation 1)."""
    rows = tokenizer.encode_batch(texts)
    for index, ids in enumerate(rows):
        check_length(network, input_length(network, tokenizer, [ids]), f"text {index + 1:,}")
    found = masked_log_probabilities(network, tokenizer, rows, progress)
    return [_text_score(tokenizer.token_texts(ids), values) for ids, values in zip(rows, found)]


def forced_log_probabilities(
    network: Network, requests: Sequence[Request], progress: Progress = QUIET
) -> list[list[float]]:
    """Forced decoding: the log-probability of each token of a prompt, special tokens excluded, given those before."""
    return [list(found.log_probabilities) for found in forced_logprobs(network, requests, 0, progress)]


@torch.inference_mode()
def forced_logprobs(
    network: Network, requests: Sequence[Request], top: int, progress: Progress = QUIET
) -> list[TokenLogprobs]:
    """Forced decoding in one forward pass: as `forced_log_probabilities`, with the best `top` tokens in each place.

    The first token of a prompt without special tokens has no probability, and is left out.
    """
    found = [TokenLogprobs((), (), ())] * len(requests)
    batches = batch_requests(network, requests)
    for indices, values in Workers(network).run(
        batches, lambda indices: _forced_batch(network, [requests[index] for index in indices], top)
    ):
        for index, value in zip(indices, values):
            found[index] = value
        progress(len(indices))
    return found


def _forced_batch(network: Network, batch: Sequence[Request], top: int) -> list[TokenLogprobs]:
    """Forced decoding of one batch; no tokens where no prompt has any to score."""
    if max(len(request.prompt) for request in batch) < 2:
        return []
    device = next(network.parameters()).device
    ids, padding = pad([request.prompt[:-1] for request in batch], device)
    sources: dict[str, Tensor | None] = {}
    if network.shape != "decoder":
        sources["source_ids"], sources["source_padding"] = pad([request.source or () for request in batch], device)
    states = network.hidden_states(ids, padding=padding, **sources)  # type: ignore[arg-type]
    targets, _ = pad([request.prompt[1:] for request in batch], device)
    firsts = torch.tensor([max(0, request.special_tokens - 1) for request in batch], device=device)
    lengths = torch.tensor([len(request.prompt) - 1 for request in batch], device=device)
    positions = torch.arange(targets.shape[1], device=device)
    scored = (positions >= firsts[:, None]) & (positions < lengths[:, None])
    counts = (lengths - firsts).clamp_min(0).tolist()
    parts = top_log_probabilities(network, states[scored], targets[scored], top)
    columns = (part.split(counts) for part in (targets[scored], *parts))
    found = []
    for tokens, values, best, names in zip(*columns):
        rows = (tuple(zip(*row)) for row in zip(names.tolist(), best.tolist()))
        found.append(TokenLogprobs(tuple(tokens.tolist()), tuple(values.tolist()), tuple(rows)))
    return found


@torch.inference_mode()
def masked_log_probabilities(
    network: Network, tokenizer: Tokenizer, rows: Tokens, progress: Progress = QUIET
) -> list[list[float]]:
    """The log-probability of each token of a text when only this token is masked."""
    found, start = [[0.0] * len(ids) for ids in rows], len(text_template(network, tokenizer).prefix)
    tokens = [(row, position) for row, ids in enumerate(rows) for position in range(len(ids))]
    left = [len(ids) for ids in rows]
    progress(left.count(0))

    def masked(indices: list[int]) -> list[float]:
        batch = [tokens[index] for index in indices]
        inputs = network_inputs(network, tokenizer, [[rows[row] for row, _ in batch]])
        copies = torch.arange(len(batch), device=inputs["ids"].device)
        positions = torch.tensor([start + position for _, position in batch], device=copies.device)
        targets = inputs["ids"][copies, positions]
        inputs["ids"][copies, positions] = tokenizer.mask
        states = network.hidden_states(**inputs)[copies, positions]  # type: ignore[arg-type]
        values: list[float] = log_probabilities(network, states, targets).tolist()
        return values

    batches = batch_by_length(network, [len(rows[row]) for row, _ in tokens])
    for indices, values in Workers(network).run(batches, masked):
        batch = [tokens[index] for index in indices]
        for (row, position), value in zip(batch, values):
            found[row][position] = value
            left[row] -= 1
        progress(sum(left[row] == 0 for row in {row for row, _ in batch}))
    return found


def log_probabilities(network: Network, states: Tensor, targets: Tensor) -> Tensor:
    """PD, P -> P: the log-probability of each target, in slices that bound the memory of the logits."""
    return top_log_probabilities(network, states, targets, 0)[0]


def top_log_probabilities(
    network: Network, states: Tensor, targets: Tensor, top: int
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """PD, P -> P: the log-probability of each target; Pt, Pt: the best `top` log-probabilities, and their tokens."""
    size = max(1, _LOGITS // network.vocabulary)
    slices = []
    for some, tokens in zip(states.split(size), targets.split(size)):
        values = network.readout(some).float().log_softmax(-1)
        best = values.topk(min(top, values.shape[-1]), dim=-1)
        slices.append((values.gather(1, tokens[:, None])[:, 0], best.values, best.indices))
    first, second, third = (torch.cat(parts) for parts in zip(*slices))
    return first, second, third


def _score_requests(
    network: Network, tokenizer: Tokenizer, requests: Sequence[Request], progress: Progress
) -> list[TextScore]:
    texts = [tokenizer.token_texts(request.prompt[request.special_tokens :]) for request in requests]
    return [*map(_text_score, texts, forced_log_probabilities(network, requests, progress))]


def _text_score(texts: Sequence[str], values: Sequence[float]) -> TextScore:
    return TextScore(float(sum(values)), tuple(zip(texts, values)))
