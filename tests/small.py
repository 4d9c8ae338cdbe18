"""Small models with random weights whose outputs depend on their inputs, in memory or in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.api import LoadedModel, load
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import WordPiece
from regard.models.model import Model
from regard.store.folder import unique_parameters, write_description, write_weights
from regard.store.loading import TRAINED_LENGTH, Loaded

TEXTS = [
    "The cat sat on the mat.",
    "A dog ran in the park and played.",
    "the dog sat",
    "Né à Paris, the cat played in the park",
]
WORDPIECE: Tokenizer = WordPiece(80).train(TEXTS * 4)


def small(
    description: Model,
    tokenizers: Sequence[Tokenizer] = (WORDPIECE,),
    *,
    config: dict[str, Any] | None = None,
    generation_config: dict[str, Any] | None = None,
) -> LoadedModel:
    """A model with random weights, large enough that each text gets another output."""
    torch.manual_seed(1)
    first, *second = tokenizers
    network = description.build(*([second[0].vocabulary, first.vocabulary] if second else [first.vocabulary]))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    both = first, second[0] if second else None
    return LoadedModel(Loaded(network.eval(), both, config or {}, generation_config or {}))


def save_model(folder: Path, model: LoadedModel, parts: Sequence[type] = ()) -> Path:
    """Write the model to a new folder."""
    folder.mkdir(parents=True)
    second = None if model.target_tokenizer is model.tokenizer else model.target_tokenizer
    config = model.generation_config
    length = {key: value for key, value in model.config.items() if key == TRAINED_LENGTH}
    write_description(
        folder, model.network, (model.tokenizer, second), task="", generation_config=config, extra_config=length
    )
    write_weights(folder, unique_parameters(model.network))
    load(folder, device="cpu", parts=parts)
    return folder
