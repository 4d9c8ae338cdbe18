"""Recipes: TOML files with the tables [model], [text], [train] and [decode], read and checked.

[model] names a function of the zoo and its arguments, a pretrained model to fine-tune (`init`), or holds the whole
description of a model (`kind = "model"`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from regard.config import builtin_recipes
from regard.data.corpora import Split
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, concatenate_corpora, embedded_corpus, pair_paths, read_corpus, with_prefix
from regard.data.read.split import HeldOut
from regard.data.read.texts import Documents, ReadOptions, read_text
from regard.data.tasks import Task
from regard.data.tasks.translation import Translation
from regard.data.tokenize.train import BPE, TokenizerKind
from regard.decode.options import Options
from regard.errors import InputError, require_unicode, suggest
from regard.models import zoo
from regard.models.model import Model
from regard.models.readouts import Pool
from regard.schema import call_from_dict, from_dict, located, parse_toml, require_parts, toml_value
from regard.training.settings import Training

_TABLES = ("model", "text", "train", "decode")
_MOST_BYTES = 16 << 20  # of a recipe


@dataclass(frozen=True)
class FineTuning:
    """The [model] table of a fine-tuning run: a pretrained model, which keeps its tokenizer."""

    init: str  # the pretrained model's folder
    pool: Pool | None = None  # how the states of a text become one vector, for a task that needs one
    words: tuple[str, ...] = ()  # added to the vocabulary, one token each
    max_positions: int | None = None  # more positions than the pretrained model has

    def __post_init__(self) -> None:
        words = self.words
        if len(set(words)) < len(words) or not all(word.strip() == word != "" for word in words):
            raise InputError("words must differ and have no space around them (model.words). Name each once.")


@dataclass(frozen=True)
class Weighted:
    """One of several corpora: each of its texts occurs `weight` times per epoch, and `prefix` precedes its sources."""

    path: str
    weight: float = 1.0
    prefix: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1000:
            raise InputError(f"weight must lie between 0 and 1000, got {self.weight}.")


@dataclass(frozen=True)
class Text:
    """The [text] table: files or an embedded corpus, its tokenizer, and the task that is trained on it."""

    train: str | tuple[str | Weighted, ...] | None = None  # a file or folder, or a list of them with weights
    valid: str | float | tuple[str | Weighted, ...] | None = None  # files, or a number: this share of the training text
    test: str | float | tuple[str | Weighted, ...] | None = None  # the same, for regard evaluate
    folder: str | None = None  # of the files above; by default the current directory
    corpus: str | None = None  # a built-in corpus instead of files: dates, languages or python
    documents: Documents = "file"  # what one document of plain text is
    fields: tuple[str, ...] | None = None  # columns of a table, by name or number: text, target or label
    bad_utf8: Literal["refuse", "skip"] = "refuse"  # an invalid byte: an error, or its text is left out and counted
    control: Literal["refuse", "strip"] = "refuse"  # a control character: an error, or it is removed
    alignment: Literal["checked", "unchecked"] = "checked"  # whether to search for shifted pairs
    tokenizer: TokenizerKind = field(default_factory=BPE)  # by default byte-level BPE of 8,000 tokens
    bpe_dropout: float = 0.0  # the probability that BPE skips a merge in training (Provilkov 2020)
    transpose: int = 0  # data augmentation for music: other keys, up to this many semitones away
    task: Task | None = None  # by default it follows from the model and the files

    def __post_init__(self) -> None:
        if (self.train is None) == (self.corpus is None):
            raise InputError('a text needs either train = "files" or corpus = "dates" (text).')
        if self.held_out and self.corpus is not None:
            raise InputError(f'"{self.corpus}" has splits of its own (text.valid, text.test). Leave them out.')
        if self.corpus is not None and (unused := self._unused_by_corpus()):
            raise InputError(f'"{self.corpus}" has texts of its own (text.{unused}). Leave it out.')
        files = [named for named in (self.train, self.valid, self.test) if named and not isinstance(named, float)]
        if self.fields is not None and all(isinstance(named, str) and pair_paths(named) for named in files):
            raise InputError("two parallel files have no columns to choose (text.fields). Leave fields out.")
        if not 0 <= self.bpe_dropout < 1:
            raise InputError(f"bpe_dropout must be 0 or more and below 1, got {self.bpe_dropout} (text.bpe_dropout).")
        if not 0 <= self.transpose <= 12 or (self.transpose and self.corpus is not None):
            raise InputError(f"transpose is 0 to 12, and for files of music; got {self.transpose} (text.transpose).")

    def _unused_by_corpus(self) -> str:
        """The first key that an embedded corpus does not use, though it is set."""
        keys = ("valid", "test", "folder", "documents", "fields", "bad_utf8", "control")
        standard = {field.name: field.default for field in fields(self)}
        return next((key for key in keys if getattr(self, key) != standard[key]), "")

    def read(self, split: Split, cache: Cache = Cache()) -> Corpus | None:  # noqa: B008 (frozen)
        """The corpus of a split ("train", "valid" or "test"); None when the recipe names none."""
        if self.corpus is not None:
            return embedded_corpus(self.corpus, split)
        named, held_out = getattr(self, split), self.held_out
        if named is None or named == 0:
            return None
        if isinstance(named, float):
            named = self.train
        elif split != "train":
            held_out = HeldOut()
        reading = ReadOptions(self.documents, self.bad_utf8, self.control, self.fields)
        several = [named] if isinstance(named, str) else named
        members = [Weighted(one) if isinstance(one, str) else one for one in several]
        if not members or not all(one.path for one in members):
            raise InputError(f"text.{split} names no file (text.{split}). Name one.")
        keys = self.transpose if split == "train" else 0
        corpora = [
            read_corpus(self.path_of(one.path), reading, cache, split=split, transpose=keys, held_out=held_out)
            for one in members
        ]
        if held_out and not any(map(len, corpora)):
            raise InputError(
                f"no text is left for text.{split} of so few (text.valid, text.test). Use another share, or name files."
            )
        found = [
            (with_prefix(corpus, one.prefix), one.weight if split == "train" or not held_out else float(one.weight > 0))
            for corpus, one in zip(corpora, members)
        ]
        return found[0][0] if len(found) == 1 and found[0][1] == 1 else concatenate_corpora(found)

    @property
    def held_out(self) -> HeldOut:
        """The shares of the training text that validate and test."""
        shares = {name: value for name in ("valid", "test") if isinstance(value := getattr(self, name), float)}
        return HeldOut(**shares)

    def path_of(self, name: str) -> str:
        """The path of a file, inside `folder` if there is one."""
        return name if self.folder is None or name == "-" else str(Path(self.folder) / name)


@dataclass(frozen=True)
class Decode:
    """The [decode] table: the trained model's default decoding options."""

    beam: int = 5
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        Options(beam=self.beam, length_penalty=self.length_penalty)


@dataclass(frozen=True)
class Recipe:
    """A recipe, read and checked."""

    name: str
    tables: dict[str, Any]  # as written in the file, with all settings applied
    model: Model | FineTuning
    text: Text
    train: Training
    decode: Decode
    parts: tuple[type, ...] = ()  # classes of the caller's own that the tables may name


def read_recipe(recipe: str | Path, settings: Sequence[str] = (), parts: Sequence[type] = ()) -> Recipe:
    """Read a TOML file, or the built-in recipe of that name, and apply settings such as "train.steps=2000"."""
    parts = require_parts(parts)
    path, known = Path(recipe), builtin_recipes()
    if str(recipe) in known and not path.is_file():
        text, name = known[str(recipe)], str(recipe)
    elif path.is_file() or path.is_fifo():
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise InputError(
                f"{recipe} has {size:,} bytes; a recipe has at most {_MOST_BYTES:,}. Is it the right file?"
            )
        text, name = read_text(path), path.stem.encode(errors="replace").decode()
    else:
        raise InputError(f'no recipe "{recipe}": no such file, and not built in. {suggest(str(recipe), known)}')
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise InputError(f"{recipe} is not TOML: {error}.") from None
    for setting in settings:
        override(tables, setting)
    try:
        return parse_recipe(tables, name=name, where=str(recipe), parts=parts)
    except InputError as error:
        with suppress(InputError):
            parse_recipe(parse_toml(text), name=name, where=str(recipe), parts=parts)
            # The recipe itself is right.
            error.args = (_blame_settings(str(error), str(recipe), settings),)
        raise


def _blame_settings(message: str, where: str, settings: Sequence[str]) -> str:
    """The message about a recipe, with the settings that concern the key it names in place of the file and the key."""
    found = re.search(rf"\({re.escape(where)}(?:: ([\w.\[\]]+))?\)", message)
    if found is None:
        return message
    place = re.sub(r"\[\d+\]", "", found[1] or "").split(".")
    keys = {setting: setting.partition("=")[0].strip().split(".") for setting in settings}
    near = [setting for setting, key in keys.items() if not found[1] or key[: len(place)] == place[: len(key)]]
    what = message[: found.start()]
    named = [setting for setting in near if any(f'"{key}"' in what for key in keys[setting])]
    return message.replace(found[0], f"({', '.join(f'--set {setting}' for setting in named or near or settings)})")


def parse_recipe(tables: dict[str, Any], *, name: str, where: str, parts: Sequence[type] = ()) -> Recipe:
    """A recipe from its tables; every key must be known."""
    for key, value in tables.items():
        if key not in _TABLES:
            raise InputError(f'unknown table "{key}" ({where}). {suggest(key, _TABLES)}')
        if not isinstance(value, Mapping):
            raise InputError(f"[{key}] must be a table ({where}). Set its keys, as in train.steps = 2000.")
    try:
        tables = with_task_kind(tables)
        return Recipe(
            name,
            tables,
            model=read_model(tables, where=f"{where}: model", parts=parts),
            text=call_from_dict(Text, tables.get("text", {}), where=f"{where}: text", also=parts),
            train=call_from_dict(Training, tables.get("train", {}), where=f"{where}: train", also=parts),
            decode=call_from_dict(Decode, tables.get("decode", {}), where=f"{where}: decode"),
            parts=tuple(parts),
        )
    except TypeError as error:
        raise InputError(f"{error} ({where}).") from None


def with_task_kind(tables: dict[str, Any]) -> dict[str, Any]:
    """Add the kind to a task without one: translation or language model, whichever has its keys."""
    task = tables.get("text", {}).get("task")
    if not isinstance(task, Mapping) or "kind" in task or not task:
        return tables
    kind = "translation" if {f.name for f in fields(Translation)} >= task.keys() else "language_model"
    return {**tables, "text": {**tables["text"], "task": {"kind": kind, **task}}}


def read_model(tables: Mapping[str, Any], *, where: str, parts: Sequence[type] = ()) -> Model | FineTuning:
    """The [model] table: a pretrained model, a description of a model, or a model of the zoo."""
    table = tables.get("model", {})
    if "init" in table:
        if "tokenizer" in tables.get("text", {}):
            raise InputError("a pretrained model keeps its own tokenizer (text.tokenizer). Leave it out.")
        return call_from_dict(FineTuning, table, where=where, also=parts)
    if table.get("kind") != "model":
        return zoo_model(table, where=where, parts=parts)
    description: Model = from_dict(Model, table, where=where, also=parts)
    try_to_build(description, where)
    return description


def zoo_model(table: Mapping[str, Any], *, where: str, parts: Sequence[type] = ()) -> Model:
    """Call the zoo's function of that name with the rest of the table."""
    arguments = dict(table)
    name = arguments.pop("name", "transformer")
    functions = zoo_functions()
    if not isinstance(name, str) or name not in functions:
        raise InputError(f'no model is called "{name}" ({where}.name). {suggest(str(name), functions)}')
    known = [*inspect.signature(functions[name]).parameters, "name"]
    for key in arguments:
        if key not in known:
            raise InputError(f'unknown key "{key}" ({where}). {suggest(key, known)}')
    description = call_from_dict(functions[name], arguments, where=where, also=parts)
    hints = typing.get_type_hints(functions[name])
    try_to_build(description, where, {key: value for key, value in arguments.items() if hints.get(key) is not float})
    return description


def try_to_build(description: Model, where: str, counts: Mapping[str, Any] | None = None) -> None:
    """Build a model without memory, so that a wrong one is refused before any text is read.

    `counts` are arguments that may be below 1 by mistake.
    """
    try:
        with torch.device("meta"):
            description.build(8)
    except Exception as error:  # a part of the caller's own may raise anything
        for key, value in _below_one(counts or {}, where):
            raise InputError(f"{value} is too small ({key}). Use 1 or more.") from None
        if isinstance(error, InputError):
            raise InputError(located(str(error), where)) from None
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"these settings make no model: {why} ({where}).") from error


def _below_one(table: Mapping[str, Any], where: str) -> Iterator[tuple[str, int]]:
    """Integers that cannot be counts, with their keys."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _below_one(value, f"{where}.{key}")
        elif type(value) is int and value < 1:
            yield f"{where}.{key}", value


def zoo_functions() -> dict[str, Callable[..., Model]]:
    """The functions of the zoo, by name."""
    return {name: getattr(zoo, name) for name in zoo.__all__}


def override(tables: dict[str, Any], setting: str) -> None:
    """Apply "train.steps=2000" to a recipe's tables."""
    require_unicode(setting, "--set")
    path, equals, written = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise InputError(f'"{setting}" is not of the form table.key=value (--set). Example: --set train.steps=2000.')
    try:
        found = parse_toml(f"value = {written}")
    except ValueError:
        found = {"value": written}
    if len(found) > 1:
        raise InputError(f"--set {keys[-1]} has several lines. Set one key with each --set.")
    value = found["value"]
    table = tables
    for depth, key in enumerate(keys[:-1], start=1):
        below = table.setdefault(key, {})
        if isinstance(below, str):  # a bare kind, as in tokenizer = "character"
            below = table[key] = {"kind": below}
        if not isinstance(below, dict):
            name = ".".join(keys[:depth])
            raise InputError(f"{name} is {toml_value(below)}, not a table (--set {setting}). Set {name} as a whole.")
        table = below
    table[keys[-1]] = value
    if keys == ["text", "train"]:  # files take the place of the recipe's embedded corpus
        table.pop("corpus", None)


def read_parts(*files: str | Path) -> tuple[type, ...]:
    """Run Python files and collect the dataclasses defined in them: the caller's own parts (--parts FILE.py).

    Only a file that a person names is run; no recipe and no model folder can name one.
    """
    return require_parts([part for file in files for part in _parts_of(Path(file))])


def _parts_of(path: Path) -> tuple[type, ...]:
    if not path.is_file():
        raise InputError(f"no such file: {path} (--parts). Name the Python file that defines your own parts.")
    name = f"regard_parts_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file (--parts). Name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their annotations up there
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # as for a script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be run: {type(error).__name__}: {error} (--parts).") from error
    finally:
        sys.path.remove(folder)
    found = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
    parts = tuple(value for value in found if dataclasses.is_dataclass(value))
    if not parts:
        raise InputError(f"{path} defines no dataclass (--parts). Name the file that defines your own parts.")
    return parts
