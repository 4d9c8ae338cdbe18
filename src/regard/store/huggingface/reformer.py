"""The Reformer's published form."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import Note
from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.linear import LayerNorm
from regard.layers.lsh.attention import LSHAttention
from regard.layers.lsh.masks import Chunks
from regard.layers.patterns import Neighbours
from regard.layers.positions import Axial, Learned
from regard.layers.reversible import Reversible
from regard.models.model import Model, Stack
from regard.models.readouts import Mean, Vector, Vocabulary
from regard.store.huggingface.config import PUBLISHED, Family, Published, Settings, Weights, head, pooled_readout
from regard.store.huggingface.weights import FLAT, Operation, Row, both, row

_COLUMN = Operation(lambda tensors: [tensors[0].squeeze(1)], lambda tensors: [tensors[0].unsqueeze(1)])
_POSITION = "embeddings.position_embeddings."
_LAYER = "encoder.layers.{}."
_LOOK = f"{_LAYER}attention.self_attention."


def _stack(side: str) -> tuple[Row, ...]:
    ours = f"{side}.wiring.layers.{{}}.sublayers."
    return (
        *both(f"{_LAYER}attention.layer_norm", f"{ours}self.norm"),
        row(f"{_LOOK}query_key.weight", f"{ours}self.sublayer.query_key.weight"),
        row(f"{_LOOK}value.weight", f"{ours}self.sublayer.value.weight"),
        row(
            f"{_LOOK}query.weight+{_LOOK}key.weight+{_LOOK}value.weight",
            f"{ours}self.sublayer.query_key_value.weight",
        ),
        row(f"{_LAYER}attention.output.dense.weight", f"{ours}self.sublayer.out.weight"),
        *both(f"{_LAYER}feed_forward.layer_norm", f"{ours}feedforward.norm"),
        *both(f"{_LAYER}feed_forward.dense.dense", f"{ours}feedforward.sublayer.up"),
        *both(f"{_LAYER}feed_forward.output.dense", f"{ours}feedforward.sublayer.down"),
        *both("encoder.layer_norm", f"{side}.closing"),
    )


ROWS = (
    row("embeddings.word_embeddings.weight", "embed.table.weight"),
    row(f"{_POSITION}embedding.weight", "embed.position.weight"),
    row(f"{_POSITION}weights.0", "embed.position.rows", _COLUMN),
    row(f"{_POSITION}weights.1", "embed.position.columns", FLAT),
    *_stack("encoder"),
    *_stack("decoder"),
    row("lm_head.decoder.weight", "readout.words.weight"),
    row("lm_head.bias|lm_head.decoder.bias", "readout.words.bias"),
    *both("qa_outputs", "readout.out"),
)


def _describe(settings: Settings, weights: Weights, architecture: str) -> Published:
    # How much was dropped and where work was cut, and what older files still say that nothing reads.
    settings.leave(
        "axial_norm_std", "chunk_size_lm_head", "lsh_attention_probs_dropout_prob",
        "local_attention_probs_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout",
        "tie_word_embeddings", "num_chunks_before", "num_chunks_after", "intermediate_size", "type_vocab_size", "seed",
    )  # fmt: skip
    width, causal = settings.whole("hidden_size", 256), settings.flag("is_decoder", False)
    if architecture.endswith("ForMaskedLM" if causal else "WithLMHead"):
        settings.refuse("is_decoder", causal)
    dropout, norm = settings.number("hidden_dropout_prob", 0.05), LayerNorm(settings.epsilon("layer_norm_eps", 1e-12))
    feed = FeedForward(settings.whole("feed_forward_size", 512), settings.activation("hidden_act", "relu"))
    longest = settings.whole("max_position_embeddings", 4096)
    position: Axial | Learned = Learned(longest)
    if settings.flag("axial_pos_embds", True):
        position = Axial(settings.pair("axial_pos_shape", (64, 64)), settings.pair("axial_pos_embds_dim", (64, 192)))
    else:
        settings.leave("axial_pos_shape", "axial_pos_embds_dim")
    stack = Stack(
        tuple((look, feed) for look in _looks(settings, longest, causal)), Reversible(norm, answer="beside"), dropout
    )  # fmt: skip
    said = pooled_readout(architecture.removeprefix("Reformer"), settings, pool=Mean(), inner=None, dropout=dropout)
    if architecture.endswith(("WithLMHead", "ForMaskedLM")):
        said = Vocabulary(tied=False)
        if not (weights.zero("lm_head.bias") and weights.zero("lm_head.decoder.bias")):
            warnings.warn("the bias of its words is left out, as transformers 5 does.", Note, stacklevel=2)
    said = said or Vector(Mean(), None, normalised=False)
    embed = Embed(position, dropout=dropout)
    model = Model(width, embed, None if causal else stack, stack if causal else None, said)
    return Published(model, settings.whole("vocab_size", 320))


def _looks(settings: Settings, longest: int, causal: bool) -> list[SelfAttention | LSHAttention]:
    """The attention of each layer."""
    kinds = settings.words("attn_layers", ("local", "lsh", "local", "lsh", "local", "lsh"))
    settings.assume("num_hidden_layers", len(kinds))
    heads, key_width = settings.whole("num_attention_heads", 12), settings.whole("attention_head_size", 64)
    chunk, before, after = (
        {kind: settings.whole(f"{kind}_{name}", usual, least=least) for kind in ("local", "lsh")}
        for name, usual, least in (
            ("attn_chunk_length", 64, 1),
            ("num_chunks_before", 1, 0),
            ("num_chunks_after", 0, 0),
        )
    )
    rounds, seed, buckets = settings.whole("num_hashes", 1), settings.perhaps("hash_seed"), _buckets(settings)
    # What nothing depends on is not said: the windows if they are all the same, the longest if buckets are counted.
    windows = tuple(sorted({chunk[kind] for kind in kinds if kind in chunk}))
    among = windows if len(windows) > 1 else ()
    looks: list[SelfAttention | LSHAttention] = []
    for number, kind in enumerate(kinds):
        if kind == "lsh":
            pattern = Chunks(chunk[kind], before[kind], after[kind], among)
            pattern = pattern if buckets else replace(pattern, max_positions=longest)
            own = number if seed is None else seed
            looks.append(LSHAttention(heads, pattern, buckets, rounds, own, causal, key_width))
        elif kind == "local":
            near = Neighbours(chunk[kind], before[kind], after[kind], causal, among)
            looks.append(SelfAttention(heads, near, key_width=key_width, biased=False))
        else:
            settings.refuse("attn_layers", kind)
    return looks


def _buckets(settings: Settings) -> int | tuple[int, ...] | None:
    """How many; none: as many as fit the length."""
    found = settings.counts("num_buckets", ())
    return found[0] if len(found) == 1 else found or None


def _configure(published: Published) -> dict[str, Any]:
    model: Any = published.model
    causal = model.decoder is not None
    kind, labels = head(model, "ModelWithLMHead" if causal else "ForMaskedLM")
    stack = model.decoder or model.encoder
    looks: dict[str, list[Any]] = {"local": [], "lsh": []}
    kinds = ["lsh" if isinstance(layer[0], LSHAttention) else "local" for layer in stack.layers]
    for name, layer in zip(kinds, stack.layers):
        looks[name].append(layer[0])
    look, feed = stack.layers[0]
    seeds = {look.seed for look in looks["lsh"]}
    longest = [look.pattern.max_positions for look in looks["lsh"] if look.buckets is None]
    config: dict[str, Any] = {
        "architectures": [f"Reformer{kind}"],
        "vocab_size": published.vocabulary,
        "hidden_size": model.width,
        "attn_layers": kinds,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": look.heads,
        "attention_head_size": look.key_width or model.width // look.heads,
        "feed_forward_size": feed.inner,
        "hidden_act": PUBLISHED[feed.activation],
        "is_decoder": causal,
        "layer_norm_eps": stack.join.norm.epsilon,
        "hidden_dropout_prob": stack.dropout,
        "max_position_embeddings": longest[0] if longest else getattr(model.embed.position, "longest", 4096),
        "axial_pos_embds": isinstance(model.embed.position, Axial),
        "hash_seed": seeds.pop() if len(seeds) == 1 else None,
        "tie_word_embeddings": False,
        **labels,
    }
    if stack.join.streams == 2 and model.readout == Vocabulary(tied=False, biased=True):
        said = (
            "transformers 5 does not add the bias of a Reformer's words, so that it answers a little differently there."
        )
        warnings.warn(said, Note, stacklevel=2)
    if isinstance(model.embed.position, Axial):
        config["axial_pos_shape"] = list(model.embed.position.shape)
        config["axial_pos_embds_dim"] = list(model.embed.position.cut(model.width))
    for name, found in looks.items():
        for look in found[:1]:
            config[f"{name}_attn_chunk_length"] = getattr(look.pattern, "window", getattr(look.pattern, "length", 64))
            config[f"{name}_num_chunks_before"] = getattr(look.pattern, "before", 1)
            config[f"{name}_num_chunks_after"] = getattr(look.pattern, "after", 0)
    for look in looks["lsh"][:1]:
        config |= {"num_buckets": look.buckets, "num_hashes": look.rounds}
    return config


def _constant(published: Published) -> Mapping[str, Tensor]:
    match published.model.readout:
        case Vocabulary(biased=False):
            return {"lm_head.bias": torch.zeros(published.vocabulary)}
    return {}


REFORMER = Family(
    "reformer",
    ("ReformerModelWithLMHead", "ReformerForMaskedLM", "ReformerModel", "ReformerForQuestionAnswering"),
    lambda model: ROWS,
    _describe,
    _configure,
    prefix="reformer.",
    outside=r"^(lm_head|qa_outputs)\.",
    ignored=(r"^lm_head\.(decoder\.)?bias$", r"^encoder\.layers\.\d+\.attention\.self_attention\.\w*mask_value\w*$"),
    kept=("hash_seed",),
    constant=_constant,
)
