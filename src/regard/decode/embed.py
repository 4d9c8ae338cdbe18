"""Texts as vectors: what a model makes of them, one for each token or one for the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import Progress
from regard.decode.inputs import readings, row_of
from regard.errors import InputError, suggest
from regard.layers.contract import Context
from regard.models.model import Network
from regard.models.readouts import First, Last, Mean, Most, Pool

Vectors = NDArray[np.float32]
TokenVectors = tuple[list[str], Vectors]
"""The tokens of a text, and a row for each."""

Layer = int | Literal["mix"] | None
"""Whose states: of a layer, 0 being the embedding, of all in the mean, or what the model itself reads out."""

POOLS: dict[str, Pool] = {"mean": Mean(), "first": First(), "last": Last(), "max": Most()}


@torch.inference_mode()
def embed(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    pool: str | None = None,
    layer: Layer = None,
    normalised: bool = False,
    max_length: int | None = None,
    progress: Progress = lambda done: None,
) -> Vectors:
    """A vector for each text; without a `pool`, as the model itself makes it, else the mean over its tokens.

    Of a row, what follows the `max_length` tokens is cut off.
    """
    if pool is not None and pool not in POOLS:
        raise InputError(f'"{pool}" is not known (--pool). {suggest(pool, POOLS)}')
    found = np.zeros((len(texts), network.description.vector_width), dtype=np.float32)
    encoded = _encoded(network, tokenizer, texts, max_length)
    for places, states, padding in _states(network, tokenizer, texts, encoded, layer, progress):
        if pool is None and network.description.readout.says == "vectors":
            vectors: Tensor = network.readout(states, padding)
        else:
            vectors = POOLS[pool or "mean"].pool(states, padding)
        vectors = F.normalize(vectors.float(), dim=-1) if normalised else vectors.float()
        found[places] = vectors.cpu().numpy()
    return found


@torch.inference_mode()
def embed_tokens(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    layer: Layer = None,
    normalised: bool = False,
    max_length: int | None = None,
    progress: Progress = lambda done: None,
) -> list[TokenVectors]:
    """The tokens of each text, those around it included, with a vector for each."""
    encoded = _encoded(network, tokenizer, texts, max_length)
    rows = [row_of(network, tokenizer, ids) for ids in encoded]
    found: list[TokenVectors] = [([], np.zeros((0, 0), dtype=np.float32))] * len(texts)
    for places, states, _ in _states(network, tokenizer, texts, encoded, layer, progress):
        vectors = F.normalize(states.float(), dim=-1) if normalised else states.float()
        for place, row in zip(places, vectors.cpu().numpy()):
            found[place] = tokenizer.token_texts(rows[place]), row[: len(rows[place])].copy()
    return found


def _encoded(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], max_length: int | None
) -> list[list[int]]:  # fmt: skip
    """The tokens of each text, cut so that with what stands around them they are no more than the max_length."""
    encoded = tokenizer.encode_batch(texts)
    if max_length is None:
        return encoded
    most = max(0, max_length - len(row_of(network, tokenizer, [])))
    return [ids[:most] for ids in encoded]


def _states(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], encoded: list[list[int]], layer: Layer,
    progress: Progress,
) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:  # fmt: skip
    """The places of some texts, the states BTD of a layer, and the padding."""
    for places, inputs in readings(network, tokenizer, [encoded], texts=texts):
        all_layers: list[Tensor] | None = None if layer is None else []
        padding = inputs.get("padding")
        if network.encoder is not None and network.decoder is not None:
            last = network.encode_source(inputs["ids"], context=Context(padding=padding, all_layers=all_layers)).states
        else:
            last = network.hidden_states(inputs["ids"], padding=padding, all_layers=all_layers)
        yield places, last if all_layers is None else _chosen(all_layers, layer), padding
        progress(len(places))


def _chosen(all_layers: Sequence[Tensor], layer: Layer) -> Tensor:
    """The states of a layer, or the mean of all."""
    if layer == "mix":
        return torch.stack(list(all_layers)).mean(dim=0)
    if not isinstance(layer, int) or not -len(all_layers) <= layer < len(all_layers):
        raise InputError(f"there is no layer {layer} (--layer). Use 0 to {len(all_layers) - 1}, or mix for the mean of all.")
    return all_layers[layer]
