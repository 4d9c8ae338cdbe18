"""LoRA, low-rank adaptation (Hu 2021): a frozen linear map plus a trained product of two narrow matrices.

In training an adapter stands beside its linear map; when it is loaded, it is folded into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.dropout import Dropout
from regard.layers.linear import product

_CHILD = "lora"  # the name of the adapter inside its linear map


@dataclass(frozen=True)
class LoRA:
    """Which linear maps get an adapter, and of what rank; all other weights are frozen, but for a new readout."""

    rank: int = 8
    match: str | tuple[str, ...] = "*"  # wildcards over the names of linear maps, as in "*.self.*"
    alpha: float | None = None  # the adapter's output is scaled by alpha / rank; None: by 1
    dropout: float = 0.0  # of the adapter's input

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"rank must be 1 or more, got {self.rank} (train.lora.rank).")
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise InputError(f"alpha must be a number above 0, got {self.alpha} (train.lora.alpha).")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be 0 or more and below 1, got {self.dropout} (train.lora.dropout).")

    @property
    def patterns(self) -> tuple[str, ...]:
        return (self.match,) if isinstance(self.match, str) else self.match

    @property
    def scale(self) -> float:
        """The factor of the adapter's output."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    def chosen(self, maps: Mapping[str, nn.Linear]) -> dict[str, nn.Linear]:
        """The maps that get an adapter: those whose name, or whose weight's name, a pattern matches."""
        found: dict[str, nn.Linear] = {}
        for pattern in self.patterns:
            own = {name: one for name, one in maps.items() if _matches(name, pattern)}
            if not own:
                near = get_close_matches(pattern, maps, n=3, cutoff=0.0)
                raise InputError(f'no linear map matches "{pattern}" (train.lora.match). This model has, among '
                                 f"{len(maps):,}: {', '.join(near) or 'none that can take one'}.")  # fmt: skip
            found |= own
        if not found:
            raise InputError('match is empty (train.lora.match). Name linear maps, as in match = "*.self.*".')
        return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(f"{name}.weight", pattern)


class LoRALayer(nn.Module):
    """h = W_0 x + (alpha / r) B A x, without W_0 x (Hu 2021, section 4.1): A starts at random, B at zero."""

    def __init__(self, description: LoRA, inputs: int, outputs: int) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(description.rank, inputs))
        self.B = nn.Parameter(torch.zeros(outputs, description.rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.dropout, self.scale = Dropout(description.dropout), description.scale

    def forward(self, x: Tensor) -> Tensor:
        """...K -> ...N: what is added to the linear map's output."""
        return product(product(self.dropout(x), self.A * self.scale), self.B)


def linear_maps(network: nn.Module) -> dict[str, nn.Linear]:
    """The linear maps of a network that can take an adapter, by name.

    Not those whose weights are shared with another part, as a tied LM head's, and not those that a part multiplies with
    by itself, as the cells of a recurrent decoder do (`direct_weights`).
    """
    direct = {f"{name}.{own}" for name, part in network.named_modules() for own in getattr(part, "direct_weights", ())}
    owners: dict[int, int] = {}
    for part in network.modules():
        for parameter in part.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return {
        name: part
        for name, part in network.named_modules()
        if isinstance(part, nn.Linear) and name not in direct and owners[id(part.weight)] == 1
    }


def add_adapters(network: nn.Module, description: LoRA, trained: Collection[str] = ()) -> None:
    """Freeze a network but for the parameters named `trained`, and put an adapter beside each linear map that matches.

    A map that is trained as a whole needs no adapter.
    """
    whole = {name.removesuffix(".weight") for name in trained}
    maps = description.chosen({name: one for name, one in linear_maps(network).items() if name not in whole})
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in trained)
    for linear in maps.values():
        linear.add_module(_CHILD, LoRALayer(description, linear.in_features, linear.out_features))
        linear.register_forward_hook(_add)


def _add(linear: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    """Add the adapter's output to that of its linear map."""
    added: Tensor = linear.get_submodule(_CHILD)(inputs[0])
    return output + added


def adapted_maps(network: nn.Module) -> dict[str, LoRALayer]:
    """The adapters in a network, by the names of their linear maps."""
    found = ((name, part) for name, part in network.named_modules() if isinstance(part, LoRALayer))
    return {name.removesuffix(f".{_CHILD}"): part for name, part in found}


def changing_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that a run changes, by name: all, or in a network with adapters only what is not frozen.

    Tied parameters are listed once, under their first name.
    """
    frozen = bool(adapted_maps(network))
    return {name: one for name, one in network.named_parameters() if one.requires_grad or not frozen}


def adapter_parts(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The name of each linear map with its A and B, from `changing_parameters`."""
    for name, tensor in tensors.items():
        if name.endswith(f".{_CHILD}.A"):
            stem = name.removesuffix(".A")
            yield stem.removesuffix(f".{_CHILD}"), tensor, tensors[f"{stem}.B"]


def whole_parts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that are no adapter's: those of a readout that is trained as a whole."""
    return {name: one for name, one in tensors.items() if not name.endswith((f".{_CHILD}.A", f".{_CHILD}.B"))}


@dataclass(frozen=True)
class Adapter:
    """An adapter that was folded into a network's weights."""

    name: str  # its folder
    base: str  # the model that it was trained on
    rank: int
    alpha: float
    modules: Sequence[str]  # that it changes, under the names of its file

    def __str__(self) -> str:
        return f"{self.name} (LoRA of rank {self.rank} on {len(self.modules):,} linear maps)"
