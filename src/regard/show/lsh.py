"""The LSH microscope: how much of what a token would attend to most its buckets let it see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError
from regard.layers.attention import split_heads
from regard.layers.lsh.attention import LSHAttentionLayer
from regard.layers.lsh.banded import Band, unit
from regard.layers.lsh.masks import SELF
from regard.layers.record import Record
from regard.models.model import Network
from regard.show.trace import read_once

ROUNDS = (1, 2, 4, 8)
_AT_ONCE = 1 << 25  # weights held at once, over heads, queries and keys; of longer texts some queries are asked


@dataclass(frozen=True)
class Caught:
    """Of a layer: how much of the mass of the weightiest keys is seen, for each number of rounds, head by head."""

    layer: str
    rounds: int  # its own
    shares: Mapping[int, tuple[float, ...]]

    def share(self, rounds: int) -> float:
        """The mean over heads."""
        return mean(self.shares[rounds])

    def text(self) -> str:
        """One line: the means, its own rounds in brackets."""
        return ", ".join(
            f"{f'[{rounds}]' if rounds == self.rounds else rounds}: {self.share(rounds):.1%}" for rounds in self.shares
        )


@dataclass(frozen=True)
class Microscope:
    """What hashing caught of the `top` weightiest keys, layer by layer; `queries` of the `tokens` were asked."""

    top: int
    tokens: int
    queries: int
    layers: tuple[Caught, ...]

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """A table: a line a layer and head, a column a number of rounds."""
        rounds = sorted({number for layer in self.layers for number in layer.shares})
        wide = max(len("layer"), *(len(layer.layer) for layer in self.layers))
        count = (
            f"{self.tokens:,} tokens" if self.queries == self.tokens else f"{self.queries:,} of {self.tokens:,} tokens"
        )
        lines = [
            f"Share of the {self.top} weightiest keys' mass that is seen, by rounds ({count}; * as the model has it)",
            f"{'layer':<{wide}}  head{''.join(f'{number:>9}' for number in rounds)}",
        ]
        for layer in self.layers:
            heads = len(layer.shares[rounds[0]])
            rows = [("mean", [layer.share(number) for number in rounds])]
            rows += [(str(head), [layer.shares[number][head] for number in rounds]) for head in range(heads)]
            for head, shares in rows:
                cells = [f"{share:>8.1%}{'*' if at == layer.rounds else ' '}" for at, share in zip(rounds, shares)]
                lines.append(f"{layer.layer:<{wide}}  {head:>4}{''.join(cells)}".rstrip())
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def hashing_layers(network: Network) -> list[LSHAttentionLayer]:
    """The layers that hash, first ones first."""
    found = [module for module in network.modules() if isinstance(module, LSHAttentionLayer)]
    return [layer for layer in found if layer.pattern.counts(layer.description.buckets, 1)]


def microscope(
    network: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    text: str,
    target: str | None = None,
    *,
    top: int = 64,
    rounds: Sequence[int] = ROUNDS,
) -> Microscope:
    """Read a text (and say a target) once, and look at what each layer that hashes is given."""
    return magnified(network, read_once(network, tokenizers, text, target)[0], top, rounds)


def magnified(
    network: Network, inputs: Mapping[str, Any], top: int = 64, rounds: Sequence[int] = ROUNDS
) -> Microscope:  # fmt: skip
    """The same of a single row, given what the network is called with."""
    layers = hashing_layers(network)
    if not layers:
        raise InputError("no layer of this model hashes its tokens. Give one with LSH attention, as zoo.reformer has.")
    if min(inputs[name].shape[1] for name in ("ids", "source_ids") if inputs.get(name) is not None) < 2:
        raise InputError("one token has nobody to attend to. Give a longer text.")
    if top < 1 or not rounds or min(rounds) < 1:
        raise InputError(f"top and rounds must be 1 or more, got top={top}, rounds={tuple(rounds)}.")
    found: list[Caught] = []
    asked: list[tuple[int, int]] = []

    def look(layer: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(layer, LSHAttentionLayer)
        x, context = given[:2]
        queries = sample(x.shape[1], layer.heads)
        asked.append((x.shape[1], len(queries)))
        shares = caught(layer, x, queries, top, rounds)
        found.append(Caught(context.name, layer.description.rounds, shares))

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        with torch.inference_mode():
            # A record keeps up the names of layers; it wants none of their weights.
            network.hidden_states(**inputs, record=Record(wanted=lambda name: False))
    finally:
        for hook in hooks:
            hook.remove()
    tokens, queries = max(asked)
    return Microscope(top, tokens, queries, tuple(found))


def sample(length: int, heads: int) -> Tensor:
    """The slots of the queries that are asked: all, or some evenly spread."""
    count = max(1, min(length, _AT_ONCE // (heads * length)))
    return (torch.arange(count) + 1) * length // count - 1


@torch.no_grad()
def caught(
    layer: LSHAttentionLayer, x: Tensor, queries: Tensor, top: int, rounds: Sequence[int]
) -> dict[int, tuple[float, ...]]:
    """1TD -> for each number of rounds, what each head catches of the true weights of the keys that weigh most.

    True are the weights of a softmax over all keys that may be seen but the query's own.
    """
    q = split_heads(layer.query_key(x), layer.heads)
    causal, length = layer.description.causal, x.shape[1]
    queries, along = queries.to(x.device), torch.arange(length, device=x.device)
    if causal:
        queries = queries[queries > 0]  # the first has no other key
    hidden = along == queries[:, None]
    hidden = hidden | (along > queries[:, None]) if causal else hidden
    scores = (q[0][:, queries] @ unit(q[0]).transpose(-1, -2)).masked_fill_(hidden, -torch.inf)
    mass, keys = scores.softmax(-1).topk(min(top, length), dim=-1)
    shares = {}
    for number in rounds:
        seen = met(layer, q, number, queries).gather(-1, keys)
        share = (mass * seen).sum(-1) / mass.sum(-1)
        shares[number] = tuple(float(head) for head in share.mean(-1))
    return shares


def met(layer: LSHAttentionLayer, q: Tensor, rounds: int, queries: Tensor) -> Tensor:
    """1HTK, and Q slots -> HQT: which keys these see in any of so many rounds, themselves among them."""
    buckets = layer.hashed(q, rounds).transpose(2, 3)[0]
    heads, length = q.shape[1], q.shape[2]
    bands = layer.pattern.bands(buckets, None, layer.description.causal)
    if bands is None:
        return torch.ones(heads, len(queries), length, dtype=torch.bool, device=q.device)
    seen = torch.zeros(heads, len(queries), length, dtype=torch.bool, device=q.device)
    numbers = torch.full((length,), -1, device=q.device)
    numbers[queries] = torch.arange(len(queries), device=q.device)
    for band in bands:
        _mark(band, numbers, seen)
    return seen


def _mark(band: Band, numbers: Tensor, seen: Tensor) -> None:
    """Mark in HQT what a band's places see; `numbers` T is which of the queries a token is, or -1."""
    real = torch.zeros(band.tokens.shape, dtype=torch.bool, device=seen.device)
    real.scatter_(1, band.places.flatten(1).long(), True)
    for rows, pieces in band.slices():
        for chunks in pieces:
            own = slice(chunks.start * band.chunk, chunks.stop * band.chunk)
            asks = numbers[band.tokens[rows, own].long()].masked_fill(~real[rows, own], -1)
            row, chunk, place = (band.chunks(asks) >= 0).nonzero(as_tuple=True)
            around = band.windows(band.tokens[rows].index_select(1, band.around(chunks)))
            shown = band.hide(rows, chunks).expand(len(around), -1, -1, -1)[row, chunk, place] >= SELF
            asker, answerer = shown.nonzero(as_tuple=True)
            query = band.chunks(asks)[row, chunk, place][asker]
            seen[rows.start + row[asker], query, around[row, chunk][asker, answerer].long()] = True
