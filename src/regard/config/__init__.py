"""Configuration: recipes, what they set up, and training runs from them."""

from __future__ import annotations

from importlib import resources


def builtin_recipes() -> dict[str, str]:
    """Name and text of each recipe that ships with the package."""
    files = sorted(resources.files(__name__).joinpath("recipes").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files if file.name.endswith(".toml")}
