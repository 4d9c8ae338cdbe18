"""Which of a user's files train, validate and test, and which belong together: by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import get_args

from regard.data.corpora import Split
from regard.data.read.corpus import pair_paths, read_lines
from regard.data.read.tables import is_language
from regard.data.read.texts import missing_file
from regard.errors import InputError

_SPLIT = re.compile(r"(?:^|[^a-z])(train|training|valid|validation|val|dev|test)(?:[^a-z]|$)")
_SPLIT_NAMES = {"training": "train", "validation": "valid", "val": "valid", "dev": "valid"}
_HELD_OUT_NAMES: dict[Split, tuple[str, ...]] = {"valid": ("valid", "val", "dev", "validation"), "test": ("test",)}
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")


def find_texts(paths: Sequence[Path]) -> dict[Split, list[str]]:
    """The files of each split by their names; the validation and test text may also stand beside the training text.

    Each is written as in a recipe: a file, a folder, or data/train.{de,en}.
    """
    for path in paths:
        if "{" in str(path):
            raise InputError(f"{path}: a name with braces means a pair of files in a recipe. Rename it.")
        if not path.exists():
            raise missing_file(path)
    if len(paths) == 1 and paths[0].is_dir():
        inside = sorted(child for child in paths[0].iterdir() if split_in(child))
        paths = inside if "train" in map(split_in, inside) else paths
    splits = {path: split_in(path) or "train" for path in paths}
    if "train" not in splits.values():
        splits = dict.fromkeys(paths, "train")
    found: dict[Split, list[str]] = {
        split: patterns([path for path in paths if splits[path] == split]) for split in get_args(Split)
    }
    for split, names in _HELD_OUT_NAMES.items():
        beside = [_beside(pattern, names) for pattern in found["train"]]
        if not found[split] and all(beside):
            found[split] = list(dict.fromkeys(filter(None, beside)))
    return found


def split_in(path: Path) -> str | None:
    """The split that a file's name tells: data/val.de -> "valid"."""
    match = _SPLIT.search(path.name.lower())
    return None if match is None else _SPLIT_NAMES.get(match[1], match[1])


def patterns(files: Sequence[Path]) -> list[str]:
    """The files one by one, or in parallel pairs: a.de a.en b.de b.en -> a.{de,en} b.{de,en}."""
    if len(files) < 2:
        return list(map(str, files))
    plain = [file for file in files if not file.is_dir() and not set(file.suffixes) & set(_TABLES)]
    if len(files) == 2 and (len(plain) == 2 or all(file.is_dir() for file in files)):
        return [pattern_of(*files)] if _are_parallel(*files) else list(map(str, files))
    stems: dict[str, list[Path]] = {}
    for file in plain:
        if is_language(_language_of(file)):
            stems.setdefault(str(file.with_suffix("")), []).append(file)
    if not plain or sum(map(len, stems.values())) < len(files):
        return list(map(str, files))
    for several in stems.values():
        if len(several) != 2:
            names = ", ".join(map(str, several))
            raise InputError(f"{names}: a pair is two files in two languages (regard init). Name the files of two.")
    return [pattern_of(*several) for several in stems.values()]


def _are_parallel(one: Path, other: Path) -> bool:
    """Whether two files are a pair: by their names, or else by their number of lines."""
    if one.suffix != other.suffix or all(is_language(_language_of(path)) for path in (one, other)):
        return True
    return not one.is_dir() and len(read_lines(one)) == len(read_lines(other))


def _language_of(path: Path) -> str:
    """The part of a name that may be a language: train.de -> de, de.txt -> de."""
    name = path.with_suffix("") if path.suffix in (".gz", ".zst", ".txt") else path
    return re.split(r"[._-]", name.name)[-1].lower()


def pattern_of(one: Path, other: Path) -> str:
    """data/train.de and data/train.en -> data/train.{de,en}."""
    files = [str(one), str(other)]
    start = re.sub(r"[^./_-]*$", "", _common(*files))
    rest = [file[len(start) :] for file in files]
    end = _common(*(part[::-1] for part in rest))[::-1]
    middles = [part[: len(part) - len(end)] for part in rest]
    if not all(middles) or any("," in middle for middle in middles):
        raise InputError(f"{one} and {other} differ in more than an ending. Rename them like train.de, train.en.")
    return f"{start}{{{','.join(middles)}}}{end}"


def _beside(pattern: str, names: Iterable[str]) -> str | None:
    """The file of another split beside a training text: data/train.{de,en} -> data/val.{de,en}, if it exists."""
    folder, slash, name = pattern.rpartition("/")
    for other in names:
        candidate = folder + slash + re.sub(r"(?<![a-z])train(?:ing)?(?![a-z])", other, name, count=1)
        files = pair_paths(candidate) or (Path(candidate),)
        if candidate != pattern and all(file.exists() for file in files):
            return candidate
    return None


def _common(one: str, other: str) -> str:
    """The longest common prefix."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))
