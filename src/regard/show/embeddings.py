"""Embeddings of a network: nearest neighbours of tokens, and positional encodings (tables, angles, biases)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.tasks.masked_lm import ordinary_tokens
from regard.data.tokenize.tokenizer import Tokenizer
from regard.layers.contract import facts_of
from regard.layers.positions import AttentionPositionLayer, Curves
from regard.models.model import Network, StackLayers
from regard.schema import kind_of

_ROWS = 8_192  # rows of the embedding table compared at once
_QUERIES = 1_024  # tokens compared with them at once
_MAX_POSITIONS = 512
_PART = re.compile(r"\\x[89a-f][0-9a-f]|^<0x[0-9A-F]{2}>$")  # bytes of a character that has several

Neighbours = list[list[str | float]]
"""Tokens and their cosines, the nearest first."""

PositionTable = dict[str, Any]
"""A name, the kind of `Curves` ("table", "rotary" or "bias"), the table, and its first position or distance."""


@torch.inference_mode()
def nearest_neighbours(
    network: Network, tokenizer: Tokenizer, ids: Sequence[int], *, side: str, count: int = 8
) -> list[Neighbours] | None:
    """The nearest neighbours of each token by cosine similarity; None if the model embeds characters.

    A token itself, special tokens and parts of a character are left out. `side` chooses the embedding: "source", or
    else the decoder's.
    """
    if network.description.embed.characters:
        return None
    weight = (network.source_embed if side == "source" else network.embed).table.weight
    texts = tokenizer.token_texts(range(min(tokenizer.vocabulary, len(weight))))
    whole = np.array([not _PART.search(text) for text in texts], dtype=bool)
    candidates = torch.from_numpy(np.flatnonzero(ordinary_tokens(tokenizer)[: len(weight)] & whole)).to(weight.device)
    queries, inverse = torch.tensor(list(ids), dtype=torch.long, device=weight.device).unique(return_inverse=True)
    found = [_nearest(weight, candidates, some, count) for some in queries.split(_QUERIES)]
    neighbours = [
        [[text, round(cosine, 6)] for text, cosine in zip(tokenizer.token_texts(tokens), cosines) if cosine >= -2]
        for values, indices in found
        for cosines, tokens in zip(values.tolist(), indices.tolist())
    ]
    return [neighbours[index] for index in inverse.tolist()]


def _nearest(weight: Tensor, candidates: Tensor, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """ND, W candidate tokens, P query tokens -> Pk cosines and Pk tokens; never holds P x W."""
    vectors = F.normalize(weight[queries].float(), dim=-1)
    values, tokens = vectors.new_empty(len(queries), 0), queries.new_empty(len(queries), 0)
    for some in candidates.split(_ROWS):
        cosines = vectors @ F.normalize(weight[some].float(), dim=-1).T
        cosines = cosines.masked_fill(some == queries[:, None], -torch.inf)
        values = torch.cat([values, cosines], dim=1)
        tokens = torch.cat([tokens, some.expand(len(queries), -1)], dim=1)
        values, order = values.topk(min(count, values.shape[1]), dim=1)
        tokens = tokens.gather(1, order)
    return values, tokens


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
        equal = [numbers for _, other, numbers in groups if torch.equal(other.values, curves.values)]
        if equal:
            equal[0].append(number)
        else:
            groups.append((kind_of(type(position)), curves, [number]))
    count = sum(part.name == "self" for layer in layers for part in layer)
    where = ["" if len(numbers) == count else f" in layer {', '.join(map(str, numbers))}" for *_, numbers in groups]
    return [_entry(f"{name}: {kind}{some}", curves) for (kind, curves, _), some in zip(groups, where)]


def _entry(name: str, curves: Curves) -> PositionTable:
    table = curves.values.detach().float().cpu()
    return {"name": name.replace("_", " "), "kind": curves.kind, "table": table, "first": curves.first}
