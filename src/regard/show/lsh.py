"""LSH recall: how much of the full attention mass of a query's top keys its hash buckets keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import split_heads
from regard.layers.lsh.attention import LSHAttentionLayer
from regard.layers.lsh.banded import Band, unit_keys
from regard.layers.lsh.masks import SELF_PENALTY
from regard.layers.record import Record
from regard.models.model import Network
from regard.show.generation import Tokenizers
from regard.show.trace import prepare_inputs

ROUNDS = (1, 2, 4, 8)
_MAX_WEIGHTS = 1 << 25  # weights computed at once, over heads, queries and keys; a longer text is sampled


@dataclass(frozen=True)
class LayerRecall:
    """The recall of one LSH layer, per number of hash rounds and head."""

    layer: str
    rounds: int  # the layer's own
    recall: Mapping[int, tuple[float, ...]]

    def mean(self, rounds: int) -> float:
        return mean(self.recall[rounds])

    def text(self) -> str:
        """One line of means, the layer's own number of rounds in brackets."""
        return ", ".join(
            f"{f'[{rounds}]' if rounds == self.rounds else rounds}: {self.mean(rounds):.1%}" for rounds in self.recall
        )


@dataclass(frozen=True)
class LSHRecall:
    """The recall of the `top` keys in each LSH layer, measured at `queries` of the `tokens`."""

    top: int
    tokens: int
    queries: int
    layers: tuple[LayerRecall, ...]

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """A table: one line per layer and head, one column per number of rounds."""
        rounds = sorted({number for layer in self.layers for number in layer.recall})
        wide = max(len("layer"), *(len(layer.layer) for layer in self.layers))
        count = f"{self.tokens:,}" if self.queries == self.tokens else f"{self.queries:,} of {self.tokens:,}"
        lines = [
            f"Recall of the attention mass of the top {self.top} keys, by rounds ({count} tokens; * the model's own)",
            f"{'layer':<{wide}}  head{''.join(f'{number:>9}' for number in rounds)}",
        ]
        for layer in self.layers:
            heads = len(layer.recall[rounds[0]])
            rows = [("mean", [layer.mean(number) for number in rounds])]
            rows += [(str(head), [layer.recall[number][head] for number in rounds]) for head in range(heads)]
            for head, values in rows:
                cells = [f"{value:>8.1%}{'*' if at == layer.rounds else ' '}" for at, value in zip(rounds, values)]
                lines.append(f"{layer.layer:<{wide}}  {head:>4}{''.join(cells)}".rstrip())
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The recall as plain data."""
        return asdict(self)


def lsh_layers(network: Network) -> list[LSHAttentionLayer]:
    """The layers that hash their tokens into buckets, the lowest first."""
    found = [module for module in network.modules() if isinstance(module, LSHAttentionLayer)]
    return [layer for layer in found if layer.pattern.bucket_counts(layer.description.buckets, 1)]


def lsh_recall(
    network: Network,
    tokenizers: Tokenizers,
    text: str,
    target: str | None = None,
    *,
    top: int = 64,
    rounds: Sequence[int] = ROUNDS,
) -> LSHRecall:
    """The recall of every LSH layer in one forward pass over a text and its target."""
    return measure_recall(network, prepare_inputs(network, tokenizers, text, target)[0], top, rounds)


def measure_recall(
    network: Network, inputs: Mapping[str, Any], top: int = 64, rounds: Sequence[int] = ROUNDS
) -> LSHRecall:
    """The recall of every LSH layer for the keyword arguments of the network, of one batch row."""
    layers = lsh_layers(network)
    if not layers:
        raise InputError("no layer of this model hashes its tokens. Give one with LSH attention, as zoo.reformer has.")
    if min(inputs[name].shape[1] for name in ("ids", "source_ids") if inputs.get(name) is not None) < 2:
        raise InputError("a single token has no other token to attend to. Give a longer text.")
    if top < 1 or not rounds or min(rounds) < 1:
        raise InputError(f"top and rounds must be 1 or more, got top={top}, rounds={tuple(rounds)}.")
    found: list[LayerRecall] = []
    measured: list[tuple[int, int]] = []  # tokens and queries

    def measure(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(layer, LSHAttentionLayer)
        x, context = arguments[:2]
        queries = sample_queries(x.shape[1], layer.heads)
        measured.append((x.shape[1], len(queries)))
        recall = recall_by_rounds(layer, x, queries, top, rounds)
        found.append(LayerRecall(context.name, layer.description.rounds, recall))

    hooks = [layer.register_forward_pre_hook(measure) for layer in layers]
    try:
        with torch.inference_mode():
            # A record makes containers name their layers; this one wants no weights.
            network.hidden_states(**inputs, record=Record(wanted=lambda name: False))
    finally:
        for hook in hooks:
            hook.remove()
    tokens, queries = max(measured)
    return LSHRecall(top, tokens, queries, tuple(found))


def sample_queries(length: int, heads: int) -> Tensor:
    """The indices of the measured queries: all, or evenly spaced ones that include the last."""
    count = max(1, min(length, _MAX_WEIGHTS // (heads * length)))
    return (torch.arange(count) + 1) * length // count - 1


@torch.no_grad()
def recall_by_rounds(
    layer: LSHAttentionLayer, x: Tensor, queries: Tensor, top: int, rounds: Sequence[int]
) -> dict[int, tuple[float, ...]]:
    """1TD -> per number of rounds, each head's share of the full attention mass of the top keys.

    The full attention is a softmax over all allowed keys except the query's own.
    """
    q = split_heads(layer.query_key(x), layer.heads)
    causal, length = layer.description.causal, x.shape[1]
    queries, positions = queries.to(x.device), torch.arange(length, device=x.device)
    if causal:
        queries = queries[queries > 0]  # the first has no other key
    masked = positions >= queries[:, None] if causal else positions == queries[:, None]
    scores = (q[0][:, queries] @ unit_keys(q[0]).transpose(-1, -2)).masked_fill_(masked, -torch.inf)
    mass, keys = scores.softmax(-1).topk(min(top, length), dim=-1)
    recall = {}
    for number in rounds:
        visible = visible_keys(layer, q, number, queries).gather(-1, keys)
        share = (mass * visible).sum(-1) / mass.sum(-1)
        recall[number] = tuple(float(head) for head in share.mean(-1))
    return recall


def visible_keys(layer: LSHAttentionLayer, q: Tensor, rounds: int, queries: Tensor) -> Tensor:
    """1HTK, and Q indices -> HQT: the keys that these queries attend to in any round, themselves included."""
    buckets = layer.hash(q, rounds).transpose(2, 3)[0]
    heads, length = q.shape[1], q.shape[2]
    bands = layer.pattern.bands(buckets, None, layer.description.causal)
    visible = torch.full((heads, len(queries), length), bands is None, device=q.device)
    query_index = torch.full((length,), -1, device=q.device)
    query_index[queries] = torch.arange(len(queries), device=q.device)
    for band in bands or ():
        _mark(band, query_index, visible)
    return visible


def _mark(band: Band, query_index: Tensor, visible: Tensor) -> None:
    """Mark in HQT what the queries of a band attend to; `query_index` T is the row of a token in Q, or -1."""
    real = torch.zeros(band.tokens.shape, dtype=torch.bool, device=visible.device)
    real.scatter_(1, band.sorted_positions.flatten(1).long(), True)
    for rows, pieces in band.slices():
        for chunks in pieces:
            own = slice(chunks.start * band.chunk, chunks.stop * band.chunk)
            queries = query_index[band.tokens[rows, own].long()].masked_fill(~real[rows, own], -1)
            row, chunk, slot = (band.chunks(queries) >= 0).nonzero(as_tuple=True)
            around = band.windows(band.tokens[rows].index_select(1, band.window_positions(chunks)))
            allowed = band.mask(rows, chunks).expand(len(around), -1, -1, -1)[row, chunk, slot] >= SELF_PENALTY
            at, key = allowed.nonzero(as_tuple=True)
            query = band.chunks(queries)[row, chunk, slot][at]
            visible[rows.start + row[at], query, around[row, chunk][at, key].long()] = True
