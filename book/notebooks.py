"""Notebooks of the four ways in: each is its page, with the code as cells, and the results and pictures stored.

python -m book.notebooks                   # run all of them, each in an empty folder in runs/book, and store them
python -m book.notebooks look-inside       # this one
python -m book.notebooks --text            # only take over the text of the pages, where their code has not changed
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat

from book.live import ROOT, WORK

WAYS = ROOT / "docs" / "ways"
BLOCK = re.compile(r"^```(?:(sh|python)|toml\n# (\S+\.toml))\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
_SOURCE = re.compile(r"^\[`?([\w.]+)`?\]\((?:\.\./)*src/regard/([\w/]+\.py)\)$", re.MULTILINE)
_FRAME = re.compile(r"^!\[([^\]]*)\]\((?:\.\./)*live/[\w-]+\.json[^)]*\)$", re.MULTILINE)
_UNRUN = re.compile(r"# .*(needs the network|takes (minutes|hours)|until Ctrl-C)")
_PROGRESS = re.compile(r"^step [\d,]+ of [\d,]+: .*(left|tokens/s)\n", re.MULTILINE)
_PICTURE = re.compile(r"[\w./-]+\.png\b")
_CLAIM = re.compile(r"^regard lab (\w+)", re.MULTILINE)
_MOST = 6_000  # characters of one output


def cells(markdown: str) -> list[Any]:
    """The cells of a page: text, Python, commands, recipes to write; a line that cannot run in a cell is a comment."""
    found = []
    rest = 0
    for block in BLOCK.finditer(markdown):
        found.append(text_cell(markdown[rest : block.start()]))
        language, recipe, code = block[1], block[2], block[3].rstrip()
        if recipe:
            code = f"%%writefile {recipe}\n{code}"
        if language == "sh":
            lines = [f"# {line}" if _UNRUN.search(line) else line for line in code.splitlines()]
            code = "\n".join(["%%bash", *lines])
        found.append(nbformat.v4.new_code_cell(code))
        rest = block.end()
    found.append(text_cell(markdown[rest:]))
    kept = [cell for cell in found if cell.source]
    for number, cell in enumerate(kept):
        cell["id"] = f"cell-{number}"
    return kept


def text_cell(markdown: str) -> Any:
    """A cell of text; what only the book includes, source and live pages, is named."""
    markdown = _FRAME.sub(r"*In the book, a live page stands here: \1*", markdown)
    return nbformat.v4.new_markdown_cell(_SOURCE.sub(r"`\1` in `src/regard/\2`", markdown).strip())


def run(page: Path) -> Path:
    """Run the notebook of a page, and store it beside the page."""
    folder = WORK / page.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    notebook = nbformat.v4.new_notebook(cells=cells(page.read_text()))
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=3600, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs = [*shortened(cell.outputs), *pictures(cell.source, folder)]
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = page.with_suffix(".ipynb")
    path.write_text(nbformat.writes(notebook) + "\n")
    return path


def renew(page: Path) -> Path:
    """Take over the text of a page into its stored notebook, whose results stay: its code must be that of the page."""
    path = page.with_suffix(".ipynb")
    stored = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = cells(page.read_text())
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.source for cell in code] != [cell.source for cell in stored]:
        raise SystemExit(f"the code of {page.name} has changed. Run it: python -m book.notebooks {page.stem}.")
    for cell, run in zip(code, stored):
        cell.outputs, cell.execution_count = run.outputs, run.execution_count
    path.write_text(nbformat.writes(notebook) + "\n")
    return path


def shortened(outputs: list[Any]) -> list[Any]:
    """The outputs of a cell as one text, without progress, pages and paths of this machine, and its result."""
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    text = _PROGRESS.sub("", text.replace(f"{ROOT}/", ""))
    text = text if len(text) <= _MOST else f"{text[:_MOST]}\n...\n"
    found = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text.strip() else []
    for output in outputs:
        if output.output_type != "stream":
            output.get("data", {}).pop("text/html", None)
            found.append(output)
    return found


def pictures(code: str, folder: Path) -> list[Any]:
    """The pictures that the commands of a cell write, as outputs of it; those of Python are its outputs already."""
    commands = code if code.startswith("%%bash") else ""
    plots = [folder / name for name in dict.fromkeys(_PICTURE.findall(commands))]
    found = [folder / "runs" / "lab" / name / "picture.svg" for name in _CLAIM.findall(commands)]
    data = [{"image/png": base64.b64encode(path.read_bytes()).decode()} for path in plots if path.exists()]
    data += [{"image/svg+xml": path.read_text()} for path in found if path.exists()]
    return [nbformat.v4.new_output("display_data", one) for one in data]


def main(names: list[str]) -> None:
    text = "--text" in names
    names = [name for name in names if name != "--text"]
    known = {path.stem: path for path in sorted(WAYS.glob("*.md"))}
    if unknown := sorted(set(names) - known.keys()):
        raise SystemExit(f"docs/ways has no page {', '.join(unknown)}. Known: {', '.join(known)}.")
    act = renew if text else run
    for name in names or [name for name in known if not text or known[name].with_suffix(".ipynb").exists()]:
        path = act(known[name])
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
