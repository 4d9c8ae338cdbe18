"""How likely a model finds given texts, in nats: as a whole and token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import Progress, Request, batches, by_length, padded, require_room
from regard.decode.inputs import Tokens, inputs_of, length_of
from regard.models.model import Network

_NUMBERS = 1 << 24  # logits held at once


@dataclass(frozen=True)
class Scored:
    """The log-probability of a text, and of each of its tokens."""

    total: float
    tokens: tuple[tuple[str, float], ...]


def score_texts(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], progress: Progress = lambda done: None
) -> list[Scored]:
    """Each text from its begin to its end, as a language model reads it."""
    begun = tokenizer.opening or (tokenizer.begin,)
    requests = []
    for place, ids in enumerate(tokenizer.encode_batch(texts)):
        require_room(network, len(begun) + len(ids), f"text {place + 1:,}")
        requests.append(Request((*begun, *ids, tokenizer.end), None, 0, opening=len(begun)))
    return _named(tokenizer, requests, forced(network, requests, progress))


def score_pairs(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    pairs: tuple[Sequence[str], Sequence[str]],
    progress: Progress = lambda done: None,
) -> list[Scored]:
    """Each target, to its end, given its source."""
    source, target = tokenizers
    requests = []
    for place, (read, said) in enumerate(zip(*map(Tokenizer.encode_batch, tokenizers, pairs))):
        require_room(network, max(len(read), len(said)) + 1, f"pair {place + 1:,}")
        requests.append(Request((target.begin, *said, target.end), (*read, source.end), 0))
    return _named(target, requests, forced(network, requests, progress))


def score_hidden(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], progress: Progress = lambda done: None
) -> list[Scored]:
    """Each token, hidden alone, given all others: the pseudo-log-likelihood (Salazar 2020, equation 1)."""
    rows = tokenizer.encode_batch(texts)
    for place, ids in enumerate(rows):
        require_room(network, length_of(network, tokenizer, [ids]), f"text {place + 1:,}")
    found = hidden(network, tokenizer, rows, progress)
    return [_scored(tokenizer.token_texts(ids), values) for ids, values in zip(rows, found)]


@torch.inference_mode()
def forced(
    network: Network, requests: Sequence[Request], progress: Progress = lambda done: None
) -> list[list[float]]:  # fmt: skip
    """The log-probability of each token of a prompt behind what opens it, given all before it."""
    found: list[list[float]] = [[] for _ in requests]
    device = next(network.parameters()).device
    for places in batches(requests):
        chosen = [requests[place] for place in places]
        ids, padding = padded([request.prompt[:-1] for request in chosen], device)
        given: dict[str, Tensor | None] = {}
        if network.encoder is not None:
            sources = padded([request.source or () for request in chosen], device)
            given = dict(zip(("source_ids", "source_padding"), sources))
        states = network.hidden_states(ids, padding=padding, **given)  # type: ignore[arg-type]
        targets, _ = padded([request.prompt[1:] for request in chosen], device)
        firsts = torch.tensor([request.opening - 1 for request in chosen], device=device)
        lengths = torch.tensor([len(request.prompt) - 1 for request in chosen], device=device)
        columns = torch.arange(targets.shape[1], device=device)
        asked = (columns >= firsts[:, None]) & (columns < lengths[:, None])
        values = log_probabilities(network, states[asked], targets[asked]).split((lengths - firsts).tolist())
        for place, row in zip(places, values):
            found[place] = row.tolist()
        progress(len(places))
    return found


@torch.inference_mode()
def hidden(
    network: Network, tokenizer: Tokenizer, rows: Tokens, progress: Progress = lambda done: None
) -> list[list[float]]:  # fmt: skip
    """The log-probability of each token of a text when it is hidden and all others are seen."""
    found = [[0.0] * len(ids) for ids in rows]
    tokens = [(number, place) for number, ids in enumerate(rows) for place in range(len(ids))]
    left = [len(ids) for ids in rows]
    progress(left.count(0))
    for batch in by_length([len(rows[number]) for number, _ in tokens]):
        chosen = [tokens[place] for place in batch]
        inputs = inputs_of(network, tokenizer, [[rows[number] for number, _ in chosen]])
        every = torch.arange(len(chosen), device=inputs["ids"].device)
        places = torch.tensor([place + 1 for _, place in chosen], device=every.device)  # behind the begin
        targets = inputs["ids"][every, places]
        inputs["ids"][every, places] = tokenizer.mask
        states = network.hidden_states(**inputs)[every, places]  # type: ignore[arg-type]
        for (number, place), value in zip(chosen, log_probabilities(network, states, targets).tolist()):
            found[number][place] = value
            left[number] -= 1
        progress(sum(left[number] == 0 for number in {number for number, _ in chosen}))
    return found


def log_probabilities(network: Network, states: Tensor, targets: Tensor) -> Tensor:
    """PD, P -> P: the log-probability of each target, some at a time."""
    size = max(1, _NUMBERS // network.vocabulary)
    parts = [
        network.readout(some).float().log_softmax(-1).gather(1, asked[:, None])[:, 0]
        for some, asked in zip(states.split(size), targets.split(size))
    ]
    return torch.cat(parts)


def _named(tokenizer: Tokenizer, requests: Sequence[Request], found: Sequence[Sequence[float]]) -> list[Scored]:
    texts = [tokenizer.token_texts(request.prompt[request.opening :]) for request in requests]
    return [_scored(*one) for one in zip(texts, found)]


def _scored(texts: Sequence[str], values: Sequence[float]) -> Scored:
    return Scored(float(sum(values)), tuple(zip(texts, values)))
