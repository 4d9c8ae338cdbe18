"""A corpus in numbers, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from regard.show.document import STYLE, document, escaped
from regard.text.report import DataReport, Spread

_STYLE = (
    STYLE
    + """
table { border-collapse: collapse; font-size: .9rem } th { text-align: left; font-weight: 400; color: var(--quiet) }
td { text-align: right } th, td { padding: .22rem 1.5rem .22rem 0; border-bottom: 1px solid var(--line) }
h3 { font-size: .95rem; font-weight: 500 } .warning { border-left: 3px solid var(--wrong); padding-left: .8rem }
.side { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1.2rem 3rem }
.bars { display: block; width: 100%; font-size: 11px } .bars rect { fill: var(--accent) }
.bars text { fill: var(--quiet) }
"""
)
_ROW = 18


def data_page(report: DataReport, warnings: Sequence[str]) -> str:
    """The report as a page."""
    rows = [("texts", report.texts), *((f"left out: {reason}", n) for reason, n in report.left_out.items())]
    rows += [("learnt from", report.kept), ("duplicates among them all", report.duplicates)]
    if report.stripped:
        rows.append(("lines that control characters were taken from", report.stripped))
    if report.overlap is not None:
        rows.append((f"validation texts also learnt from, of {report.overlap[1]:,}", report.overlap[0]))
    rows += [(f"{name}, each text {weight:g} times an epoch", texts) for name, texts, weight in report.parts]
    table = "".join(f"<tr><th>{escaped(name)}</th><td>{count:,}</td></tr>" for name, count in rows)
    names = ("Source", "Target") if len(report.sides) > 1 else ("Text",)
    charts = "".join(_chart(name, side) for name, side in zip(names, report.sides))
    said = "".join(f'<p class="warning">{escaped(text)}</p>' for text in warnings)
    title = ", ".join(report.names)
    lengths = f'<h2>Lengths in tokens</h2><div class="side">{charts}</div>'
    body = f"<h1>{escaped(title)}</h1>{said}<table>{table}</table>{lengths}"
    return document(title, _STYLE, body)


def _chart(name: str, side: Spread) -> str:
    """How many texts there are of each length."""
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
    heading = f"{name}: {side.tokens:,} tokens, the longest text {side.longest:,}"
    picture = f'<svg class="bars" viewBox="0 0 420 {height}" role="img" aria-label="{heading}">{"".join(bars)}</svg>'
    return f"<section><h3>{heading}</h3>{picture}</section>"
