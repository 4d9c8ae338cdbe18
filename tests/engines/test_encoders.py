"""A converted encoder embeds and classifies as torch does, without torch."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.api import LoadedModel, load
from regard.decode.requests import LabelPrediction, NumberPrediction
from regard.engines.encoder import TextEncoder
from regard.engines.folder import place_of, read_converted, read_proof
from regard.errors import InputError, Note, RunFailed
from regard.layers.positions import RelativeBias, Rotary
from regard.models.model import Model
from regard.models.readouts import (
    Dense,
    Label,
    Last,
    Max,
    Mean,
    MultiLabel,
    Number,
    Tags,
    Vector,
    WeightedMean,
)
from regard.models.zoo import bert
from regard.store.convert import convert as convert_folder
from tests.engines.test_engines import STARTED, convert, no_torch
from tests.small import TEXTS, save_model, small

LINES = [*TEXTS, "", "dog", "the park and the mat " * 4]
PAIRS = [*pairwise(LINES)]


def tiny(**settings: Any) -> Model:
    return bert(16, 2, 2, inner=24, max_positions=64, dropout=0.0, **settings)


def segments(model: Model, count: int) -> Model:
    return replace(model, embed=replace(model.embed, segments=count))


ENCODERS = {
    "bert": tiny(),
    "one_segment": segments(tiny(), 1),
    "no_segments": segments(tiny(), 0),
    "rotary": tiny(position=Rotary()),
    "relative_bias": tiny(position=RelativeBias(8, 16)),
}
READOUTS = {
    "label": Label(("good", "bad", "so so")),
    "label_of_relu": Label(("good", "bad"), Mean(), "relu", biased=False),
    "labels": MultiLabel(("red", "blue"), Max(), "gelu"),
    "number": Number(Last(), None),
    "tags": Tags(("noun", "verb", "other"), inner="gelu_tanh"),
    "vector": Vector(),
    "dense_vector": Vector(WeightedMean(), "silu", dense=(Dense(8), Dense(6, None)), normalised=False),
}


def converted(model: Model, root: Path) -> tuple[LoadedModel, TextEncoder]:
    folder = save_model(root / "model", small(model))
    return load(folder, engine="torch"), TextEncoder(convert(folder), no_torch)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("pool", ["mean", "first", "last", "max"])
def test_vectors_are_those_of_torch(name: str, pool: str, tmp_path: Path):
    model, engine = converted(ENCODERS[name], tmp_path)
    assert engine.verbs == ("embed",)
    np.testing.assert_allclose(engine.embed(LINES, pool=pool), model.embed(LINES, pool=pool), atol=1e-4)


def test_vectors_of_tokens_and_unit_vectors_are_those_of_torch(tmp_path: Path):
    model, engine = converted(ENCODERS["bert"], tmp_path)
    np.testing.assert_allclose(engine.embed(LINES, normalised=True), model.embed(LINES, normalised=True), atol=1e-5)
    for (names, ours), (same, theirs) in zip(model.embed(LINES, tokens=True), engine.embed(LINES, tokens=True)):
        assert names == same
        np.testing.assert_allclose(theirs, ours, atol=1e-4)


@pytest.mark.parametrize("name", READOUTS)
def test_heads_give_the_answers_of_torch(name: str, tmp_path: Path):
    model, engine = converted(replace(tiny(), readout=READOUTS[name]), tmp_path)
    ours, theirs = model.embed(LINES), engine.embed(LINES)
    assert engine.embedding_width == model.embedding_width == ours.shape[1]
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    if "classify" in engine.verbs:
        same_predictions(model.classify(LINES), engine.classify(LINES))
    if "classify" in engine.verbs and name != "tags":
        same_predictions(model.classify(PAIRS), engine.classify(PAIRS))


def same_predictions(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, LabelPrediction):
            assert other.label == one.label
            assert other.probabilities == pytest.approx(one.probabilities, abs=1e-4)
        elif isinstance(one, NumberPrediction):
            assert other.number == pytest.approx(one.number, abs=1e-4)
        else:
            assert other == one


def test_next_sentence_prediction_reads_pairs(tmp_path: Path):
    model, engine = converted(tiny(next_sentence=True), tmp_path)
    assert engine.classifies_pairs
    assert model.classifies_pairs
    same_predictions(model.classify(PAIRS), engine.classify(PAIRS))
    with pytest.raises(InputError, match="Give pairs of texts"):
        engine.classify(LINES)


def test_a_pooling_that_is_not_known_is_refused_as_by_torch(tmp_path: Path):
    for one in converted(ENCODERS["bert"], tmp_path):
        with pytest.raises(InputError, match=r'"most" is not known \(--pool\)'):
            one.embed(LINES, pool="most")
        with pytest.raises(InputError, match="vectors of tokens are not pooled"):
            one.embed(LINES, pool="mean", tokens=True)
        with pytest.raises(InputError, match=r"text 1.*64"):
            one.embed(["cat " * 70])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", small(replace(tiny(), readout=READOUTS["label"])))


def test_a_layer_is_left_to_torch_by_name(folder: Path):
    convert(folder)
    with pytest.warns(Note, match="does not honour layer, so torch embeds"):
        found = load(folder).embed(LINES, layer=1)
    assert (found == load(folder, engine="torch").embed(LINES, layer=1)).all()
    with pytest.warns(Note, match="does not honour layer, so torch embeds"):
        assert (load(folder, engine="ctranslate2").embed(LINES, layer=1) == found).all()


def test_the_proof_says_by_how_much_vectors_differ(folder: Path):
    proof = read_proof(convert(folder))
    assert proof is not None
    assert proof.equal_lines == proof.lines == len(TEXTS)
    assert proof.difference is not None
    assert proof.difference < 1e-4
    rounded = read_proof(convert(folder, precision="int8"))
    assert rounded is not None
    assert rounded.difference is not None
    assert rounded.difference > proof.difference


def test_an_encoder_that_answers_otherwise_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.engines.spec._ACTIVATIONS", {"gelu": "RELU"})
    with pytest.raises(RunFailed, match=r"0 of 4 lines as torch does \(numbers differ by up to"):
        convert(folder)
    assert not place_of(folder, "float32").exists()


def test_a_published_encoder_is_converted_with_its_bound_on_texts(tmp_path: Path):
    ours = save_model(tmp_path / "ours", small(replace(tiny(), readout=READOUTS["vector"])))
    convert_folder(ours, tmp_path / "published", "huggingface")
    model, engine = load(tmp_path / "published"), TextEncoder(convert(tmp_path / "published"), no_torch)
    said = read_converted(engine.folder)
    assert said is not None
    assert said.max_text_length == model.config.get("max_text_length")
    np.testing.assert_allclose(engine.embed(["cat " * 30, *LINES]), model.embed(["cat " * 30, *LINES]), atol=1e-4)


@pytest.mark.parametrize("alone", [False, True], ids=["beside its model", "alone"])
def test_a_converted_encoder_runs_without_torch(folder: Path, alone: bool):
    place, model = convert(folder), load(folder, engine="torch")
    named = str(place if alone else folder)
    text = "\n".join(TEXTS)
    done = _run("classify", named, text)
    assert done.stderr.decode().splitlines() == ["False"]
    labels = [one.label for one in model.classify(TEXTS) if isinstance(one, LabelPrediction)]
    assert done.stdout.decode().splitlines() == labels
    done = _run("embed", named, text)
    assert done.stderr.decode().splitlines() == ["False"]
    np.testing.assert_allclose(np.load(io.BytesIO(done.stdout)), model.embed(TEXTS), atol=1e-4)


def _run(command: str, folder: str, text: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-c", STARTED, command, folder]
    return subprocess.run(words, input=text.encode(), capture_output=True, check=False)


def test_a_converted_encoder_does_not_translate(folder: Path):
    place = convert(folder)
    done = _run("translate", str(place), "cat")
    assert b"is converted to CTranslate2 to classify and embed, not to translate" in done.stderr
