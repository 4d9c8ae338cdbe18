"""Batches, and the order in which samples come: a pure function of seed, epoch and index."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.draws import Indices, Order, Share, permuted
from regard.errors import InputError

IGNORE = -100
_POOL = 100


@dataclass(frozen=True, eq=False)
class Batch:
    """What a network is given and what it should answer, with IGNORE where nothing is asked: BT, or B of whole texts.

    `aside` is what it should say of each text besides.
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    samples: tuple[int, ...]
    auxiliary: Tensor | None = None

    @cached_property
    def tokens(self) -> int:
        """How many targets are to be predicted."""
        return int((self.targets != IGNORE).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        inputs = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        auxiliary = None if self.auxiliary is None else self.auxiliary.to(device, non_blocking=True)
        moved = Batch(inputs, self.targets.to(device, non_blocking=True), self.samples, auxiliary)
        # Counted before the move, because counting on a GPU would wait for it.
        vars(moved)["tokens"] = self.tokens
        return moved


@dataclass(frozen=True)
class Place:
    """Where a run stands in its data: so many epochs, pools of this epoch and steps of this pool are done."""

    epoch: int = 0
    pool: int = 0
    step: int = 0


@dataclass(frozen=True, eq=False)
class Plan:
    """Which samples each optimizer step takes: alike in length, at most `batch_tokens` padded tokens, all sides.

    An epoch is shuffled and taken pool by pool; inside a pool samples are sorted by length, cut into steps, and the
    steps shuffled. Only one pool is ever looked at, so any place of any epoch is reached at once.
    """

    lengths: NDArray[np.integer[Any]]
    batch_tokens: int
    seed: int
    shares: tuple[Share, ...] = ()  # of several corpora; none: each sample once an epoch
    lanes: int = 0  # read abreast, a step taking the next sample of each; none: samples come in any order
    _last: dict[tuple[int, int], list[Indices]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise InputError(f"a batch of {self.batch_tokens} tokens is empty (train.batch_tokens). Use 1 or more.")
        if self.seed < 0:
            raise InputError(f"seed {self.seed} is negative (train.seed). Use 0 or more.")

    def take(self, place: Place) -> tuple[Indices, Place]:
        """The samples of the step at a place, and the place after it."""
        steps = self.pool(place.epoch, place.pool)
        if place.step + 1 < len(steps):
            after = replace(place, step=place.step + 1)
        elif place.pool + 1 < self.pools:
            after = Place(place.epoch, place.pool + 1)
        else:
            after = Place(place.epoch + 1)
        return steps[place.step], after

    def epoch(self, number: int) -> list[Indices]:
        """The samples of each step of an epoch."""
        return [step for pool in range(self.pools) for step in self.pool(number, pool)]

    def pool(self, epoch: int, number: int) -> list[Indices]:
        """The samples of each step of a pool."""
        if self.lanes:
            return self._abreast
        if (epoch, number) not in self._last:
            samples = self._order.at(epoch, number * self._pool, (number + 1) * self._pool)
            steps = self._cut(self._sorted(samples))
            order = permuted(np.arange(len(steps)), len(steps), (self.seed, epoch, 0, number))
            self._last.clear()
            self._last[epoch, number] = [steps[place] for place in order]
        return self._last[epoch, number]

    def in_order(self) -> list[Indices]:
        """Every sample once, from short to long, or lanes as they go on: for validation."""
        return self._abreast if self.lanes else self._cut(self._sorted(np.arange(len(self.lengths))))

    @cached_property
    def pools(self) -> int:
        """How many pools an epoch has."""
        return 1 if self.lanes else -(-len(self._order) // self._pool)

    @cached_property
    def _abreast(self) -> list[Indices]:
        return np.split(np.arange(len(self.lengths)), len(self.lengths) // self.lanes)

    @cached_property
    def _order(self) -> Order:
        order = Order(self.shares or (Share(len(self.lengths)),), self.seed)
        if not len(order) and len(self.lengths):
            raise InputError("no text comes in an epoch (text.train). Give a corpus a weight above 0.")
        return order

    @cached_property
    def _pool(self) -> int:
        average = max(1.0, float(self.lengths.sum(dtype=np.int64)) / max(1, len(self.lengths)))
        return max(1, int(_POOL * self.batch_tokens / average))

    def _sorted(self, samples: Indices) -> Indices:
        """Samples from short to long, by the longest side, then by each; equals stay in order."""
        lengths = self.lengths[samples]
        return samples[np.lexsort((*lengths.T[::-1], lengths.max(1)))]

    def _cut(self, samples: Indices) -> list[Indices]:
        """Runs of samples as long as the budget allows; a sample beyond the budget stands alone."""
        lengths = np.asarray(self.lengths[samples], dtype=np.int64)
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
