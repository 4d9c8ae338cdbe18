"""Numbers drawn for samples: a pure function of the draw and the sample, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.text.order import Indices, stirred

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
