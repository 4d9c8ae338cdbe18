"""T5 in Hugging Face's format, versions 1.0 and 1.1: weight table and config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PreNorm, RMSNorm
from regard.layers.patterns import Causal
from regard.layers.positions import RelativeBias
from regard.layers.scores import Dot
from regard.models.model import Model, Stack
from regard.models.readouts import Mean, Vector, Vocabulary
from regard.store.huggingface.config import ACTIVATIONS, ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.weights import Row, row


def _stack(side: str, feedforward: int) -> tuple[Row, ...]:
    """The rows of a stack; `feedforward` is the index of that sublayer in a layer."""
    theirs, ours = f"{side}.block.{{}}.layer.", f"{side}.layers.{{}}."
    attention, dense = f"{theirs}0.SelfAttention.", f"{theirs}{feedforward}.DenseReluDense."
    query_key_value = f"{attention}q.weight+{attention}k.weight+{attention}v.weight"
    return (
        row(query_key_value, f"{ours}self.sublayer.query_key_value.weight"),
        row(f"{attention}o.weight", f"{ours}self.sublayer.out.weight"),
        row(f"{theirs}0.layer_norm.weight", f"{ours}self.norm.weight"),
        row(f"{dense}wi_0.weight", f"{ours}feedforward.sublayer.gate.weight"),
        row(f"{dense}wo.weight", f"{ours}feedforward.sublayer.down.weight"),
        row(f"{theirs}{feedforward}.layer_norm.weight", f"{ours}feedforward.norm.weight"),
        row(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{side}.position.table.weight"),
        row(f"{side}.final_layer_norm.weight", f"{side}.final_norm.weight"),
    )


_GATED_GELU = {"gelu_new": "gelu", "gelu": "gelu_python"}
_THEIR_CROSS, _OUR_CROSS = "decoder.block.{}.layer.1.EncDecAttention.", "decoder.layers.{}.cross."

ROWS = (
    row("shared.weight|encoder.embed_tokens.weight|decoder.embed_tokens.weight|lm_head.weight", "embed.table.weight"),
    *_stack("encoder", 1),
    *_stack("decoder", 2),
    row(f"{_THEIR_CROSS}q.weight", f"{_OUR_CROSS}sublayer.query.weight"),
    row(f"{_THEIR_CROSS}k.weight+{_THEIR_CROSS}v.weight", f"{_OUR_CROSS}sublayer.key_value.weight"),
    row(f"{_THEIR_CROSS}o.weight", f"{_OUR_CROSS}sublayer.out.weight"),
    row("decoder.block.{}.layer.1.layer_norm.weight", f"{_OUR_CROSS}norm.weight"),
    row("lm_head.weight", "readout.lm_head.weight"),
)


def _rows(published: PublishedModel) -> tuple[Row, ...]:
    name = "wi_1" if published.encoder.feedforward.gated else "wi"
    up = (
        row(f"{side}.block.{{}}.layer.{index}.DenseReluDense.{name}.weight",
            f"{side}.layers.{{}}.feedforward.sublayer.up.weight")
        for side, index in (("encoder", 1), ("decoder", 2))
    )  # fmt: skip
    return *ROWS, *up


def _feedforward(config: ConfigReader, default: str) -> tuple[Activation, bool]:
    """The activation and whether it is gated: what `dense_act_fn` and `is_gated_act` say, or `feed_forward_proj`."""
    projection = config.string("feed_forward_proj", default)
    gate, _, name = projection.rpartition("-")
    if gate not in ("", "gated") or name not in ACTIVATIONS:
        config.refuse("feed_forward_proj", projection)
    usual = "gelu_new" if projection == "gated-gelu" else name if name in ACTIVATIONS else "relu"
    return config.activation("dense_act_fn", usual), config.boolean("is_gated_act", gate == "gated")


def _from_config(config: ConfigReader, weights: PublishedWeights, architecture: str) -> PublishedModel:
    width, depth = config.integer("d_model|hidden_size", 512), config.depth("num_layers|num_hidden_layers", 6)
    heads, key_width = config.integer("num_heads|num_attention_heads", 8), config.integer("d_kv|head_dim", 64)
    dropout = config.number("dropout_rate", 0.1)
    multilingual = config.values.get("model_type") == "mt5"
    activation, gated = _feedforward(config, "gated-gelu" if multilingual else "relu")
    config.ignore("classifier_dropout")
    position = RelativeBias(
        config.integer("relative_attention_num_buckets", 32, least=4),
        config.integer("relative_attention_max_distance", 128),
    )
    tied = weights.equal_or_missing("lm_head.weight", "shared.weight")
    # T5 1.1 says that its embeddings are not tied where it means that outputs are not scaled; mT5 never scales them.
    scaled = config.boolean("tie_word_embeddings", True)
    scaled = config.boolean("scale_decoder_outputs", scaled) and not multilingual
    score, join = Dot(scaled=False), PreNorm(RMSNorm(config.epsilon("layer_norm_epsilon", 1e-6)))
    attention = SelfAttention(heads, score=score, key_width=key_width, biased=False)
    cross = CrossAttention(heads, score=score, key_width=key_width, biased=False)
    inner = config.integer("d_ff", 2048)
    feedforward = FeedForward(inner, activation, gated, biased=False, dropout=dropout)
    decoder_depth = config.depth("num_decoder_layers", depth)
    encoder = Stack(depth * ((attention, feedforward),), join, dropout, position)
    embed = Embed(dropout=dropout, init_std=1.0)
    vocabulary = config.integer("vocab_size", 32128)
    if architecture == "T5EncoderModel":
        return PublishedModel(Model(width, embed, encoder, readout=Vector(Mean(), None, normalised=False)), vocabulary)
    layer = replace(attention, pattern=Causal()), cross, feedforward
    decoder = Stack(decoder_depth * (layer,), join, dropout, position)
    return PublishedModel(Model(width, embed, encoder, decoder, Vocabulary(tied, scaled=scaled)), vocabulary)


def _to_config(published: PublishedModel) -> dict[str, Any]:
    encoder, attention, feedforward = published.encoder, published.encoder.attention, published.encoder.feedforward
    position, readout, decoder = encoder.stack.position, published.model.readout, published.model.decoder
    if not isinstance(position, RelativeBias):
        raise TypeError("not a relative position bias")
    activation = encoder.activation
    if feedforward.gated:
        # The name "gated-gelu" means the approximation by tanh.
        activation = f"gated-{_GATED_GELU.get(activation, activation)}"
    scaled = readout.scaled if isinstance(readout, Vocabulary) else True
    return {
        "architectures": ["T5ForConditionalGeneration" if decoder else "T5EncoderModel"],
        "vocab_size": published.vocabulary,
        "d_model": published.model.width,
        "num_layers": encoder.depth,
        "num_decoder_layers": len((decoder or encoder.stack).layers),
        "num_heads": attention.heads,
        "d_kv": attention.key_width or published.model.width // attention.heads,
        "d_ff": feedforward.inner,
        "feed_forward_proj": activation,
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": position.max_distance,
        "layer_norm_epsilon": encoder.epsilon,
        "dropout_rate": encoder.stack.dropout,
        "scale_decoder_outputs": scaled,
        "tie_word_embeddings": scaled,
        "is_encoder_decoder": decoder is not None,
    }


T5 = Family(
    "t5",
    ("T5ForConditionalGeneration", "T5EncoderModel", "T5WithLMHeadModel"),
    _rows,
    _from_config,
    _to_config,
    aliases={"mt5": ("MT5", "T5")},
    # The first files hold a relative bias for cross-attention, which was never used.
    ignored=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
)
