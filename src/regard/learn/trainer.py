"""One optimizer step after another. All that is random is drawn from (seed, step, part), so nothing need be carried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RunFailed
from regard.learn.settings import Training
from regard.models.device import mixed
from regard.models.model import Network
from regard.store.checkpoint import Checkpoint
from regard.store.folder import fill, unique_tensors
from regard.text.batch import Batch, Plan, split
from regard.text.problem import Samples


@dataclass(frozen=True)
class Step:
    """What a step did."""

    loss: float  # mean over the step's targets, smoothing included
    norm: float  # of the gradient, before clipping
    rate: float
    tokens: int  # of all sides, without padding
    targets: int


class Trainer:
    """The state of learning: weights, optimizer, moving average, and the place in the data."""

    def __init__(self, network: Network, samples: Samples, settings: Training, device: torch.device) -> None:
        self.network = network.to(device).train()
        self.samples, self.settings, self.device = samples, settings, device
        self.plan = Plan(samples.lengths, settings.batch_tokens, settings.seed)
        self.optimizer = settings.optimizer.build(self.network, settings.rate)
        self.averages = None
        if settings.ema is not None:
            self.averages = {name: tensor.detach().clone() for name, tensor in unique_tensors(network).items()}
        self.step, self.epoch, self.place = 0, 0, 0

    def advance(self) -> Step:
        """Take one step, unless its loss or gradient is not finite."""
        steps = self.plan.epoch(self.epoch)
        indices = steps[self.place]
        parts = [part for part in split(indices, self.settings.accumulate) if len(part)]
        batches = [self.samples.batch(part) for part in parts]
        targets = max(1, sum(batch.tokens for batch in batches))
        rate = self.settings.rate * self.settings.schedule.factor(self.step + 1, self.settings.steps)
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches):
            loss += self.backward(batch, number, targets)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        report = Step(float(loss), float(norm), rate, int(self.samples.lengths[indices].sum()), targets)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            self.refuse(report, indices.tolist())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.follow()
        self.step, self.place = self.step + 1, self.place + 1
        if self.place == len(steps):
            self.epoch, self.place = self.epoch + 1, 0
        return report

    def backward(self, batch: Batch, number: int, targets: int) -> Tensor:
        """Add a part's share of the step's gradient; -> its share of the loss."""
        torch.manual_seed(mixed_seed(self.settings.seed, self.step, number))
        batch = batch.to(self.device)
        with mixed(self.settings.precision, self.device):
            loss = self.network.loss(batch.inputs, batch.targets, self.settings.smoothing) / targets
        loss.backward()
        return loss.detach()

    def refuse(self, report: Step, indices: list[int]) -> None:
        """Stop before the weights are spoilt, and say where it happened."""
        raise RunFailed(
            f"loss is {report.loss:.4g} at step {self.step + 1:,} (rate {report.rate:.2e}, gradient norm "
            f"{report.norm:.3g}), batch {self.samples.where(indices)}. "
            f"Try train.rate = {self.settings.rate / 3:.1e} or look at these lines."
        )

    @torch.no_grad()
    def follow(self) -> None:
        """Move the averages a little towards the weights."""
        if self.averages is None or self.settings.ema is None:
            return
        # Early on the average follows faster, so that it soon forgets where it began.
        decay = min(self.settings.ema, (self.step + 1) / (self.step + 10))
        weights = unique_tensors(self.network)
        torch._foreach_lerp_(list(self.averages.values()), [weights[name] for name in self.averages], 1 - decay)

    def best_guess(self) -> dict[str, Tensor]:
        """The weights that count: the moving average if there is one."""
        return unique_tensors(self.network) if self.averages is None else self.averages

    @contextmanager
    def judged(self, weights: dict[str, Tensor]) -> Iterator[Network]:
        """The network with these weights, not learning; afterwards it goes on as it was."""
        own = unique_tensors(self.network)
        borrowed = any(weights[name] is not tensor for name, tensor in own.items())
        kept = {name: tensor.detach().clone() for name, tensor in own.items()} if borrowed else {}
        if borrowed:
            fill(self.network, weights)
        self.network.eval()
        try:
            yield self.network
        finally:
            if borrowed:
                fill(self.network, kept)
            self.network.train()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Every tensor that a resumed run needs."""
        groups = {"model": unique_tensors(self.network), "optimizer": optimizer_tensors(self.network, self.optimizer)}
        return groups if self.averages is None else {**groups, "averages": self.averages}

    def position(self) -> dict[str, int]:
        """Where the run stands."""
        return {"step": self.step, "epoch": self.epoch, "place": self.place}

    def restore(self, checkpoint: Checkpoint, position: dict[str, Any]) -> None:
        """Go back to a checkpoint."""
        fill(self.network, checkpoint.tensors("model"))
        fill_optimizer(self.network, self.optimizer, checkpoint.tensors("optimizer"))
        if self.averages is not None:
            self.averages = {name: tensor.to(self.device) for name, tensor in checkpoint.tensors("averages").items()}
        self.step, self.epoch, self.place = position["step"], position["epoch"], position["place"]


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers, far apart for near ones."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 29
    return mixed >> 1


def optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by the parameters' names: "name/exp_avg"."""
    return {
        f"{name}/{key}": value
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def fill_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The opposite of `optimizer_tensors`."""
    for name, parameter in module.named_parameters():
        state = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        # Adam's fused kernel keeps its count of steps beside the parameter.
        optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
