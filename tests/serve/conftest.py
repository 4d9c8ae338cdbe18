"""Tiny models of every kind, and servers of them in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from regard.api import LoadedModel
from regard.data.tokenize.train import BPE, WordPiece
from regard.layers.positions import Learned, Rotary
from regard.models import zoo
from regard.models.readouts import Label
from regard.serve.settings import Settings
from regard.store.loading import TRAINED_LENGTH
from tests.laws.zoo import MODELS
from tests.small import TEXTS, save_model, small

from .live import Live, live

KEY = "a-secret-key"
BYTES = BPE(300).train(TEXTS * 4)  # knows every byte: a text is the sum of its tokens
SPANS = WordPiece(80, sentinels=4).train(TEXTS * 4)


def writer(max_positions: int = 64) -> LoadedModel:
    """A language model over bytes, with a limit on its positions."""
    described = zoo.gpt2(width=16, depth=1, heads=2, inner=16, position=Learned(max_positions), dropout=0.0)
    return small(described, [BYTES])


@pytest.fixture(scope="session")
def tiny() -> dict[str, LoadedModel]:
    """Models by the names they are served by; each is trained for another task."""
    bert = MODELS["bert"]
    short = {"max_length": 12, "num_beams": 3}
    return {
        "de-en": small(MODELS["pre-norm"], config={TRAINED_LENGTH: 16}, generation_config=short),
        "other": small(MODELS["bahdanau"], generation_config={"max_length": 12}),
        "writer": writer(),
        "endless": small(zoo.gpt2(width=16, depth=1, heads=2, inner=16, position=Rotary(), dropout=0.0), [BYTES]),
        "filler": small(bert),
        "spans": small(MODELS["t5"], [SPANS], generation_config={"max_length": 12}),
        "labels": small(replace(bert, readout=Label(("good", "bad")), auxiliary=None)),
    }


@pytest.fixture(scope="session")
def server(tiny: dict[str, LoadedModel]) -> Iterator[Live]:
    """A server without a key."""
    with live(tiny, Settings(port=0, grace_seconds=5.0), languages={"de-en": ("de", "en")}) as found:
        yield found


@pytest.fixture(scope="session")
def locked(tiny: dict[str, LoadedModel]) -> Iterator[Live]:
    """A server with a key."""
    settings = Settings(port=0, grace_seconds=5.0, api_key=KEY, receive_seconds=1.0)
    with live(tiny, settings, languages={"de-en": ("de", "en")}) as found:
        yield found


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, LoadedModel]) -> Path:
    """The folder of a language model without a limit on its positions."""
    return save_model(tmp_path_factory.mktemp("served") / "writer", tiny["endless"])
