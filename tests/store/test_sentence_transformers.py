"""Sentence embeddings in the format of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.errors import Note
from regard.store.convert import convert
from tests.parity import zoo
from tests.parity.folders import ours, perturbed, save_theirs
from tests.store.published import copy_folder, edit, refusal

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def sentence_folder(folder: Path) -> Path:
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_a_sentence_encoder_may_still_hold_the_heads_of_pretraining(folders: Path, tmp_path: Path):
    folder = sentence_folder(copy_folder(folders, "bert", tmp_path / "m"))
    tensors = load_file(folder / "model.safetensors")
    more = {"cls.seq_relationship.weight": torch.zeros(2, 24), "cls.seq_relationship.bias": torch.zeros(2)}
    save_file({**tensors, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    found = ours(folder).network
    assert found.description.readout.outputs == "vectors"
    assert found.description.auxiliary is None


def test_max_seq_length_survives_conversion(tmp_path: Path):
    folder = sentence_folder(save_theirs(perturbed(zoo.ALL["bert, bare"]()), tmp_path / "m"))
    long, short = regard.load(folder).embed(["abcdefgh", "abcd"])
    assert not np.allclose(long, short)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6, "do_lower_case": false}')
    convert(folder, tmp_path / "own", "regard")
    convert(tmp_path / "own", tmp_path / "theirs", "huggingface")
    for path in (folder, tmp_path / "own", tmp_path / "theirs"):
        model = regard.load(path)
        assert np.allclose(model.embed(["abcdefgh" * 9])[0], model.embed(["abcdef"])[0])
        assert np.allclose(model.embed(["abcd"])[0], short)
        assert len(model.embed(["abcdefgh"], tokens=True)[0][0]) == 6
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": -1}')
    assert "max_seq_length" in refusal(folder)


def test_a_download_whose_files_are_links_into_the_cache_is_read(tmp_path: Path):
    folder = sentence_folder(save_theirs(perturbed(zoo.ALL["bert, bare"]()), tmp_path / "repo" / "snapshots" / "abc"))
    cache = tmp_path / "repo" / "blobs"
    cache.mkdir()
    for number, path in enumerate([path for path in folder.rglob("*") if path.is_file()]):
        path.rename(cache / str(number))
        path.symlink_to(cache / str(number))
    assert ours(folder).network.description.readout.outputs == "vectors"
    (folder / "1_Pooling" / "config.json").unlink()
    (tmp_path / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "1_Pooling" / "config.json").symlink_to(tmp_path / "config.json")
    assert "outside" in refusal(folder)


def test_newer_sentence_folders_leave_the_length_to_the_tokenizer(tmp_path: Path):
    folder = sentence_folder(save_theirs(perturbed(zoo.ALL["bert, bare"]()), tmp_path / "m"))
    expected = regard.load(folder).embed(["abcdefgh"])
    (folder / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    edit(folder / "tokenizer_config.json", model_max_length=6)
    model = regard.load(folder)
    assert np.allclose(model.embed(["abcdefgh" * 9]), model.embed(["abcdef"]))
    edit(folder / "tokenizer_config.json", model_max_length=10**30)
    model = regard.load(folder)
    assert np.allclose(model.embed(["abcdefgh"]), expected)
    assert np.allclose(model.embed(["a" * 90]), model.embed(["a" * 32]))  # the model has 32 positions
    edit(folder / "tokenizer_config.json", model_max_length="six")
    assert "model_max_length" in refusal(folder)


def test_a_default_prompt_is_noted(tmp_path: Path):
    folder = sentence_folder(save_theirs(perturbed(zoo.ALL["bert, bare"]()), tmp_path / "m"))
    settings = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.warns(Note, match="puts 'Find: ' before every text"):
        regard.load(folder)


@pytest.mark.parametrize(
    ("module", "mode", "expected"),
    [("", "pooling_mode_mean_tokens", ""), ("Asym", "pooling_mode_mean_tokens", "Asym"),
     ("", "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len")],
)  # fmt: skip
def test_modules_and_pooling_modes_are_read_or_refused_by_name(tmp_path: Path, module: str, mode: str, expected: str):
    folder = save_theirs(perturbed(zoo.ALL["bert, bare"]()), tmp_path / "m")
    more = (
        [{"idx": 2, "name": "2", "path": "2_Dense", "type": f"sentence_transformers.models.{module}"}] if module else []
    )
    (folder / "modules.json").write_text(json.dumps([*MODULES, *more]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, mode: True}))
    if expected:
        assert expected in refusal(folder)
    else:
        assert ours(folder).network.description.readout.inner is None
        for path in ("../1_Pooling", "a\nb", "a" * 300, "a\0", "\ud800", "/etc", "a\\b", ".."):
            (folder / "modules.json").write_text(json.dumps([MODULES[0], {**MODULES[1], "path": path}]))
            assert "outside" in refusal(folder)


def test_dense_layers_and_the_weighted_mean_are_those_of_sentence_transformers(tmp_path: Path):
    theirs = perturbed(zoo.ALL["bert, bare"]())
    folder = sentence_folder(save_theirs(theirs, tmp_path / "m"))
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    (folder / "modules.json").write_text(json.dumps([
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "", "type": f"x.models.{kind}"}
        for number, kind in enumerate(kinds)]))  # fmt: skip
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_weightedmean_tokens": true}')
    torch.manual_seed(4)
    layers = torch.nn.Linear(24, 10), torch.nn.Linear(10, 7, bias=False)
    for number, layer, activation in ((2, layers[0], "activation.Tanh"), (3, layers[1], "linear.Identity")):
        (folder / f"{number}_Dense").mkdir()
        settings = {
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "activation_function": f"torch.nn.modules.{activation}",
            "bias": layer.bias is not None,
        }
        (folder / f"{number}_Dense" / "config.json").write_text(json.dumps(settings))
        tensors = {f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}
        save_file(tensors, folder / f"{number}_Dense" / "model.safetensors")
    model = regard.load(folder)
    (found,) = model.embed(["abcdefgh"])
    with torch.no_grad():
        states = theirs(torch.tensor([model.tokenizer.encode("abcdefgh")])).last_hidden_state[0]
        weights = torch.arange(1, len(states) + 1) / sum(range(1, len(states) + 1))
        expected = layers[1](torch.tanh(layers[0](weights @ states)))
    np.testing.assert_allclose(found, expected / expected.norm(), atol=2e-6)
    convert(folder, tmp_path / "own", "regard")
    convert(tmp_path / "own", tmp_path / "theirs", "huggingface")
    np.testing.assert_array_equal(regard.load(tmp_path / "theirs").embed(["abcdefgh"])[0], found)
    assert json.loads((tmp_path / "theirs" / "2_Dense" / "config.json").read_text())["in_features"] == 24
    edit(folder / "2_Dense" / "config.json", activation_function="torch.nn.modules.activation.Softmax")
    assert 'activation_function = "Softmax"' in refusal(folder)
