"""A network and what it is given to read, and the ways of reading that the laws compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.models.model import Network
from regard.parts.contract import Context, Memory, Record, Source


@dataclass(frozen=True, eq=False)
class Probe:
    """A network and the arguments it is called with: ids and padding, and those of the source if it has one.

    Padding is on the right, and every slot holds some token: a law may ignore it and read whole rows.
    """

    network: Network
    inputs: Mapping[str, Tensor]
    end: int

    @property
    def ids(self) -> Tensor:
        """BT: what is read, or said when there is a source."""
        return self.inputs["ids"]

    @property
    def padding(self) -> Tensor:
        """BT, True where there is a token."""
        return self.inputs["padding"]

    @property
    def sides(self) -> tuple[str, ...]:
        """What the names of a side's inputs begin with."""
        return ("", "source_") if "source_ids" in self.inputs else ("",)

    def source(self) -> Source | None:
        """What the encoder says of the sources."""
        if "source_ids" not in self.inputs:
            return None
        return self.network.read(self.inputs["source_ids"], self.inputs["source_padding"])

    def read(self, **changed: Tensor) -> Tensor:
        """-> BTN: the logits, with some inputs changed."""
        return answers(self.network, {**self.inputs, **changed})

    def states(self, record: Record | None = None) -> Tensor:
        """-> BTD: the last layer's states, while someone looks or nobody does."""
        arguments: dict[str, Any] = {**self.inputs, "record": record}
        return self.network.states(**arguments)

    def row(self, row: int) -> dict[str, Tensor]:
        """The ids of one row without its padding, by side."""
        lengths = {side: int(self.inputs[f"{side}padding"][row].sum()) for side in self.sides}
        return {f"{side}ids": self.inputs[f"{side}ids"][row : row + 1, :n] for side, n in lengths.items()}

    def other(self, ids: Tensor, side: str = "") -> Tensor:
        """The same shape, another token in every slot."""
        embed = self.network.source_embed if side else self.network.embed
        return (ids + 1) % embed.table.num_embeddings


def gap(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value expected; infinite where they cannot be compared."""
    if found.shape != expected.shape:
        return math.inf
    difference = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    return float(difference) if bool(difference.isfinite()) else math.inf


def answers(network: Network, inputs: Mapping[str, Tensor]) -> Tensor:
    """-> BTN: the logits; what is said of a text as a whole is said at each of its tokens."""
    found: Tensor = network(**inputs)
    if network.description.readout.tokenwise:
        return found
    return found[:, None].expand(-1, inputs["ids"].shape[1], -1)


def said(network: Network, states: Tensor) -> Tensor:
    """BTD -> BTN: the logits, or the states themselves where tokens have none."""
    found: Tensor = network.readout(states) if network.description.readout.tokenwise else states
    return found


def logits(network: Network, ids: Tensor, context: Context) -> Tensor:
    """BT -> BTN: what the decoder says of whole rows."""
    return said(network, network.decode(ids, context)[0])


def stepped(probe: Probe, step: int, record: Record | None = None) -> Tensor:
    """-> BTN: the logits of whole rows, read so many tokens at a time."""
    context = Context(source=probe.source(), remember=True, record=record)
    memory: Memory = None
    parts = []
    for start in range(0, probe.ids.shape[1], step):
        now = replace(context, start=start)
        states, memory = probe.network.decode(probe.ids[:, start : start + step], now, memory)
        parts.append(said(probe.network, states))
    return torch.cat(parts, dim=1)
