"""Batches, the batch sampler (token-budget batches of similar length), and stateless randomness.

Every draw is a pure function of seeds and indices, so any epoch and step is reached in O(1) and a run resumes
bit-identically.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import InputError

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

IGNORE_INDEX = -100  # a target without loss, as in PyTorch
_POOL = 100  # batches per pool
_ROUNDS = 6
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # increment of SplitMix64


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of a network and its targets: BT (or BT2), or B for whole texts; IGNORE_INDEX where there is no loss.

    `auxiliary` has the targets of the auxiliary readout.
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    samples: tuple[int, ...]
    auxiliary: Tensor | None = None

    @cached_property
    def tokens(self) -> int:
        """The number of targets that have a loss."""
        return int((self.targets != IGNORE_INDEX).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        inputs = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        auxiliary = None if self.auxiliary is None else self.auxiliary.to(device, non_blocking=True)
        moved = Batch(inputs, self.targets.to(device, non_blocking=True), self.samples, auxiliary)
        # Counted before the move, because counting on a GPU would wait for it.
        vars(moved)["tokens"] = self.tokens
        return moved


@dataclass(frozen=True)
class Cursor:
    """The position of a run in its data: completed epochs, pools of this epoch and steps of this pool."""

    epoch: int = 0
    pool: int = 0
    step: int = 0


@dataclass(frozen=True)
class MixtureComponent:
    """The samples of one subcorpus, each of which occurs `weight` times per epoch."""

    samples: int
    weight: float = 1.0

    @property
    def per_epoch(self) -> int:
        """How many samples of this component an epoch has."""
        return max(1, round(self.samples * self.weight)) if self.samples and self.weight else 0


@dataclass(frozen=True)
class EpochOrder:
    """The shuffled order of samples: a pure function of (seed, epoch, index)."""

    mixture: tuple[MixtureComponent, ...]
    seed: int

    def __len__(self) -> int:
        return int(self._ends[-1])

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """The samples at indices `start` to `stop` of an epoch."""
        indices = permute(np.arange(start, min(stop, len(self))), len(self), (self.seed, epoch))
        samples = np.empty_like(indices)
        owners = np.searchsorted(self._ends, indices, side="right")
        first = 0
        for number, component in enumerate(self.mixture):
            own = owners == number
            turn = indices[own] - (self._ends[number] - component.per_epoch)
            if component.samples and component.per_epoch % component.samples:
                # The last repetition is incomplete: it takes other samples in each epoch.
                turn = permute(turn % component.samples, component.samples, (self.seed, epoch, number + 1))
            samples[own] = first + turn % max(1, component.samples)
            first += component.samples
        return samples

    @cached_property
    def _ends(self) -> Indices:
        return np.cumsum([component.per_epoch for component in self.mixture], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class BatchSampler:
    """The samples of each optimizer step: of similar length, at most `batch_tokens` padded tokens over all sides.

    An epoch is shuffled and cut into pools; the samples of a pool are sorted by length and cut into steps, and the
    steps are shuffled. A step depends on its own pool only, so any cursor is reached in O(1).
    """

    lengths: NDArray[np.integer[Any]]  # samples by sides
    batch_tokens: int
    seed: int
    mixture: tuple[MixtureComponent, ...] = ()  # of several corpora; (): each sample once per epoch
    streams: int = 0  # parallel streams, of which a step takes the next sample each; 0: shuffled samples
    _last: dict[tuple[int, int], list[Indices]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise InputError(f"a batch of {self.batch_tokens} tokens is empty (train.batch_tokens). Use 1 or more.")
        if self.seed < 0:
            raise InputError(f"seed {self.seed} is negative (train.seed). Use 0 or more.")

    def next_step(self, cursor: Cursor) -> tuple[Indices, Cursor]:
        """The samples of the step at a cursor, and the cursor after it."""
        steps = self.pool(cursor.epoch, cursor.pool)
        if cursor.step + 1 < len(steps):
            after = replace(cursor, step=cursor.step + 1)
        elif cursor.pool + 1 < self.pools:
            after = Cursor(cursor.epoch, cursor.pool + 1)
        else:
            after = Cursor(cursor.epoch + 1)
        return steps[cursor.step], after

    def epoch(self, number: int) -> list[Indices]:
        """The samples of each step of an epoch."""
        return [step for pool in range(self.pools) for step in self.pool(number, pool)]

    def pool(self, epoch: int, number: int) -> list[Indices]:
        """The samples of each step of a pool."""
        if self.streams:
            return self._stream_steps
        if (epoch, number) not in self._last:
            samples = self._order.at(epoch, number * self._pool_size, (number + 1) * self._pool_size)
            steps = self._cut(self._sort(samples))
            order = permute(np.arange(len(steps)), len(steps), (self.seed, epoch, 0, number))
            self._last.clear()
            self._last[epoch, number] = [steps[index] for index in order]
        return self._last[epoch, number]

    def in_order(self) -> list[Indices]:
        """Every sample once, from short to long, or streams from start to end: for validation."""
        return self._stream_steps if self.streams else self._cut(self._sort(np.arange(len(self.lengths))))

    @cached_property
    def pools(self) -> int:
        """The number of pools per epoch."""
        return 1 if self.streams else -(-len(self._order) // self._pool_size)

    @cached_property
    def _stream_steps(self) -> list[Indices]:
        return np.split(np.arange(len(self.lengths)), len(self.lengths) // self.streams)

    @cached_property
    def _order(self) -> EpochOrder:
        order = EpochOrder(self.mixture or (MixtureComponent(len(self.lengths)),), self.seed)
        if not len(order) and len(self.lengths):
            raise InputError("an epoch has no texts (text.train). Give a corpus a weight above 0.")
        return order

    @cached_property
    def _pool_size(self) -> int:
        average = max(1.0, float(self.lengths.sum(dtype=np.int64)) / max(1, len(self.lengths)))
        return max(1, int(_POOL * self.batch_tokens / average))

    def _sort(self, samples: Indices) -> Indices:
        """Samples from short to long, by the longest side, then by each side; a stable sort."""
        lengths = self.lengths[samples]
        return samples[np.lexsort((*lengths.T[::-1], lengths.max(1)))]

    def _cut(self, samples: Indices) -> list[Indices]:
        """Cut sorted samples into steps as large as the budget allows; a sample above it is a step by itself."""
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
    """Split the samples of a step among ranks or accumulation steps, round robin; some parts may be empty."""
    return [indices[part::parts] for part in range(parts)]


def permute(indices: Indices, count: int, key: tuple[int, ...]) -> Indices:
    """The images of indices under a random permutation of range(count): a Feistel network with cycle walking."""
    half = np.uint64(max(1, ((max(1, count) - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    # NumPy promises that raw output of a bit generator is the same in every version; permutations are not.
    keys = np.asarray(np.random.PCG64(list(key)).random_raw(_ROUNDS), dtype=np.uint64)
    values = indices.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (mixed(right ^ round_key) & mask)
        values[outside] = (left << half) | right
        outside = values >= count
    return values.astype(np.int64)


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: every output bit depends on all input bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class SampleRandom:
    """Counter-based random numbers per sample; without a seed (validation) they depend on the sample only."""

    seed: int | None
    samples: Indices

    def uniform(self, purpose: int, width: int) -> Floats:
        """Samples by width: uniform in [0, 1), different for each purpose; more columns do not change the first."""
        key = [purpose, 0] if self.seed is None else [purpose, 1, self.seed]
        # Raw output, as in `permute`.
        first, second = np.asarray(np.random.PCG64(key).random_raw(2), dtype=np.uint64)
        rows = mixed(mixed(self.samples.astype(np.uint64) + first) ^ second)
        words = mixed(rows[:, None] + np.arange(1, width + 1, dtype=np.uint64) * _GOLDEN_GAMMA)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53)

    def integers(self, purpose: int, limits: Indices) -> Indices:
        """For each sample an integer from 0 to below its limit."""
        return np.asarray((self.uniform(purpose, 1)[:, 0] * limits).astype(np.int64))
