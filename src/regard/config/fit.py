"""Whether training fits in memory, reckoned on the meta device before anything is allocated, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from regard import messages
from regard.errors import InputError
from regard.models.model import Model, Network
from regard.training.distributed import World
from regard.training.memory import SHARE, Memory, static_memory
from regard.training.optimizers import Adafactor
from regard.training.settings import Training

if TYPE_CHECKING:
    from regard.config.setup import Setup

SHARDED = 'train.parallel = "shard" with several processes: each holds a part of the weights'


def meta_network(setup: Setup, model: Model | None = None) -> Network:
    """The network of a recipe without memory for its weights."""
    with torch.device("meta"):
        return setup.adapted((model or setup.model).build(*setup.vocabularies))


def reckoned_memory(setup: Setup, device: torch.device, processes: int = 1) -> Memory:
    """The memory that stays allocated during training: weights, gradients, optimizer, moving average."""
    return static_memory(meta_network(setup), setup.recipe.train, device, processes)


def require_fit(setup: Setup, world: World) -> None:
    """Refuse to train what does not fit in memory even without activations."""
    memory = reckoned_memory(setup, world.device, world.size)
    if memory.static > memory.available:
        raise messages.TOO_LARGE(
            parameters=memory.weights // 4, needed=amount(memory.static), free=amount(memory.available),
            place=world.device.type, remedy="Try " + " Or ".join(f"{one}." for one in what_fits(setup, world.device)),
        )  # fmt: skip


def what_fits(setup: Setup, device: torch.device) -> tuple[str, ...]:
    """What to change so that weights, gradients and optimizer fit, with room for activations."""
    settings = setup.recipe.train
    lean = replace(settings, optimizer=Adafactor(), parallel="replicate")
    found = [f"model.{key} = {value}, which fits" for key, value in _smaller_models(setup, device)]
    if not isinstance(settings.optimizer, Adafactor) and _fits(setup, setup.model, lean, device):
        found.append('train.optimizer = "adafactor", which fits')
    return (*(found or ["a smaller model"]), SHARDED)


def _smaller_models(setup: Setup, device: torch.device) -> Iterator[tuple[str, int]]:
    """The largest width and the largest depth that fit, halved until they do."""
    stack = setup.model.encoder or setup.model.decoder
    depth = setup.recipe.tables.get("model", {}).get("depth") or len(stack.layers if stack else ())
    for key, value in (("width", setup.model.width), ("depth", depth)):
        while value > 1:
            value //= 2
            try:
                fits = _fits(setup, setup.resized(key, value), setup.recipe.train, device)
            except InputError:  # a model without this key, or heads that do not divide the width
                continue
            if fits:
                yield key, value
                break


def _fits(setup: Setup, model: Model, settings: Training, device: torch.device) -> bool:
    memory = static_memory(meta_network(setup, model), settings, device)
    return memory.static <= SHARE * memory.available


def amount(count: int) -> str:
    """Bytes with a unit."""
    value = float(count)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} GB" if value < 1000 else f"{value:,.0f} GB"
