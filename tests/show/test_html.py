"""HTML pages: the cells of heatmaps, escaped text, and nothing that is loaded or run."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections import Counter
from html.parser import HTMLParser

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.show.html import document, escaped, heatmap, overview

HOSTILE = [
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
    for title in HOSTILE:
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
    weights = weights_of(len(HOSTILE), len(HOSTILE))
    drawn = [overview(tokens, tokens, weights, title="t") for tokens in (HOSTILE, HARMLESS)]
    assert Elements(drawn[0]).found == Elements(drawn[1]).found


def test_without_attention_there_is_no_heatmap():
    assert overview(["a"], ["b"], {}, title="t") == ""


def test_a_document_loads_nothing_and_runs_nothing():
    text = document("t", "p { margin: 0 }", overview(HOSTILE, HOSTILE, weights_of(10, 10), title="t"))
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
    style = re.search("<style>(.*?)</style>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in Elements(text).policy
