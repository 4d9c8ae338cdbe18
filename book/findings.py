"""The findings in docs/lab, and the pages that state them: the table of docs/lab.md, the sections of docs/lab-*.md.

python -m book.findings                  # write the findings of docs/lab into the pages
python -m book.findings runs/lab         # the same, after copying the findings of that folder into docs/lab
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

from regard.lab import catalogue
from regard.lab.experiment import read_finding
from regard.lab.page import brief, table

DOCS = Path(__file__).parent.parent / "docs"
LAB = DOCS / "lab"
_TABLE = re.compile(r"^\| claim \| question \|.*?(?=\n\n)", re.DOTALL | re.MULTILINE)
_CLAIM = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
_SECTION = re.compile(r"^(?=## )", re.MULTILINE)
_VERDICT = re.compile(
    r"(?:^!\[[^\]]*\]\(lab/\w+/picture\.svg\)\n\n)?^\*Verdict\.\*.*?(?=\n\n)", re.DOTALL | re.MULTILINE
)
_TITLE = re.compile(r"<title>([^<]+)</title>")


def read(name: str, folder: Path | None = None) -> dict[str, Any] | None:
    """The facts of the finding about a claim, by default in docs/lab; None if there is none."""
    path = (folder or LAB) / name / catalogue.FINDING
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def copy(source: Path) -> list[str]:
    """Copy the findings of a folder into docs/lab: what a page needs, without the trials."""
    names = [name for name in catalogue.NAMES if read(name, source)]
    for name in names:
        (LAB / name).mkdir(exist_ok=True)
        for file in (catalogue.FINDING, "picture.svg"):
            shutil.copyfile(source / name / file, LAB / name / file)
    return names


def write() -> None:
    """Write the findings into the pages; all else on them stays."""
    page = DOCS / "lab.md"
    page.write_text(_TABLE.sub(lambda _: all_findings(), page.read_text(), count=1))
    for group in catalogue.GROUPS:
        page = DOCS / f"lab-{group}.md"
        head, *sections = _SECTION.split(page.read_text())
        page.write_text(head + "".join(section(text) for text in sections))


def all_findings() -> str:
    """The table of docs/lab.md: what `regard lab --table --out docs/lab` prints, with links to the sections."""
    found = [one for name in catalogue.NAMES if (one := read_finding(LAB / name)) is not None]
    known = {one.facts["name"] for one in found}
    rows = table(found, [catalogue.facts(name) for name in catalogue.NAMES if name not in known])
    groups = {name: group for group, names in catalogue.GROUPS.items() for name in names}
    return _CLAIM.sub(lambda row: f"| [`{row[1]}`](lab-{groups[row[1]]}.md#{row[1]}) |", rows)


def section(text: str) -> str:
    """The section of a claim with its picture and verdict of today."""
    name = text.split("\n", 1)[0].removeprefix("## ").strip()
    return _VERDICT.sub(lambda _: verdict(name, read(name)), text, count=1)


def verdict(name: str, found: Mapping[str, Any] | None) -> str:
    """The lines of a section that depend on the finding."""
    if found is None:
        return "*Verdict.* Not run."
    size = "full size" if found["scale"] == 1 else f"{found['scale']:.2g} of the full size"
    said = (
        f"*Verdict.* **{found['verdict']}** ({size}, seeds {found['seeds'][0]} to {found['seeds'][-1]}, "
        f"{max(found['seconds'] / 60, 0.1):.1f} minutes of processor time). Numbers: {brief(found['numbers'])}."
    )
    title = _TITLE.search((LAB / name / "picture.svg").read_text())
    picture = f"![{unescape(title[1]) if title else name}](lab/{name}/picture.svg)"
    return "\n".join([picture, "", *textwrap.wrap(said, 130, break_long_words=False, break_on_hyphens=False)])


if __name__ == "__main__":
    for source in sys.argv[1:]:
        print(f"copied: {', '.join(copy(Path(source))) or 'none'}")
    write()
