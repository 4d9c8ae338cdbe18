"""The Reformer in Hugging Face's format: weight table and config."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch

from regard.errors import Note
from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import LayerNorm
from regard.layers.lsh.attention import LSHAttention
from regard.layers.lsh.masks import Chunks
from regard.layers.patterns import ChunkWindow
from regard.layers.positions import Axial, Learned
from regard.layers.reversible import Reversible
from regard.models.model import Model, Stack
from regard.models.readouts import Mean, Vector, Vocabulary
from regard.store.huggingface.config import ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.weights import Row, row, squeeze, weight_and_bias

_POSITION = "embeddings.position_embeddings."
_LAYER = "encoder.layers.{}."
_ATTENTION = f"{_LAYER}attention.self_attention."


def _stack(side: str) -> tuple[Row, ...]:
    ours = f"{side}.layers.{{}}."
    return (
        *weight_and_bias(f"{_LAYER}attention.layer_norm", f"{ours}self.norm"),
        row(f"{_ATTENTION}query_key.weight", f"{ours}self.sublayer.query_key.weight"),
        row(f"{_ATTENTION}value.weight", f"{ours}self.sublayer.value.weight"),
        row(
            f"{_ATTENTION}query.weight+{_ATTENTION}key.weight+{_ATTENTION}value.weight",
            f"{ours}self.sublayer.query_key_value.weight",
        ),
        row(f"{_LAYER}attention.output.dense.weight", f"{ours}self.sublayer.out.weight"),
        *weight_and_bias(f"{_LAYER}feed_forward.layer_norm", f"{ours}feedforward.norm"),
        *weight_and_bias(f"{_LAYER}feed_forward.dense.dense", f"{ours}feedforward.sublayer.up"),
        *weight_and_bias(f"{_LAYER}feed_forward.output.dense", f"{ours}feedforward.sublayer.down"),
        *weight_and_bias("encoder.layer_norm", f"{side}.final_norm"),
    )


ROWS = (
    row("embeddings.word_embeddings.weight", "embed.table.weight"),
    row(f"{_POSITION}embedding.weight", "embed.position.weight"),
    row(f"{_POSITION}weights.0", "embed.position.rows", squeeze(1)),
    row(f"{_POSITION}weights.1", "embed.position.columns", squeeze(0)),
    *_stack("encoder"),
    *_stack("decoder"),
    row("lm_head.decoder.weight", "readout.lm_head.weight"),
    row("lm_head.bias|lm_head.decoder.bias", "readout.lm_head.bias"),
    *weight_and_bias("qa_outputs", "readout.out"),
)


def _from_config(config: ConfigReader, weights: PublishedWeights, architecture: str) -> PublishedModel:
    # Dropout, chunked computation, and settings of older files that nothing reads.
    config.ignore(
        "axial_norm_std", "chunk_size_lm_head", "lsh_attention_probs_dropout_prob",
        "local_attention_probs_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout",
        "tie_word_embeddings", "num_chunks_before", "num_chunks_after", "intermediate_size", "type_vocab_size", "seed",
    )  # fmt: skip
    width, causal = config.integer("hidden_size", 256), config.boolean("is_decoder", False)
    if architecture.endswith("ForMaskedLM" if causal else "WithLMHead"):
        config.refuse("is_decoder", causal)
    dropout, norm = config.number("hidden_dropout_prob", 0.05), LayerNorm(config.epsilon("layer_norm_eps", 1e-12))
    feedforward = FeedForward(config.integer("feed_forward_size", 512), config.activation("hidden_act", "relu"))
    max_positions = config.integer("max_position_embeddings", 4096)
    position: Axial | Learned = Learned(max_positions)
    if config.boolean("axial_pos_embds", True):
        shape, widths = ("axial_pos_shape", (64, 64)), ("axial_pos_embds_dim", (64, 192))
        position = Axial(config.integer_pair(*shape), config.integer_pair(*widths))
    else:
        config.ignore("axial_pos_shape", "axial_pos_embds_dim")
    layers = tuple((attention, feedforward) for attention in _attention_layers(config, max_positions, causal))
    stack = Stack(layers, Reversible(norm, output="concatenated"), dropout)
    head = architecture.removeprefix("Reformer")
    readout = config.classification_readout(head, pool=Mean(), inner=None, dropout=dropout)
    if architecture.endswith(("WithLMHead", "ForMaskedLM")):
        readout = Vocabulary(tied=False)
        if not (weights.zero_or_missing("lm_head.bias") and weights.zero_or_missing("lm_head.decoder.bias")):
            warnings.warn("the bias of its language model head is ignored, as in transformers 5.", Note, stacklevel=2)
    readout = readout or Vector(Mean(), None, normalised=False)
    embed = Embed(position, dropout=dropout)
    model = Model(width, embed, None if causal else stack, stack if causal else None, readout)
    return PublishedModel(model, config.integer("vocab_size", 320))


def _attention_layers(config: ConfigReader, max_positions: int, causal: bool) -> list[SelfAttention | LSHAttention]:
    """The attention of each layer, local or LSH."""
    kinds = config.strings("attn_layers", ("local", "lsh", "local", "lsh", "local", "lsh"))
    config.assume("num_hidden_layers", len(kinds))
    heads, key_width = config.integer("num_attention_heads", 12), config.integer("attention_head_size", 64)
    chunk_settings = ("attn_chunk_length", 64, 1), ("num_chunks_before", 1, 0), ("num_chunks_after", 0, 0)
    length, before, after = (
        {kind: config.integer(f"{kind}_{name}", default, least=least) for kind in ("local", "lsh")}
        for name, default, least in chunk_settings
    )
    rounds, seed = config.integer("num_hashes", 1), config.optional_integer("hash_seed")
    factors = config.integers("num_buckets", ())  # none: the number of buckets follows from the length
    buckets = factors[0] if len(factors) == 1 else factors or None
    # Leave out what has no effect: chunk lengths that are all equal, max_positions where the buckets are given.
    lengths = tuple(sorted({length[kind] for kind in kinds if kind in length}))
    all_windows = lengths if len(lengths) > 1 else ()
    layers: list[SelfAttention | LSHAttention] = []
    for index, kind in enumerate(kinds):
        if kind == "lsh":
            chunks = Chunks(length[kind], before[kind], after[kind], all_windows)
            chunks = chunks if buckets else replace(chunks, max_positions=max_positions)
            layer_seed = index if seed is None else seed
            layers.append(LSHAttention(heads, chunks, buckets, rounds, layer_seed, causal, key_width))
        elif kind == "local":
            window = ChunkWindow(length[kind], before[kind], after[kind], causal, all_windows)
            layers.append(SelfAttention(heads, window, key_width=key_width, biased=False))
        else:
            config.refuse("attn_layers", kind)
    return layers


def _to_config(published: PublishedModel) -> dict[str, Any]:
    model, causal = published.model, published.model.shape != "encoder"
    head, labels = published.head("ModelWithLMHead" if causal else "ForMaskedLM")
    parts = published.decoder if causal else published.encoder
    stack, attention = parts.stack, parts.attention
    lsh = [layer[0] for layer in stack.layers if isinstance(layer[0], LSHAttention)]
    local = [layer[0] for layer in stack.layers if isinstance(layer[0], SelfAttention)]
    seeds = {layer.seed for layer in lsh}
    lengths = [
        layer.pattern.max_positions for layer in lsh if isinstance(layer.pattern, Chunks) and layer.buckets is None
    ]
    position = published.embed.position
    config: dict[str, Any] = {
        "architectures": [f"Reformer{head}"],
        "vocab_size": published.vocabulary,
        "hidden_size": model.width,
        "attn_layers": ["lsh" if isinstance(layer[0], LSHAttention) else "local" for layer in stack.layers],
        "num_hidden_layers": len(stack.layers),
        "num_attention_heads": attention.heads,
        "attention_head_size": attention.key_width or model.width // attention.heads,
        "feed_forward_size": parts.feedforward.inner,
        "hidden_act": parts.activation,
        "is_decoder": causal,
        "layer_norm_eps": parts.epsilon,
        "hidden_dropout_prob": stack.dropout,
        "max_position_embeddings": lengths[0] if lengths else published.max_positions(4096),
        "axial_pos_embds": isinstance(position, Axial),
        "hash_seed": seeds.pop() if len(seeds) == 1 else None,
        "tie_word_embeddings": False,
        **labels,
    }
    if stack.join.streams == 2 and model.readout == Vocabulary(tied=False, biased=True):
        message = "transformers 5 ignores the bias of a Reformer's language model head, so its logits differ a little."
        warnings.warn(message, Note, stacklevel=2)
    if isinstance(position, Axial):
        config["axial_pos_shape"] = list(position.shape)
        config["axial_pos_embds_dim"] = list(position.split_width(model.width))
    if lsh:
        config |= {"num_buckets": lsh[0].buckets, "num_hashes": lsh[0].rounds}
    first = {"local": local[0].pattern if local else None, "lsh": lsh[0].pattern if lsh else None}
    for kind, pattern in first.items():
        if isinstance(pattern, ChunkWindow | Chunks):
            config[f"{kind}_attn_chunk_length"] = pattern.length
            config[f"{kind}_num_chunks_before"] = pattern.before
            config[f"{kind}_num_chunks_after"] = pattern.after
    return config


REFORMER = Family(
    "reformer",
    ("ReformerModelWithLMHead", "ReformerForMaskedLM", "ReformerModel", "ReformerForQuestionAnswering"),
    lambda published: ROWS,
    _from_config,
    _to_config,
    prefix="reformer.",
    unprefixed=r"^(lm_head|qa_outputs)\.",
    ignored=(r"^lm_head\.(decoder\.)?bias$", r"^encoder\.layers\.\d+\.attention\.self_attention\.\w*mask_value\w*$"),
    kept_settings=("hash_seed",),
    zero_bias=lambda vocabulary: {"lm_head.bias": torch.zeros(vocabulary)},
)
