"""Adapters that lie or are hostile are refused by name: before memory is filled, and before any name keeps us busy."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from regard.api import load
from regard.errors import DamagedFile, InputError, RegardError
from regard.models import zoo
from regard.store.adapters import AdapterFile
from tests.small import save_model, small

MODULE = "decoder.layers.0.self.sublayer.out"
PREFIX = "base_model.model."


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base") / "base", small(zoo.gpt2(16, 1, 2)))


def adapter(
    folder: Path, module: str = MODULE, *, first: tuple[int, ...] = (1, 16), second: tuple[int, ...] = (16, 1),
    **settings: Any,
) -> Path:  # fmt: skip
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {
        f"{PREFIX}{module}.lora_A.weight": torch.ones(first),
        f"{PREFIX}{module}.lora_B.weight": torch.ones(second),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_alpha": 1e39}, "not finite"),
        ({"r": 10**9}, "has factors of rank 1, adapter_config.json says 1000000000"),
        ({"first": (0, 16), "second": (16, 0)}, "has factors of rank 0"),
        ({"second": (16, 1, 1)}, "no matching lora_A and lora_B"),
        ({"module": "a" * 2000}, "does not begin with"),
        ({"module": "../../x"}, r"has no \.\./\.\./x"),
        ({"rank_pattern": {"(a+)+": 1}}, "could hang on some name"),
        ({"rank_pattern": {"(a|a)" * 30: 1}}, "could hang on some name"),
        ({"rank_pattern": {".*" * 4: 1}}, "could hang on some name"),
        ({"alpha_pattern": {"(": 1}}, "could hang on some name"),
        ({"alpha_pattern": {str(number): 1 for number in range(10_001)}}, "more than 10,000 patterns"),
    ],
)
def test_an_adapter_that_lies_is_refused(base: Path, tmp_path: Path, changes: dict[str, Any], message: str):
    with pytest.raises(RegardError, match=message) as caught:
        load(base, device="cpu", adapters=[adapter(tmp_path / "adapter", **changes)])
    assert isinstance(caught.value, DamagedFile | InputError)
    assert len(str(caught.value)) < 2000


def test_factors_are_multiplied_only_if_they_fit(base: Path, tmp_path: Path):
    """Their product would have 40 GB."""
    folder = adapter(tmp_path / "adapter", first=(1, 100_000), second=(100_000, 1))
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 30), limits[1]))
    try:
        with pytest.raises(InputError, match=r"is \(100000, 100000\) in the adapter"):
            load(base, device="cpu", adapters=[folder])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(
    "pattern",
    [MODULE, r".*\.self\.sublayer\.out", r"decoder\.layers\.\d+\.self.*(in|out)", r"^decoder.layers.[0-9]+.self.*$"],
)
def test_the_patterns_that_people_write_are_read(base: Path, tmp_path: Path, pattern: str):
    own = AdapterFile(tmp_path, {"r": 8, "lora_alpha": 8, "rank_pattern": {pattern: 2}}, {})
    assert own.scale(MODULE) == 4
    folder = adapter(tmp_path / "adapter", first=(2, 16), second=(16, 2), rank_pattern={pattern: 2})
    load(base, device="cpu", adapters=[folder])
