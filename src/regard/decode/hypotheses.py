"""Hypotheses of a search: those of finished sentences, those finished so far as tensors, the candidates of a step."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers.contract import concatenate


@dataclass(frozen=True)
class Hypothesis:
    """A generated sequence: the tokens after the prompt, without the end token."""

    tokens: tuple[int, ...]
    score: float  # what the search ranks by: log-probability over length penalty, plus coverage penalty
    log_probability: float
    ended: bool  # by an end token or a stop string, not by the length limit


EMPTY = Hypothesis((), 0.0, 0.0, False)
"""The result where no token can be generated."""


@dataclass(frozen=True)
class FinishedHypotheses:
    """Finished hypotheses as tensors, A sentences by k (by L tokens), best first; score minus infinity: none."""

    scores: Tensor
    sums: Tensor
    lengths: Tensor
    ended: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, sentences: int, size: int, device: torch.device) -> FinishedHypotheses:
        low = torch.full((sentences, size), -torch.inf, device=device)
        zeros = torch.zeros(sentences, size, dtype=torch.long, device=device)
        return cls(low, low, zeros, zeros.bool(), zeros[..., None][..., :0])

    def merge(self, other: FinishedHypotheses) -> FinishedHypotheses:
        """The best k of both."""
        _, order = torch.cat([self.scores, other.scores], dim=1).topk(self.scores.shape[1], dim=1)

        def pick(mine: Tensor, theirs: Tensor) -> Tensor:
            if mine.dim() == 2:
                return torch.cat([mine, theirs], dim=1).gather(1, order)
            longer = F.pad(mine, (0, theirs.shape[2] - mine.shape[2]))
            return torch.cat([longer, theirs], dim=1).gather(1, order[..., None].expand(-1, -1, theirs.shape[2]))

        return FinishedHypotheses(*(pick(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))

    def select(self, sentences: Tensor) -> FinishedHypotheses:
        return FinishedHypotheses(*(getattr(self, f.name)[sentences] for f in fields(self)))

    def join(self, other: FinishedHypotheses) -> FinishedHypotheses:
        """The sentences of both, one after the other."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return FinishedHypotheses(*(concatenate(mine, theirs) for mine, theirs in pairs))

    def n_best(self, sentence: int, count: int) -> list[Hypothesis]:
        columns = [getattr(self, f.name)[sentence].tolist() for f in fields(self)]
        return [
            Hypothesis(tuple(tokens[:length]), score, total, ended)
            for score, total, length, ended, tokens in zip(*columns)
            if score > -torch.inf
        ][:count]


@dataclass(frozen=True)
class Candidates:
    """The candidates of one step: A sentences by c continuations."""

    sums: Tensor  # summed log-probabilities
    parents: Tensor  # the beam that each continues
    tokens: Tensor  # A c L, the new token last
    eos: Tensor  # whether the new token is an end token
    finished: Tensor  # by an end token, a stop string or the limit
    at_limit: Tensor  # by the limit
    log_probabilities: Tensor  # A k N: of all next tokens, under the options' constraints
