"""Embeddings of texts: one vector per text, by a pooling of hidden states, or one per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import QUIET, Progress
from regard.decode.inputs import batched_inputs
from regard.decode.requests import Layer as Layer
from regard.decode.requests import TokenVectors as TokenVectors
from regard.decode.requests import Vectors as Vectors
from regard.decode.requests import encode_cut, token_names
from regard.decode.workers import Workers
from regard.errors import InputError, suggest
from regard.layers.contract import CarriedMemory, Context
from regard.models.model import CARRIES_NOTHING, Network
from regard.models.readouts import First, Last, Max, Mean, Pool

POOLS: dict[str, Pool] = {"mean": Mean(), "first": First(), "last": Last(), "max": Max()}


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
    stateful: bool = False,
    progress: Progress = QUIET,
) -> Vectors:
    """One vector per text, by `pool`; by default the model's readout, if it outputs vectors, else the mean of tokens.

    Texts longer than `max_length` tokens are truncated. `stateful`: texts are read one after the other, each from the
    recurrent state after the one before, as the published ELMo does.
    """
    if pool is not None and pool not in POOLS:
        raise InputError(f'"{pool}" is not known (--pool). {suggest(pool, POOLS)}')
    own = pool is None and network.description.readout.outputs == "vectors"
    width = network.description.embedding_width if own else network.description.vector_width
    found = np.zeros((len(texts), width), dtype=np.float32)
    encoded = encode_cut(network, tokenizer, texts, max_length)

    def pooled(states: Tensor, padding: Tensor | None) -> Tensor:
        if own:
            vectors: Tensor = network.readout(states, padding)
        else:
            vectors = POOLS[pool or "mean"].pool(states, padding)
        return F.normalize(vectors.float(), dim=-1) if normalised else vectors.float()

    for indices, vectors in _of_hidden_states(
        network, tokenizer, texts, encoded, layer, pooled, stateful=stateful, progress=progress
    ):
        found[indices] = vectors.cpu().numpy()
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
    stateful: bool = False,
    progress: Progress = QUIET,
) -> list[TokenVectors]:
    """The tokens of each text, special tokens included, with one vector per token."""
    encoded = encode_cut(network, tokenizer, texts, max_length)
    names = [token_names(network, tokenizer, *pair) for pair in zip(encoded, texts)]
    found: list[TokenVectors] = [([], np.zeros((0, 0), dtype=np.float32))] * len(texts)

    def of_tokens(states: Tensor, _: Tensor | None) -> Tensor:
        return F.normalize(states.float(), dim=-1) if normalised else states.float()

    for indices, vectors in _of_hidden_states(
        network, tokenizer, texts, encoded, layer, of_tokens, stateful=stateful, progress=progress
    ):
        for index, row in zip(indices, vectors.cpu().numpy()):
            found[index] = names[index], row[: len(names[index])].copy()
    return found


def _of_hidden_states(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], encoded: list[list[int]], layer: Layer,
    function: Callable[[Tensor, Tensor | None], Tensor], *, stateful: bool, progress: Progress,
) -> Iterator[tuple[list[int], Tensor]]:  # fmt: skip
    """Batches of texts: their indices, and a function of a layer's hidden states BTD and the padding."""
    carried = CarriedMemory() if stateful else None
    if stateful and network.shape != "encoder" and not network.description.constant_memory:
        raise InputError(CARRIES_NOTHING)

    def read(batch: tuple[list[int], dict[str, Tensor]]) -> Tensor:
        inputs, all_layers = batch[1], list[Tensor]()
        padding, wanted = inputs.get("padding"), None if layer is None else all_layers
        if network.shape == "encoder-decoder":
            last = network.encode_source(inputs["ids"], context=Context(padding=padding, all_layers=wanted)).states
        else:
            last = network.hidden_states(inputs["ids"], padding=padding, all_layers=wanted, carried=carried)
        return function(last if wanted is None else _select_layer(all_layers, layer), padding)

    batches = _batches(network, tokenizer, texts, encoded, one_by_one=stateful)
    for (indices, _), found in Workers(network, in_order=stateful).run(batches, read):
        yield indices, found
        progress(len(indices))


def _batches(
    network: Network, tokenizer: Tokenizer, texts: Sequence[str], encoded: list[list[int]], *, one_by_one: bool
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """The network's inputs for batches of texts of similar length, or for one text after the other."""
    if not one_by_one:
        yield from batched_inputs(network, tokenizer, [encoded], texts=texts)
        return
    for index, (ids, text) in enumerate(zip(encoded, texts)):
        for _, inputs in batched_inputs(network, tokenizer, [[ids]], texts=[text]):
            yield [index], inputs


def _select_layer(all_layers: Sequence[Tensor], layer: Layer) -> Tensor:
    """The hidden states of one layer, or the mean of all layers."""
    if layer == "mix":
        return torch.stack(list(all_layers)).mean(dim=0)
    if not isinstance(layer, int) or not -len(all_layers) <= layer < len(all_layers):
        most = len(all_layers) - 1
        raise InputError(f"there is no layer {layer} (--layer). Use 0 to {most}, or mix for the mean of all.")
    return all_layers[layer]
