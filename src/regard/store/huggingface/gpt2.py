"""GPT-2's published form."""

from __future__ import annotations

from typing import Any

from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PreNorm
from regard.layers.linear import LayerNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Learned
from regard.layers.scores import Dot
from regard.models.model import Model, Stack
from regard.models.readouts import Last, Vocabulary
from regard.store.huggingface.config import PUBLISHED, Family, Published, Settings, Weights, head, pooled_readout
from regard.store.huggingface.weights import TRANSPOSED, both, row

_LAYER = "decoder.wiring.layers.{}."

ROWS = (
    row("wte.weight|lm_head.weight", "embed.table.weight"),
    row("wpe.weight", "embed.position.weight"),
    *both("h.{}.ln_1", f"{_LAYER}self.norm"),
    *both("h.{}.attn.c_attn", f"{_LAYER}self.sublayer.query_key_value", TRANSPOSED),
    *both("h.{}.attn.c_proj", f"{_LAYER}self.sublayer.out", TRANSPOSED),
    *both("h.{}.ln_2", f"{_LAYER}feedforward.norm"),
    *both("h.{}.mlp.c_fc", f"{_LAYER}feedforward.sublayer.up", TRANSPOSED),
    *both("h.{}.mlp.c_proj", f"{_LAYER}feedforward.sublayer.down", TRANSPOSED),
    *both("ln_f", "decoder.closing"),
    row("lm_head.weight", "readout.words.weight"),
    row("score.weight", "readout.out.weight"),
)
TAGS = (*ROWS[:-1], *both("classifier", "readout.out"))
SPANS = (*ROWS[:-1], *both("qa_outputs", "readout.out"))


def _rows(model: Model) -> tuple[Any, ...]:
    return {"ForTokenClassification": TAGS, "ForQuestionAnswering": SPANS}.get(head(model, "")[0], ROWS)


def _describe(settings: Settings, weights: Weights, architecture: str) -> Published:
    width, depth = settings.whole("n_embd|hidden_size", 768), settings.depth("n_layer|num_hidden_layers", 12)
    heads, inner = settings.whole("n_head|num_attention_heads", 12), settings.whole("n_inner", 4 * width)
    longest = settings.whole("n_positions|max_position_embeddings", 1024)
    activation = settings.activation("activation_function", "gelu_new")
    scaled = settings.flag("scale_attn_weights", True)
    fading = settings.flag("scale_attn_by_inverse_layer_idx", False)
    dropout = settings.number("resid_pdrop", 0.1)
    tied = settings.flag("tie_word_embeddings", True) and weights.same("lm_head.weight", "wte.weight")
    # The second only says in what precision scores are computed.
    settings.leave("attn_pdrop", "reorder_and_upcast_attn")
    layers = tuple(
        (
            SelfAttention(heads, Causal(), Dot(scaled, 1 / (number + 1) if fading else 1.0)),
            FeedForward(inner, activation),
        )
        for number in range(depth)
    )
    kind = architecture.removeprefix("GPT2")
    said = pooled_readout(
        kind, settings, pool=Last(), inner=None, dropout=settings.number("classifier_dropout", 0.1), biased=False
    )
    model = Model(
        width,
        Embed(Learned(longest), dropout=settings.number("embd_pdrop", 0.1)),
        decoder=Stack(layers, PreNorm(LayerNorm(settings.epsilon("layer_norm_epsilon", 1e-5))), dropout),
        readout=said or Vocabulary(tied),
    )
    return Published(model, settings.whole("vocab_size", 50257))


def _configure(published: Published) -> dict[str, Any]:
    model: Any = published.model
    kind, labels = head(model, "LMHeadModel")
    look, feed = model.decoder.layers[0]
    deeper = getattr(model.decoder.layers[-1][0].score, "factor", 1.0)
    return {
        "architectures": [f"GPT2{kind}"],
        "vocab_size": published.vocabulary,
        "n_embd": model.width,
        "n_layer": len(model.decoder.layers),
        "n_head": look.heads,
        "n_inner": feed.inner,
        "n_positions": getattr(model.embed.position, "longest", 512),
        "activation_function": PUBLISHED[feed.activation],
        "layer_norm_epsilon": model.decoder.join.norm.epsilon,
        "scale_attn_weights": getattr(look.score, "scaled", True),
        "scale_attn_by_inverse_layer_idx": deeper != 1.0,
        "resid_pdrop": model.decoder.dropout,
        "embd_pdrop": model.embed.dropout,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": getattr(model.readout, "tied", True) or kind != "LMHeadModel",
        **labels,
    }


GPT2 = Family(
    "gpt2",
    (
        "GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification", "GPT2ForTokenClassification",
        "GPT2ForQuestionAnswering",
    ),
    _rows,
    _describe,
    _configure,
    prefix="transformer.",
    outside=r"^(lm_head|score|classifier|qa_outputs)\.",
    ignored=(r"^h\.\d+\.attn\.(masked_)?bias$",),
)  # fmt: skip
