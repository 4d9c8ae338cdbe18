"""fairseq's checkpoints: the Transformer, the LSTM with Luong's attention, and RoBERTa."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.attention_decoder import AttentionDecoder
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import LayerNorm, PostNorm, PreNorm, Replace
from regard.layers.patterns import Causal
from regard.layers.positions import Learned, Position, Sinusoid
from regard.layers.recurrent import LSTM, Copied, Recurrent
from regard.layers.scores import General
from regard.models.model import Model, Stack
from regard.models.readouts import Transform, Vocabulary
from regard.store.huggingface.marian import stack_rows
from regard.store.huggingface.weights import Row, drop_rows, row, weight_and_bias
from regard.store.orphans.tables import (
    DECODER,
    PER_HEAD,
    Orphan,
    Settings,
    decoder_rows,
    joined,
    recurrent_rows,
    zeros,
)
from regard.store.orphans.texts import Words, read_lines, tokenizer_for, vocabulary

_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
_PAD = 1
_OVERWRITE = " #fairseq:overwrite"
_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_tanh", "gelu_fast": "gelu_tanh", "tanh": "tanh",
    "swish": "silu",
}  # fmt: skip
_TRANSFORMERS = ("transformer", "bart", "mbart")
# What a checkpoint's arch may be called besides its family's name: a size that the settings repeat.
_LSTMS, _ENCODERS = ("lstm",), ("roberta",)

TRANSFORMER_ROWS = (
    *stack_rows("encoder"),
    *stack_rows("decoder"),
    row("encoder.embed_positions.weight", "source_embed.position.weight", drop_rows(_PAD + 1)),
    row("decoder.embed_positions.weight", "embed.position.weight", drop_rows(_PAD + 1)),
    *weight_and_bias("encoder.layernorm_embedding", "source_embed.norm"),
    *weight_and_bias("decoder.layernorm_embedding", "embed.norm"),
    *weight_and_bias("encoder.layer_norm", "encoder.final_norm"),
    *weight_and_bias("decoder.layer_norm", "decoder.final_norm"),
    row("decoder.output_projection.weight|decoder.embed_out", "readout.lm_head.weight"),
)
_OUTPUT = ("decoder.output_projection.weight",)


def embedding_rows(*, tied: bool, shared: bool) -> tuple[Row, ...]:
    """The rows of both embeddings, or of the one that the sides share; a tied output matrix repeats the target's."""
    target = ("decoder.embed_tokens.weight", *(_OUTPUT if tied else ()))
    if shared:
        return (Row((*target, "encoder.embed_tokens.weight"), "embed.table.weight"),)
    return Row(target, "embed.table.weight"), row("encoder.embed_tokens.weight", "source_embed.table.weight")


_IGNORED = (
    r"^(en|de)coder\.version$",
    r"^(en|de)coder\.embed_positions\._float_tensor$",
    r"^encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$",
)  # fused copies, for speed

_ROBERTA = "encoder.sentence_encoder."
_ROBERTA_LAYER = f"{_ROBERTA}layers.{{}}."
_OUR_LAYER = "encoder.layers.{}."
_HEAD = "encoder.lm_head."
ROBERTA_ROWS = (
    row(f"{_ROBERTA}embed_tokens.weight|{_HEAD}weight", "embed.table.weight"),
    row(f"{_ROBERTA}embed_positions.weight", "embed.position.weight", drop_rows(_PAD + 1)),
    *weight_and_bias(f"{_ROBERTA}layernorm_embedding|{_ROBERTA}emb_layer_norm", "embed.norm"),
    *weight_and_bias(
        f"{_ROBERTA_LAYER}self_attn.q_proj+{_ROBERTA_LAYER}self_attn.k_proj+{_ROBERTA_LAYER}self_attn.v_proj",
        f"{_OUR_LAYER}self.sublayer.query_key_value",
    ),
    *weight_and_bias(f"{_ROBERTA_LAYER}self_attn.out_proj", f"{_OUR_LAYER}self.sublayer.out"),
    *weight_and_bias(f"{_ROBERTA_LAYER}self_attn_layer_norm", f"{_OUR_LAYER}self.norm"),
    *weight_and_bias(f"{_ROBERTA_LAYER}fc1", f"{_OUR_LAYER}feedforward.sublayer.up"),
    *weight_and_bias(f"{_ROBERTA_LAYER}fc2", f"{_OUR_LAYER}feedforward.sublayer.down"),
    *weight_and_bias(f"{_ROBERTA_LAYER}final_layer_norm", f"{_OUR_LAYER}feedforward.norm"),
    *weight_and_bias(f"{_HEAD}dense", "readout.transform.dense"),
    *weight_and_bias(f"{_HEAD}layer_norm", "readout.transform.norm"),
    row(f"{_HEAD}weight", "readout.lm_head.weight"),
    row(f"{_HEAD}bias", "readout.lm_head.bias"),
)


def lstm_rows(width: int, vocabulary: int, depth: int, directions: tuple[str, ...], *, biased: bool) -> tuple[Row, ...]:
    """The LSTM's table: the decoder's lowest cell reads [token; attentional vector]; the two biases are added."""
    return (
        *recurrent_rows("encoder.lstm", "encoder.layers.0.recurrent.sublayer.layers.{}.{direction}.rnn", directions),
        *decoder_rows("decoder.layers.{}.{}".format, LSTM(), depth, embedded=width, width=width),
        row("decoder.attention.input_proj.weight", f"{DECODER}attention.score.matrix", PER_HEAD),
        row("decoder.attention.output_proj.weight", f"{DECODER}out.weight"),
        joined((), f"{DECODER}out.bias", zeros(width)),
        row("decoder.fc_out.weight", "readout.lm_head.weight"),
        row("decoder.fc_out.bias", "readout.lm_head.bias") if biased
        else joined((), "readout.lm_head.bias", zeros(vocabulary)),
    )  # fmt: skip


def is_fairseq(settings: Mapping[str, Any]) -> bool:
    """Whether the settings of a checkpoint are fairseq's."""
    return isinstance(settings.get("model"), dict) and bool({"args", "cfg"} & settings.keys())


def read_fairseq(
    folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Orphan, dict[str, Tensor]]:
    """The model of a checkpoint, and its tensors by the names of the table."""
    config = settings.get("cfg") if isinstance(settings.get("cfg"), dict) else None
    values = {**_flat(config), **_flat(settings.get("args"))}
    found = Settings(values, f"{folder}, fairseq's args")
    named = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    arch = found.string("arch", str(values.get("_name", "")))
    if arch.startswith(_ENCODERS):
        named = {name.replace("decoder.", "encoder.", 1) if name.startswith("decoder.") else name: tensor
                 for name, tensor in named.items()}  # fmt: skip
        return _roberta(folder, found, named), named
    if arch.startswith(_LSTMS) and arch != "lstm_lm":
        return _lstm(folder, found), named
    if arch.startswith(_TRANSFORMERS) and not arch.startswith("transformer_lm"):
        return _transformer(folder, found, named), named
    raise InputError(f"fairseq's architecture {arch!r} is not supported ({folder}). regard reads transformer, bart, "
                     "mbart, lstm and roberta.")  # fmt: skip


def _flat(config: Any) -> dict[str, Any]:
    """All settings of the groups of a config, the model's last; those of an older checkpoint are not in groups."""
    if not isinstance(config, dict):
        return {}
    groups = [config.get(name) for name in ("common", "task", "model")]
    flat = {key: value for key, value in config.items() if not isinstance(value, dict)}
    for group in groups:
        flat |= group if isinstance(group, dict) else {}
    return flat


def _words(folder: Path, language: str, *, mask: bool = False) -> Words:
    """dict.txt of a language: a token and its count per line, after four special tokens."""
    path = folder / f"dict.{language}.txt" if language else folder / "dict.txt"
    if not path.is_file():
        raise InputError(f"{folder} lacks {path.name}, the vocabulary. Copy it from the folder of fairseq's data.")
    tokens = list(_SPECIALS)
    for line in read_lines(path):
        token = line.removesuffix(_OVERWRITE).rpartition(" ")[0]
        if line.endswith(_OVERWRITE) and token in tokens:
            continue
        tokens.append(token)
    tokens += ["<mask>"] if mask and "<mask>" not in tokens else []
    return vocabulary(tokens, *("<s>", "</s>", "<pad>", "<unk>"), after=("</s>",), mask="<mask>" if mask else None,
                      where=path)  # fmt: skip


def _pair(folder: Path, found: Settings) -> tuple[Words, Words]:
    """The vocabularies of both languages; a translation starts with </s>."""
    languages = [found.string(f"{side}_lang") for side in ("source", "target")]
    source, target = (_words(folder, language) for language in languages)
    return replace(source, bos=source.eos), replace(target, bos=target.eos)


def _sinusoid(width: int) -> Sinusoid:
    """As in tensor2tensor: the last of the width / 2 wavelengths is 10,000 * 2 pi; positions follow the padding's."""
    half = width // 2
    if half < 2:
        raise InputError(f"encoder_embed_dim = {width} is too narrow for fairseq's sinusoids.")
    return Sinusoid(10_000 ** (half / (half - 1)), first=_PAD + 1)


def _transformer(folder: Path, found: Settings, tensors: Mapping[str, Tensor]) -> Orphan:
    width, inner = found.integer("encoder_embed_dim", 512), found.integer("encoder_ffn_embed_dim", 2048)
    for name in ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim"):
        found.assume(name, width)
    pre_norm = found.boolean("encoder_normalize_before", False)
    found.assume("decoder_normalize_before", pre_norm)
    learned = found.boolean("encoder_learned_pos", False)
    found.assume("decoder_learned_pos", learned)
    found.assume_off(
        "no_token_positional_embeddings", "no_cross_attention", "cross_self_attention", "adaptive_softmax_cutoff",
        "adaptive_input", "character_embeddings", "encoder_layers_to_keep", "decoder_layers_to_keep",
        "export_quantized",
        "base_layers", "base_sublayers", "no_encoder_attn", "use_stable_embedding", "char_inputs",
    )  # fmt: skip
    found.assume_off("no_decoder_final_norm")
    activation = found.activation("activation_fn", _ACTIVATIONS, "relu")
    positions = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    lengths = {len(tensors[name]) for name in positions if name in tensors}
    if learned and len(lengths) != 1:
        found.refuse("max_source_positions and max_target_positions", f"{sorted(lengths)} differ")
    position: Position = Learned(max(lengths) - _PAD - 1) if learned and lengths else _sinusoid(width)
    source, target = _pair(folder, found)
    shared = found.boolean("share_all_embeddings", False)
    tied = shared or found.boolean("share_decoder_input_output_embed", False)
    heads = found.integer("decoder_attention_heads", 8)
    decoder_inner = found.integer("decoder_ffn_embed_dim", inner)
    encoder_layer = SelfAttention(found.integer("encoder_attention_heads", 8)), FeedForward(inner, activation)
    decoder_layer = SelfAttention(heads, Causal()), CrossAttention(heads), FeedForward(decoder_inner, activation)
    norm = LayerNorm() if found.boolean("layernorm_embedding", False) else None
    join, dropout = PreNorm() if pre_norm else PostNorm(), found.number("dropout", 0.1)
    model = Model(
        width,
        Embed(position, not found.boolean("no_scale_embedding", False), dropout, norm=norm),
        Stack(found.integer("encoder_layers", 6) * (encoder_layer,), join, dropout),
        Stack(found.integer("decoder_layers", 6) * (decoder_layer,), join, dropout),
        Vocabulary(tied),
        shared=shared,
    )
    found.finish()
    rows = (*TRANSFORMER_ROWS, *embedding_rows(tied=tied, shared=shared))
    return _translator(folder, found, model, (source, target), rows, shared)


def _lstm(folder: Path, found: Settings) -> Orphan:
    width = found.integer("decoder_hidden_size", found.integer("decoder_embed_dim", 512))
    both_ways = found.boolean("encoder_bidirectional", False)
    for name in ("encoder_embed_dim", "decoder_embed_dim", "decoder_out_embed_dim"):
        found.assume(name, width)
    found.assume("encoder_hidden_size", width // 2 if both_ways else width)
    found.assume("decoder_attention", True, 1, "True", "1")
    depth = found.integer("decoder_layers", 1)
    found.assume("encoder_layers", depth)
    if found.values.get("criterion") == "adaptive_loss":
        found.refuse("criterion", "adaptive_loss")
    source, target = _pair(folder, found)
    shared = found.boolean("share_all_embeddings", False)
    tied = shared or found.boolean("share_decoder_input_output_embed", False)
    dropout = found.number("dropout", 0.1)
    encoder = Recurrent(LSTM(), depth, "bidirectional" if both_ways else "forward", dropout)
    decoder = AttentionDecoder("after", LSTM(), depth, General(), initial_state=Copied(), dropout=dropout)
    model = Model(
        width, Embed(dropout=dropout), Stack(((encoder,),), Replace(), dropout),
        Stack(((decoder,),), Replace(), dropout), Vocabulary(tied, biased=not tied), shared=shared,
    )  # fmt: skip
    found.finish()
    rows = lstm_rows(width, len(target.tokens), depth, ("", "_reverse") if both_ways else ("",), biased=not tied)
    rows = (*rows, *embedding_rows(tied=tied, shared=shared))
    return _translator(folder, found, model, (source, target), rows, shared)


def _translator(
    folder: Path, found: Settings, model: Model, words: tuple[Words, Words], rows: tuple[Row, ...], shared: bool
) -> Orphan:  # fmt: skip
    source, target = words
    first = tokenizer_for(source, folder, found.string("source_lang"))
    second = None if shared else tokenizer_for(target, folder, found.string("target_lang"))
    generation = {"num_beams": 5, "length_penalty": 1.0, "normalization": "length", "early_stopping": True,
                  "decoder_start_token_id": target.bos,
                  "eos_token_id": target.eos, "pad_token_id": target.pad, "suppress_tokens": [target.pad]}  # fmt: skip
    return Orphan("fairseq", model, len(target.tokens), None if shared else len(source.tokens), rows,
                  (first, second), generation, _IGNORED)  # fmt: skip


def _roberta(folder: Path, found: Settings, tensors: Mapping[str, Tensor]) -> Orphan:
    if heads := sorted({name.split(".")[1] for name in tensors if name.startswith("classification_heads.")}):
        found.refuse("classification_heads", ", ".join(heads))
    width, epsilon = found.integer("encoder_embed_dim", 768), 1e-5
    found.assume_off("encoder_normalize_before_all", "untie_weights_roberta", "encoder_layers_to_keep",
                     "use_stable_embedding", "spectral_norm_classification_head")  # fmt: skip
    found.assume("encoder_normalize_before", False) if found.values.get("layernorm_embedding") else None
    found.assume("encoder_learned_pos", True)
    activation = found.activation("activation_fn", _ACTIVATIONS, "gelu")
    words = replace(_words(folder, "", mask=True), before=(0,))
    layer = (
        SelfAttention(found.integer("encoder_attention_heads", 12)),
        FeedForward(found.integer("encoder_ffn_embed_dim", 3072), activation),
    )
    positions = tensors.get(f"{_ROBERTA}embed_positions.weight")
    max_positions = len(positions) - _PAD - 1 if positions is not None else found.integer("max_positions", 512)
    norm, dropout = LayerNorm(epsilon), found.number("dropout", 0.1)
    model = Model(
        width,
        Embed(Learned(max_positions), dropout=dropout, norm=norm),
        encoder=Stack(found.integer("encoder_layers", 12) * (layer,), PostNorm(norm), dropout),
        readout=Vocabulary(True, True, Transform(activation, norm)),
    )
    found.finish()
    tokenizer = tokenizer_for(words, folder, "")
    return Orphan("fairseq", model, len(words.tokens), None, ROBERTA_ROWS, (tokenizer, None), {}, _IGNORED, "masked_lm")
