"""HTML: one script allowed by its hash, heatmaps, escaped text, and nothing else that is loaded or run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.show.html import document, escaped, heatmap, overview, page, script, style

HOSTILE_LABELS = [
    "</text></svg><script>alert(1)</script>",
    '" onload="alert(1)',
    "' style='x",
    "<!--",
    "&lt;b&gt;",
    "]]>",
    "a\0b\x1b",
    "\u202eabc\u2066",
    "\ud800",
    "</title></style>",
]
HARMLESS_LABELS = [f"word{number}" for number in range(len(HOSTILE_LABELS))]

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


class Elements(HTMLParser):
    """Counts every element with the names of its attributes, and collects the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.texts: list[str] = []
        self.policy = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found[tag, tuple(name for name, _ in attrs)] += 1
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"]

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        self.found["comment", ()] += 1


def weights_of(rows: int, columns: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {"encoder.0.self": (columns, columns), "decoder.0.self": (rows, rows)}
    shapes |= {"decoder.0.cross": (rows, columns), "decoder.1.cross": (rows, columns)}
    return {name: torch.randn(3, *shape).softmax(-1) for name, shape in shapes.items()}


def drawn_cells(svg: str) -> dict[tuple[int, int], float]:
    """The opacity of each cell, read back from the paths."""
    cells = {}
    for opacity, runs in re.findall(r'<path class="cells" fill-opacity="([^"]+)" d="([^"]*)"', svg):
        cells |= {(int(row), int(column)): float(opacity) for column, row in re.findall(r"M(\d+) (\d+)h1v1h-1z", runs)}
    return cells


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
        "positions": [], "walk": None, "neighbours": None, "ablation": None, "alignment": None,
    }  # fmt: skip


def page_of(tokens: list[str], *, live: str | None = None) -> str:
    payload = {"version": 1, "title": tokens[3], "live": live, "traces": [trace_of(tokens)], "slider": False}
    return page(payload, [np.eye(len(tokens), dtype="<f2").tobytes()])


def data_of(text: str, name: str) -> str:
    return re.search(rf'<script type="[^"]+" id="{name}">(.*?)</script>', text, re.DOTALL).group(1)


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_a_cell_is_as_strong_as_its_share_of_the_greatest_weight():
    values = torch.tensor([[0.0, 0.1, 0.1, 0.2], [0.4, 0.0, 0.0, float("nan")]])
    svg = heatmap(["a", "b"], ["c", "d", "e", "f"], values, title="t")
    assert drawn_cells(svg) == {(0, 1): 0.25, (0, 2): 0.25, (0, 3): 0.5, (1, 0): 1.0}
    assert ">0.40<" in svg


def test_attention_spread_thin_stays_faint():
    svg = heatmap(["a"], list("bcdefghijk"), torch.full((1, 10), 0.1), title="t")
    assert set(drawn_cells(svg).values()) == {0.42}
    assert ">0.25<" in svg


def test_labels_are_at_their_rows_and_columns():
    svg = heatmap(["up", "down"], ["left", "right"], torch.eye(2), title="t", size=10)
    rows = dict(re.findall(r'<text x="-8" y="(\d+)"[^>]*>(\w+)<', svg))
    assert rows == {"5": "up", "15": "down"}
    assert dict(re.findall(r"translate\((\d+) -8\)[^>]*>(\w+)<", svg)) == {"5": "left", "15": "right"}


def test_the_overview_is_the_mean_over_all_cross_layers_and_heads():
    weights = weights_of(2, 3)
    mean = torch.cat([weights["decoder.0.cross"], weights["decoder.1.cross"]]).mean(dim=0)
    expected = heatmap(["a", "b"], ["c", "d", "e"], mean, title="t")
    assert expected in overview(["c", "d", "e"], ["a", "b"], weights, title="t")


def test_the_overview_of_a_language_model_is_its_self_attention():
    weights = {"decoder.0.self": torch.eye(2)[None]}
    assert heatmap(["a", "b"], ["a", "b"], torch.eye(2), title="t") in overview([], ["a", "b"], weights, title="t")


def test_a_hostile_title_makes_the_same_elements_as_a_harmless_one():
    expected = Elements(heatmap(["a"], ["b"], torch.eye(1), title="plain")).found
    for title in HOSTILE_LABELS:
        assert Elements(heatmap(["a"], ["b"], torch.eye(1), title=title)).found == expected
        assert Elements(document(title, "", "")).found == Elements(document("plain", "", "")).found


@given(st.text(st.characters(exclude_categories=[])))
def test_escaped_text_is_text_and_fully_visible(text):
    shown = escaped(text)
    parsed = Elements(f"<p>{shown}</p>")
    assert set(parsed.found) == {("p", ())}
    assert shown.encode().decode() == shown
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not [c for c in shown if unicodedata.category(c) in hidden and c not in "\u200c\u200d"]
    assert Elements(f'<p title="{shown}">').found == {("p", ("title",)): 1}


def test_visible_characters_stay_and_the_others_are_written_out():
    assert escaped("नमस्ते क्\u200dष 3 < 4") == "नमस्ते क्\u200dष 3 &lt; 4"
    assert escaped("\0\n\u202e\ud800") == "␀␊‹202E›‹D800›"


def test_a_long_token_is_cut_short():
    assert "x" * 19 + "…<" in heatmap(["x" * 500], ["b"], torch.eye(1), title="t")


def test_hostile_tokens_make_the_same_elements_as_harmless_ones():
    weights = weights_of(len(HOSTILE_LABELS), len(HOSTILE_LABELS))
    drawn = [overview(tokens, tokens, weights, title="t") for tokens in (HOSTILE_LABELS, HARMLESS_LABELS)]
    assert Elements(drawn[0]).found == Elements(drawn[1]).found


def test_without_attention_there_is_no_heatmap():
    assert overview(["a"], ["b"], {}, title="t") == ""


def test_a_document_loads_nothing_and_runs_nothing():
    text = document("t", "p { margin: 0 }", overview(HOSTILE_LABELS, HOSTILE_LABELS, weights_of(10, 10), title="t"))
    parsed = Elements(text)
    tags = {tag for tag, _ in parsed.found}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a", "image", "use"}
    names = {name for _, attributes in parsed.found for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("style", "src", "href", "srcdoc")]
    assert parsed.policy.startswith("default-src 'none';")
    assert "script-src" not in parsed.policy
    assert "unsafe" not in parsed.policy


def test_the_style_is_allowed_by_its_hash():
    text = document("t", "p { margin: 0 }", "")
    styled = re.search("<style>(.*?)</style>", text, re.DOTALL).group(1)
    assert f"style-src 'sha256-{digest(styled)}'" in Elements(text).policy


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
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write")
    for word in (*markup, "eval(", "new Function", 'setAttribute("style"'):
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
    found = json.loads(data_of(text, "regard"))["traces"][0]["ablation"]
    assert found == {"loss": None, "unit": "nats", "heads": [[None, 1.5]]}


def test_the_texts_are_shown_without_a_script():
    text = re.search("<noscript>(.*?)</noscript>", page_of(["ein", "satz", "<b>", "titel"]), re.DOTALL).group(1)
    assert "<h1>titel</h1>" in text
    assert "ein satz &lt;b&gt; titel" in text
    assert "JavaScript" in text
