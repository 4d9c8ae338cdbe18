"""Reversible layers: activation memory that does not grow with depth, and the same gradients.

y1 = x1 + f(x2), y2 = x2 + g(y1) can be inverted: x2 = y2 - g(y1), x1 = y1 - f(x2). So the backward pass recomputes
the inputs of each layer from its outputs, and nothing is kept (Gomez 2017; Kitaev 2020, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import CPU, build
from regard.lab.tasks import draw
from regard.layers.contract import Context
from regard.layers.join import PreNorm
from regard.layers.positions import Rotary
from regard.layers.reversible import Reversible
from regard.models import zoo
from regard.models.model import Model, Network
from regard.training.memory import peak


@dataclass(frozen=True)
class Settings:
    """Depths, and the sizes of model and text."""

    depths: tuple[int, ...] = (2, 4, 8)
    width: int = 128
    length: int = 2048


JOINS: dict[str, PreNorm | Reversible] = {"residual (pre-norm)": PreNorm(), "reversible": Reversible()}


def model(trial: Trial[Settings], depth: int) -> Model:
    """The same model with another join."""
    return zoo.gpt2(trial.settings.width, depth, 4, position=Rotary(), dropout=0.0, join=JOINS[trial.arm])


def gradients(network: Network, ids: Tensor) -> dict[str, Tensor]:
    """The gradients of a language model's loss."""
    network.zero_grad()
    network.loss({"ids": ids[:, :-1]}, ids[:, 1:]).backward()
    return {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}


def stored(network: Network, ids: Tensor) -> dict[str, Tensor]:
    """The same gradients by plain automatic differentiation, which stores all activations."""
    network.zero_grad()
    # With memory asked for, a reversible layer runs without its own backward pass.
    states, _ = network.decode(ids[:, :-1], Context(remember=True))
    network.readout.loss(states, ids[:, 1:]).backward()
    return {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference, relative to the largest gradient of the same weight."""
    return max(
        float((found[name] - one).abs().max() / one.abs().max().clamp_min(1e-12)) for name, one in expected.items()
    )


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """Peak memory of a step by depth, and the difference of gradients."""
    chosen, found = trial.settings, {}
    for depth in chosen.depths:
        network = build(model(trial, depth), 50, trial.seed)
        ids = draw(trial.seed, 1, chosen.length + 1, below=50)
        gradients(network, ids[:, :9])  # gradients exist before memory is measured
        found[f"MiB, depth {depth}"] = peak(lambda: gradients(network, ids), CPU) / 2**20  # noqa: B023
    small = build(model(trial, chosen.depths[-1]), 50, trial.seed).double()
    ids = draw(trial.seed, 2, 33, below=50)
    first, last = (found[f"MiB, depth {depth}"] for depth in (chosen.depths[0], chosen.depths[-1]))
    per_layer = (last - first) / (chosen.depths[-1] - chosen.depths[0])
    differs = difference(gradients(small, ids), stored(small, ids))
    return {**found, "MiB per layer": per_layer, "difference of gradients": differs}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    ours, theirs = (numbers.values(arm, "MiB per layer") for arm in ("reversible", "residual (pre-norm)"))
    equal = all(value < 1e-6 for value in numbers.values("reversible", "difference of gradients"))
    saved = [one < two / 5 for one, two in zip(ours, theirs)]
    if equal and all(saved):
        return CONFIRMED
    return REFUTED if not equal or not any(saved) else NOT_DECIDED


CLAIM = Claim(
    name="reversible",
    question="Do reversible layers train with memory that hardly grows with depth, and with the same gradients?",
    source="Kitaev 2020, section 3; Gomez 2017; notes on the Reformer",
    method="One language model with two joins, one text of 2,048 tokens: the peak memory of a forward and backward "
    "pass by depth. In float64, the gradients of the recomputing backward pass against plain automatic "
    "differentiation of the same layers.",
    rule="Confirmed if in every seed a reversible layer adds less than a fifth of the memory that a residual layer "
    "adds, and gradients differ by less than 1e-6 of the largest. Refuted if gradients differ by more, or no seed "
    "saves so much.",
    caveats="A layer's own weights and gradients are counted too, and no join saves those. Recomputing takes about a "
    "third more time.",
    minutes=1,
    fewest=1,
    arms=tuple(JOINS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Peak memory of a step, MiB", "MiB, depth"),
)  # fmt: skip
