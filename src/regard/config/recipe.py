"""Recipes: a short TOML file that names a function of the zoo and its arguments, a text, and how to learn it."""

from __future__ import annotations

import inspect
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from regard.config.recipes import builtin_recipes
from regard.data.draws import Split
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, behind, embedded_corpus, join_corpora, read_corpus
from regard.data.read.files import Documents, Reading, read_text
from regard.data.tasks import Task
from regard.data.tasks.translation import Translation
from regard.data.tokenize.train import BPE, TokenizerKind
from regard.decode.options import Options
from regard.errors import InputError, suggest
from regard.models import zoo
from regard.models.model import Model
from regard.models.readouts import Pool
from regard.schema import call_from_dict, located, toml_value
from regard.training.settings import Training


@dataclass(frozen=True)
class Init:
    """The [model] table of a run that begins with a model which has learnt before; it keeps that one's vocabulary."""

    init: str  # a folder
    pool: Pool | None = None  # how a text's states become one, where the text as a whole is answered for
    words: tuple[str, ...] = ()  # added to the vocabulary
    max_positions: int | None = None  # how many tokens it is to read at once, if more than before

    def __post_init__(self) -> None:
        if len(set(self.words)) < len(self.words) or not all(word.strip() == word != "" for word in self.words):
            raise InputError("words must be different and without space around them (model.words). Name each once.")


@dataclass(frozen=True)
class Weighted:
    """One of several corpora; each of its texts comes `weight` times an epoch, its sources behind a prefix."""

    path: str
    weight: float = 1.0
    prefix: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1000:
            raise InputError(f"weight must lie between 0 and 1000, got {self.weight}.")


@dataclass(frozen=True)
class Text:
    """The [text] table: files, or an embedded corpus; how it is cut into tokens; what is to be learnt of it."""

    train: str | tuple[str | Weighted, ...] | None = None
    valid: str | tuple[str | Weighted, ...] | None = None
    test: str | tuple[str | Weighted, ...] | None = None
    folder: str | None = None  # where the files above are, if not here
    corpus: str | None = None
    documents: Documents = "file"
    fields: tuple[str, ...] | None = None
    bad_utf8: Literal["refuse", "skip"] = "refuse"
    control: Literal["refuse", "strip"] = "refuse"
    alignment: Literal["checked", "unchecked"] = "checked"  # whether shifted pairs are looked for
    tokenizer: TokenizerKind = field(default_factory=BPE)
    bpe_dropout: float = 0.0
    transpose: int = 0  # music is learnt in other keys too, up to so many semitones away
    task: Task | None = None

    def __post_init__(self) -> None:
        if (self.train is None) == (self.corpus is None):
            raise InputError('a text needs either train = "files" or corpus = "dates" (text).')
        if not 0 <= self.bpe_dropout < 1:
            raise InputError(f"bpe_dropout must be 0 or more and below 1, got {self.bpe_dropout} (text.bpe_dropout).")
        if not 0 <= self.transpose <= 12 or (self.transpose and self.corpus is not None):
            raise InputError(f"transpose is 0 to 12, and for files of music; got {self.transpose} (text.transpose).")

    def read(self, split: Split, cache: Cache = Cache()) -> Corpus | None:  # noqa: B008 (frozen)
        """The text of a split ("train", "valid" or "test"); None when the recipe names none."""
        if self.corpus is not None:
            return embedded_corpus(self.corpus, split)
        named = getattr(self, split)
        if named is None:
            return None
        reading = Reading(self.documents, self.bad_utf8, self.control, self.fields)
        members = [
            Weighted(one) if isinstance(one, str) else one for one in ([named] if isinstance(named, str) else named)
        ]
        if not members or not all(one.path for one in members):
            raise InputError(f"text.{split} names no file (text.{split}). Name one.")
        keys = self.transpose if split == "train" else 0
        corpora = [read_corpus(self.place(one.path), reading, cache, split=split, transpose=keys) for one in members]
        found = [(behind(corpus, one.prefix), one.weight) for corpus, one in zip(corpora, members)]
        return found[0][0] if len(found) == 1 and found[0][1] == 1 else join_corpora(found)

    def place(self, name: str) -> str:
        """Where a file is."""
        return name if self.folder is None or name == "-" else str(Path(self.folder) / name)


@dataclass(frozen=True)
class Decode:
    """The [decode] table: how the finished model searches when nobody says otherwise."""

    beam: int = 5
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        Options(beam=self.beam, length_penalty=self.length_penalty)


@dataclass(frozen=True)
class Recipe:
    """A recipe, read and checked."""

    name: str
    plain: dict[str, Any]  # as the file has it, with what was set over it
    model: Model | Init
    text: Text
    train: Training
    decode: Decode


def read_recipe(recipe: str | Path, settings: Sequence[str] = ()) -> Recipe:
    """A TOML file, or the name of a built-in recipe, with `a.b=c` settings over it."""
    path, known = Path(recipe), builtin_recipes()
    if str(recipe) in known and not path.is_file():
        text, name = known[str(recipe)], str(recipe)
    elif path.is_file():
        text, name = read_text(path), path.stem
    else:
        raise InputError(f'no recipe "{recipe}": no such file, and not built in. {suggest(str(recipe), known)}')
    try:
        plain = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{recipe} is not TOML: {error}.") from None
    for setting in settings:
        override(plain, setting)
    return parse_recipe(plain, name=name, where=str(recipe))


def parse_recipe(plain: dict[str, Any], *, name: str, where: str) -> Recipe:
    """A recipe from its tables; every key must be known."""
    for key, value in plain.items():
        if key not in ("model", "text", "train", "decode"):
            known = suggest(key, ["model", "text", "train", "decode"])
            raise InputError(f'unknown table "{key}" ({where}). {known}')
        if not isinstance(value, Mapping):
            raise InputError(f"[{key}] must be a table ({where}). Set its keys, as in train.steps = 2000.")
    try:
        plain = with_kind(plain)
        return Recipe(
            name,
            plain,
            model=begin_model(plain, where=f"{where}: model"),
            text=call_from_dict(Text, plain.get("text", {}), where=f"{where}: text"),
            train=call_from_dict(Training, plain.get("train", {}), where=f"{where}: train"),
            decode=call_from_dict(Decode, plain.get("decode", {}), where=f"{where}: decode"),
        )
    except TypeError as error:
        raise InputError(f"{error} ({where}).") from None


def with_kind(plain: dict[str, Any]) -> dict[str, Any]:
    """A recipe whose problem says what it is: with no kind, pairs or plain text, whichever its keys belong to."""
    task = plain.get("text", {}).get("task")
    if not isinstance(task, Mapping) or "kind" in task or not task:
        return plain
    kind = "translation" if {f.name for f in fields(Translation)} >= task.keys() else "next_token"
    return {**plain, "text": {**plain["text"], "task": {"kind": kind, **task}}}


def begin_model(plain: Mapping[str, Any], *, where: str) -> Model | Init:
    """What a recipe begins with: a model of the zoo, or one that has learnt before."""
    table = plain.get("model", {})
    if "init" not in table:
        return describe_model(table, where=where)
    if "tokenizer" in plain.get("text", {}):
        raise InputError("a model that has learnt before keeps its own tokenizer (text.tokenizer). Leave it out.")
    begun: Init = call_from_dict(Init, table, where=where)
    return begun


def describe_model(table: Mapping[str, Any], *, where: str) -> Model:
    """The zoo's function of that name, called with the rest of the table."""
    arguments = dict(table)
    name = arguments.pop("name", "transformer")
    functions = zoo_functions()
    if not isinstance(name, str) or name not in functions:
        raise InputError(f'no model is called "{name}" ({where}.name). {suggest(str(name), functions)}')
    known = [*inspect.signature(functions[name]).parameters, "name"]
    for key in arguments:
        if key not in known:
            raise InputError(f'unknown key "{key}" ({where}). {suggest(key, known)}')
    description = call_from_dict(functions[name], arguments, where=where)
    with torch.device("meta"):
        try:
            description.build(8)  # what cannot be built is found before any text is read
        except (InputError, RuntimeError, ValueError, ArithmeticError) as error:
            hints = typing.get_type_hints(functions[name])
            counts = {key: value for key, value in arguments.items() if hints.get(key) is not float}
            for key, value in _below_one(counts, where):
                raise InputError(f"{value} is too small ({key}). Use 1 or more.") from None
            if isinstance(error, InputError):
                raise InputError(located(str(error), where)) from None
            raise InputError(f"these settings make no model: {str(error).splitlines()[0]} ({where}).") from None
    return description


def _below_one(table: Mapping[str, Any], where: str) -> Iterator[tuple[str, int]]:
    """Whole numbers that are no count of anything, with their places."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _below_one(value, f"{where}.{key}")
        elif type(value) is int and value < 1:
            yield f"{where}.{key}", value


def zoo_functions() -> dict[str, Callable[..., Model]]:
    """The functions of the zoo, by name."""
    return {name: getattr(zoo, name) for name in zoo.__all__}


def override(plain: dict[str, Any], setting: str) -> None:
    """Apply "train.steps=2000" to a recipe's tables."""
    path, equals, written = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise InputError(f'"{setting}" is not of the form table.key=value (--set). Example: --set train.steps=2000.')
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written
    table = plain
    for depth, key in enumerate(keys[:-1], start=1):
        below = table.setdefault(key, {})
        if isinstance(below, str):  # a bare kind, as in tokenizer = "character"
            below = table[key] = {"kind": below}
        if not isinstance(below, dict):
            place = ".".join(keys[:depth])
            raise InputError(f"{place} is {toml_value(below)}, not a table (--set {setting}). Set {place} as a whole.")
        table = below
    table[keys[-1]] = value
