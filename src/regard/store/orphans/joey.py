"""Joey NMT's checkpoints with their config.yaml and vocabularies: the Transformer, and RNNs with attention."""

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
from regard.layers.positions import Sinusoid
from regard.layers.recurrent import GRU, LSTM, Cell, Projected, Recurrent
from regard.layers.scores import Additive, General
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.store.huggingface.weights import Operation, Row, row
from regard.store.orphans.tables import (
    DECODER,
    HALF_OF_THE_CELL,
    PER_HEAD_TRANSPOSED,
    Orphan,
    Settings,
    StreamOrder,
    decoder_rows,
    joined,
    padded_columns,
    recurrent_rows,
    swapped_columns,
    zeros,
)
from regard.store.orphans.texts import Words, by_characters, read_lines, tokenizer_for, vocabulary
from regard.store.orphans.yaml import read_yaml

_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "tanh": "tanh", "swish": "silu"}
_SPACE = "▁"
_IGNORED = (r"^(en|de)coder\.pe\.pe$",)


def transformer_rows(order: StreamOrder) -> tuple[Row, ...]:
    """The Transformer's table."""
    encoder, decoder = "encoder.layers.{}.", "decoder.layers.{}."
    rows: list[Row] = []
    for side, attention, norm in ((encoder, "src_src_att.", "layer_norm"), (decoder, "trg_trg_att.", "x_layer_norm")):
        inputs = "+".join(f"{side}{attention}{part}_layer" for part in "qkv")
        rows += [
            *order.reading(inputs, f"{side}self.sublayer.query_key_value"),
            *order.writing(f"{side}{attention}output_layer", f"{side}self.sublayer.out"),
            *order.norm(f"{side}{norm}", f"{side}self.norm"),
            *order.reading(f"{side}feed_forward.pwff_layer.0", f"{side}feedforward.sublayer.up"),
            *order.writing(f"{side}feed_forward.pwff_layer.3", f"{side}feedforward.sublayer.down"),
            *order.norm(f"{side}feed_forward.layer_norm", f"{side}feedforward.norm"),
        ]
    cross = f"{decoder}src_trg_att."
    return (
        *rows,
        *order.reading(f"{cross}q_layer", f"{decoder}cross.sublayer.query"),
        *order.reading(f"{cross}k_layer+{cross}v_layer", f"{decoder}cross.sublayer.key_value"),
        *order.writing(f"{cross}output_layer", f"{decoder}cross.sublayer.out"),
        *order.norm(f"{decoder}dec_layer_norm", f"{decoder}cross.norm"),
        *order.norm("encoder.layer_norm", "encoder.final_norm"),
        *order.norm("decoder.layer_norm", "decoder.final_norm"),
        replace(row("decoder.output_layer.weight", "readout.lm_head.weight"), operations=order.reads),
    )


def recurrent_table(
    cell: Cell, depth: int, width: int, embedded: tuple[int, int], start: str, score: Additive | General
) -> tuple[Row, ...]:
    """The table of RNNs: an encoder in both directions, a decoder that attends after its cell, with input feeding."""
    ours = "encoder.layers.{}.recurrent.sublayer.layers.0.{direction}.rnn"
    rows = (
        *recurrent_rows("encoder.rnn", ours, ("", "_reverse")),
        *decoder_rows(lambda n, kind: f"decoder.rnn.{kind}_l{n}", cell, depth, embedded=embedded[1], width=width),
        row("decoder.att_vector_layer.weight", f"{DECODER}out.weight", swapped_columns(width)),
        row("decoder.att_vector_layer.bias", f"{DECODER}out.bias"),
        row("decoder.output_layer.weight", "readout.lm_head.weight"),
    )
    # The first layer's inputs are embeddings, which may be narrower.
    first = ours.replace("{}", "0")
    narrow = [Row((f"encoder.rnn.weight_ih_l0{suffix}",), f"{first.replace('{direction}', str(number))}.weight_ih_l0",
                  (padded_columns(width),)) for number, suffix in enumerate(("", "_reverse"))]  # fmt: skip
    named = {one.ours for one in narrow}
    expanded = [replace(one, theirs=tuple(name.replace("{}", str(n)) for name in one.theirs),
                        ours=one.ours.replace("{}", str(n)))
                for one in rows for n in range(_MOST_LAYERS if "{}" in one.ours else 1)]  # fmt: skip
    kept = [one for one in expanded if one.ours not in named]
    query = f"{DECODER}attention.score."
    kept += [
        row("decoder.attention.key_layer.weight", f"{query}matrix", PER_HEAD_TRANSPOSED)
    ] if isinstance(score, General) else [
        row("decoder.attention.query_layer.weight", f"{query}query_matrix", PER_HEAD_TRANSPOSED),
        row("decoder.attention.key_layer.weight", f"{query}key_matrix", PER_HEAD_TRANSPOSED),
        row("decoder.attention.energy_layer.weight", f"{query}vector", PER_HEAD_TRANSPOSED),
    ]  # fmt: skip
    parts = 2 if cell.has_cell else 1
    twice = (HALF_OF_THE_CELL,) if cell.has_cell else ()
    for number in range(depth):
        for kind, shape in (("weight", (parts * width, width)), ("bias", (parts * width,))):
            name = f"{DECODER}initial_state.projections.{number}.{kind}"
            # Zeros are projected to a state of zeros.
            kept.append(Row((f"decoder.bridge_layer.{kind}",), name, twice) if start == "bridge"
                        else joined((), name, zeros(*shape)))  # fmt: skip
    return *narrow, *kept


_MOST_LAYERS = 64


def is_joey(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint is Joey NMT's."""
    return "model_state" in settings or any(name.startswith("model_state.") for name in tensors)


def read_joey(folder: Path, tensors: Mapping[str, Tensor]) -> tuple[Orphan, dict[str, Tensor]]:
    """The model of a checkpoint, which its config.yaml describes."""
    path = folder / "config.yaml"
    config = read_yaml(path)
    named = {name.removeprefix("model_state."): one for name, one in tensors.items() if name.startswith("model_state.")}
    found = Settings(config, str(path))
    model = found.section("model")
    encoder, decoder = model.section("encoder"), model.section("decoder")
    kinds = {encoder.string("type", "recurrent"), decoder.string("type", "transformer")}
    tied, shared = model.boolean("tied_softmax", False), model.boolean("tied_embeddings", False)
    words = tuple(_words(folder, found.section("data"), side) for side in ("src", "trg"))
    if kinds == {"transformer"}:
        built, rows = _transformer(encoder, decoder, tied, shared)
    elif kinds == {"recurrent"}:
        built, rows = _recurrent(encoder, decoder, tied, shared)
    else:
        raise InputError(
            f"an encoder and a decoder of different kinds ({path}) are not supported. It stays with Joey NMT."
        )
    tokenizers = [
        _tokenizer(folder, found.section("data").section(side), one) for side, one in zip(("src", "trg"), words)
    ]
    generation = _generation(found.section("testing"), words[1])
    found.finish()
    orphan = Orphan("joeynmt", built, len(words[1].tokens), None if shared else len(words[0].tokens), rows,
                    (tokenizers[0], None if shared else tokenizers[1]), generation, _IGNORED)  # fmt: skip
    return orphan, named


def _words(folder: Path, data: Settings, side: str) -> Words:
    """A vocabulary file: one token per line, after the special ones if it lacks them."""
    named = data.section(side).values.get("voc_file")
    paths = [folder / f"{side}_vocab.txt", *([folder / Path(str(named)).name] if named else [])]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise InputError(f"{folder} lacks {side}_vocab.txt, the vocabulary. Copy it from the folder of the training.")
    special = data.section("special_symbols")
    names = {role: special.string(f"{role}_token", default) for role, default in
             (("unk", "<unk>"), ("pad", "<pad>"), ("bos", "<s>"), ("eos", "</s>"))}  # fmt: skip
    special.assume_off("sep_token")
    tags = special.values.get("lang_tags") or []
    tokens = list(dict.fromkeys([*names.values(), *tags, *read_lines(path)]))
    for number, role in enumerate(names):
        special.assume(f"{role}_id", number)
    return vocabulary(tokens, names["bos"], names["eos"], names["pad"], names["unk"], after=(names["eos"],), where=path)


def _tokenizer(folder: Path, side: Settings, words: Words) -> Any:
    """The tokenizer of a side, by its level."""
    level, options = side.string("level", "word"), side.section("tokenizer_cfg")
    side.assume_off("normalize")
    options.assume("pretokenizer", "none")
    lowercase = side.boolean("lowercase", False)
    if level == "char":
        return by_characters(words, _SPACE, lowercase=lowercase)
    if level == "word":
        return tokenizer_for(words, folder, "", lowercase=lowercase, cut=False)
    kind = side.string("tokenizer_type", "sentencepiece")
    key = {"sentencepiece": "model_file", "subword-nmt": "codes"}.get(kind)
    if key is None:
        side.refuse("tokenizer_type", kind)
        return tokenizer_for(words, folder, "", cut=False)
    options.assume("separator", "@@")
    return tokenizer_for(words, folder, "", lowercase=lowercase, named=Path(options.string(key)))


def _generation(testing: Settings, words: Words) -> dict[str, Any]:
    """Defaults of decoding; scores of a beam are divided by Wu's length penalty, which `beam_alpha` weighs."""
    hidden = [] if testing.boolean("generate_unk", True) else [words.unk]
    alpha = testing.number("beam_alpha", -1.0)
    return {
        "num_beams": testing.integer("beam_size", 1), "length_penalty": max(0.0, alpha), "normalization": "wu",
        "decoder_start_token_id": words.bos, "eos_token_id": words.eos, "pad_token_id": words.pad,
        "suppress_tokens": [words.pad, words.bos, *hidden], "early_stopping": True,
    }  # fmt: skip


def _transformer(encoder: Settings, decoder: Settings, tied: bool, shared: bool) -> tuple[Model, tuple[Row, ...]]:
    width = encoder.integer("hidden_size", 512)
    decoder.assume("hidden_size", width)
    scales = [side.section("embeddings").boolean("scale", False) for side in (encoder, decoder)]
    for side in (encoder, decoder):
        side.section("embeddings").assume("embedding_dim", width)
        side.assume("alpha", 1.0, 1)
    if scales[0] != scales[1]:
        decoder.refuse("embeddings: scale", scales[1])
    if "layer_norm" not in encoder.values:
        encoder.refuse("layer_norm", "missing: norms before the sublayers, and none at the end")
    joins = [PreNorm(LayerNorm(1e-6)) if side.string("layer_norm", "post") == "pre" else PostNorm(LayerNorm(1e-6))
             for side in (encoder, decoder)]  # fmt: skip

    def parts(side: Settings) -> tuple[int, FeedForward]:
        activation = side.activation("activation", _ACTIVATIONS, "relu")
        return side.integer("num_heads", 8), FeedForward(side.integer("ff_size", 2048), activation)

    (heads, feedforward), (decoder_heads, decoder_feedforward) = parts(encoder), parts(decoder)
    decoder_layer = SelfAttention(decoder_heads, Causal()), CrossAttention(decoder_heads), decoder_feedforward
    model = Model(
        width,
        Embed(Sinusoid(), scales[0]),
        Stack(encoder.integer("num_layers", 8) * ((SelfAttention(heads), feedforward),), joins[0]),
        Stack(decoder.integer("num_layers", 4) * (decoder_layer,), joins[1]),
        Vocabulary(tied),
        shared=shared,
    )
    order = StreamOrder(width, interleaved=True)
    return model, (*transformer_rows(order), *_embeddings(order.reads, tied=tied, shared=shared))


def _embeddings(operations: tuple[Operation, ...], *, tied: bool, shared: bool) -> tuple[Row, ...]:
    """The rows of the two embeddings, or of the one that both sides share."""
    target = ("trg_embed.lut.weight", *(("decoder.output_layer.weight",) if tied else ()))
    if shared:
        return (Row(("src_embed.lut.weight", *target), "embed.table.weight", operations),)
    source = Row(("src_embed.lut.weight",), "source_embed.table.weight", operations)
    return Row(target, "embed.table.weight", operations), source


def _recurrent(encoder: Settings, decoder: Settings, tied: bool, shared: bool) -> tuple[Model, tuple[Row, ...]]:
    width = decoder.integer("hidden_size")
    embedded = tuple(side.section("embeddings").integer("embedding_dim") for side in (encoder, decoder))
    if max(embedded) > width:
        encoder.refuse("embedding_dim", f"{max(embedded)}, wider than the decoder's hidden_size {width}")
    encoder.assume("hidden_size", width // 2)
    encoder.assume("bidirectional", True)
    decoder.assume("input_feeding", True)
    decoder.assume("activation", "tanh")
    for side in (encoder, decoder):
        side.section("embeddings").assume_off("scale")
    if encoder.string("rnn_type", "gru") != decoder.string("rnn_type", "gru"):
        decoder.refuse("rnn_type", decoder.values.get("rnn_type"))
    cell: Cell = LSTM() if decoder.string("rnn_type", "gru") == "lstm" else GRU()
    start, attention = decoder.string("init_hidden", "bridge"), decoder.string("attention", "bahdanau")
    decoder.assume("init_hidden", "bridge", "zero")
    decoder.assume("attention", "bahdanau", "luong")
    score = General() if attention == "luong" else Additive()
    depth = decoder.integer("num_layers", 1)
    # The decoder starts from the last layer of the encoder alone, so each layer is a stack's own.
    encoder_layers = encoder.integer("num_layers", 1) * ((Recurrent(cell, 1, "bidirectional"),),)
    model = Model(
        width, Embed(), Stack(encoder_layers, Replace()),
        Stack(((AttentionDecoder("after", cell, depth, score, initial_state=Projected()),),), Replace()),
        Vocabulary(tied), shared=shared,
    )  # fmt: skip
    rows = recurrent_table(cell, depth, width, (embedded[0], embedded[1]), start, score)
    return model, (*rows, *_embeddings((padded_columns(width),), tied=tied, shared=shared))
