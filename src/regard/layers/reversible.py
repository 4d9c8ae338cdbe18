"""Reversible layers: a pair of streams updated in turn, so that a layer's input follows from its output.

y1 = x1 + f(x2), y2 = x2 + g(y1), and so on in turn (Gomez 2017; Kitaev 2020, section 3). Activations are not kept:
going back, each layer's input is recomputed from its output, with every random choice replayed exactly, so activation
memory does not grow with depth. Gradients come back as ordinary ones: parameters, the source and the bias are explicit
inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Choices, Context, Memory, Sublayer, map_rows
from regard.layers.join import Joined, Layers
from regard.layers.linear import LayerNorm, Norm


@dataclass(frozen=True)
class Reversible:
    """f(norm(x)) beside the stream; the pair of streams holds the residual.

    `answer`: the mean of the two, or both side by side, twice as wide, as the published Reformer has it.
    """

    norm: Norm = field(default_factory=LayerNorm)
    slice_length: int = 1_024  # tokens that tokenwise sublayers read at a time: what is inside stays in a cache
    answer: Literal["mean", "beside"] = "mean"

    def __post_init__(self) -> None:
        if self.slice_length < 1:
            raise InputError(f"slice_length must be 1 or more, got {self.slice_length} (model.join). Leave it out.")

    @property
    def streams(self) -> int:
        """How many come out of the stack, side by side."""
        return 2 if self.answer == "beside" else 1

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        """The sublayer, joined."""
        return BranchJoined(sublayer, self.norm.build(width), dropout)

    def wire(self, layers: Layers) -> nn.Module:
        """The layers, reversible."""
        return InTurn(layers, self.slice_length, self.streams)

    def closing(self, width: int) -> nn.Module:
        """What stands at the end of the stack."""
        return self.norm.build(width)


class BranchJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(self.norm(x), context, memory)
        return self.dropout(y), memory


class InTurn(nn.Module):
    """Both streams start as the input; the answer is their mean, or both."""

    def __init__(self, layers: Layers, slice_length: int, streams: int) -> None:
        super().__init__()
        self.streams = streams
        turns = [sum(map(len, layers[:number])) for number in range(len(layers))]
        self.layers = nn.ModuleList(ReversibleLayer(layer, turn, slice_length) for layer, turn in zip(layers, turns))

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD (twice as wide where streams stand side by side), and a tuple of what each layer remembers."""
        forgetful = torch.is_grad_enabled() and not context.remember and memory is None
        tape = Tape() if forgetful else None
        pair, kept = (x, x), []
        for number, layer in enumerate(self.layers):
            if context.all_layers is not None:
                context.keep(self.answer(*pair))
            pair, now = layer(pair, context.under(str(number)), memory[number] if memory else None, tape)
            kept.append(now)
        return self.answer(*pair), tuple(kept)

    def answer(self, first: Tensor, second: Tensor) -> Tensor:
        """What is said of a pair of streams."""
        return (first + second) * 0.5 if self.streams == 1 else torch.cat([first, second], dim=-1)


class Tape:
    """The only activations alive: what the last layer said, then, going back, each layer's input."""

    pair: list[Tensor] | None = None
    slopes: tuple[int, ...] = ()  # where the slopes lie that the layer above has left, which nobody else holds

    def own(self, slope: Tensor) -> Tensor:
        """A slope that may be added to in place."""
        return slope if slope.data_ptr() in self.slopes else slope.clone()


class ReversibleLayer(nn.Module):
    """One layer; the first sublayer reads stream `turn` + 1 and adds to stream `turn`, the next the other way round."""

    def __init__(self, sublayers: dict[str, Sublayer], turn: int, slice_length: int) -> None:
        super().__init__()
        self.sublayers = nn.ModuleDict(sublayers)
        self.turn, self.slice_length = turn, slice_length

    def steps(self) -> list[tuple[int, str, Sublayer]]:
        """(the stream it adds to, name, sublayer) of each sublayer, in order."""
        return [
            ((self.turn + i) % 2, name, cast(Sublayer, sublayer))
            for i, (name, sublayer) in enumerate(self.sublayers.items())
        ]

    def forward(
        self, pair: tuple[Tensor, Tensor], context: Context, memory: Memory, tape: Tape | None
    ) -> tuple[tuple[Tensor, Tensor], Memory]:
        """A pair of streams -> the next pair; with a tape, nothing is kept for the way back but the tape."""
        if tape is not None:
            outside, rebuild = differentiable(context)
            inputs = (*outside, *self.parameters())
            first, second = Replayed.apply(*pair, self, rebuild, tape, len(outside), *inputs)  # type: ignore[no-untyped-call]
            return (first, second), None
        streams, kept = list(pair), []
        for number, (at, name, sublayer) in enumerate(self.steps()):
            y, now = sublayer(streams[1 - at], context.under(name), memory[number] if memory else None)
            streams[at] = streams[at] + y
            kept.append(now)
        return (streams[0], streams[1]), tuple(kept)

    def slices(self, sublayer: Sublayer, length: int) -> list[slice]:
        """A tokenwise sublayer runs slice by slice; any other sees the whole sequence."""
        step = self.slice_length if sublayer.tokenwise else max(length, 1)
        return [slice(start, min(start + step, length)) for start in range(0, length, step)]


class Rebuild:
    """A context whose differentiable tensors can be put in anew, so that gradients reach them as explicit inputs."""

    def __init__(self, context: Context, sources: int) -> None:
        self.context, self.sources = context, sources

    def __call__(self, tensors: list[Tensor]) -> Context:
        """The context with these source tensors (the bias' parameters stay where they are)."""
        if not self.sources:
            return self.context
        given = iter(tensors[: self.sources])
        source = map_rows(lambda old: next(given) if old.is_floating_point() else old, self.context.source)
        return replace(self.context, source=source)


def differentiable(context: Context) -> tuple[list[Tensor], Rebuild]:
    """Every tensor outside the layer that gradients must reach: what the source said, and the bias' parameters."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            tensors.append(tensor)
        return tensor

    map_rows(collect, context.source)
    sources = len(tensors)
    if context.bias is not None:
        tensors.extend(context.bias.parameters())
    return tensors, Rebuild(context, sources)


class Replayed(torch.autograd.Function):
    """One layer forward without keeping anything, and backward by doing it again."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, layer: ReversibleLayer, rebuild: Rebuild, tape: Tape, outside: int,
        *inputs: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.layer, ctx.rebuild, ctx.tape, ctx.outside = layer, rebuild, tape, outside
        ctx.autocast = autocast_now(first.device)
        ctx.save_for_backward(*inputs)
        ctx.choices, ctx.states = [], []
        context, pair = rebuild.context, [first, second]
        for at, name, sublayer in layer.steps():
            ctx.states.append(random_state(first.device))
            choices = Choices()
            ctx.choices.append(choices)
            x, total = pair[1 - at], torch.empty_like(pair[at])
            for piece in layer.slices(sublayer, x.shape[1]):
                inside = sliced(replace(context.under(name), choices=choices), piece, x.shape[1])
                torch.add(pair[at][:, piece], sublayer(x[:, piece], inside)[0], out=total[:, piece])
            pair[at] = total
        tape.pair = [stream.detach() for stream in pair]  # what is given on leads back to here: a circle
        return pair[0], pair[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        layer, tape = ctx.layer, ctx.tape
        if ctx.choices is None or tape.pair is None:
            raise RuntimeError("a reversible stack goes backward once; do the forward pass again")
        inputs = list(ctx.saved_tensors)
        totals: list[Tensor | None] = [None] * len(inputs)
        pair, slopes = tape.pair, [tape.own(slope) for slope in grads]
        for number, (at, name, sublayer) in reversed(list(enumerate(layer.steps()))):
            with replaying(ctx.states[number], pair[0].device), torch.autocast(**ctx.autocast):
                choices = ctx.choices[number].replay()
                length = pair[at].shape[1]
                for piece in layer.slices(sublayer, length):
                    with torch.enable_grad():
                        x = pair[1 - at][:, piece].detach().requires_grad_()
                        # Source tensors are cut off from their own graph; parameters are leaves as they are.
                        fresh = [
                            tensor.detach().requires_grad_(tensor.requires_grad) if i < ctx.rebuild.sources else tensor
                            for i, tensor in enumerate(inputs)
                        ]
                        context = replace(ctx.rebuild(fresh).under(name), choices=choices, record=None)
                        y, _ = sublayer(x, sliced(context, piece, length))
                    wanted = [i for i, tensor in enumerate(fresh) if tensor.requires_grad]
                    slope, *rest = torch.autograd.grad(
                        y, [x, *(fresh[i] for i in wanted)], slopes[at][:, piece], allow_unused=True
                    )
                    pair[at].data[:, piece] -= y.detach()
                    slopes[1 - at][:, piece] += slope
                    for i, part in zip(wanted, rest):
                        before = totals[i]
                        if part is not None:
                            totals[i] = part if before is None else before + part
        ctx.choices = None
        tape.slopes = slopes[0].data_ptr(), slopes[1].data_ptr()
        return slopes[0], slopes[1], None, None, None, None, *totals


def sliced(context: Context, piece: slice, length: int) -> Context:
    """The context of a slice of the tokens (tokenwise sublayers look at nothing but the padding)."""
    if context.padding is None or piece == slice(0, length):
        return context
    return replace(context, padding=context.padding[:, piece])


def autocast_now(device: torch.device) -> dict[str, Any]:
    """The arguments that bring back the mixed precision of this moment."""
    kind = device.type
    return {
        "device_type": kind,
        "enabled": torch.is_autocast_enabled(kind),
        "dtype": torch.get_autocast_dtype(kind),
    }


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where the random generators of the host and of the device stand."""
    other = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()
    return torch.get_rng_state(), other


@contextmanager
def replaying(state: tuple[Tensor, Tensor | None], device: torch.device) -> Iterator[None]:
    """Draw again what was drawn from `state` on, then leave the generators as they were."""
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
