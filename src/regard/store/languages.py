"""The languages of a translator, from its recipe or its model card, and the names of languages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from babel import Locale

from regard.data.read.corpus import pair_paths
from regard.schema import parse_toml

Pair = tuple[str, str]
"""The codes of the source language and the target language."""

LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_LANGUAGE = re.compile(r"^language:[ \t]*(?:\[(?P<flow>[^\]\n]*)\]|(?P<block>(?:\r?\n[ \t]*- .*)+))", re.MULTILINE)


def folder_languages(folder: Path) -> Pair | None:
    """The languages of a translator, from its recipe or its model card; None if they name none."""
    return _recipe_languages(folder / "recipe.toml") or _card_languages(folder / "README.md")


def _recipe_languages(path: Path) -> Pair | None:
    """The languages in the names of the training files, as in train = "data/train.{de,en}" or fields = ["de", "en"]."""
    try:
        text: Any = parse_toml(path.read_text("utf-8")).get("text")
    except (OSError, ValueError):
        return None
    if not isinstance(text, dict):
        return None
    named = text.get("train")
    files = named if isinstance(named, list) else [named]
    names = [file.get("path") if isinstance(file, dict) else file for file in files]
    pairs = [pair_paths(name) for name in names if isinstance(name, str)]
    found = {_codes([_last_suffix(path) for path in pair]) for pair in pairs if pair}
    if isinstance(text.get("fields"), list):
        found.add(_codes(text["fields"]))
    found -= {None}
    return found.pop() if len(found) == 1 else None


def _last_suffix(path: Path) -> str:
    """The ending of train.de, also in train.de.gz and train.de.txt."""
    suffixes = [suffix[1:] for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if is_language(suffix)), "")


def _card_languages(path: Path) -> Pair | None:
    """The two languages in the front matter of a model card (README.md)."""
    try:
        text = path.read_text("utf-8")[: 1 << 16]
    except (OSError, ValueError):
        return None
    front = _FRONT_MATTER.match(text)
    found = None if front is None else _LANGUAGE.search(front[1])
    if found is None:
        return None
    named = found["flow"].split(",") if found["flow"] is not None else re.findall(r"- (.*)", found["block"])
    return _codes([code.strip().strip("\"'") for code in named])


def _codes(names: list[Any]) -> Pair | None:
    codes = [name for name in names if isinstance(name, str) and is_language(name)]
    return (codes[0], codes[1]) if len(codes) == len(names) == 2 and codes[0] != codes[1] else None


def is_language(code: str) -> bool:
    """Whether a code is that of a language."""
    known = Locale("en").languages
    return LANGUAGE_CODE.fullmatch(code) is not None and (
        code.replace("-", "_") in known or re.split("[-_]", code)[0] in known
    )


def language_name(code: str) -> str:
    """The English name of a language; of an unknown code, the code itself."""
    known = Locale("en").languages
    return str(known.get(code.replace("-", "_")) or known.get(re.split("[-_]", code)[0]) or code.capitalize())
