"""From one kind of model folder to another."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import torch

from regard.errors import DamagedFile, InputError
from regard.store.download import located
from regard.store.files import read_json
from regard.store.folder import read_folder, unique_tensors, write_description, write_weights
from regard.store.generation_config import own_generation
from regard.store.huggingface.folder import write_hub
from regard.store.loading import INDEX, LEARNT_LENGTH, LONGEST_TEXT, WEIGHTS, Loaded, is_inside

Kind = Literal["huggingface", "regard"]


_PICKLE, _PICKLES = "pytorch_model.bin", "pytorch_model.bin.index.json"


_LONGEST = 3600  # seconds that reading a pickle may take


def convert(source: Path, target: Path, to: Kind, *, pickles: bool = False) -> Loaded:
    """Read a model folder of any kind and write it as another; an existing folder is left alone."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is there already. Name a folder that is not.")
    source = located(source, pickles=pickles)
    with tempfile.TemporaryDirectory(prefix="regard-") as beside:
        plain = _unpickled(source, Path(beside)) if pickles and _only_pickles(source) else source
        loaded = read_folder(plain, torch.device("cpu"))
    if to == "huggingface":
        write_hub(target, loaded)
    else:
        _write_own(target, loaded)
    return loaded


def _write_own(folder: Path, loaded: Loaded) -> None:
    """A folder of ours."""
    foreign = loaded.config.get("model_type") != "regard"
    generation = own_generation(loaded.generation) if foreign else loaded.generation
    folder.mkdir(parents=True, exist_ok=True)
    task = str(loaded.config.get("task", ""))
    facts = {name: loaded.config[name] for name in (LONGEST_TEXT, LEARNT_LENGTH) if loaded.config.get(name) is not None}
    write_description(folder, loaded.network, loaded.tokenizers, task=task, generation=generation, facts=facts)
    write_weights(folder, unique_tensors(loaded.network))


def _only_pickles(folder: Path) -> bool:
    names = (WEIGHTS, INDEX), (_PICKLE, _PICKLES)
    safe, unsafe = (any((folder / name).exists() for name in several) for several in names)
    return unsafe and not safe


def _unpickled(folder: Path, beside: Path) -> Path:
    """The folder's other files and its weights as safetensors, read in a process that may build nothing but tensors."""
    for path in folder.iterdir():
        if path.suffix in (".json", ".txt", ".model", ".spm") and path.name != _PICKLES:
            shutil.copyfile(path, beside / path.name)
    names = {_PICKLE}
    if (folder / _PICKLES).exists():
        said = read_json(folder / _PICKLES).get("weight_map")
        names = set(said.values()) if isinstance(said, dict) else set()
        if not all(isinstance(name, str) and is_inside(folder, name) for name in names):
            raise DamagedFile(f"{folder / _PICKLES} names a file outside the model folder; refused.")
    paths = [str(folder / name) for name in sorted(names)]
    command = [sys.executable, "-m", "regard.store.unpickle", str(beside / WEIGHTS), *paths]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST, check=False)
    except subprocess.TimeoutExpired:
        raise DamagedFile(f"{paths[0]} takes too long to read. Download it again from a maker you trust.") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "Error" in line), "it cannot be read")[:200]
        raise DamagedFile(f"{paths[0]} is not a pickle of plain tensors: {why}. Download it again.")
    return beside
