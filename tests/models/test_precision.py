"""Inference in bfloat16 and int8: close to float32, and the answer to a text is its own in any batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.cli import run
from regard.errors import InputError, Note
from regard.layers import linear
from regard.layers.linear import Linear
from regard.layers.packed import InferencePrecision
from regard.models import device, zoo
from regard.models.device import is_native, set_precision
from tests.small import TEXTS, save_model, small

TEXT = "the cat sat on the mat"


@pytest.fixture(autouse=True)
def _small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "LEAST_INT8", 1)


@pytest.fixture(autouse=True)
def _notes_are_no_errors() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)
        yield


DESCRIPTIONS: dict[str, Callable[[], Any]] = {
    "bert": lambda: zoo.bert(32, 2, 2), "gpt2": lambda: zoo.gpt2(32, 2, 2, dropout=0.0),
    "transformer": lambda: zoo.transformer(32, 2, 2, dropout=0.0),
    "reformer": lambda: zoo.reformer(32, 2, 2, inner=64, dropout=0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", DESCRIPTIONS)
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_vectors_are_close_to_float32_and_alike_alone_and_in_a_batch(name: str, precision: InferencePrecision):
    model = small(DESCRIPTIONS[name]())
    exact = model.embed([TEXT])
    set_precision(model.network, precision)
    alone, batch = model.embed([TEXT]), model.embed([TEXT, *TEXTS, TEXT * 3])
    size = np.linalg.norm(exact)
    assert 0 < np.linalg.norm(alone - exact) < 0.1 * size
    # The order of sums in float32 differs by batch, so that a number may be rounded to the step beside it.
    assert np.linalg.norm(alone[0] - batch[0]) < 5e-3 * size


def test_a_loaded_model_computes_in_the_precision_asked_for(tmp_path: Path):
    save_model(tmp_path / "model", small(zoo.bert(32, 2, 2)))
    for precision in ("float32", "bfloat16", "int8"):
        model = regard.load(tmp_path / "model", device="cpu", precision=precision)
        found = {one.precision for one in model.network.modules() if isinstance(one, Linear)}
        assert found == {precision}


def test_a_model_that_is_too_small_for_int8_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "LEAST_INT8", 1 << 17)
    with pytest.raises(InputError, match="no linear map that is large enough for int8"):
        set_precision(small(zoo.bert(16, 1, 2)).network, "int8")


def test_training_stays_in_float32():
    network = small(zoo.gpt2(32, 1, 2, dropout=0.0)).network
    ids = torch.arange(6)[None] + 4
    exact = network.train()(ids)
    set_precision(network, "int8")
    assert torch.equal(network(ids), exact)
    with torch.no_grad():
        assert not torch.equal(network.eval()(ids), exact)


def test_a_precision_that_the_processor_lacks_is_noted_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "is_native", lambda _: False)
    network = small(zoo.bert(16, 1, 2)).network
    with pytest.warns(Note, match="no instructions for bfloat16"):
        set_precision(network, "bfloat16")
    assert is_native("float32")


def test_what_cannot_be_is_refused_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = save_model(tmp_path / "model", small(zoo.transformer(16, 1, 2)))
    with pytest.raises(InputError, match=r'no precision is called "int4" \(--precision\)'):
        regard.load(folder, device="cpu", precision="int4")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="precision of its conversion"):
        regard.load(folder, engine="ctranslate2", precision="int8")
    words = ["translate", str(folder), "--engine", "ctranslate2", "--precision", "int8"]
    assert run(words) == 2
    assert "precision of its conversion" in capsys.readouterr().err
