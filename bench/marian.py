"""Our Transformer's weights in transformers' Marian, which is the same model under other names."""

from __future__ import annotations

import re

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from regard.data.tokenize.tokenizer import Tokenizer
from regard.errors import InputError
from regard.models import zoo
from regard.models.model import Model, Network

PARTS = {
    "self.sublayer.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self.sublayer.out": ("self_attn.out_proj",),
    "self.norm": ("self_attn_layer_norm",),
    "cross.sublayer.query": ("encoder_attn.q_proj",),
    "cross.sublayer.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.sublayer.out": ("encoder_attn.out_proj",),
    "cross.norm": ("encoder_attn_layer_norm",),
    "feedforward.sublayer.up": ("fc1",),
    "feedforward.sublayer.down": ("fc2",),
    "feedforward.norm": ("final_layer_norm",),
}


def as_marian(network: Network, tokenizer: Tokenizer, *, positions: int = 1024) -> MarianMTModel:
    """The same function as a MarianMTModel that reads at most `positions` tokens."""
    model = MarianMTModel(_config(network, tokenizer, positions))
    model.set_attn_implementation("sdpa")
    found = dict(model.named_parameters())
    weights = marian_weights(network)
    # The table of sinusoids is a parameter there, though it is never trained.
    assert weights.keys() == {name for name in found if "embed_positions" not in name}
    with torch.no_grad():
        for name, tensor in weights.items():
            found[name].copy_(tensor)
    return model


def marian_weights(network: Network) -> dict[str, Tensor]:
    """Our parameters under Marian's names."""
    weights = {"model.shared.weight": network.embed.table.weight}
    for name, tensor in network.named_parameters():
        match = re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is not None:
            stack, layer, part, kind = match.groups()
            theirs = PARTS[part]
            for their, piece in zip(theirs, tensor.chunk(len(theirs))):
                weights[f"model.{stack}.layers.{layer}.{their}.{kind}"] = piece
    return weights


def _config(network: Network, tokenizer: Tokenizer, positions: int) -> MarianConfig:
    description = network.description
    heads, inner = sizes(description)
    _require_alike(network, heads, inner)
    assert description.encoder is not None
    assert description.decoder is not None
    return MarianConfig(
        vocab_size=network.vocabulary,
        d_model=description.width,
        encoder_layers=len(description.encoder.layers),
        decoder_layers=len(description.decoder.layers),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=positions,
        dropout=description.encoder.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=tokenizer.pad,
        eos_token_id=tokenizer.eos,
        bos_token_id=tokenizer.bos,
        decoder_start_token_id=tokenizer.bos,
        forced_eos_token_id=None,
    )


def sizes(description: Model) -> tuple[int, int]:
    """Heads and the feed-forward's inner width; zeros where there are none."""
    first = description.encoder.layers[0] if description.encoder is not None else ()
    named = {part.name: part for part in first}
    return getattr(named.get("self"), "heads", 0), getattr(named.get("feedforward"), "inner", 0)


def _require_alike(network: Network, heads: int, inner: int) -> None:
    """Refuse a network other than the Transformer of the paper, with one vocabulary."""
    ours = network.description
    if ours.encoder is not None and ours.decoder is not None and network.source_vocabulary is None:
        depths = len(ours.encoder.layers), len(ours.decoder.layers)
        paper = zoo.transformer(
            ours.width, depths[0], heads, inner=inner, decoder_depth=depths[1], dropout=ours.encoder.dropout
        )
        if ours == paper:
            return
    raise InputError(
        "the peer has no equal of this model (--model). Train one with name = transformer, any sizes and dropout, the "
        "defaults for all else, and a joint tokenizer."
    )
