"""Attention pages in the book: made by the commands beside them, stored as data, drawn with the page of today.

python -m book.live                      # make what is missing in docs/live, with the commands of its section
python -m book.live induction beam       # make these two again
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.show.html import page as attention_page

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "live"
WORK = ROOT / "runs" / "book"
FRAME = re.compile(r"^!\[([^\]]*)\]\((?:\.\./)*live/([\w-]+)\.json(#[\w=&.%-]*)?\)$", re.MULTILINE)
_SECTION = re.compile(r"^(?=## )", re.MULTILINE)
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_DATA = re.compile(r'id="regard">(.*?)</script>', re.DOTALL)
_BLOB = re.compile(r'id="blob-\d+">([^<]*)</script>')


@dataclass(frozen=True)
class Live:
    """An attention page of the book: its name, the page that shows it, and the blocks of code that make it."""

    name: str
    home: Path
    blocks: tuple[tuple[str, str], ...]

    @property
    def file(self) -> str:
        """What the commands write."""
        return f"{self.name}.html"

    @property
    def made(self) -> bool:
        """Whether the commands beside the page make it."""
        return any(re.search(rf"\b{self.name}\b", text) and ".html" in text for _, text in self.blocks)


def frames() -> Iterator[Live]:
    """Every attention page that a page of docs/ shows, with the code of its section."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for section in _SECTION.split(path.read_text()):
            blocks = tuple((language, text) for language, text in _BLOCK.findall(section))
            yield from (Live(name, path, blocks) for _, name, _ in FRAME.findall(section))


def page(path: Path) -> str:
    """A stored page as HTML."""
    stored = json.loads(path.read_text())
    return attention_page(stored["payload"], [base64.b64decode(blob) for blob in stored["blobs"]])


def store(html: Path, path: Path) -> None:
    """Store the data of a page that `regard show` wrote."""
    text = html.read_text()
    found = _DATA.search(text)
    if found is None:
        raise SystemExit(f"{html} is not a page of regard show.")
    path.parent.mkdir(exist_ok=True)
    stored = {"payload": json.loads(found[1]), "blobs": _BLOB.findall(text)}
    path.write_text(json.dumps(stored, separators=(",", ":")) + "\n")


def make(live: Live) -> Path:
    """Run the blocks of a section in order, in runs/book, and store the page; finished trainings are not repeated."""
    WORK.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    python = ""  # the blocks of a section share their names, as in one session
    for language, text in live.blocks:
        python += text if language == "python" else ""
        command = ["bash", "-eu", "-c", text] if language == "sh" else [sys.executable, "-c", python]
        subprocess.run(command, cwd=WORK, env=environment, check=True)
    path = FOLDER / f"{live.name}.json"
    store(WORK / live.file, path)
    return path


def main(names: list[str]) -> None:
    known = {live.name: live for live in frames() if live.made}
    if unknown := sorted(set(names) - known.keys()):
        raise SystemExit(f"no page of docs/ makes {', '.join(unknown)}. Known: {', '.join(known)}.")
    for name in names or [name for name in known if not (FOLDER / f"{name}.json").exists()]:
        path = make(known[name])
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
