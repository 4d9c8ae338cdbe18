"""An embedded corpus: dates written out in 50 languages, and what they are in ISO 8601.

    mercredi 15 mars 1995                  1995-03-15
    2. lokakuuta 2031 ja 7. kesäkuuta 1904 2031-10-02 1904-06-07

Seven lines in ten hold one date, the others two to five of one language. A date is written as its language writes it
at several widths, with and without the weekday, here and there in capitals, in small letters or without points, and
where the language has digits of its own, with those or with Latin ones. Years run from 1900 to 2099, always Gregorian.

A written date means one day, whatever the language: "15 lis 2024" is in November for a Pole and in October for a
Croat, so it is left out, and so are numbers between slashes. Which split a day of the calendar belongs to is decided
by a hash of the day, so no day of `valid` or `test` is ever seen in `train`, in any language.

The patterns and names are those of the Unicode CLDR (Unicode License v3), which Babel (BSD) carries; nothing is
downloaded, and with the same Babel the lines are the same on every machine.
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

from regard.data.draws import Split, require_split, split_of
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
_JOINS = (", ", "; ", " / ")


@dataclass(frozen=True)
class DateLine:
    """One line of the corpus: `dates` dates written in a language, and the same in ISO 8601 between spaces."""

    source: str
    target: str
    language: str
    dates: int


def date_lines(split: Split, *, lines: int | None = None, seed: int = 1) -> list[DateLine]:
    """The first `lines` lines of a split (40,000 train, 1,000 valid, 2,000 test); another seed draws other lines."""
    require_split(split)
    wanted = _SIZES[split] if lines is None else lines
    if wanted < 0:
        raise InputError(f"lines={lines} is below zero; ask for 0 or more, or leave it out for {_SIZES[split]:,}.")
    draw = Random(f"dates {split} {seed}")
    return [_draw_line(draw, _days(split)) for _ in range(wanted)]


def _draw_line(draw: Random, days: Sequence[date]) -> DateLine:
    """One line: a language, how many dates, a phrasing they share, and the days."""
    language = _pick(draw, LANGUAGES)
    dates = 1 if draw.random() < 0.7 else _pick(draw, range(2, 6))
    while True:
        phrasing, manner = _pick(draw, _phrasings(language)), _pick(draw, _MANNERS)
        chosen = [_pick(draw, days) for _ in range(dates)]
        texts = [manner(phrasing.write(day), language) for day in chosen]
        if _ambiguous_shapes().isdisjoint(map(_shape, texts)):
            break
    target = " ".join(day.isoformat() for day in chosen)
    return DateLine(_join(draw, texts, language), target, language, dates)


def _join(draw: Random, texts: list[str], language: str) -> str:
    """Several dates as one text, half of the time as the language joins a list: "a, b and c"."""
    if draw.random() < 0.5:
        return format_list(texts, "standard", locale=_locale(language)).replace("\u00a0", " ")
    return _pick(draw, _JOINS).join(texts)


def _pick(draw: Random, options: Sequence[T]) -> T:
    """One of the options; `random()` alone is promised to give the same numbers in every version of Python."""
    return options[int(draw.random() * len(options))]


@functools.cache
def _days(split: Split) -> tuple[date, ...]:
    """The days of the calendar that belong to a split."""
    first, end = date(_YEARS.start, 1, 1), date(_YEARS.stop, 1, 1)
    days = (first + timedelta(days=count) for count in range((end - first).days))
    return tuple(day for day in days if split_of(day.isoformat()) == split)


@dataclass(frozen=True)
class _Phrasing:
    """One way to write a date: a template like "%(d)s. %(MMMM)s %(y)s" and the words of each of its fields."""

    template: str
    words: Mapping[str, Mapping[int, str]]

    def write(self, day: date) -> str:
        """The day in words."""
        return self.template % {field: words[_PARTS[field[0]](day)] for field, words in self.words.items()}


# The part of a date that a CLDR field shows, by the letter of the field.
_PARTS: dict[str, Callable[[date], int]] = {
    "G": lambda day: 0,
    "y": lambda day: day.year,
    "M": lambda day: day.month,
    "d": lambda day: day.day,
    "E": date.weekday,
    "c": date.weekday,
}

# Short names that CLDR takes from the long ones. Babel keeps such a loan where all locales share it, so that another
# locale read before in this process can change it; we ask for the long name.
_LOANS = {
    ("ar-EG", "E"): "EEEE",
    ("ar-EG", "MMM"): "MMMM",
    ("fa", "E"): "EEEE",
    ("ko", "MMM"): "MMMM",
    ("sw", "E"): "EEEE",
}

# Days that together show every value of every part: 31 days of a month, 12 months, 200 years.
_SHOWN = (
    *(date(2000, 1, day) for day in range(1, 32)),
    *(date(2000, month, 1) for month in range(1, 13)),
    *(date(year, 1, 1) for year in _YEARS),
)


@functools.cache
def _locale(language: str) -> Locale:
    return Locale.parse(language, sep="-")


@functools.cache
def _phrasings(language: str) -> tuple[_Phrasing, ...]:
    """Every phrasing of a language, in Latin digits and in its own."""
    zeros = dict.fromkeys(("0", _ZEROS.get(_locale(language).default_numbering_system, "0")))
    return tuple(_phrasing(language, pattern, zero) for zero in zeros for pattern in _patterns(language))


def _patterns(language: str) -> list[str]:
    """The CLDR patterns of a language, but for slashes, between which the month comes first here and second there."""
    locale = _locale(language)
    patterns = [locale.date_formats[width].pattern for width in _WIDTHS]
    patterns += [locale.datetime_skeletons[name].pattern for name in _SKELETONS if name in locale.datetime_skeletons]
    return [pattern.replace("\u202f", " ") for pattern in dict.fromkeys(patterns) if "/" not in pattern]


def _phrasing(language: str, pattern: str, zero: str) -> _Phrasing:
    """A CLDR pattern as a phrasing, with the digits that start at `zero`."""
    digits = {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}
    template = str(parse_pattern(pattern).format)
    words = {
        field: {value: word.translate(digits) for value, word in _field_words(language, field).items()}
        for field in re.findall(r"%\((\w+)\)s", template)
    }
    return _Phrasing(template, words)


@functools.cache
def _field_words(language: str, field: str) -> dict[int, str]:
    """What Babel writes for each value of a field, as {3: "March"} for MMMM."""
    part = _PARTS[field[0]]
    days = {part(day): day for day in _SHOWN}
    lender = _LOANS.get((language, field), field)
    return {value: DateTimeFormat(day, _locale(language))[lender] for value, day in days.items()}


def _plain(text: str, _: str) -> str:
    return text


def _bare(text: str, _: str) -> str:
    """Without commas, and without the dots that end an ordinal or the line: "Freitag 1 März 2024"."""
    return re.sub(r"[,،፣]|\.(?= \D|$)", "", text)


def _small(text: str, language: str) -> str:
    return text.replace("I", "ı").replace("İ", "i").lower() if language == "tr" else text.lower()


def _capitals(text: str, language: str) -> str:
    """Capitals, but for Greek, which drops its accents in them, and Georgian, which hardly uses them."""
    if language in ("el", "ka"):
        return text
    return text.replace("i", "İ").upper() if language == "tr" else text.upper()


_MANNERS = (_plain, _plain, _plain, _plain, _plain, _bare, _small, _capitals)


@functools.cache
def _ambiguous_shapes() -> frozenset[str]:
    """The shapes that two phrasings, of whatever languages, read differently."""
    readings = defaultdict(set)
    for language in LANGUAGES:
        for phrasing in _phrasings(language):
            for day in _telling_days(phrasing):
                text = phrasing.write(day)
                for manner in dict.fromkeys(_MANNERS):
                    written = manner(text, language)
                    readings[_shape(written)].add(_reading(written, day.month))
    return frozenset(shape for shape, several in readings.items() if len(several) > 1)


def _telling_days(phrasing: _Phrasing) -> list[date]:
    """Every month, with every weekday if the phrasing shows it, at days whose numbers are no month's."""
    weekday = any(field[0] in "Ec" for field in phrasing.words)
    return [date(2000, month, day) for month in range(1, 13) for day in range(13, 20 if weekday else 14)]


def _shape(text: str) -> str:
    """The text with every day and every month's number as #, every year as ##."""
    return re.sub(r"\d{1,2}", "#", text)


def _reading(text: str, month: int) -> tuple[str, int]:
    """What the numbers of a telling day stand for, in order, and the month, unless a number says it."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    roles = "".join("y" if number > 31 else "d" if number > 12 else "m" for number in numbers)
    return roles, 0 if "m" in roles else month
