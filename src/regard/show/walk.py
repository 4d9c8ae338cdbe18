"""The walk through a model: embeddings, values, head outputs, hidden states, logits of a short text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.layers.contract import Context
from regard.layers.embedding import EmbedLayer
from regard.layers.record import AttentionWeights, Record
from regard.models.model import Network
from regard.show.generation import label_ids

MAX_TOKENS = 64  # of both sides together
_MAX_NUMBERS = 1_500_000
_LOGITS = 50  # of each prediction


@dataclass
class WalkRecord(Record):
    """A record of what attention sums, the values HSV, and of its sums, the head outputs HTV, of the only batch row."""

    values: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, list[Tensor]] = field(default_factory=dict)

    def record_attention(self, name: str, weights: AttentionWeights, output: Tensor) -> None:
        self.values[name] = weights.values[0]
        self.outputs.setdefault(name, []).append(output[0])


@dataclass(frozen=True)
class Embedding:
    """The vectors of one side: of the table, of positions where they are added, and what the first layer reads."""

    side: str
    table: Tensor | None  # TD
    position: Tensor | None  # TD
    read: Tensor  # TD


@dataclass(frozen=True)
class Walk:
    """The tensors of a walk; `states` holds the input of each layer of the last stack and its output, TD each."""

    embeddings: tuple[Embedding, ...]
    values: Mapping[str, Tensor]  # HSV
    outputs: Mapping[str, Tensor]  # HTV
    states: Tensor  # NTD
    logits: Tensor | None  # Tk, the largest of each row
    candidates: tuple[tuple[str, ...], ...]  # Tk: their tokens
    feedforward: bool  # whether a feed-forward network follows attention
    characters: bool  # whether vectors are made from the characters of words, not looked up in a table


@torch.inference_mode()
def walk(network: Network, tokenizer: Tokenizer, inputs: Mapping[str, Any], target_ids: Sequence[int]) -> Walk | None:
    """The walk of one text; None if text and model are too large for every number to be shown."""
    sides = {"source": inputs.get("source_ids"), "decoder_input": inputs["ids"]}
    if network.shape == "encoder":
        sides = {"source": inputs["ids"]}
    tokens = sum(ids.shape[1] for ids in sides.values() if ids is not None)
    layers = len(network.description.parts)
    if tokens > MAX_TOKENS or tokens * network.description.width * (layers + 3) > _MAX_NUMBERS:
        return None
    record, states = WalkRecord(), list[Tensor]()
    last = network.hidden_states(**inputs, record=record, all_layers=states)
    logits, candidates = None, tuple[tuple[str, ...], ...]()
    if label_ids(network, inputs, target_ids) is not None:
        best = network.readout(last[0]).float().topk(min(_LOGITS, network.vocabulary), dim=-1)
        logits, candidates = best.values, tuple(tuple(tokenizer.token_texts(row)) for row in best.indices.tolist())
    return Walk(
        tuple(embedding(network, side, ids) for side, ids in sides.items() if ids is not None),
        record.values,
        {name: torch.cat(parts, dim=1) for name, parts in record.outputs.items()},
        torch.stack([state[0] for state in states if state.shape[-1] == states[0].shape[-1]]),
        logits,
        candidates,
        any(part.name == "feedforward" for part in network.description.parts),
        bool(network.description.embed.characters),
    )


def embedding(network: Network, side: str, ids: Tensor) -> Embedding:
    """The embedding of one side, taken apart."""
    embed = network.source_embed if side == "source" and network.shape != "decoder" else network.embed
    context = Context()
    read = embed(ids, context)[0]
    if network.description.embed.characters:
        return Embedding(side, None, None, read)
    embed = cast(EmbedLayer, embed)
    table = embed.table(ids)[0] * embed.scale
    position = None
    if embed.position is not None and table.shape == read.shape:
        position = embed.position(table[None], context.token_positions(len(table), ids.device))[0] - table
    return Embedding(side, table if table.shape == read.shape else None, position, read)
