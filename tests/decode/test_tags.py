"""Inline tags, atoms and numbers carried over: well-formed, each exactly once, and at the place attention says."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.documents import Mark, Segment, read_document
from regard.data.documents.segments import protect
from regard.data.tokenize.tokenizer import text_units
from regard.decode.document import carry_marks, translate_sentences
from regard.decode.tags import (
    diagonal,
    differences,
    find_atoms,
    find_numbers,
    insert_atoms,
    place_marks,
    repair_numbers,
    without_atoms,
)


def html(text: str) -> Segment:
    (segment,) = read_document(f"<p>x {text} x</p>", "html").segments
    return protect(segment)


def reversing(source: str) -> torch.Tensor:
    """The attention of a translation that writes the units of its source from the last to the first."""
    return torch.eye(len(text_units(source)))[range(len(text_units(source)) - 1, -1, -1)]


def reverse(segment: Segment) -> Segment:
    """A translation that reverses the units."""
    units = [segment.text[slice(*unit)] for unit in text_units(segment.text)]
    target = " ".join(reversed(units))
    return place_marks(segment, target, reversing(segment.text), find_atoms(segment, target))


def test_a_pair_surrounds_the_units_that_attend_to_what_it_surrounded():
    assert reverse(html("a <b>c <i>d</i> e</b> f")).write(str) == "x f <b>e <i>d</i> c</b> a x"
    assert reverse(html("a <b>c</b> <i>d</i>")).write(str) == "x <i>d</i> <b>c</b> a x"


def test_a_point_stands_between_the_units_that_were_its_neighbours():
    assert reverse(html("a <img>b")).write(str) == "x b <img>a x"
    assert reverse(html("<b>a <img> b</b>")).write(str) == "x <b>b <img> a</b> x"


def test_a_span_without_an_aligned_unit_still_surrounds_something():
    segment = html("a <b>c</b>")
    placed = place_marks(segment, "y z", torch.zeros(2, len(text_units(segment.text))))
    assert re.search(r"<b>\w</b>", placed.write(str))


def test_a_pair_that_another_sentence_closes_reaches_to_the_end():
    opened = Segment("a b c", (Mark(2, "<b>", "open", 0),))
    closed = Segment("a b c", (Mark(3, "</b>", "close", 0),))
    identity = torch.eye(3)
    assert place_marks(opened, "u v w", identity).write(str) == "u <b>v w"
    assert place_marks(closed, "u v w", identity).write(str) == "u v</b> w"
    crossed = torch.tensor([[0, 0, 1.0], [1, 0, 0], [0, 1, 0]])
    assert place_marks(opened, "u v w", crossed).write(str) in ("u v <b>w", "<b>u v w")


def test_an_atom_stands_where_its_text_is():
    segment = html("see {{name}} and <code>f(x)</code>")
    target = "X f(x) und {{name}} X"
    placed = place_marks(segment, target, diagonal(segment.text, target), find_atoms(segment, target))
    assert placed.write(str) == "X <code>f(x)</code> und {{name}} X"
    assert find_atoms(segment, "X f(x) X") is None
    assert find_atoms(segment, "X f(x) {{name}} {{name}} X") is None


def test_an_atom_that_is_lost_is_put_back_between_spaces():
    segment = protect(Segment("Hello {{name}}, welcome to http://a.b/c!"))
    bare = without_atoms(segment)
    assert bare.text == "Hello, welcome to!"
    placed = insert_atoms(place_marks(bare, "HALLO, WILLKOMMEN BEI!", torch.eye(5)), segment)
    assert placed.text == "HALLO {{name}}, WILLKOMMEN BEI http://a.b/c!"
    assert not differences(segment, placed)


def test_a_translation_that_loses_atoms_is_made_again_without_them():
    seen: list[str] = []

    def deaf(texts: list[str], _: object) -> list[str]:
        seen.extend(texts)
        return [re.sub(r"[^\w\s,.]", "", text).upper() for text in texts]

    (found,) = translate_sentences([protect(Segment("hi {{x}} there"))], deaf)
    assert (found.write(str), seen) == ("HI {{x}} THERE", ["hi {{x}} there", "hi there"])


def test_a_wrong_number_is_replaced_by_the_one_it_attends_to():
    assert repair_numbers("in 1995 3 men", "3 men in 1959", torch.eye(4)[[2, 3, 0, 1]]) == "3 men in 1995"
    assert repair_numbers("a 5 b", "a b c", torch.eye(3)) == "a b c"
    assert [value for *_, value in find_numbers("1,000 and 1.000 ٣ 05")] == [1000, 1000, 3, 5]


def test_what_differs_is_said():
    source = protect(Segment("5 men {{x}}"))
    assert differences(source, Segment("men {{x}} {{x}}")) == (
        "5 appears nowhere, not once", "{{x}} appears twice, not once", "a tag is lost or doubled",
    )  # fmt: skip


def test_an_unchanged_text_keeps_its_marks():
    segment = html("a <b>c</b> {{d}}")
    assert carry_marks([segment], [segment], [segment.text], None) == [segment]


PIECES = st.lists(
    st.sampled_from(["<b>", "</b>", "<i>", "</i>", "<img>", "{{x}}", "{{y}}", "word", "a", "7", ".", " ", " "]),
    max_size=14,
)


@settings(max_examples=400, deadline=None)
@given(PIECES, st.randoms(use_true_random=False))
def test_every_tag_appears_exactly_once_and_nests(pieces, random):
    for segment in map(protect, read_document(f"<p>x {''.join(pieces)} x</p>", "html").segments):
        words = segment.text.split()
        random.shuffle(words)
        target = " ".join(words)
        atoms = find_atoms(segment, target)
        source = segment if atoms is not None else without_atoms(segment)
        weights = torch.rand(len(text_units(target)), len(text_units(source.text)))
        weights *= weights > random.random()
        placed = place_marks(source, target, weights, atoms)
        placed = placed if atoms is not None else insert_atoms(placed, segment)
        assert Counter(mark.written for mark in placed.marks) == Counter(mark.written for mark in segment.marks)
        opened: list[int] = []
        for mark in placed.marks:
            if mark.kind == "open":
                opened.append(mark.pair)
            elif mark.kind == "close":
                assert opened.pop() == mark.pair
        assert not opened
        places = [mark.at for mark in placed.marks]
        assert places == sorted(places)
        assert re.sub(r"<[^<>]*>|\s", "", placed.write(str)) == "".join(placed.text.split())


def test_units_are_words_signs_and_unspaced_characters():
    assert [text[slice(*unit)] for text in ["Né, e\u0301t 3x.", "日本go", "हिन्दी"] for unit in text_units(text)] == [
        "Né", ",", "e\u0301t", "3x", ".", "日", "本", "go", "हिन्दी",
    ]  # fmt: skip


@pytest.mark.parametrize("texts", [("", ""), ("a b", "c"), ("a", "")])
def test_the_diagonal_has_a_row_per_unit(texts):
    assert diagonal(*texts).shape == (len(text_units(texts[1])), len(text_units(texts[0])))
