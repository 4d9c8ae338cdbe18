"""Marian translation models in Hugging Face's format (the Transformer of Vaswani 2017): weight table and config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PostNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Sinusoid
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.store.generation_config import START
from regard.store.huggingface.config import ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.weights import Row, row, squeeze, weight_and_bias

_PRECISION = 4e-3  # of sinusoids in half precision
_NEVER = -1e9  # the logit of a token that is not generated
_TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
_BIAS, _POSITIONS = "final_logits_bias", "decoder.embed_positions.weight"


def stack_rows(side: str) -> tuple[Row, ...]:
    """The rows of an encoder or a decoder, which BART's family shares."""
    theirs = ours = f"{side}.layers.{{}}."
    attention, cross = f"{theirs}self_attn.", f"{theirs}encoder_attn."
    query_key_value = f"{attention}q_proj+{attention}k_proj+{attention}v_proj"
    return (
        *weight_and_bias(query_key_value, f"{ours}self.sublayer.query_key_value"),
        *weight_and_bias(f"{attention}out_proj", f"{ours}self.sublayer.out"),
        *weight_and_bias(f"{theirs}self_attn_layer_norm", f"{ours}self.norm"),
        *weight_and_bias(f"{cross}q_proj", f"{ours}cross.sublayer.query"),
        *weight_and_bias(f"{cross}k_proj+{cross}v_proj", f"{ours}cross.sublayer.key_value"),
        *weight_and_bias(f"{cross}out_proj", f"{ours}cross.sublayer.out"),
        *weight_and_bias(f"{theirs}encoder_attn_layer_norm", f"{ours}cross.norm"),
        *weight_and_bias(f"{theirs}fc1", f"{ours}feedforward.sublayer.up"),
        *weight_and_bias(f"{theirs}fc2", f"{ours}feedforward.sublayer.down"),
        *weight_and_bias(f"{theirs}final_layer_norm", f"{ours}feedforward.norm"),
    )


_STACKS = (
    *stack_rows("encoder"),
    *stack_rows("decoder"),
    row("lm_head.weight", "readout.lm_head.weight"),
    row("final_logits_bias", "readout.lm_head.bias", squeeze(0)),
)
_SHARED_ROWS = (
    row("shared.weight|decoder.embed_tokens.weight|encoder.embed_tokens.weight|lm_head.weight", "embed.table.weight"),
    *_STACKS,
)
# Where the readout has a matrix of its own, both embeddings are written, though they are equal.
_UNTIED_ROWS = (replace(_SHARED_ROWS[0], write_all_names=True), *_STACKS)
_SEPARATE_ROWS = (
    row("decoder.embed_tokens.weight|lm_head.weight", "embed.table.weight"),
    row("encoder.embed_tokens.weight", "source_embed.table.weight"),
    *_STACKS,
)


def rows_of(more: tuple[Row, ...], published: PublishedModel) -> tuple[Row, ...]:
    """The rows of embeddings, stacks and readout, and those that a family adds."""
    model = published.model
    rows = _SEPARATE_ROWS if not model.shared else _SHARED_ROWS if model.readout.tied else _UNTIED_ROWS
    return *rows, *more


def shares_embeddings(weights: PublishedWeights) -> bool:
    """Whether encoder and decoder have equal embeddings; untied ones are read separately, whatever is called shared."""
    names = [f"{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    return all(weights.equal_or_missing(name, "shared.weight") for name in names)


def _require_sinusoids(weights: PublishedWeights, width: int) -> None:
    """Refuse positions in the file that are not the sinusoids that the model computes, up to their precision."""
    for side in ("encoder", "decoder"):
        name = f"{side}.embed_positions.weight"
        shape = weights.shapes.get(name, ())
        if len(shape) == 2 and shape[1] == width and width % 2 == 0:
            expected = Sinusoid().build(width).table(torch.arange(shape[0]))
            if (weights.read(name) - expected).abs().max() > _PRECISION:
                raise InputError(f"{name} holds other positions than Marian's sinusoids; regard has only those. "
                                 "Leave it out of the weights if the model was trained with sinusoids.")  # fmt: skip


def _from_config(config: ConfigReader, weights: PublishedWeights, _architecture: str) -> PublishedModel:
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits"):
        config.assume(name, False)
    config.assume("static_position_embeddings", True)
    config.ignore(
        "attention_dropout", "activation_dropout", "classifier_dropout", "encoder_layerdrop", "decoder_layerdrop",
        "max_position_embeddings", "num_hidden_layers",
    )  # fmt: skip
    width, dropout = config.integer("d_model|hidden_size", 1024), config.number("dropout", 0.1)
    _require_sinusoids(weights, width)
    activation = config.activation("activation_function", "gelu")
    tying = config.boolean("tie_word_embeddings", True)
    shared = config.boolean("share_encoder_decoder_embeddings", True) and (tying or shares_embeddings(weights))
    vocabulary = config.integer("vocab_size", 58101)
    target_vocabulary = config.integer("decoder_vocab_size", vocabulary)
    embedding = "shared.weight" if shared else "decoder.embed_tokens.weight"
    tied = tying and weights.equal_or_missing("lm_head.weight", embedding)

    def feedforward(side: str) -> FeedForward:
        return FeedForward(config.integer(f"{side}_ffn_dim", 4096), activation)

    heads = config.integer("decoder_attention_heads", 16)
    source_attention = SelfAttention(config.integer("encoder_attention_heads|num_attention_heads", 16))
    encoder_layer = source_attention, feedforward("encoder")
    decoder_layer = SelfAttention(heads, Causal()), CrossAttention(heads), feedforward("decoder")
    model = Model(
        width,
        Embed(Sinusoid(), config.boolean("scale_embedding", False), dropout),
        Stack(config.depth("encoder_layers", 12) * (encoder_layer,), PostNorm(), dropout),
        Stack(config.depth("decoder_layers", 12) * (decoder_layer,), PostNorm(), dropout),
        Vocabulary(tied, biased=not weights.zero_or_missing("final_logits_bias")),
        shared=shared,
    )
    return PublishedModel(model, vocabulary if shared else target_vocabulary, None if shared else vocabulary)


def _to_config(published: PublishedModel) -> dict[str, Any]:
    model, encoder, decoder = published.model, published.encoder, published.decoder
    return {
        "architectures": ["MarianMTModel"],
        "vocab_size": published.source_vocabulary or published.vocabulary,
        "decoder_vocab_size": published.vocabulary,
        "share_encoder_decoder_embeddings": model.shared and published.source_vocabulary is None,
        "tie_word_embeddings": model.readout.tied,
        "d_model": model.width,
        "encoder_layers": encoder.depth,
        "decoder_layers": decoder.depth,
        "encoder_attention_heads": encoder.attention.heads,
        "decoder_attention_heads": decoder.attention.heads,
        "encoder_ffn_dim": encoder.feedforward.inner,
        "decoder_ffn_dim": decoder.feedforward.inner,
        "activation_function": encoder.activation,
        "scale_embedding": published.embed.scaled,
        "dropout": encoder.stack.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "max_position_embeddings": 1024,
        "is_encoder_decoder": True,
    }


MARIAN = Family(
    "marian",
    ("MarianMTModel",),
    partial(rows_of, ()),
    _from_config,
    _to_config,
    prefix="model.",
    unprefixed=r"^(lm_head\.|final_logits_bias$)",
    # A shared embedding beside two separate ones is never used.
    ignored=(r"^(en|de)coder\.embed_positions\.weight$", r"^final_logits_bias$", r"^shared\.weight$"),
    kept_settings=("max_position_embeddings",),
    zero_bias=lambda vocabulary: {"final_logits_bias": torch.zeros(1, vocabulary)},
)


def add_start_row(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Let the decoder start as Marian's does: with one more token, the last, whose embedding is zero.

    CTranslate2's converter of Marian models relies on both: it leaves the last token out and starts from zeros. What
    the embedding of our start token adds becomes part of the decoder's first position, so all answers stay the same.
    """
    start, size, width = config["decoder_start_token_id"], config["vocab_size"], config["d_model"]
    table = tensors.get("model.shared.weight", tensors.get("model.decoder.embed_tokens.weight"))
    assert table is not None
    positions = Sinusoid().build(width).table(torch.arange(config["max_position_embeddings"]))
    positions[0] += table[start] * (math.sqrt(width) if config["scale_embedding"] else 1.0)
    tensors[f"model.{_POSITIONS}"] = positions
    for name in tensors:
        if name.removeprefix("model.") in _TABLES:
            tensors[name] = torch.cat([tensors[name], torch.zeros(1, width)])
    tensors[_BIAS] = torch.cat([tensors[_BIAS], torch.full((1, 1), _NEVER)], dim=1)
    config |= {"vocab_size": size + 1, "decoder_vocab_size": size + 1, "decoder_start_token_id": size, START: start}


def without_start_row(config: Mapping[str, Any], weights: PublishedWeights) -> tuple[dict[str, Any], PublishedWeights]:
    """The inverse of `add_start_row`."""
    size, start = ConfigReader(config, "config.json").integer("vocab_size") - 1, config[START]
    known = {*_TABLES, _BIAS} & weights.shapes.keys()
    grown = {name for name in known if weights.shapes[name][name == _BIAS :][:1] == (size + 1,)}

    def read(name: str) -> Tensor:
        tensor = weights.read(name)
        return tensor if name not in grown else tensor[:, :size] if name == _BIAS else tensor[:size]

    shapes = {name: shape for name, shape in weights.shapes.items() if name != _POSITIONS}
    shapes |= {name: (1, size) if name == _BIAS else (size, *shapes[name][1:]) for name in grown}
    changed = {"vocab_size": size, "decoder_vocab_size": size, "decoder_start_token_id": start}
    return {**config, **changed}, PublishedWeights(shapes, read)
