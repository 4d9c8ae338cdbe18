"""Documents: identity gives back the same bytes, and a translation that was killed is resumed to the same result."""

from __future__ import annotations

import io
import os
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.api import LoadedModel
from regard.data.documents import Segment, read_document
from regard.decode.document import JOURNAL, open_document, open_journal, translate_segments
from regard.errors import DamagedFile, InputError
from regard.models import zoo
from regard.store.loading import TRAINED_LENGTH
from tests.data.test_documents import KINDS, MARKDOWN, PAGE, SOUP, SUBTITLES
from tests.small import WORDPIECE, small

BOOK = "".join(f"<p>The cat sat on <b>mat {n}</b>. A dog {{{{x{n}}}}} ran. A dog ran.</p>\n" for n in range(40))


def shout(texts: list[str], _constraints: object = ()) -> list[str]:
    return [text.upper() for text in texts]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return small(zoo.transformer(16, 1, 2), config={TRAINED_LENGTH: 24}, generation_config={"max_new_tokens": 6})


@settings(max_examples=300, deadline=None)
@given(SOUP | st.text(max_size=60), st.sampled_from(KINDS))
def test_the_identity_gives_back_every_byte(text, kind):
    document = read_document(text, kind)
    found = translate_segments(document.segments, lambda texts, _: texts)
    assert document.render(found.segments) == text
    assert not found.marked


def test_sentences_are_translated_once_and_in_batches():
    seen: list[str] = []

    def translate(texts: list[str], _: object) -> list[str]:
        seen.extend(texts)
        return shout(texts)

    document = read_document("One two. Three?  Four\n\nOne two.\n…\n", "text")
    found = translate_segments(document.segments, translate)
    assert document.render(found.segments) == "ONE TWO. THREE?  FOUR\n\nONE TWO.\n…\n"
    assert (seen, found.sentences) == (["One two.", "Three?", "Four"], 3)


def test_tags_that_span_sentences_stay_paired():
    document = read_document("<p>One <b>two. Three four. Five</b> six.</p>", "html")
    found = translate_segments(document.segments, shout)
    assert document.render(found.segments) == "<p>ONE <b>TWO. THREE FOUR. FIVE</b> SIX.</p>"


def test_a_sentence_to_look_at_is_marked():
    found = translate_segments([Segment("It costs 5 marks.")], lambda texts, _: ["Es kostet 6 Mark."] * len(texts))
    assert [one.differences for one in found.marked] == [("5 appears nowhere, not once",)]


class Killed(Exception):
    """The end of a process, in a test."""


@pytest.mark.parametrize("torn", [0, 1, 7])
def test_a_killed_translation_is_resumed_to_the_same_result(tmp_path: Path, torn: int):
    document, out = read_document(BOOK, "html"), tmp_path / "out.html"
    whole = translate_segments(document.segments, shout)
    journal, calls = out.with_name(out.name + JOURNAL), 0

    def failing(texts: list[str], _: object) -> list[str]:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise Killed
        return shout(texts)

    for attempt in range(20):
        try:
            with open_journal(out, "key") as finished:
                found = translate_segments(document.segments, failing, journal=finished)
            break
        except Killed:
            size = journal.stat().st_size
            os.truncate(journal, size - torn if attempt == 0 else size)
    assert found == whole
    assert attempt > 1
    assert not journal.exists()


def test_a_flipped_byte_of_a_journal_ends_it(tmp_path: Path):
    out = tmp_path / "out.txt"
    with suppress(Killed), open_journal(out, "key") as journal:
        journal.add([Segment("a")], [Segment("b")])
        journal.add([Segment("c")], [Segment("d")])
        raise Killed
    path = out.with_name(out.name + JOURNAL)
    path.write_bytes(path.read_bytes().replace(b'"d"', b'"e"'))
    with open_journal(out, "key") as journal:
        assert [*journal.found.values()] == [Segment("b")]


def test_a_batch_is_on_disk_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_size))
    with open_journal(tmp_path / "out.txt", "key") as journal:
        journal.add([Segment("a")], [Segment("b")])
        assert flushed == [(tmp_path / f"out.txt{JOURNAL}").stat().st_size]


def test_a_journal_of_another_key_is_begun_anew_and_a_file_that_is_none_is_kept(tmp_path: Path):
    out = tmp_path / "out.txt"
    for key, word in (("one", "b"), ("two", "c")):
        with suppress(Killed), open_journal(out, key) as journal:
            assert not journal.found
            journal.add([Segment("a")], [Segment(word)])
            raise Killed
    with open_journal(out, "two") as journal:
        assert [*journal.found.values()] == [Segment("c")]
        with pytest.raises(InputError, match="another process"), open_journal(out, "two"):
            pass
    journal_file = out.with_name(out.name + JOURNAL)
    for torn in (b"", b"0123456789", b'0123456789abcdef {"regard"'):
        journal_file.write_bytes(torn)
        with open_journal(out, "two") as journal:
            assert not journal.found
    for content in (b"<html>half a download", b"0123456789abcdef0123"):
        journal_file.write_bytes(content)
        with pytest.raises(InputError, match="no journal"), open_journal(out, "two"):
            pass
        assert journal_file.read_bytes() == content


def test_a_model_translates_files_and_texts(model: LoadedModel, tmp_path: Path):
    (tmp_path / "a.html").write_text(BOOK)
    found = model.translate_document(tmp_path / "a.html", tmp_path / "b.html")
    assert (tmp_path / "b.html").read_bytes() == found.content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]
    assert found.text == model.translate_document(BOOK, kind="html").text
    assert found.text.count("<b>") == found.text.count("</b>") == 40
    assert all(found.text.count(f"{{{{x{n}}}}}") == 1 for n in range(40))
    assert model.translate_document(str(tmp_path / "a.html")).content == found.content


@pytest.mark.parametrize(("text", "kind"), [(PAGE, "html"), (MARKDOWN, "markdown"), (SUBTITLES, "subtitles")])
def test_a_model_keeps_what_is_no_text(model: LoadedModel, text: str, kind):
    found = model.translate_document(text, kind=kind).text
    for kept in ("translate=no", "code()", "00:00:01,000 --> 00:00:02,500", "http://stays", "&nbsp;", "align:left"):
        assert found.count(kept) == text.count(kept)


def test_a_line_longer_than_the_model_learnt_is_split_and_put_together(model: LoadedModel):
    long = "The cat sat on the mat, " * 40 + "and the dog sat."
    pieces = model.splitter()(long)
    assert "".join(pieces) == long
    assert all(len(WORDPIECE.encode(piece)) < 24 for piece in pieces)
    assert all(piece.endswith(", ") for piece in pieces[:-1])
    assert model.splitter(sentences=False)("The cat. The dog.") == ["The cat. The dog."]


def test_what_is_no_document_is_refused(tmp_path: Path):
    (tmp_path / "a.html").write_bytes(b"a\xff")
    (tmp_path / "a.docx").write_bytes(b"PK no")
    (tmp_path / "a.pdf").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "bomb.docx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b" " * (130 << 20))
    for name, error, message in [
        ("a.html", InputError, "is not UTF-8 at byte 1"), ("a.docx", DamagedFile, "is no Word document"),
        ("bomb.docx", DamagedFile, "unpacks to more"), ("a.pdf", InputError, r"Known endings: .txt"),
        ("b.html", InputError, "no such file"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            open_document(tmp_path / name)


def docx_bytes() -> bytes:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("The cat", 1)
    paragraph = document.add_paragraph("A dog ")
    paragraph.add_run("ran in").bold = True
    paragraph.add_run(" the park {{x}}.")
    document.add_table(1, 1).cell(0, 0).text = "the dog sat"
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


def test_a_word_document_keeps_its_formats(tmp_path: Path):
    (tmp_path / "a.docx").write_bytes(docx_bytes())
    opened = open_document(tmp_path / "a.docx")
    assert [one.text for one in opened.segments] == ["The cat", "A dog ran in the park {{x}}.", "the dog sat"]
    assert opened.render(opened.segments) == (tmp_path / "a.docx").read_bytes()
    found = opened.render(translate_segments(opened.segments, shout).segments)
    import docx

    read = docx.Document(io.BytesIO(found))
    assert [paragraph.text for paragraph in read.paragraphs] == ["THE CAT", "A DOG RAN IN THE PARK {{x}}."]
    assert [(run.text, run.bold) for run in read.paragraphs[1].runs if run.bold] == [("RAN IN", True)]
    assert read.tables[0].cell(0, 0).text == "THE DOG SAT"
    assert read.paragraphs[0].style.name == "Heading 1"
