"""What a translation attends to in its source: one forced pass, which serves beams, draws and given texts alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.decode.generate import Request, batches, padded, read_sources
from regard.models.model import Network
from regard.parts.contract import Context, Record, Source

Head = tuple[int, int]
"""A layer of the decoder and a head of its attention to the source, both counted from 0."""

_TOKENS = 4_096


def cross_heads(network: Network) -> list[Head]:
    """Every head that attends to the source, found by looking once; none in a model without such attention."""
    if network.encoder is None or network.decoder is None:
        return []
    found = _recorded(network, [Request((0,), (0,), 0)], Record(_crosses))
    return [(layer, head) for layer, weights in sorted(found.items()) for head in range(weights.shape[1])]


def attended(
    network: Network, begin: int, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], heads: Sequence[Head]
) -> Iterator[tuple[int, Tensor]]:
    """The place of each pair of source tokens and said tokens, and heads x said x source: what is attended to.

    A row is that of the query which says the token: the one that has read the token before. The source ends with its
    end token, which is read like the others and has no column.
    """
    requests = [Request((begin, *said[:-1]), tuple(source), 0) for source, said in pairs]
    layers = {layer for layer, _ in heads}
    for places in batches(requests, _TOKENS):
        chosen = [requests[place] for place in places]
        found = _recorded(network, chosen, Record(lambda name: _crosses(name) and _layer(name) in layers))
        weights = torch.stack([found[layer][:, head] for layer, head in heads], dim=1).float().cpu()
        for row, place in enumerate(places):
            source, said = pairs[place]
            yield place, weights[row, :, : len(said), : len(source) - 1]


@torch.inference_mode()
def _recorded(network: Network, requests: Sequence[Request], record: Record) -> dict[int, Tensor]:
    """BHTS of each layer that the record wants, from one pass over all requests."""
    source: Source | None = read_sources(network, [request.source for request in requests])
    ids, padding = padded([request.prompt for request in requests], next(network.parameters()).device)
    network.decode(ids, Context(source=source, padding=padding, record=record))
    return {_layer(name): record.matrix(name) for name in record.rows}


def _crosses(name: str) -> bool:
    return name.startswith("decoder.") and name.endswith("cross")


def _layer(name: str) -> int:
    return int(name.split(".")[1])
