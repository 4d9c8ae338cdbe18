"""A stack is a list of layers; a layer is a list of sublayers; `depth * [layer]` is how one writes depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.attention_decoder import Attentional, Attentive
from regard.layers.bidirectional import Apart
from regard.layers.character_cnn import Spelled
from regard.layers.contract import Ablation, Context, Memory, Past, Source, write
from regard.layers.embedding import Embed
from regard.layers.feedforward import Boom, FeedForward
from regard.layers.gated_attention import GatedAttention
from regard.layers.join import PostNorm, PreNorm, Replace, TwinNorm
from regard.layers.lsh.attention import LSHAttention
from regard.layers.positions import RelativeBias
from regard.layers.record import Record
from regard.layers.recurrent import Recurrent
from regard.layers.reversible import Reversible
from regard.models.readouts import BothWays, Label, Mix, Number, Reading, Tags, Vector, Vocabulary

AnySublayer = (
    SelfAttention
    | LSHAttention
    | CrossAttention
    | GatedAttention
    | FeedForward
    | Boom
    | Recurrent
    | Attentional
    | Attentive
    | Apart
)
Join = PostNorm | PreNorm | TwinNorm | Replace | Reversible


@dataclass(frozen=True)
class Stack:
    """Layers of sublayers, how each joins the stream, and how much of its answer is dropped while learning."""

    layers: tuple[tuple[AnySublayer, ...], ...]
    join: Join
    dropout: float = 0.0
    bias: RelativeBias | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("a stack needs at least one layer. Use depth = 1 or more.")

    @property
    def steady(self) -> bool:
        """Whether what was read stays what it is as the text goes on, so that it need not be read again."""
        sees = (getattr(part, "see", None) for layer in self.layers for part in layer)
        return all(getattr(pattern, "steady", True) for pattern in sees)

    def outgoing(self, width: int) -> int:
        """How wide its answer is."""
        return width * self.join.streams

    def build(self, width: int, source_width: int | None = None) -> StackLayers:
        """The module for a stream of this width over a source of that width."""
        return StackLayers(self, width, source_width)


class StackLayers(nn.Module):
    def __init__(self, description: Stack, width: int, source_width: int | None) -> None:
        super().__init__()
        join, dropout = description.join, description.dropout
        self.wiring = join.wire(
            [
                {part.name: join.build(part.build(width, source_width), width, dropout) for part in layer}
                for layer in description.layers
            ]
        )
        self.closing = join.closing(description.outgoing(width))
        self.steady = description.steady
        attention = next((p for layer in description.layers for p in layer if isinstance(p, SelfAttention)), None)
        self.bias = None
        if description.bias is not None and attention is not None:
            self.bias = description.bias.build(attention.heads, attention.pattern.causal)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD, and what the layers remember."""
        context = context if self.bias is None else replace(context, bias=self.bias)
        if context.remember and not self.steady:
            return self.again(x, context, memory)
        x, memory = self.wiring(x, context, memory)
        x = self.closing(x)
        context.keep(x)
        return x, memory

    def again(self, x: Tensor, context: Context, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `forward`, where later tokens change what earlier ones saw: all that came in is kept, and read again."""
        slots, fresh = context.slots(x.shape[1], x.device).expand(len(x), -1), memory is None
        memory = write(memory, x, context, dim=1)
        whole = memory[:, : context.extent(x.shape[1])]
        if not fresh:
            there = torch.arange(whole.shape[1], device=x.device) <= slots[:, -1:]
            context = replace(context, padding=None if bool(there.all()) else there)
        seen = None if context.record is None else Record(context.record.wanted)
        states, _ = self.wiring(whole, replace(context, start=0, end=None, remember=False, record=seen), None)
        if seen is not None and context.record is not None:
            for name, rows in seen.rows.items():
                context.record.write(name, _at(slots, rows[0].transpose(1, 2)).transpose(1, 2))
            for name, buckets in seen.buckets.items():
                context.record.note(name, _at(slots, buckets[0].transpose(1, 2)).transpose(1, 2))
        states = self.closing(_at(slots, states))
        context.keep(states)
        return states, memory


def _at(slots: Tensor, values: Tensor) -> Tensor:
    """BT, BS... -> BT...: what stands in these slots."""
    return values[torch.arange(len(slots), device=slots.device)[:, None], slots]


Readout = Vocabulary | BothWays | Label | Number | Tags | Vector


@dataclass(frozen=True)
class Model:
    """What a model is, as data; `build(vocabulary)` is the module."""

    width: int
    embed: Embed | Spelled
    encoder: Stack | None = None
    decoder: Stack | None = None
    readout: Readout = field(default_factory=Vocabulary)
    shared: bool = True  # source and target use one table of vectors, when their vocabulary is one
    auxiliary: Label | Vector | None = None  # what is said of the text as a whole besides: BERT's next sentence
    mix: Mix | None = None  # what is read out: the last layer's states, or a learnt mixture of all (ELMo)

    @property
    def vector_width(self) -> int:
        """Of what is said of a text that is read: the encoder's states, where there is one."""
        stack = self.encoder or self.decoder
        return stack.outgoing(self.width) if stack else self.width

    @property
    def constant_memory(self) -> bool:
        """Whether it reads a text of any length piece by piece, and what it remembers does not grow with it."""
        bounded = hasattr(getattr(self.embed, "position", None), "longest")
        if self.encoder is not None or self.decoder is None or bounded:
            return False
        return all(getattr(part, "endless", False) for layer in self.decoder.layers for part in layer)

    def build(self, vocabulary: int, source_vocabulary: int | None = None) -> Network:
        """The module; a second vocabulary is the source's, when it has its own."""
        return Network(self, vocabulary, source_vocabulary)


class Network(nn.Module):
    """Embeddings, stacks and a readout. Paddings are True where there is a token.

    decoder only:    network(ids, padding=None, positions=None, document=None) -> logits
    encoder-decoder: network(target_ids, source_ids=..., source_padding=..., target_padding=None) -> logits
    encoder only:    network(ids, padding=None, segments=None, positions=None) -> logits; network.encode(...) -> states
    """

    def __init__(self, description: Model, vocabulary: int, source_vocabulary: int | None = None) -> None:
        super().__init__()
        self.description, self.vocabulary = description, vocabulary
        self.source_vocabulary = source_vocabulary
        width = description.width
        self.embed = description.embed.build(width, vocabulary)
        self.encoder = description.encoder.build(width) if description.encoder else None
        self.decoder = description.decoder.build(width, description.vector_width) if description.decoder else None
        self.source_embed = self.embed
        if self.encoder is not None and self.decoder is not None:
            self.source_embed = description.embed.build(width, source_vocabulary or vocabulary)
            if description.shared and source_vocabulary is None:
                self.source_embed.table.weight = self.embed.table.weight
        stack = description.decoder or description.encoder
        width = stack.outgoing(width) if stack else width
        self.readout: Reading = description.readout.build(width, vocabulary, self.embed.table)
        self.mix = description.mix.build(len(stack.layers) + 1) if description.mix and stack else None
        self.auxiliary = description.auxiliary.build(width, vocabulary, self.embed.table) if description.auxiliary else None

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can read at once; None when there is no bound."""
        return self.embed.max_positions

    def forward(
        self,
        ids: Tensor,
        *,
        source_ids: Tensor | None = None,
        source_padding: Tensor | None = None,
        target_padding: Tensor | None = None,
        padding: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        document: Tensor | None = None,
    ) -> Tensor:
        """BT -> BTN: the logits, in the caller's order; left padding is moved to the right and back again."""
        source_ids, source_padding, _ = realign(source_ids, source_padding)
        moved, padding, order = realign(ids, target_padding if padding is None else padding)
        assert moved is not None
        states = self.hidden_states(
            ids=moved, source_ids=source_ids, source_padding=source_padding, padding=padding,
            segments=ordered(segments, order), positions=ordered(positions, order), document=ordered(document, order),
        )  # fmt: skip
        logits: Tensor = self.readout(states, padding)
        return restored(logits, order) if self.description.readout.tokenwise else logits

    def hidden_states(
        self,
        ids: Tensor,
        *,
        source_ids: Tensor | None = None,
        source_padding: Tensor | None = None,
        padding: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        document: Tensor | None = None,
        record: Record | None = None,
        ablation: Ablation | None = None,
        all_layers: list[Tensor] | None = None,
        gradient_checkpointing: bool = False,
        past: Past | None = None,
    ) -> Tensor:
        """BT -> BTD: the last layer's states, which the readout reads; padding on the right only.

        `all_layers` is filled with what goes into each layer of the stack that is read out, and what comes out of the last.
        With a `past` the text goes on where it ended, and it then ends where this piece does.
        """
        if self.mix is not None:
            all_layers = [] if all_layers is None else all_layers
        both = Context(record=record, ablation=ablation, gradient_checkpointing=gradient_checkpointing)
        context = replace(
            both, padding=padding, segments=segments, positions=positions, document=document, all_layers=all_layers
        )  # fmt: skip
        if source_ids is not None and (self.encoder is None or self.decoder is None):
            raise InputError("this model reads one text, not source_ids=... besides it")
        if past is not None and (self.encoder is not None or self.decoder is None):
            raise InputError("only a language model reads on from a past=... of the same text")
        if self.decoder is None:
            return self.mixed(self.encode_source(ids, context=replace(context, final=False)).states, all_layers)
        if self.encoder is not None:
            if source_ids is None:
                raise InputError("an encoder-decoder reads source_ids=... besides the target's ids")
            outside = replace(both, padding=source_padding)
            context = replace(context, source=self.encode_source(source_ids, context=outside))
        if past is None:
            return self.mixed(self.decode(ids, context)[0], all_layers)
        states, memory = self.decode(ids, replace(context, start=past.read, remember=True), past.memory)
        past.goes_on(memory, ids.shape[1])
        return self.mixed(states, all_layers)

    def mixed(self, states: Tensor, all_layers: list[Tensor] | None) -> Tensor:
        """What is read out: the last states, or what the mixture makes of all."""
        if self.mix is None:
            return states
        mixture: Tensor = self.mix(all_layers)
        return mixture

    def loss(
        self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float = 0.0, auxiliary: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """The summed loss of targets (-100: not asked) given the arguments of `states`, and of what is asked aside."""
        states, padding = self.hidden_states(**inputs), inputs.get("padding")
        loss = self.readout.loss(states, targets, smoothing, padding)
        if auxiliary is None or self.auxiliary is None or self.description.auxiliary is None:
            return loss
        return loss + self.description.auxiliary.weight * self.auxiliary.loss(states, auxiliary, 0.0, padding)

    def encode(
        self,
        ids: Tensor,
        padding: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """BS -> BSD: the encoder's states, in the caller's order."""
        if self.encoder is None:
            raise InputError("this model has no encoder. Call states instead.")
        moved, padding, order = realign(ids, padding)
        assert moved is not None
        context = Context(
            padding=padding, segments=ordered(segments, order), positions=ordered(positions, order), final=False
        )  # fmt: skip
        return restored(self.encode_source(moved, context=context).states, order)

    def encode_source(self, ids: Tensor, padding: Tensor | None = None, *, context: Context | None = None) -> Source:
        """BS -> what the encoder says of the source; padding on the right only."""
        context = Context(padding=padding) if context is None else context
        assert self.encoder is not None
        states, final = self.encoder(self.source_embed(ids, context), context.under("encoder"))
        return Source(states, context.padding, final)

    def decode(self, ids: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BT -> BTD, and what must be remembered for the next call."""
        assert self.decoder is not None
        inside = replace(context.under("decoder"), final=False)
        states, memory = self.decoder(self.embed(ids, context), inside, memory)
        return states, memory


def realign(ids: Tensor | None, padding: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Move padding to the right: (ids, padding or None when there is none, the order that did it or None)."""
    if ids is None or padding is None or bool(padding.all()):
        return ids, None, None
    padding = padding.bool()
    if not bool((padding[:, 1:] & ~padding[:, :-1]).any()):
        return ids, padding, None
    order = (~padding).long().argsort(dim=1, stable=True)
    return ordered(ids, order), padding.gather(1, order), order


def ordered(values: Tensor | None, order: Tensor | None) -> Tensor | None:
    """BT... with its slots in this order."""
    return values if values is None or order is None else values.gather(1, _along(order, values))


def restored(values: Tensor, order: Tensor | None) -> Tensor:
    """BT... back in the caller's order."""
    return values if order is None else torch.empty_like(values).scatter_(1, _along(order, values), values)


def _along(order: Tensor, values: Tensor) -> Tensor:
    return order.reshape(*order.shape, *[1] * (values.dim() - 2)).expand_as(values)
