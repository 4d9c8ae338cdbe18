"""Saving and loading changes nothing; damage and malice are refused."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard.data.read.corpus import Corpus
from regard.data.tokenize.train import Character, train_tokenizers
from regard.errors import DamagedFile, InputError
from regard.store.folder import read_folder, unique_tensors, write_description, write_weights
from tests.laws.zoo import MODELS

TEXT = Corpus(["abc def ghi", "jkl mno"], ["pqr stu", "vwx yz."], ("text",))


def write(folder: Path, name: str = "transformer", *, joint: bool = True) -> None:
    description = MODELS[name]
    corpus = TEXT if description.encoder else Corpus(TEXT.sources, None, ("text",))
    tokenizers = train_tokenizers(Character(joint=joint), corpus)
    torch.manual_seed(5)
    if tokenizers[1] is None:
        network = description.build(tokenizers[0].vocabulary)
    else:
        network = description.build(tokenizers[1].vocabulary, tokenizers[0].vocabulary)
    task = "translate" if network.encoder else "generate"
    write_description(folder, network, tokenizers, task=task, generation={"num_beams": 3})
    write_weights(folder, unique_tensors(network))


@pytest.mark.parametrize("name", MODELS)
def test_saving_and_loading_changes_nothing(name: str, tmp_path: Path):
    write(tmp_path, name)
    loaded = read_folder(tmp_path, torch.device("cpu"))
    torch.manual_seed(5)
    again = MODELS[name].build(loaded.network.vocabulary)
    expected = dict(again.named_parameters())
    found = dict(loaded.network.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)
    assert loaded.network.description == MODELS[name]


def test_separate_vocabularies_are_kept_apart(tmp_path: Path):
    write(tmp_path, joint=False)
    model = regard.load(tmp_path)
    assert model.tokenizer.vocabulary != model.target_tokenizer.vocabulary
    assert isinstance(model.translate("abc"), str)


@pytest.mark.parametrize("change", [{"begin": 2**63}, {"pad": -1}, {"opening": [10**6]}, {"between": 10**9}])
def test_parts_are_played_by_tokens_that_the_model_has(tmp_path: Path, ablation: dict[str, object]):
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    roles = {"kind": "roles", "begin": 1, "end": 2, "pad": 0}
    (tmp_path / "config.json").write_text(json.dumps({**config, "roles": [roles, None]}))
    assert regard.load(tmp_path).tokenizer.begin == 1
    (tmp_path / "config.json").write_text(json.dumps({**config, "roles": [{**roles, **ablation}, None]}))
    with pytest.raises(DamagedFile, match="tokens that the model does not have"):
        regard.load(tmp_path)


def test_files_have_the_shape_and_the_mode_the_ecosystem_expects(tmp_path: Path):
    before = os.umask(0o022)
    try:
        write(tmp_path)
    finally:
        os.umask(before)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "regard"
    assert {"architectures", "dtype", "tie_word_embeddings"} <= config.keys()
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o644, path
    content = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"].keys() == {"format", "sha256"}
    assert header["__metadata__"]["format"] == "pt"


def test_the_checksum_is_that_of_the_file_with_zeros_in_its_place(tmp_path: Path):
    write(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        digest = file.metadata()["sha256"].encode()
    assert hashlib.sha256(content.replace(digest, b"0" * 64)).hexdigest().encode() == digest
    assert int.from_bytes(content[:8], "little") % 8 == 0


def test_weights_that_others_wrote_have_no_checksum_and_are_read(tmp_path: Path):
    write(tmp_path)
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors")
    assert regard.load(tmp_path).translate("abc") is not None


def test_any_flipped_or_missing_byte_of_the_weights_is_refused(tmp_path: Path):
    write(tmp_path)
    path, chance = tmp_path / "model.safetensors", random.Random(2)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    digest = whole.index(b'"sha256"')
    places = [*range(8), *range(digest, digest + 30), digest + 74, *(chance.randrange(header) for _ in range(40)),
              *(chance.randrange(header, len(whole)) for _ in range(20))]  # fmt: skip
    for number, place in enumerate(places):
        flipped = bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
        path.write_bytes(whole[:place] + (flipped if number % 5 else b""))
        with pytest.raises(DamagedFile) as caught:
            regard.load(tmp_path)
        assert "\n" not in str(caught.value)
    path.write_bytes(whole)
    regard.load(tmp_path)


def damaged(folder: Path, ablation) -> str:
    write(folder)
    ablation(folder)
    with pytest.raises((DamagedFile, InputError)) as caught:
        regard.load(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == (3 if isinstance(caught.value, DamagedFile) else 2)
    return str(caught.value)


def edit_config(**changes):
    def ablation(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["model"].update(changes)
        (folder / "config.json").write_text(json.dumps(config))

    return ablation


def test_a_truncated_file_of_weights_is_refused(tmp_path: Path):
    def cut(folder: Path) -> None:
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])

    assert "damaged" in damaged(tmp_path, cut)


def test_a_config_that_does_not_fit_the_weights_is_refused_before_anything_is_allocated(tmp_path: Path):
    assert "config.json says" in damaged(tmp_path, edit_config(width=999_996))


def test_missing_and_unknown_tensors_are_named(tmp_path: Path):
    def drop(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors["embed.table.weight"]
        save_file(tensors, folder / "model.safetensors")

    def add(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file({**tensors, "extra": torch.zeros(1)}, folder / "model.safetensors")

    assert "lacks embed.table.weight" in damaged(tmp_path, drop)
    assert "holds extra" in damaged(tmp_path, add)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a": NaN', b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_not_an_object_is_refused(tmp_path: Path, content: bytes):
    assert "config.json" in damaged(tmp_path, lambda folder: (folder / "config.json").write_bytes(content))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_broken_tokenizer_is_refused(tmp_path: Path, content: bytes):
    assert "tokenizer" in damaged(tmp_path, lambda folder: (folder / "tokenizer.json").write_bytes(content))


def test_unknown_kinds_and_keys_are_refused(tmp_path: Path):
    assert "config.json" in damaged(tmp_path, edit_config(embed={"kind": "os.system"}))
    assert "config.json" in damaged(tmp_path, edit_config(surprise=1))


@pytest.mark.parametrize("content", ['{"num_beams": "x"}', '{"num_beams": 2.5}', '{"length_penalty": "a"}', "[]"])
def test_a_broken_generation_config_is_refused(tmp_path: Path, content: str):
    said = damaged(tmp_path, lambda folder: (folder / "generation_config.json").write_text(content))
    assert "generation_config.json" in said


def test_settings_that_make_no_model_are_refused(tmp_path: Path):
    assert "config.json" in damaged(tmp_path, edit_config(width=0))


def test_a_pickle_is_refused_by_name(tmp_path: Path):
    def swap(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    assert "is a pickle" in damaged(tmp_path, swap)


def test_a_missing_folder_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match="no such model folder"):
        regard.load(tmp_path / "nowhere")
