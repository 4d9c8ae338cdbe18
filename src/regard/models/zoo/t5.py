"""T5, the text-to-text Transformer (Raffel 2019): an encoder-decoder with relative position biases."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.contract import require_counts
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PreNorm, RMSNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Position, RelativeBias, position_for
from regard.layers.reversible import Reversible
from regard.layers.scores import Dot
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.models.zoo.transformer import sized

# Width, depth, heads, inner width of the feed-forward, and key width of the published versions and sizes.
T5 = {
    ("1.0", "small"): (512, 6, 8, 2048, 64), ("1.0", "base"): (768, 12, 12, 3072, 64),
    ("1.0", "large"): (1024, 24, 16, 4096, 64), ("1.0", "3b"): (1024, 24, 32, 16384, 128),
    ("1.0", "11b"): (1024, 24, 128, 65536, 128), ("1.1", "small"): (512, 8, 6, 1024, 64),
    ("1.1", "base"): (768, 12, 12, 2048, 64), ("1.1", "large"): (1024, 24, 16, 2816, 64),
    ("1.1", "3b"): (2048, 24, 32, 5120, 64), ("1.1", "11b"): (4096, 24, 64, 10240, 64),
}  # fmt: skip


def t5(
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    *,
    size: Literal["small", "base", "large", "3b", "11b"] = "small",
    version: Literal["1.0", "1.1"] = "1.1",
    inner: int | None = None,
    key_width: int | None = None,
    decoder_depth: int | None = None,
    dropout: float = 0.1,
    position: Position | None = RelativeBias(),  # noqa: B008
    join: PreNorm | Reversible = PreNorm(RMSNorm()),  # noqa: B008
) -> Model:
    """T5 (Raffel 2019): no biases in linear maps, unscaled dot products, a trained bias per relative position.

    `version` "1.0" has ReLU and ties the readout to the embedding; "1.1" gates the feed-forward and ties nothing.
    """
    require_counts(width=width, inner=inner, key_width=key_width, decoder_depth=decoder_depth)
    published = T5[version, size]
    inner = inner or (4 * width if width else published[3])
    key_width = key_width or (None if width or heads else published[4])
    width, depth, heads = sized(published[:3], width, depth, heads)
    gated, score, rotary = version == "1.1", Dot(scaled=False), position_for("attention", position)
    self_attention = SelfAttention(heads, score=score, position=rotary, key_width=key_width, biased=False)
    causal_attention = replace(self_attention, pattern=Causal())
    cross_attention = CrossAttention(heads, score=score, key_width=key_width, biased=False)
    feed_forward = FeedForward(inner, "gelu_tanh" if gated else "relu", gated=gated, biased=False, dropout=dropout)
    encoder_layer = self_attention, feed_forward
    decoder_layer = causal_attention, cross_attention, feed_forward
    bias = position_for("stack", position)
    return Model(
        width,
        embed=Embed(position_for("embedding", position), dropout=dropout, init_std=1.0),
        encoder=Stack(depth * (encoder_layer,), join, dropout, bias),
        decoder=Stack((decoder_depth or depth) * (decoder_layer,), join, dropout, bias),
        readout=Vocabulary(tied=not gated, scaled=not gated),
    )
