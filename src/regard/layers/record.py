"""Recording attention weights: computed on demand and not by the fused kernel, so recording changes no output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ScoreInputs:
    """What attention scores are computed from: queries and keys as they are compared, after projection and rotation.

    dot: q·k times `scale`, plus the bias; shared: the same, where keys are queries of length one (LSH attention);
    additive: `vector`·tanh(q + k); uniform: every score is 0.
    """

    kind: Literal["dot", "additive", "shared", "uniform"]
    query: Tensor  # BHTK
    key: Tensor  # BHSK
    scale: float = 1.0
    vector: Tensor | None = None  # HK
    bias: Tensor | None = None  # (1|B)(1|H)TS


Rows = Callable[[slice], Tensor]
"""A slice of queries -> Bts: their attention weights in one head, of the first s keys; those of later keys are 0."""


@dataclass(frozen=True)
class WeightBlock:
    """The weights of some queries of one head of the only batch row, as a summary reads them."""

    weights: Tensor  # tk
    keys: Tensor | None = None  # tk, int64; None: the first keys in order. Other keys have weight 0
    entropy: Tensor | None = None  # t, in bits, where the scores tell it


Blocks = Callable[[slice], WeightBlock]
"""A slice of queries -> their weights in one head."""


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of a layer in one call, computed per slice of queries: no whole matrix is needed."""

    values: Tensor  # BHSV
    output_projection: Tensor | None  # D, H times V: W^O; None where heads are not projected

    @property
    def heads(self) -> int:
        return self.values.shape[1]

    @property
    def keys(self) -> int:
        return self.values.shape[2]

    @property
    def queries(self) -> int:
        """The number of queries in each row."""
        raise NotImplementedError

    @property
    def only_earlier_keys(self) -> bool:
        """Whether `head` leaves out the keys after the last query, so that early queries take less time."""
        return False

    @property
    def most_keys(self) -> int:
        """The most keys of a query that `blocks` gives."""
        return self.keys

    def head(self, number: int) -> Rows:
        """The weights of one head, as a function of a slice of queries."""
        raise NotImplementedError

    def blocks(self, number: int) -> Blocks:
        """The weights of one head of the only batch row, in the form that takes the least time to summarise."""
        rows = self.head(number)
        return lambda queries: WeightBlock(rows(queries)[0].float())

    def weights(self, queries: slice) -> Tensor:
        """-> BHtS: the weights of a slice of queries."""
        return torch.stack([self.head(number)(queries) for number in range(self.heads)], dim=1)

    def score_inputs(self) -> ScoreInputs | None:
        """What the scores are computed from; None if a score of the user's own does not tell."""
        raise NotImplementedError

    def value_norms(self) -> Tensor:
        """-> BHS: the norm of each value vector after the output projection (Kobayashi 2020)."""
        if self.output_projection is None:
            norms: Tensor = torch.linalg.vector_norm(self.values, dim=-1)
            return norms
        matrices: Tensor = self.output_projection.unflatten(1, (self.heads, -1))
        matrices = matrices.transpose(0, 1)
        squares: Tensor = (self.values @ (matrices.mT @ matrices) * self.values).sum(-1)
        return squares.clamp_min(0).sqrt()


@dataclass
class Record:
    """Recorded attention weights by layer name, which is the layer's path in the model.

    Each call appends its rows, so decoding step by step records the same matrix as one full pass.
    """

    needs_outputs: ClassVar[bool] = True  # False: a layer that it wants may leave out its attention, and output zeros
    wanted: Callable[[str], bool] = lambda name: True
    rows: dict[str, list[Tensor]] = field(default_factory=dict)
    buckets: dict[str, list[Tensor]] = field(default_factory=dict)  # of LSH layers: BHTR, one tensor per call

    @torch.no_grad()
    def record_attention(self, name: str, weights: AttentionWeights, output: Tensor) -> None:
        """Take a layer's attention weights (here all at once) and its output BHTV, before ablation and W^O."""
        self.write(name, weights.weights(slice(0, weights.queries)))

    def record_buckets(self, name: str, buckets: Tensor) -> None:
        """Append the buckets into which an LSH layer hashed its tokens."""
        self.buckets.setdefault(name, []).append(buckets)

    def write(self, name: str, weights: Tensor) -> None:
        """Append BHTS weights under a layer's name."""
        self.rows.setdefault(name, []).append(weights.detach())

    def matrix(self, name: str) -> Tensor:
        """All rows of a layer as one BHTS tensor; keys of later calls have weight 0."""
        parts = self.rows[name]
        keys = max(part.shape[-1] for part in parts)
        return torch.cat([nn.functional.pad(part, (0, keys - part.shape[-1])) for part in parts], dim=2)
