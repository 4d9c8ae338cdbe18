"""ELECTRA and ALBERT in Hugging Face's format: weight tables and configs.

Encoders like BERT with a narrower embedding; all layers of ALBERT have the same weights.
"""

from __future__ import annotations

from typing import Any

from regard.layers.join import LayerNorm
from regard.models.model import AnyReadout, Model
from regard.models.readouts import First, Label, Mean, Tags, Transform, Vector, Vocabulary
from regard.store.huggingface.bert import HEADS, LAYERS, encoder_model, rows_of
from regard.store.huggingface.config import ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.weights import Row, above_zeros, row, weight_and_bias

REPLACED = ("original", "replaced")
"""The tags of ELECTRA's discriminator."""

SENTENCE_ORDER = ("ordered", "swapped")
"""The labels of ALBERT's sentence order prediction: of two segments of a text, which comes first."""

_EMBED = (
    row("embeddings.position_embeddings.weight", "embed.position.weight"),
    row("embeddings.token_type_embeddings.weight", "embed.segments.weight"),
    *weight_and_bias("embeddings.LayerNorm", "embed.norm"),
)
ELECTRA_ROWS = (
    row("embeddings.word_embeddings.weight|generator_lm_head.weight", "embed.table.weight"),
    *_EMBED,
    *weight_and_bias("embeddings_project", "embed.project"),
    *LAYERS,
    *weight_and_bias("generator_predictions.dense", "readout.transform.dense"),
    *weight_and_bias("generator_predictions.LayerNorm", "readout.transform.norm"),
    row("generator_lm_head.weight", "readout.lm_head.weight"),
    row("generator_lm_head.bias", "readout.lm_head.bias"),
)
_ELECTRA_HEADS = HEADS | {
    "ForSequenceClassification": (
        *weight_and_bias("classifier.dense", "readout.inner"), *weight_and_bias("classifier.out_proj", "readout.out"),
    ),
    "ForPreTraining": (
        *weight_and_bias("discriminator_predictions.dense", "readout.inner"),
        row("discriminator_predictions.dense_prediction.weight", "readout.out.weight", above_zeros()),
        row("discriminator_predictions.dense_prediction.bias", "readout.out.bias", above_zeros()),
    ),
}  # fmt: skip
ALBERT_ROWS = (
    row("embeddings.word_embeddings.weight|predictions.decoder.weight", "embed.table.weight"),
    *_EMBED,
    *weight_and_bias("encoder.embedding_hidden_mapping_in", "embed.project"),
    *weight_and_bias("predictions.dense", "readout.transform.dense"),
    *weight_and_bias("predictions.LayerNorm", "readout.transform.norm"),
    row("predictions.decoder.weight", "readout.lm_head.weight"),
    row("predictions.bias|predictions.decoder.bias", "readout.lm_head.bias"),
    *weight_and_bias("pooler", "readout.inner"),
    *weight_and_bias("pooler", "auxiliary.inner"),
    *weight_and_bias("sop_classifier.classifier", "auxiliary.out"),
)


def _layer_rows(group: int, first: int) -> tuple[Row, ...]:
    """The rows of a group of layers, whose weights are those of its first layer."""
    theirs, ours = f"encoder.albert_layer_groups.{group}.albert_layers.0.", f"encoder.layers.{first}."
    attention = f"{theirs}attention."
    return (
        *weight_and_bias(
            f"{attention}query+{attention}key+{attention}value", f"{ours}self.sublayer.query_key_value"
        ),
        *weight_and_bias(f"{attention}dense", f"{ours}self.sublayer.out"),
        *weight_and_bias(f"{attention}LayerNorm", f"{ours}self.norm"),
        *weight_and_bias(f"{theirs}ffn", f"{ours}feedforward.sublayer.up"),
        *weight_and_bias(f"{theirs}ffn_output", f"{ours}feedforward.sublayer.down"),
        *weight_and_bias(f"{theirs}full_layer_layer_norm", f"{ours}feedforward.norm"),
    )  # fmt: skip


def _albert_rows(published: PublishedModel) -> tuple[Row, ...]:
    firsts = dict.fromkeys(published.encoder.stack.first_of_group)
    layers = (_layer_rows(group, first) for group, first in enumerate(firsts))
    return *rows_of(ALBERT_ROWS, HEADS, published), *(one for rows in layers for one in rows)


def _encoder(config: ConfigReader, *, table_width: int | None, groups: int | None, defaults: tuple[int, ...]) -> Model:
    width, heads, inner = defaults
    return encoder_model(
        config,
        (config.integer("hidden_size", width), config.depth("num_hidden_layers", 12),
         config.integer("num_attention_heads", heads), config.integer("intermediate_size", inner)),
        activation=config.activation("hidden_act", "gelu_new" if groups else "gelu"),
        epsilon=config.epsilon("layer_norm_eps", 1e-12),
        max_positions=config.integer("max_position_embeddings", 512), segments=config.integer("type_vocab_size", 2),
        dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"), table_width=table_width, groups=groups,
    )  # fmt: skip


def _electra(config: ConfigReader, weights: PublishedWeights, architecture: str) -> PublishedModel:
    config.assume("position_embedding_type", "absolute")
    config.ignore("summary_last_dropout")
    width, table_width = config.integer("hidden_size", 256), config.integer("embedding_size", 128)
    base = _encoder(config, table_width=None if table_width == width else table_width, groups=None,
                    defaults=(256, 4, 1024))  # fmt: skip
    head, dropout = architecture.removeprefix("Electra"), config.number("classifier_dropout", 0.1)
    activation, norm = config.activation("hidden_act", "gelu"), LayerNorm(config.epsilon("layer_norm_eps", 1e-12))
    tying = config.boolean("tie_word_embeddings", True)
    tied = tying and weights.equal_or_missing("generator_lm_head.weight", "embeddings.word_embeddings.weight")
    readout: AnyReadout | None = config.classification_readout(head, pool=First(), inner="gelu", dropout=dropout)
    if head == "ForMaskedLM":
        transform = Transform("gelu", norm, None if table_width == width else table_width)
        readout = Vocabulary(tied, True, transform)
    if head == "ForPreTraining":
        readout = Tags(REPLACED, dropout, inner=activation)
    readout = readout or Vector(Mean(), None, normalised=False)
    model = Model(base.width, base.embed, base.encoder, readout=readout)
    return PublishedModel(model, config.integer("vocab_size", 30522))


def _albert(config: ConfigReader, weights: PublishedWeights, architecture: str) -> PublishedModel:
    config.assume("position_embedding_type", "absolute")
    config.assume("inner_group_num", 1)
    config.assume("down_scale_factor", 1)
    for name in ("gap_size", "net_structure_type", "num_memory_blocks"):
        config.assume(name, 0)
    table_width, groups = config.integer("embedding_size", 128), config.integer("num_hidden_groups", 1, most=10_000)
    base = _encoder(config, table_width=table_width, groups=groups, defaults=(4096, 64, 16384))
    head, dropout = architecture.removeprefix("Albert"), config.number("classifier_dropout_prob", 0.1)
    activation, norm = config.activation("hidden_act", "gelu_new"), LayerNorm(config.epsilon("layer_norm_eps", 1e-12))
    tying = config.boolean("tie_word_embeddings", True)
    tied = tying and weights.equal_or_missing("predictions.decoder.weight", "embeddings.word_embeddings.weight")
    readout = config.classification_readout(head, pool=First(), inner="tanh", dropout=dropout)
    auxiliary = None
    if head in ("ForPreTraining", "ForMaskedLM"):
        readout = Vocabulary(tied, True, Transform(activation, norm, table_width))
        if "sop_classifier.classifier.weight" in weights.shapes:
            auxiliary = Label(SENTENCE_ORDER, dropout=dropout)
    if readout is None:
        has_pooler = "pooler.weight" in weights.shapes
        readout = Vector(First(), "tanh", normalised=False) if has_pooler else Vector(Mean(), None, normalised=False)
    model = Model(base.width, base.embed, base.encoder, readout=readout, auxiliary=auxiliary)
    return PublishedModel(model, config.integer("vocab_size", 30000))


def _common(published: PublishedModel, name: str, head: str) -> dict[str, Any]:
    encoder = published.encoder
    return {
        "architectures": [f"{name}{head}"],
        "vocab_size": published.vocabulary,
        "embedding_size": published.embed.inner or published.model.width,
        "hidden_size": published.model.width,
        "num_hidden_layers": encoder.depth,
        "num_attention_heads": encoder.attention.heads,
        "intermediate_size": encoder.feedforward.inner,
        "max_position_embeddings": published.max_positions(),
        "type_vocab_size": published.embed.segments,
        "hidden_act": encoder.activation,
        "layer_norm_eps": encoder.epsilon,
        "hidden_dropout_prob": encoder.stack.dropout,
        "attention_probs_dropout_prob": 0.0,
        "tie_word_embeddings": published.tied,
    }


def _electra_config(published: PublishedModel) -> dict[str, Any]:
    head, labels = published.head("ForMaskedLM")
    match published.model.readout:
        case Tags(labels=names, inner=inner) if inner is not None and names == REPLACED:
            head, labels = "ForPreTraining", {}
    dropout = published.head_dropout(published.encoder.stack.dropout)
    return {**_common(published, "Electra", head), "classifier_dropout": dropout, **labels}


def _albert_config(published: PublishedModel) -> dict[str, Any]:
    head, labels = published.head("ForMaskedLM")
    if published.encoder.stack.groups is None:
        raise TypeError("not a stack of shared layers")
    dropout = published.head_dropout(published.encoder.stack.dropout)
    own = {"num_hidden_groups": published.encoder.stack.groups, "inner_group_num": 1}
    return {**_common(published, "Albert", head), **own, "classifier_dropout_prob": dropout, **labels}


def _electra_rows(published: PublishedModel) -> tuple[Row, ...]:
    match published.model.readout:
        case Tags(inner=inner) if inner is not None:
            return *ELECTRA_ROWS, *_ELECTRA_HEADS["ForPreTraining"]
    return rows_of(ELECTRA_ROWS, _ELECTRA_HEADS, published)


_ARCHITECTURES = (
    "ForMaskedLM", "Model", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering",
)  # fmt: skip

ELECTRA = Family(
    "electra",
    tuple(f"Electra{head}" for head in _ARCHITECTURES),
    _electra_rows,
    _electra,
    _electra_config,
    prefix="electra.",
    unprefixed=r"^(generator_\w+|discriminator_predictions|classifier|qa_outputs)\.",
    ignored=(r"^embeddings\.position_ids$", r"^embeddings\.token_type_ids$"),
)
ALBERT = Family(
    "albert",
    tuple(f"Albert{head}" for head in _ARCHITECTURES),
    _albert_rows,
    _albert,
    _albert_config,
    prefix="albert.",
    unprefixed=r"^(predictions|sop_classifier|classifier|qa_outputs)\.",
    ignored=(r"^embeddings\.position_ids$", r"^embeddings\.token_type_ids$", r"^pooler\."),
)
