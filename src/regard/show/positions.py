"""Positional encodings of a network: embedding tables, rotary angles and position biases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.layers.contract import facts_of
from regard.layers.positions import AttentionPositionLayer, Curves
from regard.models.model import Network, StackLayers
from regard.schema import kind_of

_MAX_POSITIONS = 512

PositionTable = dict[str, Any]
"""A name, the kind of `Curves` ("table", "rotary" or "bias"), the table, and the position or distance of its first
entry."""


@torch.inference_mode()
def position_tables(network: Network, length: int) -> list[PositionTable]:
    """The curves of the first `length` positions, 512 at most; none for a network without positional encoding."""
    positions = torch.arange(min(length, _MAX_POSITIONS), device=next(network.parameters()).device)
    found = _of_embeddings(network, positions)
    modules = {"encoder": network.encoder, "decoder": network.decoder}
    for name, stack in network.description.stacks.items():
        module = modules[name]
        assert module is not None
        found += _of_attention(name, network, module, positions)
        if module.position is not None and len(positions):
            found.append(_entry(f"{name}: {kind_of(type(stack.position))}", module.position.curves(positions)))
    return found


def _of_embeddings(network: Network, positions: Tensor) -> list[PositionTable]:
    """The encodings that the embeddings add to their tokens, or concatenate with them."""
    described, stacks = network.description.embed.position, [*network.description.stacks]
    if described is None:
        return []
    embeds: list[Any] = [network.source_embed, network.embed] if len(stacks) == 2 else [network.embed]
    positions = positions[: network.max_positions]
    curves = [embed.position.curves(positions) for embed in embeds]
    if len(curves) == 2 and torch.equal(curves[0].values, curves[1].values):
        stacks, curves = ["encoder and decoder"], curves[:1]
    return [_entry(f"{name}: {kind_of(type(described))}", one) for name, one in zip(stacks, curves)]


def _of_attention(name: str, network: Network, module: StackLayers, positions: Tensor) -> list[PositionTable]:
    """The encodings of queries and keys, one entry for all layers with equal curves."""
    groups: list[tuple[str, Curves, list[int]]] = []
    layers = network.description.stacks[name].layers
    for number, part in ((number, part) for number, layer in enumerate(layers) for part in layer):
        position = facts_of(part).position
        if position is None:
            continue
        built = module.get_submodule(f"layers.{number}.{part.name}").modules()
        curves = next(child for child in built if isinstance(child, AttentionPositionLayer)).curves(positions)
        if curves is None:
            continue
        equal = (numbers for _, other, numbers in groups if torch.equal(other.values, curves.values))
        numbers = next(equal, None)
        if numbers is None:
            groups.append((kind_of(type(position)), curves, [number]))
        else:
            numbers.append(number)
    count = sum(part.name == "self" for layer in layers for part in layer)
    where = ["" if len(numbers) == count else f" in layer {', '.join(map(str, numbers))}" for *_, numbers in groups]
    return [_entry(f"{name}: {kind}{some}", curves) for (kind, curves, _), some in zip(groups, where)]


def _entry(name: str, curves: Curves) -> PositionTable:
    table = curves.values.detach().float().cpu()
    return {"name": name.replace("_", " "), "kind": curves.kind, "table": table, "first": curves.first}
