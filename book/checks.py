"""Checks of the built site: every link, anchor and picture is there, and no page loads anything from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_RUN_LATER = "live"  # attention pages: their anchors are the selection that their script reads


@dataclass
class Page(HTMLParser):
    """The names of a page that links can end at, and what it links to and loads."""

    path: Path
    names: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        found = {name: value or "" for name, value in attrs}
        self.names.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in _LOADS and _LOADS[tag] in found and found.get("rel") != "canonical":
            self.loads.append(found[_LOADS[tag]])


def faults(site: Path) -> list[str]:
    """What is wrong with a built site, one line each."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in (*page.links, *page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    found.append(f"{name} loads {address}")
                continue
            target = _target(site, path, parts.path)
            if not target.exists():
                found.append(f"{name} leads to {address}, which is not there")
                continue
            named = pages[target].names if target in pages and target.parent.name != _RUN_LATER else None
            if parts.fragment and named is not None and unquote(parts.fragment) not in named:
                found.append(f"{name} leads to {address}, which has no such anchor")
    for sheet in sorted(site.rglob("*.css")):
        text = sheet.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text or "@import url" in text:
            found.append(f"{sheet.relative_to(site)} loads from elsewhere")
    return found


def _target(site: Path, path: Path, address: str) -> Path:
    """The file that an address without a host names."""
    if not address:
        return path
    start = site if address.startswith("/") else path.parent
    target = (start / unquote(address).lstrip("/")).resolve()
    return target / "index.html" if target.is_dir() else target
