"""The embedded corpus of dates: its lines, that each is unambiguous, and that splits do not overlap."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import date, timedelta
from typing import get_args

import pytest
from babel.dates import format_date

from regard.data.corpora import Split, dates
from regard.data.corpora.dates import LANGUAGES, DateLine, date_lines
from regard.errors import InputError

SPLITS = get_args(Split)


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[DateLine]]:
    return {split: date_lines(split) for split in SPLITS}


def words(line: DateLine) -> set[tuple[str, str]]:
    return {(line.language, word) for word in re.findall(r"[^\W\d]+", line.source.lower())}


def days(lines: list[DateLine]) -> set[str]:
    return {day for line in lines for day in line.target.split(" ")}


def fingerprint(*, before: str = "", hash_seed: str = "0") -> str:
    """What a Python of its own makes of the first lines, after running `before`."""
    code = before + "import hashlib; from regard.data.corpora.dates import date_lines; "
    code += "print(hashlib.sha256(repr(date_lines('train', lines=2000)).encode()).hexdigest())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_splits_have_their_sizes(corpus: dict[str, list[DateLine]]) -> None:
    assert {split: len(lines) for split, lines in corpus.items()} == {"train": 40_000, "valid": 1_000, "test": 2_000}


@pytest.mark.parametrize("split", SPLITS)
def test_fewer_lines_are_the_first_lines(split: Split, corpus: dict[str, list[DateLine]]) -> None:
    assert date_lines(split, lines=100) == corpus[split][:100]
    assert date_lines(split, lines=0) == []


def test_another_seed_gives_other_lines_of_the_same_split(corpus: dict[str, list[DateLine]]) -> None:
    other = date_lines("test", seed=2)
    assert other != corpus["test"]
    assert days(other).isdisjoint(days(corpus["train"]) | days(corpus["valid"]))


def test_the_lines_do_not_depend_on_the_hash_seed_of_python() -> None:
    assert fingerprint(hash_seed="1") == fingerprint(hash_seed="2")


def test_the_lines_do_not_depend_on_locales_that_babel_loaded_before() -> None:
    names = 'names("abbreviated", locale="arn")'
    before = f"from babel.dates import get_day_names, get_month_names; get_day_{names}[0]; get_month_{names}[1]; "
    assert fingerprint(before=before) == fingerprint()


def test_a_target_holds_as_many_iso_dates_as_the_line_says(corpus: dict[str, list[DateLine]]) -> None:
    for lines in corpus.values():
        for line in lines:
            parsed = [date.fromisoformat(text) for text in line.target.split(" ")]
            assert len(parsed) == line.dates
            assert all(1900 <= day.year <= 2099 for day in parsed)


def test_seven_lines_in_ten_hold_one_date_and_none_more_than_five(corpus: dict[str, list[DateLine]]) -> None:
    counts = Counter(line.dates for line in corpus["train"])
    assert set(counts) == {1, 2, 3, 4, 5}
    assert counts[1] / 40_000 == pytest.approx(0.7, abs=0.01)


def test_the_numbers_of_a_source_are_those_of_its_target(corpus: dict[str, list[DateLine]]) -> None:
    for line in corpus["train"]:
        written = Counter(int(number) for number in re.findall(r"\d+", line.source))
        for day in map(date.fromisoformat, line.target.split(" ")):
            assert {day.year, day.day} <= set(written), line


def test_every_string_means_one_date_only(corpus: dict[str, list[DateLine]]) -> None:
    meanings = defaultdict(set)
    for lines in corpus.values():
        for line in lines:
            meanings[line.source].add(line.target)
    assert [source for source, targets in meanings.items() if len(targets) > 1] == []


def test_exactly_the_ambiguous_shapes_are_left_out() -> None:
    meanings = defaultdict(set)
    for day in (date(2004, 1, 1) + timedelta(days=count) for count in range(366)):
        for language in LANGUAGES:
            for form in dates._formats(language):
                text = form.write(day)
                for variant in set(dates._VARIANTS):
                    meanings[variant(text, language)].add(day)
    shared = {dates._shape(text) for text, several in meanings.items() if len(several) > 1}
    assert shared == dates._ambiguous_shapes()


def test_a_month_that_differs_between_polish_and_croatian_is_left_out(corpus: dict[str, list[DateLine]]) -> None:
    assert "# lis ##" in dates._ambiguous_shapes()
    assert not any(re.fullmatch(r"\d+ lis \d+", line.source) for line in corpus["train"])
    assert any(re.fullmatch(r"\d+\. lis \d+\.", line.source) for line in corpus["train"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_format_writes_what_babel_writes(language: str) -> None:
    for day in (date(1907, 2, 3), date(2024, 11, 30), date(2099, 8, 14)):
        written = {form.write(day) for form in dates._formats(language)}
        for width in ("full", "long", "medium"):
            expected = format_date(day, width, locale=language.replace("-", "_")).replace("\u202f", " ")
            assert "/" in expected or expected in written


def test_no_day_of_a_split_occurs_in_another(corpus: dict[str, list[DateLine]]) -> None:
    seen = {split: days(lines) for split, lines in corpus.items()}
    assert seen["train"].isdisjoint(seen["valid"] | seen["test"])
    assert seen["valid"].isdisjoint(seen["test"])


def test_no_held_out_source_occurs_in_train(corpus: dict[str, list[DateLine]]) -> None:
    sources = {line.source for line in corpus["train"]}
    assert not any(line.source in sources for line in corpus["valid"] + corpus["test"])


def test_every_word_of_a_held_out_line_occurs_in_train(corpus: dict[str, list[DateLine]]) -> None:
    seen = set().union(*map(words, corpus["train"]))
    assert set().union(*map(words, corpus["valid"] + corpus["test"])) <= seen


def test_every_language_has_every_month_and_weekday_in_train(corpus: dict[str, list[DateLine]]) -> None:
    months, weekdays = defaultdict(set), defaultdict(set)
    for line in corpus["train"]:
        for day in map(date.fromisoformat, line.target.split(" ")):
            months[line.language].add(day.month)
            weekdays[line.language].add(day.weekday())
    assert len(LANGUAGES) > 40
    assert all(len(months[language]) == 12 and len(weekdays[language]) == 7 for language in LANGUAGES)


def test_spaces_are_plain_and_single(corpus: dict[str, list[DateLine]]) -> None:
    for line in corpus["train"]:
        assert line.source == " ".join(line.source.split())


def test_a_language_with_its_own_digits_uses_both_kinds(corpus: dict[str, list[DateLine]]) -> None:
    for language, digit in (("fa", "۹"), ("ar-EG", "٩"), ("bn", "৯"), ("mr", "९")):
        sources = [line.source for line in corpus["train"] if line.language == language]
        assert any(digit in source for source in sources)
        assert any("9" in source for source in sources)


def test_no_date_is_written_with_slashes(corpus: dict[str, list[DateLine]]) -> None:
    assert not any("/" in line.source for line in corpus["train"] if line.dates == 1)


def test_turkish_keeps_the_dot_of_its_letters() -> None:
    assert dates._capitals("5 Ekim 2024 Cuma", "tr") == "5 EKİM 2024 CUMA"
    assert dates._small("5 Kasım 2024 SALI", "tr") == "5 kasım 2024 salı"


def test_an_unknown_split_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match='Did you mean "train"'):
        date_lines("trian")  # type: ignore[arg-type]


def test_a_negative_number_of_lines_is_refused() -> None:
    with pytest.raises(InputError, match="lines=-1"):
        date_lines("train", lines=-1)
