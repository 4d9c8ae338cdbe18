"""Files of other toolkits that lie: refused before they fill the memory, and nothing in them is run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import DamagedFile
from regard.store.convert import convert
from regard.store.orphans.yaml import parse_yaml
from regard.store.unpickle import _split, _write_plain


class Hostile:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (self.path,)


def test_settings_that_are_too_deep_are_refused():
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    with pytest.raises(ValueError, match="too many or too deep"):
        _split({"a": deep}, {})


def test_a_tensor_that_its_pickle_does_not_explain_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Even where the system sets the process no limit of memory."""
    monkeypatch.setattr("regard.store.unpickle._isolate", lambda *_: None)
    torch.save({"model": {"a": torch.zeros(1).expand(1 << 24)}}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="far more than its own size"):
        _write_plain(str(tmp_path / "out.safetensors"), str(tmp_path / "model.pt"))


def test_arrays_that_unpack_to_far_more_than_their_file_are_refused(tmp_path: Path):
    np.savez_compressed(tmp_path / "model.npz", a=np.zeros(1 << 22, np.float32))
    with pytest.raises(DamagedFile, match="it unpacks to"):
        convert(tmp_path / "model.npz", tmp_path / "ours", "regard")


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path):
    np.savez(tmp_path / "model.npz", a=np.array([Hostile(tmp_path / "sentinel")], dtype=object))
    with pytest.raises(DamagedFile, match="cannot be used"):
        convert(tmp_path / "model.npz", tmp_path / "ours", "regard")
    assert not (tmp_path / "sentinel").exists()


def test_a_yaml_file_of_many_aliases_or_of_tags_is_refused():
    names = [chr(ord("a") + number) for number in range(26)]
    laughs = "a: &a [x]\n" + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in pairwise(names))
    with pytest.raises(DamagedFile, match="aliases"):
        parse_yaml(laughs.encode(), "config.yaml")
    with pytest.raises(DamagedFile, match="cannot be used"):
        parse_yaml(b"a: !!python/object/apply:os.getcwd []", "config.yaml")
