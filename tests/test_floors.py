"""The oldest versions that dependencies may have: older ones run code, crash or hang on hostile input."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = {
    "torch": ("2.10", "torch.load corrupted memory even with weights_only=True (GHSA-63cw-57p8-fm3p)"),
    "starlette": ("1.5.1", "limits of forms were ignored, and Host was not checked (GHSA-82w8-qh3p-5jfq)"),
    "python-multipart": ("0.0.32", "the headers of a part had no limit (GHSA-pp6c-gr5w-3c5g)"),
    "h11": ("0.16", "chunks with wrong ends were accepted: request smuggling (CVE-2025-43859)"),
    "sentencepiece": ("0.2.1", "a model file led to invalid access of memory (CVE-2026-1260)"),
    "protobuf": ("5.29.5", "nested messages exhausted the stack (CVE-2025-4565)"),
    "safetensors": ("0.5", "the header is checked against the length of the file"),
    "transformers": ("5.3", "for the tests only: older versions unpickle what lies beside the weights"),
}


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def at_least(found: str, floor: str) -> bool:
    one, other = numbers(found), numbers(floor)
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)) >= other + (0,) * (length - len(other))


def required() -> dict[str, list[str]]:
    """The least versions that pyproject.toml names, by package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found: dict[str, list[str]] = {}
    for name, least in re.findall(r"^([\w-]+)>=([\w.]+)$", "\n".join(line for group in groups for line in group), re.M):
        found.setdefault(name.lower().replace("_", "-"), []).append(least)
    return found


@pytest.mark.parametrize("name", FLOORS)
def test_no_version_below_its_floor_is_required_pinned_or_installed(name: str):
    floor, why = FLOORS[name]
    least = required()[name]
    assert least
    assert all(at_least(one, floor) for one in least), why
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert at_least(pins[name], floor), why
    assert at_least(version(name), floor), why


def test_versions_are_compared_as_numbers():
    assert at_least("2.13.0+cpu", "2.10")
    assert at_least("5.0", "5")
    assert not at_least("2.9.1", "2.10")
    assert not at_least("0.0.9", "0.0.32")
