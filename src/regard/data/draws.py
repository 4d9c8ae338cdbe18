"""Stateless randomness: the shuffled order of an epoch, random numbers per sample, and splits by hash.

All of it is a pure function of seeds and indices, so any epoch and step is reached in O(1) and a run resumes
bit-identically.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError, suggest

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

_ROUNDS = 6
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # increment of SplitMix64


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


Split = Literal["train", "valid", "test"]


def split_of(name: str) -> Split:
    """The split of a name, by a hash of the name: 18 in 20 train, 1 valid, 1 test."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 20
    return "valid" if share == 0 else "test" if share == 1 else "train"


def require_split(split: str) -> None:
    """Refuse a split that does not exist."""
    if split not in get_args(Split):
        raise InputError(f'unknown split "{split}". {suggest(split, get_args(Split))}')
