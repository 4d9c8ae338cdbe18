"""Glossaries in documents: terms where the source has them, in any markup, met or marked, and kept over a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.api import LoadedModel
from regard.data.documents import Segment
from regard.data.documents.segments import protect
from regard.decode.document import JOURNAL, Journal, carry_marks, translate_segments
from regard.decode.document_terms import DocumentTerms
from regard.decode.terms import Constraints, Glossary, contains
from regard.errors import InputError
from regard.models import zoo
from tests.small import small

BOOK = "".join(f"<p>The <b>big <i>dog</i></b> sat. Cat {n} ran {{{{x{n}}}}}.</p>\n<pre>dog</pre>\n" for n in range(40))
TERMS = {"big dog": "park", "cat": "mat"}


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return small(zoo.transformer(16, 1, 2), generation_config={"max_new_tokens": 6})


def terms(glossary: dict[str, str], *must_not: str, prefix: bool = False) -> DocumentTerms:
    return DocumentTerms(Glossary(tuple(glossary.items()), prefix), must_not)


def given(sentence: Segment, some: DocumentTerms) -> Constraints:
    return some.constraints(protect(sentence))


def test_a_sentence_has_the_terms_that_occur_in_it_and_not_those_in_its_atoms():
    both = terms({"cat": "Katze", "new york": "NY", "x": "y"}, "Hund")
    assert given(Segment("The Cat sat."), both) == Constraints(("Katze",), (), ("Hund",))
    assert given(Segment("See http://a.b/cat and {{x}}."), both) == Constraints((), (), ("Hund",))
    assert given(Segment("new {{name}} york"), both).must == ()
    assert given(Segment("cats"), terms({"cat": "Katze"}, prefix=True)) == Constraints((), ("Katze",))
    assert given(Segment("İSTANBUL"), terms({"istanbul": "Istanbul"})).must == ("Istanbul",)
    assert given(Segment("ΛΌΓΟΣ"), terms({"λόγος": "word"})).must == ("word",)


def test_a_translation_that_lacks_a_term_or_has_a_forbidden_one_is_marked():
    both = terms({"cat": "Katze"}, "Hund")
    found = translate_segments([Segment("a cat"), Segment("a dog")], lambda texts, _: ["ein Hund"] * 2, terms=both)
    lacking, forbidden = 'the term "Katze" is lacking', 'the term "Hund" is not allowed'
    assert [one.differences for one in found.marked] == [(lacking, forbidden), (forbidden,)]


def test_numbers_of_the_glossary_are_not_repaired_and_not_marked():
    source, target, some = Segment("15 May 2024"), "2024 05 15", terms({"May": "05"})
    turned = torch.eye(3)[[2, 0, 1]]  # the 05 attends to the 15, as if it were wrong
    for steered, text in ((terms({}), "2024 15 14"), (some, "2024 05 14")):
        (found,) = carry_marks([source], [source], ["2024 05 14"], lambda *_: [turned], steered)
        assert found.text == text
    assert not translate_segments([source], lambda *_: [target], terms=some).marked
    (marked,) = translate_segments([source], lambda *_: ["2024 05"], terms=some).marked
    assert marked.differences == ("15 appears nowhere, not once",)


def test_a_number_of_the_glossary_counts_once_per_source_term():
    some = terms({"May": "05"})
    assert not translate_segments([Segment("5 May")], lambda *_: ["05 05"], terms=some).marked
    (marked,) = translate_segments([Segment("5 May")], lambda *_: ["05"], terms=some).marked
    assert marked.differences == ("5 appears nowhere, not once",)


def test_a_term_with_nested_tags_inside_is_met_and_keeps_its_tags(model: LoadedModel):
    plain = model.translate_document(BOOK, kind="html")
    found = model.translate_document(BOOK, kind="html", glossary=TERMS)
    assert not contains(plain.text, "park")
    lines = [line for line in found.text.splitlines() if line.startswith("<p>")]
    for number, line in enumerate(lines):
        text = line.replace("<b>", "").replace("</b>", "").replace("<i>", "").replace("</i>", "")
        assert contains(text, "park")
        assert contains(text, "mat")
        assert [line.count(tag) for tag in ("<b>", "<i>", "</i>", "</b>", f"{{{{x{number}}}}}")] == [1] * 5
        assert line.index("<b>") <= line.index("<i>") < line.index("</i>") <= line.index("</b>")
    assert found.text.count("<pre>dog</pre>") == 40
    assert not any("term" in said for one in found.marked for said in one.differences)


def test_a_sentence_that_cannot_have_its_term_keeps_its_own_translation_and_is_marked(model: LoadedModel):
    text = "The cat sat. The dog ran.\n"
    plain = model.translate_document(text, kind="text")
    found = model.translate_document(text, kind="text", glossary={"dog": "漢字"})
    assert found.text == plain.text
    assert [(one.source, *one.differences) for one in found.marked] == [("The dog ran.", 'the term "漢字" is lacking')]


def test_no_sentence_has_a_forbidden_term(model: LoadedModel):
    text = "The cat sat. The dog ran. A cat played.\n"
    words = model.translate_document(text, kind="text").text.split()
    word = next(word for word in words if word.isalpha())
    found = model.translate_document(text, kind="text", must_not=[word])
    assert not contains(found.text, word)
    assert not found.marked


class Killed(Exception):
    """The end of a process, in a test."""


def test_a_resumed_translation_keeps_the_glossary_and_another_one_begins_anew(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.html").write_text(BOOK)
    source, out, unbroken = tmp_path / "a.html", tmp_path / "b.html", tmp_path / "c.html"
    model.translate_document(source, unbroken, glossary=TERMS)
    translated, add = list[str](), Journal.add

    def fail_second(journal: Journal, sentences, translations) -> None:
        if journal.found:
            raise Killed
        add(journal, sentences, translations)

    lines = LoadedModel._lines

    def counting(self: LoadedModel, options, texts: list[str], constraints) -> list[str]:
        translated.extend(texts)
        return lines(self, options, texts, constraints)

    def killed(glossary: dict[str, str]) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "add", fail_second)
            with pytest.raises(Killed):
                model.translate_document(source, out, glossary=glossary)
        kept = out.with_name(out.name + JOURNAL).read_text()
        return kept.splitlines()

    monkeypatch.setattr(LoadedModel, "_lines", counting)
    begun = killed(TERMS)
    assert len(begun) == 2
    assert killed({"big dog": "mat"}) != begun
    killed(TERMS)
    translated.clear()
    model.translate_document(source, out, glossary=TERMS)
    assert "Cat 1 ran {{x1}}." not in translated
    assert "Cat 39 ran {{x39}}." in translated
    assert out.read_bytes() == unbroken.read_bytes()


def test_a_glossary_is_lines_of_two_columns(tmp_path: Path):
    path = tmp_path / "terms.tsv"
    path.write_bytes("\ufeffcat\t Katze \r\n\r\nbig\u2028dog\tHund\r\n".encode())
    assert Glossary.read(path).terms == (("cat", "Katze"), ("big\u2028dog", "Hund"))
    for content, message in (
        ("", "holds no pair of terms"), ("\n \n", "holds no pair of terms"), ("a\tb\tc\n", "line 1 is no pair"),
        ("a\tb\na b\n", "line 2 is no pair"), ("a\tb\na\tc\n", 'line 2 gives "a" a second'),
    ):  # fmt: skip
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            Glossary.read(path)


@pytest.mark.parametrize("glossary", [{"cat": ""}, {" cat": "x"}, {"cat": 3}])
def test_what_is_no_term_is_refused(model: LoadedModel, glossary):
    with pytest.raises(InputError, match="glossary"):
        model.translate_document("The cat sat.", kind="text", glossary=glossary)
    with pytest.raises(InputError, match="must_not takes a list"):
        model.translate_document("The cat sat.", kind="text", must_not="cat")
