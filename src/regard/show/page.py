"""The attention page: one HTML file that holds its numbers and its one script, and may load nothing."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from regard.show.html import document, escaped, hashed

_ENTRY = "main"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_STYLES = ("page.css", "views.css")
_TITLES = {"source": "Source", "read": "Read", "said": "Said"}


def page(payload: dict[str, Any], blobs: Sequence[bytes]) -> str:
    """A page of looks: numbers as data that never runs, and a script that the policy allows by its hash alone."""
    text = script()
    live = "connect-src 'self'; " if payload["live"] else ""
    body = [_unscripted(payload), _data(payload, "application/json", "regard")]
    body += [
        f'<script type="application/octet-stream" id="blob-{number}">{base64.b64encode(blob).decode()}</script>'
        for number, blob in enumerate(blobs)
    ]
    body.append(f'<script type="module">{text}</script>')
    also = f"script-src {hashed(text)}; img-src data: blob:; {live}"
    return document(payload["title"], style(), "\n".join(body), also=also)


@cache
def script() -> str:
    """All modules as one, in order of dependence; names are unique, so imports and exports can simply go."""
    joined: dict[str, str] = {}

    def join(name: str) -> None:
        text = _static(f"{name}.js")
        for other in _IMPORT.findall(text):
            if other not in joined:
                join(other)
        joined[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    join(_ENTRY)
    return "\n".join(joined.values())


@cache
def style() -> str:
    """All styles as one."""
    return "\n".join(_static(name) for name in _STYLES)


def _static(name: str) -> str:
    return files("regard.show").joinpath("static", name).read_text("utf-8")


def json_text(value: Any) -> str:
    """What the page reads as JSON; ASCII, so that half a surrogate pair does no harm."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _data(value: Any, kind: str, name: str) -> str:
    """JSON in which nothing can end its element."""
    text = json_text(value).replace("<", "\\u003c")
    return f'<script type="{kind}" id="{name}">{text}</script>'


def _finite(value: Any) -> Any:
    """The same without numbers that JSON cannot write; the page shows a dash for them."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _unscripted(payload: dict[str, Any]) -> str:
    """What one sees where scripts do not run: the texts."""
    lines = [
        f"<h1>{escaped(payload['title'])}</h1>",
        "<p>This page draws with JavaScript, which is switched off here.</p>",
    ]
    for look in payload["looks"]:
        lines.append(f"<h2>{escaped(look['label'])}<small>{escaped(look['about'])}</small></h2>")
        lines += [
            f"<p><b>{title}</b> <bdi>{escaped(' '.join(look['sides'][name]['word_texts']))}</bdi></p>"
            for name, title in _TITLES.items()
            if name in look["sides"]
        ]
    return f"<noscript>{''.join(lines)}</noscript>"
