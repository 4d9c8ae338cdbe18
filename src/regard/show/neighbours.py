"""Which words stand near each other in an embedding."""

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

_ROWS = 8_192  # of the table that are compared at once
_ASKED = 1_024  # tokens that are compared with them at once

Side = Literal["source", "read", "said"]
Near = list[list[str | float]]
"""Words and their cosines, the nearest first."""


@torch.inference_mode()
def nearest(
    network: Network, tokenizer: Tokenizer, ids: Sequence[int], *, side: Side, count: int = 8
) -> list[Near] | None:
    """The nearest words of each token by the cosine of their vectors; None of a model that reads letters.

    Neither a token itself nor special tokens are among its nearest. `side`: whose embedding it is.
    """
    if network.description.embed.letters:
        return None
    weight = (network.source_embed if side == "source" else network.embed).table.weight
    known = ordinary_tokens(tokenizer)[: len(weight)]
    words = torch.from_numpy(np.flatnonzero(known)).to(weight.device)
    asked, places = torch.tensor(list(ids), dtype=torch.long, device=weight.device).unique(return_inverse=True)
    found = [_nearest(weight, words, some, count) for some in asked.split(_ASKED)]
    near = [
        [[text, round(cosine, 6)] for text, cosine in zip(tokenizer.token_texts(numbers), cosines) if cosine >= -2]
        for values, tokens in found
        for cosines, numbers in zip(values.tolist(), tokens.tolist())
    ]
    return [near[place] for place in places.tolist()]


def _nearest(weight: Tensor, words: Tensor, asked: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """ND, the words that count W, P tokens -> Pk cosines and Pk tokens; never P x W at once."""
    vectors = F.normalize(weight[asked].float(), dim=-1)
    values = vectors.new_empty(len(asked), 0)
    tokens = asked.new_empty(len(asked), 0)
    for some in words.split(_ROWS):
        cosines = vectors @ F.normalize(weight[some].float(), dim=-1).T
        cosines = cosines.masked_fill(some == asked[:, None], -torch.inf)
        values = torch.cat([values, cosines], dim=1)
        tokens = torch.cat([tokens, some.expand(len(asked), -1)], dim=1)
        values, order = values.topk(min(count, values.shape[1]), dim=1)
        tokens = tokens.gather(1, order)
    return values, tokens
