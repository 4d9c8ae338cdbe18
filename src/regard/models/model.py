"""A model: embeddings, an encoder and a decoder stack, readouts. A stack is a list of layers, a layer of sublayers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.attention_decoder import AttentionalVector, AttentionDecoder
from regard.layers.bidirectional import BidirectionalLSTM
from regard.layers.contract import (
    Ablation,
    CarriedMemory,
    Context,
    Memory,
    Source,
    facts_of,
    leaves,
    require_counts,
)
from regard.layers.convolution import Convolution, MultiStepAttention, ScaledResidual
from regard.layers.embedding import CharacterCNN, Embed
from regard.layers.feedforward import Boom, FeedForward
from regard.layers.gated_attention import GatedAttention
from regard.layers.join import Layers, PostNorm, PreNorm, PreNormExceptFirst, Replace, ResidualPostNorm, TwinNorm
from regard.layers.lora import Adapter
from regard.layers.lsh.attention import LSHAttention
from regard.layers.positions import Position, StackPosition, require_attached
from regard.layers.record import Record
from regard.layers.recurrent import Recurrent
from regard.layers.reversible import Reversible
from regard.models.readouts import (
    BidirectionalVocabulary,
    Label,
    LayerMix,
    MultiLabel,
    Number,
    Readout,
    Tags,
    Vector,
    Vocabulary,
)

AnySublayer = (
    SelfAttention | LSHAttention | CrossAttention | GatedAttention | FeedForward | Boom | Recurrent | AttentionalVector
    | AttentionDecoder | BidirectionalLSTM | Convolution | MultiStepAttention
)  # fmt: skip
Join = PostNorm | PreNorm | PreNormExceptFirst | ResidualPostNorm | TwinNorm | Replace | Reversible | ScaledResidual
AnyReadout = Vocabulary | BidirectionalVocabulary | Label | MultiLabel | Number | Tags | Vector
Shape = Literal["encoder", "decoder", "encoder-decoder"]


@dataclass(frozen=True)
class Stack:
    """Layers of sublayers (`depth * (layer,)` repeats one), how each joins the stream, the dropout of each output."""

    layers: tuple[tuple[AnySublayer, ...], ...]
    join: Join
    dropout: float = 0.0
    position: Position | None = None  # a position bias, shared by all self-attention layers
    groups: int | None = None  # of layers that follow each other and share weights (ALBERT, Lan 2019); None: none do

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("a stack needs at least one layer. Use depth = 1 or more.")
        require_counts(depth=len(self.layers), groups=self.groups)
        if any(self.layers[first] != layer for first, layer in zip(self.first_of_group, self.layers)):
            raise InputError("layers that share weights (groups) must be equal. Describe them alike.")
        for layer in self.layers:
            if len({part.name for part in layer}) < len(layer):
                names = ", ".join(part.name for part in layer)
                raise InputError(f"the sublayers of a layer need different names, got {names}. Put them in two layers.")
        require_attached(self.position, StackPosition)

    @property
    def parts(self) -> list[AnySublayer]:
        """Every sublayer."""
        return [part for layer in self.layers for part in layer]

    @property
    def first_of_group(self) -> list[int]:
        """The layer whose weights each layer has: its own, or the first of its group."""
        depth, groups = len(self.layers), self.groups or len(self.layers)
        group = [number * groups // depth for number in range(depth)]
        return [group.index(one) for one in group]

    @property
    def incremental(self) -> bool:
        """Whether later tokens never change earlier outputs, so that memory replaces recomputation."""
        return all(facts_of(part).incremental for part in self.parts)

    def output_width(self, width: int) -> int:
        return width * self.join.streams

    def build(self, width: int, source_width: int | None = None) -> StackLayers:
        return StackLayers(self, width, source_width)


class StackLayers(nn.Module):
    def __init__(self, description: Stack, width: int, source_width: int | None) -> None:
        super().__init__()
        join, dropout = description.join, description.dropout
        built: Layers = []
        for layer, first in zip(description.layers, description.first_of_group):
            own = first == len(built)
            built.append(
                {part.name: join.build(part.build(width, source_width), width, dropout) for part in layer}
                if own else built[first]
            )  # fmt: skip
        self.layers = join.layers(built)
        self.final_norm = join.final_norm(description.output_width(width))
        self.incremental = description.incremental
        self.reads_embedding = any(facts_of(part).reads_embedding for part in description.parts)
        position = require_attached(description.position, StackPosition)
        self.position = None if position is None else position.build(*_biased_heads(description))

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD, and the memory of its layers."""
        context = context if self.position is None else replace(context, position_bias=self.position)
        if context.remember and not self.incremental:
            return self.recompute(x, context, memory)
        x, memory = self.layers(x, self.embedded(x, context), memory)
        x = self.final_norm(x)
        context.add_layer(x)
        return x, memory

    def embedded(self, x: Tensor, context: Context) -> Context:
        """The context with the stack's input, the embedded tokens, for layers that read them."""
        return replace(context, embedded=x) if self.reads_embedding else context

    def recompute(self, x: Tensor, context: Context, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `forward`, where later tokens change earlier outputs: memory is all inputs so far, read again."""
        slots = context.slots(x.shape[1], x.device).expand(len(x), -1)
        inputs = x if memory is None else _insert(memory, slots, x)
        if memory is not None:
            real = torch.arange(inputs.shape[1], device=x.device) <= slots[:, -1:]
            context = replace(context, padding=None if bool(real.all()) else real)
        full = None if context.record is None else Record(context.record.wanted)
        context = replace(self.embedded(inputs, context), start=0, layout=None, remember=False)
        states, _ = self.layers(inputs, replace(context, record=full), None)
        if full is not None and context.record is not None:
            for name, rows in full.rows.items():
                context.record.write(name, _in_slots(slots, rows[0].transpose(1, 2)).transpose(1, 2))
            for name, buckets in full.buckets.items():
                context.record.record_buckets(name, _in_slots(slots, buckets[0].transpose(1, 2)).transpose(1, 2))
        states = self.final_norm(_in_slots(slots, states))
        context.add_layer(states)
        return states, inputs


def _biased_heads(stack: Stack) -> tuple[int, bool]:
    """The heads that a stack's position bias is for, and whether their attention is causal."""
    biased = {(facts.heads, facts.causal) for facts in map(facts_of, stack.parts) if facts.adds_position_bias}
    if len(biased) != 1:
        raise InputError(
            f"{stack.position} needs self-attention layers with the same heads in every layer, got "
            f"{sorted(heads for heads, _ in biased) or 'none'} (model.position). Use another position."
        )
    return biased.pop()


def _insert(values: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """BSD, BT, BTD -> BSD: the new values in these slots; what is there already stays."""
    values = F.pad(values, (0, 0, 0, max(0, int(slots.max()) + 1 - values.shape[1])))
    return values.scatter(1, slots[..., None].expand_as(new), new)


def _in_slots(slots: Tensor, values: Tensor) -> Tensor:
    """BT, BS... -> BT...: the values in these slots."""
    return values[torch.arange(len(slots), device=slots.device)[:, None], slots]


@dataclass(frozen=True)
class Model:
    """The description of a model: data that can be compared, printed and saved. `build(vocabulary)` is the module."""

    width: int
    embed: Embed | CharacterCNN
    encoder: Stack | None = None
    decoder: Stack | None = None
    readout: AnyReadout = field(default_factory=Vocabulary)
    shared: bool = True  # source and target share one embedding table, when they share a vocabulary
    auxiliary: Label | Vector | None = None  # a second readout of the whole text: BERT's next sentence prediction
    mix: LayerMix | None = None  # a trained mix of all layers for the readout (ELMo), instead of the last layer

    @property
    def shape(self) -> Shape:
        """Which stacks it has."""
        if self.decoder is None:
            return "encoder"
        return "decoder" if self.encoder is None else "encoder-decoder"

    @property
    def reads(self) -> Literal["text", "prompt", "source"]:
        """What it reads: a text or a pair as a whole, a prompt to continue, or the source of a translation."""
        if self.shape == "encoder" or self.readout.outputs != "tokens":
            return "text"
        return "prompt" if self.shape == "decoder" else "source"

    @property
    def stacks(self) -> dict[str, Stack]:
        """Its stacks by name, the encoder first."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if stack is not None}

    @property
    def parts(self) -> list[AnySublayer]:
        return [part for stack in self.stacks.values() for part in stack.parts]

    @property
    def vector_width(self) -> int:
        """The width of an encoded text: of the encoder's states, or of the decoder's where there is no encoder."""
        stack = self.encoder or self.decoder
        return stack.output_width(self.width) if stack else self.width

    @property
    def embedding_width(self) -> int:
        """The width of the vector of a text: that of its encoded text, or of dense layers after pooling."""
        return self.readout.output_width(self.vector_width) if isinstance(self.readout, Vector) else self.vector_width

    @property
    def incremental(self) -> bool:
        return all(stack.incremental for stack in self.stacks.values())

    @property
    def constant_memory(self) -> bool:
        """Whether it reads a text of any length in segments, with memory that does not grow with the text."""
        if self.shape != "decoder" or self.embed.max_positions is not None:
            return False
        return all(facts_of(part).constant_memory for part in self.parts)

    @property
    def window(self) -> int | None:
        """How many tokens back any layer of the decoder attends to; None: there is no bound."""
        facts = [facts_of(part) for part in (self.decoder.parts if self.decoder else ())]
        windows = [one.window for one in facts if one.window is not None or not one.constant_memory]
        bounded = [window for window in windows if window is not None]
        return max(bounded, default=0) if len(bounded) == len(windows) else None

    def build(self, vocabulary: int, source_vocabulary: int | None = None) -> Network:
        """The module; `source_vocabulary` is the size of the source's own vocabulary, if it has one."""
        return Network(self, vocabulary, source_vocabulary)


CARRIES_NOTHING = (
    "only a decoder continues a text from carried memory, or a recurrent encoder (carried, --stateful). Leave it out."
)


def _require_state(memory: Memory) -> Memory:
    """The state after a text, or an error if the encoder has none."""
    if not leaves(memory):
        raise InputError(CARRIES_NOTHING)
    return memory


class Network(nn.Module):
    """The module of a `Model`: embeddings, stacks and a readout. Paddings are True where there is a token.

    decoder only:    network(ids, padding=None, positions=None, document=None) -> logits
    encoder-decoder: network(target_ids, source_ids=..., source_padding=..., target_padding=None) -> logits
    encoder only:    network(ids, padding=None, segments=None, positions=None) -> logits; network.encode(...) -> states
    """

    def __init__(self, description: Model, vocabulary: int, source_vocabulary: int | None = None) -> None:
        super().__init__()
        self.description, self.vocabulary = description, vocabulary
        self.source_vocabulary = source_vocabulary
        self.adapters: tuple[Adapter, ...] = ()  # that were folded into its weights
        width = description.width
        self.embed = description.embed.build(width, vocabulary)
        self.encoder = description.encoder.build(width) if description.encoder else None
        self.decoder = description.decoder.build(width, description.vector_width) if description.decoder else None
        self.source_embed = self.embed
        if description.shape == "encoder-decoder":
            self.source_embed = description.embed.build(width, source_vocabulary or vocabulary)
            if description.shared and source_vocabulary is None:
                self.source_embed.table.weight = self.embed.table.weight
        stack, auxiliary = description.decoder or description.encoder, description.auxiliary
        self.state_width = width = stack.output_width(width) if stack else width
        self.readout: Readout = description.readout.build(width, vocabulary, self.embed.table)
        self.mix = description.mix.build(len(stack.layers) + 1) if description.mix and stack else None
        self.auxiliary = auxiliary.build(width, vocabulary, self.embed.table) if auxiliary else None

    @property
    def shape(self) -> Shape:
        return self.description.shape

    @property
    def reads(self) -> Literal["text", "prompt", "source"]:
        """What it reads: a text or a pair as a whole, a prompt to continue, or the source of a translation."""
        return self.description.reads

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can read at once; None when there is no bound."""
        return self.embed.max_positions

    @property
    def window(self) -> int | None:
        """How many of the last tokens a query attends to at most; None when there is no bound."""
        return self.description.window

    @property
    def incremental(self) -> bool:
        """Whether later tokens never change earlier outputs, so that padding changes nothing."""
        return self.description.incremental

    @property
    def constant_memory(self) -> bool:
        """Whether it reads a text of any length in segments, with memory that does not grow with the text."""
        return self.description.constant_memory

    def forward(
        self, ids: Tensor, padding: Tensor | None = None, *, source_ids: Tensor | None = None,
        source_padding: Tensor | None = None, target_padding: Tensor | None = None, segments: Tensor | None = None,
        positions: Tensor | None = None, document: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """BT -> BTN: the logits, in the caller's order; left padding is moved to the right and back again."""
        source_ids, source_padding, _ = move_padding_right(source_ids, source_padding)
        moved, padding, order = move_padding_right(ids, target_padding if padding is None else padding)
        assert moved is not None
        states = self.hidden_states(
            ids=moved, source_ids=source_ids, source_padding=source_padding, padding=padding,
            segments=reorder(segments, order), positions=reorder(positions, order), document=reorder(document, order),
        )  # fmt: skip
        logits: Tensor = self.readout(states, padding)
        return restore_order(logits, order) if self.description.readout.tokenwise else logits

    def hidden_states(
        self, ids: Tensor, *, source_ids: Tensor | None = None, source_padding: Tensor | None = None,
        padding: Tensor | None = None, segments: Tensor | None = None, positions: Tensor | None = None,
        document: Tensor | None = None, record: Record | None = None, ablation: Ablation | None = None,
        all_layers: list[Tensor] | None = None, gradient_checkpointing: bool = False,
        carried: CarriedMemory | None = None,
    ) -> Tensor:  # fmt: skip
        """BT -> BTD: the hidden states that the readout reads, of the last layer or a mix; padding on the right only.

        `all_layers` is filled with the input of each layer of the last stack, and its output. With `carried` memory the
        ids continue an earlier segment of the text (truncated BPTT), and the memory is updated.
        """
        if self.mix is not None:
            all_layers = [] if all_layers is None else all_layers
        both = Context(record=record, ablation=ablation, gradient_checkpointing=gradient_checkpointing)
        context = replace(
            both, padding=padding, segments=segments, positions=positions, document=document, all_layers=all_layers
        )  # fmt: skip
        if source_ids is not None and self.shape != "encoder-decoder":
            raise InputError("only an encoder-decoder reads source_ids=...; this model reads one text")
        if carried is not None and self.shape == "encoder-decoder":
            raise InputError(CARRIES_NOTHING)
        if self.shape == "encoder-decoder":
            if source_ids is None:
                raise InputError("an encoder-decoder needs source_ids=... as well as the target's ids")
            outside = replace(both, padding=source_padding)
            context = replace(context, source=self.encode_source(source_ids, context=outside))
        if self.decoder is None:
            before, context = carried and carried.memory, replace(context, final_state=carried is not None)
            source = self.encode_source(ids, context=context, memory=before)
            states = source.states
            if carried is not None:
                carried.advance(_require_state(source.final_state), ids.shape[1])
        elif carried is None:
            states, _ = self.decode(ids, context)
        else:
            states, memory = self.decode(ids, replace(context, start=carried.position, remember=True), carried.memory)
            carried.advance(memory, ids.shape[1])
        if self.mix is not None:  # of all layers (ELMo), instead of the last
            states = self.mix(all_layers)
        return states

    def loss(
        self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float = 0.0, auxiliary: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        """The summed loss of targets (-100: ignored), plus the auxiliary; `inputs`: arguments of `hidden_states`."""
        states, padding = self.hidden_states(**inputs), inputs.get("padding")
        loss = self.readout.loss(states, targets, smoothing, padding)
        if auxiliary is None or self.auxiliary is None or self.description.auxiliary is None:
            return loss
        return loss + self.description.auxiliary.weight * self.auxiliary.loss(states, auxiliary, 0.0, padding)

    def encode(
        self, ids: Tensor, padding: Tensor | None = None, segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """BS -> BSD: the encoder's hidden states, in the caller's order."""
        if self.encoder is None:
            raise InputError("this model has no encoder. Call hidden_states instead.")
        moved, padding, order = move_padding_right(ids, padding)
        assert moved is not None
        context = Context(
            padding=padding, segments=reorder(segments, order), positions=reorder(positions, order), final_state=False
        )  # fmt: skip
        return restore_order(self.encode_source(moved, context=context).states, order)

    def encode_source(
        self, ids: Tensor, padding: Tensor | None = None, *, context: Context | None = None, memory: Memory = None
    ) -> Source:  # fmt: skip
        """BS -> the encoder's output, as `decode` and search need it; padding on the right only.

        `memory` is the final state of an earlier text that a recurrent encoder starts from.
        """
        context = Context(padding=padding) if context is None else context
        assert self.encoder is not None
        embedded = self.source_embed(ids, context)
        states, final_state = self.encoder(embedded, context.child("encoder"), memory)
        read = self.decoder is not None and self.decoder.reads_embedding
        return Source(states, context.padding, final_state, embedded if read else None)

    def decode(self, ids: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BT -> BTD: the decoder's hidden states, and its memory for the next call."""
        assert self.decoder is not None
        child = replace(context.child("decoder"), final_state=False)
        states, memory = self.decoder(self.embed(ids, context), child, memory)
        return states, memory

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """...N -> ...N: the log-probabilities of logits, which a search may have constrained."""
        return logits.log_softmax(dim=-1)


def move_padding_right(
    ids: Tensor | None, padding: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Move left padding to the right: (ids, padding or None if there is none, the order that did it or None)."""
    if ids is None or padding is None or bool(padding.all()):
        return ids, None, None
    padding = padding.bool()
    if not bool((padding[:, 1:] & ~padding[:, :-1]).any()):
        return ids, padding, None
    order = (~padding).long().argsort(dim=1, stable=True)
    return reorder(ids, order), padding.gather(1, order), order


def reorder(values: Tensor | None, order: Tensor | None) -> Tensor | None:
    """BT... with its tokens in this order."""
    return values if values is None or order is None else values.gather(1, _along(order, values))


def restore_order(values: Tensor, order: Tensor | None) -> Tensor:
    """BT... back in the caller's order."""
    return values if order is None else torch.empty_like(values).scatter_(1, _along(order, values), values)


def _along(order: Tensor, values: Tensor) -> Tensor:
    return order.reshape(*order.shape, *[1] * (values.dim() - 2)).expand_as(values)
