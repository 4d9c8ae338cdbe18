"""The embedded corpus "dates": dates in 50 languages, to be translated into ISO 8601.

    mercredi 15 mars 1995                  1995-03-15
    2. lokakuuta 2031 ja 7. kesäkuuta 1904 2031-10-02 1904-06-07

Seven lines in ten have one date, the others two to five of one language. A date is written in the formats of its
language, short and long, with and without the weekday; some are in capitals, in small letters or without punctuation;
in languages with digits of their own, with these or with Latin digits. Years are from 1900 to 2099, Gregorian.

Every source has one meaning in all languages: "15 lis 2024" is in November in Polish and in October in Croatian, so it
is left out, and so are numbers between slashes. The split of a day of the calendar is decided by a hash of the day, so
no day of `valid` or `test` occurs in `train`, in any language.

Patterns and names are those of the Unicode CLDR (Unicode License v3) in Babel (BSD); nothing is downloaded, and with
the same version of Babel the lines are the same on every machine.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import TypeVar

from babel import Locale
from babel.dates import DateTimeFormat, parse_pattern
from babel.lists import format_list

from regard.data.corpora import Split, require_split, split_of
from regard.errors import InputError

T = TypeVar("T")

_TAGS = (
    "am ar-EG bg bn ca cs cy da de el en en-GB es et eu fa fi fr ga he hi hr hu hy id is it ja ka ko lt lv mr nb nl pl "
    "pt ro ru sk sl sq sr sv sw ta th tr uk vi zh"
)
LANGUAGES = tuple(_TAGS.split())

_SIZES: dict[Split, int] = {"train": 40_000, "valid": 1_000, "test": 2_000}
_YEARS = range(1900, 2100)
_WIDTHS = ("full", "long", "medium")
_SKELETONS = ("yMMMd", "yMMMEd", "yMMMMd", "yMMMMEd", "yMMMMEEEEd")
_ZEROS = {"arab": "٠", "arabext": "۰", "beng": "০", "deva": "०"}
_SEPARATORS = (", ", "; ", " / ")


@dataclass(frozen=True)
class DateLine:
    """One line of the corpus: `dates` dates written in a language, and the same in ISO 8601 between spaces."""

    source: str
    target: str
    language: str
    dates: int


def date_lines(split: Split, *, lines: int | None = None, seed: int = 1) -> list[DateLine]:
    """The first `lines` lines of a split (40,000 train, 1,000 valid, 2,000 test); another seed gives other lines."""
    require_split(split)
    wanted = _SIZES[split] if lines is None else lines
    if wanted < 0:
        raise InputError(f"lines={lines} is negative. Use 0 or more, or leave it out for {_SIZES[split]:,}.")
    random = Random(f"dates {split} {seed}")
    return [_random_line(random, _days(split)) for _ in range(wanted)]


def _random_line(random: Random, days: Sequence[date]) -> DateLine:
    """One line: a language, a number of dates, a format and a variant for all of them, and the days."""
    language = _choose(random, LANGUAGES)
    dates = 1 if random.random() < 0.7 else _choose(random, range(2, 6))
    while True:
        form, variant = _choose(random, _formats(language)), _choose(random, _VARIANTS)
        chosen = [_choose(random, days) for _ in range(dates)]
        texts = [variant(form.write(day), language) for day in chosen]
        if _ambiguous_shapes().isdisjoint(map(_shape, texts)):
            break
    target = " ".join(day.isoformat() for day in chosen)
    return DateLine(_join_dates(random, texts, language), target, language, dates)


def _join_dates(random: Random, texts: list[str], language: str) -> str:
    """Several dates as one text, half of the time as the language joins a list: "a, b and c"."""
    if random.random() < 0.5:
        return format_list(texts, "standard", locale=_locale(language)).replace("\u00a0", " ")
    return _choose(random, _SEPARATORS).join(texts)


def _choose(random: Random, options: Sequence[T]) -> T:
    """One of the options; only `random()` gives the same numbers in every version of Python."""
    return options[int(random.random() * len(options))]


@functools.cache
def _days(split: Split) -> tuple[date, ...]:
    """The days of the calendar that belong to a split."""
    first, end = date(_YEARS.start, 1, 1), date(_YEARS.stop, 1, 1)
    days = (first + timedelta(days=count) for count in range((end - first).days))
    return tuple(day for day in days if split_of(day.isoformat()) == split)


@dataclass(frozen=True)
class _DateFormat:
    """A date format: a template like "%(d)s. %(MMMM)s %(y)s" and the words of each of its fields."""

    template: str
    words: Mapping[str, Mapping[int, str]]

    def write(self, day: date) -> str:
        """The date in this format."""
        return self.template % {field: words[_FIELD_VALUES[field[0]](day)] for field, words in self.words.items()}


# The value of a CLDR field for a date, by the letter of the field.
_FIELD_VALUES: dict[str, Callable[[date], int]] = {
    "G": lambda day: 0,
    "y": lambda day: day.year,
    "M": lambda day: day.month,
    "d": lambda day: day.day,
    "E": date.weekday,
    "c": date.weekday,
}

# Short names that CLDR aliases to the long ones. Babel resolves such an alias in data that all locales share, so a
# locale that was loaded before can change it; we use the long name.
_ALIASES = {
    ("ar-EG", "E"): "EEEE",
    ("ar-EG", "MMM"): "MMMM",
    ("fa", "E"): "EEEE",
    ("ko", "MMM"): "MMMM",
    ("sw", "E"): "EEEE",
}

# Days that together have every value of every field: 31 days of a month, 12 months, 200 years.
_EXAMPLE_DAYS = (
    *(date(2000, 1, day) for day in range(1, 32)),
    *(date(2000, month, 1) for month in range(1, 13)),
    *(date(year, 1, 1) for year in _YEARS),
)


@functools.cache
def _locale(language: str) -> Locale:
    return Locale.parse(language, sep="-")


@functools.cache
def _formats(language: str) -> tuple[_DateFormat, ...]:
    """Every format of a language, in Latin digits and in its own."""
    zeros = dict.fromkeys(("0", _ZEROS.get(_locale(language).default_numbering_system, "0")))
    return tuple(_format(language, pattern, zero) for zero in zeros for pattern in _patterns(language))


def _patterns(language: str) -> list[str]:
    """The CLDR patterns of a language without slashes, with which the order of day and month is ambiguous."""
    locale = _locale(language)
    patterns = [locale.date_formats[width].pattern for width in _WIDTHS]
    patterns += [locale.datetime_skeletons[name].pattern for name in _SKELETONS if name in locale.datetime_skeletons]
    return [pattern.replace("\u202f", " ") for pattern in dict.fromkeys(patterns) if "/" not in pattern]


def _format(language: str, pattern: str, zero: str) -> _DateFormat:
    """A CLDR pattern as a format, with the digits that start at `zero`."""
    digits = {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}
    template = str(parse_pattern(pattern).format)
    words = {
        field: {value: word.translate(digits) for value, word in _field_words(language, field).items()}
        for field in re.findall(r"%\((\w+)\)s", template)
    }
    return _DateFormat(template, words)


@functools.cache
def _field_words(language: str, field: str) -> dict[int, str]:
    """Babel's text for each value of a field, as {3: "March"} for MMMM."""
    value_of = _FIELD_VALUES[field[0]]
    days = {value_of(day): day for day in _EXAMPLE_DAYS}
    alias = _ALIASES.get((language, field), field)
    return {value: DateTimeFormat(day, _locale(language))[alias] for value, day in days.items()}


def _plain(text: str, _: str) -> str:
    return text


def _unpunctuated(text: str, _: str) -> str:
    """Without commas, and without the dots after ordinals and at the end: "Freitag 1 März 2024"."""
    return re.sub(r"[,،፣]|\.(?= \D|$)", "", text)


def _small(text: str, language: str) -> str:
    return text.replace("I", "ı").replace("İ", "i").lower() if language == "tr" else text.lower()


def _capitals(text: str, language: str) -> str:
    """Capitals, except in Greek, where they lose their accents, and in Georgian, where they are rare."""
    if language in ("el", "ka"):
        return text
    return text.replace("i", "İ").upper() if language == "tr" else text.upper()


_VARIANTS = (_plain, _plain, _plain, _plain, _plain, _unpunctuated, _small, _capitals)


@functools.cache
def _ambiguous_shapes() -> frozenset[str]:
    """The shapes that have different meanings in two formats of any languages."""
    meanings = defaultdict(set)
    for language in LANGUAGES:
        for form in _formats(language):
            for day in _test_days(form):
                text = form.write(day)
                for variant in dict.fromkeys(_VARIANTS):
                    written = variant(text, language)
                    meanings[_shape(written)].add(_meaning(written, day.month))
    return frozenset(shape for shape, several in meanings.items() if len(several) > 1)


def _test_days(form: _DateFormat) -> list[date]:
    """Days of every month, of every weekday if the format has it, with numbers above 12, which are no month."""
    weekday = any(field[0] in "Ec" for field in form.words)
    return [date(2000, month, day) for month in range(1, 13) for day in range(13, 20 if weekday else 14)]


def _shape(text: str) -> str:
    """The text with # for every number of a day or month, ## for every year."""
    return re.sub(r"\d{1,2}", "#", text)


def _meaning(text: str, month: int) -> tuple[str, int]:
    """What the numbers of a test day stand for, in order, and the month, unless it is a number."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    roles = "".join("y" if number > 31 else "d" if number > 12 else "m" for number in numbers)
    return roles, 0 if "m" in roles else month
