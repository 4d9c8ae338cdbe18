"""Reversible residual layers (Gomez 2017; Kitaev 2020, section 3): activation memory does not grow with depth.

A pair of streams is updated in turn: y1 = x1 + f(x2), y2 = x2 + g(y1), and so on. No activations are kept: the backward
pass recomputes each layer's input from its output, and replays every random choice exactly. Gradients are ordinary
ones: parameters, the source and the position bias are explicit inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context, Memory, RandomChoices, Sublayer, leaves, map_rows
from regard.layers.join import BranchJoined, Joined, LayerNorm, Layers, Norm


@dataclass(frozen=True)
class Reversible:
    """f(norm(x)), added to the other stream of the pair."""

    norm: Norm = field(default_factory=LayerNorm)
    slice_length: int = 1_024  # tokens that position-wise sublayers process at a time, so that a cache holds them
    output: Literal["mean", "concatenated"] = "mean"  # of the streams; both, twice as wide, in the published Reformer

    def __post_init__(self) -> None:
        if self.slice_length < 1:
            raise InputError(f"slice_length must be 1 or more, got {self.slice_length} (model.join). Leave it out.")

    @property
    def streams(self) -> int:
        """The stack's output is this many times as wide as its input."""
        return 2 if self.output == "concatenated" else 1

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        return BranchJoined(sublayer, self.norm.build(width), dropout)

    def layers(self, layers: Layers) -> nn.Module:
        return ReversibleLayers(layers, self.slice_length, self.streams)

    def final_norm(self, width: int) -> nn.Module:
        return self.norm.build(width)


class ReversibleLayers(nn.ModuleList):
    """Both streams start as the input; the output is their mean, or both concatenated."""

    def __init__(self, layers: Layers, slice_length: int, streams: int) -> None:
        turns = [sum(map(len, layers[:number])) for number in range(len(layers))]
        super().__init__(ReversibleLayer(layer, turn, slice_length) for layer, turn in zip(layers, turns))
        self.streams = streams

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD (2D when concatenated), and a tuple of each layer's memory."""
        recompute = torch.is_grad_enabled() and not context.remember and memory is None
        activations = LiveActivations() if recompute else None
        pair, kept = (x, x), []
        for number, layer in enumerate(self):
            if context.all_layers is not None:
                context.add_layer(self.output(*pair))
            pair, new = layer(pair, context.child(str(number)), memory[number] if memory else None, activations)
            kept.append(new)
        return self.output(*pair), tuple(kept)

    def output(self, first: Tensor, second: Tensor) -> Tensor:
        """The output for a pair of streams."""
        return (first + second) * 0.5 if self.streams == 1 else torch.cat([first, second], dim=-1)


class LiveActivations:
    """The only activations alive: the last layer's output, then, during the backward pass, each layer's input."""

    pair: list[Tensor] | None = None
    gradients: tuple[int, ...] = ()  # addresses of the gradients that the layer above returned, which only we hold

    def own(self, gradient: Tensor) -> Tensor:
        """A gradient that may be added to in place."""
        return gradient if gradient.data_ptr() in self.gradients else gradient.clone()


class ReversibleLayer(nn.ModuleDict):
    """One layer: its first sublayer reads stream `turn` + 1 and adds to stream `turn`, the next one vice versa."""

    def __init__(self, sublayers: dict[str, Sublayer], turn: int, slice_length: int) -> None:
        super().__init__(sublayers)
        self.turn, self.slice_length = turn, slice_length

    def steps(self) -> list[tuple[int, str, Sublayer]]:
        """(the stream it adds to, name, sublayer) of each sublayer, in order."""
        return [((self.turn + i) % 2, name, cast(Sublayer, part)) for i, (name, part) in enumerate(self.items())]

    def forward(
        self, pair: tuple[Tensor, Tensor], context: Context, memory: Memory, activations: LiveActivations | None
    ) -> tuple[tuple[Tensor, Tensor], Memory]:
        """A pair of streams -> the next pair; with `activations`, nothing else is kept for the backward pass."""
        if activations is not None:
            outside, rebuild = differentiable(context)
            inputs = (*outside, *self.parameters())
            first, second = Recomputed.apply(*pair, self, rebuild, activations, *inputs)  # type: ignore[no-untyped-call]
            return (first, second), None
        streams, kept = list(pair), []
        for number, (at, name, sublayer) in enumerate(self.steps()):
            y, new = sublayer(streams[1 - at], context.child(name), memory[number] if memory else None)
            streams[at] = streams[at] + y
            kept.append(new)
        return (streams[0], streams[1]), tuple(kept)

    def slices(self, sublayer: Sublayer, length: int) -> list[slice]:
        """A position-wise sublayer runs slice by slice; any other reads the whole sequence."""
        step = self.slice_length if sublayer.position_wise else max(length, 1)
        return [slice(start, min(start + step, length)) for start in range(0, length, step)]


@dataclass(frozen=True)
class Rebuild:
    """A context whose differentiable tensors can be replaced, so that gradients reach them as explicit inputs."""

    context: Context
    sources: int

    def __call__(self, tensors: list[Tensor]) -> Context:
        """The context with these tensors as its source (the parameters of the position bias are leaves already)."""
        if not self.sources:
            return self.context
        given = iter(tensors[: self.sources])
        outside = self.context.source, self.context.embedded
        source, embedded = map_rows(lambda old: next(given) if old.is_floating_point() else old, outside)
        return replace(self.context, source=source, embedded=embedded)


def differentiable(context: Context) -> tuple[list[Tensor], Rebuild]:
    """Every tensor outside the layer that needs gradients: source, embedded tokens, the position bias' parameters."""
    tensors = [tensor for tensor in leaves((context.source, context.embedded)) if tensor.is_floating_point()]
    sources = len(tensors)
    if context.position_bias is not None:
        tensors.extend(context.position_bias.parameters())
    return tensors, Rebuild(context, sources)


class Recomputed(torch.autograd.Function):
    """One reversible layer: the forward pass keeps nothing, the backward pass computes the layer again."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, layer: ReversibleLayer, rebuild: Rebuild, activations: LiveActivations,
        *inputs: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.layer, ctx.rebuild, ctx.activations = layer, rebuild, activations
        kind = first.device.type
        ctx.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.save_for_backward(*inputs)
        ctx.choices, ctx.states = [], []
        context, pair = rebuild.context, [first, second]
        for at, name, sublayer in layer.steps():
            ctx.states.append(random_state(first.device))
            choices = RandomChoices()
            ctx.choices.append(choices)
            x, total = pair[1 - at], torch.empty_like(pair[at])
            for part in layer.slices(sublayer, x.shape[1]):
                child = sliced(replace(context.child(name), random_choices=choices), part, x.shape[1])
                torch.add(pair[at][:, part], sublayer(x[:, part], child)[0], out=total[:, part])
            pair[at] = total
        activations.pair = [stream.detach() for stream in pair]  # the returned tensors would make a reference cycle
        return pair[0], pair[1]

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> Any:
        layer, activations = ctx.layer, ctx.activations
        if ctx.choices is None or activations.pair is None:
            raise RuntimeError("a reversible stack allows one backward pass; repeat the forward pass")
        inputs = list(ctx.saved_tensors)
        totals: list[Tensor | None] = [None] * len(inputs)
        pair, gradients = activations.pair, [activations.own(gradient) for gradient in output_gradients]
        for number, (at, name, sublayer) in reversed(list(enumerate(layer.steps()))):
            with replaying(ctx.states[number], pair[0].device), torch.autocast(*ctx.autocast):
                choices = ctx.choices[number].replay()
                length = pair[at].shape[1]
                for part in layer.slices(sublayer, length):
                    with torch.enable_grad():
                        x = pair[1 - at][:, part].detach().requires_grad_()
                        # Source tensors are detached from their own graph; parameters are leaves as they are.
                        fresh = [
                            tensor.detach().requires_grad_(tensor.requires_grad) if i < ctx.rebuild.sources else tensor
                            for i, tensor in enumerate(inputs)
                        ]
                        context = replace(ctx.rebuild(fresh).child(name), random_choices=choices, record=None)
                        y, _ = sublayer(x, sliced(context, part, length))
                    wanted = [i for i, tensor in enumerate(fresh) if tensor.requires_grad]
                    gradient, *rest = torch.autograd.grad(
                        y, [x, *(fresh[i] for i in wanted)], gradients[at][:, part], allow_unused=True
                    )
                    pair[at].data[:, part] -= y.detach()
                    gradients[1 - at][:, part] += gradient
                    for i, more in zip(wanted, rest):
                        before = totals[i]
                        if more is not None:
                            totals[i] = more if before is None else before + more
        ctx.choices = None
        activations.gradients = gradients[0].data_ptr(), gradients[1].data_ptr()
        return gradients[0], gradients[1], None, None, None, *totals


def sliced(context: Context, part: slice, length: int) -> Context:
    """The context of a slice of the tokens (position-wise sublayers read nothing of it but the padding)."""
    if context.padding is None or part == slice(0, length):
        return context
    return replace(context, padding=context.padding[:, part])


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The states of the random generators of the host and of the device."""
    other = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()
    return torch.get_rng_state(), other


@contextmanager
def replaying(state: tuple[Tensor, Tensor | None], device: torch.device) -> Iterator[None]:
    """Draw the random numbers that follow `state`, then restore the generators."""
    now = random_state(device)
    try:
        _restore(state, device)
        yield
    finally:
        _restore(now, device)


def _restore(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.get_device_module(device).set_rng_state(state[1])
