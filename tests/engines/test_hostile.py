"""Files of converted models that lie, in a folder without a manifest: refused by name, without a traceback."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from regard.engines.convert import Sample
from regard.engines.folder import place_of
from regard.engines.head import HEAD
from regard.engines.onnx_export import convert_to_onnx
from regard.engines.open import open_converted
from regard.errors import DamagedFile
from regard.models import zoo
from regard.models.model import Model
from regard.models.readouts import Label
from regard.store.convert import read_source
from tests.engines.test_engines import convert, no_torch
from tests.small import TEXTS, save_model, small

pytest.importorskip("ctranslate2")
MODELS = {
    "translator": zoo.transformer(16, 1, 2), "language model": zoo.gpt2(16, 1, 2),
    "encoder": replace(zoo.bert(16, 1, 2), readout=Label(("good", "bad"))),
}  # fmt: skip
DAMAGE = {
    "cut": lambda whole: whole[: len(whole) // 2], "empty": lambda whole: b"",
    "not UTF-8": lambda whole: whole[:8] + b"\xff" * 16 + whole[24:],
}  # fmt: skip


def unchecked(folder: Path, description: Model) -> Path:
    """A converted model whose files may be changed."""
    place = convert(save_model(folder / "model", small(description)))
    (place / "manifest.json").unlink()
    return place


@pytest.mark.parametrize("kind", MODELS)
def test_a_damaged_model_or_vocabulary_is_refused_by_name(tmp_path: Path, kind: str):
    place = unchecked(tmp_path, MODELS[kind])
    open_converted(place, no_torch)
    for path in [place / "model.bin", *place.glob("*vocabulary.json")]:
        whole = path.read_bytes()
        for name, damage in DAMAGE.items():
            path.write_bytes(damage(whole))
            with pytest.raises(DamagedFile) as caught:
                open_converted(place, no_torch)
            assert str(place) in str(caught.value), name
        path.write_bytes(whole)


def test_a_head_that_does_not_fit_is_refused(tmp_path: Path):
    place = unchecked(tmp_path, MODELS["encoder"])
    weights = load_file(place / HEAD)
    last = max(name for name in weights if name.endswith("weight"))
    for changed in (
        {name: value for name, value in weights.items() if name != last}, weights | {last: weights[last][:, 1:].copy()},
        weights | {last: np.concatenate([weights[last]] * 2)}, weights | {last: weights[last][0]},
        weights | {last.replace("weight", "bias"): np.zeros(7, np.float32)},
    ):  # fmt: skip
        save_file(changed, place / HEAD)
        with pytest.raises(DamagedFile, match=r"head\.safetensors"):
            open_converted(place, no_torch)
    (place / HEAD).write_bytes(b"rubbish")
    with pytest.raises(DamagedFile, match=r"head\.safetensors"):
        open_converted(place, no_torch)


def test_labels_that_the_head_does_not_have_are_refused(tmp_path: Path):
    place = unchecked(tmp_path, MODELS["encoder"])
    config = json.loads((place / "config.json").read_text())
    config["regard"]["head"]["labels"] = ["one"] * 9
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match="9 labels"):
        open_converted(place, no_torch)


def test_hidden_states_of_another_width_are_refused(tmp_path: Path):
    place = unchecked(tmp_path, zoo.bert(16, 1, 2))
    config = json.loads((place / "config.json").read_text())
    config["regard"]["vector_width"] = 7
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match="not of the width"):
        open_converted(place, no_torch).embed(["the cat"])


def test_a_graph_that_reads_or_writes_something_else_is_refused(tmp_path: Path):
    onnx, _ = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    folder = save_model(tmp_path / "model", small(zoo.bert(16, 1, 2)))
    place = place_of(folder, "float32", "onnxruntime")
    convert_to_onnx(read_source(folder), folder, place, Sample.of(TEXTS))
    (place / "manifest.json").unlink()
    open_converted(place, no_torch).embed(["the cat"])
    for read, written in (("passwords", "states"), ("ids", "something")):
        inputs, outputs = (
            [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["b", "t"])] for name in (read, written)
        )
        node = onnx.helper.make_node("Identity", [read], [written])
        graph = onnx.helper.make_graph([node], "graph", inputs, outputs)
        version = onnx.helper.make_opsetid("", 18)
        onnx.save(onnx.helper.make_model(graph, opset_imports=[version], ir_version=9), place / "encoder.onnx")
        with pytest.raises(DamagedFile, match="no encoder that regard wrote"):
            open_converted(place, no_torch)
