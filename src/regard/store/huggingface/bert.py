"""BERT, RoBERTa and DistilBERT in Hugging Face's format: weight tables and configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import LayerNorm, PostNorm
from regard.layers.positions import Learned
from regard.models.model import Model, Stack
from regard.models.readouts import NEXT_SENTENCE, First, Label, Mean, Transform, Vector, Vocabulary
from regard.store.huggingface.config import ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.weights import Row, drop_rows, row, weight_and_bias

_OURS = "encoder.layers.{}."
_LAYER = "encoder.layer.{}."

_EMBED = (
    row("embeddings.token_type_embeddings.weight", "embed.segments.weight"),
    *weight_and_bias("embeddings.LayerNorm", "embed.norm"),
)
LAYERS = (
    *weight_and_bias(
        f"{_LAYER}attention.self.query+{_LAYER}attention.self.key+{_LAYER}attention.self.value",
        f"{_OURS}self.sublayer.query_key_value",
    ),
    *weight_and_bias(f"{_LAYER}attention.output.dense", f"{_OURS}self.sublayer.out"),
    *weight_and_bias(f"{_LAYER}attention.output.LayerNorm", f"{_OURS}self.norm"),
    *weight_and_bias(f"{_LAYER}intermediate.dense", f"{_OURS}feedforward.sublayer.up"),
    *weight_and_bias(f"{_LAYER}output.dense", f"{_OURS}feedforward.sublayer.down"),
    *weight_and_bias(f"{_LAYER}output.LayerNorm", f"{_OURS}feedforward.norm"),
)
BERT_ROWS = (
    row("embeddings.word_embeddings.weight|cls.predictions.decoder.weight", "embed.table.weight"),
    row("embeddings.position_embeddings.weight", "embed.position.weight"),
    *_EMBED,
    *LAYERS,
    *weight_and_bias("cls.predictions.transform.dense", "readout.transform.dense"),
    *weight_and_bias("cls.predictions.transform.LayerNorm", "readout.transform.norm"),
    row("cls.predictions.decoder.weight", "readout.lm_head.weight"),
    row("cls.predictions.bias|cls.predictions.decoder.bias", "readout.lm_head.bias"),
    *weight_and_bias("pooler.dense", "readout.inner"),
    *weight_and_bias("pooler.dense", "auxiliary.inner"),
    *weight_and_bias("cls.seq_relationship", "auxiliary.out"),
)
ROBERTA_ROWS = (
    row("embeddings.word_embeddings.weight|lm_head.decoder.weight", "embed.table.weight"),
    row("embeddings.position_embeddings.weight", "embed.position.weight", drop_rows(2)),
    *_EMBED,
    *LAYERS,
    *weight_and_bias("lm_head.dense", "readout.transform.dense"),
    *weight_and_bias("lm_head.layer_norm", "readout.transform.norm"),
    row("lm_head.decoder.weight", "readout.lm_head.weight"),
    row("lm_head.bias|lm_head.decoder.bias", "readout.lm_head.bias"),
)
_DISTILLED = "transformer.layer.{}."
DISTILBERT_ROWS = (
    row("embeddings.word_embeddings.weight|vocab_projector.weight", "embed.table.weight"),
    row("embeddings.position_embeddings.weight", "embed.position.weight"),
    *weight_and_bias("embeddings.LayerNorm", "embed.norm"),
    *weight_and_bias(
        f"{_DISTILLED}attention.q_lin+{_DISTILLED}attention.k_lin+{_DISTILLED}attention.v_lin",
        f"{_OURS}self.sublayer.query_key_value",
    ),
    *weight_and_bias(f"{_DISTILLED}attention.out_lin", f"{_OURS}self.sublayer.out"),
    *weight_and_bias(f"{_DISTILLED}sa_layer_norm", f"{_OURS}self.norm"),
    *weight_and_bias(f"{_DISTILLED}ffn.lin1", f"{_OURS}feedforward.sublayer.up"),
    *weight_and_bias(f"{_DISTILLED}ffn.lin2", f"{_OURS}feedforward.sublayer.down"),
    *weight_and_bias(f"{_DISTILLED}output_layer_norm", f"{_OURS}feedforward.norm"),
    *weight_and_bias("vocab_transform", "readout.transform.dense"),
    *weight_and_bias("vocab_layer_norm", "readout.transform.norm"),
    row("vocab_projector.weight", "readout.lm_head.weight"),
    row("vocab_projector.bias", "readout.lm_head.bias"),
    *weight_and_bias("pre_classifier", "readout.inner"),
)
# The last layer of each head; BERT's pooler has a row of its own.
HEADS = {
    "ForSequenceClassification": weight_and_bias("classifier", "readout.out"),
    "ForTokenClassification": weight_and_bias("classifier", "readout.out"),
    "ForQuestionAnswering": weight_and_bias("qa_outputs", "readout.out"),
    "ForNextSentencePrediction": weight_and_bias("cls.seq_relationship", "readout.out"),
}
_ROBERTA_HEADS = HEADS | {
    "ForSequenceClassification": (
        *weight_and_bias("classifier.dense", "readout.inner"), *weight_and_bias("classifier.out_proj", "readout.out"),
    ),
    "Model": weight_and_bias("pooler.dense", "readout.inner"),
}  # fmt: skip


def rows_of(rows: tuple[Row, ...], heads: Mapping[str, tuple[Row, ...]], published: PublishedModel) -> tuple[Row, ...]:
    """The rows of a family, with those of the head that a model has."""
    chosen = *rows, *heads.get(published.head()[0], ())
    match published.model.readout:
        case Vocabulary(tied=False):
            # An untied decoder has a bias of its own, and that one is used.
            return tuple(
                replace(one, theirs=one.theirs[::-1], write_all_names=True, may_differ=True)
                if one.ours == "readout.lm_head.bias"
                else one
                for one in chosen
            )
    return chosen


def encoder_model(
    config: ConfigReader, shape: tuple[int, int, int, int], *, activation: Activation, epsilon: float,
    max_positions: int, segments: int, dropouts: tuple[str, str], table_width: int | None = None,
    groups: int | None = None,
) -> Model:  # fmt: skip
    """The embedding and the encoder, which all share."""
    width, depth, heads, inner = shape
    dropout = config.number(dropouts[0], 0.1)
    config.ignore(dropouts[1])
    norm, layer = LayerNorm(epsilon), (SelfAttention(heads), FeedForward(inner, activation))
    embed = Embed(Learned(max_positions), dropout=dropout, segments=segments, norm=norm, inner=table_width)
    return Model(width, embed, encoder=Stack(depth * (layer,), PostNorm(norm), dropout, groups=groups))


def _with_readout(
    base: Model, config: ConfigReader, weights: PublishedWeights, head: str, *, matrix: str, transform: Transform,
    inner: Activation, dropout: float,
) -> Model:  # fmt: skip
    """The encoder with the readout of an architecture; `matrix` is the name of the masked LM's output matrix."""
    tying = config.boolean("tie_word_embeddings", True)
    tied = tying and weights.equal_or_missing(matrix, "embeddings.word_embeddings.weight")
    readout = config.classification_readout(head, pool=First(), inner=inner, dropout=dropout)
    auxiliary = None
    if head in ("ForPreTraining", "ForMaskedLM"):
        readout = Vocabulary(tied, True, transform)
        # Files of the first BERTs hold both heads, whatever their config.json says.
        if "cls.seq_relationship.weight" in weights.shapes:
            auxiliary = Label(NEXT_SENTENCE, dropout=dropout)
    if readout is None:
        has_pooler = "pooler.dense.weight" in weights.shapes
        readout = Vector(First(), "tanh", normalised=False) if has_pooler else Vector(Mean(), None, normalised=False)
    return Model(base.width, base.embed, base.encoder, readout=readout, auxiliary=auxiliary)


def _bert(
    config: ConfigReader, weights: PublishedWeights, architecture: str, *, roberta: bool = False
) -> PublishedModel:
    config.assume("position_embedding_type", "absolute")
    activation, epsilon = config.activation("hidden_act", "gelu"), config.epsilon("layer_norm_eps", 1e-12)
    max_positions = config.integer("max_position_embeddings", 512, least=3)
    if roberta:
        config.assume("pad_token_id", 1)
    base = encoder_model(
        config,
        (config.integer("hidden_size", 768), config.depth("num_hidden_layers", 12),
         config.integer("num_attention_heads", 12), config.integer("intermediate_size", 3072)),
        activation=activation, epsilon=epsilon, max_positions=max_positions - 2 if roberta else max_positions,
        segments=config.integer("type_vocab_size", 2), dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    )  # fmt: skip
    model = _with_readout(
        base, config, weights, architecture.removeprefix("Roberta" if roberta else "Bert"),
        matrix="lm_head.decoder.weight" if roberta else "cls.predictions.decoder.weight",
        transform=Transform("gelu" if roberta else activation, LayerNorm(epsilon)),
        inner="tanh", dropout=config.number("classifier_dropout", 0.1),
    )  # fmt: skip
    return PublishedModel(model, config.integer("vocab_size", 50265 if roberta else 30522))


def _distilbert(config: ConfigReader, weights: PublishedWeights, architecture: str) -> PublishedModel:
    activation = config.activation("activation", "gelu")
    base = encoder_model(
        config,
        (config.integer("dim|hidden_size", 768), config.depth("n_layers|num_hidden_layers", 6),
         config.integer("n_heads|num_attention_heads", 12), config.integer("hidden_dim", 3072)),
        activation=activation, epsilon=1e-12, max_positions=config.integer("max_position_embeddings", 512),
        segments=0, dropouts=("dropout", "attention_dropout"),
    )  # fmt: skip
    config.ignore("qa_dropout")
    model = _with_readout(
        base, config, weights, architecture.removeprefix("DistilBert"), matrix="vocab_projector.weight",
        transform=Transform(activation, LayerNorm(1e-12)), inner="relu",
        dropout=config.number("seq_classif_dropout", 0.2),
    )  # fmt: skip
    return PublishedModel(model, config.integer("vocab_size", 30522))


def _bert_config(published: PublishedModel, *, name: str = "Bert") -> dict[str, Any]:
    head, labels = published.head("ForMaskedLM")
    encoder, roberta = published.encoder, name == "Roberta"
    return {
        "architectures": [f"{name}{head}"],
        "vocab_size": published.vocabulary,
        "hidden_size": published.model.width,
        "num_hidden_layers": encoder.depth,
        "num_attention_heads": encoder.attention.heads,
        "intermediate_size": encoder.feedforward.inner,
        "max_position_embeddings": published.max_positions() + (2 if roberta else 0),
        "type_vocab_size": published.embed.segments,
        "hidden_act": encoder.activation,
        "layer_norm_eps": encoder.epsilon,
        "hidden_dropout_prob": encoder.stack.dropout,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": published.head_dropout(encoder.stack.dropout),
        "tie_word_embeddings": published.tied,
        **({"pad_token_id": 1} if roberta else {}),
        **labels,
    }


def _distilbert_config(published: PublishedModel) -> dict[str, Any]:
    head, labels = published.head("ForMaskedLM")
    encoder = published.encoder
    return {
        "architectures": [f"DistilBert{head}"],
        "vocab_size": published.vocabulary,
        "dim": published.model.width,
        "n_layers": encoder.depth,
        "n_heads": encoder.attention.heads,
        "hidden_dim": encoder.feedforward.inner,
        "max_position_embeddings": published.max_positions(),
        "activation": encoder.activation,
        "dropout": encoder.stack.dropout,
        "attention_dropout": 0.0,
        "seq_classif_dropout": published.head_dropout(encoder.stack.dropout),
        "tie_word_embeddings": published.tied,
        **labels,
    }


_ARCHITECTURES = ("ForMaskedLM", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")

BERT = Family(
    "bert",
    (*(f"Bert{head}" for head in _ARCHITECTURES), "BertForPreTraining", "BertForNextSentencePrediction"),
    partial(rows_of, BERT_ROWS, HEADS),
    _bert,
    _bert_config,
    prefix="bert.",
    unprefixed=r"^(cls|classifier|qa_outputs)\.",
    ignored=(r"^embeddings\.position_ids$", r"^embeddings\.token_type_ids$", r"^pooler\."),
)
ROBERTA = Family(
    "roberta",
    tuple(f"Roberta{head}" for head in _ARCHITECTURES),
    partial(rows_of, ROBERTA_ROWS, _ROBERTA_HEADS),
    partial(_bert, roberta=True),
    partial(_bert_config, name="Roberta"),
    prefix="roberta.",
    unprefixed=r"^(lm_head|classifier|qa_outputs)\.",
    ignored=(r"^embeddings\.position_ids$", r"^embeddings\.token_type_ids$", r"^pooler\."),
    aliases={"xlm-roberta": ("XLMRoberta", "Roberta"), "camembert": ("Camembert", "Roberta")},
)
DISTILBERT = Family(
    "distilbert",
    tuple(f"DistilBert{head}" for head in _ARCHITECTURES),
    partial(rows_of, DISTILBERT_ROWS, HEADS),
    _distilbert,
    _distilbert_config,
    prefix="distilbert.",
    unprefixed=r"^(vocab_\w+|pre_classifier|classifier|qa_outputs)\.",
    ignored=(r"^embeddings\.position_ids$",),
)
