"""What a search has finished: the hypotheses of each sentence, best first."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """Something a model said: the tokens after the prompt, without the end token."""

    tokens: tuple[int, ...]
    score: float  # what the search ranked it by
    log_probability: float
    ended: bool  # said its end token or a stop string, rather than running into the limit


NOTHING = Hypothesis((), 0.0, 0.0, False)
"""What is said when nothing may be."""


@dataclass(frozen=True)
class Pool:
    """Finished hypotheses as tensors: A sentences by k places (by L tokens); minus infinity marks an empty place."""

    scores: Tensor
    sums: Tensor
    lengths: Tensor
    ended: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, sentences: int, places: int, device: torch.device) -> Pool:
        """A pool without hypotheses."""
        low = torch.full((sentences, places), -torch.inf, device=device)
        none = torch.zeros(sentences, places, dtype=torch.long, device=device)
        return cls(low, low, none, none.bool(), none[..., None][..., :0])

    def merged(self, other: Pool) -> Pool:
        """The best of both, as many as before."""
        _, order = torch.cat([self.scores, other.scores], dim=1).topk(self.scores.shape[1], dim=1)

        def pick(mine: Tensor, theirs: Tensor) -> Tensor:
            if mine.dim() == 2:
                return torch.cat([mine, theirs], dim=1).gather(1, order)
            longer = torch.nn.functional.pad(mine, (0, theirs.shape[2] - mine.shape[2]))
            return torch.cat([longer, theirs], dim=1).gather(1, order[..., None].expand(-1, -1, theirs.shape[2]))

        return Pool(*(pick(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))

    def select(self, sentences: Tensor) -> Pool:
        """The pool of these sentences."""
        return Pool(*(getattr(self, f.name)[sentences] for f in fields(self)))

    def hypotheses(self, sentence: int, most: int) -> list[Hypothesis]:
        """The best `most` of a sentence."""
        columns = [getattr(self, f.name)[sentence].tolist() for f in fields(self)]
        return [
            Hypothesis(tuple(tokens[:length]), score, total, ended)
            for score, total, length, ended, tokens in zip(*columns)
            if score > -torch.inf
        ][:most]
