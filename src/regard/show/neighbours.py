"""Nearest neighbours of tokens in the embedding, by cosine similarity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.tasks.masked_lm import ordinary_tokens
from regard.data.tokenize.tokenizer import Tokenizer
from regard.models.model import Network

_ROWS = 8_192  # rows of the embedding table compared at once
_QUERIES = 1_024  # tokens compared with them at once

Side = Literal["source", "decoder_input", "target"]
Neighbours = list[list[str | float]]
"""Tokens and their cosines, the nearest first."""


@torch.inference_mode()
def nearest_neighbours(
    network: Network, tokenizer: Tokenizer, ids: Sequence[int], *, side: Side, count: int = 8
) -> list[Neighbours] | None:
    """The nearest neighbours of each token by cosine similarity; None if the model embeds characters.

    A token itself and special tokens are left out. `side` chooses the embedding.
    """
    if network.description.embed.characters:
        return None
    weight = (network.source_embed if side == "source" else network.embed).table.weight
    ordinary = ordinary_tokens(tokenizer)[: len(weight)]
    candidates = torch.from_numpy(np.flatnonzero(ordinary)).to(weight.device)
    queries, inverse = torch.tensor(list(ids), dtype=torch.long, device=weight.device).unique(return_inverse=True)
    found = [_nearest(weight, candidates, some, count) for some in queries.split(_QUERIES)]
    neighbours = [
        [[text, round(cosine, 6)] for text, cosine in zip(tokenizer.token_texts(tokens), cosines) if cosine >= -2]
        for values, indices in found
        for cosines, tokens in zip(values.tolist(), indices.tolist())
    ]
    return [neighbours[index] for index in inverse.tolist()]


def _nearest(weight: Tensor, candidates: Tensor, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """ND, W candidate tokens, P query tokens -> Pk cosines and Pk tokens; never holds P x W."""
    vectors = F.normalize(weight[queries].float(), dim=-1)
    values = vectors.new_empty(len(queries), 0)
    tokens = queries.new_empty(len(queries), 0)
    for some in candidates.split(_ROWS):
        cosines = vectors @ F.normalize(weight[some].float(), dim=-1).T
        cosines = cosines.masked_fill(some == queries[:, None], -torch.inf)
        values = torch.cat([values, cosines], dim=1)
        tokens = torch.cat([tokens, some.expand(len(queries), -1)], dim=1)
        values, order = values.topk(min(count, values.shape[1]), dim=1)
        tokens = tokens.gather(1, order)
    return values, tokens
