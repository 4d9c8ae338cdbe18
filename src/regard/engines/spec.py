"""A model as CTranslate2 describes it: its specification, filled from our description and weights.

Every part that CTranslate2 has no words for is refused by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import ctranslate2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import LayerNorm, PostNorm, PreNorm, RMSNorm
from regard.layers.patterns import Causal, Full
from regard.layers.positions import ALiBi, Learned, RelativeBias, Rotary, Sinusoid
from regard.layers.scores import Dot
from regard.models.model import Model, Network, Stack
from regard.models.readouts import Vocabulary
from regard.schema import kind_of

MAX_POSITIONS = 2048  # of sinusoids, which are written out; longer texts are torch's

_ADD = ctranslate2.specs.EmbeddingsMerge.ADD  # BERT's segments
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "tanh": "Tanh"}

T = TypeVar("T")


def spec_of(network: Network, tokens: tuple[list[str], list[str]]) -> Any:
    """CTranslate2's specification of a model; `tokens` name the ids of the source and of the target.

    That of an encoder alone ends with the hidden states.
    """
    model = network.description
    for stack in model.stacks.values():
        _parts(stack)
    _require_embed(model)
    _refuse(model.shape != "encoder" and model.readout.outputs != "tokens", "a decoder whose readout writes no text")
    spec = _SPECS[model.shape](network)
    if model.shape == "encoder-decoder":
        spec.register_source_vocabulary(tokens[0])
        spec.register_target_vocabulary(tokens[1])
    else:
        spec.register_vocabulary(tokens[1])
    spec.config.layer_norm_epsilon = _epsilon(model)
    return spec


def max_positions(model: Model) -> int | None:
    """How many tokens the engine can read; None when there is no bound."""
    written = isinstance(model.embed.position, Sinusoid) or _has_no_positions(model)
    return MAX_POSITIONS if written else model.embed.max_positions


def _encoder(network: Network) -> Any:
    model = network.description
    stack, embed = _require(model.encoder, Stack), _embed(model)
    _refuse(isinstance(stack.position, ALiBi), "ALiBi's biases in an encoder")
    spec = ctranslate2.specs.TransformerEncoderSpec(
        len(stack.layers), **_common(stack), layernorm_embedding=embed.norm is not None,
        num_source_embeddings=2 if embed.segments else 1, embeddings_merge=_ADD,
    )  # fmt: skip
    _fill_stack(spec, network.encoder, stack)
    _fill_embedding(spec, spec.embeddings[0], network.source_embed, model)
    if embed.segments:
        spec.embeddings[1].weight = _array(cast(Any, network.source_embed).segments.weight)
    return spec


def _decoder(network: Network) -> Any:
    model = network.description
    stack = _require(model.decoder, Stack)
    # Whole texts it scores as torch does, but what it generates step by step differs.
    _refuse(model.encoder is None and isinstance(stack.position, RelativeBias), "relative_bias in a language model")
    spec = ctranslate2.specs.TransformerDecoderSpec(
        len(stack.layers), **_common(stack), layernorm_embedding=_embed(model).norm is not None,
        alibi=isinstance(stack.position, ALiBi), with_encoder_attention=model.encoder is not None,
    )  # fmt: skip
    _fill_stack(spec, network.decoder, stack)
    _fill_embedding(spec, spec.embeddings, network.embed, model)
    readout = _require(model.readout, Vocabulary)
    _refuse(readout.transform is not None, "a transform before the logits")
    spec.scale_outputs = model.width**-0.5 if readout.scaled else ctranslate2.specs.model_spec.OPTIONAL
    _fill_linear(spec.projection, cast(Any, network.readout).lm_head)
    return spec


_SPECS: dict[str, Callable[[Network], Any]] = {
    "encoder-decoder": lambda network: ctranslate2.specs.TransformerSpec(_encoder(network), _decoder(network)),
    "decoder": lambda network: ctranslate2.specs.TransformerDecoderModelSpec(_decoder(network)),
    "encoder": lambda network: ctranslate2.specs.TransformerEncoderModelSpec(_encoder(network)),
}


def _common(stack: Stack) -> dict[str, Any]:
    """The arguments that both stacks have."""
    attention, feedforward = _parts(stack)
    position = attention.position
    _refuse(isinstance(position, Rotary) and position.scaling is not None, "rotary positions with a scaling")
    rotary = {} if position is None else {
        "rotary_dim": 0, "rotary_interleave": False, "rotary_base": _require(position, Rotary).base,
    }  # fmt: skip
    return {
        "num_heads": attention.heads, "num_heads_kv": attention.key_heads, "head_dim": attention.key_width,
        "pre_norm": isinstance(stack.join, PreNorm), "ffn_glu": feedforward.gated,
        "activation": ctranslate2.specs.Activation[_ACTIVATIONS[feedforward.activation]],
        "rms_norm": isinstance(_norm(stack), RMSNorm),
        "relative_attention_bias": isinstance(stack.position, RelativeBias), **rotary,
    }  # fmt: skip


def _parts(stack: Stack) -> tuple[SelfAttention, FeedForward]:
    """The self-attention and the feed-forward network of a stack, which are the same in all its layers."""
    if not isinstance(stack.position, RelativeBias | ALiBi | None):
        raise refusal(f"a position of kind {kind_of(type(stack.position))}")
    _refuse(any(layer != stack.layers[0] for layer in stack.layers), "layers that differ from each other")
    first, *rest = stack.layers[0]
    attention, feedforward = _require(first, SelfAttention), _require(rest[-1] if rest else first, FeedForward)
    crosses = [_require(part, CrossAttention) for part in rest[:-1]]
    _refuse(len(crosses) > 1, "several cross-attentions in a layer")
    attentions: list[SelfAttention | CrossAttention] = [attention, *crosses]
    for part in attentions:
        _require(part.score, Dot)
        _refuse(part.key_width != attention.key_width, "cross-attention with heads of another width (key_width)")
        _refuse(part.heads != attention.heads, "cross-attention with other heads than self-attention")
        _require_pattern(part)
    _refuse(bool(crosses) and attention.key_heads is not None, "keys for several heads (key_heads) in a translator")
    return attention, feedforward


def _require_pattern(part: SelfAttention | CrossAttention) -> None:
    if not isinstance(part.pattern, (Full, Causal)):
        raise refusal(f"a pattern of kind {kind_of(type(part.pattern))}")


def _require_embed(model: Model) -> None:
    embed = _embed(model)
    position = embed.position
    if position is not None and not isinstance(position, (Sinusoid, Learned)):
        raise refusal(f"a position of kind {kind_of(type(position))}")
    _refuse(position is not None and _attention_has_positions(model), "two kinds of positions together")
    _refuse(embed.segments > 0 and model.shape != "encoder", "segments in a model that writes text")
    _refuse(embed.inner is not None, "an embedding with a width of its own (inner)")
    _refuse(model.mix is not None, "a mix of layers")


def _attention_has_positions(model: Model) -> bool:
    """Whether positions are rotary, or a bias on scores."""
    return any(stack.position is not None or _parts(stack)[0].position is not None for stack in model.stacks.values())


def _has_no_positions(model: Model) -> bool:
    return model.embed.position is None and not _attention_has_positions(model)


def _embed(model: Model) -> Embed:
    return _require(model.embed, Embed)


def _norm(stack: Stack) -> LayerNorm | RMSNorm:
    if not isinstance(stack.join, (PreNorm, PostNorm)):
        raise refusal(f"layers joined by {kind_of(type(stack.join))}")
    return stack.join.norm


def _epsilon(model: Model) -> float:
    """The epsilon of all norms, of which the engine has one."""
    norms = {_norm(stack) for stack in model.stacks.values()}
    own = _embed(model).norm
    norms |= {own} if own is not None else set()
    _refuse(len(norms) > 1, "norms that differ from each other")
    return norms.pop().epsilon


def _fill_stack(spec: Any, module: Any, stack: Stack) -> None:
    for layer, ours in zip(spec.layer, module.layers):
        joined = dict(ours.items())
        self_attention, feedforward = joined["self"], joined["feedforward"]
        _fill_attention(layer.self_attention, self_attention, ("query_key_value", "out"))
        if "cross" in joined:
            _fill_attention(layer.attention, joined["cross"], ("query", "key_value", "out"))
        _fill_norm(layer.ffn.layer_norm, feedforward.norm)
        inner = feedforward.sublayer
        _fill_linear(layer.ffn.linear_0, inner.up if inner.gate is None else inner.gate)
        if inner.gate is not None:
            _fill_linear(layer.ffn.linear_0_noact, inner.up)
        _fill_linear(layer.ffn.linear_1, inner.down)
        if isinstance(stack.position, RelativeBias):
            layer.self_attention.relative_attention_bias = _array(module.position.table.weight)
            layer.self_attention.relative_attention_max_distance = np.int32(stack.position.max_distance)
    if isinstance(stack.join, PreNorm):
        _fill_norm(spec.layer_norm, module.final_norm)


def _fill_attention(spec: Any, joined: Any, names: Iterable[str]) -> None:
    _fill_norm(spec.layer_norm, joined.norm)
    for linear, name in zip(spec.linear, names):
        _fill_linear(linear, getattr(joined.sublayer, name))
    out, heads = joined.sublayer.out, joined.sublayer.heads
    usual = 1 / math.sqrt(out.in_features // heads)
    if joined.sublayer.score.scale != usual:
        spec.queries_scale = np.float32(joined.sublayer.score.scale)


def _fill_embedding(spec: Any, table: Any, module: Any, model: Model) -> None:
    embed = _embed(model)
    table.weight = _array(module.table.weight)
    spec.scale_embeddings = embed.scaled
    if embed.position is not None:
        count = max_positions(model) or MAX_POSITIONS
        spec.position_encodings.encodings = _array(module.position.table(torch.arange(count)))
    elif _has_no_positions(model):
        spec.position_encodings.encodings = np.zeros((MAX_POSITIONS, model.width), dtype=np.float32)
    if embed.norm is not None:
        _fill_norm(spec.layernorm_embedding, module.norm)


def _fill_norm(spec: Any, module: Any) -> None:
    spec.gamma = _array(module.weight)
    if isinstance(module, nn.LayerNorm):
        spec.beta = _array(torch.zeros_like(module.weight) if module.bias is None else module.bias)


def _fill_linear(spec: Any, module: nn.Linear) -> None:
    spec.weight = _array(module.weight)
    if module.bias is not None:
        spec.bias = _array(module.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    # A copy, because quantization rounds its arrays in place.
    return np.array(tensor.detach().float().cpu().numpy(), order="C")


def _require(part: Any, kind: type[T]) -> T:
    """The part, refused if it is of another kind."""
    if not isinstance(part, kind):
        raise refusal("nothing" if part is None else kind_of(type(part)))
    return part


def _refuse(found: bool, what: str) -> None:
    if found:
        raise refusal(what)


def refusal(what: str) -> InputError:
    """The error about a part that CTranslate2 cannot run."""
    return InputError(f"CTranslate2 cannot run {what} (--to ctranslate2). Use this model with --engine torch.")
