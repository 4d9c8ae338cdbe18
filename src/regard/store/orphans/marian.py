"""Marian's model.npz, which holds its settings too: the Transformer."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import DamagedFile, InputError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import LayerNorm, PostNorm, PreNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Sinusoid
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.store.files import first_line, require_file
from regard.store.huggingface.weights import Row
from regard.store.orphans.tables import FLAT, Orphan, Settings, joined, one_way
from regard.store.orphans.texts import Words, by_sentencepiece, by_words, vocabulary
from regard.store.orphans.yaml import parse_yaml, read_yaml

_SETTINGS = "special:model.yml"
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
_EPSILON = 1e-6
_START = "<pad>"  # a token of ours with an embedding of zeros, with which Marian's decoder starts
_MOST_GROWTH = 20  # of a compressed file

_COLUMNS_TRANSPOSED = one_way("matrices side by side", lambda tensors: [torch.cat(tensors, dim=1).T])
_BIASES = one_way("biases one after another", lambda tensors: [torch.cat([tensor.flatten() for tensor in tensors])])
_WITH_START = one_way("a row of zeros", lambda tensors: [torch.nn.functional.pad(tensors[0], (0, 0, 0, 1))])
_WITH_START_TRANSPOSED = one_way(
    "a row of zeros", lambda tensors: [torch.nn.functional.pad(tensors[0].T, (0, 0, 0, 1))]
)
_BIAS_WITH_START = one_way("a bias of zero", lambda tensors: [torch.nn.functional.pad(tensors[0].flatten(), (0, 1))])


def _linear(theirs: str, letters: str, ours: str) -> tuple[Row, ...]:
    """Weights and biases of maps that Marian keeps apart, stored as inputs by outputs."""
    return (joined((f"{theirs}_W{letter}" for letter in letters), f"{ours}.weight", _COLUMNS_TRANSPOSED),
            joined((f"{theirs}_b{letter}" for letter in letters), f"{ours}.bias", _BIASES))  # fmt: skip


def _norm(theirs: str, ours: str) -> tuple[Row, ...]:
    return tuple(Row((f"{theirs}_ln_{kind}", f"{theirs}_ln_{kind}_pre"), f"{ours}.{name}", (FLAT,))
                 for kind, name in (("scale", "weight"), ("bias", "bias")))  # fmt: skip


def transformer_rows(*, shared: bool, tied: bool) -> tuple[Row, ...]:
    """The Transformer's table; layers are counted from 0 here."""
    rows: list[Row] = []
    for side in ("encoder", "decoder"):
        layer, ours = f"{side}_l{{}}_", f"{side}.layers.{{}}."
        rows += [
            *_linear(f"{layer}self", "qkv", f"{ours}self.sublayer.query_key_value"),
            *_linear(f"{layer}self", "o", f"{ours}self.sublayer.out"),
            *_norm(f"{layer}self_Wo", f"{ours}self.norm"),
            *_linear(f"{layer}ffn", "1", f"{ours}feedforward.sublayer.up"),
            *_linear(f"{layer}ffn", "2", f"{ours}feedforward.sublayer.down"),
            *_norm(f"{layer}ffn_ffn", f"{ours}feedforward.norm"),
            *_norm(f"{side}_top", f"{side}.final_norm"),
        ]
    context, cross = "decoder_l{}_context", "decoder.layers.{}.cross."
    rows += [
        *_linear(context, "q", f"{cross}sublayer.query"),
        *_linear(context, "kv", f"{cross}sublayer.key_value"),
        *_linear(context, "o", f"{cross}sublayer.out"),
        *_norm(f"{context}_Wo", f"{cross}norm"),
        *_norm("encoder_emb", "source_embed.norm"),
        *_norm("decoder_emb", "embed.norm"),
        Row(("decoder_ff_logit_out_b",), "readout.lm_head.bias", (_BIAS_WITH_START,)),
    ]
    if not tied:
        rows.append(Row(("decoder_ff_logit_out_W",), "readout.lm_head.weight", (_WITH_START_TRANSPOSED,)))
    if shared:
        return *rows, Row(("Wemb",), "embed.table.weight", (_WITH_START,))
    # With tied-embeddings-src, Wemb is also the encoder's, though the vocabularies differ.
    return (*rows, Row(("decoder_Wemb",), "embed.table.weight", (_WITH_START,)),
            Row(("encoder_Wemb",), "source_embed.table.weight", (_WITH_START,)))  # fmt: skip


def read_marian(checkpoint: Path) -> tuple[Orphan, dict[str, Tensor]]:
    """The model of a model.npz, and its tensors by the names of the table."""
    arrays = _read_arrays(checkpoint)
    if _SETTINGS not in arrays:
        raise DamagedFile(f"{checkpoint} has no {_SETTINGS}, so it is not Marian's. Copy it again.")
    text = arrays.pop(_SETTINGS).astype(np.uint8).tobytes().rstrip(b"\0")
    found = Settings(parse_yaml(text, f"{checkpoint}: {_SETTINGS}"), str(checkpoint))
    tensors = {re.sub(r"_l(\d+)_", lambda match: f"_l{int(match[1]) - 1}_", name): torch.from_numpy(np.array(array))
               for name, array in arrays.items() if array.dtype.kind == "f"}  # fmt: skip
    shared = "Wemb" in tensors
    tied = "decoder_ff_logit_out_W" not in tensors and "decoder_ff_logit_out_Wt" not in tensors
    model = _model(found, shared=shared, tied=tied)
    words, tokenizers = _texts(checkpoint.parent, shared)
    found.finish()
    target = words[1]
    generation = {"num_beams": 6, "length_penalty": 0.0, "normalization": "length", "early_stopping": "never",
                  "decoder_start_token_id": target.bos, "eos_token_id": target.eos, "pad_token_id": target.pad,
                  "suppress_tokens": [target.pad]}  # fmt: skip
    orphan = Orphan("Marian", model, len(target.tokens), None if shared else len(words[0].tokens),
                    transformer_rows(shared=shared, tied=tied), tokenizers, generation)  # fmt: skip
    return orphan, tensors


def _read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file, none of which may be pickled, and all of which the file's size explains."""
    require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > _MOST_GROWTH * path.stat().st_size:
            raise ValueError(f"it unpacks to {unpacked:,} bytes")
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise DamagedFile(f"{path} cannot be used: {first_line(error)}. Copy it again.") from error


def _model(found: Settings, *, shared: bool, tied: bool) -> Model:
    found.assume("type", "transformer")
    found.assume("transformer-decoder-autoreg", "self-attention")
    found.assume("transformer-ffn-depth", 2)
    found.assume("transformer-decoder-ffn-depth", 2, 0)
    found.assume("transformer-postprocess-emb", "", "d", "n", "nd")
    found.assume_off("transformer-no-projection", "transformer-train-position-embeddings", "transformer-tied-layers",
                     "transformer-depth-scaling-at-inference", "lemma-dim-emb", "input-types", "transformer-pool",
                     "transformer-no-affine", "factors-combine-concat", "transformer-rnn-projection")  # fmt: skip
    before = found.string("transformer-preprocess", "")
    pre_norm = "n" in before
    found.assume("transformer-preprocess", "n" if pre_norm else "")
    found.assume("transformer-postprocess", "da" if pre_norm else "dan")
    found.assume("transformer-postprocess-top", "n" if pre_norm else "")
    activation = found.activation("transformer-ffn-activation", _ACTIVATIONS, "relu")
    width, heads = found.integer("dim-emb"), found.integer("transformer-heads", 8)
    norm = LayerNorm(_EPSILON)
    join = PreNorm(norm) if pre_norm else PostNorm(norm)
    inner = found.integer("transformer-dim-ffn", 2048)
    decoder_inner = found.values.get("transformer-decoder-dim-ffn") or inner
    feedforward = FeedForward(inner, activation)
    decoder_layer = SelfAttention(heads, Causal()), CrossAttention(heads), FeedForward(int(decoder_inner), activation)
    embedding_norm = norm if "n" in found.string("transformer-postprocess-emb", "d") else None
    return Model(
        width,
        Embed(Sinusoid(), scaled=True, norm=embedding_norm),
        Stack(found.integer("enc-depth", 6) * ((SelfAttention(heads), feedforward),), join),
        Stack(found.integer("dec-depth", 6) * (decoder_layer,), join),
        Vocabulary(tied, biased=True),
        shared=shared,
    )  # fmt: skip


def _texts(folder: Path, shared: bool) -> tuple[list[Words], Any]:
    """The vocabularies, which decoder.yml names where there is one, and their tokenizers."""
    named = read_yaml(folder / "decoder.yml").get("vocabs") if (folder / "decoder.yml").is_file() else None
    paths = [folder / Path(str(name)).name for name in named] if isinstance(named, list) else sorted(
        path for path in folder.iterdir() if path.suffix == ".spm" or (path.name.startswith("vocab")
        and path.suffix in (".yml", ".yaml")))  # fmt: skip
    if not paths or len(paths) > 2:
        raise InputError(f"{folder} must hold the vocabulary of its model, or one per side: vocab.yml or vocab.spm. "
                         "Copy them from the training's folder, with decoder.yml.")  # fmt: skip
    sides = [paths[0], paths[-1]]
    words = [_words(path) for path in sides]
    made = [by_sentencepiece(one, path) if path.suffix == ".spm" else by_words(one) for one, path in zip(words, sides)]
    return words, (made[0], None if shared else made[1])


def _words(path: Path) -> Words:
    """A vocabulary of Marian: a mapping from tokens to ids, or the pieces of a SentencePiece model."""
    require_file(path)
    if path.suffix == ".spm":
        from regard.store.huggingface.tokenizers import sentencepiece_pieces

        tokens = sentencepiece_pieces(path)
    else:
        numbers = {str(token): number for token, number in read_yaml(path).items()}
        tokens = sorted(numbers, key=lambda token: numbers[token] if isinstance(numbers[token], int) else -1)
        if [numbers[token] for token in tokens] != list(range(len(tokens))):
            raise DamagedFile(f"{path} cannot be used: its ids are not 0, 1, 2, ... Copy it again.")
    return vocabulary([*tokens, _START], _START, "</s>", _START, "<unk>", after=("</s>",), where=path)
