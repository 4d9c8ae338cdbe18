"""Helpers to copy, damage and load Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from regard.errors import DamagedFile, InputError
from regard.store.folder import read_folder
from tests.parity.folders import CPU


def copy_folder(folders: Path, name: str, target: Path) -> Path:
    target.mkdir(parents=True)
    for path in (folders / name).iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def refusal(folder: Path) -> str:
    """The one-line error of loading a folder."""
    with pytest.raises((DamagedFile, InputError)) as caught:
        read_folder(folder, CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def shard(folder: Path, **renamed: str) -> None:
    """Split the weights of a folder into two shards with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = {"a.safetensors": sorted(tensors)[::2], "b.safetensors": sorted(tensors)[1::2]}
    for file, names in halves.items():
        save_file({name: tensors[name] for name in names}, folder / file, metadata={"format": "pt"})
    weight_map = {name: renamed.get(file[0], file) for file, names in halves.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
