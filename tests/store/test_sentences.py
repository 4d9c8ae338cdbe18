"""Folders of sentence vectors."""

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
from tests.parity.folders import ours, saved, shaken
from tests.store.published import copied, edit, said

SENTENCES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def sentence_folder(folder: Path) -> Path:
    (folder / "modules.json").write_text(json.dumps(SENTENCES))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_a_sentence_folder_may_still_hold_what_says_words(folders: Path, tmp_path: Path):
    folder = sentence_folder(copied(folders, "bert", tmp_path / "m"))
    tensors = load_file(folder / "model.safetensors")
    more = {"cls.seq_relationship.weight": torch.zeros(2, 24), "cls.seq_relationship.bias": torch.zeros(2)}
    save_file({**tensors, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    found = ours(folder).network
    assert found.description.readout.says == "vectors"
    assert found.description.auxiliary is None


def test_a_sentence_folder_cuts_long_texts_wherever_it_is_taken(tmp_path: Path):
    folder = sentence_folder(saved(shaken(zoo.ALL["bert, bare"]()), tmp_path / "m"))
    long, short = regard.load(folder).embed(["abcdefgh", "abcd"])
    assert not np.allclose(long, short)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6, "do_lower_case": false}')
    convert(folder, tmp_path / "own", "regard")
    convert(tmp_path / "own", tmp_path / "theirs", "huggingface")
    for place in (folder, tmp_path / "own", tmp_path / "theirs"):
        model = regard.load(place)
        assert np.allclose(model.embed(["abcdefgh" * 9])[0], model.embed(["abcd"])[0])
        assert np.allclose(model.embed(["abcd"])[0], short)
        assert len(model.embed(["abcdefgh"], tokens=True)[0][0]) == 6
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": -1}')
    assert "max_seq_length" in said(folder)


def test_a_download_whose_files_are_links_into_its_store_is_read(tmp_path: Path):
    folder = sentence_folder(saved(shaken(zoo.ALL["bert, bare"]()), tmp_path / "repo" / "snapshots" / "abc"))
    store = tmp_path / "repo" / "blobs"
    store.mkdir()
    for number, path in enumerate([path for path in folder.rglob("*") if path.is_file()]):
        path.rename(store / str(number))
        path.symlink_to(store / str(number))
    assert ours(folder).network.description.readout.says == "vectors"
    (folder / "1_Pooling" / "config.json").unlink()
    (tmp_path / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "1_Pooling" / "config.json").symlink_to(tmp_path / "config.json")
    assert "outside" in said(folder)


def test_newer_sentence_folders_leave_the_length_to_the_tokenizer(tmp_path: Path):
    folder = sentence_folder(saved(shaken(zoo.ALL["bert, bare"]()), tmp_path / "m"))
    whole = regard.load(folder).embed(["abcdefgh"])
    (folder / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    edit(folder / "tokenizer_config.json", model_max_length=6)
    model = regard.load(folder)
    assert np.allclose(model.embed(["abcdefgh" * 9]), model.embed(["abcd"]))
    edit(folder / "tokenizer_config.json", model_max_length=10**30)
    model = regard.load(folder)
    assert np.allclose(model.embed(["abcdefgh"]), whole)
    assert np.allclose(model.embed(["a" * 90]), model.embed(["a" * 30]))  # the model has 32 positions
    edit(folder / "tokenizer_config.json", model_max_length="six")
    assert "model_max_length" in said(folder)


def test_a_prompt_that_is_put_before_every_text_is_noted(tmp_path: Path):
    folder = sentence_folder(saved(shaken(zoo.ALL["bert, bare"]()), tmp_path / "m"))
    settings = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.warns(Note, match="puts 'Find: ' before every text"):
        regard.load(folder)


@pytest.mark.parametrize(
    ("kinds", "mode", "word"),
    [("", "pooling_mode_mean_tokens", ""), ("Dense", "pooling_mode_mean_tokens", "Dense"),
     ("", "pooling_mode_weightedmean_tokens", "weightedmean")],
)  # fmt: skip
def test_sentence_folders_are_read_or_refused_by_name(tmp_path: Path, kinds: str, mode: str, word: str):
    folder = saved(shaken(zoo.ALL["bert, bare"]()), tmp_path / "m")
    more = (
        [{"idx": 2, "name": "2", "path": "2_Dense", "type": f"sentence_transformers.models.{kinds}"}] if kinds else []
    )
    (folder / "modules.json").write_text(json.dumps([*SENTENCES, *more]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, mode: True}))
    if word:
        assert word in said(folder)
    else:
        assert ours(folder).network.description.readout.inner is None
        for path in ("../1_Pooling", "a\nb", "a" * 300, "a\0", "\ud800", "/etc", "a\\b", ".."):
            (folder / "modules.json").write_text(json.dumps([SENTENCES[0], {**SENTENCES[1], "path": path}]))
            assert "outside" in said(folder)
