"""First recipes for the user's own files: commented TOML (`regard init`), or a recipe around a Model value.

The size of the model, the batch and the number of steps follow from the amount of text and, if measured, from the
speed of this machine.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from regard.config.recipe import Recipe, Text, override, parse_recipe
from regard.config.setup import read_setup
from regard.data.corpora import Split
from regard.data.corpora.chorales import has_splits, is_music
from regard.data.read.cache import default_cache
from regard.data.read.corpus import Corpus
from regard.data.read.discover import find_texts
from regard.data.read.formats import format_and_first_file
from regard.data.read.split import FEW
from regard.data.read.tables import (
    Table,
    choose_fields,
    is_label_name,
    is_labels,
    is_number,
    read_objects,
    read_table,
    tabbed_columns,
)
from regard.data.read.texts import byte_lengths, shell_quoted, text_parts
from regard.errors import InputError, require_unicode
from regard.models.model import Model
from regard.schema import classes_of, kind_of, to_dict, toml_value
from regard.training.log import span
from regard.training.memory import Probe, first_epoch

Kind = Literal["pairs", "labels", "numbers", "texts"]

_INSPECTED = 2000  # lines in which labels are searched for
_SAMPLE = 20_000  # texts, or parts of long ones, whose words are counted
_VALID_TEXTS = 1000  # enough to validate, and to test
_SECONDS = 3.0  # of timed steps
_MIN_STEPS = 300
_USEFUL_STEPS = 2000  # even if they take longer than they may
_STEPS_PER_EPOCH = 150  # at least, where the batch can be smaller
_VALIDATIONS = 20  # per run


@dataclass(frozen=True)
class Size:
    """The size of a model: for how many bytes of text, and its [model] keys."""

    most_bytes: float
    width: int
    depth: int
    dropout: float
    learning_rate: float
    heads: int = 4


_SIZES = (
    Size(1e6, 128, 2, 0.3, 3e-3), Size(1e7, 160, 3, 0.3, 2e-3), Size(6e7, 256, 4, 0.2, 1e-3),
    Size(float("inf"), 512, 6, 0.1, 5e-4, 8),
)  # fmt: skip
_EPOCHS: dict[Kind, tuple[int, int]] = {  # at least, if a smaller model makes it possible; and at most
    "pairs": (10, 25), "labels": (4, 10), "numbers": (4, 10), "texts": (3, 12)
}  # fmt: skip
_FINE_TUNING_EPOCHS = (1, 4)
_ANY_MODEL = 1e-3  # the largest learning rate for a model of the user's own, which may be deep and wide
_VOCABULARIES = (1000, 2000, 4000, 6000, 8000, 16_000)


@dataclass(frozen=True)
class Pace:
    """An epoch of a recipe: its steps and tokens, and how many tokens this machine trains per second (0: unknown)."""

    steps: int
    tokens: int
    tokens_per_second: float = 0.0
    parameters: int = 0

    def seconds(self, steps: int) -> float:
        return steps / self.steps * self.tokens / self.tokens_per_second


Measure = Callable[[Recipe], Pace]


@dataclass(frozen=True)
class Content:
    """What the files hold: its kind, the columns to read, how much there is, and how its words repeat."""

    named: dict[Split, list[str]]
    kind: Kind
    fields: tuple[str, ...]
    table: Table | None
    texts: int
    bytes: int
    longest: int  # bytes of a side: 99 of 100 are shorter
    repeated: int  # different words that occur more than once
    held_out: dict[str, float]

    @property
    def text(self) -> dict[str, Any]:
        """The keys of [text] that say what to read."""
        found: dict[str, Any] = {split: one[0] if len(one) == 1 else one for split, one in self.named.items() if one}
        return found | self.held_out | ({"fields": list(self.fields)} if self.fields else {})


def recipe_for(
    files: Sequence[Path], *, fields: Sequence[str] = (), model: Path | None = None, minutes: float = 40,
    measure: Measure | None = None, note: Callable[[str], None] = lambda text: None,
) -> str:  # fmt: skip
    """A recipe for texts, pairs, or texts with labels; with `measure`, for at most so many minutes of training."""
    for file in files if model is None else (*files, model):
        require_unicode(str(file), "text")
    content = look_at(files, fields)
    said = _described(content)
    for line in said:
        note(line)
    least, most = _EPOCHS[content.kind] if model is None else _FINE_TUNING_EPOCHS
    sizes = [size for size in _SIZES if content.bytes > size.most_bytes]
    for size in reversed(_SIZES[: len(sizes) + 1]):
        tables = _tables(content, size, model)
        pace = _rough_pace(content, tables) if measure is None else measure(_parsed(tables, files[0]))
        steps = max(min(most * pace.steps, 10**6), _MIN_STEPS)
        useful = max(min(least * pace.steps, _USEFUL_STEPS), _MIN_STEPS)
        if pace.tokens_per_second:
            affordable = int(60 * minutes * steps / pace.seconds(steps))
            if affordable < least * pace.steps and size is not _SIZES[0] and model is None:
                continue
            steps = max(1, min(steps, affordable))
        break
    steps, useful = _rounded(steps), _rounded(useful)
    if pace.tokens_per_second:
        epochs, time = f"{steps / pace.steps:.3g} epochs", span(pace.seconds(steps))
        amount = f"{pace.parameters:,} parameters; {steps:,} steps are {epochs}"
        said.append(f"{amount}, about {time} on this machine, and validations{_busy()}")
        note(said[-1])
        if steps < useful:
            needed = pace.seconds(useful)
            more = f"{useful:,} would take {span(needed)} (--minutes {math.ceil(needed / 60)})"
            said.append(f"the time limit leaves fewer steps than such a text needs: {more}")
            note(said[-1])
    return _written(tables, content, steps, said)


def _busy() -> str:
    """A remark where other programs keep this machine busy, which slows down what is measured."""
    busy = os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    return "; other programs keep it busy now, so it may take less" if busy else ""


def look_at(files: Sequence[Path], fields: Sequence[str] = ()) -> Content:
    """Read the user's files: what they hold, and how much."""
    if not files:
        raise InputError("no file was named (regard init). Name your text.")
    named = find_texts(files)
    first = named["train"][0]
    if is_music(first) and has_splits(first):
        named = dict.fromkeys(get_args(Split), named["train"])
    table = _table_of(first)
    if fields and table is None:
        raise InputError(f"{first} is plain text, which has no columns (--fields). Leave it out.")
    for name in fields:
        if table is not None and name not in table.columns and not name.isdigit():
            raise InputError(f"{table.path} has no column {name} (--fields). It has {table.shown()}.")
    chosen = tuple(fields) or (() if table is None else choose_fields(table))
    if table is not None and not fields and chosen == table.columns and not table.names:
        chosen = ()  # the only one or two
    empty = Content(named, "texts", chosen, table, 0, 0, 0, 0, {})
    corpus = _corpus(empty, "train")
    lengths = [byte_lengths(side) for side in corpus.sides]
    return _with_held_out(replace(
        empty, kind=_kind_of(corpus, chosen), texts=len(corpus), bytes=sum(int(side.sum()) for side in lengths),
        longest=max(int(np.percentile(side, 99)) for side in lengths), repeated=_repeated_words(corpus),
    ))  # fmt: skip


def _table_of(pattern: str) -> Table | None:
    """The columns of a table or of JSON lines; None for plain text."""
    if "{" in pattern or is_music(pattern):
        return None
    form, first = format_and_first_file(pattern)
    if form == "jsonl":
        return read_objects(first)
    if form in ("csv", "tsv"):
        return read_table(first)
    if (count := tabbed_columns(first)) > 1:
        renamed = first.with_suffix(".tsv").name
        raise InputError(
            f"{first} holds {count} columns between tabs, but its name says plain text (regard init). "
            f"Rename it: mv {shell_quoted(first)} {shell_quoted(first.with_name(renamed))}."
        )
    return None


def _corpus(content: Content, split: Split) -> Corpus:
    keys = {key: tuple(value) if isinstance(value, list) else value for key, value in content.text.items()}
    text = Text(keys["train"], keys.get("valid"), keys.get("test"), fields=keys.get("fields"))
    found = text.read(split, default_cache())
    assert found is not None
    return found


def _kind_of(corpus: Corpus, fields: Sequence[str]) -> Kind:
    """What is to be learnt: a translation of each text, its label, a number, or the texts themselves."""
    if corpus.targets is None:
        return "texts"
    cells = list(islice(corpus.targets, _INSPECTED))
    numbers, one_file = all(map(is_number, cells)), len(corpus.names) == 1
    named = bool(fields) and is_label_name(fields[-1]) and not numbers
    if (one_file or "label" in corpus.names[-1]) and is_labels(cells, named=named):
        return "labels"
    return "numbers" if numbers and one_file else "pairs"


def _repeated_words(corpus: Corpus) -> int:
    counts: Counter[str] = Counter()
    for side in corpus.sides:
        for _, part in islice(text_parts(side), _SAMPLE):
            counts.update(part.split())
    return sum(count > 1 for count in counts.values())


def _with_held_out(content: Content) -> Content:
    """Hold out a share of the training text where no file validates; of much text, another share to test."""
    if content.named["valid"] or is_music(content.named["train"][0]):
        return content
    enough = content.texts >= 2 * _VALID_TEXTS or (content.kind == "texts" and content.bytes >= 500_000)
    wanted = min(0.1, max(0.01, float(f"{_VALID_TEXTS / content.texts:.1g}")))
    first = 0.05 if content.kind == "texts" else wanted
    for share in (first, 0.1, 0.2, 0.3, 0.4, 0.5):
        held = {"valid": share} | ({"test": share} if enough and not content.named["test"] and share < 0.2 else {})
        found = replace(content, held_out=held)
        try:
            for split in ("train", *held):
                _corpus(found, split)  # type: ignore[arg-type]
            return found
        except InputError:
            continue
    return content


def _tables(content: Content, size: Size, model: Path | None) -> dict[str, Any]:
    """The tables of a recipe, all but the number of steps."""
    pairs, text = content.kind == "pairs", dict(content.text)
    vocabulary = max((one for one in _VOCABULARIES if one <= content.repeated), default=0)
    vocabulary = min(vocabulary, 16_000 if content.bytes > 6e7 else 8000 if content.bytes > 1e7 else 6000)
    task = {"pairs": "translation", "labels": "classification", "numbers": "regression"}.get(content.kind)
    length = next((one for one in (256, 512) if one >= content.longest / _bytes_per_token(vocabulary)), 512)
    if task is not None and length > 256:
        text["task"] = {"kind": task, "max_length": length}
    elif task is not None and not pairs:
        text["task"] = task
    elif content.kind == "texts" and not content.fields:
        text["documents"] = "file"
    learned: dict[str, Any] = {"init": str(model)}
    if model is None:
        plain = "word" if is_music(content.named["train"][0]) else "character"
        text["tokenizer"] = {"kind": "bpe", "size": vocabulary} if vocabulary else {"kind": plain}
        name = "transformer" if pairs else "gpt2" if content.kind == "texts" else "bert"
        learned = {"name": name, "width": size.width, "depth": size.depth, "heads": size.heads, "dropout": size.dropout}
        learned |= {"join": "pre_norm"} if pairs else {}
    rate = size.learning_rate if content.kind in ("pairs", "texts") else max(5e-4, size.learning_rate / 2)
    rate = rate if model is None else 1e-4
    train: dict[str, Any] = {"batch_tokens": _batch_tokens(content, vocabulary), "learning_rate": rate}
    train |= {} if pairs else {"label_smoothing": 0.0}
    train |= {"best": "accuracy"} if content.kind == "labels" and "valid" in text else {}
    return {"model": learned, "text": text, "train": train}


def _rough_tokens(content: Content, vocabulary: int) -> int:
    """The tokens of an epoch, from the bytes of the text."""
    return int(content.bytes / _bytes_per_token(vocabulary)) + content.texts * (4 if content.kind == "pairs" else 2)


def _bytes_per_token(vocabulary: int) -> float:
    return 3.5 if vocabulary else 1.1


def _batch_tokens(content: Content, vocabulary: int) -> int:
    """The largest usual batch of which an epoch has enough."""
    tokens = _rough_tokens(content, vocabulary) / _STEPS_PER_EPOCH
    return next((size for size in (4096, 2048, 1024) if size <= tokens), 512)


def _rough_pace(content: Content, tables: dict[str, Any]) -> Pace:
    """An epoch as the bytes of the text suggest, on no machine: the same recipe for the same text everywhere."""
    tokens = _rough_tokens(content, tables["text"].get("tokenizer", {}).get("size", 1))
    return Pace(max(1, tokens // tables["train"]["batch_tokens"]), tokens)


def measured_pace(recipe: Recipe, device: torch.device) -> Pace:
    """Tokenize the text and train a throw-away network for some seconds, as `regard plan` does."""
    setup = read_setup(recipe)
    probe = Probe(setup.network, setup.samples, recipe.train, device)
    epoch = first_epoch(probe.trainer.batches)
    speed = max(probe.speeds(_SECONDS))  # other processes only slow it down
    parameters = sum(parameter.numel() for parameter in probe.trainer.network.parameters())
    return Pace(epoch.steps, epoch.tokens, speed, parameters)


def _parsed(tables: dict[str, Any], file: Path) -> Recipe:
    return parse_recipe(tables, name=file.stem, where="regard init")


def _rounded(steps: int) -> int:
    """Two digits: 4,382 -> 4,400."""
    return int(float(f"{steps:.2g}")) if steps >= 100 else steps


_NOUNS = {"pairs": "pairs", "labels": "texts with labels", "numbers": "texts with numbers", "texts": "texts"}


def _described(content: Content) -> list[str]:
    """What was found, one line each."""
    train = content.named["train"]
    names = ", ".join(train[:3]) + (f" and {len(train) - 3:,} more" if len(train) > 3 else "")
    nouns = _NOUNS[content.kind] if content.texts > 1 else _NOUNS[content.kind].replace("s", "", 1)
    found = [f"{names}: {content.texts:,} {nouns}, {content.bytes:,} bytes"]
    if content.table is not None and content.fields:
        found.append(f"columns: {content.table.shown()}; read: {', '.join(content.fields)} (--fields chooses others)")
    ends = content.kind == "texts" and content.table is None and content.texts < FEW * len(train)
    for split, share in content.held_out.items():
        what = "to validate during training" if split == "valid" else "to test: regard evaluate"
        how = f"{100 * share:g}% of each document" if ends else f"by content, {100 * share:g}% of the text"
        found.append(f"held out: {how}, {what} (text.{split})")
    if not content.held_out and not content.named["valid"]:
        found.append("nothing is held out, so nothing is judged: there are too few different texts")
    held_out = {split: files for split, files in content.named.items() if split != "train" and files}
    return found + [f"text.{split}: {', '.join(files)}" for split, files in held_out.items()]


_COMMENTS = {
    "model.name": "a function of regard.zoo; the other keys are its arguments",
    "model.join": "learns in fewer steps than post_norm, and at a higher learning rate",
    "model.init": "the pretrained model, which keeps its tokenizer",
    "model.dropout": "more for little text, less for much",
    "text.fields": "columns: the text, then its target or label",
    "text.valid": "validates during training; a number is a share of train that is held out",
    "text.test": "what regard evaluate reads; never trained on",
    "text.tokenizer": "character, byte, word, bpe, unigram, word_piece",
    "text.documents": 'or "line", "paragraph": what is one text',
    "text.task": "longer texts than max_length tokens are left out; see docs/pretraining.md",
    "train.steps": "a run resumes where it stopped, so this can be raised later",
    "train.batch_tokens": "padded tokens per step; if memory is short, raise accumulate rather than lower this",
    "train.learning_rate": "the peak; less for a wider or deeper model",
    "train.patience": "ends early after so many validations without improvement",
    "train.average": "the last checkpoints are averaged at the end, if that validates better",
}


def _written(tables: dict[str, Any], content: Content, steps: int, said: Iterable[str]) -> str:
    """The recipe as commented TOML."""
    every = max(1, min(_rounded(max(10, steps // _VALIDATIONS)), 2000))
    validated = "valid" in tables["text"]
    train = {"steps": steps, **tables["train"]}
    train["schedule"] = {"kind": "cosine", "warmup": max(1, _rounded(min(4000, steps // 10)))}
    train |= {"save_every": every, "valid_every": every}
    train |= {"patience": 8} if validated else {}  # of 20: a cosine schedule gains most at its end
    train |= {"average": 5} if validated and content.kind == "pairs" and steps >= 1000 else {}
    lines = ["# Written by regard init. Train it with: regard train recipe.toml"]
    lines += ["# Every key can also be set on the command line: --set train.steps=2000", *(f"# {one}" for one in said)]
    for name, table in {**tables, "train": {**train, "seed": 1}}.items():
        lines += ["", f"[{name}]"]
        keys = [key for key in ("train", "valid", "test") if key in table] if name == "text" else []
        width = max(map(len, table))
        for key in [*keys, *(key for key in table if key not in keys)]:
            comment = _COMMENTS.get(f"{name}.{key}")
            lines.append(f"{key:{width}} = {toml_value(table[key])}" + (f"   # {comment}" if comment else ""))
    if not validated:
        lines.insert(lines.index("[train]") - 1, '# valid = "FILE"   # held out, to validate during training')
    return "\n".join(lines) + "\n"


def recipe_for_model(
    model: Model, files: Sequence[Path], *, settings: Sequence[str] = (), parts: Sequence[type] = ()
) -> Recipe:
    """The recipe of `regard init` with a Model value in place of its [model] table, and settings over it."""
    tables = tomllib.loads(recipe_for(list(files)))
    tables["model"] = to_dict(model, brief=True)
    tables["train"]["learning_rate"] = min(tables["train"]["learning_rate"], _ANY_MODEL)
    if model.shape == "encoder-decoder":
        tables["text"].pop("task", None)  # pairs are translated, however few different targets there are
        tables["train"].pop("best", None)
    for setting in settings:
        override(tables, setting)
    own = [*parts, *(cls for cls in classes_of(model) if cls not in parts)]
    found = parse_recipe(tables, name=files[0].stem, where="regard.train", parts=own)
    if found.model != model and not any(setting.strip().startswith("model.") for setting in settings):
        lost = [cls for cls in classes_of(model) if cls not in classes_of(found.model)]
        if not lost:
            raise InputError("a field of this model cannot be written as data (model). Use numbers, text and tuples.")
        kind = f'kind: ClassVar[str] = "my_{kind_of(lost[0])}"'
        raise InputError(
            f'"{kind_of(lost[0])}" is a kind of regard\'s own (model). Give {lost[0].__name__} another: {kind}.'
        )
    return found
