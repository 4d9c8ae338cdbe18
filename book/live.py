"""Attention pages in the book: stored as data, drawn with the page of today.

python -m book.live runs/bahdanau "Friday, 1 May 2026" bahdanau     # docs/live/bahdanau.json
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import regard
from regard.show.html import page as attention_page
from regard.show.payload import page_payload

FOLDER = Path(__file__).parent.parent / "docs" / "live"


def page(path: Path) -> str:
    """A stored page as HTML."""
    stored = json.loads(path.read_text())
    return attention_page(stored["payload"], [base64.b64decode(blob) for blob in stored["blobs"]])


def store(folder: str, text: str, name: str, title: str) -> Path:
    """Store what a model attends to in a text."""
    payload, blobs = page_payload(regard.load(folder).look(text).traces, title=title)
    stored = {"payload": payload, "blobs": [base64.b64encode(blob).decode() for blob in blobs]}
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    return path


if __name__ == "__main__":
    model, text, name = sys.argv[1:4]
    made = store(model, text, name, title=sys.argv[4] if len(sys.argv) > 4 else name)
    print(f"{made}: {made.stat().st_size:,} bytes")
