"""LAMB (You 2019, algorithm 2) with a least trust (Merity 2019), which neither torch nor a light library has."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from regard.errors import InputError, suggest
from regard.models.model import Network


class LambSteps(torch.optim.Optimizer):
    """Adam's step, made as long as its weights are large, though never shorter than `least_trust` times Adam's."""

    def __init__(
        self, groups: list[dict[str, Any]], betas: tuple[float, float], epsilon: float, least_trust: float
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": epsilon, "least_trust": least_trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.move(weight, weight.grad, group)

    def move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Move one weight."""
        state, (first, second) = self.state[weight], group["betas"]
        if not state:
            state |= {"step": torch.zeros(()), "exp_avg": zeros(weight), "exp_avg_sq": zeros(weight)}
        state["step"] += 1
        count = float(state["step"])
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        spread = (state["exp_avg_sq"] / (1 - second**count)).sqrt_().add_(group["eps"])
        update = (state["exp_avg"] / (1 - first**count)).div_(spread).add_(weight, alpha=group["weight_decay"])
        size, length = weight.norm(), update.norm()
        trust = torch.where((size > 0) & (length > 0), size / length, 1.0).clamp_min(group["least_trust"])
        weight.sub_(update.mul_(group["lr"] * trust))


def zeros(weight: Tensor) -> Tensor:
    """As many zeros as there are weights."""
    return torch.zeros_like(weight, memory_format=torch.preserve_format)


@dataclass(frozen=True)
class Group:
    """Parameters whose names match a pattern: their factor of the rate (0 freezes them) and their decay."""

    match: str
    learning_rate: float = 1.0
    decay: float | None = None  # in place of the optimizer's

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < math.inf or not 0 <= (self.decay or 0.0) < math.inf:
            raise InputError(f"rate and decay must be numbers at 0 or more, got {self}.")


@dataclass(frozen=True)
class Learnt:
    """A parameter that learns, and how."""

    name: str
    parameter: nn.Parameter
    hidden: bool  # a matrix from hidden states to hidden states
    factor: float  # of the rate
    decay: float | None  # in place of the optimizer's


def learnt(network: Network, groups: Sequence[Group] = (), layer_decay: float = 1.0) -> list[Learnt]:
    """The parameters that learn, each by the first group that matches its name; the rest are frozen."""
    named = dict(network.named_parameters())
    chosen = {name: next((g for g in groups if fnmatchcase(name, g.match)), Group("*")) for name in named}
    _require_use(groups, chosen)
    if not any(group.learning_rate for group in chosen.values()):
        raise InputError("no parameter is left to learn (train.groups). Give a group a rate above 0.")
    for name, parameter in named.items():
        parameter.requires_grad_(chosen[name].learning_rate > 0)
    hidden, above = hidden_matrices(network), layers_above(network)
    return [
        Learnt(name, p, p in hidden, chosen[name].learning_rate * layer_decay ** above.get(p, 0), chosen[name].decay)
        for name, p in named.items()
        if p.requires_grad
    ]


def hidden_matrices(network: Network) -> set[nn.Parameter]:
    """The weights of linear maps and recurrent cells inside the stacks."""
    return {
        parameter
        for stack in (network.encoder, network.decoder)
        if stack is not None
        for module in stack.modules()
        if isinstance(module, (nn.Linear, nn.RNNBase, nn.RNNCellBase))
        for parameter in module.parameters(recurse=False)
        if parameter.dim() == 2
    }


def layers_above(network: Network) -> dict[nn.Parameter, int]:
    """How many layers of its stack stand above a parameter of a layer; above an embedding, all of the deepest."""
    stacks = [
        list(cast(nn.ModuleList, stack.wiring.layers))
        for stack in (network.encoder, network.decoder)
        if stack is not None
    ]
    above = {p: n for layers in stacks for n, layer in enumerate(reversed(layers)) for p in layer.parameters()}
    embeddings = [*network.embed.parameters(), *network.source_embed.parameters()]
    return above | dict.fromkeys(embeddings, max(map(len, stacks)))


def _require_use(groups: Sequence[Group], chosen: Mapping[str, Group]) -> None:
    """Refuse a group that stands for nothing."""
    for place, group in enumerate(groups):
        pattern, where = group.match, f"train.groups[{place}].match"
        if group in chosen.values():
            continue
        if any(fnmatchcase(name, pattern) for name in chosen):
            raise InputError(f'the groups before it take all that "{pattern}" matches ({where}). Put it first.')
        paths = [name.split(".") for name in chosen]
        folders = {".".join([*path[:depth], "*"]) for path in paths for depth in range(1, len(path))}
        near = get_close_matches(pattern, {*folders, *chosen}, n=1)
        hint = suggest(pattern, near or {f"{path[0]}.*" for path in paths})
        raise InputError(f'no parameter matches "{pattern}" ({where}). {hint}')


def grouped(parameters: Sequence[Learnt], decay: float) -> list[dict[str, Any]]:
    """Groups as torch wants them, alike in factor and decay; norms, biases and vectors do not decay."""
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = defaultdict(list)
    for one in parameters:
        own = decay if one.decay is None else one.decay
        groups[one.factor, own if one.parameter.dim() >= 2 else 0.0].append((one.name, one.parameter))
    return [{"params": params, "factor": factor, "weight_decay": own} for (factor, own), params in groups.items()]


class Optimizers:
    """Torch's optimizers side by side, as one."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    def step(self, learning_rate: float) -> None:
        """Move every weight; each group goes at its own factor of the rate."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * group["factor"]
            optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """All that is remembered, by the parameters' names: "name/exp_avg"."""
        return {
            f"{name}/{key}": value
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for name, parameter in zip(group["param_names"], group["params"])
            for key, value in optimizer.state.get(parameter, {}).items()
        }

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """The opposite of `tensors`."""
        states: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for path, tensor in tensors.items():
            name, _, key = path.rpartition("/")
            states[name][key] = tensor
        for optimizer in self.optimizers:
            names = [name for group in optimizer.param_groups for name in group["param_names"]]
            state = {number: states[name] for number, name in enumerate(names) if name in states}
            # Torch knows on which device each of its optimizers counts steps.
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@dataclass(frozen=True)
class AdamW:
    """Adam with weight decay apart from the gradient (Loshchilov 2019)."""

    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-9
    decay: float = 0.01
    shards: ClassVar[bool] = True  # whether it can move weights of which each process holds a slice

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas) or self.epsilon <= 0 or not 0 <= self.decay < math.inf:
            raise InputError(f"betas must lie in 0 to 1, epsilon above 0, decay at 0 or more; got {self}.")

    def build(self, parameters: Sequence[Learnt]) -> list[torch.optim.Optimizer]:
        """Torch's optimizer of these parameters; none if there are none."""
        groups = grouped(parameters, self.decay)
        return [torch.optim.AdamW(groups, betas=self.betas, eps=self.epsilon, fused=True)] if groups else []


@dataclass(frozen=True)
class Adafactor:
    """Second moments kept as rows and columns, steps relative to the size of a weight (Shazeer 2018)."""

    power: float = 0.8  # the second moment's beta at step t is 1 - t ** -power
    epsilon: float = 1e-3  # weights smaller than this move as if they were so large
    threshold: float = 1.0  # above which the mean size of an update is cut
    decay: float = 0.0
    shards: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.power <= 0 or self.epsilon <= 0 or self.threshold < 1 or not 0 <= self.decay < math.inf:
            raise InputError(
                f"power and epsilon must be above 0, threshold at 1 or more, decay at 0 or more; got {self}."
            )

    def build(self, parameters: Sequence[Learnt]) -> list[torch.optim.Optimizer]:
        """Torch's optimizer of these parameters; none if there are none."""
        groups = grouped(parameters, self.decay)
        options: dict[str, Any] = {"beta2_decay": -self.power, "eps": (None, self.epsilon), "d": self.threshold}
        return [torch.optim.Adafactor(groups, **options)] if groups else []


@dataclass(frozen=True)
class Muon:
    """Momentum made orthogonal (Jordan 2024) for hidden matrices; an AdamW moves all other weights.

    Updates have the size of AdamW's (Liu 2025, section 2.2), so that one rate serves both.
    """

    momentum: float = 0.95
    decay: float = 0.01
    others: AdamW = field(default_factory=AdamW)
    shards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1 or not 0 <= self.decay < math.inf:
            raise InputError(f"momentum must lie in 0 to 1, decay at 0 or more; got {self}.")

    def build(self, parameters: Sequence[Learnt]) -> list[torch.optim.Optimizer]:
        """Torch's optimizers of these parameters: one of the hidden matrices, one of all others."""
        groups = grouped([one for one in parameters if one.hidden], self.decay)
        others = self.others.build([one for one in parameters if not one.hidden])
        options: dict[str, Any] = {"momentum": self.momentum, "adjust_lr_fn": "match_rms_adamw"}
        return [torch.optim.Muon(groups, **options), *others] if groups else others


@dataclass(frozen=True)
class Lamb:
    """Steps of Adam as long as the weights they move are large (You 2019), but at least `least_trust` of Adam's own."""

    least_trust: float = 0.25  # 0: as the paper has it, where small weights hardly begin to move
    adam: AdamW = field(default_factory=AdamW)
    shards: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.least_trust < math.inf:
            raise InputError(f"least_trust must be 0 or more, got {self.least_trust}.")

    def build(self, parameters: Sequence[Learnt]) -> list[torch.optim.Optimizer]:
        """The optimizer of these parameters; none if there are none."""
        groups, adam = grouped(parameters, self.adam.decay), self.adam
        return [LambSteps(groups, adam.betas, adam.epsilon, self.least_trust)] if groups else []


Optimizer = AdamW | Adafactor | Muon | Lamb


@dataclass(frozen=True)
class InverseSquareRoot:
    """Rises linearly, then falls with the square root of the step (Vaswani 2017, equation 3)."""

    warmup: int = 4000
    aims: ClassVar[bool] = False  # whether the rate of a step depends on how many there will be

    def __post_init__(self) -> None:
        _check_warmup(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 1."""
        warmup = max(1, self.warmup)
        return min(step / warmup, math.sqrt(warmup / step))


@dataclass(frozen=True)
class Cosine:
    """Rises linearly, then falls along half a cosine to `floor` at the last step."""

    warmup: int = 0
    floor: float = 0.0
    aims: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_warmup(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 1."""
        if step <= self.warmup:
            return step / self.warmup
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * _done(step, self.warmup, steps))) / 2


@dataclass(frozen=True)
class Linear:
    """Rises linearly, then falls linearly to `floor` at the last step."""

    warmup: int = 0
    floor: float = 0.0
    aims: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_warmup(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 1."""
        if step <= self.warmup:
            return step / self.warmup
        return 1 - (1 - self.floor) * _done(step, self.warmup, steps)


@dataclass(frozen=True)
class Constant:
    """Rises linearly, then stays."""

    warmup: int = 0
    aims: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_warmup(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 1."""
        return min(1.0, step / self.warmup) if self.warmup else 1.0


Schedule = InverseSquareRoot | Cosine | Linear | Constant


def _check_warmup(warmup: int) -> None:
    if warmup < 0:
        raise InputError(f"warmup must be 0 or more, got {warmup} (train.schedule.warmup).")


def _done(step: int, warmup: int, steps: int) -> float:
    return min(1.0, (step - warmup) / max(1, steps - warmup))
