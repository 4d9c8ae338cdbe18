"""manifest.json: a changed file is refused or noted, and a reader never meets a good folder that it refuses."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import DamagedFile, Note
from regard.models import zoo
from regard.store.convert import convert
from regard.store.folder import read_folder, write_generation_config, write_weights
from regard.store.manifest import require_unchanged, write_manifest, write_model_files
from tests.parity import zoo as published
from tests.parity.folders import perturbed, save_theirs
from tests.small import save_model, small

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", small(zoo.gpt2(16, 2, heads=2)))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "manifest.json"])
def test_any_flipped_bit_is_refused(folder: Path, name: str):
    path, draw = folder / name, random.Random(1)
    content = path.read_bytes()
    for _ in range(30):
        flip(path, draw.randrange(8 * len(content)))
        # In the manifest itself a name may be lost, which does no harm.
        with pytest.raises(DamagedFile) if name != "manifest.json" else suppress(DamagedFile):
            regard.load(folder, device="cpu")
        path.write_bytes(content)
    regard.load(folder, device="cpu")


def test_the_message_says_which_file_and_what_to_do(folder: Path):
    config = folder / "config.json"
    config.write_text(config.read_text().replace("[", "[ ", 1))
    with pytest.raises(DamagedFile, match=r"config\.json is not the file that was saved.*delete manifest\.json"):
        regard.load(folder, device="cpu")
    (folder / "manifest.json").unlink()
    regard.load(folder, device="cpu")


def test_files_that_people_edit_get_one_note(folder: Path):
    write_model_files(folder, {"README.md": b"a card", "recipe.toml": b"a = 1\n"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_unchanged(folder)
    (folder / "generation_config.json").write_text('{"num_beams": 4}')
    (folder / "README.md").write_text("my own words")
    with pytest.warns(Note) as noted:
        assert regard.load(folder, device="cpu").generation_config["num_beams"] == 4
    assert [str(note.message) for note in noted] == [
        f"generation_config.json and README.md differ from what was saved ({folder})."
    ]


def test_a_note_is_one_line_on_stderr(folder: Path):
    (folder / "generation_config.json").write_text("{ }")
    done = subprocess.run(
        [sys.executable, "-m", "regard", "generate", folder, "the", "--max-tokens", "1"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == f"note: generation_config.json differs from what was saved ({folder}).\n"


def test_the_weights_are_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    hashed: list[Path] = []
    monkeypatch.setattr("regard.store.files._check_checksum", hashed.append)
    regard.load(folder, device="cpu")
    assert hashed == []
    (folder / "manifest.json").unlink()
    write_generation_config(folder, {"num_beams": 2})  # a manifest that does not list the weights
    regard.load(folder, device="cpu")
    assert hashed == [folder / "model.safetensors"]


@pytest.mark.parametrize(
    ("name", "value"), [("num_beams", 5000), ("length_penalty", 99.0), ("max_new_tokens", -1), ("max_length", 1 << 20)]
)
def test_a_number_out_of_range_is_refused_with_the_name_of_its_file(folder: Path, name: str, value: float):
    write_generation_config(folder, {name: value})
    with pytest.raises(DamagedFile, match=rf"generation_config\.json cannot be used: {name} must be .* got {value:,}"):
        regard.load(folder, device="cpu")


def test_a_git_lfs_pointer_is_called_so(folder: Path):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DamagedFile, match=r"is a Git LFS pointer.*git lfs pull"):
        regard.load(folder, device="cpu")


def test_a_folder_written_with_little_memory_loads(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as little:
        little.setattr("regard.store.manifest.available_memory", lambda: 0)
        write_manifest(folder)
    assert "model.safetensors" in require_unchanged(folder)


def test_settings_that_regard_writes_itself_are_no_change(folder: Path):
    write_generation_config(folder, {"num_beams": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_unchanged(folder)


def test_a_missing_file_and_a_manifest_of_another_program_are_no_fault(folder: Path):
    (folder / "generation_config.json").unlink()
    require_unchanged(folder)
    (folder / "manifest.json").write_text('{"name": "a web page", "icons": []}')
    flip(folder / "tokenizer.json", 0)
    require_unchanged(folder)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd"])
def test_a_manifest_names_no_file_elsewhere(folder: Path, name: str):
    content = json.dumps({"regard_files": {name: ["0"]}}, indent=2) + "\n"
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DamagedFile, match=r"manifest\.json is not the file"):
        require_unchanged(folder)


def test_at_every_point_of_a_save_the_folder_loads(folder: Path):
    loaded = read_folder(folder, CPU)
    weights = {name: tensor + 1 for name, tensor in loaded.network.named_parameters()}
    points: list[str] = []

    def look(point: str) -> None:
        points.append(point)
        read_folder(folder, CPU)

    write_weights(folder, weights, look)
    assert len(points) == 6  # the manifest, the weights, the manifest
    (folder / "manifest.json").unlink()  # a folder of an earlier version
    write_weights(folder, {name: tensor + 1 for name, tensor in weights.items()}, look)
    assert len(json.loads((folder / "manifest.json").read_text())["regard_files"]["model.safetensors"]) == 1


def test_a_crash_during_a_save_leaves_a_folder_that_loads_and_can_be_saved(folder: Path):
    class Crash(Exception):
        pass

    for crash in range(1, 7):
        seen = 0

        def stop(point: str, crash: int = crash) -> None:
            nonlocal seen
            seen += 1
            if seen == crash:
                raise Crash(point)

        parameters = read_folder(folder, CPU).network.named_parameters()
        with pytest.raises(Crash):
            write_weights(folder, {name: tensor + crash for name, tensor in parameters}, stop)
        read_folder(folder, CPU)


def test_a_reader_beside_a_run_that_saves_never_refuses(folder: Path):
    network = read_folder(folder, CPU).network
    weights = {name: tensor.detach().clone() for name, tensor in network.named_parameters()}
    done = threading.Event()

    def save() -> None:
        while not done.is_set():
            for tensor in weights.values():
                tensor.add_(0.001)
            write_weights(folder, weights)

    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _ in range(100):
            require_unchanged(folder)
    finally:
        done.set()
        writer.join()


def test_converted_folders_have_a_manifest(tmp_path: Path):
    source = save_theirs(perturbed(published.ALL["gpt2"]()), tmp_path / "theirs")
    for form in ("regard", "huggingface"):
        convert(Path(source), tmp_path / form, form)
        listed = json.loads((tmp_path / form / "manifest.json").read_text())["regard_files"]
        assert listed.keys() == {path.name for path in (tmp_path / form).iterdir()} - {"manifest.json"}
        flip(tmp_path / form / "config.json", 100)
        with pytest.raises(DamagedFile):
            regard.load(tmp_path / form, device="cpu")
