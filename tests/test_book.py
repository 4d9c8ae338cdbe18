"""The book: every anchor, link and picture of its pages is there, and equations become MathML."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("latex2mathml")
from book import assemble, reference

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_every_anchor_link_and_picture_of_a_page_is_there(path: Path):
    home = path.relative_to(ROOT)
    shown = assemble.page(path.read_text(), home, home.relative_to("docs").as_posix())
    assert "$$" not in assemble.outside_code(shown, lambda text: text)


def test_a_link_to_source_becomes_that_source():
    page = "[LSTMStep.forward](../src/regard/layers/recurrent.py)\n"
    shown = assemble.page(page, Path("docs/page.md"), "page.md")
    assert 'title="src/regard/layers/recurrent.py, line ' in shown
    assert "c_t = f * c_{t-1} + i * g" in shown


def test_an_anchor_that_is_gone_is_refused():
    with pytest.raises(assemble.NotFound, match=r"recurrent\.py has no LSTMStep\.backwards"):
        assemble.page("[LSTMStep.backwards](../src/regard/layers/recurrent.py)\n", Path("docs/page.md"), "page.md")


def test_a_link_to_nowhere_is_refused():
    with pytest.raises(assemble.NotFound, match=r"there is no nowhere\.md"):
        assemble.page("[there](nowhere.md)\n", Path("docs/page.md"), "page.md")


def test_equations_become_mathml_and_code_stays():
    shown = assemble.page("Of $x_1$, `$y$`:\n\n$$\\frac{a}{b}$$\n", Path("docs/page.md"), "page.md")
    assert shown.count("<math") == 2
    assert "`$y$`" in shown
    assert "mfrac" in shown


def test_links_out_of_docs_lead_to_pages_of_the_book():
    shown = assemble.page("[map](../../ARCHITECTURE.md#laws)\n", Path("docs/papers/page.md"), "papers/page.md")
    assert "](../reference/architecture.md#laws)" in shown


def test_references_name_every_verb_and_every_key():
    pages = reference.pages()
    assert "## regard translate" in pages["reference/commands.md"]
    assert "regard.load(" in pages["reference/python.md"]
    assert "| `learning_rate` |" in pages["reference/recipe.md"]


def test_navigation_names_every_page():
    said = (ROOT / "mkdocs.yml").read_text()
    missing = [path.name for path in PAGES if f": {path.relative_to(ROOT / 'docs').as_posix()}\n" not in said]
    assert missing == []
