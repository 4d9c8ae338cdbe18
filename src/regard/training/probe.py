"""What a step would take, found by taking some with a network that is thrown away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regard import messages
from regard.data.batching import Plan
from regard.data.draws import Indices
from regard.data.samples import Samples
from regard.models.model import Network
from regard.store.folder import unique_tensors
from regard.training.memory import available, peak
from regard.training.settings import Training
from regard.training.step import Trainer

SHARE = 0.7  # of the memory that steps may take; validations and checkpoints need some too
_SIZES = tuple(1024 << power for power in range(7))
_POOLS = 50  # looked at to know an epoch


@dataclass(frozen=True)
class Memory:
    """What learning holds, in bytes."""

    weights: int
    gradients: int
    optimizer: int
    averages: int
    activations: int  # of the largest step, or of its largest part
    measured: bool  # else the activations are reckoned from those of fewer samples
    available: int

    @property
    def lasting(self) -> int:
        """What is held from step to step."""
        return self.weights + self.gradients + self.optimizer + self.averages

    @property
    def total(self) -> int:
        """All that is held at the worst moment."""
        return self.lasting + self.activations


@dataclass(frozen=True, eq=False)
class Epoch:
    """What an epoch is made of; a long one is reckoned from some of its pools."""

    steps: int
    tokens: int
    exact: bool
    largest: Indices  # the samples of the step with most padded tokens


def look_at(plan: Plan) -> Epoch:
    """The first epoch of a plan."""
    pools = np.unique(np.linspace(0, plan.pools - 1, min(plan.pools, _POOLS)).astype(int)).tolist()
    steps = [step for pool in pools for step in plan.pool(0, pool)]
    seen = sum(map(len, steps)) / (sum(share.times for share in plan.shares) or len(plan.lengths))
    tokens = sum(int(plan.lengths[step].sum(dtype=np.int64)) for step in steps)
    largest = max(steps, key=lambda step: len(step) * int(plan.lengths[step].max(0).sum()))
    return Epoch(round(len(steps) / seen), round(tokens / seen), len(pools) == plan.pools, largest)


class Probe:
    """Takes steps that count for nothing."""

    def __init__(self, network: Callable[[], Network], samples: Samples, settings: Training, device: torch.device):
        self.room = available(device)
        self.trainer = Trainer(network(), samples, settings, device)
        # The first step makes what the optimizer remembers, and loads what only a step needs.
        longest = np.argmax(samples.lengths.sum(1), keepdims=True)
        if self.trainer.tried(longest) is None:
            raise messages.OUT_OF_MEMORY(step=1, length=int(samples.lengths[longest].sum()))
        self.trainer.optimizer.step(0.0)

    def memory(self, step: Indices, share: float = 1.0) -> Memory:
        """What a step takes; all of it is only tried if some of it promises to fit into a share of the memory."""
        trainer = self.trainer
        gradients = [parameter.grad for parameter in trainer.network.parameters() if parameter.grad is not None]
        lasting = Memory(
            size(unique_tensors(trainer.network).values()), size(gradients), size(trainer.optimizer.tensors().values()),
            size((trainer.averages or {}).values()), 0, True, self.room,
        )  # fmt: skip
        # A sixteenth, a quarter, all of the samples: each is only tried if those before promise that it fits.
        counts = sorted({max(min(trainer.accumulate, len(step)), len(step) // part) for part in (16, 4, 1)})
        found: list[tuple[int, int]] = []
        for count in counts:
            promised = replace(lasting, activations=line(found, count))
            if promised.total > share * self.room:
                break
            found.append((count, self.activations(step[-count:])))
        reached = bool(found) and found[-1][0] == len(step)
        return replace(lasting, activations=line(found, len(step)), measured=reached)

    def activations(self, step: Indices) -> int:
        """The most that a step holds besides what lasts; more than there is when memory ran out."""
        done: list[object] = []
        found = peak(lambda: done.append(self.trainer.tried(step)), self.trainer.device)
        return found if done != [None] else max(found, self.room + 1)

    def speeds(self, seconds: float, most: int = 10) -> list[float]:
        """Tokens a second of the next steps, as many as there is time for, at least one."""
        found: list[float] = []
        end = time.perf_counter() + seconds
        while not found or (len(found) < most and time.perf_counter() < end):
            begin = time.perf_counter()
            tokens = self.trainer.advance().tokens
            if self.trainer.device.type == "cuda":
                torch.cuda.synchronize(self.trainer.device)
            found.append(tokens / (time.perf_counter() - begin))
        return found


def line(found: Sequence[tuple[int, int]], count: int) -> int:
    """What so many samples hold, given what some numbers of them do: on the line through the last two."""
    if len(found) < 2:
        return found[0][1] * count // found[0][0] if found else 0
    (fewer, less), (more, most) = found[-2:]
    return most + max(0, most - less) * (count - more) // (more - fewer)


def size(tensors: Iterable[Tensor]) -> int:
    """The bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def fitting(
    network: Callable[[], Network], samples: Samples, settings: Training, device: torch.device
) -> tuple[int, bool]:
    """The most `batch_tokens` of 1,024, 2,048, ... whose largest step fits, and whether any does."""
    best, fits = _SIZES[0], False
    probe = Probe(network, samples, replace(settings, batch_tokens=best), device)
    for tokens in _SIZES:
        epoch = look_at(Plan(samples.lengths, tokens, settings.seed, samples.shares, samples.lanes))
        if tokens > max(best, epoch.tokens) or probe.memory(epoch.largest, SHARE).total > SHARE * probe.room:
            break
        best, fits = tokens, True
    return best, fits
