"""Assembles the pages of the book: equations become MathML, and links to source become that source."""

from __future__ import annotations

import ast
import json
import re
import shutil
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

from book import findings, live, notebooks, reference
from regard.lab import catalogue
from regard.lab.page import brief

ROOT = Path(__file__).parent.parent
# Pages of the repository that stand outside docs/, and where the book has them.
OUTSIDE = {
    "ARCHITECTURE.md": "reference/architecture.md",
    "CONTRIBUTING.md": "reference/contributing.md",
    "CHANGELOG.md": "reference/changes.md",
    "bench/RESULTS.md": "reference/benchmarks.md",
}
# Source that pages link to, and the page that the book makes of it.
GENERATED = {
    "src/regard/evaluation/laws.py": "reference/laws.md",
    "src/regard/config/recipe.py": "reference/recipe.md",
    "src/regard/api.py": "reference/python.md",
    "src/regard/cli": "reference/commands.md",
}
_LONG = 60  # characters of inline code, above which it is cut at the end of a line
_FILES = ("*.png", "*.svg", "*.css", "*.js", "*.ipynb")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+(?:\n[^`\n]+)?`)", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^\$\$(.+?)\$\$$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<![\\$\w])\$([^$\n]+?)\$(?![\w$])")
_SOURCE = re.compile(r"^\[`?([\w.]+)`?\]\(((?:\.\./)*src/regard/[\w/]+\.py)\)$", re.MULTILINE)
_PRAGMA = re.compile(r"  # (noqa|fmt|type): .*$")  # what linters read, and no reader
_LAB = re.compile(r"^\[The lab on ([\w, ]+)\]\(((?:\.\./)*)lab\.md#verdicts\)$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_PICTURES: dict[str, Callable[[Any], str]] = {
    "image/png": lambda data: f"data:image/png;base64,{''.join(data).strip()}",
    "image/svg+xml": lambda data: f"data:image/svg+xml;base64,{b64encode(''.join(data).encode()).decode()}",
}


class NotFound(Exception):
    """A page names something that is not there."""


def assemble(folder: Path) -> None:
    """Write every page and picture of the book into a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md"))}
    written |= {name: ROOT / path for path, name in OUTSIDE.items()}
    pages = {name: page(path.read_text(), path.relative_to(ROOT), name) for name, path in written.items()}
    pages |= reference.pages()
    pages |= {f"live/{path.stem}.html": live.page(path) for path in sorted((docs / "live").glob("*.json"))}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for place in (docs, ROOT / "bench"):
        for picture in [found for pattern in _FILES for found in place.rglob(pattern)]:
            path = folder / inside_book(picture)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, path)


def page(markdown: str, home: Path, name: str) -> str:
    """A page as the book shows it; the same text reads well where nothing is replaced."""
    stored = (ROOT / home).with_suffix(".ipynb")
    markdown = results(markdown, stored) if home.parent.name == "ways" and stored.exists() else markdown
    markdown = _SOURCE.sub(lambda found: source(found[1], home, found[2]), markdown)
    markdown = live.FRAME.sub(lambda found: frame(found[1], found[2], found[3] or "", name), markdown)
    markdown = _LAB.sub(lambda found: verdicts(re.findall(r"\w+", found[1]), found[2], home), markdown)
    markdown = outside_code(markdown, equations)
    markdown = outside_code(markdown, lambda text: _LINK.sub(lambda found: relink(found, home, name), text))
    return _CODE.sub(lambda found: marked(found[0]), markdown)


def marked(code: str) -> str:
    """Inline code, with a mark if it may be cut at the end of a line; an option is not, where there is room."""
    return code if code.startswith("```") or len(code) < _LONG else f"{code}{{ .long }}"


def results(markdown: str, notebook: Path) -> str:
    """A page with what its notebook stores below each block: what the code prints, and the pictures it makes."""
    title, rest = markdown.split("\n", 1)
    markdown = (
        f"{title}\n\n*Below the code are the results of one run; the same as [a notebook]({notebook.name}).*\n{rest}"
    )
    cells = iter([cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"])
    return notebooks.BLOCK.sub(lambda found: found[0] + result(next(cells)), markdown)


def result(cell: dict[str, Any]) -> str:
    """The stored outputs of a cell: texts that unfold, and pictures."""
    parts = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        pictures = [_PICTURES[kind](data[kind]) for kind in _PICTURES if kind in data]
        text = "".join(output.get("text") or ([] if pictures else data.get("text/plain", [])))
        if text.strip():
            printed = f"```text\n{text.rstrip()}\n```"
            parts.append(f'<details markdown="1"><summary>What it prints</summary>\n\n{printed}\n\n</details>')
        parts += [f'<p><img class="plot" alt="The picture" src="{address}"></p>' for address in pictures]
    return "".join(f"\n{part}\n" for part in parts)


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Change the text of a page, but not its code."""
    parts = _CODE.split(markdown)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def equations(text: str) -> str:
    """LaTeX between dollars as MathML, which browsers draw without a script."""
    text = _BLOCK.sub(lambda found: f'<div class="equation">{side_by_side(found[1])}</div>', text)
    return _INLINE.sub(lambda found: convert(found[1]), text)


def side_by_side(latex: str) -> str:
    """The equations of a line, each for itself: a narrow page shows them one below the other."""
    return "".join(convert(part.strip(), display="block") for part in latex.split(r"\qquad"))


def source(name: str, home: Path, link: str) -> str:
    """The source of a class, function or method as a block of code under its path and line."""
    path = (ROOT / home.parent / link).resolve()
    text = path.read_text()
    node: Any = ast.parse(text)
    for part in name.split("."):
        node = next((one for one in node.body if getattr(one, "name", None) == part), None)
        if node is None:
            raise NotFound(f"{home}: {path.relative_to(ROOT)} has no {name}")
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    code = "\n".join(_PRAGMA.sub("", line[node.col_offset :]) for line in lines)
    return f'```python title="{path.relative_to(ROOT)}, line {first}"\n{code}\n```'


def frame(caption: str, name: str, selection: str, page: str) -> str:
    """An attention page inside a page, with this view and head selected."""
    if not (ROOT / "docs" / "live" / f"{name}.json").exists():
        raise NotFound(f"{page}: there is no docs/live/{name}.json")
    address = "../" * page.count("/") + f"live/{name}.html{selection}"
    return (
        f'<figure class="live"><iframe src="{address}" title="{caption}" loading="lazy"></iframe>'
        f'<figcaption>{caption} <a href="{address}">Open it alone.</a></figcaption></figure>'
    )


def verdicts(claims: list[str], up: str, home: Path) -> str:
    """What the lab found about these claims, as a table of the findings in docs/lab."""
    rows = ["| claim | question | verdict of the lab | mean ± spread over seeds |", "|---|---|---|---|"]
    for claim in claims:
        group = next((name for name, known in catalogue.GROUPS.items() if claim in known), None)
        if group is None:
            raise NotFound(f"{home}: the lab has no claim {claim}")
        found = findings.read(claim)
        numbers = brief(found["numbers"]) if found else "–"
        verdict = f"**{found['verdict']}**" if found else f"not run yet: `regard lab {claim}`"
        question = catalogue.facts(claim)["question"]
        rows.append(f"| [`{claim}`]({up}lab-{group}.md#{claim}) | {question} | {verdict} | {numbers} |")
    note = f"Sizes, seeds and caveats of these runs: [the lab]({up}lab.md#verdicts). `regard lab NAME` runs one here."
    return "\n".join(rows) + f"\n\n{note}"


def relink(found: re.Match[str], home: Path, name: str) -> str:
    """The same link from a page of the book; what the book does not hold is named without a link's address."""
    target, rest = found[1], found[2]
    if "://" in target or target.startswith("mailto:"):
        return found[0]
    path = (ROOT / home.parent / target).resolve()
    if not path.exists():
        raise NotFound(f"{home}: there is no {target}")
    return "../" * name.count("/") + inside_book(path) + rest


def inside_book(path: Path) -> str:
    """Where the book has a file of the repository."""
    name = path.relative_to(ROOT).as_posix()
    return "index.md" if name == "README.md" else (OUTSIDE | GENERATED).get(name, name.removeprefix("docs/"))
