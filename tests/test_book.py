"""The book: every anchor, link and picture of its pages is there, and equations become MathML."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

pytest.importorskip("latex2mathml")
from book import assemble, checks, findings, live, notebooks, reference
from regard.lab import catalogue
from tests.printed import shell
from tests.show.browser import CHROMIUM
from tests.test_docs import reader_files

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


def test_included_source_has_no_comments_for_linters():
    page = "[transformer](../src/regard/models/zoo/transformer.py)\n"
    shown = assemble.page(page, Path("docs/page.md"), "page.md")
    assert "score: Score = Dot(),\n" in shown


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


def test_equations_side_by_side_can_stand_in_several_lines():
    shown = assemble.page("$$a = b, \\qquad c = d$$\n", Path("docs/page.md"), "page.md")
    assert shown.count("<math") == 2
    assert shown.count('<div class="equation">') == 1


def test_links_out_of_docs_lead_to_pages_of_the_book():
    shown = assemble.page("[map](../../ARCHITECTURE.md#laws)\n", Path("docs/papers/page.md"), "papers/page.md")
    assert "](../reference/architecture.md#laws)" in shown


def test_links_to_the_source_of_a_reference_lead_to_its_page():
    shown = assemble.page("See [the laws](../src/regard/evaluation/laws.py).\n", Path("docs/page.md"), "page.md")
    assert "](reference/laws.md)" in shown


def test_references_name_every_verb_and_every_key():
    pages = reference.pages()
    assert "## regard translate" in pages["reference/commands.md"]
    assert "regard.load(" in pages["reference/python.md"]
    assert "model.translate(" in pages["reference/python.md"]
    assert "As `TextGenerator" not in pages["reference/python.md"]
    assert "`<extra_id_0>`" in pages["reference/python.md"]
    assert "<function" not in pages["reference/python.md"]
    assert "| `learning_rate` | a number | `0.001` |" in pages["reference/recipe.md"]
    assert '| `schedule` | `"inverse_square_root"`, `"cosine"`,' in pages["reference/recipe.md"]


def test_navigation_names_every_page():
    said = (ROOT / "mkdocs.yml").read_text()
    missing = [path.name for path in PAGES if f": {path.relative_to(ROOT / 'docs').as_posix()}\n" not in said]
    assert missing == []


def test_the_first_page_leads_to_every_page():
    said = (ROOT / "docs" / "index.md").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in PAGES]
    assert [name for name in pages if name != "index.md" and f"]({name})" not in said] == []


SOURCE = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
PAPERS = sorted(path for path in (ROOT / "docs" / "papers").glob("*.md") if path.stem != "index")


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_letters_of_a_paper_are_matched_to_names_that_are_in_the_source(path: Path):
    (table,) = re.findall(r"^\| in the papers? \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", path.read_text(), re.MULTILINE)
    codes = [code for row in table.splitlines() for code in re.findall(r"`([^`]+)`", row.split("|")[2])]
    assert codes
    names = {name for code in codes for name in re.findall(r"[A-Za-z_]\w+", code)}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", SOURCE)] == []


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_page_of_a_paper_has_its_parts(path: Path):
    text = path.read_text()
    for part in ("\n## What people get wrong\n", "\nregard train ", "\n![", "](../../src/regard/"):
        assert part in text, part


FRAMES = list(live.frames())


@pytest.mark.parametrize("name", sorted({frame.name for frame in FRAMES}))
def test_every_live_page_is_stored_small_and_made_by_commands_beside_it(name: str):
    stored = live.FOLDER / f"{name}.json"
    assert stored.stat().st_size < 700_000
    assert 'id="regard">{"version":1' in live.page(stored)
    assert any(frame.made for frame in FRAMES if frame.name == name), (
        f"no section that shows {name} says how it is made"
    )


def test_stored_live_pages_are_shown_and_take_a_few_megabytes():
    stored = {path.stem: path.stat().st_size for path in live.FOLDER.glob("*.json")}
    assert stored.keys() == {frame.name for frame in FRAMES}
    assert sum(stored.values()) < 4_000_000


def test_a_page_of_regard_show_is_stored_and_drawn_again_as_it_was(tmp_path: Path):
    drawn = live.page(live.FOLDER / "bahdanau.json")
    (tmp_path / "page.html").write_text(drawn)
    live.store(tmp_path / "page.html", tmp_path / "stored.json")
    assert live.page(tmp_path / "stored.json") == drawn


def test_a_file_that_is_no_attention_page_is_not_stored(tmp_path: Path):
    (tmp_path / "page.html").write_text("<p>nothing</p>")
    with pytest.raises(SystemExit, match="is not a page of regard show"):
        live.store(tmp_path / "page.html", tmp_path / "stored.json")


def test_verdicts_of_the_lab_are_those_of_its_findings():
    found = json.loads((findings.LAB / "axis" / "finding.json").read_text())
    link = "[The lab on axis, tying](../lab.md#verdicts)\n"
    shown = assemble.page(link, Path("docs/papers/page.md"), "papers/page.md")
    [first, second] = [line for line in shown.splitlines() if line.startswith("| [`")]
    assert first.startswith(f"| [`axis`](../lab-depth.md#axis) | {found['question']} |")
    assert f"| **{found['verdict']}** |" in first
    assert second.startswith("| [`tying`](../lab-training.md#tying) |")


def test_a_finding_is_written_into_the_pages_of_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs" / "lab", docs / "lab")
    for path in (ROOT / "docs").glob("lab*.md"):
        shutil.copyfile(path, docs / path.name)
    before = {path.name: path.read_text() for path in docs.glob("lab*.md")}
    monkeypatch.setattr(findings, "DOCS", docs)
    monkeypatch.setattr(findings, "LAB", docs / "lab")
    findings.write()
    assert {path.name: path.read_text() for path in docs.glob("lab*.md")} == before  # the pages are up to date
    new = tmp_path / "runs" / "heads"
    new.mkdir(parents=True)
    facts = json.loads((docs / "lab" / "axis" / "finding.json").read_text()) | {"name": "heads", "verdict": "refuted"}
    (new / "finding.json").write_text(json.dumps(facts))
    (new / "picture.svg").write_text("<svg><title>One &amp; many</title></svg>")
    assert findings.copy(tmp_path / "runs") == ["heads"]
    findings.write()
    page = (docs / "lab-attention.md").read_text()
    assert "![One & many](lab/heads/picture.svg)\n\n*Verdict.* **refuted** (full size, seeds 11 to 13" in page
    assert re.search(
        r"^\| \[`heads`\]\(lab-attention\.md#heads\) \|.*\*\*refuted\*\*", (docs / "lab.md").read_text(), re.MULTILINE
    )


def test_a_claim_without_a_run_says_how_to_run_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(findings, "read", lambda name: None)
    shown = assemble.page("[The lab on tying](../lab.md#verdicts)\n", Path("docs/papers/page.md"), "papers/page.md")
    assert "| not run yet: `regard lab tying` | – |" in shown


def test_a_claim_that_the_lab_does_not_know_is_refused():
    with pytest.raises(assemble.NotFound, match="the lab has no claim gravity"):
        assemble.page("[The lab on gravity](../lab.md#verdicts)\n", Path("docs/papers/page.md"), "papers/page.md")


def test_papers_ask_the_lab_about_claims_of_every_group():
    pages = [path.read_text() for path in (ROOT / "docs" / "papers").glob("*.md")]
    asked = {claim for page in pages for found in assemble._LAB.findall(page) for claim in re.findall(r"\w+", found[0])}
    assert asked <= set(catalogue.NAMES)
    assert [group for group, names in catalogue.GROUPS.items() if not asked & set(names)] == []


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="gone.html">', "page.html leads to gone.html, which is not there"),
        ('<img src="gone.png">', "page.html leads to gone.png, which is not there"),
        ('<a href="other.html#gone">', "page.html leads to other.html#gone, which has no such anchor"),
        ('<a href="#gone">', "page.html leads to #gone, which has no such anchor"),
        ('<script src="https://example.org/x.js"></script>', "page.html loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "page.html loads //example.org/x.css"),
    ],
)
def test_a_fault_of_the_built_site_is_found(html: str, fault: str, tmp_path: Path):
    (tmp_path / "other.html").write_text('<h2 id="here">Here</h2>')
    (tmp_path / "page.html").write_text(f'<a href="other.html#here"><a href="https://example.org">{html}')
    assert checks.faults(tmp_path) == [fault]


def test_a_style_sheet_that_loads_from_elsewhere_is_found(tmp_path: Path):
    (tmp_path / "book.css").write_text("body { background: url(https://example.org/x.png) }")
    assert checks.faults(tmp_path) == ["book.css loads from elsewhere"]


NOTEBOOKS = sorted((ROOT / "docs" / "ways").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_its_page_with_the_results_of_one_run(path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    expected = notebooks.cells(path.with_suffix(".md").read_text())
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in expected
    ]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert all(cell.outputs for cell in code if re.search(r"^(regard|print)", cell.source, re.MULTILINE))
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text())
    assert path.stat().st_size < 300_000


def test_a_line_that_cannot_run_in_a_cell_becomes_a_comment():
    commands = "```sh\nregard train dates\nregard serve runs/dates  # a page; until Ctrl-C\n```\n"
    page = f"Text.\n\n{commands}\n```python\nx = 1\n```\n"
    [text, shell_cell, python] = notebooks.cells(page)
    assert text.source == "Text."
    assert shell_cell.source == "%%bash\nregard train dates\n# regard serve runs/dates  # a page; until Ctrl-C"
    assert python.source == "x = 1"


def test_a_recipe_of_a_page_becomes_a_cell_that_writes_it():
    page = "```toml\n# small.toml\n[train]\nsteps = 9\n```\n\n```toml\n[train]\nlearning_rate = 1e-3\n```\n"
    [recipe, text] = notebooks.cells(page)
    assert recipe.source == "%%writefile small.toml\n[train]\nsteps = 9"
    assert (text.cell_type, "learning_rate" in text.source) == ("markdown", True)


def test_pictures_that_commands_write_are_outputs_of_their_cell(tmp_path: Path):
    (tmp_path / "curves.png").write_bytes(b"picture")
    drawn = tmp_path / "runs" / "lab" / "scale" / "picture.svg"
    drawn.parent.mkdir(parents=True)
    drawn.write_text("<svg/>")
    code = "%%bash\nregard compare a b --plot curves.png\nregard compare a c --plot none.png\nregard lab scale"
    assert [output.data for output in notebooks.pictures(code, tmp_path)] == [
        {"image/png": "cGljdHVyZQ=="},
        {"image/svg+xml": "<svg/>"},
    ]
    assert notebooks.pictures('plt.savefig("curves.png")', tmp_path) == []  # a notebook shows it already


def test_the_book_shows_the_results_of_a_notebook_below_the_code(tmp_path: Path):
    outputs = [{"text": ["BLEU 40\n"]}, {"data": {"image/png": "cGljdHVyZQ==", "text/plain": "<Figure>"}}]
    cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": outputs}]
    (tmp_path / "page.ipynb").write_text(json.dumps({"cells": cells}))
    shown = assemble.results("# Title\n\nText.\n\n```sh\nregard evaluate a\n```\n\nEnd.\n", tmp_path / "page.ipynb")
    assert re.search(r"evaluate a\n```\n\n<details.*BLEU 40\n```.*base64,cGljdHVyZQ==.*\nEnd\.", shown, re.DOTALL)
    assert "<Figure>" not in shown
    assert shown.startswith("# Title\n\n*")
    assert "](page.ipynb)" in shown


def test_long_inline_code_may_be_cut_and_an_option_may_not():
    long = f"`regard train {'x' * 60}`"
    shown = assemble.page(f"With {long} or `--beam 5`.\n", Path("docs/page.md"), "page.md")
    assert f"{long}{{ .long }}" in shown
    assert "`--beam 5`." in shown


def test_outputs_lose_progress_and_pages():
    outputs = [
        nbformat.v4.new_output("stream", text="step 5 of 9: training loss 2.1, 900 tokens/s, about 2 seconds left\n"),
        nbformat.v4.new_output("stream", text=f"{ROOT}/runs/dates is ready.\n"),
        nbformat.v4.new_output("display_data", {"text/html": "<iframe>", "text/plain": "seen"}),
    ]
    [text, page] = notebooks.shortened(outputs)
    assert text.text == "runs/dates is ready.\n"
    assert page.data == {"text/plain": "seen"}


@pytest.mark.storm
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path):
    reader_files(tmp_path)
    notebook = nbformat.v4.new_notebook(cells=notebooks.cells(path.with_suffix(".md").read_text()))
    with shell(tmp_path, 2) as environment:
        resources = {"metadata": {"path": str(tmp_path)}}
        client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources)
        client.execute(env=environment)


@pytest.mark.storm
def test_a_built_book_is_searched_from_the_disk_and_loads_nothing_from_elsewhere():
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    if CHROMIUM is None:
        pytest.skip("chromium is not installed.")
    subprocess.run([sys.executable, "-m", "book"], cwd=ROOT, check=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((ROOT / "site" / "index.html").as_uri())
        page.get_by_role("textbox", name="Search").click()
        page.keyboard.type("hash buckets")
        page.locator(".md-search-result__link").first.wait_for(timeout=120_000)
        assert "gallery.html" in " ".join(
            link.get_attribute("href") or "" for link in page.locator(".md-search-result__link").all()
        )
        assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []
        browser.close()
