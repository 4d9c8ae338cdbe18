"""Regular expressions as automata, against Python's `re`."""

from __future__ import annotations

import random
import re

import pytest

from regard.decode.regex import compile_regex
from regard.decode.terms import contains, term_automaton
from regard.errors import InputError

CHARACTERS = list("abAB01 -.é€x_")
PATTERNS = [
    r"\d{4}-\d\d", r"(a|b)*0?", r"^[^a-b]+$", r"a{2,3}?b{,2}", r"(?i)ab+", r"(?:ab|a)(b|é)*", r".*é.*", r"\w+ \w+", r"",
    r"(a*)*b", r"[]a-]+", r"x{,}", r"\x61€", r"(a|b){0,3}1", r"(?P<one>a)+",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_automaton_accepts_what_python_matches(pattern: str):
    automaton, generator = compile_regex(pattern, CHARACTERS), random.Random(1)
    for _ in range(400):
        text = "".join(generator.choice("ab01 -é€xAB") for _ in range(generator.randrange(6)))
        assert automaton.accepts(text) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)b", "not regular"), (r"(a)\1", "not regular"), ("a++", "possessive"), ("a^b", "not at the end"),
        ("(", "unterminated"), (".*a.{20}", "states"), ("(((a{50}){50}){50})", "repeats too much"),
        ("a" * 3000, "3,000 characters"), ("(" * 150 + ")" * 150, "groups"), ("(?x)a", "flags"),
    ],
)  # fmt: skip
def test_a_pattern_that_is_not_regular_or_too_large_is_refused(pattern: str, why: str):
    with pytest.raises(InputError, match=why):
        compile_regex(pattern, CHARACTERS)


@pytest.mark.parametrize("term", ["ab", "a", "a b", "aab", "é", "C+", "b-"])
@pytest.mark.parametrize("prefix", [False, True])
def test_a_term_is_found_where_python_finds_it(term: str, prefix: bool):
    wanted = term_automaton(term, prefix=prefix)
    forbidden = term_automaton(term, prefix=prefix, forbidden=True)
    generator = random.Random(2)
    for _ in range(1500):
        text = "".join(generator.choice("abé -C+") for _ in range(generator.randrange(8)))
        there = contains(text, term, prefix=prefix)
        assert (wanted.accepts(text), forbidden.accepts(text)) == (there, not there), text


def test_a_character_may_come_as_bytes_of_several_tokens():
    spelled = "é".encode().decode("ascii", "surrogateescape")
    assert compile_regex("aé", ["a", *spelled]).accepts("a" + spelled)
    assert term_automaton("é").accepts(spelled)
