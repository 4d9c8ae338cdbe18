"""One class for every model, in three shapes by which stacks are present: encoder, decoder, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.models.readout import Vocabulary
from regard.models.stack import Stack
from regard.parts.contract import Change, Context, Memory, Record, Source
from regard.parts.embed import Embed


@dataclass(frozen=True)
class Model:
    """What a model is, as data; `build(vocabulary)` is the module."""

    width: int
    embed: Embed
    encoder: Stack | None = None
    decoder: Stack | None = None
    readout: Vocabulary = field(default_factory=Vocabulary)
    shared: bool = True  # source and target use one table of vectors, when their vocabulary is one

    def build(self, vocabulary: int, source_vocabulary: int | None = None) -> Network:
        """The module; a second vocabulary is the source's, when it has its own."""
        return Network(self, vocabulary, source_vocabulary)


class Network(nn.Module):
    """Embeddings, stacks and a readout. Paddings are True where there is a token.

    decoder only:    network(ids, padding=None, positions=None, document=None) -> logits
    encoder-decoder: network(target_ids, source_ids=..., source_padding=..., target_padding=None) -> logits
    encoder only:    network(ids, padding=None) -> logits; network.encode(ids, padding).states -> states
    """

    def __init__(self, description: Model, vocabulary: int, source_vocabulary: int | None = None) -> None:
        super().__init__()
        self.description, self.vocabulary = description, vocabulary
        self.source_vocabulary = source_vocabulary
        width = description.width
        self.embed = description.embed.build(width, vocabulary)
        self.encoder = description.encoder.build(width) if description.encoder else None
        self.decoder = description.decoder.build(width, width) if description.decoder else None
        self.source_embed = self.embed
        if self.encoder is not None and self.decoder is not None:
            self.source_embed = description.embed.build(width, source_vocabulary or vocabulary)
            if description.shared and source_vocabulary is None:
                self.source_embed.table.weight = self.embed.table.weight
        self.readout = description.readout.build(width, vocabulary, self.embed.table)

    @property
    def longest(self) -> int | None:
        """How many tokens it can read at once; None when there is no bound."""
        return self.embed.longest

    def forward(
        self,
        ids: Tensor,
        *,
        source_ids: Tensor | None = None,
        source_padding: Tensor | None = None,
        target_padding: Tensor | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        document: Tensor | None = None,
    ) -> Tensor:
        """BT -> BTN: the logits, in the caller's order; left padding is moved to the right and back again."""
        padding = target_padding if padding is None else padding
        source_ids, source_padding, _ = realign(source_ids, source_padding)
        moved, padding, order = realign(ids, padding)
        assert moved is not None
        if order is not None:
            positions = None if positions is None else positions.gather(1, order)
            document = None if document is None else document.gather(1, order)
        states = self.states(
            ids=moved, source_ids=source_ids, source_padding=source_padding, padding=padding, positions=positions,
            document=document,
        )  # fmt: skip
        logits: Tensor = self.readout(states)
        if order is None:
            return logits
        return torch.empty_like(logits).scatter_(1, order[..., None].expand_as(logits), logits)

    def states(
        self,
        ids: Tensor,
        *,
        source_ids: Tensor | None = None,
        source_padding: Tensor | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        document: Tensor | None = None,
        record: Record | None = None,
        change: Change | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """BT -> BTD: the last layer's states, which the readout reads; padding on the right only."""
        both = Context(record=record, change=change, recompute=recompute)
        context = replace(both, padding=padding, positions=positions, document=document)
        if source_ids is not None and (self.encoder is None or self.decoder is None):
            raise InputError("this model reads one text, not source_ids=... besides it")
        if self.decoder is None:
            return self.encode(ids, context=context).states
        if self.encoder is not None:
            if source_ids is None:
                raise InputError("an encoder-decoder reads source_ids=... besides the target's ids")
            outside = replace(both, padding=source_padding)
            context = replace(context, source=self.encode(source_ids, context=outside))
        return self.decode(ids, context)[0]

    def loss(self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The summed cross entropy of targets BT (negative: not asked) given the arguments of `states`."""
        return self.readout.loss(self.states(**inputs), targets, smoothing)

    def encode(self, ids: Tensor, padding: Tensor | None = None, *, context: Context | None = None) -> Source:
        """BS -> what the encoder says of the source."""
        context = Context(padding=padding) if context is None else context
        assert self.encoder is not None
        states, final = self.encoder(self.source_embed(ids, context), context.under("encoder"))
        return Source(states, context.padding, final)

    def decode(self, ids: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BT -> BTD, and what must be remembered for the next call."""
        assert self.decoder is not None
        states, memory = self.decoder(self.embed(ids, context), context.under("decoder"), memory)
        return states, memory


def realign(ids: Tensor | None, padding: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Move padding to the right: (ids, padding or None when there is none, the order that did it or None)."""
    if ids is None or padding is None or bool(padding.all()):
        return ids, None, None
    padding = padding.bool()
    if not bool((padding[:, 1:] & ~padding[:, :-1]).any()):
        return ids, padding, None
    order = (~padding).long().argsort(dim=1, stable=True)
    return ids.gather(1, order), padding.gather(1, order), order
