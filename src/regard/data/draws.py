"""The order of an epoch: a shuffle that needs no memory, so that any place in it costs the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError, suggest

Indices = NDArray[np.int64]

_ROUNDS = 6


@dataclass(frozen=True)
class Share:
    """So many samples of one corpus, each of which comes `weight` times an epoch."""

    samples: int
    weight: float = 1.0

    @property
    def times(self) -> int:
        """How often one of them is drawn in an epoch."""
        return max(1, round(self.samples * self.weight)) if self.samples and self.weight else 0


@dataclass(frozen=True)
class Order:
    """Which sample stands at which place of each epoch: a pure function of (seed, epoch, place)."""

    shares: tuple[Share, ...]
    seed: int

    def __len__(self) -> int:
        return int(self._ends[-1])

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """The samples at places `start` to `stop` of an epoch."""
        places = permuted(np.arange(start, min(stop, len(self))), len(self), (self.seed, epoch))
        samples = np.empty_like(places)
        owners = np.searchsorted(self._ends, places, side="right")
        first = 0
        for number, share in enumerate(self.shares):
            mine = owners == number
            turn = places[mine] - (self._ends[number] - share.times)
            if share.samples and share.times % share.samples:  # the last turn takes some only: others each epoch
                turn = permuted(turn % share.samples, share.samples, (self.seed, epoch, number + 1))
            samples[mine] = first + turn % max(1, share.samples)
            first += share.samples
        return samples

    @cached_property
    def _ends(self) -> Indices:
        return np.cumsum([share.times for share in self.shares], dtype=np.int64)


def permuted(places: Indices, count: int, key: tuple[int, ...]) -> Indices:
    """Where each place of 0 to count - 1 goes in a shuffle of them all (a Feistel network, walked until inside)."""
    half = np.uint64(max(1, ((max(1, count) - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    # Raw words of a bit generator are promised to stay the same in every version of NumPy; permutations are not.
    keys = np.asarray(np.random.PCG64(list(key)).random_raw(_ROUNDS), dtype=np.uint64)
    values = places.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (stirred(right ^ round_key) & mask)
        values[outside] = (left << half) | right
        outside = values >= count
    return values.astype(np.int64)


def stirred(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers in which every bit depends on all bits of the one given (the end of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


Drawn = NDArray[np.float64]

_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


@dataclass(frozen=True, eq=False)
class Draws:
    """What is drawn for some samples; without a draw (validation) it follows from the sample alone."""

    draw: int | None
    samples: Indices

    def uniform(self, purpose: int, width: int) -> Drawn:
        """Samples by width: numbers from 0 to below 1; other ones for each purpose, and more columns change none."""
        key = [purpose, 0] if self.draw is None else [purpose, 1, self.draw]
        # As in the order of an epoch: raw words of a bit generator stay the same in every version of NumPy.
        first, second = np.asarray(np.random.PCG64(key).random_raw(2), dtype=np.uint64)
        rows = stirred(stirred(self.samples.astype(np.uint64) + first) ^ second)
        words = stirred(rows[:, None] + np.arange(1, width + 1, dtype=np.uint64) * _STEP)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53)

    def below(self, purpose: int, limits: Indices) -> Indices:
        """A whole number for each sample, from 0 to below its limit."""
        return np.asarray((self.uniform(purpose, 1)[:, 0] * limits).astype(np.int64))


Split = Literal["train", "valid", "test"]


def split_of(name: str) -> Split:
    """The split a name belongs to, by a hash of the name alone: 18 in 20 train, 1 valid, 1 test."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 20
    return "valid" if share == 0 else "test" if share == 1 else "train"


def require_split(split: str) -> None:
    """Refuse a split that does not exist."""
    if split not in get_args(Split):
        raise InputError(f'unknown split "{split}". {suggest(split, get_args(Split))}')
