"""The attention page: one script of all modules, allowed by its hash; escaped text; nothing is loaded."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files

import numpy as np
import pytest

from regard.show.page import page, script, style

from .test_html import Elements

MODULES = sorted(path.name for path in files("regard.show").joinpath("static").iterdir() if path.name.endswith(".js"))
DECLARED = re.compile(
    r"^(?:async )?(?:function|class)\s+(\w+)|^(?:const|let)\s+(?:(\w+)|[\[{]([^\]}]*)[\]}])", re.MULTILINE
)

PREFIXES = ["", '"', "'", "`", "</script>", "</title></style>", "-->", "]]>", "\\", "\u2028"]
BODIES = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<!--<script",
    "${alert(1)}",
]
BODIES += ["\u202eabc\u2066", "a\0b\x1b", "\ud800", "&lt;b&gt;&#x3c;", "</noscript><iframe srcdoc=x>"]
HOSTILE = [prefix + body for prefix in PREFIXES for body in BODIES]
HARMLESS = [f"word{number}" for number in range(len(HOSTILE))]


def trace_of(tokens: list[str], blob: int = 0) -> dict:
    count = len(tokens)
    spans = [[at, at + 1] for at in range(count)]
    layer = {
        "name": tokens[0], "rows": "source", "columns": "source", "heads": 1, "queries": count, "keys": count,
        "causal": False, "weights": {"blob": blob, "type": "f2", "shape": [1, count, count]}, "pooled": None,
        "top": None, "entropy": [0.0], "distance": [0.0], "confidence": None, "score_inputs": None, "value_norms": None,
        "buckets": None,
    }  # fmt: skip
    return {
        "label": tokens[1], "model": tokens[2], "shape": "encoder", "layers": [layer], "generation": None,
        "beams": None, "sides": {"source": {"tokens": tokens, "word_spans": spans, "word_texts": tokens}},
        "positions": [], "neighbours": None, "ablation": None, "alignment": None,
    }  # fmt: skip


def page_of(tokens: list[str], *, live: str | None = None) -> str:
    payload = {"version": 1, "title": tokens[3], "live": live, "traces": [trace_of(tokens)], "slider": False}
    return page(payload, [np.eye(len(tokens), dtype="<f2").tobytes()])


def data_of(text: str, name: str) -> str:
    return re.search(rf'<script type="[^"]+" id="{name}">(.*?)</script>', text, re.DOTALL).group(1)


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_every_module_is_in_the_script_once_after_what_it_uses():
    joined, modules = script(), {}
    for name in MODULES:
        text = files("regard.show").joinpath("static", name).read_text("utf-8")
        first = text.splitlines()[0]
        assert joined.count(first + "\n") == 1, name
        start = joined.index(first)
        imports = re.findall(r'^import .*?"\./(\w+\.js)"', text, re.MULTILINE)
        modules[name] = (start, imports)
    for start, imports in modules.values():
        assert all(modules[other][0] < start for other in imports)


def test_the_script_imports_and_exports_nothing():
    assert not re.search(r"^\s*(?:import|export)\b|\bimport\(", script(), re.MULTILINE)


def test_no_name_is_declared_twice():
    names = [name for groups in DECLARED.findall(script()) for part in groups for name in re.findall(r"\w+", part)]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_imported_name_is_exported():
    for name in MODULES:
        text = files("regard.show").joinpath("static", name).read_text("utf-8")
        for names, other in re.findall(r'^import \{(.*?)\} from "\./(\w+\.js)";$', text, re.MULTILINE):
            exporting = files("regard.show").joinpath("static", other).read_text("utf-8")
            for imported in names.split(", "):
                assert re.search(
                    rf"^export (?:async )?(?:function|class|const|let) {imported}\b", exporting, re.MULTILINE
                )
        assert text.count("import {") == len(re.findall(r"^import \{", text, re.MULTILINE))


def test_text_never_becomes_markup_or_code():
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "eval(",
        "new Function",
        "document.write",
        'setAttribute("style"',
    ):
        assert word not in script(), word
    assert "</script" not in script().lower()
    assert "<!--" not in script()
    assert not re.search(r"https?://(?!www\.w3\.org/)", script() + style())
    assert "url(" not in style()
    assert "@import" not in style()


def test_the_policy_allows_only_this_script_and_this_style():
    text = page_of(HARMLESS)
    policy = dict(part.split(" ", 1) for part in Elements(text).policy.split("; "))
    running = re.search(r'<script type="module">(.*?)</script>', text, re.DOTALL).group(1)
    styled = re.search("<style>(.*?)</style>", text, re.DOTALL).group(1)
    assert policy == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest(styled)}'",
        "script-src": f"'sha256-{digest(running)}'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_only_a_live_page_may_connect_and_only_to_its_own_server():
    assert "connect-src" not in Elements(page_of(HARMLESS)).policy
    assert "; connect-src 'self';" in Elements(page_of(HARMLESS, live="/secret")).policy


def test_a_hundred_hostile_strings_make_the_same_elements_as_harmless_ones():
    assert len(HOSTILE) == len(set(HOSTILE)) == 100
    assert Elements(page_of(HOSTILE)).found == Elements(page_of(HARMLESS)).found


@pytest.mark.parametrize("text", HOSTILE[::7])
def test_a_hostile_name_makes_the_same_elements_as_a_harmless_one(text):
    expected = Elements(page_of(["word"] * 4)).found
    for index in range(4):
        names = ["word"] * 4
        names[index] = text
        assert Elements(page_of(names)).found == expected


def test_the_data_round_trips():
    text = page_of(HOSTILE)
    text.encode()
    assert text.encode().decode() == text
    payload = json.loads(data_of(text, "regard"))
    assert payload["traces"] == [trace_of(HOSTILE)]
    assert base64.b64decode(data_of(text, "blob-0")) == np.eye(100, dtype="<f2").tobytes()


def test_numbers_that_json_cannot_write_are_null():
    trace = trace_of(HARMLESS) | {"ablation": {"loss": float("nan"), "unit": "nats", "heads": [(float("inf"), 1.5)]}}
    text = page({"version": 1, "title": "t", "live": None, "traces": [trace], "slider": False}, [])
    assert json.loads(data_of(text, "regard"))["traces"][0]["ablation"] == {
        "loss": None,
        "unit": "nats",
        "heads": [[None, 1.5]],
    }


def test_the_texts_are_shown_without_a_script():
    text = re.search("<noscript>(.*?)</noscript>", page_of(["ein", "satz", "<b>", "titel"]), re.DOTALL).group(1)
    assert "<h1>titel</h1>" in text
    assert "ein satz &lt;b&gt; titel" in text
    assert "JavaScript" in text
