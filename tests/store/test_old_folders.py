"""Folders of the first years, whose files say less or otherwise than today's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.parity.folders import ours
from tests.store.published import copied, edit, said


@pytest.mark.parametrize(
    ("name", "other", "word"),
    [
        ("gpt2", {"num_attention_heads": "n_head", "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
                  "max_position_embeddings": "n_positions"}, "n_head"),
        ("t5", {"num_attention_heads": "num_heads", "hidden_size": "d_model", "num_hidden_layers": "num_layers"},
         "num_heads"),
        ("distilbert", {"num_attention_heads": "n_heads", "hidden_size": "dim", "num_hidden_layers": "n_layers"},
         "n_heads"),
    ],
)  # fmt: skip
def test_settings_are_known_by_both_their_names(
    folders: Path, tmp_path: Path, name: str, other: dict[str, str], word: str
):
    folder = copied(folders, name, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    expected = ours(folder).network.description
    renamed = {new: config[old] for new, old in other.items()}
    (folder / "config.json").write_text(json.dumps({**config, **renamed}))
    assert ours(folder).network.description == expected
    plain = {key: value for key, value in config.items() if key not in other.values()}
    (folder / "config.json").write_text(json.dumps({**plain, **renamed}))
    assert ours(folder).network.description == expected
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 1}))
    assert f"{word} and num_attention_heads are one setting, and differ" in said(folder)


HARMLESS = {
    "sentence_transformers": {"version": "4"}, "sbert_ce_default_activation_function": "x", "name": "Bert",
    "total_flos": 1, "vocab_size_or_config_json_file": 40, "max_seq_length": 9, "do_lower_case": True,
}  # fmt: skip


def test_old_folders_are_recognised(folders: Path, tmp_path: Path):
    for number, (name, gone, ablation) in enumerate([
        ("bert", (), HARMLESS),
        ("bert", ("model_type",), {}),
        ("bert", ("model_type", "architectures"), {}),
        ("gpt2", ("model_type",), {}),
        ("t5", (), {"architectures": ["T5WithLMHeadModel"]}),
    ]):  # fmt: skip
        folder = copied(folders, name, tmp_path / str(number))
        expected = ours(folder).network.description
        config = {**json.loads((folder / "config.json").read_text()), **ablation}
        (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key not in gone}))
        assert ours(folder).network.description == expected
    edit(folder / "config.json", model_type=None, architectures=["LlamaForCausalLM"])
    assert "None" in said(folder)


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_weights_that_say_no_words_are_those_of_the_bare_model(folders: Path, tmp_path: Path, name: str):
    folder = copied(folders, name, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    bare = {key.partition(".")[2]: tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    readout = ours(folder).network.description.readout
    assert readout.says == "vectors"
    edit(folder / "config.json", architectures=None)
    assert ours(folder).network.description.readout == readout
    del bare["embeddings.LayerNorm.weight"]
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    assert "the weights lack: embeddings.LayerNorm.weight" in said(folder)
