"""YAML files: plain values only, never a tag that names a class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import DamagedFile
from regard.extras import extra
from regard.store.files import first_line, read_bounded, require_file

_MOST_ALIASES = 20


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings of a YAML file."""
    require_file(path)
    return parse_yaml(read_bounded(path), str(path))


def parse_yaml(content: bytes, where: str) -> dict[str, Any]:
    """The settings of a YAML text. Many aliases are refused: a few lines of them unfold to gigabytes."""
    with extra("convert", f"a model's settings in YAML ({where})"):
        import yaml  # type: ignore[import-untyped]
    try:
        text = content.decode()
        if sum(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)) > _MOST_ALIASES:
            raise DamagedFile(f"{where} cannot be used: it has over {_MOST_ALIASES} aliases. Write their values out.")
        found = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DamagedFile(f"{where} cannot be used: {first_line(error)}. Copy it again.") from error
    if not isinstance(found, dict):
        raise DamagedFile(f"{where} cannot be used: it holds no settings. Copy it again.")
    return found
