"""BART, mBART and M2M100 (NLLB too) in Hugging Face's format: weight table and configs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import LayerNorm, PostNorm, PreNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Learned, Position, Sinusoid
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.store.huggingface.config import ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.marian import rows_of, shares_embeddings
from regard.store.huggingface.weights import drop_rows, row, weight_and_bias

_UNUSED = 2  # rows of position tables that no token uses

ROWS = (
    row("encoder.embed_positions.weight", "source_embed.position.weight", drop_rows(_UNUSED)),
    row("decoder.embed_positions.weight", "embed.position.weight", drop_rows(_UNUSED)),
    *weight_and_bias("encoder.layernorm_embedding", "source_embed.norm"),
    *weight_and_bias("decoder.layernorm_embedding", "embed.norm"),
    *weight_and_bias("encoder.layer_norm", "encoder.final_norm"),
    *weight_and_bias("decoder.layer_norm", "decoder.final_norm"),
)


@dataclass(frozen=True)
class _Kind:
    """What tells the three families apart."""

    name: str
    join: PostNorm | PreNorm
    learned: bool  # positions; sinusoids if not
    activation: str
    scaled: bool
    vocabulary: int


_BART = _Kind("Bart", PostNorm(), learned=True, activation="gelu", scaled=False, vocabulary=50265)
_MBART = _Kind("MBart", PreNorm(), learned=True, activation="gelu", scaled=False, vocabulary=50265)
_M2M100 = _Kind("M2M100", PreNorm(), learned=False, activation="relu", scaled=True, vocabulary=128112)


def _sinusoid(width: int, pad: int) -> Sinusoid:
    """M2M100's sinusoids, as in tensor2tensor: the last of the width / 2 wavelengths is 10,000 * 2 pi.

    Positions are counted from the id of the padding token on.
    """
    half = width // 2
    if half < 2:
        raise InputError(f"d_model = {width} is too narrow for the sinusoids of M2M100.")
    return Sinusoid(10_000 ** (half / (half - 1)), first=pad + 1)


def _from_config(
    kind: _Kind, config: ConfigReader, weights: PublishedWeights, _architecture: str
) -> PublishedModel:  # fmt: skip
    pre_norm = isinstance(kind.join, PreNorm)
    config.assume("normalize_before", pre_norm)
    config.assume("add_final_layer_norm", pre_norm)
    config.assume("normalize_embedding", kind.learned)
    config.assume("static_position_embeddings", not kind.learned)
    config.assume("add_bias_logits", False)
    config.ignore(
        "attention_dropout", "activation_dropout", "classifier_dropout", "encoder_layerdrop", "decoder_layerdrop",
        "num_hidden_layers",
    )  # fmt: skip
    width, dropout = config.integer("d_model|hidden_size", 1024), config.number("dropout", 0.1)
    max_positions = config.integer("max_position_embeddings", 1024)
    position: Position = (
        Learned(max_positions) if kind.learned else _sinusoid(width, config.integer("pad_token_id", 1, least=0))
    )
    activation = config.activation("activation_function", kind.activation)
    tying = config.boolean("tie_word_embeddings", True)
    shared = tying or shares_embeddings(weights)
    tied = tying and weights.equal_or_missing("lm_head.weight", "shared.weight")
    heads = config.integer("decoder_attention_heads", 16)
    source_attention = SelfAttention(config.integer("encoder_attention_heads|num_attention_heads", 16))
    encoder_layer = source_attention, FeedForward(config.integer("encoder_ffn_dim", 4096), activation)
    feedforward = FeedForward(config.integer("decoder_ffn_dim", 4096), activation)
    decoder_layer = SelfAttention(heads, Causal()), CrossAttention(heads), feedforward
    norm = LayerNorm() if kind.learned else None
    model = Model(
        width,
        Embed(position, config.boolean("scale_embedding", kind.scaled), dropout, norm=norm),
        Stack(config.depth("encoder_layers", 12) * (encoder_layer,), kind.join, dropout),
        Stack(config.depth("decoder_layers", 12) * (decoder_layer,), kind.join, dropout),
        Vocabulary(tied, biased=not weights.zero_or_missing("final_logits_bias")),
        shared=shared,
    )
    return PublishedModel(model, config.integer("vocab_size", kind.vocabulary))


def _to_config(kind: _Kind, published: PublishedModel) -> dict[str, Any]:
    model, encoder, decoder = published.model, published.encoder, published.decoder
    if published.source_vocabulary is not None:
        raise TypeError("not one vocabulary")
    return {
        "architectures": [f"{kind.name}ForConditionalGeneration"],
        "vocab_size": published.vocabulary,
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
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "max_position_embeddings": published.max_positions(1024),
        "is_encoder_decoder": True,
        **({"pad_token_id": position.first - 1} if isinstance(position := published.embed.position, Sinusoid) else {}),
    }


def _family(kind: _Kind, name: str) -> Family:
    return Family(
        name,
        (f"{kind.name}ForConditionalGeneration", f"{kind.name}Model"),
        partial(rows_of, ROWS),
        partial(_from_config, kind),
        partial(_to_config, kind),
        prefix="model.",
        unprefixed=r"^(lm_head\.|final_logits_bias$)",
        ignored=(
            r"^(en|de)coder\.version$", r"^final_logits_bias$", r"^shared\.weight$",
            *(() if kind.learned else (r"^(en|de)coder\.embed_positions\.weights?$",)),
        ),
        kept_settings=() if kind.learned else ("max_position_embeddings",),
        zero_bias=lambda vocabulary: {"final_logits_bias": torch.zeros(1, vocabulary)} if kind.learned else {},
    )  # fmt: skip


BART = _family(_BART, "bart")
MBART = _family(_MBART, "mbart")
M2M100 = _family(_M2M100, "m2m_100")
