"""Optimizers (AdamW, Adafactor, Muon, LAMB), parameter groups and learning rate schedules."""

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
from regard.layers.lora import changing_parameters
from regard.models.model import Network


@dataclass(frozen=True)
class Group:
    """A parameter group: parameters whose names match a pattern, with a learning rate and weight decay of their own."""

    match: str
    lr_scale: float = 1.0  # factor of the learning rate; 0 freezes the parameters
    weight_decay: float | None = None  # replaces the optimizer's

    def __post_init__(self) -> None:
        if not 0 <= self.lr_scale < math.inf or not 0 <= (self.weight_decay or 0.0) < math.inf:
            raise InputError(f"lr_scale and weight_decay must be numbers at 0 or more, got {self}.")


@dataclass(frozen=True)
class Trainable:
    """A parameter that is trained, and how."""

    name: str
    parameter: nn.Parameter
    hidden: bool  # a matrix from hidden states to hidden states
    lr_scale: float
    weight_decay: float | None  # replaces the optimizer's


def trainable_parameters(network: Network, groups: Sequence[Group] = (), layer_decay: float = 1.0) -> list[Trainable]:
    """The trainable parameters, each with the first group that matches its name; all others are frozen.

    The learning rate is multiplied by `layer_decay` for each layer above a parameter.
    """
    named = dict(changing_parameters(network))
    chosen = {name: next((g for g in groups if fnmatchcase(name, g.match)), Group("*")) for name in named}
    _require_use(groups, chosen)
    if not any(group.lr_scale for group in chosen.values()):
        raise InputError("every parameter is frozen (train.groups). Give a group an lr_scale above 0.")
    hidden, above = hidden_matrices(network), layers_above(network)
    found = []
    for name, parameter in named.items():
        group = chosen[name]
        parameter.requires_grad_(group.lr_scale > 0)
        if parameter.requires_grad:
            scale = group.lr_scale * layer_decay ** above.get(parameter, 0)
            found.append(Trainable(name, parameter, parameter in hidden, scale, group.weight_decay))
    return found


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
    """The number of layers above each parameter in its stack; above an embedding, all layers of the deepest stack."""
    parts = (network.encoder, network.decoder)
    stacks = [list(cast(nn.ModuleList, stack.layers)) for stack in parts if stack is not None]
    above = {p: n for layers in stacks for n, layer in enumerate(reversed(layers)) for p in layer.parameters()}
    embeddings = [*network.embed.parameters(), *network.source_embed.parameters()]
    return above | dict.fromkeys(embeddings, max(map(len, stacks)))


def _require_use(groups: Sequence[Group], chosen: Mapping[str, Group]) -> None:
    """Refuse a group that no parameter belongs to."""
    for number, group in enumerate(groups):
        if group in chosen.values():
            continue
        pattern, where = group.match, f"train.groups[{number}].match"
        if any(fnmatchcase(name, pattern) for name in chosen):
            raise InputError(f'the groups before it take all that "{pattern}" matches ({where}). Put it first.')
        paths = [name.split(".") for name in chosen]
        prefixes = {".".join([*path[:depth], "*"]) for path in paths for depth in range(1, len(path))}
        near = get_close_matches(pattern, {*prefixes, *chosen}, n=1)
        hint = suggest(pattern, near or {f"{path[0]}.*" for path in paths})
        raise InputError(f'no parameter matches "{pattern}" ({where}). {hint}')


def torch_groups(parameters: Sequence[Trainable], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for torch, by `lr_scale` and weight decay; norms, biases and vectors do not decay."""
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = defaultdict(list)
    for one in parameters:
        own = weight_decay if one.weight_decay is None else one.weight_decay
        groups[one.lr_scale, own if one.parameter.dim() >= 2 else 0.0].append((one.name, one.parameter))
    return [{"params": params, "lr_scale": scale, "weight_decay": own} for (scale, own), params in groups.items()]


class Optimizers:
    """Several torch optimizers that act as one."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    def step(self, learning_rate: float) -> None:
        """Update every weight; the learning rate of a group is scaled by its `lr_scale`."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * group["lr_scale"]
            optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer state by parameter name: "name/exp_avg"."""
        return {
            f"{name}/{key}": value
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for name, parameter in zip(group["param_names"], group["params"])
            for key, value in optimizer.state.get(parameter, {}).items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""
        states: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for path, tensor in tensors.items():
            name, _, key = path.rpartition("/")
            states[name][key] = tensor
        for optimizer in self.optimizers:
            names = [name for group in optimizer.param_groups for name in group["param_names"]]
            state = {number: states[name] for number, name in enumerate(names) if name in states}
            # load_state_dict moves each tensor to the device where its optimizer wants it.
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov 2019)."""

    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-9
    weight_decay: float = 0.01
    kind: ClassVar[str] = "adamw"
    shards: ClassVar[bool] = True  # whether it can update sharded weights

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas) or self.epsilon <= 0 or not 0 <= self.weight_decay < math.inf:
            raise InputError(f"betas must lie in 0 to 1, epsilon above 0, weight_decay at 0 or more; got {self}.")

    def build(self, parameters: Sequence[Trainable]) -> list[torch.optim.Optimizer]:
        """The torch optimizer of these parameters; none if there are none."""
        groups = torch_groups(parameters, self.weight_decay)
        return [torch.optim.AdamW(groups, betas=self.betas, eps=self.epsilon, fused=True)] if groups else []

    def state_size(self, parameters: Sequence[Trainable]) -> int:
        """The numbers that it keeps for these parameters."""
        return sum(2 * one.parameter.numel() for one in parameters)


@dataclass(frozen=True)
class Adafactor:
    """Second moments factored into rows and columns, updates relative to the size of a weight (Shazeer 2018)."""

    power: float = 0.8  # the second moment's beta at step t is 1 - t ** -power
    epsilon: float = 1e-3  # smaller weights are updated as if they had this size
    clip_threshold: float = 1.0  # of the root mean square of an update
    weight_decay: float = 0.0
    shards: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.power <= 0 or self.epsilon <= 0 or self.clip_threshold < 1 or not 0 <= self.weight_decay < math.inf:
            bounds = "power and epsilon must be above 0, clip_threshold at 1 or more, weight_decay at 0 or more"
            raise InputError(f"{bounds}; got {self}.")

    def build(self, parameters: Sequence[Trainable]) -> list[torch.optim.Optimizer]:
        """The torch optimizer of these parameters; none if there are none."""
        groups = torch_groups(parameters, self.weight_decay)
        options: dict[str, Any] = {"beta2_decay": -self.power, "eps": (None, self.epsilon), "d": self.clip_threshold}
        return [torch.optim.Adafactor(groups, **options)] if groups else []

    def state_size(self, parameters: Sequence[Trainable]) -> int:
        """The numbers that it keeps for these parameters: a row and a column of each matrix."""
        shapes = [one.parameter.shape for one in parameters]
        return sum(sum(math.prod(shape) // side for side in shape[-2:]) if len(shape) > 1 else shape.numel()
                   for shape in shapes)  # fmt: skip


@dataclass(frozen=True)
class Muon:
    """Orthogonalized momentum (Jordan 2024) for hidden matrices; AdamW updates all other weights.

    Updates have the size of AdamW's (Liu 2025, section 2.2), so one learning rate serves both.
    """

    momentum: float = 0.95
    weight_decay: float = 0.01
    others: AdamW = field(default_factory=AdamW)
    shards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < math.inf:
            raise InputError(f"momentum must lie in 0 to 1, weight_decay at 0 or more; got {self}.")

    def build(self, parameters: Sequence[Trainable]) -> list[torch.optim.Optimizer]:
        """The torch optimizers: one of the hidden matrices, one of all other parameters."""
        groups = torch_groups([one for one in parameters if one.hidden], self.weight_decay)
        others = self.others.build([one for one in parameters if not one.hidden])
        options: dict[str, Any] = {"momentum": self.momentum, "adjust_lr_fn": "match_rms_adamw"}
        return [torch.optim.Muon(groups, **options), *others] if groups else others

    def state_size(self, parameters: Sequence[Trainable]) -> int:
        """The numbers that it keeps for these parameters."""
        others = self.others.state_size([one for one in parameters if not one.hidden])
        return sum(one.parameter.numel() for one in parameters if one.hidden) + others


@dataclass(frozen=True)
class Lamb:
    """LAMB: Adam's update times a trust ratio, the weight's norm over the update's (You 2019), at least `min_trust`."""

    min_trust: float = 0.25  # after Merity 2019; the paper's 0 hardly updates small weights
    adam: AdamW = field(default_factory=AdamW)
    shards: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_trust < math.inf:
            raise InputError(f"min_trust must be 0 or more, got {self.min_trust}.")

    def build(self, parameters: Sequence[Trainable]) -> list[torch.optim.Optimizer]:
        """The optimizer of these parameters; none if there are none."""
        groups, adam = torch_groups(parameters, self.adam.weight_decay), self.adam
        return [LambOptimizer(groups, adam.betas, adam.epsilon, self.min_trust)] if groups else []

    def state_size(self, parameters: Sequence[Trainable]) -> int:
        """The numbers that it keeps for these parameters."""
        return self.adam.state_size(parameters)


class LambOptimizer(torch.optim.Optimizer):
    """LAMB (You 2019, algorithm 2) with a minimum trust ratio, which torch does not have."""

    def __init__(
        self, groups: list[dict[str, Any]], betas: tuple[float, float], epsilon: float, min_trust: float
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": epsilon, "min_trust": min_trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, weight.grad, group)

    def update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one weight."""
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            zeros = [torch.zeros_like(weight, memory_format=torch.preserve_format) for _ in range(2)]
            state |= {"step": torch.zeros(()), "exp_avg": zeros[0], "exp_avg_sq": zeros[1]}
        state["step"] += 1
        count = float(state["step"])
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        deviation = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt_().add_(group["eps"])
        update = (state["exp_avg"] / (1 - beta1**count)).div_(deviation).add_(weight, alpha=group["weight_decay"])
        weight_norm, update_norm = weight.norm(), update.norm()
        trust = torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
        weight.sub_(update.mul_(group["lr"] * trust.clamp_min(group["min_trust"])))


Optimizer = AdamW | Adafactor | Muon | Lamb


class WarmUpSchedule:
    """The base of learning rate schedules, which all start with a linear warm-up."""

    warmup: int

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise InputError(f"warmup must be 0 or more, got {self.warmup} (train.schedule.warmup).")

    def warmup_within(self, steps: int) -> int:
        """The steps of warm-up in a run of this many steps: a tenth of it where the warm-up would be longer."""
        return self.warmup if self.warmup <= steps else steps // 10

    def factor(self, step: int, steps: int) -> float:
        """The factor of the learning rate at a step, counted from 1, of a run of this many steps."""
        warmup = self.warmup_within(steps)
        if step <= warmup:
            return step / warmup
        return self.after_warmup(step, warmup, min(1.0, (step - warmup) / max(1, steps - warmup)))

    def after_warmup(self, step: int, warmup: int, progress: float) -> float:
        """The factor after the warm-up; `progress` is the fraction of the remaining steps that are done."""
        raise NotImplementedError


@dataclass(frozen=True)
class InverseSquareRoot(WarmUpSchedule):
    """Linear warm-up, then the inverse square root of the step (Vaswani 2017, equation 3)."""

    warmup: int = 4000

    def after_warmup(self, step: int, warmup: int, progress: float) -> float:
        return math.sqrt(max(1, warmup) / step)


@dataclass(frozen=True)
class Cosine(WarmUpSchedule):
    """Linear warm-up, then half a cosine down to `floor` at the last step."""

    warmup: int = 0
    floor: float = 0.0

    def after_warmup(self, step: int, warmup: int, progress: float) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Linear(WarmUpSchedule):
    """Linear warm-up, then a line down to `floor` at the last step."""

    warmup: int = 0
    floor: float = 0.0

    def after_warmup(self, step: int, warmup: int, progress: float) -> float:
        return 1 - (1 - self.floor) * progress


@dataclass(frozen=True)
class Constant(WarmUpSchedule):
    """Linear warm-up, then constant."""

    warmup: int = 0

    def after_warmup(self, step: int, warmup: int, progress: float) -> float:
        return 1.0


Schedule = InverseSquareRoot | Cosine | Linear | Constant
