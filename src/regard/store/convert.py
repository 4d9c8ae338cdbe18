"""Conversion between model folders of ours and Hugging Face's, from pickled weights too if allowed."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from regard.errors import DamagedFile, Note, RegardError
from regard.store.files import new_folder, read_json, require_new_folder
from regard.store.folder import local_folder, read_folder, unique_parameters, write_description, write_weights
from regard.store.generation_config import to_regard
from regard.store.huggingface.folder import write_huggingface
from regard.store.loading import INDEX, MAX_TEXT_LENGTH, TRAINED_LENGTH, WEIGHTS, Loaded, find_orphan, is_inside
from regard.store.orphans.folder import read_orphan
from regard.store.unpickle import unpickle

Format = Literal["huggingface", "regard"]

_PICKLE, _PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def convert(
    source: Path, target: Path, to: Format, *, pickles: bool = False, parts: Sequence[type] = (),
    adapters: Sequence[Path] = (),
) -> Loaded:  # fmt: skip
    """Read a model folder of any kind and write it in another format; an existing folder is never overwritten.

    Adapters, and the base of a folder that is an adapter, are merged into one model.
    """
    require_new_folder(target)
    loaded = read_source(source, pickles=pickles, parts=parts, adapters=adapters)
    with new_folder(target) as folder:
        if to == "huggingface":
            write_huggingface(folder, loaded)
        else:
            _write_regard(folder, loaded)
    return loaded


def read_source(
    source: Path, *, pickles: bool = False, parts: Sequence[type] = (), adapters: Sequence[Path] = ()
) -> Loaded:
    """Read a model folder of any kind; one that has only pickles through a copy without them."""
    source = local_folder(source, pickles=pickles)
    if (checkpoint := find_orphan(source)) is not None:
        return read_orphan(checkpoint, pickles=pickles)
    with tempfile.TemporaryDirectory(prefix="regard-") as temporary:
        safe = _unpickle(source, Path(temporary)) if pickles and _has_only_pickles(source) else source
        with _naming(source, safe):
            return read_folder(safe, torch.device("cpu"), parts=parts, adapters=adapters)


@contextmanager
def _naming(source: Path, copy: Path) -> Iterator[None]:
    """Errors and notes about a temporary copy of a folder name the folder itself."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", Note)
        try:
            yield
        except RegardError as error:
            error.args = (str(error).replace(str(copy), str(source)),)
            raise
    for note in notes:
        warnings.warn(str(note.message).replace(str(copy), str(source)), note.category, stacklevel=3)


def _write_regard(folder: Path, loaded: Loaded) -> None:
    published = loaded.config.get("model_type") != "regard"
    generation_config = to_regard(loaded.generation_config) if published else loaded.generation_config
    keys = [key for key in (MAX_TEXT_LENGTH, TRAINED_LENGTH) if loaded.config.get(key) is not None]
    write_description(
        folder, loaded.network, loaded.tokenizers, task=str(loaded.config.get("task", "")),
        generation_config=generation_config, extra_config={key: loaded.config[key] for key in keys},
    )  # fmt: skip
    write_weights(folder, unique_parameters(loaded.network))


def _has_only_pickles(folder: Path) -> bool:
    names = (WEIGHTS, INDEX), (_PICKLE, _PICKLE_INDEX)
    safe, unsafe = (any((folder / name).exists() for name in several) for several in names)
    return unsafe and not safe


def _unpickle(folder: Path, temporary: Path) -> Path:
    """Copy a folder with its weights as safetensors; another process reads the pickle and may build only tensors."""
    for path in folder.iterdir():
        if path.suffix in (".json", ".txt", ".model", ".spm") and path.name != _PICKLE_INDEX:
            shutil.copyfile(path, temporary / path.name)
    for path in folder.glob("*/config.json"):  # of sentence-transformers
        (temporary / path.parent.name).mkdir()
        shutil.copyfile(path, temporary / path.parent.name / path.name)
        for more in path.parent.glob(WEIGHTS):
            shutil.copyfile(more, temporary / path.parent.name / more.name)
    names = {_PICKLE}
    if (folder / _PICKLE_INDEX).exists():
        weight_map = read_json(folder / _PICKLE_INDEX).get("weight_map")
        names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
        if not all(isinstance(name, str) and is_inside(folder, name) for name in names):
            raise DamagedFile(f"{folder / _PICKLE_INDEX} names a file outside the model folder; refused.")
    unpickle([folder / name for name in sorted(names)], temporary / WEIGHTS)
    return temporary
