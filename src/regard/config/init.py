"""A first recipe for a person's own files, with a comment on what one may want to change."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice, takewhile
from pathlib import Path

from regard.data.read.corpus import Corpus, read_corpus, read_pairs
from regard.errors import InputError
from regard.schema import toml_value

_LOOKED_AT = 2000  # lines, to see whether they are labelled

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
steps        = {steps}       # a run goes on where it stopped, so this can be raised later
batch_tokens = 4096       # padded tokens a step; raise accumulate, not lower this, if memory is short
rate         = 1e-3
schedule     = {{ kind = "inverse_square_root", warmup = {warmup} }}
save_every   = {every}
valid_every  = {every}
seed         = 1
"""


def recipe_for(files: list[Path]) -> str:
    """A recipe for one text, for two whose lines belong together, or for one whose lines are labelled."""
    if len(files) > 2:
        raise InputError(f"{len(files)} files (regard init). Give one text, or two whose lines belong together.")
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
        valid=f"# valid   = {toml_value(_valid(pattern))}   # not learnt from: judges as it goes",
        tokenizer="bpe" if vocabulary else "character",
        size=f", size = {vocabulary}" if vocabulary else "",
        task=labels or ("" if pair else 'documents = "file"        # or "line", "paragraph": what is one text'),
        steps=1000 if small else 20_000,
        warmup=100 if small else 1000,
        every=100 if small else 500,
    )


def _labels(corpus: Corpus, *, tabbed: bool) -> str | None:
    """What a recipe says of a text whose lines are labelled; None where its second column is no label.

    The first of lines between tabs names the columns if both its fields are names, and no other line is labelled so.
    """
    rows = list(islice(zip(corpus.sources, corpus.targets or ()), _LOOKED_AT))
    counts = Counter(label for _, label in rows)
    if len(counts) > min(max(3, len(rows) // 20), len(rows) // 2) or not rows:
        return None
    task = 'task   = "labels"   # the second column says what a text is; see docs/children.md'
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
    """A name like the training text's for the text that is not learnt from."""
    if "train" in pattern:
        return pattern.replace("train", "valid")
    place = Path(pattern)
    return str(place.with_name("valid" + "".join(place.suffixes)))


def _common(one: str, other: str) -> str:
    """How two texts begin alike."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))
