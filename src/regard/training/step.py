"""Training steps: gradient accumulation, clipping, optimizer, moving average. Draws use (seed, step, micro-batch)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import messages
from regard.data.batching import Batch, BatchSampler, Cursor, Indices, split
from regard.data.samples import Samples
from regard.errors import InputError
from regard.layers.contract import CarriedMemory
from regard.models.device import autocast
from regard.models.model import Network
from regard.store.checkpoint import Checkpoint
from regard.store.folder import unique_parameters
from regard.store.loading import load_parameters
from regard.training.distributed import World
from regard.training.lock import Signals
from regard.training.optimizers import Optimizers, trainable_parameters
from regard.training.scheduled_sampling import with_model_predictions
from regard.training.settings import Training
from regard.training.truncated_bptt import Streams

# Messages of torch's CPU allocators and of C++.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


@dataclass(frozen=True)
class Step:
    """The results of a training step."""

    loss: float  # mean over the step's targets, label smoothing included
    gradient_norm: float  # before gradient clipping
    learning_rate: float
    tokens: int  # of source and target, without padding
    targets: int
    signal: int = 0  # received by any of the processes
    accumulate: int = 0  # the new number of micro-batches, if this step ran out of memory


class Trainer:
    """The state of training: weights, optimizer, exponential moving average, and the cursor in the data."""

    def __init__(
        self, network: Network, samples: Samples, settings: Training, device: torch.device, world: World | None = None
    ) -> None:
        if settings.scheduled_sampling is not None and network.shape != "encoder-decoder":
            raise InputError("scheduled sampling needs an encoder-decoder (train.scheduled_sampling). Leave it out.")
        self.world, self.signals = world or World(device), Signals()
        self.network = network.to(device).train()
        self.strategy = self.world.strategy(self.network, settings.parallel)
        self.samples, self.settings, self.device = samples, settings, device
        self.batches = BatchSampler(samples.lengths, settings.budget, settings.seed, samples.mixture, samples.streams)
        self.streams = Streams(samples.streams, self.world.size, network.description)
        trained = trainable_parameters(self.network, settings.groups, settings.layer_decay)
        self.optimizer = Optimizers(settings.optimizer.build(trained))
        self.ema = None if settings.ema is None else cloned(unique_parameters(network))
        self.step, self.cursor, self.accumulate = 0, Cursor(), settings.accumulate
        self.strategy.warm_up(lambda: self.backward(samples.batch([0]), 0, 1.0))

    def advance(self) -> Step:
        """Take one training step, unless its loss or gradient is not finite."""
        if self.cursor == Cursor(self.cursor.epoch):  # every stream starts anew
            self.streams.carried = CarriedMemory()
        indices, after = self.batches.next_step(self.cursor)
        learning_rate = self.settings.learning_rate_at(self.step + 1)
        before = self.accumulate
        while (found := self.try_gradient(indices)) is None:
            self.accumulate_more(indices)
        loss, targets, carried = found
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        gradient_norm = float(self.strategy.unsharded(norm))
        everyone = self.world.gather(float(loss), self.signals.received or 0)
        mean, tokens = sum(loss for loss, _ in everyone) / self.world.size, int(self.batches.lengths[indices].sum())
        step = Step(
            mean, gradient_norm, learning_rate, tokens, targets, int(max(signal for _, signal in everyone)),
            self.accumulate if self.accumulate > before else 0,
        )  # fmt: skip
        if not (math.isfinite(step.loss) and math.isfinite(gradient_norm)):
            raise messages.NOT_FINITE(
                loss=step.loss, step=self.step + 1, learning_rate=learning_rate, norm=gradient_norm,
                where=self.samples.where(indices.tolist()), lower=self.settings.learning_rate / 3,
            )  # fmt: skip
        self.optimizer.step(learning_rate)
        self.update_ema()
        self.streams.carried = self.streams.merged(carried) if after.epoch == self.cursor.epoch else CarriedMemory()
        self.step, self.cursor = self.step + 1, after
        return step

    def try_gradient(self, indices: Indices) -> tuple[Tensor, int, list[CarriedMemory]] | None:
        """`gradient`, or None when memory ran out; what it allocated is free again by then."""
        try:
            return self.gradient(indices)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    def accumulate_more(self, indices: Indices) -> None:
        """Split this step and all later ones into twice as many micro-batches (gradient accumulation)."""
        self.network.zero_grad()
        if self.world.size > 1:  # the others wait for this process' gradients, so no step can start again
            raise messages.OUT_OF_MEMORY_TOGETHER(step=self.step + 1)
        if self.accumulate >= len(indices):
            raise messages.OUT_OF_MEMORY(step=self.step + 1, length=int(self.batches.lengths[indices].sum(1).max()))
        self.accumulate *= 2

    def gradient(self, indices: Indices) -> tuple[Tensor, int, list[CarriedMemory]]:
        """Compute the gradient of a step, micro-batch by micro-batch (gradient accumulation).

        -> this process' share of the loss, the number of targets, and the memory that each micro-batch carries, if any.
        """
        micro = self.micro_batches(indices)
        seed = mixed_seed(self.settings.seed, self.cursor.epoch)
        # A process without a micro-batch computes one of weight 0, because the others wait for its gradients.
        batches = [self.samples.batch(part if len(part) else indices[:1], seed) for _, part in micro]
        counts = self.world.gather(sum(batch.tokens for batch, (_, part) in zip(batches, micro) if len(part)))
        targets = max(1, int(sum(count for (count,) in counts)))
        self.network.zero_grad()
        loss, carried = torch.zeros((), device=self.device), self.streams.split(len(micro))
        for batch, (number, part), memory in zip(batches, micro, carried or len(micro) * [None]):
            with self.strategy.micro_batch(last=number == micro[-1][0]):
                # Gradients are averaged over the processes, so each divides by its share of the targets.
                loss += self.backward(batch, number, targets / self.world.size if len(part) else math.inf, memory)
        return loss, targets, carried

    def micro_batches(self, indices: Indices) -> list[tuple[int, Indices]]:
        """The micro-batches of a step for this process, numbered among all; every process has the same count."""
        micro = list(enumerate(split(indices, self.world.size * self.accumulate)))
        return micro[self.world.rank :: self.world.size][: -(-len(indices) // self.world.size)]

    def backward(self, batch: Batch, number: int, targets: float, carried: CarriedMemory | None = None) -> Tensor:
        """Forward and backward pass of one micro-batch: add its share of the gradient; -> its share of the loss."""
        torch.manual_seed(mixed_seed(self.settings.seed, self.step, number))
        batch, settings = batch.to(self.device), self.settings
        inputs = {**batch.inputs, "gradient_checkpointing": settings.gradient_checkpointing, "carried": carried}
        if settings.scheduled_sampling is not None:
            # A block of its own: autocast caches the weights that it casts, here without their gradients.
            with autocast(settings.precision, self.device):
                probability = settings.scheduled_sampling.probability(self.step)
                inputs = with_model_predictions(self.network, inputs, probability)
        with autocast(settings.precision, self.device):
            loss = self.strategy.loss(inputs, batch.targets, settings.label_smoothing, batch.auxiliary) / targets
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def update_ema(self) -> None:
        """Move the exponential moving average towards the weights."""
        if self.ema is None or self.settings.ema is None:
            return
        # Early on it moves faster, so that it soon forgets the initial weights.
        decay = min(self.settings.ema, (self.step + 1) / (self.step + 10))
        weights = unique_parameters(self.network)
        torch._foreach_lerp_(list(self.ema.values()), [weights[name] for name in self.ema], 1 - decay)

    def evaluated_weights(self) -> dict[str, Tensor]:
        """The weights to validate and keep: the moving average if there is one."""
        return self.strategy.gathered(unique_parameters(self.network) if self.ema is None else self.ema)

    @contextmanager
    def evaluation_network(self, weights: dict[str, Tensor]) -> Iterator[Network]:
        """The network with these weights, in evaluation mode; afterwards its own weights are restored."""
        network = self.strategy.local_network()
        own = unique_parameters(network)
        foreign = any(weights[name] is not tensor for name, tensor in own.items())
        restores = foreign and network is self.network
        kept = cloned(own) if restores else {}
        if foreign:
            load_parameters(network, weights)
        network.eval()
        try:
            yield network
        finally:
            if restores:
                load_parameters(network, kept)
            network.train()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of a checkpoint, by file: model, optimizer, ema, memory (of truncated BPTT)."""
        groups = {"model": unique_parameters(self.network), "optimizer": self.optimizer.tensors()}
        groups = groups if self.ema is None else {**groups, "ema": self.ema}
        gathered = {name: self.strategy.gathered(tensors) for name, tensors in groups.items()}
        memory = self.streams.tensors(self.world.gather_rows)
        return {**gathered, "memory": memory} if memory else gathered

    def state(self) -> dict[str, Any]:
        """The rest of a checkpoint: the step, the cursor in the data, the micro-batches per step."""
        position = self.streams.carried.position
        carried = {"memory_position": position} if position else {}
        return {"step": self.step, "cursor": asdict(self.cursor), "accumulate": self.accumulate, **carried}

    def restore(self, checkpoint: Checkpoint, state: dict[str, Any]) -> None:
        """Restore the tensors and the state of a checkpoint."""
        load_parameters(self.network, self.strategy.sharded(checkpoint.tensors("model")))
        self.optimizer.load(self.strategy.sharded(checkpoint.tensors("optimizer")))
        if self.ema is not None:
            ema = self.strategy.sharded(checkpoint.tensors("ema"))
            self.ema = {name: tensor.to(self.device) for name, tensor in ema.items()}
        self.step, self.cursor, self.accumulate = state["step"], Cursor(**state["cursor"]), state["accumulate"]
        if "memory_position" in state:
            tensors, like = checkpoint.tensors("memory"), self.example_memory()
            self.streams.load(tensors, state["memory_position"], like, self.world.rank, self.world.size)

    @torch.no_grad()
    def example_memory(self) -> CarriedMemory:
        """The network's memory after some text, for the structure of its tree."""
        batch, carried = self.samples.batch([0]).to(self.device), CarriedMemory()
        self.strategy.loss({**batch.inputs, "carried": carried}, batch.targets, 0.0, None)
        return carried


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)


def cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that later steps do not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers; similar numbers give unrelated seeds."""
    seed = 0x9E3779B97F4A7C15
    for number in numbers:
        seed = ((seed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        seed ^= seed >> 29
    return seed >> 1
