"""The embedded corpus "languages": short texts in 63 languages, each labelled with the code of its language.

    vor 12 Tagen; Isländisch oder Samoanisch         de
    Malta, Suriname et îles Féroé, 7 mètres par seconde      fr

A text is one to three phrases: names of countries, languages, currencies and scripts, amounts with their units, times
before or after now, dates. Some are in small letters. Names, units and days of `valid` and `test` do not occur in
`train`, in any language. These are words but no sentences; a detector for real sentences is better trained on some
(docs/data.md).

Patterns and names are those of the Unicode CLDR (Unicode License v3) in Babel (BSD); nothing is downloaded, and with
the same version of Babel the lines are the same on every machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Literal, TypeVar

from babel import Locale
from babel.dates import format_date, format_timedelta
from babel.lists import format_list
from babel.units import format_unit

from regard.data.corpora import Split, require_split, split_of
from regard.errors import InputError

T = TypeVar("T")

_CODES = (
    "af am ar az be bg bn ca cs cy da de el en eo es et eu fa fi fil fr ga gl he hi hr hu hy id is it ja ka kk ko ky "
    "lt lv mk mn mr ms nb nl pl pt ro ru sk sl sq sr sv sw ta th tr uk ur uz vi zh"
)
LANGUAGES = tuple(_CODES.split())

_SIZES: dict[Split, int] = {"train": 60_000, "valid": 1_500, "test": 3_000}
_SEPARATORS = (", ", ". ", "; ", " – ", " ")
_LIST_STYLES: tuple[Literal["standard", "or"], ...] = ("standard", "or")
_Unit = Literal["year", "month", "week", "day", "hour", "minute"]
_SECONDS: dict[_Unit, int] = {
    "year": 31_536_000,
    "month": 2_592_000,
    "week": 604_800,
    "day": 86_400,
    "hour": 3_600,
    "minute": 60,
}
_DATE_WIDTHS = ("full", "long")


@dataclass(frozen=True)
class LanguageLine:
    """One line of the corpus: a text and the code of its language."""

    text: str
    language: str


def language_lines(split: Split, *, lines: int | None = None, seed: int = 1) -> list[LanguageLine]:
    """The first `lines` lines of a split (60,000 train, 1,500 valid, 3,000 test); another seed gives other lines."""
    require_split(split)
    wanted = _SIZES[split] if lines is None else lines
    if wanted < 0:
        raise InputError(f"lines={lines} is negative. Use 0 or more, or leave it out for {_SIZES[split]:,}.")
    random = Random(f"languages {split} {seed}")
    return [_random_line(random, split) for _ in range(wanted)]


def _random_line(random: Random, split: Split) -> LanguageLine:
    """One line: a language, one to three phrases, and how they are joined."""
    language = _choose(random, LANGUAGES)
    phrases = [_choose(random, _PHRASES)(random, language, split) for _ in range(_choose(random, (1, 1, 2, 2, 3)))]
    text = _choose(random, _SEPARATORS).join(phrases)
    text = text.lower() if random.random() < 0.3 else text[:1].upper() + text[1:]
    return LanguageLine(re.sub(r"\s+", " ", text), language)


def _name_list(random: Random, language: str, split: Split) -> str:
    """Two to five names of any kinds as a list of the language: "Malta, Latein und Rupien"."""
    names = [_choose(random, _names(language, split)) for _ in range(_choose(random, (2, 2, 3, 4, 5)))]
    return str(format_list(names, _choose(random, _LIST_STYLES), locale=_locale(language)))


def _amount(random: Random, language: str, split: Split) -> str:
    """A number with a unit, written out: "7 Kilometer pro Stunde"."""
    unit, number = _choose(random, _units(language, split)), _number(random)
    return str(format_unit(number, unit, "long", locale=_locale(language)))


def _relative_time(random: Random, language: str, split: Split) -> str:
    """A time before or after now: "vor 3 Wochen"."""
    unit, number = _drawn(split, lambda: (_choose(random, tuple(_SECONDS)), _number(random)))
    delta = timedelta(seconds=_SECONDS[unit] * number * _choose(random, (1, -1)))
    return str(format_timedelta(delta, unit, threshold=1e9, add_direction=True, locale=_locale(language)))


def _date(random: Random, language: str, split: Split) -> str:
    """A date with the name of its month, often with that of its weekday."""
    day = _drawn(split, lambda: date(1900, 1, 1) + timedelta(days=int(random.random() * 73_049)))
    return str(format_date(day, _choose(random, _DATE_WIDTHS), locale=_locale(language)))


def _drawn(split: Split, draw: Callable[[], T]) -> T:
    """The first of what is drawn that belongs to a split."""
    while split_of(str(found := draw())) != split:
        pass
    return found


_PHRASES: tuple[Callable[[Random, str, Split], str], ...] = (
    _name_list, _name_list, _name_list, _amount, _relative_time, _date,
)  # fmt: skip


def _number(random: Random) -> int:
    """A number from 1 to 999, most often a small one."""
    return 1 + int(random.random() ** 4 * 999)


@functools.cache
def _names(language: str, split: Split) -> tuple[str, ...]:
    """The names of countries, languages, currencies and scripts that belong to a split, in a language."""
    locale = _locale(language)
    kinds: dict[str, Mapping[str, str]] = {
        "territory": locale.territories, "language": locale.languages, "currency": locale.currencies,
        "script": locale.scripts,
    }  # fmt: skip
    found = (kinds[kind][key] for kind in kinds for key in sorted(kinds[kind]) if split_of(f"{kind} {key}") == split)
    # A language and its script may have the same name.
    known = () if split == "train" else frozenset(_names(language, "train"))
    return tuple(name for name in dict.fromkeys(found) if re.search(r"[^\W\d]", name) and name not in known)


@functools.cache
def _units(language: str, split: Split) -> tuple[str, ...]:
    """The units that belong to a split and that Babel writes out in a language."""
    patterns = _locale(language)._data["unit_patterns"]
    written = (unit for unit in sorted(patterns) if "other" in patterns[unit].get("long", {}))
    return tuple(unit for unit in written if split_of(f"unit {unit}") == split)


@functools.cache
def _locale(language: str) -> Locale:
    return Locale.parse(language)


def _choose(random: Random, options: Sequence[T]) -> T:
    """One of the options; only `random()` gives the same numbers in every version of Python."""
    return options[int(random.random() * len(options))]
