"""Multi-head attention (Vaswani 2017): self-attention and cross-attention, with slots for score, pattern, position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import messages
from regard.errors import InputError
from regard.layers.contract import (
    Context,
    Facts,
    Memory,
    Shared,
    Sublayer,
    fold_beams,
    query_positions,
    require_counts,
    write_memory,
)
from regard.layers.linear import linear, multiply, product
from regard.layers.lsh.banded import BandedWeights, local_bands
from regard.layers.patterns import Full, Pattern, SelfPattern, SourceMask, self_pattern, source_pattern
from regard.layers.positions import AttentionPosition, Position, require_attached
from regard.layers.record import AttentionWeights, Blocks, Rows, ScoreInputs, WeightBlock
from regard.layers.scores import Dot, Score, ScoreFunction, Uniform
from regard.schema import kind_of

SourceKeys = Shared[tuple[Tensor, Tensor]]
"""The source's projected keys BHSK and its values BHSV. All beams of a sentence share them."""

_FEW = 1 << 10  # keys: causal weights are computed for a multiple of these
_HIDDEN = -10_000.0  # a score in bits, whose weight is 0, as is their product
_LONG = 1 << 16  # tokens, from which queries, keys and values are projected one by one


@dataclass(frozen=True)
class SelfAttention:
    """Self-attention (Vaswani 2017, section 3.2): every token attends to tokens of its own sequence."""

    heads: int
    pattern: Pattern = field(default_factory=Full)
    score: Score = field(default_factory=Dot)
    position: Position | None = None
    key_width: int | None = None  # of a head; by default width / heads
    biased: bool = True
    key_heads: int | None = None  # heads of keys and values, each for several heads of queries (GQA, Ainslie 2023)
    out_biased: bool | None = None  # the output projection; by default as `biased`
    name: ClassVar[str] = "self"

    def __post_init__(self) -> None:
        require_counts(heads=self.heads, key_width=self.key_width, key_heads=self.key_heads)
        _require_groups(self)
        self_pattern(self.pattern)
        require_attached(self.position, AttentionPosition)

    @property
    def facts(self) -> Facts:
        pattern = self_pattern(self.pattern)
        return Facts(
            self.heads, pattern.causal, self.position, adds_position_bias=True, incremental=pattern.incremental,
            packs=True, window=pattern.window,
        )  # fmt: skip

    def build(self, width: int, source_width: int | None = None) -> SelfAttentionLayer:
        return SelfAttentionLayer(self, width)


class SelfAttentionLayer(Sublayer):
    def __init__(self, description: SelfAttention, width: int) -> None:
        super().__init__()
        self.heads, self.pattern = description.heads, self_pattern(description.pattern)
        self.key_heads = description.key_heads or self.heads
        key_width = description.key_width or head_width(width, description.heads)
        inner = key_width * self.heads
        self.counts = self.heads, self.key_heads, self.key_heads
        self.widths = [key_width * heads for heads in self.counts]
        self.query_key_value = linear(width, sum(self.widths), parts=self.widths, biased=description.biased)
        out_biased = description.biased if description.out_biased is None else description.out_biased
        self.out = linear(inner, width, biased=out_biased)
        self.score = description.score.build(key_width, key_width, self.heads)
        self.query_key_value.weight.data[:inner] *= self.score.init_gain
        position = require_attached(description.position, AttentionPosition)
        self.position = None if position is None else position.build(key_width)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        rows, layout = x.shape, context.layout
        q, k, v = self.project(fold_beams(x, layout))
        if self.position is not None:
            positions = query_positions(context.token_positions(x.shape[1], x.device), layout)
            q, k = self.position(q, positions), self.position(k, positions)
        q, k = self.score.queries(q), self.score.keys(k)
        fresh, first = memory is None, 0
        if context.remember:
            memory = write_memory(memory, k.transpose(1, 2), v.transpose(1, 2))  # the KV cache
            if not fresh:
                # Keys that no query can attend to any more are skipped, where all rows are at the same slot.
                first = 0 if layout is not None else self.pattern.first_key(context.start)
                k, v = (part.transpose(1, 2) for part in memory.used_from(first))
        if self.key_heads < self.heads:
            k, v = (part.repeat_interleave(self.heads // self.key_heads, 1) for part in (k, v))
        out, bias = self.out.weight, None
        y = attend_in_bands(self.score, self.pattern, q, k, v, context, out=out) if fresh else None
        if y is None:
            mask, causal = self.mask(x.shape[1], k, context, fresh, first)
            if context.position_bias is not None:
                positions = query_positions(context.token_positions(x.shape[1], x.device), layout)
                bias = context.position_bias(positions, positions if fresh else key_positions(k, context, first))
            # All layers share the numbers of one mask.
            additive = layout.mask if layout is not None and self.pattern.lower_triangular else None
            y = attend(
                self.score, q, k, v, mask, context, bias=bias, causal=causal, out=out, first=first, additive=additive
            )
        return self.out(y.transpose(1, 2).reshape(*rows[:2], -1)), memory if context.remember else None

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """BTD -> BHTK: queries, keys, values."""
        # An adapter belongs to the fused map.
        if x.shape[1] < _LONG or any(True for _ in self.query_key_value.children()):
            return split_heads(self.query_key_value(x), sum(self.counts)).split_with_sizes(self.counts, dim=1)
        # One by one, so that the backward pass never holds a fused gradient and its parts.
        weights, biases = self.query_key_value.weight.split(self.widths), self.query_key_value.bias
        added = 3 * (None,) if biases is None else biases.split(self.widths)
        parts = (product(x, weight, bias) for weight, bias in zip(weights, added))
        return [split_heads(part, heads) for part, heads in zip(parts, self.counts)]

    def mask(
        self, queries: int, keys: Tensor, context: Context, fresh: bool, first: int
    ) -> tuple[Tensor | None, bool]:  # fmt: skip
        """The mask over keys BHSK from slot `first` on, True for visible (None: all), and the kernel's `is_causal`.

        `is_causal` is aligned to the top left, so it is right only when queries and keys start together.
        """
        plain = self.pattern.lower_triangular and context.document is None
        if fresh and plain and context.position_bias is None and self.score.scale is not None:
            return None, True
        if plain and queries == 1 and context.layout is None:
            return None, False
        mask = visible_keys(self.pattern, queries, keys, context, fresh, first)
        if not self.pattern.causal and context.padding is not None:
            mask = both(mask, context.padding[:, None, None, :])
        return mask, False


def _require_groups(attention: SelfAttention) -> None:
    """Refuse heads of keys that do not divide those of queries, or that a score would project once per query."""
    if attention.key_heads is None:
        return
    if attention.heads % attention.key_heads:
        raise InputError(f"key_heads = {attention.key_heads} does not divide heads = {attention.heads}. Try 1.")
    if not isinstance(attention.score, Dot | Uniform):
        raise InputError(
            f"keys for several heads (key_heads) need the score dot, got {kind_of(type(attention.score))}."
        )


@dataclass(frozen=True)
class CrossAttention:
    """Cross-attention (Vaswani 2017, section 3.2.3): every target token attends to the source."""

    heads: int
    score: Score = field(default_factory=Dot)
    key_width: int | None = None
    biased: bool = True
    pattern: Pattern = field(default_factory=Full)
    name: ClassVar[str] = "cross"

    def __post_init__(self) -> None:
        require_counts(heads=self.heads, key_width=self.key_width)
        source_pattern(self.pattern)

    @property
    def facts(self) -> Facts:
        return Facts(self.heads, packs=True, weights_sum_to_one=source_pattern(self.pattern).weights_sum_to_one)

    def build(self, width: int, source_width: int | None = None) -> CrossAttentionLayer:
        return CrossAttentionLayer(self, width, source_width or width)


class CrossAttentionLayer(Sublayer):
    def __init__(self, description: CrossAttention, width: int, source_width: int) -> None:
        super().__init__()
        self.heads = description.heads
        key_width = description.key_width or head_width(width, description.heads)
        inner = key_width * self.heads
        self.query = linear(width, inner, biased=description.biased)
        self.key_value = linear(source_width, 2 * inner, parts=2, biased=description.biased)
        self.out = linear(inner, width, biased=description.biased)
        self.score = description.score.build(key_width, key_width, self.heads)
        self.query.weight.data *= self.score.init_gain
        self.source_mask = source_pattern(description.pattern).source_mask(width)

    def forward(self, x: Tensor, context: Context, memory: SourceKeys | None = None) -> tuple[Tensor, Memory]:
        assert context.source is not None
        if memory is None:
            k, v = (split_heads(part, self.heads) for part in self.key_value(context.source.states).chunk(2, dim=-1))
            memory = Shared((self.score.keys(k), v))
        out = self.out
        y = attend_source(self.score, self.source_mask, x, memory, context, query=self.query, out=out.weight)
        return out(y), memory if context.remember else None


def attend_source(
    score: ScoreFunction, source_mask: SourceMask, x: Tensor, keys: SourceKeys, context: Context, *,
    slots: Tensor | None = None, query: nn.Module | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """RTD -> RTV: attention over the source; a sentence's beams are more queries to the same keys.

    `slots` (R)T are those of the tokens; by default the context's.
    """
    assert context.source is not None
    (k, v), (rows, length, width), source = keys.tree, x.shape, context.source
    folded = x.reshape(k.shape[0], -1, width)
    if source_mask.padding_only:
        mask, factor, additive = source.visible, None, source.mask
    else:
        slots = context.slots(length, x.device) if slots is None else slots
        mask, factor = source_mask(folded, slots.expand(rows, length).reshape(k.shape[0], -1), source)
        additive = None
    q = score.queries(split_heads(folded if query is None else query(folded), k.shape[1]))
    y = attend(score, q, k, v, mask, context, factor=factor, rows=rows, out=out, additive=additive)
    return y.transpose(1, 2).reshape(rows, length, -1)


def attend(
    score: ScoreFunction, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, context: Context, *,
    bias: Tensor | None = None, factor: Tensor | None = None, causal: bool = False, rows: int | None = None,
    out: Tensor | None = None, first: int = 0, additive: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Scaled dot-product (or other) attention: projected BHTK, BHSK and BHSV -> BHTV.

    Dot products use the fused kernel, unless there is a `factor` on the weights. Recorded weights are computed in
    addition to the kernel, never instead of it. `out` is the output projection, `first` the slot of the first key,
    `rows` the number of rows when beams are folded into queries, `additive` the mask as numbers, where it is known.
    """
    weights: Tensor | None = None
    if context.output_is_unused:
        y = v.new_zeros(()).expand(*q.shape[:-1], v.shape[-1])
    elif score.scale is None or factor is not None:
        weights = attention_weights(score, q, k, mask, bias)
        weights = weights if factor is None else weights * factor
        y = weights @ v
    else:
        known = additive is not None and bias is None
        numbers = additive.to(q.dtype) if additive is not None and known else kernel_mask(mask, bias, q)
        y = F.scaled_dot_product_attention(q, k, v, numbers, is_causal=causal, scale=score.scale)
    if context.recording:
        assert context.record is not None
        beams = 1 if rows is None else rows // len(q)
        values = F.pad(v, (0, 0, first, 0)) if first else v
        recorded = ScoredWeights(values, out, score, q, k, mask, bias, causal, beams, weights, first)
        context.record.record_attention(context.name, recorded, unfold_beams(y, beams))
    return ablate(y, context)


@dataclass(frozen=True)
class ScoredWeights(AttentionWeights):
    """The weights of `attend`. The beams of a sentence are folded into its queries: B, H, beams * T, K."""

    score: ScoreFunction
    query: Tensor
    key: Tensor
    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False  # the kernel's `is_causal`, without a mask
    beams: int = 1
    known: Tensor | None = None  # all weights, where the layer computed them itself
    first: int = 0  # the slot of the first key; earlier keys have weight 0

    @property
    def queries(self) -> int:
        return self.query.shape[2] // self.beams

    @property
    def only_earlier_keys(self) -> bool:
        return self.causal and self.known is None and not self.first

    def head(self, number: int) -> Rows:
        heads = slice(number, number + 1)
        rows = self.compute_causal if self.only_earlier_keys else self.compute
        return lambda queries: rows(queries, heads)[:, 0]

    def blocks(self, number: int) -> Blocks:
        if not self.only_earlier_keys or self.score.scale is None:
            return super().blocks(number)
        return lambda queries: self.causal_block(queries, slice(number, number + 1))

    def weights(self, queries: slice) -> Tensor:
        return self.compute(queries, slice(None))

    def compute_causal(self, queries: slice, heads: slice) -> Tensor:
        """-> Bhts: the weights of a slice of queries, for the keys up to the last query, and a few later ones."""
        return self.causal_scores(queries, heads)[0].softmax(-1)

    def causal_block(self, queries: slice, head: slice) -> WeightBlock:
        """The same of one head of the only row, with the entropy: no logarithm of a weight is needed for it."""
        scores, later = self.causal_scores(queries, head, 1 / math.log(2))
        bits, hidden = scores[0, 0].float(), later.shape[-1]
        bits.sub_(bits.amax(-1, keepdim=True))[:, bits.shape[-1] - hidden :].masked_fill_(later, _HIDDEN)
        weights = bits.exp2()
        total = weights.sum(-1)
        entropy = total.log2() - torch.linalg.vecdot(weights, bits) / total
        return WeightBlock(weights.div_(total[:, None]), entropy=entropy.clamp_min(0))

    def causal_scores(self, queries: slice, heads: slice, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """-> Bhts, tl: scores times `factor`, -inf for later keys, and which of the last l keys are later."""
        assert self.score.scale is not None
        first, stop, _ = queries.indices(self.queries)
        # Few different sizes, for each of which oneDNN compiles code, where the additional keys are few too.
        last = min(stop + -stop % _FEW, self.keys) if stop > 4 * _FEW else stop
        q, k = self.query[:, heads, first:stop] * (self.score.scale * factor), self.key[:, heads, :last]
        scores = multiply(q[0, 0], k[0, 0])[None, None] if q.shape[:2] == (1, 1) else q @ k.mT
        later = torch.ones(stop - first, last - first, dtype=torch.bool, device=scores.device).triu_(1)
        scores[..., first:].masked_fill_(later, -torch.inf)
        return scores, later

    def compute(self, queries: slice, heads: slice) -> Tensor:
        """-> BhtS: the weights of a slice of queries in a slice of heads."""
        found = self.cut(self.known, queries, heads)
        if found is None:
            mask = self.cut(self.mask, queries, heads)
            if self.causal:
                slots = torch.arange(self.keys, device=self.key.device)
                mask = slots <= slots[: self.queries][queries, None]
            q = self.cut(self.query, queries, heads)
            assert q is not None
            found = attention_weights(self.score, q, self.key[:, heads], mask, self.cut(self.bias, queries, heads))
        found = unfold_beams(found, self.beams)
        return F.pad(found, (self.first, 0)) if self.first else found

    def cut(self, whole: Tensor | None, queries: slice, heads: slice) -> Tensor | None:
        """The part of (1|B)(1|H)(1|T)... for a slice of queries and heads."""
        if whole is None:
            return None
        whole = whole if whole.dim() == 4 else whole[None, None]
        whole = whole if whole.shape[1] == 1 else whole[:, heads]
        if whole.shape[2] == 1:
            return whole
        chosen: Tensor = whole.unflatten(2, (self.beams, -1))[:, :, :, queries]
        return chosen.flatten(2, 3)

    def score_inputs(self) -> ScoreInputs | None:
        # Keys are not copied: a recurrent decoder records every step, and all steps are to share the same keys.
        keys = self.key if self.beams == 1 else self.key.repeat_interleave(self.beams, 0)
        keys = F.pad(keys, (0, 0, self.first, 0)) if self.first else keys
        bias = self.bias if self.bias is None or not self.first else F.pad(self.bias, (self.first, 0))
        inputs = self.score.score_inputs(unfold_beams(self.query, self.beams), keys)
        return None if inputs is None else replace(inputs, bias=bias)


def attend_in_bands(
    score: ScoreFunction, pattern: SelfPattern, q: Tensor, k: Tensor, v: Tensor, context: Context, *,
    out: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """As `attend`, in bands of chunks; None unless the pattern spans few chunks and the score is a dot product."""
    if context.position_bias is not None or score.scale is None:
        return None
    document_ids = context.document_ids()
    document_ids = None if document_ids is None else document_ids.repeat_interleave(q.shape[1], 0)
    if torch._C._is_tracing():  # bands depend on the length, and an exported graph is for any
        return None
    bands = local_bands(pattern, q.shape[2], q.shape[0] * q.shape[1], document_ids, q.device)
    if bands is None:
        return None
    weights = BandedWeights(v, out, q, k, bands, score.scale)
    y = torch.zeros_like(v) if context.output_is_unused else weights.output()
    if context.recording and context.record is not None:
        context.record.record_attention(context.name, weights, y)
    return ablate(y, context)


def ablate(y: Tensor, context: Context) -> Tensor:
    """BHTV with the output of ablated heads set to 0."""
    mask = None if context.ablation is None else context.ablation.head_mask(context.name, y.shape[1])
    return y if mask is None else y * mask.to(y)[:, None, None]


def attention_weights(score: ScoreFunction, q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """-> BHTS: the softmax of the scores over visible keys."""
    scores = score.compare(q, k)
    return masked_softmax(scores if bias is None else scores + bias, mask)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the visible keys; zeros, never NaN, for a query without any."""
    if mask is None:
        return scores.softmax(-1)
    hidden = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return hidden.softmax(-1).masked_fill(~mask, 0.0)


def kernel_mask(mask: Tensor | None, bias: Tensor | None, q: Tensor) -> Tensor | None:
    """Mask and bias as one tensor for the fused kernel: minus infinity where a key is not visible."""
    if bias is None:
        return mask
    bias = bias.to(q.dtype)  # on a CPU the kernel misreads a float32 bias of float64 queries
    return bias if mask is None else bias.masked_fill(~mask, -torch.inf)


def visible_keys(
    pattern: SelfPattern, queries: int, keys: Tensor, context: Context, fresh: bool, first: int = 0
) -> Tensor | None:  # fmt: skip
    """-> TS or (1|B)1TS: which keys BHSK, from slot `first` on, pattern and packed documents leave visible; None: all.

    With a layout, the beams of a sentence are its queries, and each attends to its own tokens.
    """
    layout = context.layout
    own = None if layout is None else layout.own_keys(keys.shape[2])
    if own is not None and pattern.lower_triangular:
        return own
    slots = query_positions(context.slots(queries, keys.device), layout)
    positions = key_positions(keys, context, first)
    mask = pattern.mask(slots, positions if positions.dim() == 1 else positions[:, None])
    mask = mask[:, None] if mask is not None and mask.dim() == 3 else mask
    mask = mask if own is None else both(mask, own)
    if fresh and context.document is not None:
        mask = both(mask, (context.document[:, :, None] == context.document[:, None, :])[:, None])
    return mask


def key_positions(keys: Tensor, context: Context, first: int = 0) -> Tensor:
    """-> S or BS: the slots of keys BHSK from slot `first` on; with a layout, their positions."""
    if context.layout is not None:
        return context.layout.positions[:, context.layout.end - keys.shape[2] :]
    return torch.arange(first, first + keys.shape[2], device=keys.device)


def both(one: Tensor | None, other: Tensor) -> Tensor:
    """The keys that are visible in both masks."""
    return other if one is None else one & other


def unfold_beams(folded: Tensor, beams: int) -> Tensor:
    """B, H, beams * T, ... -> B * beams, H, T, ...: one row per beam again."""
    if beams == 1:
        return folded
    by_beam: Tensor = folded.unflatten(2, (beams, -1))
    return by_beam.transpose(1, 2).flatten(0, 1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """BTD -> BHTK: cut the width into heads."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """BHTV -> BTD: concatenate the heads."""
    return x.transpose(1, 2).flatten(2)


def head_width(width: int, heads: int) -> int:
    """The width of one head."""
    if heads < 1 or width % heads:
        lower = max(heads, 1) * max(1, width // max(heads, 1))
        raise messages.INDIVISIBLE(width=width, heads=heads, lower=lower, upper=lower + max(heads, 1))
    return width // heads
