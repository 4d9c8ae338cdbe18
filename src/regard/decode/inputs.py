"""Network inputs of texts: special tokens, padding, batches by length, length limits; and what a model can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from regard.data.tokenize.characters import Characters, text_characters, token_characters
from regard.data.tokenize.encode import padding_mask
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.requests import add_special_tokens as add_special_tokens
from regard.decode.requests import check_length as check_length
from regard.decode.requests import clamp_max_tokens as clamp_max_tokens
from regard.decode.requests import fill_template, length_batches, reads_any_word
from regard.decode.requests import input_length as input_length
from regard.decode.requests import text_template as text_template
from regard.errors import InputError
from regard.models.generator import Generator
from regard.models.model import Model, Network
from regard.models.readouts import Label

MAX_ROWS = 128
BATCH_TOKENS = 16_384
_BATCH_TOKENS_CPU = 512  # of texts that are only read: what a batch needs stays in the processor's cache

Tokens = Sequence[Sequence[int]]
"""The token ids of some texts."""


def capabilities(model: Model, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The commands that fit a model, first the one it was trained for."""
    if model.readout.outputs == "vectors":
        return ("embed",)
    if model.readout.outputs != "tokens":
        return "classify", "embed"
    if model.shape == "encoder":
        # A bidirectional language model was not trained with masks.
        labels = ("classify",) if isinstance(model.auxiliary, Label) else ()  # BERT's next sentence prediction
        return ("fill", "score", "embed", *labels) if model.readout.directions == 1 else ("embed",)
    if model.shape == "decoder":
        return "generate", "score", "embed"
    return ("translate", "score", "embed", *(("fill",) if tokenizer.sentinels else ()))


def require_capability(model: Model, tokenizer: Tokenizer, verb: str, what: str | None = None) -> None:
    """Raise an error if a model was not trained for a command; `what` replaces the verb in the message."""
    known = capabilities(model, tokenizer)
    if verb not in known:
        raise InputError(f"this model does not {what or verb}; it was made to {known[0]}. Try: regard {known[0]}.")


def batch_by_length(
    network: Generator, lengths: Sequence[int], tokens: int = BATCH_TOKENS, *, rows: int | None = None
) -> Iterator[list[int]]:
    """Indices of rows of these lengths, longest first, in batches of at most this many tokens, padding included.

    A batch has at most `rows` rows, and never more than `MAX_ROWS`. Where padding would change the output, as that of a
    published Reformer, the rows of a batch are equally long.
    """
    most = min(MAX_ROWS, MAX_ROWS if rows is None else rows)
    yield from length_batches(lengths, tokens, most, equal=not network.incremental)


def pad(rows: Tokens, device: torch.device, value: int = 0) -> tuple[Tensor, Tensor | None]:
    """Rows of different lengths -> BT, and True where there is a token, or None when all have the same length."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], device=device)
    if min(map(len, rows)) == longest:
        return ids, None
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, torch.arange(longest, device=device) < lengths[:, None]


def batched_inputs(
    network: Network, tokenizer: Tokenizer, segments: Sequence[Tokens], *, texts: Sequence[str] = ()
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Batches of texts: their indices and the network's inputs; `segments` are the texts, or both texts of pairs.

    A model with a CharacterCNN and no vocabulary of its own needs the `texts` themselves.
    """
    table = _character_table(network, tokenizer)
    lengths = [input_length(network, tokenizer, rows) for rows in zip(*segments)]
    for index, length in enumerate(lengths):
        check_length(network, length, f"text {index + 1:,}")
    on_cpu = next(network.parameters()).device.type == "cpu"
    for indices in batch_by_length(network, lengths, _BATCH_TOKENS_CPU if on_cpu else BATCH_TOKENS):
        inputs = network_inputs(network, tokenizer, [[segment[index] for index in indices] for segment in segments])
        if table is not None:
            inputs["ids"] = _look_up(table, inputs["ids"])
        elif network.description.embed.characters:
            inputs["ids"] = _text_characters(network, tokenizer, [texts[index] for index in indices])
        yield indices, inputs


def network_inputs(network: Network, tokenizer: Tokenizer, segments: Sequence[Tokens]) -> dict[str, Tensor]:
    """The network's inputs for a batch: ids, padding if lengths differ, segments of pairs."""
    filled, device = fill_template(network, tokenizer, segments), next(network.parameters()).device
    inputs = {"ids": torch.from_numpy(filled.ids), **padding_mask("padding", filled.lengths)}
    if filled.segments.any() and network.description.embed.segments > 1:  # RoBERTa has one segment only
        inputs["segments"] = torch.from_numpy(filled.segments)
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def input_ids(network: Network, tokenizer: Tokenizer, ids: Tensor, *, text: str | None = None) -> Tensor:
    """BT -> the network's input for these tokens: their ids, or BTC, the characters of each.

    A model with a CharacterCNN and no vocabulary of its own needs the `text` itself.
    """
    table = _character_table(network, tokenizer) if ids.dim() == 2 else None
    if table is None and text is not None and network.description.embed.characters:
        return _text_characters(network, tokenizer, [text]).to(ids.device)
    return ids if table is None else _look_up(table, ids)


def _character_table(network: Network, tokenizer: Tokenizer) -> Characters | None:
    """The characters of each token, for a model with a CharacterCNN and a vocabulary."""
    characters = network.description.embed.characters
    if not characters or reads_characters(network, tokenizer):
        return None
    return np.asarray(token_characters(tokenizer, characters=characters))


def reads_characters(network: Network, tokenizer: Tokenizer) -> bool:
    """Whether a model reads the characters of any word, because it has no vocabulary of words (ELMo)."""
    return bool(network.description.embed.characters) and reads_any_word(tokenizer)


def _text_characters(network: Network, tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """-> BTC: the characters of each word of the texts."""
    words = text_characters([*map(tokenizer.words, texts)], network.description.embed.characters)[0]
    return torch.from_numpy(words).to(next(network.parameters()).device)


def _look_up(table: Characters, ids: Tensor) -> Tensor:
    return torch.from_numpy(table[ids.cpu().numpy()]).to(ids.device)
