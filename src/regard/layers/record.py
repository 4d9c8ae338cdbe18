"""TODO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Inside:
    """What weights are made of: vectors as they are compared, after whatever turns or maps them.

    dot: the product of a query and a key times `scale`, plus the bias; shared: the same, of keys that are the queries
    made one long; additive: the vector times tanh of their sum; even: every key answers alike.
    """

    kind: Literal["dot", "additive", "shared", "even"]
    query: Tensor  # BHTK
    key: Tensor  # BHSK
    scale: float = 1.0
    vector: Tensor | None = None  # HK
    bias: Tensor | None = None  # (1|B)(1|H)TS


Rows = Callable[[slice], Tensor]
"""Some queries -> BtS: what they attend to in one head."""


@dataclass(frozen=True)
class Attended:
    """What a layer attends to in one call: it tells the weights of any queries, so that nobody need hold them all."""

    values: Tensor  # BHSV
    out: Tensor | None  # D, H times V: what the heads' answers go through; None where they stay as they are

    @property
    def heads(self) -> int:
        """How many heads attend."""
        return self.values.shape[1]

    @property
    def keys(self) -> int:
        """How many keys there are to attend to."""
        return self.values.shape[2]

    @property
    def queries(self) -> int:
        """How many queries attend, in each row."""
        raise NotImplementedError

    def head(self, number: int) -> Rows:
        """The weights of one head, asked for by queries."""
        raise NotImplementedError

    def weights(self, queries: slice) -> Tensor:
        """-> BHtS: the weights of some queries."""
        return torch.stack([self.head(number)(queries) for number in range(self.heads)], dim=1)

    def inside(self) -> Inside:
        """What the weights are made of."""
        raise NotImplementedError

    def norms(self) -> Tensor:
        """-> BHS: how long each value is once it is through what comes behind its head (Kobayashi 2020)."""
        if self.out is None:
            lengths: Tensor = torch.linalg.vector_norm(self.values, dim=-1)
            return lengths
        maps: Tensor = self.out.unflatten(1, (self.heads, -1))
        maps = maps.transpose(0, 1)
        squares: Tensor = (self.values @ (maps.mT @ maps) * self.values).sum(-1)
        return squares.clamp_min(0).sqrt()


@dataclass
class Record:
    """What was looked at. Containers name, leaves write; rows append, so stepping records what reading at once does."""

    wanted: Callable[[str], bool] = lambda name: True
    rows: dict[str, list[Tensor]] = field(default_factory=dict)
    buckets: dict[str, list[Tensor]] = field(default_factory=dict)  # of layers that hash: BHTR, as they came

    @torch.no_grad()
    def watch(self, name: str, attended: Attended) -> None:
        """Take what a layer attends to: here, all of its weights at once."""
        self.write(name, attended.weights(slice(0, attended.queries)))

    def note(self, name: str, buckets: Tensor) -> None:
        """Append the buckets into which a layer hashed its tokens."""
        self.buckets.setdefault(name, []).append(buckets)

    def write(self, name: str, weights: Tensor) -> None:
        """Append BHTS weights under a layer's name."""
        self.rows.setdefault(name, []).append(weights.detach())

    def matrix(self, name: str) -> Tensor:
        """All rows of a layer as one BHTS tensor; keys that were not there yet weigh nothing."""
        parts = self.rows[name]
        max_positions = max(part.shape[-1] for part in parts)
        return torch.cat([nn.functional.pad(part, (0, max_positions - part.shape[-1])) for part in parts], dim=2)
