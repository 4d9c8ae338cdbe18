"""Attention trace: the attention weights of every layer and head for one text, with its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.alignment import extract_links, write_moses
from regard.decode.fill import encode_masked, encode_sentinels
from regard.decode.inputs import add_special_tokens, input_ids
from regard.decode.options import Options
from regard.errors import InputError
from regard.models.model import Network
from regard.progress import Progress
from regard.show.ablation import attention_heads
from regard.show.collect import AttentionShape, Collector, LayerAttention
from regard.show.generation import Tokenizers
from regard.show.payload import TracePage
from regard.show.summary import Side, head_statistics, merge_words, rollout, side_of

Kind = Literal["encoder", "decoder", "cross"]
"""Encoder self-attention, decoder self-attention, or cross-attention."""


@dataclass(frozen=True, eq=False)
class Example:
    """The traced example: the network with its inputs, the tokenizers, and the token ids of both sides."""

    collector: Collector
    tokenizers: Tokenizers
    source_ids: list[int]
    target_ids: list[int]
    beams: list[dict[str, Any]] | None = None  # the tree of the beam search that generated the target
    options: Options = field(default_factory=Options)  # how this model searches
    generated: tuple[int, int] = (0, 0)  # the target tokens that the model chose: the first, and one past the last

    @property
    def network(self) -> Network:
        return self.collector.network

    @property
    def input_ids(self) -> list[int]:
        """The tokens that the decoder reads (the target shifted right), or the encoder of an encoder-only model."""
        if self.network.shape != "encoder-decoder":
            return self.target_ids or self.source_ids
        return [self.tokenizers[1].bos, *self.target_ids[:-1]]


@dataclass(frozen=True, eq=False)
class AttentionTrace(TracePage):
    """Tokens and the attention weights of every layer and head: each tensor is heads, queries, keys."""

    source_tokens: list[str]
    target_tokens: list[str]
    weights: Mapping[str, Tensor] = field(repr=False)
    alignment_heads: tuple[tuple[int, int], ...] = ()  # layers and heads chosen for word alignment, if any
    token_sides: tuple[Side, ...] = field(default=(), repr=False)  # of the source, if there is one, and of the target
    example: Example | None = field(default=None, repr=False)  # None: the weights were computed elsewhere

    @cached_property
    def sides(self) -> dict[str, Side]:
        """The tokens of rows and columns by side: "source", "decoder_input" and, with a source, "target"."""
        given = [tokens for tokens in (self.source_tokens, self.target_tokens) if tokens]
        sides = list(self.token_sides or map(Side.of_tokens, given))
        if not self.source_tokens or not self.target_tokens:
            return {"source" if self.source_tokens else "decoder_input": side for side in sides}
        begin = "" if self.example is None else self.example.tokenizers[1].token_texts(self.example.input_ids[:1])[0]
        return {"source": sides[0], "decoder_input": sides[1].shifted_right(begin), "target": sides[1]}

    @property
    def source_words(self) -> list[str]:
        """The words of the source."""
        return self.sides["source"].word_texts if self.source_tokens else []

    @property
    def target_words(self) -> list[str]:
        """The words of the target, or of the text of a decoder-only model."""
        return self.sides["target" if self.source_tokens else "decoder_input"].word_texts if self.target_tokens else []

    def axes(self, name: str) -> tuple[str, str]:
        """The side of a layer's queries, and the side of its keys."""
        if name.startswith("encoder"):
            return "source", "source"
        return ("target", "source") if name.endswith("cross") else ("decoder_input", "decoder_input")

    @property
    def encoder_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, source, source)."""
        return tuple(weights[None] for weights in self._of("encoder"))

    @property
    def decoder_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, target, target)."""
        return tuple(weights[None] for weights in self._of("decoder"))

    @property
    def cross_attentions(self) -> tuple[Tensor, ...]:
        """Per layer (1, heads, target, source)."""
        return tuple(weights[None] for weights in self._of("cross"))

    @property
    def alignment_weights(self) -> Mapping[str, Tensor]:
        """The weights of the alignment heads, or of all heads if none are chosen."""
        if not self.alignment_heads:
            return self.weights
        chosen: dict[str, Tensor] = {}
        for layer in sorted({layer for layer, _ in self.alignment_heads}):
            heads = [head for of, head in self.alignment_heads if of == layer]
            names = [name for name in self.weights if name.startswith(f"decoder.{layer}.") and name.endswith("cross")]
            chosen |= {name: self.weights[name][heads] for name in names}
        return chosen

    def alignment(self) -> Tensor:
        """Target by source: the mean cross-attention of the alignment heads (of all heads if none are chosen)."""
        weights = self.alignment_weights
        cross = [weights[name] for name in weights if name.endswith("cross")]
        if not cross:
            raise InputError("this model has no cross-attention, so there is no alignment.")
        return torch.cat(cross).mean(dim=0)

    def moses(self) -> str:
        """The word alignment of source and target in the Moses (Pharaoh) format: 0-0 1-2."""
        source, target = (self.sides.get(name, Side.of_tokens(())).word_ids for name in ("source", "target"))
        return write_moses(extract_links(self.alignment(), target, source))

    def by_word(self, name: str) -> Tensor:
        """Heads, words, words: sum over a word's keys, mean over its queries."""
        rows, columns = (self.sides[side].word_spans for side in self.axes(name))
        return merge_words(self.weights[name], rows, columns)

    def mean(self, kind: Kind) -> Tensor:
        """Queries by keys: the mean over the layers of a kind and their heads."""
        return torch.cat(self._require(kind)).mean(dim=0)

    def maximum(self, kind: Kind) -> Tensor:
        """Queries by keys: the maximum over the layers of a kind and their heads."""
        return torch.cat(self._require(kind)).amax(dim=0)

    def rollout(self, kind: Kind) -> Tensor:
        """Tokens by tokens: attention rollout through all self-attention layers of a stack (Abnar 2020)."""
        if kind == "cross":
            raise InputError('attention rollout is for self-attention. Choose "encoder" or "decoder".')
        missing = self.missing_layers(kind)
        if missing:
            raise InputError(f'attention rollout needs all layers, {", ".join(missing)} too. Trace with layers="*".')
        return rollout(self._require(kind))

    def missing_layers(self, name: str) -> list[str]:
        """The self-attention layers of this layer's stack that were not traced."""
        known = attention_heads(self.example.network) if self.example is not None else {}
        own = [other for other in known if other.startswith(name.split(".")[0]) and other.endswith("self")]
        return [other for other in own if other not in self.weights]

    def norm_weighted(self, name: str) -> Tensor:
        """Heads, queries, keys: weights times the norms of the transformed values (Kobayashi 2020)."""
        norms = self.layers[name].value_norms if name in self.layers else None
        if norms is None:
            raise InputError(f"the value norms of {name!r} are unknown. Trace the text with model.look.")
        return self.weights[name] * norms[:, None]

    @property
    def entropy(self) -> dict[str, Tensor]:
        """Per layer and head, in bits: the mean entropy of a query's weights."""
        return {name: layer.entropy for name, layer in self.layers.items()}

    @property
    def distance(self) -> dict[str, Tensor]:
        """Per layer and head, in tokens: the mean attention distance between query and key."""
        return {name: layer.distance for name, layer in self.layers.items()}

    @property
    def buckets(self) -> dict[str, Tensor]:
        """Per LSH layer: the buckets, heads by tokens by rounds."""
        return {name: layer.buckets for name, layer in self.layers.items() if layer.buckets is not None}

    @cached_property
    def layers(self) -> dict[str, LayerAttention]:
        """The attention of each layer, collected on first use."""
        if self.example is None:
            return {name: _layer_of(heads) for name, heads in self.weights.items()}
        return self.example.collector.layers

    def collected(self, progress: Progress) -> bool:
        """Collect the layers; -> False if `progress` stopped it before the first was ready."""
        if self.example is None:
            return True
        return bool(self.example.collector.collect(progress)) or not self.example.collector.shapes

    def rows(self, name: str, head: int, first: int, last: int) -> Tensor:
        """The weights of the queries from `first` to before `last` in one head, by keys, for a text of any length."""
        if self.example is None or isinstance(self.weights, dict):
            return self.weights[name][head, first:last]
        return self.example.collector.rows(name, head, first, last)

    @property
    def traces(self) -> tuple[tuple[str, AttentionTrace], ...]:
        return (("", self),)

    def _of(self, kind: Kind) -> list[Tensor]:
        side, end = ("decoder", "cross") if kind == "cross" else (kind, "self")
        return [self.weights[name] for name in self.weights if name.startswith(side) and name.endswith(end)]

    def _require(self, kind: Kind) -> list[Tensor]:
        found = self._of(kind)
        if not found:
            raise InputError(f'no layer of kind "{kind}" was traced. Traced layers: {", ".join(self.weights)}.')
        return found


def _layer_of(weights: Tensor) -> LayerAttention:
    """The statistics of weights that were computed elsewhere."""
    heads, queries, keys = weights.shape
    entropy, distance, confidence = head_statistics(weights.float()) / max(1, queries)
    return LayerAttention(AttentionShape(heads, queries, keys, 0), weights, None, None, entropy, distance, confidence)


class LazyWeights(Mapping[str, Tensor]):
    """The weights of a long text's layers, computed on access and not stored."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.collector.shapes:
            raise KeyError(name)
        return self.collector.matrix(name)

    def __contains__(self, name: object) -> bool:
        return name in self.collector.shapes  # computes nothing

    def __iter__(self) -> Iterator[str]:
        return iter(self.collector.shapes)

    def __len__(self) -> int:
        return len(self.collector.shapes)


def trace(
    network: Network,
    tokenizers: Tokenizers,
    text: str,
    target: str | Sequence[int] | None,
    alignment_heads: tuple[tuple[int, int], ...] = (),
    *,
    layers: str | Sequence[str] = "*",
    beams: list[dict[str, Any]] | None = None,
    options: Options = Options(),  # noqa: B008 (frozen)
    ended: bool = False,
) -> AttentionTrace:
    """Trace the attention of these layers in one forward pass over a text and its target (a text, or token ids).

    A generated target is traced by teacher forcing, so rows follow the best hypothesis; `ended`: by its own end token.
    `options` is how the model searches, for ablations that generate again.
    """
    inputs, source_ids, target_ids = prepare_inputs(network, tokenizers, text, target)
    patterns = [layers] if isinstance(layers, str) else list(layers)
    collector = Collector(network, inputs, lambda name: any(fnmatchcase(name, pattern) for pattern in patterns))
    _require_layers(collector, patterns)
    sides: list[tuple[Tokenizer, list[int], str | None]] = [(tokenizers[0], source_ids, text)] if source_ids else []
    if target_ids:
        target_text = target if isinstance(target, str) else None
        if network.shape == "decoder" and (target is None or target_text is not None):
            target_text = text + (target_text or "")
        sides.append((tokenizers[1], target_ids, target_text))
    token_sides = tuple(side_of(*side) for side in sides)
    tokens = [tokenizers[0].token_texts(source_ids), tokenizers[1].token_texts(target_ids)]
    chosen = 0 if target is None or isinstance(target, str) else len(target)
    start = len(target_ids) - chosen if network.shape == "decoder" else 0
    generated = start, start + chosen + (ended and network.shape != "decoder")
    example = Example(collector, tokenizers, source_ids, target_ids, beams, options, generated)
    weights: Mapping[str, Tensor] = LazyWeights(collector)
    if all(plan.full for plan in collector.plans.values()):
        weights = {name: layer.weights for name, layer in collector.layers.items() if layer.weights is not None}
    return AttentionTrace(tokens[0], tokens[1], weights, alignment_heads, token_sides, example)


def _require_layers(collector: Collector, patterns: Sequence[str]) -> None:
    """Refuse a pattern that matches no layer, except "*"."""
    for pattern in patterns:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in collector.shapes):
            known = ", ".join(Collector(collector.network, collector.inputs).shapes) or "none"
            raise InputError(f'no layer of this model is named "{pattern}" (layers). Known: {known}.')


def prepare_inputs(
    network: Network, tokenizers: Tokenizers, text: str, target: str | Sequence[int] | None
) -> tuple[dict[str, Any], list[int], list[int]]:
    """The keyword arguments of the network for a text and its target, and the token ids of source and target.

    A target is a text, or generated token ids. Without an encoder, it continues the text.
    """
    tokenizer, target_tokenizer = tokenizers
    device = next(network.parameters()).device
    inputs: dict[str, Any] = {}
    if network.shape != "encoder-decoder":
        joined = text + target if isinstance(target, str) and network.shape == "decoder" else text
        masked = network.shape == "encoder" and network.description.readout.outputs == "tokens"
        tokens = encode_masked(tokenizer, text) if masked else tokenizer.encode(joined)
        ids = [*add_special_tokens(network, tokenizer, tokens)]
        if network.shape == "decoder" and target is not None and not isinstance(target, str):
            ids += target
        source_ids, target_ids = ([], ids) if network.shape == "decoder" else (ids, [])
    else:
        source_ids = [*add_special_tokens(network, tokenizer, encode_sentinels(tokenizer, text))]
        inputs["source_ids"] = torch.tensor([source_ids], device=device)
        target_ids = encode_sentinels(target_tokenizer, target) if isinstance(target, str) else [*(target or ())]
        ids = [target_tokenizer.bos, *target_ids]
        target_ids = [*target_ids, target_tokenizer.eos]
    inputs["ids"] = input_ids(network, tokenizer, torch.tensor([ids], device=device), text=text)
    return inputs, source_ids, target_ids
