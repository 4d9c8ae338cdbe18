"""Llama, Mistral and Qwen2 in Hugging Face's format: weight table and configs.

Decoders with rotary positions, RMS norms, a gated feed-forward, and keys and values that several heads share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from regard.errors import DamagedFile, InputError
from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import FeedForward
from regard.layers.join import PreNorm, RMSNorm
from regard.layers.patterns import Causal, Pattern, Window
from regard.layers.positions import Interpolated, InterpolatedByWavelength, Rotary, RotaryScaling
from regard.models.model import Model, Stack
from regard.models.readouts import Last, Vocabulary
from regard.store.huggingface.config import ConfigReader, Family, PublishedModel, PublishedWeights
from regard.store.huggingface.weights import Row, row, split_rows, weight_and_bias

_OURS, _THEIRS = "decoder.layers.{}.", "layers.{}."
_ATTENTION, _FEEDFORWARD = f"{_THEIRS}self_attn.", f"{_THEIRS}mlp."

_ROTARY_SETTINGS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_SCALING_SETTINGS: dict[str, set[str]] = {"default": set(), "linear": {"factor"}, "llama3": {*_LLAMA3}}

ROWS = (
    row("embed_tokens.weight|lm_head.weight", "embed.table.weight"),
    row(f"{_THEIRS}input_layernorm.weight", f"{_OURS}self.norm.weight"),
    *weight_and_bias(f"{_ATTENTION}o_proj", f"{_OURS}self.sublayer.out"),
    row(f"{_THEIRS}post_attention_layernorm.weight", f"{_OURS}feedforward.norm.weight"),
    *weight_and_bias(f"{_FEEDFORWARD}gate_proj", f"{_OURS}feedforward.sublayer.gate"),
    *weight_and_bias(f"{_FEEDFORWARD}up_proj", f"{_OURS}feedforward.sublayer.up"),
    *weight_and_bias(f"{_FEEDFORWARD}down_proj", f"{_OURS}feedforward.sublayer.down"),
    row("norm.weight", "decoder.final_norm.weight"),
    row("lm_head.weight", "readout.lm_head.weight"),
)
_HEADS = {
    "ForSequenceClassification": (row("score.weight", "readout.out.weight"),),
    "ForTokenClassification": weight_and_bias("score", "readout.out"),
}


@dataclass(frozen=True)
class _Kind:
    """What tells the families apart: names, default settings, and which settings there are."""

    name: str
    vocabulary: int
    inner: int
    key_heads: int | None
    biased: bool | None  # projections of queries, keys and values; None: as attention_bias says, and the output's too
    window: str | None  # the setting that turns sliding_window on; "": always on; None: there is no window


_LLAMA = _Kind("Llama", 32000, 11008, None, None, None)
_MISTRAL = _Kind("Mistral", 32000, 14336, 8, False, "")
_QWEN2 = _Kind("Qwen2", 151936, 22016, 32, True, "use_sliding_window")


def _rows(published: PublishedModel) -> tuple[Row, ...]:
    attention = published.decoder.attention
    assert isinstance(attention, SelfAttention)
    key_width = attention.key_width or published.model.width // attention.heads
    key_heads = attention.key_heads or attention.heads
    parts = split_rows(*(key_width * heads for heads in (attention.heads, key_heads, key_heads)))
    names = [f"{_ATTENTION}{part}_proj" for part in "qkv"]
    query_key_value = tuple(
        Row(tuple(f"{name}.{kind}" for name in names), f"{_OURS}self.sublayer.query_key_value.{kind}", (parts,), True)
        for kind in ("weight", "bias")
    )
    return *ROWS, *query_key_value, *_HEADS.get(published.head()[0], ())


def _rotary(config: ConfigReader) -> Rotary:
    """The rotary positions; kinds that are not honoured, such as yarn, are refused by name."""
    base, scalings = config.values.get("rope_theta"), list[RotaryScaling | None]()
    for name in ("rope_parameters", "rope_scaling"):
        found = config.values.get(name)
        config.ignore(name)
        if found is None:
            continue
        kind = (found.get("rope_type") or found.get("type") or "default") if isinstance(found, dict) else None
        partly = isinstance(found, dict) and found.get("partial_rotary_factor") not in (None, 1)
        own = _SCALING_SETTINGS.get(str(kind))
        if own is None or partly or not found.keys() <= _ROTARY_SETTINGS | own:
            config.refuse(name, found)
            continue
        base = base if found.get("rope_theta") is None else found["rope_theta"]
        scalings.append(_scaling(str(kind), ConfigReader(found, f"{config.where}: {name}")))
    if len(set(scalings)) > 1:
        config.refuse("rope_scaling", config.values["rope_scaling"])
    config.assume("partial_rotary_factor", 1)
    config.ignore("rope_theta")
    theta = ConfigReader({"rope_theta": base}, config.where).number("rope_theta", 10_000.0)
    return Rotary(theta, scalings[0] if scalings else None)


def _scaling(kind: str, settings: ConfigReader) -> RotaryScaling | None:
    """How the rotation is slowed for longer texts; values that cannot be are those of a damaged file."""
    try:
        if kind == "linear":
            return Interpolated(settings.number("factor"))
        if kind == "llama3":
            return InterpolatedByWavelength(
                settings.number("factor"), settings.number("low_freq_factor"), settings.number("high_freq_factor"),
                settings.integer("original_max_position_embeddings"),
            )  # fmt: skip
    except InputError as error:
        raise DamagedFile(f"{error} ({settings.where}). Copy it again.") from None
    return None


def _scaling_settings(scaling: RotaryScaling | None) -> dict[str, Any]:
    """The kind of rotary positions, and its own settings."""
    match scaling:
        case None:
            return {"rope_type": "default"}
        case Interpolated(factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case InterpolatedByWavelength():
            numbers = scaling.factor, scaling.low, scaling.high, scaling.trained_length
            return {"rope_type": "llama3", **dict(zip(_LLAMA3, numbers))}


def _window(kind: _Kind, config: ConfigReader) -> Pattern:
    """Causal attention, or a sliding window in every layer; a window in some layers only is refused."""
    if kind.window is None:
        return Causal()
    config.ignore("sliding_window", "max_window_layers")
    on = config.boolean(kind.window, False) if kind.window else True
    layers = config.strings("layer_types", ())
    if on and kind.window:
        config.refuse(kind.window, True)
    if any(layer != "full_attention" for layer in layers):
        config.refuse("layer_types", layers)
    default = None if kind.window else 4096
    length = config.values.get("sliding_window", default)
    return Window(config.integer("sliding_window", default)) if on and length is not None else Causal()


def _from_config(
    kind: _Kind, config: ConfigReader, weights: PublishedWeights, architecture: str
) -> PublishedModel:  # fmt: skip
    width, heads = config.integer("hidden_size", 4096), config.integer("num_attention_heads", 32)
    key_heads = config.integer("num_key_value_heads", kind.key_heads or heads)
    key_width = config.integer("head_dim", max(1, width // heads))
    config.assume("pretraining_tp", 1)
    config.ignore("attention_dropout", "max_position_embeddings")
    biased, out_biased = kind.biased, False
    if biased is None:
        biased = out_biased = config.boolean("attention_bias", False)
    attention = SelfAttention(
        heads, _window(kind, config), position=_rotary(config), key_width=None if key_width * heads == width else
        key_width, biased=biased, key_heads=None if key_heads == heads else key_heads,
        out_biased=None if out_biased == biased else out_biased,
    )  # fmt: skip
    feedforward = FeedForward(
        config.integer("intermediate_size", kind.inner), config.activation("hidden_act", "silu"), gated=True,
        biased=kind is _LLAMA and config.boolean("mlp_bias", False),
    )  # fmt: skip
    norm = RMSNorm(config.epsilon("rms_norm_eps", 1e-6))
    head, dropout = architecture.removeprefix(kind.name), config.number("classifier_dropout", 0.1)
    readout = config.classification_readout(head, pool=Last(), inner=None, dropout=dropout, biased=False)
    tying = config.boolean("tie_word_embeddings", False)
    tied = tying and weights.equal_or_missing("lm_head.weight", "embed_tokens.weight")
    if readout is None:
        bare = architecture.endswith("Model")
        readout = Vocabulary(tied or (bare and "lm_head.weight" not in weights.shapes))
    layers = config.depth("num_hidden_layers", 32) * ((attention, feedforward),)
    model = Model(width, Embed(), decoder=Stack(layers, PreNorm(norm)), readout=readout)
    return PublishedModel(model, config.integer("vocab_size", kind.vocabulary))


def _to_config(kind: _Kind, published: PublishedModel) -> dict[str, Any]:
    head, labels = published.head("ForCausalLM")
    decoder, attention, position = published.decoder, published.decoder.attention, None
    if isinstance(attention, SelfAttention):
        position = attention.position
    if not isinstance(attention, SelfAttention) or not isinstance(position, Rotary):
        raise TypeError("not a decoder with rotary positions")
    window = attention.pattern.length if isinstance(attention.pattern, Window) else None
    own: dict[str, dict[str, Any]] = {
        "Llama": {"attention_bias": attention.biased, "mlp_bias": decoder.feedforward.biased},
        "Mistral": {"sliding_window": window},
        "Qwen2": {"use_sliding_window": False},
    }
    return {
        "architectures": [f"{kind.name}{head}"],
        "vocab_size": published.vocabulary,
        "hidden_size": published.model.width,
        "intermediate_size": decoder.feedforward.inner,
        "num_hidden_layers": decoder.depth,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.key_heads or attention.heads,
        "head_dim": attention.key_width or published.model.width // attention.heads,
        "hidden_act": decoder.activation,
        "max_position_embeddings": 2048,
        "rms_norm_eps": decoder.epsilon,
        "rope_parameters": {**_scaling_settings(position.scaling), "rope_theta": position.base},
        "tie_word_embeddings": published.tied,
        **own[kind.name],
        **labels,
    }


def _family(kind: _Kind, name: str) -> Family:
    heads = "ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification"
    return Family(
        name,
        tuple(f"{kind.name}{head}" for head in heads),
        _rows,
        partial(_from_config, kind),
        partial(_to_config, kind),
        prefix="model.",
        unprefixed=r"^(lm_head|score)\.",
        ignored=(r"^layers\.\d+\.self_attn\.rotary_emb\.inv_freq$", r"^rotary_emb\.inv_freq$"),
        kept_settings=("max_position_embeddings",),
    )


LLAMA = _family(_LLAMA, "llama")
MISTRAL = _family(_MISTRAL, "mistral")
QWEN2 = _family(_QWEN2, "qwen2")
