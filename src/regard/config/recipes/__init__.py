"""The recipes that ship with the package, one short TOML file each."""

from __future__ import annotations

from importlib import resources


def builtin_recipes() -> dict[str, str]:
    """Name and text of each recipe."""
    files = sorted(resources.files(__name__).iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files if file.name.endswith(".toml")}
