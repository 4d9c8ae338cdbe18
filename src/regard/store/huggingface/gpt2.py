"""GPT-2 in Hugging Face's format: weight table and config."""

from __future__ import annotations

from typing import Any

from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import LayerNorm, PreNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Learned
from regard.layers.scores import Dot
from regard.models.model import Model, Stack
from regard.models.readouts import Last, Vocabulary
from regard.store.huggingface.config import ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.weights import TRANSPOSED, Row, row, weight_and_bias

_LAYER = "decoder.layers.{}."

ROWS = (
    row("wte.weight|lm_head.weight", "embed.table.weight"),
    row("wpe.weight", "embed.position.weight"),
    *weight_and_bias("h.{}.ln_1", f"{_LAYER}self.norm"),
    *weight_and_bias("h.{}.attn.c_attn", f"{_LAYER}self.sublayer.query_key_value", TRANSPOSED),
    *weight_and_bias("h.{}.attn.c_proj", f"{_LAYER}self.sublayer.out", TRANSPOSED),
    *weight_and_bias("h.{}.ln_2", f"{_LAYER}feedforward.norm"),
    *weight_and_bias("h.{}.mlp.c_fc", f"{_LAYER}feedforward.sublayer.up", TRANSPOSED),
    *weight_and_bias("h.{}.mlp.c_proj", f"{_LAYER}feedforward.sublayer.down", TRANSPOSED),
    *weight_and_bias("ln_f", "decoder.final_norm"),
    row("lm_head.weight", "readout.lm_head.weight"),
    row("score.weight", "readout.out.weight"),
)
_TAG_ROWS = (*ROWS[:-1], *weight_and_bias("classifier", "readout.out"))
_SPAN_ROWS = (*ROWS[:-1], *weight_and_bias("qa_outputs", "readout.out"))


def _rows(published: PublishedModel) -> tuple[Row, ...]:
    return {"ForTokenClassification": _TAG_ROWS, "ForQuestionAnswering": _SPAN_ROWS}.get(published.head()[0], ROWS)


def _from_config(config: ConfigReader, weights: PublishedWeights, architecture: str) -> PublishedModel:
    width, depth = config.integer("n_embd|hidden_size", 768), config.depth("n_layer|num_hidden_layers", 12)
    heads, inner = config.integer("n_head|num_attention_heads", 12), config.integer("n_inner", 4 * width)
    max_positions = config.integer("n_positions|max_position_embeddings", 1024)
    activation = config.activation("activation_function", "gelu_new")
    scaled = config.boolean("scale_attn_weights", True)
    scaled_by_layer = config.boolean("scale_attn_by_inverse_layer_idx", False)
    dropout = config.number("resid_pdrop", 0.1)
    tied = config.boolean("tie_word_embeddings", True) and weights.equal_or_missing("lm_head.weight", "wte.weight")
    # The second only chooses the precision in which scores are computed.
    config.ignore("attn_pdrop", "reorder_and_upcast_attn")
    factors = [1 / (index + 1) if scaled_by_layer else 1.0 for index in range(depth)]
    feedforward = FeedForward(inner, activation)
    layers = tuple((SelfAttention(heads, Causal(), Dot(scaled, factor)), feedforward) for factor in factors)
    head, head_dropout = architecture.removeprefix("GPT2"), config.number("classifier_dropout", 0.1)
    readout = config.classification_readout(head, pool=Last(), inner=None, dropout=head_dropout, biased=False)
    embed = Embed(Learned(max_positions), dropout=config.number("embd_pdrop", 0.1))
    decoder = Stack(layers, PreNorm(LayerNorm(config.epsilon("layer_norm_epsilon", 1e-5))), dropout)
    model = Model(width, embed, decoder=decoder, readout=readout or Vocabulary(tied))
    return PublishedModel(model, config.integer("vocab_size", 50257))


def _to_config(published: PublishedModel) -> dict[str, Any]:
    head, labels = published.head("LMHeadModel")
    decoder = published.decoder
    scores = [layer[0].score for layer in decoder.stack.layers if isinstance(layer[0], SelfAttention)]
    scales = [(score.scaled, score.factor) for score in scores if isinstance(score, Dot)] or [(True, 1.0)]
    return {
        "architectures": [f"GPT2{head}"],
        "vocab_size": published.vocabulary,
        "n_embd": published.model.width,
        "n_layer": decoder.depth,
        "n_head": decoder.attention.heads,
        "n_inner": decoder.feedforward.inner,
        "n_positions": published.max_positions(),
        "activation_function": decoder.activation,
        "layer_norm_epsilon": decoder.epsilon,
        "scale_attn_weights": scales[0][0],
        "scale_attn_by_inverse_layer_idx": scales[-1][1] != 1.0,
        "resid_pdrop": decoder.stack.dropout,
        "embd_pdrop": published.embed.dropout,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": published.tied,
        **labels,
    }


GPT2 = Family(
    "gpt2",
    (
        "GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification", "GPT2ForTokenClassification",
        "GPT2ForQuestionAnswering",
    ),
    _rows,
    _from_config,
    _to_config,
    prefix="transformer.",
    unprefixed=r"^(lm_head|score|classifier|qa_outputs)\.",
    ignored=(r"^h\.\d+\.attn\.(masked_)?bias$",),
)  # fmt: skip
