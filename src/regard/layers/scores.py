"""Score functions of attention: dot product, general, additive (Luong 2015, section 3.1). Keys are projected once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.record import ScoreInputs


class ScoreFunction(nn.Module):
    """Queries BHTK and keys BHSK -> scores BHTS. With a `scale` it is a dot product, which fused kernels know."""

    scale: float | None = None
    init_gain: float = 1.0  # of the query projection's initial weights, where no scale keeps the scores small

    def queries(self, q: Tensor) -> Tensor:
        """BHTK -> BHTK': queries as they are compared."""
        return q

    def keys(self, k: Tensor) -> Tensor:
        """BHSK -> BHSK': keys as they are compared, and kept in the KV cache."""
        return k

    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        """BHTK', BHSK' -> BHTS: both sides already projected."""
        assert self.scale is not None
        return q @ k.transpose(-1, -2) * self.scale

    def score_inputs(self, q: Tensor, k: Tensor) -> ScoreInputs | None:
        """BHTK', BHSK' -> the comparison as data, for a record; None if it is no dot product."""
        return None if self.scale is None else ScoreInputs("dot", q, k, self.scale)


@dataclass(frozen=True)
class Dot:
    """q·k (Luong), divided by the square root of the key width when `scaled` (Vaswani 2017), times a factor."""

    scaled: bool = True
    factor: float = 1.0

    def build(self, query_width: int, key_width: int, heads: int = 1) -> ScoreFunction:
        """The score function over heads of these widths."""
        if query_width != key_width:
            raise InputError(f"a dot product needs equal widths, got {query_width} and {key_width}. Try general.")
        unit_variance = 1 / math.sqrt(key_width)  # keeps the products of random vectors near 1
        scale = self.factor * (unit_variance if self.scaled else 1.0)
        return DotScore(scale, 1.0 if self.scaled else unit_variance)


class DotScore(ScoreFunction):
    def __init__(self, scale: float, init_gain: float) -> None:
        super().__init__()
        self.scale, self.init_gain = scale, init_gain


@dataclass(frozen=True)
class General:
    """q·Wk (Luong 2015, equation 8): one matrix between query and key."""

    def build(self, query_width: int, key_width: int, heads: int = 1) -> ScoreFunction:
        return GeneralScore(query_width, key_width, heads)


class GeneralScore(ScoreFunction):
    scale = 1.0

    def __init__(self, query_width: int, key_width: int, heads: int) -> None:
        super().__init__()
        self.matrix = matrix_per_head(heads, key_width, query_width)

    def keys(self, k: Tensor) -> Tensor:
        return per_head(k, self.matrix)


@dataclass(frozen=True)
class ReducedRank:
    """(Uq)·(Vk): `general` with a matrix of low rank."""

    rank: int = 16

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"rank must be 1 or more, got {self.rank}.")

    def build(self, query_width: int, key_width: int, heads: int = 1) -> ScoreFunction:
        return ReducedRankScore(query_width, key_width, heads, self.rank)


class ReducedRankScore(ScoreFunction):
    scale = 1.0

    def __init__(self, query_width: int, key_width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.query_matrix = matrix_per_head(heads, query_width, rank)
        self.key_matrix = matrix_per_head(heads, key_width, rank)

    def queries(self, q: Tensor) -> Tensor:
        return per_head(q, self.query_matrix)

    def keys(self, k: Tensor) -> Tensor:
        return per_head(k, self.key_matrix)


@dataclass(frozen=True)
class Additive:
    """v·tanh(Wq + Uk) (Bahdanau 2014, appendix A.1.2); `inner` is the hidden width, by default the query's."""

    inner: int | None = None

    def build(self, query_width: int, key_width: int, heads: int = 1) -> ScoreFunction:
        return AdditiveScore(query_width, key_width, heads, self.inner or query_width)


class AdditiveScore(ScoreFunction):
    def __init__(self, query_width: int, key_width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.query_matrix = matrix_per_head(heads, query_width, inner)
        self.key_matrix = matrix_per_head(heads, key_width, inner)
        self.vector = matrix_per_head(heads, inner, 1)

    def queries(self, q: Tensor) -> Tensor:
        return per_head(q, self.query_matrix)

    def keys(self, k: Tensor) -> Tensor:
        return per_head(k, self.key_matrix)

    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        return per_head(torch.tanh(q[:, :, :, None] + k[:, :, None]), self.vector).squeeze(-1)

    def score_inputs(self, q: Tensor, k: Tensor) -> ScoreInputs:
        return ScoreInputs("additive", q, k, vector=self.vector.squeeze(-1))


@dataclass(frozen=True)
class Uniform:
    """Every score is 0: attention becomes mean pooling over the visible keys."""

    def build(self, query_width: int, key_width: int, heads: int = 1) -> ScoreFunction:
        return UniformScore()


class UniformScore(ScoreFunction):
    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        # Zero, but computed from both sides: every parameter gets a gradient, which is zero.
        return 0 * (q[..., :1] + k[..., :1].transpose(-1, -2))

    def score_inputs(self, q: Tensor, k: Tensor) -> ScoreInputs:
        return ScoreInputs("uniform", q, k)


def matrix_per_head(heads: int, rows: int, columns: int) -> nn.Parameter:
    """One matrix per head: H, rows, columns."""
    bound = math.sqrt(6 / (rows + columns))
    return nn.Parameter(torch.empty(heads, rows, columns).uniform_(-bound, bound))


def per_head(x: Tensor, matrices: Tensor) -> Tensor:
    """BH...K by HKJ -> BH...J: one matrix product per head over all rows at once."""
    heads = x.transpose(0, 1)
    product = torch.bmm(heads.reshape(len(heads), -1, x.shape[-1]), matrices)
    return product.view(*heads.shape[:-1], matrices.shape[-1]).transpose(0, 1)


Score = Dot | General | ReducedRank | Additive | Uniform
