"""Documents: what their segments are, and that everything else survives."""

from __future__ import annotations

import html
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.documents import Mark, Segment, read_document
from regard.data.documents.segments import break_lines, join, protect
from regard.errors import InputError

PAGE = """<!DOCTYPE html><html><head><title>My &amp; page</title><style>p { content: "</p>" }</style>
<script>if (a < b) { write("<p>x</p>") }</script></head>
<body><!-- not <p>this</p> --><p class=x>Hello   <b>big</b>
 world &lt;3&nbsp;</p><p translate="no">Names<p>Yes a < b<pre>as  is</pre><code>c</code>
<span class="brand notranslate">Acme <i>Inc</i></span> done<br>&copy; 2020 <a title="> x" href='y'>a > link</a> | <hr>
<ul><li translate=no>first<li>second</ul><div translate=no>no<span translate=yes>but yes</span></div>
<textarea>typed</textarea><TITLE>big</TITLE>end"""


KINDS = ("text", "markdown", "html", "subtitles")


def segments(text: str, kind="html") -> list[str]:
    return [segment.text for segment in read_document(text, kind).segments]


def plain(*texts: str) -> list[Segment]:
    return [Segment(text) for text in texts]


def written(text: str, kind="html") -> str:
    """The document with the letters of its segments in capitals, and their marks where they were."""
    document = read_document(text, kind)
    return document.render([Segment(one.text.upper(), one.marks) for one in document.segments])


def test_the_lines_of_a_text_are_its_segments():
    document = read_document("One \n\n  two\r\n\t\nthree", "text")
    assert document.segments == plain("One", "two", "three")
    assert document.render(plain("1", "2 <&>", "3")) == "1 \n\n  2 <&>\r\n\t\n3"
    assert read_document("", "text").segments == []


def test_the_texts_of_a_page_are_its_segments():
    assert segments(PAGE) == [
        "My & page", "Hello big world <3", "Yes a < b", "c Acme Inc done", "© 2020 a > link |", "second", "but yes",
        "big", "end",
    ]  # fmt: skip


def test_only_segments_change():
    document = read_document(PAGE, "html")
    assert document.render(document.segments) == PAGE
    marked = document.render([join([*plain("⟦"), segment, *plain("⟧")]) for segment in document.segments])
    assert marked.count("⟦") == len(document.segments)
    for part in ("<!-- not <p>this</p> -->", 'write("<p>x</p>")', "<pre>as  is</pre>", "Acme <i>Inc</i>", "&nbsp;</p>"):
        assert part in marked
    assert "Hello   <b>" in document.render([*document.segments[:-1], Segment("changed")])
    assert "<p class=x>HELLO <b>BIG</b> WORLD &lt;3&nbsp;</p>" in written(PAGE)


def test_a_translation_is_escaped_and_no_more_than_that():
    document = read_document("<p>&eacute;t&eacute; &amp; &quot;x&quot;</p><p>&eacute;</p>", "html")
    assert document.segments == plain('été & "x"', "é")
    assert (
        document.render(plain('<b>"R&D"</b>\u00a0!', "é"))
        == '<p>&lt;b&gt;"R&amp;D"&lt;/b&gt;&nbsp;!</p><p>&eacute;</p>'
    )


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
        ("a<!-->b", ["ab"]),
        ("a<![CDATA[ b>c ]]>d", ["ad"]),
        ("<script>a</script >b<SCRIPT>c</sCrIpT>d", ["b", "d"]),
        ("<script>a", []),
        ("<code><b>a</code>b</b>c", ["abc"]),
        ("<code>a</p></div>b</code>c", ["abc"]),
        ("<svg><text>a</text></svg>b", ["ab"]),
        ("<p translate=no>a<div>b</div>", ["b"]),
        ("<table><tr><td translate=no>a<td>b<tr><td>c</table>", ["b", "c"]),
        ("<img alt=a translate=no>b", ["b"]),
        ("<code/>a", ["a"]),
        ("<p translate=maybe>a</p>", ["a"]),
        ('<p a"b>c', ["c"]),
        ("<p =x>c", ["c"]),
        ("<?php a > b", ["b"]),
        ("</>a</ b>c", ["ac"]),
        ("· | — &nbsp; &#32;", []),
        ("x&#99999999999999999999;&#xffffffffffff;&#0;", ["x\ufffd\ufffd\ufffd"]),
        ("a\0b<p\0>c", ["a\0b", "c"]),
    ],
)
def test_broken_markup_is_read_as_browsers_do(text: str, expected: list[str]):
    document = read_document(text, "html")
    assert [segment.text for segment in document.segments] == expected
    assert document.render(document.segments) == text


SOUP = st.lists(
    st.sampled_from(
        ["<", ">", "</", "/>", "<!--", "-->", "<p>", "</p>", "<b ", "='", '"', "=", "<code>", "</code>", "<script>",
         "</script>", "<pre", "translate=no", "<li>", "<title>", "<![CDATA[", "]]>", "<?", "&amp;", "&nbsp;", "&#", "&",
         "\0", " ", "\n", "word", "é", "1", "<b>", "</b>", "<i>", "</i>", "<img>", "{{x}}", "a@b.org", "http://a.b/c.",
         "**", "*", "_", "`", "```", "\n\n", "# ", "- ", "> ", "|", "|---|", "    ", "[", "](x)", "\\", "  \n", "\r\n",
         "1\n00:00:01,000 --> 00:00:02,000\n", "{\\an8}", "\n---\n", "===\n", "word word"]
    ) | st.text(max_size=3),
    max_size=30,
).map("".join)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(SOUP | st.text(max_size=60), st.sampled_from(KINDS))
def test_untouched_documents_are_themselves(text, kind):
    document = read_document(text, kind)
    assert document.render(document.segments) == text
    assert "".join(part.written for part in document.parts) == text
    assert all(segment.text.strip() for segment in document.segments)
    for segment in document.segments:
        assert protect(segment).write(str) == segment.write(str)
        assert all(0 <= mark.at <= len(segment.text) - mark.length for mark in segment.marks)
        assert [mark.at for mark in segment.marks] == sorted(mark.at for mark in segment.marks)
        pairs = [mark.pair for mark in segment.marks if mark.kind == "open"]
        assert sorted(pairs) == sorted(mark.pair for mark in segment.marks if mark.kind == "close")


@settings(max_examples=300, deadline=None)
@given(SOUP, st.sampled_from(KINDS), st.data())
def test_a_segment_cut_anywhere_can_be_put_together(text, kind, data):
    for segment in map(protect, read_document(text, kind).segments):
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(segment.text) - 1)), max_size=3)))
        texts = [segment.text[start:end] for start, end in zip([0, *cuts], [*cuts, None])]
        parts = segment.split(texts)
        assert join(parts) == segment
        assert all(mark.at + mark.length <= len(part.text) for part in parts for mark in part.marks)


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
    rendered, tags = read_document(page, "html").render(plain(translation, "x")), Tags()
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
    "lines": "a\n" * 100_000, "names": "&a" * 300_000, "inline": "<b>a</b> " * 20_000, "open": "a<b>" * 20_000,
    "stars": "*a " * 20_000, "brackets": "[a" * 20_000, "ticks": "`a " * 20_000, "quotes of lines": "> a\n" * 20_000,
    "cues": "00:00:01,000 --> 00:00:02,000\na\n\n" * 10_000,
    "long cue": "00:00:01,000 --> 00:00:02,000\n" + "a\n" * 9_000,
    "pipes": "a|b\n|-|-|\n" + "|a" * 50_000, "address": "a." * 50_000 + "@", "hashes": "#" * 10**5,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_of_anything_is_read(name: str):
    for kind in KINDS:
        document = read_document(HOSTILE[name], kind)
        assert document.render(document.segments) == HOSTILE[name]


def test_a_wrong_number_of_translations_and_an_unknown_kind_are_refused():
    with pytest.raises(InputError, match="2 segments and 1 translations"):
        read_document("a\nb", "text").render(plain("x"))
    with pytest.raises(InputError, match=r'no kind of document is called "htm".*Did you mean "html"'):
        read_document("a", "htm")  # type: ignore[arg-type]


MARKDOWN = """---
title: stays
---
# A *heading* #

Some **bold _nested_** text with `code` in
[a link](http://x.y/z "t") over lines.\x20\x20
A hard break, 2\\*3, <b>html</b> &amp; more.

- one
- [ ] two
  goes on

> quoted
> goes on

```py
code()
```

    indented()

| a | b c |
|---|-----|
| `x|y` z | two |

[ref]: http://stays
Title
===
1. snake_case 2 * 3 [text] ![img](x.png) end[^1]
"""


def test_the_paragraphs_headings_items_and_cells_of_markdown_are_its_segments():
    assert segments(MARKDOWN, "markdown") == [
        "A heading", "Some bold nested text with code in a link over lines.", "A hard break, 2*3, html & more.", "one",
        "two goes on", "quoted goes on", "a", "b c", "x|y z", "two", "Title", "snake_case 2 * 3 [text]  end",
    ]  # fmt: skip
    shouted = written(MARKDOWN, "markdown")
    for part in ("# A *HEADING* #\n", "**BOLD _NESTED_** TEXT WITH `code` IN [A LINK](http://x.y/z \"t\") OVER",
                 "2\\*3, <b>HTML</b> &amp; MORE", "code()", "    indented()", "| `x|y` Z | TWO |", "title: stays",
                 "[ref]: http://stays\nTITLE\n===", "![img](x.png) END[^1]\n", "- [ ] TWO GOES ON\n"):  # fmt: skip
        assert part in shouted


SUBTITLES = """WEBVTT

NOTE stays

1
00:00:01,000 --> 00:00:02,500
<i>Hello there,
big</i> world

intro
00:01.000 --> 00:02.000 align:left
- Hi {\\an8}you.
- <v Bob>Hello.
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n\n    code a\n    code b\n\n    code c\nend\n", ["a", "end"]),
        ("- a\n\n      code\n      code\n\n  more\n", ["a", "more"]),
        ("1. a\n\n    ```\n    # code\n\n    code\n    ```\n\nend\n", ["a", "end"]),
        ("> ```\n> # code\n> ```\n> a\n", ["a"]),
        ("+++\ntitle = 'x'\n+++\na\n", ["a"]),
        ("---\ntitle: x\n---\na\n", ["a"]),
        ("---\n\na rule above\n", ["a rule above"]),
        ("\ufeff---\r\nx: y\r\n---\r\n# a\r\n", ["a"]),
        ("- [ ] a\n> b\n> c\n", ["a", "b c"]),
        ("<div>\na <b>b</b>\n</div>\n", ["a b"]),
        ("a\n: b\n", ["a", "b"]),
        ("![x *y* [z]](a(b).png 't') a [b](<c d> 't') ![x](y)", ["a b"]),
    ],
)
def test_code_and_settings_of_markdown_survive_wherever_they_stand(text: str, expected: list[str]):
    assert segments(text, "markdown") == expected
    kept = read_document(text, "markdown")
    assert kept.render(kept.segments) == text
    shouted = kept.render([Segment(one.text.upper(), one.marks) for one in kept.segments])
    assert [line.casefold() for line in shouted.splitlines()] == text.replace("\n> c", " c").casefold().splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_order_mark_stays_at_the_start(kind):
    assert segments("\ufeffone two", kind)[:1] == ([] if kind == "subtitles" else ["one two"])
    assert written("\ufeff", kind) == "\ufeff"


def test_the_dashes_of_a_dialogue_are_no_text():
    text = "1\n00:00:01,000 --> 00:00:02,000\n- who?\n\u2013  <i>me</i>.\n"
    assert segments(text, "subtitles") == ["who?", "me."]
    assert written(text, "subtitles") == text.replace("who", "WHO").replace("me", "ME")


def test_the_cues_of_subtitles_are_segments_and_keep_their_number_of_lines():
    assert segments(SUBTITLES, "subtitles") == ["Hello there, big world", "Hi you.", "Hello."]
    assert written(SUBTITLES, "subtitles") == (
        SUBTITLES.replace("Hello there,\nbig</i> world", "HELLO THERE,\nBIG</i> WORLD")
        .replace("- Hi {\\an8}you.", "- HI {\\an8}YOU.").replace("<v Bob>Hello.", "<v Bob>HELLO.")
    )  # fmt: skip
    document = read_document(SUBTITLES.replace("\n", "\r\n"), "subtitles")
    assert "ab ab\r\nab ab" in document.render([Segment("ab ab ab ab"), *document.segments[1:]])


def test_lines_are_broken_at_spaces_that_no_atom_holds():
    atom = Mark(2, "`b c`", length=3)
    broken = break_lines(Segment("a b c d", (atom,)), 2, "\n")
    assert broken.write(str) in ("a\n`b c` d", "a `b c`\nd")
    assert break_lines(Segment("abc"), 3, "\n") == Segment("abc")


def test_placeholders_and_addresses_are_atoms_unless_a_tag_cuts_them():
    text = "Hi {{name}}, ${x} {y} %s %1$d see http://a.b/c?d=1, www.a.org. or me@a-b.org!"
    marks = protect(Segment(text)).marks
    assert [mark.written for mark in marks] == [
        "{{name}}", "${x}", "{y}", "%s", "%1$d", "http://a.b/c?d=1", "www.a.org", "me@a-b.org",
    ]  # fmt: skip
    assert protect(Segment("{{ab}}", (Mark(3, "<b>"),))).marks == (Mark(3, "<b>"),)
