"""T5's published form, in both its versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PreNorm
from regard.layers.linear import RMSNorm
from regard.layers.patterns import Causal
from regard.layers.positions import RelativeBias
from regard.layers.scores import Dot
from regard.models.model import Model, Stack
from regard.models.readouts import Mean, Vector, Vocabulary
from regard.store.huggingface.config import ACTIVATIONS, PUBLISHED, Family, Published, Settings, Weights
from regard.store.huggingface.weights import Row, row


def _stack(side: str, feed: int) -> tuple[Row, ...]:
    """The rows of a stack; its feed-forward is the sublayer of this number."""
    theirs, ours = f"{side}.block.{{}}.layer.", f"{side}.wiring.layers.{{}}."
    look, dense = f"{theirs}0.SelfAttention.", f"{theirs}{feed}.DenseReluDense."
    return (
        row(f"{look}q.weight+{look}k.weight+{look}v.weight", f"{ours}self.sublayer.query_key_value.weight"),
        row(f"{look}o.weight", f"{ours}self.sublayer.out.weight"),
        row(f"{theirs}0.layer_norm.weight", f"{ours}self.norm.weight"),
        row(f"{dense}wi_0.weight", f"{ours}feedforward.sublayer.gate.weight"),
        row(f"{dense}wo.weight", f"{ours}feedforward.sublayer.down.weight"),
        row(f"{theirs}{feed}.layer_norm.weight", f"{ours}feedforward.norm.weight"),
        row(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{side}.bias.table.weight"),
        row(f"{side}.final_layer_norm.weight", f"{side}.closing.weight"),
    )


_OVER, _CROSS = "decoder.block.{}.layer.1.EncDecAttention.", "decoder.wiring.layers.{}.cross."


ROWS = (
    row(
        "shared.weight|encoder.embed_tokens.weight|decoder.embed_tokens.weight|lm_head.weight",
        "embed.table.weight",
    ),
    *_stack("encoder", 1),
    *_stack("decoder", 2),
    row(f"{_OVER}q.weight", f"{_CROSS}sublayer.query.weight"),
    row(f"{_OVER}k.weight+{_OVER}v.weight", f"{_CROSS}sublayer.key_value.weight"),
    row(f"{_OVER}o.weight", f"{_CROSS}sublayer.out.weight"),
    row("decoder.block.{}.layer.1.layer_norm.weight", f"{_CROSS}norm.weight"),
    row("lm_head.weight", "readout.words.weight"),
)


def _up(name: str) -> tuple[Row, ...]:
    return tuple(
        row(f"{side}.block.{{}}.layer.{number}.DenseReluDense.{name}.weight",
            f"{side}.wiring.layers.{{}}.feedforward.sublayer.up.weight")
        for side, number in (("encoder", 1), ("decoder", 2))
    )  # fmt: skip


PLAIN, GATED = (*ROWS, *_up("wi")), (*ROWS, *_up("wi_1"))


def _rows(model: Model) -> tuple[Row, ...]:
    layers: Any = model.encoder.layers if model.encoder else ()
    return GATED if any(layer[-1].gated for layer in layers) else PLAIN


def _describe(settings: Settings, weights: Weights, architecture: str) -> Published:
    width, depth = settings.whole("d_model|hidden_size", 512), settings.depth("num_layers|num_hidden_layers", 6)
    heads, key_width = settings.whole("num_heads|num_attention_heads", 8), settings.whole("d_kv|head_dim", 64)
    dropout = settings.number("dropout_rate", 0.1)
    gate, _, kind = settings.word("feed_forward_proj", "relu").rpartition("-")
    if gate not in ("", "gated") or kind not in ACTIVATIONS:
        settings.refuse("feed_forward_proj", settings.config["feed_forward_proj"])
    activation: Activation = "gelu_tanh" if (gate, kind) == ("gated", "gelu") else ACTIVATIONS.get(kind, "relu")
    settings.leave("dense_act_fn", "is_gated_act", "classifier_dropout")
    bias = RelativeBias(
        settings.whole("relative_attention_num_buckets", 32, least=4),
        settings.whole("relative_attention_max_distance", 128),
    )
    untied = not weights.same("lm_head.weight", "shared.weight")
    scaled = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", True))
    score, join = Dot(scaled=False), PreNorm(RMSNorm(settings.epsilon("layer_norm_epsilon", 1e-6)))
    look = SelfAttention(heads, score=score, key_width=key_width, biased=False)
    over = CrossAttention(heads, score=score, key_width=key_width, biased=False)
    feed = FeedForward(settings.whole("d_ff", 2048), activation, gate == "gated", biased=False, dropout=dropout)
    decoder_depth = settings.depth("num_decoder_layers", depth)
    encoder = Stack(depth * ((look, feed),), join, dropout, bias)
    embed = Embed(dropout=dropout, spread=1.0)
    vocabulary = settings.whole("vocab_size", 32128)
    if architecture == "T5EncoderModel":
        return Published(Model(width, embed, encoder, readout=Vector(Mean(), None, normalised=False)), vocabulary)
    decoder = Stack(decoder_depth * ((replace(look, pattern=Causal()), over, feed),), join, dropout, bias)
    return Published(Model(width, embed, encoder, decoder, Vocabulary(not untied, scaled=scaled)), vocabulary)


def _configure(published: Published) -> dict[str, Any]:
    model: Any = published.model
    look, feed = model.encoder.layers[0]
    whole = model.decoder is not None
    kind = PUBLISHED[feed.activation]
    said = f"gated-{'gelu' if kind == 'gelu_new' else kind}" if feed.gated else kind
    return {
        "architectures": ["T5ForConditionalGeneration" if whole else "T5EncoderModel"],
        "vocab_size": published.vocabulary,
        "d_model": model.width,
        "num_layers": len(model.encoder.layers),
        "num_decoder_layers": len(model.decoder.layers if whole else model.encoder.layers),
        "num_heads": look.heads,
        "d_kv": look.key_width or model.width // look.heads,
        "d_ff": feed.inner,
        "feed_forward_proj": said,
        "relative_attention_num_buckets": model.encoder.bias.buckets,
        "relative_attention_max_distance": model.encoder.bias.furthest,
        "layer_norm_epsilon": model.encoder.join.norm.epsilon,
        "dropout_rate": model.encoder.dropout,
        "scale_decoder_outputs": getattr(model.readout, "scaled", True),
        "tie_word_embeddings": getattr(model.readout, "scaled", True),
        "is_encoder_decoder": whole,
    }


T5 = Family(
    "t5",
    ("T5ForConditionalGeneration", "T5EncoderModel", "T5WithLMHeadModel"),
    _rows,
    _describe,
    _configure,
    # The first files hold a bias for distances to the source, which was never read.
    ignored=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
)
