"""The attention page: one self-contained HTML file with its data and its script, which loads nothing."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from regard.show.html import csp_hash, document, escaped

_ENTRY = "main"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_STYLES = ("page.css", "views.css")
_TITLES = {"source": "Source", "decoder_input": "Decoder input", "target": "Target"}


def page(payload: dict[str, Any], blobs: Sequence[bytes]) -> str:
    """The page of a payload: data that never runs, and one script that the policy allows by its hash."""
    text = script()
    live = "connect-src 'self'; " if payload["live"] else ""
    data = json_text(payload).replace("<", "\\u003c")  # data cannot end its own element
    body = [_noscript(payload), f'<script type="application/json" id="regard">{data}</script>']
    body += [
        f'<script type="application/octet-stream" id="blob-{number}">{base64.b64encode(blob).decode()}</script>'
        for number, blob in enumerate(blobs)
    ]
    body.append(f'<script type="module">{text}</script>')
    policy = f"script-src {csp_hash(text)}; img-src data: blob:; {live}"
    return document(payload["title"], style(), "\n".join(body), policy=policy)


@cache
def script() -> str:
    """All modules joined in order of dependence; names are unique, so imports and exports are removed."""
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
    """All style sheets joined."""
    return "\n".join(_static(name) for name in _STYLES)


def _static(name: str) -> str:
    return files("regard.show").joinpath("static", name).read_text("utf-8")


def json_text(value: Any) -> str:
    """JSON for the page, in ASCII: a lone surrogate does no harm."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """The value with None for numbers that JSON cannot write; the page shows a dash for them."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _noscript(payload: dict[str, Any]) -> str:
    """The texts, for readers without JavaScript."""
    lines = [
        f"<h1>{escaped(payload['title'])}</h1>",
        "<p>This page draws with JavaScript, which is switched off here.</p>",
    ]
    for trace in payload["traces"]:
        lines.append(f"<h2>{escaped(trace['label'])}<small>{escaped(trace['model'])}</small></h2>")
        lines += [
            f"<p><b>{title}</b> <bdi>{escaped(' '.join(trace['sides'][name]['word_texts']))}</bdi></p>"
            for name, title in _TITLES.items()
            if name in trace["sides"]
        ]
    return f"<noscript>{''.join(lines)}</noscript>"
