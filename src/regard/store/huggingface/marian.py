"""Marian's published form: the Transformer of "Attention Is All You Need", as thousands of translators have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PostNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Sinusoid
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.store.huggingface.config import PUBLISHED, Family, Published, Settings, Weights
from regard.store.huggingface.weights import FLAT, Row, both, row


def _stack(side: str) -> tuple[Row, ...]:
    theirs, ours = f"{side}.layers.{{}}.", f"{side}.wiring.layers.{{}}."
    look, over = f"{theirs}self_attn.", f"{theirs}encoder_attn."
    return (
        *both(f"{look}q_proj+{look}k_proj+{look}v_proj", f"{ours}self.sublayer.query_key_value"),
        *both(f"{look}out_proj", f"{ours}self.sublayer.out"),
        *both(f"{theirs}self_attn_layer_norm", f"{ours}self.norm"),
        *both(f"{over}q_proj", f"{ours}cross.sublayer.query"),
        *both(f"{over}k_proj+{over}v_proj", f"{ours}cross.sublayer.key_value"),
        *both(f"{over}out_proj", f"{ours}cross.sublayer.out"),
        *both(f"{theirs}encoder_attn_layer_norm", f"{ours}cross.norm"),
        *both(f"{theirs}fc1", f"{ours}feedforward.sublayer.up"),
        *both(f"{theirs}fc2", f"{ours}feedforward.sublayer.down"),
        *both(f"{theirs}final_layer_norm", f"{ours}feedforward.norm"),
    )


_STACKS = (
    *_stack("encoder"),
    *_stack("decoder"),
    row("lm_head.weight", "readout.words.weight"),
    row("final_logits_bias", "readout.words.bias", FLAT),
)
SHARED = (
    row("shared.weight|decoder.embed_tokens.weight|encoder.embed_tokens.weight|lm_head.weight", "embed.table.weight"),
    *_STACKS,
)
# Where the readout has its own table, both embeddings are written, though they are the same.
UNTIED = (replace(SHARED[0], repeated=True), *_STACKS)
APART = (
    row("decoder.embed_tokens.weight|lm_head.weight", "embed.table.weight"),
    row("encoder.embed_tokens.weight", "source_embed.table.weight"),
    *_STACKS,
)


def _tied(model: Model) -> bool:
    readout: Any = model.readout
    return bool(readout.tied)


def _one_table(weights: Weights) -> bool:
    """Whether both sides read the same table: where nothing is tied, each reads its own, whatever is shared."""
    return all(weights.same(f"{side}.embed_tokens.weight", "shared.weight") for side in ("encoder", "decoder"))


def _describe(settings: Settings, weights: Weights, architecture: str) -> Published:  # noqa: ARG001 (there is one)
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits"):
        settings.assume(name, False)
    settings.assume("static_position_embeddings", True)
    settings.leave(
        "attention_dropout", "activation_dropout", "classifier_dropout", "encoder_layerdrop", "decoder_layerdrop",
        "max_position_embeddings", "num_hidden_layers",
    )  # fmt: skip
    width, dropout = settings.whole("d_model|hidden_size", 1024), settings.number("dropout", 0.1)
    activation = settings.activation("activation_function", "gelu")
    tying = settings.flag("tie_word_embeddings", True)
    shared = settings.flag("share_encoder_decoder_embeddings", True) and (tying or _one_table(weights))
    vocabulary = settings.whole("vocab_size", 58101)
    target = settings.whole("decoder_vocab_size", vocabulary)
    table = "shared.weight" if shared else "decoder.embed_tokens.weight"
    tied = tying and weights.same("lm_head.weight", table)

    def feed(side: str) -> FeedForward:
        return FeedForward(settings.whole(f"{side}_ffn_dim", 4096), activation)

    heads = settings.whole("decoder_attention_heads", 16)
    look = SelfAttention(settings.whole("encoder_attention_heads|num_attention_heads", 16))
    look_back, over = SelfAttention(heads, Causal()), CrossAttention(heads)
    model = Model(
        width,
        Embed(Sinusoid(), settings.flag("scale_embedding", False), dropout),
        Stack(settings.depth("encoder_layers", 12) * ((look, feed("encoder")),), PostNorm(), dropout),
        Stack(settings.depth("decoder_layers", 12) * ((look_back, over, feed("decoder")),), PostNorm(), dropout),
        Vocabulary(tied, biased=not weights.zero("final_logits_bias")),
        shared=shared,
    )
    return Published(model, vocabulary if shared else target, None if shared else vocabulary)


def _configure(published: Published) -> dict[str, Any]:
    model: Any = published.model
    look, feed = model.encoder.layers[0]
    look_back, _, last = model.decoder.layers[0]
    source = published.source_vocabulary or published.vocabulary
    return {
        "architectures": ["MarianMTModel"],
        "vocab_size": source,
        "decoder_vocab_size": published.vocabulary,
        "share_encoder_decoder_embeddings": model.shared and published.source_vocabulary is None,
        "tie_word_embeddings": model.readout.tied,
        "d_model": model.width,
        "encoder_layers": len(model.encoder.layers),
        "decoder_layers": len(model.decoder.layers),
        "encoder_attention_heads": look.heads,
        "decoder_attention_heads": look_back.heads,
        "encoder_ffn_dim": feed.inner,
        "decoder_ffn_dim": last.inner,
        "activation_function": PUBLISHED[feed.activation],
        "scale_embedding": model.embed.scaled,
        "dropout": model.encoder.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "max_position_embeddings": 1024,
        "is_encoder_decoder": True,
    }


def _constant(published: Published) -> Mapping[str, Tensor]:
    readout: Any = published.model.readout
    return {} if readout.biased else {"final_logits_bias": torch.zeros(1, published.vocabulary)}


MARIAN = Family(
    "marian",
    ("MarianMTModel",),
    lambda model: APART if not model.shared else SHARED if _tied(model) else UNTIED,
    _describe,
    _configure,
    prefix="model.",
    outside=r"^(lm_head\.|final_logits_bias$)",
    # A shared table beside two others is what nobody reads.
    ignored=(r"^(en|de)coder\.embed_positions\.weight$", r"^final_logits_bias$", r"^shared\.weight$"),
    kept=("max_position_embeddings",),
    constant=_constant,
)
