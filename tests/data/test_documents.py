"""Documents: what their segments are, and that everything else survives."""

from __future__ import annotations

import html
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.documents import read_document
from regard.errors import InputError

PAGE = """<!DOCTYPE html><html><head><title>My &amp; page</title><style>p { content: "</p>" }</style>
<script>if (a < b) { write("<p>x</p>") }</script></head>
<body><!-- not <p>this</p> --><p class=x>Hello   <b>big</b>
 world &lt;3&nbsp;</p><p translate="no">Names<p>Yes a < b<pre>as  is</pre><code>c</code>
<span class="brand notranslate">Acme <i>Inc</i></span> done<br>&copy; 2020 <a title="> x" href='y'>a > link</a> | <hr>
<ul><li translate=no>first<li>second</ul><div translate=no>no<span translate=yes>but yes</span></div>
<textarea>typed</textarea><TITLE>big</TITLE>end"""


def segments(text: str) -> list[str]:
    return read_document(text, "html").segments


def test_the_lines_of_a_text_are_its_segments():
    document = read_document("One \n\n  two\r\n\t\nthree", "text")
    assert document.segments == ["One", "two", "three"]
    assert document.render(["1", "2 <&>", "3"]) == "1 \n\n  2 <&>\r\n\t\n3"
    assert read_document("", "text").segments == []


def test_the_texts_of_a_page_are_its_segments():
    assert segments(PAGE) == [
        "My & page", "Hello", "big", "world <3", "Yes a < b", "done", "© 2020", "a > link", "second", "but yes", "big",
        "end",
    ]  # fmt: skip


def test_only_segments_change():
    document = read_document(PAGE, "html")
    assert document.render(document.segments) == PAGE
    marked = document.render([f"⟦{segment}⟧" for segment in document.segments])
    assert marked.count("⟦") == len(document.segments)
    for part in ("<!-- not <p>this</p> -->", 'write("<p>x</p>")', "<pre>as  is</pre>", "Acme <i>Inc</i>", "&nbsp;</p>"):
        assert part in marked
    assert "Hello   <b>" in document.render([*document.segments[:-1], "changed"])


def test_a_translation_is_escaped_and_no_more_than_that():
    document = read_document("<p>&eacute;t&eacute; &amp; &quot;x&quot;</p><p>&eacute;</p>", "html")
    assert document.segments == ['été & "x"', "é"]
    assert document.render(['<b>"R&D"</b>\u00a0!', "é"]) == '<p>&lt;b&gt;"R&amp;D"&lt;/b&gt;&nbsp;!</p><p>&eacute;</p>'


def test_white_space_inside_a_segment_is_one_space_for_the_model():
    assert segments("<p>one\n    two&#10;three</p>") == ["one two three"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", ["plain text"]),
        ("a < b <3 and <", ["a < b <3 and <"]),
        ("<p>a</p", ["a"]),
        ("<p>a<b c='>d", ["a"]),
        ("a<!-- b", ["a"]),
        ("a<!-->b", ["a", "b"]),
        ("a<![CDATA[ b>c ]]>d", ["a", "d"]),
        ("<script>a</script >b<SCRIPT>c</sCrIpT>d", ["b", "d"]),
        ("<script>a", []),
        ("<code><b>a</code>b</b>c", ["b", "c"]),
        ("<code>a</p></div>b</code>c", ["c"]),
        ("<svg><text>a</text></svg>b", ["b"]),
        ("<p translate=no>a<div>b</div>", ["b"]),
        ("<table><tr><td translate=no>a<td>b<tr><td>c</table>", ["b", "c"]),
        ("<img alt=a translate=no>b", ["b"]),
        ("<code/>a", ["a"]),
        ("<p translate=maybe>a</p>", ["a"]),
        ('<p a"b>c', ["c"]),
        ("<p =x>c", ["c"]),
        ("<?php a > b", ["b"]),
        ("</>a</ b>c", ["a", "c"]),
        ("· | — &nbsp; &#32;", []),
        ("x&#99999999999999999999;&#xffffffffffff;&#0;", ["x\ufffd\ufffd\ufffd"]),
        ("a\0b<p\0>c", ["a\0b", "c"]),
    ],
)
def test_broken_markup_is_read_as_browsers_do(text: str, expected: list[str]):
    document = read_document(text, "html")
    assert document.segments == expected
    assert document.render(document.segments) == text


SOUP = st.lists(
    st.sampled_from(
        ["<", ">", "</", "/>", "<!--", "-->", "<p>", "</p>", "<b ", "='", '"', "=", "<code>", "</code>", "<script>",
         "</script>", "<pre", "translate=no", "<li>", "<title>", "<![CDATA[", "]]>", "<?", "&amp;", "&nbsp;", "&#", "&",
         "\0", " ", "\n", "word", "é", "1"]
    ) | st.text(max_size=3),
    max_size=30,
).map("".join)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(SOUP | st.text(max_size=60), st.sampled_from(["text", "html"]))
def test_untouched_documents_are_themselves(text, kind):
    document = read_document(text, kind)
    assert document.render(document.segments) == text
    assert all(segment.strip() for segment in document.segments)
    replaced = document.render(["Q"] * len(document.segments))
    assert read_document(replaced, kind).segments == ["Q"] * len(document.segments)


class Tags(HTMLParser):
    """The tags of a page, as the standard library reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("<>&\"'/ab \u00a0;#")))
def test_a_translation_adds_no_tag(translation: str):
    page = "<p>one</p><div>two</div>"
    rendered, tags = read_document(page, "html").render([translation, "x"]), Tags()
    tags.feed(rendered)
    assert tags.found == ["p", "div"]
    assert html.unescape(rendered.split("<p>")[1].split("</p>")[0]) == translation


# A quadratic or recursive reader would take hours, or end in a RecursionError.
HOSTILE = {
    "nested": "<a>" * 100_000, "closed": "<b><i>" * 25_000 + "</x>" * 25_000 + "</b>" * 25_000,
    "angles": "<" * 10**6, "tags": "<a " * 300_000, "quotes": '<a b="' * 150_000, "comments": "<!--" * 250_000,
    "short comments": "<!-->" * 50_000, "scripts": "<script>" * 100_000, "closed scripts": "<script></script>" * 25_000,
    "entities": "&" * 10**6, "digits": "&#" + "9" * 10**6, "zeros": "&#" + "0" * 10**6, "nuls": "\0" * 10**6,
    "spaces": " &nbsp;" * 100_000 + "x", "spaces after": "x" + " &nbsp;" * 100_000,
    "attributes": "<a " + "b=c " * 200_000, "equals": "<a " + "=" * 10**6, "slashes": "<a" + "/" * 10**6,
    "ends": "</" * 500_000, "titles": "<title>" * 40_000, "cdata": "<![CDATA[" * 100_000, "items": "<li>a" * 40_000,
    "lines": "a\n" * 100_000, "names": "&a" * 300_000,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_of_anything_is_read(name: str):
    for kind in ("text", "html"):
        document = read_document(HOSTILE[name], kind)
        assert document.render(document.segments) == HOSTILE[name]


def test_a_wrong_number_of_translations_and_an_unknown_kind_are_refused():
    with pytest.raises(InputError, match="2 segments and 1 translations"):
        read_document("a\nb", "text").render(["x"])
    with pytest.raises(InputError, match=r'no kind of document is called "htm".*Did you mean "html"'):
        read_document("a", "htm")  # type: ignore[arg-type]
