"""Estimate a run before training: parameters, memory, speed and time, and what to change if memory is too small."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from typing import Any

import torch
from torch import nn

from regard.config.fit import SHARDED, amount, meta_network, reckoned_memory, what_fits
from regard.config.recipe import Recipe
from regard.config.setup import Setup, read_setup
from regard.data.batching import BatchSampler
from regard.models.model import Network
from regard.training.log import span
from regard.training.memory import SHARE, Memory, Probe, first_epoch, largest_batch
from regard.training.optimizers import trainable_parameters

_SECONDS = 12.0  # spent on timed steps


@dataclass(frozen=True)
class Estimate:
    """What training a recipe takes on this machine."""

    parameters: dict[str, int]  # per part; a shared weight counts for the first part that has it
    trained: int  # of these, the parameters that are not frozen
    memory: Memory
    texts: int
    longest: int  # tokens of the longest sample, source and target
    oversized: int  # samples longer than batch_tokens, each of which becomes a step of its own
    epoch_tokens: int
    epoch_steps: int
    exact: bool  # False: tokens and steps per epoch are extrapolated from a part of it
    steps: int
    batch_tokens: int
    accumulate: int  # gradient accumulation: micro-batches per step, so that it fits
    tokens_per_second: float
    timed_steps: int
    validations: int
    device: str
    threads: int
    remedies: tuple[str, ...]  # what to change if it does not fit

    @property
    def fits(self) -> bool:
        """Whether the largest step fits into memory."""
        return self.memory.total <= self.memory.available

    @property
    def epochs(self) -> float:
        """How often training reads every text."""
        return self.steps / self.epoch_steps

    @property
    def seconds(self) -> float:
        """The time of all steps, without validation; 0 if no step was timed, because it does not fit."""
        return 0.0 if not self.timed_steps else self.epochs * self.epoch_tokens / self.tokens_per_second

    @property
    def activations(self) -> str:
        """The memory of activations, if some were measured."""
        about = "" if self.memory.measured else "about "
        return f", activations {about}{amount(self.memory.activations)}" if self.timed_steps else ""

    @property
    def needs(self) -> str:
        """What does not fit."""
        return "the largest step needs" if self.timed_steps else "weights, gradients and optimizer alone need"

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data; memory in bytes."""
        memory = {**asdict(self.memory), "total": self.memory.total}
        derived = {"fits": self.fits, "epochs": round(self.epochs, 4), "seconds": round(self.seconds, 3)}
        return {**asdict(self), "memory": memory, "tokens_per_second": round(self.tokens_per_second, 1), **derived}

    def text(self) -> str:
        """All numbers for a terminal."""
        memory, about = self.memory, "" if self.exact else "about "
        parts = ", ".join(f"{name} {count:,}" for name, count in self.parameters.items())
        sizes = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer}
        sizes |= {"moving average": memory.ema} if memory.ema else {}
        holds = ", ".join(f"{name} {amount(count)}" for name, count in sizes.items())
        where = self.device if self.device != "cpu" else f"cpu, {self.threads} thread{'s' * (self.threads > 1)}"
        cut = f", in {self.accumulate} micro-batches" if self.accumulate > 1 else ""
        after = f"; {self.validations:,} validations not counted" if self.validations else ""
        total = sum(self.parameters.values())
        share = [] if self.trained == total else [f"trained     {self.trained:,}, {self.trained / total:.2%} of them"]
        return "\n".join([
            f"parameters  {total:,}: {parts}",
            *share,
            f"memory      {holds}{self.activations}: "
            f"{amount(memory.total)} of {amount(memory.available)} available",
            f"text        {self.texts:,} texts, {about}{self.epoch_tokens:,} tokens per epoch",
            f"steps       {about}{self.epoch_steps:,} per epoch of up to {self.batch_tokens:,} tokens; {self.steps:,} "
            f"steps are {self.epochs:.3g} epochs",
            *([f"speed       {self.tokens_per_second:,.0f} tokens/s (median of {self.timed_steps} steps{cut}; {where})",
               f"time        {span(self.seconds)} for {self.steps:,} steps{after}"] if self.timed_steps else []),
            "It fits." if self.fits else
            f"It does not fit: {self.needs} {amount(memory.total)}, there are {amount(memory.available)}.",
            *([f"{self.oversized:,} samples are longer than train.batch_tokens; each becomes a step of its own: the "
               f"longest has {self.longest:,} tokens, source and target."] if self.oversized else []),
            *(f"  try {remedy}" for remedy in self.remedies),
        ])  # fmt: skip


def plan(recipe: Recipe, device: torch.device) -> Estimate:
    """Estimate what a recipe takes on this device: train a throw-away network for a few steps."""
    setup = read_setup(recipe)
    samples, settings = setup.samples, recipe.train
    memory = reckoned_memory(setup, device)
    large = memory.static > memory.available  # too large to build
    if settings.batch_tokens == "fit":
        fit = 4096 if large else largest_batch(setup.network, samples, settings, device)[0]
        settings = replace(settings, batch_tokens=fit)
    sizes = samples.lengths.sum(1)
    epoch = first_epoch(BatchSampler(samples.lengths, settings.budget, settings.seed, samples.mixture, samples.streams))
    speeds, accumulate, change = [0.0], settings.accumulate, what_fits(setup, device) if large else ()
    if not large:
        probe = Probe(setup.network, samples, settings, device)
        memory = probe.memory(epoch.largest)
        parts = micro_batches_that_fit(memory, settings.accumulate, len(epoch.largest))
        accumulate = probe.trainer.accumulate = parts or len(epoch.largest)
        speeds = probe.speeds(_SECONDS)
        change = remedies(setup, memory, parts) if memory.total > memory.available else ()
    network = meta_network(setup)
    trained = trainable_parameters(network, settings.groups, settings.layer_decay)
    return Estimate(
        parameters=parameters(network),
        trained=sum(one.parameter.numel() for one in trained),
        memory=memory,
        texts=len(setup.corpus),
        longest=int(sizes.max()),
        oversized=int((sizes > settings.budget).sum()),
        epoch_tokens=epoch.tokens,
        epoch_steps=epoch.steps,
        exact=epoch.exact,
        steps=settings.steps,
        batch_tokens=settings.budget,
        accumulate=accumulate,
        tokens_per_second=median(speeds),
        timed_steps=0 if large else len(speeds),
        validations=settings.steps // settings.valid_every if setup.valid is not None else 0,
        device=device.type,
        threads=torch.get_num_threads(),
        remedies=change,
    )


def parameters(network: Network) -> dict[str, int]:
    """Parameters per part of a network; a shared weight counts for the first part that has it."""
    counted: set[nn.Parameter] = set()
    counts = {}
    named = {
        "embed": (network.embed, network.source_embed),
        "encoder": (network.encoder,),
        "decoder": (network.decoder,),
        "readout": (network.readout,),
    }
    for name, modules in named.items():
        own = {weight for module in modules if module is not None for weight in module.parameters()} - counted
        counts[name] = sum(weight.numel() for weight in own)
        counted |= own
    return counts


def micro_batches_that_fit(memory: Memory, accumulate: int, samples: int) -> int | None:
    """How many micro-batches (gradient accumulation) make the largest step fit; None if no number does."""
    if memory.total <= memory.available:
        return accumulate
    parts = accumulate
    while parts < samples:
        parts *= 2
        if memory.static + memory.activations * accumulate // parts <= SHARE * memory.available:
            return parts
    return None


def remedies(setup: Setup, memory: Memory, parts: int | None) -> tuple[str, ...]:
    """What to change so that it fits; what leaves the result unchanged comes first."""
    settings, task = setup.recipe.train, setup.task
    length = fields(task)[0].name
    smaller = "model.width: use a smaller model"
    if memory.static > memory.available:
        return (smaller, SHARDED)
    checkpointing = "train.gradient_checkpointing = true: the same result, slower, fewer activations"
    found = [] if settings.gradient_checkpointing else [checkpointing]
    if parts is not None:
        fewer = settings.budget * settings.accumulate // parts if isinstance(settings.batch_tokens, int) else 1024
        return (
            f"train.accumulate = {parts}: the same result",
            *found,
            f"train.batch_tokens = {fewer}: smaller batches, another result",
        )
    return (*found, f"text.task.{length} below {getattr(task, length)}: shorter samples", smaller, SHARDED)
