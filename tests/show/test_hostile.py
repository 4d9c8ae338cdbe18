"""Texts that contain markup stay texts: in a real browser the page has the same elements, in every view."""

from __future__ import annotations

import copy
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from regard.models import zoo
from regard.show.html import page
from regard.show.payload import page_payload, side_by_side
from tests.laws.zoo import MODELS, SMALL
from tests.small import small

from .browser import VIEWS, opened

TAGS = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>",
    "<svg/onload=alert(1)//", "<iframe srcdoc='<script>alert(1)</script>'>", "<b>bold</b>",
    "<a href=javascript:alert(1)>", "<style>*{display:none}", "<link rel=stylesheet href=//x>",
    "<meta http-equiv=refresh content=0>", "<base href=//x>", "<form action=//x>",
    "<input autofocus onfocus=alert(1)>", "<details open ontoggle=alert(1)>", "<video src onerror=alert(1)>",
    "<math><mi xlink:href=x>", "<object data=x>", "<embed src=x>", "<template><b>", "<textarea>", "<title>",
    "<noscript>", "<foreignObject><b>", "<use href=data:x>", "<animate onbegin=alert(1)>", "<table><tr><td>",
    "<plaintext>", "<xmp>", "<!DOCTYPE html>", "<?xml version='1.0'?>",
]  # fmt: skip
ENDS = [
    "</script>", "</script><script>alert(1)</script>", "</SCRIPT >", "</title><b>", "</style><b>",
    "</noscript><b>", "-->", "<!--", "<!--<script", "--!>", "]]>", "<![CDATA[<b>]]>", "</svg><b>",
    "</select><b>", "</option>", "</body></html>",
]  # fmt: skip
QUOTES = [
    '"', "'", "`", '" onmouseover="alert(1)', "' onfocus='alert(1)", "\\", "\\u003cb\\u003e", "\\x3cb\\x3e",
    "&lt;b&gt;", "&#60;b&#62;", "&#x3c;b>", "&", "&amp;", "%3Cb%3E", "javascript:alert(1)",
    "data:text/html,<b>", "${alert(1)}", "{{constructor.constructor('alert(1)')()}}", "<%= 1 %>", "#{1}",
    "__proto__", "constructor", "toString", "hasOwnProperty", "null", "undefined", "NaN", "-1", "0",
]  # fmt: skip
CHARACTERS = [
    "\u202eabc\u202c", "\u2066\u2067\u2069", "\u200f\u200e", "\0", "a\0b", "\x1b[31m", "\x07\x08", "\r\n",
    "\t", "\u2028", "\u2029", "\ufeff", "\u200b", "\u200d", "\u00ad", "\ud800", "\udfff", "\udc00\ud800",
    "e" + "\u0301" * 300, "שלום עולם", "مرحبا", "👩‍👩‍👧‍👦", "𝕏", "x" * 5_000, "",
]  # fmt: skip
HOSTILE = [*TAGS, *ENDS, *QUOTES, *CHARACTERS]
HARMLESS = [f"w{number}" for number in range(len(HOSTILE))]
STATIC = files("regard.show").joinpath("static")


def with_texts(payload: dict[str, Any], texts: list[str], at: int) -> dict[str, Any]:
    """The same page with other texts in every text field, taken in turn from `at` on."""
    made, counter = copy.deepcopy(payload), iter(range(at, 1 << 30))
    names: dict[str, str] = {}

    def text() -> str:
        return texts[next(counter) % len(texts)]

    def named(old: str) -> str:
        """Layer names stay distinct."""
        return names.setdefault(old, f"{old} {text()}")

    made["title"] = text()
    for trace in made["traces"]:
        trace["label"], trace["model"] = text(), text()
        for side in trace["sides"].values():
            side["tokens"] = [text() for _ in side["tokens"]]
            side["word_texts"] = [text() for _ in side["word_texts"]]
        for layer in trace["layers"]:
            layer["name"] = named(layer["name"])
        for step in trace["generation"] or ():
            step["candidates"] = [[text(), p] for _, p in step["candidates"]]
            step["chosen"] = [step["candidates"][0][0], step["candidates"][0][1]]
        for node in trace["beams"] or ():
            node["text"] = text()
        for position in trace["positions"]:
            position["name"] = text()
        trace["neighbours"] = {
            side: [[[text(), p] for _, p in row] for row in rows] for side, rows in (trace["neighbours"] or {}).items()
        } or None
        if trace["ablation"]:
            trace["ablation"]["unit"] = text()
            for head in trace["ablation"]["heads"]:
                head["layer"] = named(head["layer"])
                head["changed"] = [[row, text(), text()] for row, _, _ in head["changed"]]
    return made


@pytest.fixture(scope="module")
def payloads() -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """Pages that together have every view."""
    translator = small(MODELS["transformer"], generation_config={"max_length": 7})
    traces = [translator.look("The dogs played.", beam=beam) for beam in (2, 1)]
    lsh = small(zoo.reformer(**SMALL, pattern=MODELS["reformer"].decoder.layers[0][0].pattern, buckets=2, rounds=2))
    return {
        "side by side": page_payload(side_by_side(*traces).traces),
        "checkpoints": page_payload(side_by_side(*traces, slider=True).traces, slider=True),
        "lsh": page_payload(lsh.look("The dogs played in the park.").traces),
    }


def elements(browser: Any, path: Path, payload: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    """Tags and attributes of the page in each view, with a row and a column selected."""
    path.write_text(page(payload, blobs), "utf-8")
    found = {}
    with opened(browser, path.as_uri()) as window:
        window.page.on("dialog", lambda dialog: window.errors.append(f"a dialog: {dialog.message}"))
        if payload["title"].isascii() and payload["title"].isprintable():
            assert window.page.text_content("h1") == payload["title"]
        for view in window.views:
            window.select(view=view, row=1, column=1, step=1, token=1)
            found[view] = window.elements()
        window.press("?")
        found["help"] = window.elements()
    return found


@pytest.mark.parametrize("name", ["side by side", "checkpoints", "lsh"])
def test_a_hundred_hostile_texts_change_no_element_in_any_view(
    browser: Any, payloads: dict[str, Any], tmp_path: Path, name: str
):
    payload, blobs = payloads[name]
    assert len(HOSTILE) >= 100
    assert len(set(HOSTILE)) == len(HOSTILE)
    expected = elements(browser, tmp_path / "harmless.html", with_texts(payload, HARMLESS, 0), blobs)
    assert set(expected) <= {*VIEWS, "help"}
    for at in (0, 34, 67):
        found = elements(browser, tmp_path / "hostile.html", with_texts(payload, HOSTILE, at), blobs)
        assert found == expected


def test_the_pages_together_have_every_view(browser: Any, payloads: dict[str, Any], tmp_path: Path):
    found = set()
    for payload, blobs in payloads.values():
        (tmp_path / "page.html").write_text(page(payload, blobs))
        with opened(browser, (tmp_path / "page.html").as_uri()) as window:
            found |= set(window.views)
    assert found == set(VIEWS)


def test_an_address_from_elsewhere_does_no_harm(browser: Any, payloads: dict[str, Any], tmp_path: Path):
    (tmp_path / "page.html").write_text(page(*payloads["side by side"]))
    address = (tmp_path / "page.html").as_uri()
    names = (
        "trace view layer head row column summary theme heads zoom x y sort step attend ticked order other otherlayer"
    )
    for text in ["<b>", "%", "__proto__", "NaN", "-1", "99999999", "0.5"]:
        with opened(browser, address, **dict.fromkeys([*names.split(), "statistic", "side", "token"], text)) as window:
            assert window.page.locator("#view *").count() > 3
            for view in ("matrix", "head", "neuron"):
                window.click(f"#tab-{view}")


@pytest.mark.parametrize(
    "word",
    ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "setHTML"],
)
def test_no_script_makes_markup_or_code_of_a_text(word: str):
    for path in STATIC.iterdir():
        assert word not in path.read_text("utf-8"), path.name
