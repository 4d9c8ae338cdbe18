"""What a training would take, foreseen: parameters, memory, steps and time, and what to change if it does not fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from typing import Any

import torch
from torch import nn

from regard.config.recipe import Recipe
from regard.config.setup import Material, read_material
from regard.models.model import Network
from regard.training.log import span
from regard.training.probe import SHARE, Memory, Probe, fitting, look_at

_SECONDS = 12.0  # for the steps that are timed


@dataclass(frozen=True)
class Foreseen:
    """What a training would take."""

    parameters: dict[str, int]  # by part; what several parts share belongs to the first
    memory: Memory
    texts: int
    longest: int  # tokens of the longest sample, all sides
    alone: int  # samples that are longer than a step may be, so that each is a step of its own
    epoch_tokens: int
    epoch_steps: int
    exact: bool  # else tokens and steps of an epoch are reckoned from a part of it
    steps: int
    batch_tokens: int
    accumulate: int  # parts of a step, so that it fits
    tokens_per_second: float
    timed: int  # steps
    validations: int
    device: str
    threads: int
    remedies: tuple[str, ...]  # what to change, if it does not fit

    @property
    def fits(self) -> bool:
        """Whether memory holds the largest step."""
        return self.memory.total <= self.memory.available

    @property
    def epochs(self) -> float:
        """How often every text is seen."""
        return self.steps / self.epoch_steps

    @property
    def seconds(self) -> float:
        """The time that all steps take, validations not counted."""
        return self.epochs * self.epoch_tokens / self.tokens_per_second

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs; memory in bytes."""
        memory = {**asdict(self.memory), "total": self.memory.total}
        reckoned = {"fits": self.fits, "epochs": round(self.epochs, 4), "seconds": round(self.seconds, 3)}
        return {**asdict(self), "memory": memory, "tokens_per_second": round(self.tokens_per_second, 1), **reckoned}

    def text(self) -> str:
        """Everything, for people."""
        memory, about = self.memory, "" if self.exact else "about "
        parts = ", ".join(f"{name} {count:,}" for name, count in self.parameters.items())
        held = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer}
        held |= {"averages": memory.averages} if memory.averages else {}
        holds = ", ".join(f"{name} {amount(count)}" for name, count in held.items())
        where = self.device if self.device != "cpu" else f"cpu, {self.threads} thread{'s' * (self.threads > 1)}"
        cut = f", in {self.accumulate} parts" if self.accumulate > 1 else ""
        after = f"; {self.validations:,} validations come on top" if self.validations else ""
        return "\n".join([
            f"parameters  {sum(self.parameters.values()):,}: {parts}",
            f"memory      {holds}, activations {'' if memory.measured else 'about '}{amount(memory.activations)}: "
            f"{amount(memory.total)} of {amount(memory.available)} available",
            f"text        {self.texts:,} texts, {about}{self.epoch_tokens:,} tokens an epoch",
            f"steps       {about}{self.epoch_steps:,} an epoch of up to {self.batch_tokens:,} tokens; {self.steps:,} "
            f"steps are {self.epochs:.3g} epochs",
            f"speed       {self.tokens_per_second:,.0f} tokens/s (median of {self.timed} steps{cut}; {where})",
            f"time        {span(self.seconds)} for {self.steps:,} steps{after}",
            "It fits." if self.fits else
            f"It does not fit: the largest step needs {amount(memory.total)}, there are {amount(memory.available)}.",
            *([f"Steps are too short for {self.alone:,} samples, each of which is a step of its own: the longest has "
               f"{self.longest:,} tokens, all sides (train.batch_tokens)."] if self.alone else []),
            *(f"  try {remedy}" for remedy in self.remedies),
        ])  # fmt: skip


def plan(recipe: Recipe, device: torch.device) -> Foreseen:
    """Foresee what a recipe would take on this device, by taking a few steps that count for nothing."""
    material = read_material(recipe)
    samples, settings = material.samples, recipe.train
    if settings.batch_tokens == "fit":
        settings = replace(settings, batch_tokens=fitting(material.network, samples, settings, device)[0])
    probe = Probe(material.network, samples, settings, device)
    epoch, sizes = look_at(probe.trainer.plan), samples.lengths.sum(1)
    memory = probe.memory(epoch.largest)
    parts = parts_that_fit(memory, settings.accumulate, len(epoch.largest))
    trainer = probe.trainer
    trainer.accumulate = parts or len(epoch.largest)
    speeds = probe.speeds(_SECONDS)
    return Foreseen(
        parameters=parameters(trainer.network),
        memory=memory,
        texts=len(material.corpus),
        longest=int(sizes.max()),
        alone=int((sizes > settings.budget).sum()),
        epoch_tokens=epoch.tokens,
        epoch_steps=epoch.steps,
        exact=epoch.exact,
        steps=settings.steps,
        batch_tokens=settings.budget,
        accumulate=trainer.accumulate,
        tokens_per_second=median(speeds),
        timed=len(speeds),
        validations=settings.steps // settings.valid_every if material.valid is not None else 0,
        device=device.type,
        threads=torch.get_num_threads(),
        remedies=remedies(material, memory, parts) if memory.total > memory.available else (),
    )


def parameters(network: Network) -> dict[str, int]:
    """How many weights each part of a network has; what several parts share belongs to the first."""
    seen: set[nn.Parameter] = set()
    counts = {}
    named = {
        "embed": (network.embed, network.source_embed),
        "encoder": (network.encoder,),
        "decoder": (network.decoder,),
        "readout": (network.readout,),
    }
    for name, modules in named.items():
        own = {weight for module in modules if module is not None for weight in module.parameters()} - seen
        counts[name] = sum(weight.numel() for weight in own)
        seen |= own
    return counts


def parts_that_fit(memory: Memory, accumulate: int, samples: int) -> int | None:
    """Into how many parts the largest step must be cut to leave some memory free; None if that is not enough."""
    if memory.total <= memory.available:
        return accumulate
    parts = accumulate
    while parts < samples:
        parts *= 2
        if memory.lasting + memory.activations * accumulate // parts <= SHARE * memory.available:
            return parts
    return None


def remedies(material: Material, memory: Memory, parts: int | None) -> tuple[str, ...]:
    """What to change so that it fits, the most harmless first."""
    settings, task = material.recipe.train, material.task
    length = fields(task)[0].name
    smaller = "model.width: a smaller model"
    sharded = 'train.parallel = "shard" and several processes: each holds a part of the weights'
    if memory.lasting > memory.available:
        return (smaller, sharded)
    found = [] if settings.gradient_checkpointing else ["train.recompute = true: the same result, slower, fewer activations"]
    if parts is not None:
        fewer = settings.budget * settings.accumulate // parts if isinstance(settings.batch_tokens, int) else 1024
        return (
            f"train.accumulate = {parts}: the same result",
            *found,
            f"train.batch_tokens = {fewer}: smaller steps, learns otherwise",
        )
    return (*found, f"text.task.{length} below {getattr(task, length)}: shorter samples", smaller, sharded)


def amount(count: int) -> str:
    """Bytes as people say them."""
    value = float(count)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} GB" if value < 1000 else f"{value:,.0f} GB"
