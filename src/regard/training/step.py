"""One optimizer step after another. All that is random is drawn from (seed, step, part), so nothing need be carried."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import messages
from regard.data.batching import Batch, Place, Plan, split
from regard.data.draws import Indices
from regard.data.samples import Samples
from regard.errors import InputError
from regard.layers.contract import Past
from regard.models.device import mixed
from regard.models.model import Network
from regard.store.checkpoint import Checkpoint
from regard.store.folder import unique_tensors
from regard.store.loading import fill
from regard.training.distributed import World
from regard.training.lock import Signals
from regard.training.memory import ran_out
from regard.training.optimizers import Optimizers, learnt
from regard.training.scheduled_sampling import own_words
from regard.training.settings import Training
from regard.training.truncated_bptt import Lanes


@dataclass(frozen=True)
class Step:
    """What a step did."""

    loss: float  # mean over the step's targets, smoothing included
    norm: float  # of the gradient, before clipping
    learning_rate: float
    tokens: int  # of all sides, without padding
    targets: int
    signal: int = 0  # what any of the processes was told
    cut: int = 0  # into so many parts from now on, because memory ran out


class Trainer:
    """The state of learning: weights, optimizer, moving average, and the place in the data."""

    def __init__(
        self,
        network: Network,
        samples: Samples,
        settings: Training,
        device: torch.device,
        world: World | None = None,
    ) -> None:
        if settings.sampling is not None and network.encoder is None:
            raise InputError("only a translator's own words can be mixed in. Leave out sampling (train.sampling).")
        self.world, self.signals = world or World(device), Signals()
        self.network = network.to(device).train()
        self.spread = self.world.spread(self.network, settings.parallel)
        self.samples, self.settings, self.device = samples, settings, device
        self.plan = Plan(samples.lengths, settings.budget, settings.seed, samples.shares, samples.lanes)
        self.lanes = Lanes(samples.lanes, self.world.size, network.description)
        learning = learnt(self.network, settings.groups, settings.layer_decay)
        self.optimizer = Optimizers(settings.optimizer.build(learning))
        self.averages = None
        if settings.ema is not None:
            self.averages = {name: tensor.detach().clone() for name, tensor in unique_tensors(network).items()}
        self.step, self.place, self.accumulate = 0, Place(), settings.accumulate
        self.spread.rehearse(lambda: self.backward(samples.batch([0]), 0, 1.0))

    def advance(self) -> Step:
        """Take one step, unless its loss or gradient is not finite."""
        if self.place == Place(self.place.epoch):  # every lane begins anew
            self.lanes.past = Past()
        indices, after = self.plan.take(self.place)
        learning_rate = self.settings.learning_rate * self.settings.schedule.factor(self.step + 1, self.settings.steps)
        before = self.accumulate
        while (found := self.tried(indices)) is None:
            self.cut(indices)
        loss, targets, pasts = found
        norm = float(self.spread.full(nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)))
        everyone = self.world.gather(float(loss), self.signals.received or 0)
        report = Step(
            sum(loss for loss, _ in everyone) / self.world.size, norm, learning_rate, int(self.plan.lengths[indices].sum()),
            targets, int(max(signal for _, signal in everyone)), self.accumulate if self.accumulate > before else 0,
        )  # fmt: skip
        if not (math.isfinite(report.loss) and math.isfinite(norm)):
            self.refuse(report, indices.tolist())
        self.optimizer.step(learning_rate)
        self.follow()
        self.lanes.past = self.lanes.gathered(pasts) if after.epoch == self.place.epoch else Past()
        self.step, self.place = self.step + 1, after
        return report

    def tried(self, indices: Indices) -> tuple[Tensor, int, list[Past]] | None:
        """`gradient`, or None when memory ran out; by then what it held is free again."""
        try:
            return self.gradient(indices)
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            return None

    def cut(self, indices: Indices) -> None:
        """Cut this step and all that follow into twice as many parts."""
        self.network.zero_grad()
        if self.world.size > 1:  # the others wait for gradients of this one, so none can begin anew
            raise messages.OUT_OF_MEMORY_TOGETHER(step=self.step + 1)
        if self.accumulate >= len(indices):
            raise messages.OUT_OF_MEMORY(step=self.step + 1, length=int(self.plan.lengths[indices].sum(1).max()))
        self.accumulate *= 2

    def gradient(self, indices: Indices) -> tuple[Tensor, int, list[Past]]:
        """Leave a step's gradient on the weights.

        -> this process' share of the loss, the number of targets, and what each part remembers of its lanes, if any.
        """
        parts = self.parts(indices)
        draw = mixed_seed(self.settings.seed, self.place.epoch)
        # A process without a part goes through one that weighs nothing, for the others wait for its gradients.
        batches = [self.samples.batch(part if len(part) else indices[:1], draw) for _, part in parts]
        counted = self.world.gather(sum(batch.tokens for batch, (_, part) in zip(batches, parts) if len(part)))
        targets = max(1, int(sum(count for (count,) in counted)))
        self.network.zero_grad()
        loss, pasts = torch.zeros((), device=self.device), self.lanes.dealt(len(parts))
        for batch, (number, part), past in zip(batches, parts, pasts or len(parts) * [None]):
            with self.spread.part(last=number == parts[-1][0]):
                # Gradients are averaged over the processes, so each divides by its share of the targets.
                loss += self.backward(batch, number, targets / self.world.size if len(part) else math.inf, past)
        return loss, targets, pasts

    def parts(self, indices: Indices) -> list[tuple[int, Indices]]:
        """The parts of a step that fall to this process, with their numbers among all; every process has as many."""
        dealt = list(enumerate(split(indices, self.world.size * self.accumulate)))
        return dealt[self.world.rank :: self.world.size][: -(-len(indices) // self.world.size)]

    def backward(self, batch: Batch, number: int, targets: float, past: Past | None = None) -> Tensor:
        """Add a part's share of the step's gradient; -> its share of the loss."""
        torch.manual_seed(mixed_seed(self.settings.seed, self.step, number))
        batch = batch.to(self.device)
        inputs = {**batch.inputs, "recompute": self.settings.gradient_checkpointing, "past": past}
        if self.settings.sampling is not None:
            with mixed(self.settings.precision, self.device):
                inputs = own_words(self.network, inputs, self.settings.sampling.share(self.step))
        with mixed(self.settings.precision, self.device):
            loss = self.spread.loss(inputs, batch.targets, self.settings.smoothing, batch.auxiliary) / targets
        loss.backward()
        return loss.detach()

    def refuse(self, report: Step, indices: list[int]) -> None:
        """Stop before the weights are spoilt, and say where it happened."""
        raise messages.NOT_FINITE(
            loss=report.loss, step=self.step + 1, learning_rate=report.learning_rate, norm=report.norm,
            where=self.samples.where(indices), lower=self.settings.learning_rate / 3,
        )  # fmt: skip

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
        return self.spread.whole(unique_tensors(self.network) if self.averages is None else self.averages)

    @contextmanager
    def judged(self, weights: dict[str, Tensor]) -> Iterator[Network]:
        """The network with these weights, not learning; afterwards it goes on as it was."""
        network = self.spread.plain()
        own = unique_tensors(network)
        borrowed = any(weights[name] is not tensor for name, tensor in own.items())
        stays = borrowed and network is self.network
        kept = {name: tensor.detach().clone() for name, tensor in own.items()} if stays else {}
        if borrowed:
            fill(network, weights)
        network.eval()
        try:
            yield network
        finally:
            if stays:
                fill(network, kept)
            network.train()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Every tensor that a resumed run needs."""
        groups = {"model": unique_tensors(self.network), "optimizer": self.optimizer.tensors()}
        groups = groups if self.averages is None else {**groups, "averages": self.averages}
        whole = {name: self.spread.whole(tensors) for name, tensors in groups.items()}
        remembered = self.lanes.tensors(self.world.rows)
        return {**whole, "memory": remembered} if remembered else whole

    def position(self) -> dict[str, Any]:
        """Where the run stands."""
        read = {"read": self.lanes.past.read} if self.lanes.past.read else {}
        return {"step": self.step, "place": asdict(self.place), "accumulate": self.accumulate, **read}

    def restore(self, checkpoint: Checkpoint, position: dict[str, Any]) -> None:
        """Go back to a checkpoint."""
        fill(self.network, self.spread.own(checkpoint.tensors("model")))
        self.optimizer.fill(self.spread.own(checkpoint.tensors("optimizer")))
        if self.averages is not None:
            averages = self.spread.own(checkpoint.tensors("averages"))
            self.averages = {name: tensor.to(self.device) for name, tensor in averages.items()}
        self.step, self.place = position["step"], Place(**position["place"])
        self.accumulate = position.get("accumulate", self.settings.accumulate)
        if "read" in position:
            tensors = checkpoint.tensors("memory")
            self.lanes.fill(tensors, position["read"], self.remembered(), self.world.rank, self.world.size)

    @torch.no_grad()
    def remembered(self) -> Past:
        """What the network remembers of some text, to know what its memory is made of."""
        batch, past = self.samples.batch([0]).to(self.device), Past()
        self.spread.loss({**batch.inputs, "past": past}, batch.targets, 0.0, None)
        return past


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers, far apart for near ones."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 29
    return mixed >> 1
