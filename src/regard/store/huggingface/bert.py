"""The published forms of BERT, RoBERTa and DistilBERT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PostNorm
from regard.layers.linear import LayerNorm
from regard.layers.positions import Learned
from regard.models.model import Model, Stack
from regard.models.readouts import NEXT_SENTENCE, First, Label, Mean, Transform, Vector, Vocabulary
from regard.store.huggingface.config import PUBLISHED, Family, Published, Settings, Weights, head, pooled_readout
from regard.store.huggingface.weights import Row, both, cut, row

_OURS = "encoder.wiring.layers.{}."
_LAYER = "encoder.layer.{}."

_EMBED = (
    row("embeddings.token_type_embeddings.weight", "embed.segments.weight"),
    *both("embeddings.LayerNorm", "embed.norm"),
)
_LAYERS = (
    *both(
        f"{_LAYER}attention.self.query+{_LAYER}attention.self.key+{_LAYER}attention.self.value",
        f"{_OURS}self.sublayer.query_key_value",
    ),
    *both(f"{_LAYER}attention.output.dense", f"{_OURS}self.sublayer.out"),
    *both(f"{_LAYER}attention.output.LayerNorm", f"{_OURS}self.norm"),
    *both(f"{_LAYER}intermediate.dense", f"{_OURS}feedforward.sublayer.up"),
    *both(f"{_LAYER}output.dense", f"{_OURS}feedforward.sublayer.down"),
    *both(f"{_LAYER}output.LayerNorm", f"{_OURS}feedforward.norm"),
)
BERT_ROWS = (
    row("embeddings.word_embeddings.weight|cls.predictions.decoder.weight", "embed.table.weight"),
    row("embeddings.position_embeddings.weight", "embed.position.weight"),
    *_EMBED,
    *_LAYERS,
    *both("cls.predictions.transform.dense", "readout.transform.dense"),
    *both("cls.predictions.transform.LayerNorm", "readout.transform.norm"),
    row("cls.predictions.decoder.weight", "readout.words.weight"),
    row("cls.predictions.bias|cls.predictions.decoder.bias", "readout.words.bias"),
    *both("pooler.dense", "readout.inner"),
    *both("pooler.dense", "aside.inner"),
    *both("cls.seq_relationship", "aside.out"),
)
ROBERTA_ROWS = (
    row("embeddings.word_embeddings.weight|lm_head.decoder.weight", "embed.table.weight"),
    row("embeddings.position_embeddings.weight", "embed.position.weight", cut(2)),
    *_EMBED,
    *_LAYERS,
    *both("lm_head.dense", "readout.transform.dense"),
    *both("lm_head.layer_norm", "readout.transform.norm"),
    row("lm_head.decoder.weight", "readout.words.weight"),
    row("lm_head.bias|lm_head.decoder.bias", "readout.words.bias"),
)
_DISTILLED = "transformer.layer.{}."
DISTILBERT_ROWS = (
    row("embeddings.word_embeddings.weight|vocab_projector.weight", "embed.table.weight"),
    row("embeddings.position_embeddings.weight", "embed.position.weight"),
    *both("embeddings.LayerNorm", "embed.norm"),
    *both(
        f"{_DISTILLED}attention.q_lin+{_DISTILLED}attention.k_lin+{_DISTILLED}attention.v_lin",
        f"{_OURS}self.sublayer.query_key_value",
    ),
    *both(f"{_DISTILLED}attention.out_lin", f"{_OURS}self.sublayer.out"),
    *both(f"{_DISTILLED}sa_layer_norm", f"{_OURS}self.norm"),
    *both(f"{_DISTILLED}ffn.lin1", f"{_OURS}feedforward.sublayer.up"),
    *both(f"{_DISTILLED}ffn.lin2", f"{_OURS}feedforward.sublayer.down"),
    *both(f"{_DISTILLED}output_layer_norm", f"{_OURS}feedforward.norm"),
    *both("vocab_transform", "readout.transform.dense"),
    *both("vocab_layer_norm", "readout.transform.norm"),
    row("vocab_projector.weight", "readout.words.weight"),
    row("vocab_projector.bias", "readout.words.bias"),
    *both("pre_classifier", "readout.inner"),
)
# The readout's last map by architecture; BERT's pooler stands in its own row.
_CLASSES = {
    "ForSequenceClassification": both("classifier", "readout.out"),
    "ForTokenClassification": both("classifier", "readout.out"),
    "ForQuestionAnswering": both("qa_outputs", "readout.out"),
    "ForNextSentencePrediction": both("cls.seq_relationship", "readout.out"),
}
_ROBERTA_CLASSES = _CLASSES | {
    "ForSequenceClassification": (
        *both("classifier.dense", "readout.inner"), *both("classifier.out_proj", "readout.out"),
    ),
    "Model": both("pooler.dense", "readout.inner"),
}  # fmt: skip


def _rows(rows: tuple[Row, ...], classes: Mapping[str, tuple[Row, ...]], model: Model) -> tuple[Row, ...]:
    chosen = *rows, *classes.get(head(model, "")[0], ())
    match model.readout:
        case Vocabulary(tied=False):
            # Beside a table of its own, the bias that counts is the table's.
            return tuple(
                replace(one, theirs=one.theirs[::-1], repeated=True, loose=True)
                if one.ours == "readout.words.bias"
                else one
                for one in chosen
            )
    return chosen


def _encoder(
    settings: Settings, shape: tuple[int, int, int, int], *, activation: Activation, epsilon: float, longest: int,
    segments: int, dropouts: tuple[str, str],
) -> Model:  # fmt: skip
    """The stack that all three have."""
    width, depth, heads, inner = shape
    dropout = settings.number(dropouts[0], 0.1)
    settings.leave(dropouts[1])
    layer = SelfAttention(heads), FeedForward(inner, activation)
    return Model(
        width,
        Embed(Learned(longest), dropout=dropout, segments=segments, norm=LayerNorm(epsilon)),
        encoder=Stack(depth * (layer,), PostNorm(LayerNorm(epsilon)), dropout),
    )


def _read_out(
    base: Model, settings: Settings, weights: Weights, kind: str, *, table: str, transform: Transform,
    inner: Activation, dropout: float,
) -> Model:  # fmt: skip
    """The encoder with what an architecture says."""
    tied = settings.flag("tie_word_embeddings", True) and weights.same(table, "embeddings.word_embeddings.weight")
    said = pooled_readout(kind, settings, pool=First(), inner=inner, dropout=dropout)
    auxiliary = None
    if kind in ("ForPreTraining", "ForMaskedLM"):
        said = Vocabulary(tied, True, transform)
        # Files of the first BERTs hold both heads, whatever their config.json says.
        if "cls.seq_relationship.weight" in weights.shapes:
            auxiliary = Label(NEXT_SENTENCE, dropout=dropout)
    if said is None:
        pooled = "pooler.dense.weight" in weights.shapes
        said = Vector(First(), "tanh", normalised=False) if pooled else Vector(Mean(), None, normalised=False)
    return Model(base.width, base.embed, base.encoder, readout=said, auxiliary=auxiliary)


def _bert(settings: Settings, weights: Weights, architecture: str, *, roberta: bool = False) -> Published:
    settings.assume("position_embedding_type", "absolute")
    activation, epsilon = settings.activation("hidden_act", "gelu"), settings.epsilon("layer_norm_eps", 1e-12)
    longest = settings.whole("max_position_embeddings", 512, least=3)
    if roberta:
        settings.assume("pad_token_id", 1)
    hidden = settings.whole("hidden_size", 768)
    base = _encoder(
        settings,
        (hidden, settings.depth("num_hidden_layers", 12), settings.whole("num_attention_heads", 12),
         settings.whole("intermediate_size", 3072)),
        activation=activation,
        epsilon=epsilon,
        longest=longest - 2 if roberta else longest,
        segments=settings.whole("type_vocab_size", 2),
        dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    )  # fmt: skip
    model = _read_out(
        base,
        settings,
        weights,
        architecture.removeprefix("Roberta" if roberta else "Bert"),
        table="lm_head.decoder.weight" if roberta else "cls.predictions.decoder.weight",
        transform=Transform("gelu" if roberta else activation, LayerNorm(epsilon)),
        inner="tanh",
        dropout=settings.number("classifier_dropout", 0.1),
    )
    return Published(model, settings.whole("vocab_size", 50265 if roberta else 30522))


def _distilbert(settings: Settings, weights: Weights, architecture: str) -> Published:
    activation = settings.activation("activation", "gelu")
    base = _encoder(
        settings,
        (settings.whole("dim|hidden_size", 768), settings.depth("n_layers|num_hidden_layers", 6),
         settings.whole("n_heads|num_attention_heads", 12), settings.whole("hidden_dim", 3072)),
        activation=activation,
        epsilon=1e-12,
        longest=settings.whole("max_position_embeddings", 512),
        segments=0,
        dropouts=("dropout", "attention_dropout"),
    )  # fmt: skip
    settings.leave("qa_dropout")
    model = _read_out(
        base,
        settings,
        weights,
        architecture.removeprefix("DistilBert"),
        table="vocab_projector.weight",
        transform=Transform(activation, LayerNorm(1e-12)),
        inner="relu",
        dropout=settings.number("seq_classif_dropout", 0.2),
    )
    return Published(model, settings.whole("vocab_size", 30522))


def _configure(published: Published, *, name: str = "Bert") -> dict[str, Any]:
    model: Any = published.model
    kind, labels = head(model, "ForMaskedLM")
    look, feed = model.encoder.layers[0]
    roberta = name == "Roberta"
    return {
        "architectures": [f"{name}{kind}"],
        "vocab_size": published.vocabulary,
        "hidden_size": model.width,
        "num_hidden_layers": len(model.encoder.layers),
        "num_attention_heads": look.heads,
        "intermediate_size": feed.inner,
        "max_position_embeddings": getattr(model.embed.position, "longest", 512) + (2 if roberta else 0),
        "type_vocab_size": model.embed.segments,
        "hidden_act": PUBLISHED[feed.activation],
        "layer_norm_eps": model.encoder.join.norm.epsilon,
        "hidden_dropout_prob": model.encoder.dropout,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": getattr(model.readout, "dropout", model.encoder.dropout),
        "tie_word_embeddings": getattr(model.readout, "tied", True) or not isinstance(model.readout, Vocabulary),
        **({"pad_token_id": 1} if roberta else {}),
        **labels,
    }


def _configure_distilbert(published: Published) -> dict[str, Any]:
    model: Any = published.model
    kind, labels = head(model, "ForMaskedLM")
    look, feed = model.encoder.layers[0]
    return {
        "architectures": [f"DistilBert{kind}"],
        "vocab_size": published.vocabulary,
        "dim": model.width,
        "n_layers": len(model.encoder.layers),
        "n_heads": look.heads,
        "hidden_dim": feed.inner,
        "max_position_embeddings": getattr(model.embed.position, "longest", 512),
        "activation": PUBLISHED[feed.activation],
        "dropout": model.encoder.dropout,
        "attention_dropout": 0.0,
        "seq_classif_dropout": getattr(model.readout, "dropout", model.encoder.dropout),
        "tie_word_embeddings": getattr(model.readout, "tied", True) or not isinstance(model.readout, Vocabulary),
        **labels,
    }


_KINDS = ("ForMaskedLM", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")

BERT = Family(
    "bert",
    (*(f"Bert{kind}" for kind in _KINDS), "BertForPreTraining", "BertForNextSentencePrediction"),
    partial(_rows, BERT_ROWS, _CLASSES),
    _bert,
    _configure,
    prefix="bert.",
    outside=r"^(cls|classifier|qa_outputs)\.",
    ignored=(r"^embeddings\.position_ids$", r"^embeddings\.token_type_ids$", r"^pooler\."),
)
ROBERTA = Family(
    "roberta",
    tuple(f"Roberta{kind}" for kind in _KINDS),
    partial(_rows, ROBERTA_ROWS, _ROBERTA_CLASSES),
    partial(_bert, roberta=True),
    partial(_configure, name="Roberta"),
    prefix="roberta.",
    outside=r"^(lm_head|classifier|qa_outputs)\.",
    ignored=(r"^embeddings\.position_ids$", r"^embeddings\.token_type_ids$", r"^pooler\."),
)
DISTILBERT = Family(
    "distilbert",
    tuple(f"DistilBert{kind}" for kind in _KINDS),
    partial(_rows, DISTILBERT_ROWS, _CLASSES),
    _distilbert,
    _configure_distilbert,
    prefix="distilbert.",
    outside=r"^(vocab_\w+|pre_classifier|classifier|qa_outputs)\.",
    ignored=(r"^embeddings\.position_ids$",),
)
