"""ModernBERT (Warner 2024) in Hugging Face's format: weight table and configs.

An encoder with rotary positions of two bases, windows in most layers, a gated feed-forward, and no norm before the
first sublayer, whose input the embedding normalizes already.
"""

from __future__ import annotations

from typing import Any

from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import LayerNorm, PreNormExceptFirst
from regard.layers.patterns import CentredWindow, Full
from regard.layers.positions import Rotary
from regard.models.model import Model, Stack
from regard.models.readouts import Mean, Transform, Vector, Vocabulary
from regard.store.huggingface.config import ACTIVATION_NAMES, ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.weights import FIRST_HALF, SECOND_HALF, row, weight_and_bias

_OURS, _THEIRS = "encoder.layers.{}.", "layers.{}."
_FULL, _WINDOW = "full_attention", "sliding_attention"
_BASES = {_FULL: ("global_rope_theta", 160_000.0), _WINDOW: ("local_rope_theta", 10_000.0)}

ROWS = (
    row("embeddings.tok_embeddings.weight|decoder.weight", "embed.table.weight"),
    *weight_and_bias("embeddings.norm", "embed.norm"),
    *weight_and_bias(f"{_THEIRS}attn_norm", f"{_OURS}self.norm"),
    *weight_and_bias(f"{_THEIRS}attn.Wqkv", f"{_OURS}self.sublayer.query_key_value"),
    *weight_and_bias(f"{_THEIRS}attn.Wo", f"{_OURS}self.sublayer.out"),
    *weight_and_bias(f"{_THEIRS}mlp_norm", f"{_OURS}feedforward.norm"),
    *(
        row(f"{_THEIRS}mlp.Wi.{kind}", f"{_OURS}feedforward.sublayer.{ours}.{kind}", half)
        for kind in ("weight", "bias")
        for ours, half in (("gate", FIRST_HALF), ("up", SECOND_HALF))
    ),
    *weight_and_bias(f"{_THEIRS}mlp.Wo", f"{_OURS}feedforward.sublayer.down"),
    *weight_and_bias("final_norm", "encoder.final_norm"),
    *weight_and_bias("head.dense", "readout.transform.dense"),
    *weight_and_bias("head.norm", "readout.transform.norm"),
    *weight_and_bias("decoder", "readout.lm_head"),
)


def _base(config: ConfigReader, layer: str) -> float:
    """The base of the rotary positions of a kind of layer; scaled ones are refused."""
    older, default = _BASES[layer]
    parameters = config.values.get("rope_parameters")
    own = parameters.get(layer) if isinstance(parameters, dict) else None
    if own is None:
        return config.number(older, default)
    plain = isinstance(own, dict) and own.get("rope_type", "default") == "default"
    if not plain or own.keys() - {"rope_type", "rope_theta", "partial_rotary_factor"}:
        config.refuse("rope_parameters", parameters)
        return default
    return ConfigReader({"rope_theta": own.get("rope_theta")}, config.where).number("rope_theta", default)


def _from_config(config: ConfigReader, weights: PublishedWeights, architecture: str) -> PublishedModel:
    width, depth = config.integer("hidden_size", 768), config.depth("num_hidden_layers", 22)
    every = config.integer("global_attn_every_n_layers", 3)
    kinds = config.strings("layer_types", tuple(_WINDOW if n % every else _FULL for n in range(depth)))
    if len(kinds) != depth or not {*kinds} <= {*_BASES}:
        config.refuse("layer_types", kinds)
        kinds = depth * (_FULL,)
    config.ignore("rope_parameters", "max_position_embeddings", "attention_dropout", "initializer_cutoff_factor",
                  "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad", "sparse_prediction",
                  "sparse_pred_ignore_index", "classifier_pooling", "classifier_dropout", "cls_token_id",
                  "layer_norm_eps", "problem_type")  # fmt: skip
    config.assume("position_embedding_type", "absolute")
    config.assume("partial_rotary_factor", 1)
    heads, biased = config.integer("num_attention_heads", 12), config.boolean("attention_bias", False)
    window = CentredWindow(config.integer("local_attention", 128) // 2 + 1)
    attentions = {
        _FULL: SelfAttention(heads, Full(), position=Rotary(_base(config, _FULL)), biased=biased),
        _WINDOW: SelfAttention(heads, window, position=Rotary(_base(config, _WINDOW)), biased=biased),
    }
    feedforward = FeedForward(
        config.integer("intermediate_size", 1152), config.activation("hidden_activation", "gelu"), gated=True,
        biased=config.boolean("mlp_bias", False), dropout=config.number("mlp_dropout", 0.0),
    )  # fmt: skip
    norm = LayerNorm(config.epsilon("norm_eps", 1e-5), config.boolean("norm_bias", False))
    head = Transform(config.activation("classifier_activation", "gelu"), norm,
                     biased=config.boolean("classifier_bias", False))  # fmt: skip
    tying = config.boolean("tie_word_embeddings", True)
    tied = tying and weights.equal_or_missing("decoder.weight", "embeddings.tok_embeddings.weight")
    readout: Vocabulary | Vector = Vocabulary(tied, config.boolean("decoder_bias", True), head)
    if architecture.endswith("Model"):
        readout = Vector(Mean(), None, normalised=False)
    stack = Stack(tuple((attentions[kind], feedforward) for kind in kinds), PreNormExceptFirst(norm))
    embed = Embed(dropout=config.number("embedding_dropout", 0.0), norm=norm)
    return PublishedModel(Model(width, embed, encoder=stack, readout=readout), config.integer("vocab_size", 50368))


def _to_config(published: PublishedModel) -> dict[str, Any]:
    head, _ = published.head("ForMaskedLM")
    encoder, readout = published.encoder, published.model.readout
    transform = readout.transform if isinstance(readout, Vocabulary) else None
    norm = encoder.stack.join.norm if isinstance(encoder.stack.join, PreNormExceptFirst) else None
    first = encoder.attention
    if not isinstance(norm, LayerNorm) or not isinstance(first, SelfAttention):
        raise TypeError("not an encoder without a first norm")
    bases, kinds, length = {kind: base for kind, (_, base) in _BASES.items()}, list[str](), 65
    for attention in (layer[0] for layer in encoder.stack.layers):
        if not isinstance(attention, SelfAttention) or not isinstance(attention.position, Rotary):
            raise TypeError("not an encoder with rotary positions")
        kinds.append(_WINDOW if isinstance(attention.pattern, CentredWindow) else _FULL)
        bases[kinds[-1]] = attention.position.base
        length = attention.pattern.length if isinstance(attention.pattern, CentredWindow) else length
    return {
        "architectures": [f"ModernBert{head}"],
        "vocab_size": published.vocabulary,
        "hidden_size": published.model.width,
        "intermediate_size": encoder.feedforward.inner,
        "num_hidden_layers": encoder.depth,
        "num_attention_heads": first.heads,
        "hidden_activation": encoder.activation,
        "max_position_embeddings": 8192,
        "norm_eps": norm.epsilon,
        "norm_bias": norm.biased,
        "attention_bias": first.biased,
        "mlp_bias": encoder.feedforward.biased,
        "mlp_dropout": encoder.feedforward.dropout,
        "embedding_dropout": published.embed.dropout,
        "layer_types": kinds,
        "local_attention": 2 * (length - 1),
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "classifier_activation": ACTIVATION_NAMES[transform.activation if transform else "gelu"],
        "classifier_bias": transform is not None and transform.biased,
        "decoder_bias": not isinstance(readout, Vocabulary) or readout.biased,
        "tie_word_embeddings": published.tied,
    }


MODERNBERT = Family(
    "modernbert",
    ("ModernBertForMaskedLM", "ModernBertModel"),
    lambda _: ROWS,
    _from_config,
    _to_config,
    prefix="model.",
    unprefixed=r"^(head|decoder)\.",
    kept_settings=("max_position_embeddings", "cls_token_id", "sep_token_id"),
)
