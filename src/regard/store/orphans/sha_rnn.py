"""State dicts of sha-rnn, the code of SHA-RNN's paper (Merity 2019), as our zoo's model of that name.

Where the two differ, the weights make up for it exactly. The LSTM's output replaces the stream: the norm of ours that
keeps the stream is zero. Queries have a norm of their own: both norms only scale and shift the same normed states, so
the query matrix takes the difference. Their GELU is x * sigmoid(1.702 x) = silu(1.702 x) / 1.702: the stream after a
Boom layer is 1.702 times theirs, and the output matrix, or the table tied to it, is that much smaller; a norm reads all
else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import DamagedFile, InputError
from regard.layers.embedding import Embed
from regard.layers.feedforward import Boom
from regard.layers.gated_attention import GatedAttention
from regard.layers.join import TwinNorm
from regard.layers.patterns import Window
from regard.layers.recurrent import LSTM, Recurrent
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.store.huggingface.weights import Operation, Row, row, weight_and_bias
from regard.store.orphans.tables import FLAT, Orphan, joined, one_way, zeros
from regard.store.orphans.texts import by_words, read_lines, vocabulary

_SHARPNESS = 1.702  # of their GELU
_MOST_WORDS = 75_000  # from here on their loss splits the vocabulary, with weights that are not the model's
_LEAST_SCALE = 1e-4  # of the keys' norm, compared with that of the queries
_WINDOW, _DROPOUT = 5000, 0.1  # a state dict says neither: what attention sees in their code, and a default of ours
_VOCABULARY = "vocab.txt"

_BLOCK, _LAYER = "blocks.{}.", "decoder.layers.{}."
_ATTENTION, _GATED = f"{_BLOCK}attn.", f"{_LAYER}self.sublayer."
_CELL = f"{_LAYER}recurrent.sublayer.layers.0.0.rnn."
_QUERY, _MIDDLE, _MEMORY = f"{_ATTENTION}q", f"{_BLOCK}lnmid", f"{_BLOCK}lnmem"

# Nothing reads these; the norms of attention are also in layers that have none.
_IGNORED = (r"^blocks\.\d+\.(lnout|lnmid|lnmem)\.(weight|bias)$", r"^blocks\.\d+\.attn\.(qkvs|r_gate)$")


def scaled(factor: float, rows: int | None = None) -> Operation:
    """A matrix or vector times a factor; only its first rows."""
    return one_way("a scaled matrix", lambda tensors: [tensors[0][:rows] * factor])


def _query_matrix(tensors: list[Tensor]) -> list[Tensor]:
    matrix, middle, memory = tensors
    return [matrix * (middle / memory)]


def _query_bias(tensors: list[Tensor]) -> list[Tensor]:
    bias, matrix, middle, middle_shift, memory, memory_shift = tensors
    return [bias + matrix @ (middle_shift - middle / memory * memory_shift)]


def table(width: int, inner: int, *, tied: bool) -> tuple[Row, ...]:
    """The rows of a model: of its embedding, its LSTMs, its attention, its Boom layers and its LM head."""
    smaller = scaled(1 / _SHARPNESS)
    tables = (
        (row("encoder.weight|decoder.weight", "embed.table.weight", smaller),) if tied
        else (row("encoder.weight", "embed.table.weight"), row("decoder.weight", "readout.lm_head.weight", smaller))
    )  # fmt: skip
    return (
        *tables,
        row("decoder.bias", "readout.lm_head.bias"),
        *weight_and_bias(f"{_BLOCK}lnstart", f"{_LAYER}recurrent.norm"),
        joined((), f"{_LAYER}recurrent.residual_norm.weight", zeros(width)),
        joined((), f"{_LAYER}recurrent.residual_norm.bias", zeros(width)),
        *(row(f"{_BLOCK}rnn.{name}", f"{_CELL}{name}")
          for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")),
        *weight_and_bias(_MEMORY, f"{_LAYER}self.norm"),
        *weight_and_bias(_MIDDLE, f"{_LAYER}self.residual_norm"),
        joined((f"{_QUERY}.weight", f"{_MIDDLE}.weight", f"{_MEMORY}.weight"), f"{_GATED}query.weight",
               one_way("a query matrix", _query_matrix)),
        joined((f"{_QUERY}.bias", f"{_QUERY}.weight", f"{_MIDDLE}.weight", f"{_MIDDLE}.bias", f"{_MEMORY}.weight",
                f"{_MEMORY}.bias"), f"{_GATED}query.bias", one_way("a query bias", _query_bias)),
        *weight_and_bias(f"{_ATTENTION}qln", f"{_GATED}norm"),
        row(f"{_ATTENTION}qs", f"{_GATED}query_gate", FLAT),
        row(f"{_ATTENTION}ks", f"{_GATED}key_gate", FLAT),
        row(f"{_ATTENTION}vs", f"{_GATED}value_gate", FLAT),
        *weight_and_bias(f"{_ATTENTION}vq.l1", f"{_GATED}value"),
        *weight_and_bias(f"{_BLOCK}lnxff", f"{_LAYER}feedforward.norm"),
        row(f"{_BLOCK}lnff.weight", f"{_LAYER}feedforward.residual_norm.weight", scaled(_SHARPNESS)),
        row(f"{_BLOCK}lnff.bias", f"{_LAYER}feedforward.residual_norm.bias", scaled(_SHARPNESS)),
        row(f"{_BLOCK}ff.linear1.weight", f"{_LAYER}feedforward.sublayer.up.weight", scaled(_SHARPNESS, inner)),
        row(f"{_BLOCK}ff.linear1.bias", f"{_LAYER}feedforward.sublayer.up.bias", scaled(_SHARPNESS, inner)),
    )  # fmt: skip


def is_sha_rnn(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the tensors are those of a model of sha-rnn."""
    return "blocks.0.lnstart.weight" in tensors


def read_sha_rnn(folder: Path, tensors: Mapping[str, Tensor]) -> tuple[Orphan, Mapping[str, Tensor]]:
    """The model of a state dict, whose names and shapes say all that the published code lets one choose."""
    embedding, output, up = (
        _matrix(tensors, name, folder) for name in ("encoder.weight", "decoder.weight", "blocks.0.ff.linear1.weight")
    )
    (words, width), inner = embedding.shape, len(up)
    blocks = {int(block[1]) for name in tensors if (block := re.match(r"blocks\.(\d{1,4})\.", name))}
    attending = tuple(sorted(number for number in blocks if f"blocks.{number}.attn.qs" in tensors))
    _require_exact(tensors, words, attending, folder)
    inner -= inner % width if inner > width else 0  # their Boom layers leave the rest out
    tied = torch.equal(embedding, output)
    lstm, attention, boom = Recurrent(LSTM()), GatedAttention(1, Window(_WINDOW)), Boom(inner, "silu", _DROPOUT)
    layers = ((lstm, attention, boom) if number in attending else (lstm, boom) for number in range(max(blocks) + 1))
    stack = Stack(tuple(layers), TwinNorm(), _DROPOUT)
    model = Model(width, Embed(dropout=_DROPOUT), decoder=stack, readout=Vocabulary(tied, biased=True))
    path = folder / _VOCABULARY
    if not path.is_file():
        raise InputError(f"{folder} lacks {_VOCABULARY}: a token per line, in the order of sha-rnn's "
                         "corpus.dictionary.idx2word. Write it from the corpus of the training.")  # fmt: skip
    tokens = read_lines(path)
    found = vocabulary(tokens, "<eos>", "<eos>", "<eos>", "<unk>" if "<unk>" in tokens else "<eos>", where=path)
    if len(tokens) != words:
        raise DamagedFile(f"{path} has {len(tokens):,} tokens, the weights {words:,}. Write it again.")
    rows = table(width, inner, tied=tied)
    generation = {"eos_token_id": found.eos, "pad_token_id": found.pad}
    orphan = Orphan("sha-rnn", model, words, None, rows, (by_words(found), None), generation, _IGNORED,
                    "language_model")  # fmt: skip
    return orphan, tensors


def _matrix(tensors: Mapping[str, Tensor], name: str, folder: Path) -> Tensor:
    found = tensors.get(name)
    if found is None or found.dim() != 2 or not found.numel():
        raise DamagedFile(f"sha-rnn: the weights lack the matrix {name} ({folder}). Copy them again.")
    return found


def _require_exact(tensors: Mapping[str, Tensor], words: int, attending: tuple[int, ...], folder: Path) -> None:
    """Refuse by name what the table cannot hold."""
    refused = []
    if words > _MOST_WORDS:
        refused.append(f"a loss that splits {words:,} words by weights of its own (SplitCrossEntropyLoss)")
    for number in attending:
        block = f"blocks.{number}."
        if f"{block}attn.vq.l1.weight" not in tensors:
            refused.append(f"a collapsed gate on values ({block}attn.vq)")
        middle, memory = (tensors.get(f"{block}{name}.weight") for name in ("lnmid", "lnmem"))
        if middle is not None and memory is not None and (memory.abs() <= _LEAST_SCALE * middle.abs()).any():
            refused.append(f"a norm of keys that loses what queries read ({block}lnmem.weight)")
    if refused:
        raise InputError(f"sha-rnn: the model has {', '.join(refused)} ({folder}). regard cannot hold it exactly.")
