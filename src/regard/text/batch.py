"""Batches, and the order in which samples come: a pure function of seed, epoch and index."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import InputError

IGNORE = -100
_POOL = 100

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """What a network is given and what it should answer, with IGNORE where nothing is asked: BT."""

    inputs: dict[str, Tensor]
    targets: Tensor
    samples: tuple[int, ...]

    @cached_property
    def tokens(self) -> int:
        """How many targets are to be predicted."""
        return int((self.targets != IGNORE).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        inputs = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        moved = Batch(inputs, self.targets.to(device, non_blocking=True), self.samples)
        # Counted before the move, because counting on a GPU would wait for it.
        vars(moved)["tokens"] = self.tokens
        return moved


@dataclass(frozen=True, eq=False)
class Plan:
    """Which samples each optimizer step takes: alike in length, at most `batch_tokens` padded tokens, all sides."""

    lengths: NDArray[np.int64]
    batch_tokens: int
    seed: int
    _last: dict[int, list[Indices]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise InputError(f"a batch of {self.batch_tokens} tokens is empty (train.batch_tokens). Use 1 or more.")
        if self.seed < 0:
            raise InputError(f"seed {self.seed} is negative (train.seed). Use 0 or more.")

    def epoch(self, number: int) -> list[Indices]:
        """The samples of each step of an epoch: shuffled, sorted by length inside pools, cut, shuffled again."""
        if number not in self._last:
            steps = self._draw(number)
            self._last.clear()
            self._last[number] = steps
        return self._last[number]

    def in_order(self) -> list[Indices]:
        """Every sample once, from short to long: for validation, where the order does not matter."""
        order = self._sorted(np.arange(len(self.lengths)))
        return self._cut(order)

    def _draw(self, number: int) -> list[Indices]:
        # Raw words of a bit generator are promised to stay the same in every version of NumPy; permutations are not.
        generator = np.random.PCG64([self.seed, number])
        order = _permutation(generator, len(self.lengths))
        average = max(1.0, float(self.lengths.sum()) / max(1, len(order)))
        pool = max(1, int(_POOL * self.batch_tokens / average))
        pools = [self._sorted(order[start : start + pool]) for start in range(0, len(order), pool)]
        steps = [step for samples in pools for step in self._cut(samples)]
        return [steps[place] for place in _permutation(generator, len(steps))]

    def _sorted(self, samples: Indices) -> Indices:
        """Samples from short to long, by the longest side, then by each; equals stay in order."""
        lengths = self.lengths[samples]
        return samples[np.lexsort((*lengths.T[::-1], lengths.max(1)))]

    def _cut(self, samples: Indices) -> list[Indices]:
        """Runs of samples as long as the budget allows; a sample beyond the budget stands alone."""
        lengths = self.lengths[samples]
        steps, start = [], 0
        while start < len(samples):
            most = max(1, self.batch_tokens // max(1, int(lengths[start].sum())))
            longest = np.maximum.accumulate(lengths[start : start + most], axis=0).sum(1)
            padded = longest * np.arange(1, len(longest) + 1)
            count = max(1, int(np.searchsorted(padded, self.batch_tokens, side="right")))
            steps.append(samples[start : start + count])
            start += count
        return steps


def split(indices: Indices, parts: int) -> list[Indices]:
    """A step's samples dealt round among ranks or accumulated parts; some may get none."""
    return [indices[part::parts] for part in range(parts)]


def _permutation(generator: np.random.PCG64, count: int) -> Indices:
    return np.asarray(generator.random_raw(count), dtype=np.uint64).argsort(kind="stable")
