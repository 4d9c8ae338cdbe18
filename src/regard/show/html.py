"""HTML that loads nothing: the attention page with its data and script, heatmaps, the data report, escaped text."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from regard.data.read.report import DataReport, LengthHistogram

_LEVELS = 24
_MAX_LABEL = 20  # characters
_FAINTEST_MAXIMUM = 0.25
# Invisible and direction-changing characters are written out; the two joiners stay, because some scripts need them.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"
_ROW = 18  # pixels of a bar
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_STYLES = ("page.css", "views.css")
_TITLES = {"source": "Source", "decoder_input": "Decoder input", "target": "Target"}

STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfb; --ink: #1c1d20; --quiet: #6c6f76; --line: #e3e3de;
  --field: #f4f4f0; --accent: #17508c; --wrong: #b3261e }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e7e7e4; --quiet: #989ba3; --line: #303339;
  --field: #1d2024; --accent: #86b7f3; --wrong: #f2897f } }
@media print { :root { --paper: #fff; --ink: #000; --quiet: #555; --line: #ccc; --field: #fff; --accent: #17508c;
  --wrong: #b3261e; font-size: 11px; print-color-adjust: exact } .wide svg { max-width: 100%; height: auto } }
body { margin: 0 auto; max-width: 64rem; padding: 3rem 1.5rem 5rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; font-variant-numeric: tabular-nums; text-rendering: optimizeLegibility }
h1 { margin: 0 0 .4rem; font-size: 1.9rem; font-weight: 600; line-height: 1.2; letter-spacing: -.015em }
h2 { margin: 2.8rem 0 .8rem; font-size: 1.1rem; font-weight: 600; break-after: avoid }
p { margin: .3rem 0; max-width: 46rem }
.quiet, h2 small, figcaption { color: var(--quiet) } h2 small { margin-left: .6em; font-size: .85rem; font-weight: 400 }
figure { margin: 0; break-inside: avoid } figcaption { font-size: .8rem }
.wide { margin: 1rem 0; overflow-x: auto } .wide svg { display: block; margin: .6rem 0 }
svg text { fill: var(--ink); font-family: system-ui, sans-serif; unicode-bidi: isolate; white-space: pre }
.field { fill: var(--field) } .cells { fill: var(--accent); shape-rendering: crispEdges } .grid { stroke: var(--paper) }
svg .key { fill: var(--quiet) }
"""
_DATA_STYLE = """
table { border-collapse: collapse; font-size: .9rem } th { text-align: left; font-weight: 400; color: var(--quiet) }
td { text-align: right } th, td { padding: .22rem 1.5rem .22rem 0; border-bottom: 1px solid var(--line) }
h3 { font-size: .95rem; font-weight: 500 } .warning { border-left: 3px solid var(--wrong); padding-left: .8rem }
.side { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1.2rem 3rem }
.bars { display: block; width: 100%; font-size: 11px } .bars rect { fill: var(--accent) }
.bars text { fill: var(--quiet) }
"""


def page(payload: dict[str, Any], blobs: Sequence[bytes]) -> str:
    """The page of a payload: data that never runs, and one script that the policy allows by its hash."""
    data = json_text(payload).replace("<", "\\u003c")  # data cannot end its own element
    body = [_noscript(payload), f'<script type="application/json" id="regard">{data}</script>']
    body += [
        f'<script type="application/octet-stream" id="blob-{number}">{base64.b64encode(blob).decode()}</script>'
        for number, blob in enumerate(blobs)
    ]
    body.append(f'<script type="module">{script()}</script>')
    live = "connect-src 'self'; " if payload["live"] else ""
    policy = f"script-src {csp_hash(script())}; img-src data: blob:; {live}"
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

    join("main")
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
    lines = [f"<h1>{escaped(payload['title'])}</h1>"]
    lines.append("<p>This page draws with JavaScript, which is switched off here.</p>")
    for trace in payload["traces"]:
        lines.append(f"<h2>{escaped(trace['label'])}<small>{escaped(trace['model'])}</small></h2>")
        lines += [
            f"<p><b>{title}</b> <bdi>{escaped(' '.join(trace['sides'][name]['word_texts']))}</bdi></p>"
            for name, title in _TITLES.items()
            if name in trace["sides"]
        ]
    return f"<noscript>{''.join(lines)}</noscript>"


def overview(source_tokens: list[str], target_tokens: list[str], weights: Mapping[str, Tensor], *, title: str) -> str:
    """A heatmap of the mean attention over layers and heads: cross-attention, or self-attention of a single text."""
    rows = target_tokens or source_tokens
    kind, columns = ("cross", source_tokens) if source_tokens and target_tokens else ("self", rows)
    layers = [heads for name, heads in weights.items() if name.endswith(kind)]
    if not layers:
        return ""
    drawn = heatmap(rows, columns, torch.cat(layers).mean(dim=0), title=title)
    return f'<figure class="wide"><figcaption>{escaped(title)}</figcaption>{drawn}</figure>'


def heatmap(rows: list[str], columns: list[str], values: Tensor, *, title: str, size: int = 22) -> str:
    """An SVG of weights, rows by columns with labels, cells `size` pixels wide; a legend gives the darkest value."""
    rows, columns = [_label(text) for text in rows], [_label(text) for text in columns]
    left, top = (12 + 8 * max(map(_width, labels), default=0) for labels in (rows, columns))
    width, height = size * len(columns), size * len(rows)
    whole = left + width + 4, top + height + 26
    # A floor: attention spread evenly over many tokens stays faint.
    most = max(_FAINTEST_MAXIMUM, float(values.nan_to_num(0).max()))
    lines = "".join(f"M0 {size * row}h{width}" for row in range(1, len(rows)))
    lines += "".join(f"M{size * column} 0v{height}" for column in range(1, len(columns)))
    row_labels = "".join(
        f'<text x="-8" y="{size * (row + 0.5):g}" dy=".36em" text-anchor="end">{escaped(text)}</text>'
        for row, text in enumerate(rows)
    )
    column_labels = "".join(
        f'<text transform="translate({size * (column + 0.5):g} -8) rotate(-90)" dy=".36em">{escaped(text)}</text>'
        for column, text in enumerate(columns)
    )
    return (
        f'<svg role="img" viewBox="0 0 {whole[0]} {whole[1]}" width="{whole[0]}" height="{whole[1]}" font-size="13">'
        f"<title>{escaped(title)}</title>"
        f'<g transform="translate({left} {top})"><rect class="field" width="{width}" height="{height}"/>'
        f'<g transform="scale({size})">{_cells(values / most)}</g>'
        f'<path class="grid" d="{lines}"/>{row_labels}{column_labels}'
        f'<rect class="cells" y="{height + 10}" width="12" height="12"/>'
        f'<text class="key" x="18" y="{height + 16}" dy=".36em" font-size="11">{most:.2f}</text></g></svg>'
    )


def document(title: str, style: str, body: str, *, policy: str = "") -> str:
    """An HTML document that loads and runs nothing except its style, by its hash, and what `policy` allows."""
    policy = f"default-src 'none'; style-src {csp_hash(style)}; {policy}base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def csp_hash(text: str) -> str:
    """The hash of a style or script, as a content security policy (CSP) names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def escaped(text: str) -> str:
    """Text escaped for HTML: no markup, nothing invisible, nothing that changes the writing direction."""
    return html.escape("".join(map(_visible, text)), quote=True)


def _visible(character: str) -> str:
    """A character, or a visible stand-in: NUL is ␀, a right-to-left override ‹202E›."""
    if unicodedata.category(character) not in _HIDDEN or character in _JOINERS:
        return character
    number = ord(character)
    return chr(0x2400 + number) if number < 0x20 else f"‹{number:04X}›"


def _label(text: str) -> str:
    return text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 1] + "…"


def _width(text: str) -> int:
    """The approximate width of a text in characters: a Chinese character counts two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in "".join(map(_visible, text)))


def _cells(values: Tensor) -> str:
    """Weights T x S as one path per level of opacity; cells of weight zero are left out."""
    levels = (values.float().nan_to_num(0).clamp(0, 1) * _LEVELS).round().int().tolist()
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(levels):
        for column, level in enumerate(line):
            if level:
                paths.setdefault(level, []).append(f"M{column} {row}h1v1h-1z")
    return "".join(
        f'<path class="cells" fill-opacity="{level / _LEVELS:.2f}" d="{"".join(cells)}"/>'
        for level, cells in sorted(paths.items())
    )


def data_page(report: DataReport, warnings: Sequence[str]) -> str:
    """The data report as a page."""
    rows = [("texts", report.texts), *((f"left out: {reason}", n) for reason, n in report.left_out.items())]
    rows += [("trained on", report.kept), ("duplicates among all texts", report.duplicates)]
    if report.stripped:
        rows.append(("lines with control characters removed", report.stripped))
    for overlap in report.overlaps:
        rows += [(f"{what}, of {all_of:,}", count) for what, count, all_of in overlap.rows()]
    rows += [(f"{name}, each text {weight:g} times per epoch", texts) for name, texts, weight in report.subcorpora]
    table = "".join(f"<tr><th>{escaped(name)}</th><td>{count:,}</td></tr>" for name, count in rows)
    names = ("Source", "Target") if len(report.sides) > 1 else ("Text",)
    charts = "".join(_chart(name, side) for name, side in zip(names, report.sides))
    warned = "".join(f'<p class="warning">{escaped(text)}</p>' for text in warnings)
    title = ", ".join(report.names)
    lengths = f'<h2>Lengths in tokens</h2><div class="side">{charts}</div>'
    body = f"<h1>{escaped(title)}</h1>{warned}<table>{table}</table>{lengths}"
    return document(title, STYLE + _DATA_STYLE, body)


def _chart(name: str, side: LengthHistogram) -> str:
    """The histogram of text lengths."""
    most = max(side.counts, default=1) or 1
    bars = []
    for number, (start, stop, count) in enumerate(zip(side.edges, side.edges[1:], side.counts)):
        y, width = number * _ROW, 260 * count / most
        bars.append(
            f'<text x="74" y="{y + 12}" text-anchor="end">{start:,} to {stop - 1:,}</text>'
            f'<rect x="80" y="{y + 2}" width="{width:.1f}" height="12"></rect>'
            f'<text x="{86 + width:.1f}" y="{y + 12}">{count:,}</text>'
        )
    height = _ROW * len(side.counts)
    heading = f"{name}: {side.tokens:,} tokens, the longest text {side.max_length:,}"
    picture = f'<svg class="bars" viewBox="0 0 420 {height}" role="img" aria-label="{heading}">{"".join(bars)}</svg>'
    return f"<section><h3>{heading}</h3>{picture}</section>"
