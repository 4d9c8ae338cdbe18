"""Hugging Face folders: damaged, hostile or unsupported ones are refused in one line, before anything is allocated."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianMTModel

import regard
from regard.cli import run
from regard.data.tokenize.encode import Template
from regard.errors import DamagedFile, InputError, Note
from regard.store.convert import convert
from regard.store.folder import read_folder, unique_parameters
from tests.parity import zoo
from tests.parity.folders import CPU, ours, perturbed, save_theirs
from tests.store.published import copy_folder, edit, refusal, shard


def test_sharded_weights_are_the_same_model(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    single = unique_parameters(ours(folder).network)
    shard(folder)
    (folder / "pytorch_model.bin").write_bytes(b"not opened")
    shards = unique_parameters(ours(folder).network)
    assert all(torch.equal(single[name], shards[name]) for name in single)


OUTSIDE = ["../a.safetensors", "/etc/a.safetensors", "x/../../a.safetensors", "a\\b.safetensors", "a\0.safetensors",
           "%2e%2e%2fa", "pytorch_model.bin", "link.safetensors", ".."]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_that_names_files_outside_the_folder_is_refused(folders: Path, tmp_path: Path, name: str):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    shard(folder, a=name)
    (folder / "a.safetensors").rename(tmp_path / "a.safetensors")
    (folder / "link.safetensors").symlink_to(tmp_path / "a.safetensors")
    assert "outside the model folder" in refusal(folder)


def test_a_download_whose_files_are_links_into_the_cache_is_read(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "gpt2", tmp_path / "repo" / "snapshots" / "abc")
    shard(folder)
    (tmp_path / "repo" / "blobs").mkdir()
    for path in list(folder.iterdir()):
        path.rename(tmp_path / "repo" / "blobs" / path.name)
        path.symlink_to(Path("..") / ".." / "blobs" / path.name)
    assert ours(folder).network.vocabulary == 40


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_weights_of_another_precision_are_read(folders: Path, tmp_path: Path, dtype: str):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    tensors = {
        name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    network = ours(folder).network
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert torch.equal(network.embed.table.weight, tensors["transformer.wte.weight"].float())


def test_old_names_buffers_and_repeated_tensors_are_read(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "gpt2", tmp_path / "gpt2")
    tensors = load_file(folder / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {"h.0.attn.bias": torch.ones(1, 1, 4, 4), "lm_head.weight": old["wte.weight"].clone()}
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    assert ours(folder).network.description.readout.tied
    save_file({**old, "lm_head.weight": old["wte.weight"] + 1}, folder / "model.safetensors")
    assert not ours(folder).network.description.readout.tied
    folder = copy_folder(folders, "bert", tmp_path / "bert")
    tensors = load_file(folder / "model.safetensors")
    old_names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {}
    for name, tensor in tensors.items():
        suffix = next((suffix for suffix in old_names if name.endswith(suffix)), "")
        old[name.removesuffix(suffix) + old_names.get(suffix, "")] = tensor
    old["bert.embeddings.position_ids"] = torch.arange(32)[None]
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    assert ours(folder).network.vocabulary == 40
    save_file({**old, "cls.predictions.decoder.bias": old["cls.predictions.bias"] + 1}, folder / "model.safetensors")
    assert "which it should repeat" in refusal(folder)


def test_every_missing_and_unknown_tensor_is_named_at_once(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "bert", tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    removed = ["bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.1.attention.self.key.bias"]
    save_file({"extra.one": torch.zeros(1), "extra.two": torch.zeros(1),
               **{name: tensor for name, tensor in tensors.items() if name not in removed}},
              folder / "model.safetensors")  # fmt: skip
    message = refusal(folder)
    assert all(
        name in message for name in (*(name.removeprefix("bert.") for name in removed), "extra.one", "extra.two")
    )


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("bert", {"position_embedding_type": "relative_key", "is_decoder": True}, "relative_key"),
        ("bert", {"hidden_act": "mish"}, "mish"),
        ("bert", {"novel_setting": 3}, "novel_setting = 3"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "gated-mish"),
        ("marian", {"normalize_before": True}, "normalize_before"),
        ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2LMHeadModel"),
        ("gpt2", {"model_type": "mamba"}, "mamba"),
        ("gpt2", {"auto_map": {"AutoModel": "x.py"}}, "never runs"),
        ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("gpt2", {"n_layer": 4}, "h.3.ln_1.weight"),
        ("gpt2", {"n_layer": 2}, "h.2.ln_1.weight"),
        ("gpt2", {"n_head": 5}, "heads"),
        ("gpt2", {"n_embd": "24"}, "n_embd"),
        ("bert", {"vocab_size": 41}, "word_embeddings"),
    ],
)
def test_settings_that_are_not_honoured_are_refused_by_name(
    folders: Path, tmp_path: Path, name: str, changes: dict[str, Any], expected: str
):
    folder = copy_folder(folders, name, tmp_path / "m")
    edit(folder / "config.json", **changes)
    assert expected in refusal(folder)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("bert, labels", {"id2label": None, "num_labels": 10**9}, "num_labels must be 1 to 100,000"),
        ("bert", {"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ("gpt2", {"layer_norm_epsilon": 0.0}, "layer_norm_epsilon must be above 0"),
        ("t5", {"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon must be above 0"),
    ],
)
def test_invalid_numbers_are_refused(folders: Path, tmp_path: Path, name: str, changes: dict[str, Any], expected: str):
    folder = copy_folder(folders, name, tmp_path / "m")
    edit(folder / "config.json", **changes)
    assert expected in refusal(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(folders: Path, tmp_path: Path, value: float):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    convert(folder, tmp_path / "own", "regard")
    (tmp_path / "own" / "manifest.json").unlink()
    for path, name in ((folder, "transformer.h.1.ln_2.bias"), (tmp_path / "own", "decoder.final_norm.bias")):
        tensors = load_file(path / "model.safetensors")
        tensors[name][3] = value
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        assert f"{name} holds a value that is not finite" in refusal(path)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_a_git_lfs_pointer_is_refused(folders: Path, tmp_path: Path, file: str):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in refusal(folder)


def test_shards_with_unusable_names_are_refused(folders: Path, tmp_path: Path):
    for number, name in enumerate(["loop.safetensors", f"{'a' * 5000}.safetensors"]):
        folder = copy_folder(folders, "gpt2", tmp_path / str(number))
        shard(folder, a=name)
        (folder / "loop.safetensors").symlink_to("loop.safetensors")
        message = refusal(folder)
        assert "refused" in message
        assert len(message) < 500


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_an_unpaired_surrogate_is_refused(folders: Path, tmp_path: Path, file: str):
    folder = copy_folder(folders, "bert", tmp_path / "m")
    (folder / file).touch()
    settings = json.loads((folder / file).read_text() or "{}")
    if file != "config.json":  # which has no such setting
        (folder / file).write_text(json.dumps({**settings, "mask_token": "\ud83d\ude00"}))
        read_folder(folder, CPU)
    for half in (b"\\ud800", b"\xed\xa0\x80"):
        written = json.dumps({**settings, "mask_token": "HALF"}).encode()
        (folder / file).write_bytes(written.replace(b"HALF", half))
        assert f"{file} is not JSON" in refusal(folder)


HUGE_SIZES = [{"n_embd": 10**9}, {"n_layer": 10**6}, {"n_layer": 9_999}, {"vocab_size": 10**12}, {"n_inner": 10**15},
         {"n_positions": 10**18}, {"n_layer": -1}, {"n_embd": 1e30}]  # fmt: skip


def test_sizes_that_the_weights_do_not_have_are_refused_before_anything_is_allocated(folders: Path, tmp_path: Path):
    for number, size in enumerate(HUGE_SIZES):
        edit(copy_folder(folders, "gpt2", tmp_path / str(number)) / "config.json", **size)
    code = (
        "import resource, sys, regard\nfrom regard.errors import RegardError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for folder in sys.argv[1:]:\n"
        "    try: regard.load(folder, device='cpu')\n"
        "    except RegardError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    paths = [str(tmp_path / str(number)) for number in range(len(HUGE_SIZES))]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    *messages, grown = done.stdout.splitlines()
    assert len(messages) == len(paths)
    assert all(path in message for path, message in zip(paths, messages))
    assert int(grown) < 200_000  # kilobytes


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                  "model.safetensors", "model.safetensors.index.json"])  # fmt: skip
def test_damaged_files_are_read_or_refused_in_one_line(folders: Path, tmp_path: Path, file: str):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    if "index" in file:
        shard(folder)
    intact, chance = (folder / file).read_bytes(), random.Random(file)
    for number in range(60):
        content = bytearray(intact)
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content) if number % 2 else min(len(content), 400))] = chance.randrange(256)
        (folder / file).write_bytes(content[: chance.randrange(len(content))] if number % 5 == 0 else content)
        try:
            read_folder(folder, CPU)
        except (DamagedFile, InputError) as error:
            message = str(error)
        else:
            message = ""
        assert "\n" not in message


class Harm:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.bin"])
def test_a_pickle_is_never_opened(folders: Path, tmp_path: Path, name: str):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Harm(tmp_path / "harm")))
    assert "--allow-pickle" in refusal(folder)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("form", ["expanded", "shared", "compressed"])
def test_a_pickle_that_unpacks_to_more_than_its_size_is_refused(folders: Path, tmp_path: Path, form: str):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    (folder / "model.safetensors").unlink()
    shared = torch.zeros(1_000_000)
    bombs = {
        "expanded": {"a": torch.zeros(1).expand(1 << 32)}, "shared": {f"a{index}": shared for index in range(300)},
        "compressed": {"a": torch.zeros(1 << 25)},
    }  # fmt: skip
    torch.save(bombs[form], folder / "pytorch_model.bin")
    if form == "compressed":
        with zipfile.ZipFile(folder / "pytorch_model.bin") as plain:
            contents = {name: plain.read(name) for name in plain.namelist()}
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in contents.items():
                packed.writestr(name, content)
    with pytest.raises(DamagedFile, match="unpacks to far more than its own size"):
        convert(folder, tmp_path / "new", "regard", pickles=True)


def test_a_pickle_of_tensors_is_converted_when_allowed_and_a_harmful_one_does_nothing(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    expected = unique_parameters(ours(folder).network)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert run(["convert", str(folder), str(tmp_path / "new"), "--to", "regard", "--allow-pickle"]) == 0
    found = unique_parameters(ours(tmp_path / "new").network)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not (folder / "model.safetensors").exists()
    torch.save({**tensors, "harm": Harm(tmp_path / "harm")}, folder / "pytorch_model.bin")
    with pytest.raises(DamagedFile, match="not a pickle of plain tensors") as caught:
        convert(folder, tmp_path / "other", "regard", pickles=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["gpt2", "marian", "bert"])
def test_converting_there_and_back_changes_nothing(folders: Path, tmp_path: Path, name: str):
    first = ours(folders / name)
    convert(folders / name, tmp_path / "own", "regard")
    own = ours(tmp_path / "own")
    assert own.network.description == first.network.description
    assert own.tokenizers[0].special_tokens == first.tokenizers[0].special_tokens
    assert regard.load(tmp_path / "own").defaults() == regard.load(folders / name).defaults()
    convert(tmp_path / "own", tmp_path / "theirs", "huggingface")
    last = load_file(tmp_path / "theirs" / "model.safetensors")
    expected = load_file(folders / name / "model.safetensors")
    assert last.keys() == expected.keys()
    assert all(torch.equal(last[key], expected[key]) for key in expected)
    with pytest.raises(InputError, match="exists already"):
        convert(folders / name, tmp_path / "theirs", "regard")


@pytest.mark.parametrize("name", ["marian, separate", "marian, larger target", "marian, untied and shared"])
def test_one_tokenizer_may_serve_two_embeddings(tmp_path: Path, name: str):
    first = ours(save_theirs(perturbed(zoo.ALL[name]()), tmp_path / "old"))
    convert(tmp_path / "old", tmp_path / "own", "regard")
    own = ours(tmp_path / "own")
    before, after = unique_parameters(first.network), unique_parameters(own.network)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert [made.encode("hello") for made in own.tokenizers if made] == 2 * [first.tokenizers[0].encode("hello")]


def test_source_and_target_keep_their_padding_tokens(tmp_path: Path):
    settings = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 36, "pad_token_id": 35}
    save_theirs(perturbed(zoo.marian(**settings)()), tmp_path / "old")
    edit(tmp_path / "old" / "tokenizer_config.json", pad_token="z")
    convert(tmp_path / "old", tmp_path / "own", "regard")
    convert(tmp_path / "own", tmp_path / "new", "huggingface")
    assert MarianMTModel.from_pretrained(tmp_path / "new").config.pad_token_id == 35


def test_a_published_model_continues_a_text(folders: Path):
    model = regard.load(folders / "gpt2")
    assert model.generate("hello", temperature=0.0, max_tokens=3).startswith("hello")
    assert Template.of(model.tokenizer).prefix == ()


# generation_config.json: invalid settings are refused, unsupported ones are noted.


@pytest.mark.parametrize(
    "setting",
    [
        {"eos_token_id": []}, {"eos_token_id": 10**30}, {"eos_token_id": [1, 40]}, {"decoder_start_token_id": 99_999},
        {"decoder_start_token_id": -1}, {"bad_words_ids": [[5], [999_999]]}, {"suppress_tokens": [-1]},
        {"forced_eos_token_id": 40}, {"forced_bos_token_id": 40}, {"begin_suppress_tokens": [40]},
        {"decoder_start_token_id": None, "pad_token_id": 40},
    ],
)  # fmt: skip
def test_token_ids_outside_the_vocabulary_are_refused_by_name(folders: Path, tmp_path: Path, setting: dict[str, Any]):
    folder = copy_folder(folders, "marian", tmp_path / "m")
    edit(folder / "generation_config.json", **setting)
    if None in setting.values():
        edit(folder / "config.json", decoder_start_token_id=None)
    with pytest.raises(DamagedFile, match=f"generation_config.json cannot be used: {list(setting)[-1]} ") as caught:
        read_folder(folder, CPU)
    assert len(str(caught.value)) < 400


def test_gpt2s_default_end_token_is_replaced_by_the_tokenizers(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    edit(folder / "generation_config.json", eos_token_id=50256)
    assert ours(folder).tokenizers[0].eos == 1


UNSUPPORTED = [{"num_beam_groups": 2}, {"encoder_repetition_penalty": 1.5}, {"bad_words_ids": [[5, 6]]},
           {"exponential_decay_length_penalty": [3, 1.1]}]  # fmt: skip


@pytest.mark.parametrize("setting", UNSUPPORTED)
def test_unsupported_settings_are_noted(folders: Path, tmp_path: Path, setting: dict[str, Any]):
    folder = copy_folder(folders, "marian", tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regard.load(folder)
        edit(folder / "generation_config.json", num_beam_groups=1, encoder_repetition_penalty=1.0, bad_words_ids=[[5]])
        regard.load(folder)
    edit(folder / "generation_config.json", **setting)
    with pytest.warns(Note, match=f"sets {next(iter(setting))}.*, which regard does not support"):
        regard.load(folder)


def test_the_command_line_prints_the_note_in_one_line(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "marian", tmp_path / "m")
    edit(folder / "generation_config.json", num_beam_groups=2)
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", str(folder)],
        input="abc\n", capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0
    path = folder / "generation_config.json"
    assert done.stderr == f"note: {path} sets num_beam_groups, which regard does not support.\n"
