"""Memory: how much is available, what the steps of a throw-away network take, and the largest batch that fits."""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard import messages
from regard.data.batching import BatchSampler, Indices
from regard.data.samples import Samples
from regard.models.device import available, own_memory
from regard.models.model import Network
from regard.store.folder import unique_parameters
from regard.training.optimizers import trainable_parameters
from regard.training.settings import Training
from regard.training.step import Trainer

SHARE = 0.7  # of the memory, for steps; validations and checkpoints need the rest
_SIZES = tuple(1024 << power for power in range(7))
_POOLS = 50  # sampled to estimate an epoch
_STEPS_PER_EPOCH = 200  # at least, of the largest batch: fewer learn slowly, however fast they are
_FASTER = 1.05  # a larger batch is worth its fewer steps if it reads so many times the tokens per second

# glibc's malloc: parameter numbers, and the smallest and largest size from which it returns freed blocks to the system.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_SMALLEST, _LARGEST = 128 << 10, 32 << 20


def peak(work: Callable[[], object], device: torch.device, *, exact: bool = True) -> int:
    """Do some work; -> its peak memory in bytes, beyond what was allocated before.

    On a CPU this is resident memory on Linux; other systems report only the peak of the whole process. If exact, freed
    blocks that the C library retains do not count, as they depend on earlier work; returning them is slower.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before: int = torch.cuda.memory_allocated(device)
        work()
        highest: int = torch.cuda.max_memory_allocated(device)
        return highest - before
    with suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)  # work that reused freed memory would seem to need none
    try:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before, name = own_memory("VmRSS"), "VmHWM"
    except OSError:
        before, name = _highest(), ""
    with _nothing_retained() if exact else nullcontext():
        work()
    return max(0, (own_memory(name) if name else _highest()) - before)


@contextmanager
def _nothing_retained() -> Iterator[None]:
    """Make the C library return large blocks when they are freed; afterwards it retains them again, which is faster."""
    _retain_blocks_below(_SMALLEST)
    try:
        yield
    finally:
        _retain_blocks_below(_LARGEST)


def _retain_blocks_below(size: int) -> None:
    with suppress(AttributeError, OSError):
        for name, value in ((_MMAP_THRESHOLD, size), (_TRIM_THRESHOLD, 2 * size)):
            ctypes.CDLL(None).mallopt(name, value)


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@dataclass(frozen=True)
class Memory:
    """Memory of training, in bytes."""

    weights: int
    gradients: int
    optimizer: int
    ema: int
    activations: int  # of the largest step, or of its largest micro-batch
    measured: bool  # False: extrapolated from fewer samples
    available: int

    @property
    def static(self) -> int:
        """What stays allocated from step to step."""
        return self.weights + self.gradients + self.optimizer + self.ema

    @property
    def total(self) -> int:
        """Peak memory."""
        return self.static + self.activations


@dataclass(frozen=True, eq=False)
class Epoch:
    """The size of an epoch; a long one is estimated from some of its pools."""

    steps: int
    tokens: int
    exact: bool
    largest: Indices  # the samples of the step with most padded tokens


def first_epoch(batches: BatchSampler) -> Epoch:
    """The size of the first epoch."""
    pools = np.unique(np.linspace(0, batches.pools - 1, min(batches.pools, _POOLS)).astype(int)).tolist()
    steps = [step for pool in pools for step in batches.pool(0, pool)]
    share = sum(map(len, steps)) / (sum(one.per_epoch for one in batches.mixture) or len(batches.lengths))
    tokens = sum(int(batches.lengths[step].sum(dtype=np.int64)) for step in steps)
    largest = max(steps, key=lambda step: len(step) * int(batches.lengths[step].max(0).sum()))
    return Epoch(round(len(steps) / share), round(tokens / share), len(pools) == batches.pools, largest)


def static_memory(network: Network, settings: Training, device: torch.device, processes: int = 1) -> Memory:
    """The memory of training without activations, reckoned from a network on the meta device: nothing is allocated."""
    trained = trainable_parameters(network, settings.groups, settings.layer_decay)
    weights, bytes_each = nbytes(network.parameters()), 4
    changing = nbytes(unique_parameters(network).values())
    shards = processes if settings.parallel == "shard" else 1
    return Memory(
        weights=weights, gradients=nbytes(one.parameter for one in trained) // shards,
        optimizer=bytes_each * settings.optimizer.state_size(trained) // shards,
        ema=changing // shards if settings.ema is not None else 0, activations=0, measured=False,
        available=available(device),
    )  # fmt: skip


class Probe:
    """Takes steps only to measure them."""

    def __init__(self, network: Callable[[], Network], samples: Samples, settings: Training, device: torch.device):
        self.room = available(device)
        self.trainer = Trainer(network(), samples, settings, device)
        # The first step allocates the optimizer state and loads what only a step needs.
        longest = np.argmax(samples.lengths.sum(1), keepdims=True)
        if self.trainer.try_gradient(longest) is None:
            raise messages.OUT_OF_MEMORY(step=1, length=int(samples.lengths[longest].sum()))
        self.trainer.optimizer.step(0.0)

    def memory(self, step: Indices, share: float = 1.0) -> Memory:
        """The memory of a step; a larger part runs only if smaller ones predict that it fits into a share of memory."""
        trainer = self.trainer
        gradients = [parameter.grad for parameter in trainer.network.parameters() if parameter.grad is not None]
        weights, state = trainer.network.parameters(), trainer.optimizer.tensors()
        static = Memory(
            nbytes(weights), nbytes(gradients), nbytes(state.values()), nbytes((trainer.ema or {}).values()),
            activations=0, measured=True, available=self.room,
        )  # fmt: skip
        # An eighth, a half, all of the samples: smaller parts are computed in another way (`layers/linear.py`).
        counts = sorted({max(min(trainer.accumulate, len(step)), len(step) // part) for part in (8, 2, 1)})
        found: list[tuple[int, int]] = []
        for count in counts:
            if static.total + extrapolated(found, count) > share * self.room:
                break
            found.append((count, self.activations(step[-count:])))
        measured = bool(found) and found[-1][0] == len(step)
        return replace(static, activations=extrapolated(found, len(step)), measured=measured)

    def activations(self, step: Indices) -> int:
        """Peak memory of a step beyond the static memory; more than is available when memory ran out."""
        done: list[object] = []
        # The first run also compiles code for the shapes of this step (oneDNN), which is no activation and stays.
        found = min(peak(lambda: done.append(self.trainer.try_gradient(step)), self.trainer.device) for _ in range(2))
        return found if None not in done else max(found, self.room + 1)

    def speed(self, step: Indices, seconds: float = 1.0) -> float:
        """Tokens per second of the gradient of this step: the best of three, or of as many as time allows."""
        tokens, found = int(self.trainer.batches.lengths[step].sum()), [0.0]
        end = time.perf_counter() + seconds
        while len(found) < 2 or (len(found) < 4 and time.perf_counter() < end):
            start = time.perf_counter()
            self.trainer.try_gradient(step)
            if self.trainer.device.type == "cuda":
                torch.cuda.synchronize(self.trainer.device)
            found.append(tokens / (time.perf_counter() - start))
        return max(found)

    def speeds(self, seconds: float, most: int = 10) -> list[float]:
        """Tokens per second of the next steps: as many as time allows, at least one."""
        found: list[float] = []
        end = time.perf_counter() + seconds
        while not found or (len(found) < most and time.perf_counter() < end):
            start = time.perf_counter()
            tokens = self.trainer.advance().tokens
            if self.trainer.device.type == "cuda":
                torch.cuda.synchronize(self.trainer.device)
            found.append(tokens / (time.perf_counter() - start))
        return found


def extrapolated(found: Sequence[tuple[int, int]], count: int) -> int:
    """The memory of this many samples, on the line through the last two measurements (samples, bytes)."""
    if len(found) < 2:
        return found[0][1] * count // found[0][0] if found else 0
    (fewer, less), (more, most) = found[-2:]
    return most + max(0, most - less) * (count - more) // (more - fewer)


def nbytes(tensors: Iterable[Tensor]) -> int:
    """The size of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def largest_batch(
    network: Callable[[], Network], samples: Samples, settings: Training, device: torch.device
) -> tuple[int, bool]:
    """The largest `batch_tokens` of 1,024, 2,048, ... that fits in memory and is faster, and whether any fits.

    An epoch keeps some hundred steps where the text is long enough, so that a short text is not learnt in a few steps.
    """
    best, fits, fastest, slower = _SIZES[0], False, 0.0, 0
    probe = Probe(network, samples, replace(settings, batch_tokens=best), device)
    for tokens in _SIZES:
        epoch = first_epoch(BatchSampler(samples.lengths, tokens, settings.seed, samples.mixture, samples.streams))
        if (fits and epoch.steps < _STEPS_PER_EPOCH) or probe.memory(epoch.largest, SHARE).total > SHARE * probe.room:
            break
        speed = probe.speed(epoch.largest)
        if speed >= _FASTER * fastest:
            best, fits, fastest, slower = tokens, True, speed, 0
        elif (slower := slower + 1) == 2:  # a busy machine may slow one size down
            break
    return best, fits
