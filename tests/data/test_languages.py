"""The embedded corpus of languages: its lines and its splits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import get_args

import pytest

from regard.config.recipe import read_recipe
from regard.data.corpora import Split, languages
from regard.data.corpora.languages import LANGUAGES, LanguageLine, language_lines
from regard.data.read.corpus import embedded_corpus
from regard.errors import InputError

SPLITS = get_args(Split)


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[LanguageLine]]:
    return {split: language_lines(split, lines=6_000 if split == "train" else None) for split in SPLITS}


def fingerprint(*, before: str = "", hash_seed: str = "0") -> str:
    """What a Python of its own makes of the first lines, after running `before`."""
    code = before + "import hashlib; from regard.data.corpora.languages import language_lines; "
    code += "print(hashlib.sha256(repr(language_lines('train', lines=2000)).encode()).hexdigest())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_the_lines_are_the_same_everywhere():
    names = 'names("abbreviated", locale="arn")'
    before = f"from babel.dates import get_day_names, get_month_names; get_day_{names}[0]; get_month_{names}[1]; "
    assert fingerprint(hash_seed="1") == fingerprint(before=before, hash_seed="2")


def test_every_language_has_lines_of_its_own(corpus: dict[str, list[LanguageLine]]):
    counts = Counter(line.language for line in corpus["train"])
    assert set(counts) == set(LANGUAGES)
    assert min(counts.values()) > 40
    assert {len(corpus["valid"]), len(corpus["test"])} == {1_500, 3_000}
    texts = {line.language: line.text for line in corpus["train"]}
    assert len({*texts.values()}) == len(LANGUAGES)
    assert all(line.text.strip() == line.text != "" and "\n" not in line.text for line in corpus["train"])


def test_no_name_or_unit_of_a_split_occurs_in_another():
    for language in ("de", "ja", "sw"):
        units = [set(languages._units(language, split)) for split in SPLITS]
        assert all(units)
        assert not units[0] & (units[1] | units[2])
    assert not set(languages._names("de", "train")) & set(languages._names("de", "test"))


def test_no_held_out_line_occurs_in_train(corpus: dict[str, list[LanguageLine]]):
    seen = {line.text.lower() for line in corpus["train"]}
    assert not [line for split in ("valid", "test") for line in corpus[split] if line.text.lower() in seen]


def test_fewer_lines_are_the_first_lines_and_another_seed_gives_others(corpus: dict[str, list[LanguageLine]]):
    assert language_lines("valid", lines=9) == corpus["valid"][:9]
    assert language_lines("valid", lines=9, seed=2) != corpus["valid"][:9]
    with pytest.raises(InputError, match="lines=-1 is negative"):
        language_lines("valid", lines=-1)
    with pytest.raises(InputError, match="unknown split"):
        language_lines("dev")  # type: ignore[arg-type]


def test_the_recipe_reads_texts_and_their_labels(corpus: dict[str, list[LanguageLine]]):
    found = embedded_corpus("languages", "valid")
    assert list(zip(found.sources, found.targets or ())) == [(line.text, line.language) for line in corpus["valid"]]
    recipe = read_recipe("languages")
    assert recipe.text.corpus == "languages"
    with pytest.raises(InputError, match='Did you mean "languages"'):
        embedded_corpus("language", "valid")
