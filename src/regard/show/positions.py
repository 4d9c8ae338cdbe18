"""Where tokens stand, as a network knows it: its tables of positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.layers.positions import turning
from regard.models.model import Network, Stack
from regard.schema import kind_of

_MOST = 512

Place = dict[str, Any]
"""A name, the kind ("table", "rotary" or "bias"), the table, and the position or distance its first row is of."""


@torch.inference_mode()
def positions(network: Network, length: int) -> list[Place]:
    """The tables of the first `length` positions, 512 at most; none of a network that knows no positions.

    Tables are positions x width; rotary ones have the cosines in their first half and the sines in the second. A bias
    is heads x distances: how far back the key stands, or where a stack sees both ways, key minus query.
    """
    length = min(length, _MOST)
    model = network.description
    stacks = {"encoder": model.encoder, "decoder": model.decoder}
    biases = {"encoder": network.encoder, "decoder": network.decoder}
    found = _embedded(network, length)
    for name, stack in stacks.items():
        if stack is not None:
            found += _rotary(name, stack, model.width, length)
            found += _bias(name, getattr(biases[name], "bias", None), length)
    return found


def _embedded(network: Network, length: int) -> list[Place]:
    """What the embeddings add to their tokens, or put beside them."""
    model = network.description
    embeds: dict[str, Any] = {"decoder": network.embed}
    if model.decoder is None:
        embeds = {"encoder": network.embed}
    elif model.encoder is not None:
        embeds = {"encoder": network.source_embed, "decoder": network.embed}
    described = getattr(model.embed, "position", None)  # what reads letters has none
    if described is None:
        return []
    longest = getattr(getattr(described, "of", described), "longest", length)
    places = torch.arange(min(length, longest), device=next(network.parameters()).device)
    tables = {name: _table(embed.position, places) for name, embed in embeds.items()}
    kind = kind_of(type(described))
    both = [*tables.values()]
    if len(both) == 2 and torch.equal(*both):
        tables = {"encoder and decoder": both[0]}
    return [_place(f"{name}: {kind}", "table", table) for name, table in tables.items()]


def _table(position: Any, places: Tensor) -> Tensor:
    """What a position makes of nothing: T -> TD."""
    nothing = torch.zeros(1, len(places), 0 if position.taken else 1, device=places.device)
    table: Tensor = position(nothing, places)[0]
    return table


def _rotary(name: str, stack: Stack, width: int, length: int) -> list[Place]:
    """The turns of queries and keys, once for all layers that turn alike."""
    layers: dict[tuple[float, int], list[int]] = {}
    attending = 0
    for number, layer in enumerate(stack.layers):
        for part in layer:
            attending += part.name == "self"
            position = getattr(part, "position", None)
            if position is not None:
                key_width = getattr(part, "key_width", None) or width // getattr(part, "heads", 1)
                layers.setdefault((position.base, key_width), []).append(number)
    found = []
    for (base, key_width), numbers in layers.items():
        angles = turning(torch.arange(length), key_width, base)
        some = "" if len(numbers) == attending else f" in layer {', '.join(map(str, numbers))}"
        found.append(_place(f"{name}: rotary{some}", "rotary", torch.cat([angles.cos(), angles.sin()], dim=-1)))
    return found


def _bias(name: str, bias: Any, length: int) -> list[Place]:
    """The learnt numbers of a stack for each head and distance."""
    if bias is None or not length:
        return []
    last, device = length - 1, bias.table.weight.device
    query = torch.tensor([last], device=device)
    keys = torch.arange(last, -1, -1, device=device) if bias.causal else torch.arange(2 * last + 1, device=device)
    return [_place(f"{name}: relative_bias", "bias", bias(query, keys)[0, :, 0], 0 if bias.causal else -last)]


def _place(name: str, kind: str, table: Tensor, first: int = 0) -> Place:
    name = name.replace("_", " ")
    return {"name": name, "kind": kind, "table": table.detach().float().cpu(), "first": first}
