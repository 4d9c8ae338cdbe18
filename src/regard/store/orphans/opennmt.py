"""OpenNMT-py's checkpoints (version 3): the Transformer, and RNNs with global attention."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import DamagedFile, InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.attention_decoder import AttentionalVector, AttentionDecoder
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import LayerNorm, PreNorm, Replace, RMSNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Sinusoid
from regard.layers.recurrent import GRU, LSTM, Cell, Copied, Recurrent
from regard.layers.scores import Dot, General
from regard.models.model import AnySublayer, Model, Stack
from regard.models.readouts import Vocabulary
from regard.store.huggingface.weights import Row, row
from regard.store.orphans.tables import (
    DECODER,
    PER_HEAD,
    Orphan,
    Settings,
    StreamOrder,
    decoder_rows,
    joined,
    recurrent_rows,
    zeros,
)
from regard.store.orphans.texts import Words, tokenizer_for, vocabulary

_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gated-gelu": "gelu"}
_GATED = ("silu", "gated-gelu")
_SOURCE, _TARGET = (f"{side}.embeddings.make_embedding.emb_luts.0.weight" for side in ("encoder", "decoder"))
_IGNORED = (r"^(en|de)coder\.embeddings\.make_embedding\.pe\.pe$",)


def transformer_rows(order: StreamOrder) -> tuple[Row, ...]:
    """The Transformer's table."""
    rows: list[Row] = []
    for theirs, side, norm in (("encoder.transformer", "encoder", "layer_norm"),
                               ("decoder.transformer_layers", "decoder", "layer_norm_1")):  # fmt: skip
        layer, ours = f"{theirs}.{{}}.", f"{side}.layers.{{}}."
        inputs = "+".join(f"{layer}self_attn.linear_{part}" for part in ("query", "keys", "values"))
        rows += [
            *order.reading(inputs, f"{ours}self.sublayer.query_key_value"),
            *order.writing(f"{layer}self_attn.final_linear", f"{ours}self.sublayer.out"),
            *order.norm(f"{layer}{norm}", f"{ours}self.norm"),
            *order.norm(f"{layer}feed_forward.layer_norm", f"{ours}feedforward.norm"),
            *order.writing(f"{layer}feed_forward.w_2", f"{ours}feedforward.sublayer.down"),
            *order.norm(f"{side}.layer_norm", f"{side}.final_norm"),
        ]
    layer, ours = "decoder.transformer_layers.{}.", "decoder.layers.{}.cross."
    return (
        *rows,
        *order.reading(f"{layer}context_attn.linear_query", f"{ours}sublayer.query"),
        *order.reading(
            f"{layer}context_attn.linear_keys+{layer}context_attn.linear_values", f"{ours}sublayer.key_value"
        ),
        *order.writing(f"{layer}context_attn.final_linear", f"{ours}sublayer.out"),
        *order.norm(f"{layer}layer_norm_2", f"{ours}norm"),
        Row(("generator.weight",), "readout.lm_head.weight", order.reads),
        row("generator.bias", "readout.lm_head.bias"),
    )


def feedforward_rows(order: StreamOrder, *, gated: bool) -> tuple[Row, ...]:
    """The inner layer of feed-forward networks: `w_1` is activated, and where there is a `w_3`, multiplied by it."""
    rows: list[Row] = []
    for theirs, side in (("encoder.transformer", "encoder"), ("decoder.transformer_layers", "decoder")):
        layer, ours = f"{theirs}.{{}}.feed_forward.", f"{side}.layers.{{}}.feedforward.sublayer."
        rows += order.reading(f"{layer}w_1", f"{ours}gate" if gated else f"{ours}up")
        rows += order.reading(f"{layer}w_3", f"{ours}up") if gated else ()
    return tuple(rows)


def recurrent_table(
    cell: Cell, depth: int, width: int, directions: tuple[str, ...], *, input_feed: bool
) -> tuple[Row, ...]:
    """The RNNs' table; without input feeding the decoder's cells are one module of torch, and attention follows."""
    encoder = "encoder.layers.0.recurrent.sublayer.layers.{}.{direction}.rnn"
    rows: tuple[Row, ...] = recurrent_rows("encoder.rnn", encoder, directions)
    attention = DECODER
    if input_feed:
        rows += decoder_rows("decoder.rnn.layers.{}.{}".format, cell, depth, embedded=width, width=width)
    else:
        rows += recurrent_rows("decoder.rnn", "decoder.layers.0.recurrent.sublayer.layers.{}.{direction}.rnn", ("",))
    return (
        *rows,
        row("decoder.attn.linear_in.weight", f"{attention}attention.score.matrix", PER_HEAD),
        row("decoder.attn.linear_out.weight", f"{attention}out.weight"),
        joined((), f"{attention}out.bias", zeros(width)),
        row("generator.weight", "readout.lm_head.weight"),
        row("generator.bias", "readout.lm_head.bias"),
    )


def is_opennmt(settings: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is OpenNMT-py's, of version 3 or later."""
    return isinstance(settings.get("opt"), dict) and isinstance(settings.get("vocab"), dict)


def read_opennmt(
    folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Orphan, dict[str, Tensor]]:
    """The model of a checkpoint, which holds its vocabularies too."""
    found = Settings(settings["opt"], f"{folder}, OpenNMT-py's opt")
    named = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    found.assume("model_task", "seq2seq")
    found.assume("generator_function", "softmax")
    found.assume("feat_merge", "concat")
    found.assume_off("n_src_feats", "copy_attn", "coverage_attn", "context_gate", "bridge", "lora_layers",
                     "num_experts",
                     "sliding_window", "quant_layers")  # fmt: skip
    found.assume("lambda_align", 0, 0.0)
    if "onmt_tokenize" in (found.values.get("transforms") or []):
        found.refuse("transforms", "onmt_tokenize")
    source, target = _words(settings["vocab"], found)
    shared, tied = found.boolean("share_embeddings", False), found.boolean("share_decoder_embeddings", False)
    kinds = found.string("encoder_type"), found.string("decoder_type")
    if kinds == ("transformer", "transformer"):
        model, rows = _transformer(found, tied=tied, shared=shared)
    elif kinds[0] in ("rnn", "brnn") and kinds[1] == "rnn":
        model, rows = _recurrent(found, tied=tied, shared=shared)
    else:
        raise InputError(f"OpenNMT-py's {kinds[0]} with {kinds[1]} ({folder}) is not supported. regard reads "
                         "transformer, rnn and brnn.")  # fmt: skip
    found.finish()
    tokenizers = tokenizer_for(source, folder, "src"), None if shared else tokenizer_for(target, folder, "tgt")
    generation = {"num_beams": 5, "length_penalty": 1.0, "normalization": "length", "early_stopping": True,
                  "decoder_start_token_id": target.bos, "eos_token_id": target.eos, "pad_token_id": target.pad,
                  "suppress_tokens": [target.pad]}  # fmt: skip
    orphan = Orphan("OpenNMT-py", model, len(target.tokens), None if shared else len(source.tokens), rows, tokenizers,
                    generation, _IGNORED)  # fmt: skip
    return orphan, named


def _words(vocab: Mapping[str, Any], found: Settings) -> tuple[Words, Words]:
    """Both vocabularies; a source text has no special tokens around it."""
    sides = [vocab.get(side) for side in ("src", "tgt")]
    if not all(isinstance(side, list) and all(isinstance(token, str) for token in side) for side in sides):
        raise DamagedFile(f"its vocabularies are not lists of tokens ({found.where}). Save it with OpenNMT-py 3.")
    start = str(vocab.get("decoder_start_token") or "<s>")
    source, target = (
        vocabulary(side, start if start in side else "<s>", "</s>", "<blank>", "<unk>", where=Path(found.where))
        for side in sides if side is not None
    )  # fmt: skip
    return source, target


def _embeddings(order: StreamOrder, *, tied: bool, shared: bool) -> tuple[Row, ...]:
    output = ("generator.weight",) if tied else ()
    if shared:
        return (Row((_TARGET, _SOURCE, *output), "embed.table.weight", order.reads),)
    return (Row((_TARGET, *output), "embed.table.weight", order.reads),
            Row((_SOURCE,), "source_embed.table.weight", order.reads))  # fmt: skip


def _width(found: Settings) -> int:
    """The one width of embeddings and hidden states."""
    sizes = [found.values.get(name) for name in ("hidden_size", "enc_hid_size", "dec_hid_size")]
    width = next((size for size in sizes if isinstance(size, int) and size > 0), 500)
    for name in ("enc_hid_size", "dec_hid_size", "src_word_vec_size", "tgt_word_vec_size"):
        found.assume(name, width, -1)
    return width


def _depth(found: Settings, side: str) -> int:
    both = found.values.get("layers")
    return both if isinstance(both, int) and both > 0 else found.integer(f"{side}_layers", 2)


def _transformer(found: Settings, *, tied: bool, shared: bool) -> tuple[Model, tuple[Row, ...]]:
    width, heads = _width(found), found.integer("heads", 8)
    found.assume_off("max_relative_positions", "relative_positions_buckets", "multiquery", "parallel_residual",
                     "shared_layer_norm", "rotary_dim", "full_context_alignment")  # fmt: skip
    found.assume("num_kv", 0, heads)
    found.assume("self_attn_type", "scaled-dot", "scaled-dot-flash")
    named = found.string("pos_ffn_activation_fn", "relu")
    activation, gated = found.activation("pos_ffn_activation_fn", _ACTIVATIONS, "relu"), named in _GATED
    positions = found.boolean("position_encoding", False)
    interleaved = found.string("position_encoding_type", "SinusoidalInterleaved") == "SinusoidalInterleaved"
    half = width // 2
    sinusoid = Sinusoid() if interleaved else Sinusoid(10_000 ** (half / max(1, half - 1)))
    found.assume("layer_norm", "standard", "rms")
    epsilon = found.number("norm_eps", 1e-6)
    norm = RMSNorm(epsilon) if found.string("layer_norm", "standard") == "rms" else LayerNorm(epsilon)
    biased, feedforward_biased = found.boolean("add_qkvbias", False), found.boolean("add_ffnbias", True)
    feedforward = FeedForward(found.integer("transformer_ff", 2048), activation, gated, feedforward_biased)
    decoder_layer = SelfAttention(heads, Causal(), biased=biased), CrossAttention(heads, biased=biased), feedforward
    model = Model(
        width,
        Embed(sinusoid if positions else None, scaled=positions),
        Stack(_depth(found, "enc") * ((SelfAttention(heads, biased=biased), feedforward),), PreNorm(norm)),
        Stack(_depth(found, "dec") * (decoder_layer,), PreNorm(norm)),
        Vocabulary(tied, biased=True),
        shared=shared,
    )
    order = StreamOrder(width, interleaved=positions and interleaved)
    return model, (
        *transformer_rows(order),
        *feedforward_rows(order, gated=gated),
        *_embeddings(order, tied=tied, shared=shared),
    )


def _recurrent(found: Settings, *, tied: bool, shared: bool) -> tuple[Model, tuple[Row, ...]]:
    width, depth = _width(found), _depth(found, "dec")
    if _depth(found, "enc") != depth:
        found.refuse("enc_layers", f"{_depth(found, 'enc')}, dec_layers = {depth}")
    found.assume_off("position_encoding")
    found.assume("global_attention", "general", "dot")
    found.assume("global_attention_function", "softmax")
    found.assume("rnn_type", "LSTM", "GRU")
    cell: Cell = GRU() if found.string("rnn_type", "LSTM") == "GRU" else LSTM()
    both = found.string("encoder_type") == "brnn"
    score = Dot(scaled=False) if found.string("global_attention", "general") == "dot" else General()
    feeding = found.boolean("input_feed", True)
    decoder: tuple[AnySublayer, ...] = (AttentionDecoder("after", cell, depth, score, initial_state=Copied()),)
    if not feeding:
        decoder = Recurrent(cell, depth, initial_state=Copied()), AttentionalVector(score)
    encoder = Recurrent(cell, depth, "bidirectional" if both else "forward")
    model = Model(
        width, Embed(), Stack(((encoder,),), Replace()), Stack((decoder,), Replace()), Vocabulary(tied, biased=True),
        shared=shared,
    )  # fmt: skip
    rows = recurrent_table(cell, depth, width, ("", "_reverse") if both else ("",), input_feed=feeding)
    return model, (*rows, *_embeddings(StreamOrder(width, interleaved=False), tied=tied, shared=shared))
