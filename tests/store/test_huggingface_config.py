"""config.json of older Hugging Face folders, with other names of settings or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.parity.folders import ours
from tests.store.published import copy_folder, edit, refusal


@pytest.mark.parametrize(
    ("name", "aliases", "first"),
    [
        ("gpt2", {"num_attention_heads": "n_head", "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
                  "max_position_embeddings": "n_positions"}, "n_head"),
        ("t5", {"num_attention_heads": "num_heads", "hidden_size": "d_model", "num_hidden_layers": "num_layers"},
         "num_heads"),
        ("distilbert", {"num_attention_heads": "n_heads", "hidden_size": "dim", "num_hidden_layers": "n_layers"},
         "n_heads"),
    ],
)  # fmt: skip
def test_a_setting_is_read_by_either_of_its_names(
    folders: Path, tmp_path: Path, name: str, aliases: dict[str, str], first: str
):
    folder = copy_folder(folders, name, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    expected = ours(folder).network.description
    renamed = {new: config[old] for new, old in aliases.items()}
    (folder / "config.json").write_text(json.dumps({**config, **renamed}))
    assert ours(folder).network.description == expected
    plain = {key: value for key, value in config.items() if key not in aliases.values()}
    (folder / "config.json").write_text(json.dumps({**plain, **renamed}))
    assert ours(folder).network.description == expected
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 1}))
    assert f"{first} and num_attention_heads are one setting, and differ" in refusal(folder)


HARMLESS = {
    "sentence_transformers": {"version": "4"}, "sbert_ce_default_activation_function": "x", "name": "Bert",
    "total_flos": 1, "vocab_size_or_config_json_file": 40, "max_seq_length": 9, "do_lower_case": True,
}  # fmt: skip


def test_old_folders_without_model_type_are_recognised(folders: Path, tmp_path: Path):
    for number, (name, removed, change) in enumerate([
        ("bert", (), HARMLESS),
        ("bert", ("model_type",), {}),
        ("bert", ("model_type", "architectures"), {}),
        ("gpt2", ("model_type",), {}),
        ("t5", (), {"architectures": ["T5WithLMHeadModel"]}),
    ]):  # fmt: skip
        folder = copy_folder(folders, name, tmp_path / str(number))
        expected = ours(folder).network.description
        config = {**json.loads((folder / "config.json").read_text()), **change}
        (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key not in removed}))
        assert ours(folder).network.description == expected
    edit(folder / "config.json", model_type=None, architectures=["MambaForCausalLM"])
    assert "None" in refusal(folder)


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_weights_without_a_head_are_those_of_the_bare_model(folders: Path, tmp_path: Path, name: str):
    folder = copy_folder(folders, name, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    bare = {key.partition(".")[2]: tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    readout = ours(folder).network.description.readout
    assert readout.outputs == "vectors"
    edit(folder / "config.json", architectures=None)
    assert ours(folder).network.description.readout == readout
    del bare["embeddings.LayerNorm.weight"]
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    assert "the weights lack: embeddings.LayerNorm.weight" in refusal(folder)
