"""First recipes for the user's own files: commented TOML (`regard init`), or a recipe around a Model value."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from itertools import islice, takewhile
from pathlib import Path

from regard.config.recipe import Recipe, override, parse_recipe
from regard.data.read.corpus import Corpus, read_corpus, read_pairs
from regard.errors import InputError
from regard.models.model import Model
from regard.schema import classes_of, kind_of, to_dict, toml_value

_INSPECTED = 2000  # lines in which labels are searched for

_RECIPE = """# Written by regard init. Train it with: regard train recipe.toml
# Every key can also be set on the command line: --set train.steps=2000

[model]
name    = "{model}"   # a function of regard.zoo; the other keys are its arguments
width   = {width}
depth   = {depth}
heads   = 4
dropout = {dropout}              # more for little text, less for much

[text]
train     = {train}
{valid}
tokenizer = {{ kind = "{tokenizer}"{size} }}   # character, byte, word, bpe, unigram, word_piece
{task}

[train]
steps         = {steps}       # a run resumes where it stopped, so this can be raised later
batch_tokens  = 4096       # padded tokens per step; if memory is short, raise accumulate rather than lower this
learning_rate = 1e-3
schedule      = {{ kind = "inverse_square_root", warmup = {warmup} }}
save_every    = {every}
valid_every   = {every}
seed          = 1
"""


def recipe_for(files: list[Path]) -> str:
    """A recipe for one text, for two parallel texts, or for one with a label per line."""
    if len(files) > 2:
        raise InputError(f"{len(files)} files (regard init). Give one text, or two parallel ones.")
    both = read_pairs(files[0], files[1]) if len(files) == 2 else read_corpus(str(files[0]))
    size = sum(file.stat().st_size for file in files)
    pattern, pair = _pattern([str(file) for file in files]), both.targets is not None
    vocabulary = 8000 if size > 4_000_000 else 2000 if size > 400_000 else 0
    small = size < 1_000_000
    labels = _labels(both, tabbed=".tsv" in files[0].suffixes) if len(files) == 1 else None
    return _RECIPE.format(
        model="bert" if labels else "transformer" if pair else "gpt2",
        width=128 if small else 256,
        depth=2 if small else 3,
        dropout=0.2 if small else 0.1,
        train=toml_value(pattern),
        valid=f"# valid   = {toml_value(_valid(pattern))}   # held out, to validate during training",
        tokenizer="bpe" if vocabulary else "character",
        size=f", size = {vocabulary}" if vocabulary else "",
        task=labels or ("" if pair else 'documents = "file"        # or "line", "paragraph": what is one text'),
        steps=1000 if small else 20_000,
        warmup=100 if small else 1000,
        every=100 if small else 500,
    )


def recipe_for_model(
    model: Model, files: Sequence[Path], *, settings: Sequence[str] = (), parts: Sequence[type] = ()
) -> Recipe:
    """The recipe of `regard init` with a Model value in place of its [model] table, and settings over it."""
    tables = tomllib.loads(recipe_for(list(files)))
    tables["model"] = to_dict(model, brief=True)
    if model.shape == "encoder-decoder":
        tables["text"].pop("task", None)  # pairs are translated, however few different targets there are
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


def _labels(corpus: Corpus, *, tabbed: bool) -> str | None:
    """The keys for a text with a label per line; None where the second column holds no labels.

    The first line of a .tsv is a header if both its fields are names and its label occurs once.
    """
    rows = list(islice(zip(corpus.sources, corpus.targets or ()), _INSPECTED))
    counts = Counter(label for _, label in rows)
    if len(counts) > min(max(3, len(rows) // 20), len(rows) // 2) or not rows:
        return None
    task = 'task      = "classification"   # the second column is the label; see docs/pretraining.md'
    names = [name.strip() for name in rows[0]]
    headed = tabbed and counts[rows[0][1]] == 1 and len(counts) > 2 and all(name.isidentifier() for name in names)
    return f"fields    = {toml_value(names)}\n{task}" if headed else task


def _pattern(files: list[str]) -> str:
    """data/train.de and data/train.en -> data/train.{de,en}."""
    if any("{" in file for file in files):
        raise InputError(f"{files[0]}: a name with braces means a pair of files in a recipe. Rename it.")
    if len(files) == 1:
        return files[0]
    start = re.sub(r"[^./_-]*$", "", _common(*files))
    rest = [file[len(start) :] for file in files]
    end = _common(*(part[::-1] for part in rest))[::-1]
    middles = [part[: len(part) - len(end)] for part in rest]
    if not all(middles) or any("," in middle for middle in middles):
        raise InputError(
            f"{files[0]} and {files[1]} differ in more than an ending. Rename them like train.de, train.en."
        )
    return f"{start}{{{','.join(middles)}}}{end}"


def _valid(pattern: str) -> str:
    """A name for the validation text, like the training text's."""
    if "train" in pattern:
        return pattern.replace("train", "valid")
    path = Path(pattern)
    return str(path.with_name("valid" + "".join(path.suffixes)))


def _common(one: str, other: str) -> str:
    """The longest common prefix."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))
