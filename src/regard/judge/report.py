"""What became of a training run, as one HTML file that needs nothing else: no script, no network, no fonts."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from regard.judge.evaluate import Evaluation, Row
from regard.show.page import STYLE, document, escaped, overview
from regard.show.trace import Seen
from regard.store.files import write_file
from regard.version import __version__

_POINTS = 500
_ROWS_A_TABLE = 12
_WIDTH, _HEIGHT = 460, 200

_STYLE = (
    STYLE
    + """
.numbers { display: flex; flex-wrap: wrap; gap: 1rem 3rem; margin: 2rem 0 0 }
.numbers div { display: flex; flex-direction: column-reverse } dd { margin: 0; font-size: 2rem; font-weight: 300;
  line-height: 1.15; letter-spacing: -.02em } .numbers div:first-child dd { color: var(--accent); font-weight: 500 }
dt { color: var(--quiet); font-size: .8rem }
.side { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1.2rem 3rem }
.chart { display: block; width: 100%; font-size: 11px } .chart text { fill: var(--quiet) }
.chart .rule { stroke: var(--line) } .chart polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round }
.chart .minor { stroke: var(--quiet); opacity: .75 } .chart .major { stroke: var(--accent) }
.chart text.minor { stroke: none } .chart text.major { stroke: none; fill: var(--accent) }
table { align-self: start; width: 100%; border-collapse: collapse; font-size: .85rem } tr { break-inside: avoid }
th { color: var(--quiet); font-weight: 400; text-align: right } td { text-align: right }
th, td { padding: .22rem 0 .22rem .9rem; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { padding-left: 0; text-align: left } .bars { width: 30% }
th.exact { color: var(--accent) }
.bar { display: block; width: 100%; height: 9px } .bar .exact { fill: var(--accent) } .bar .chrf { fill: var(--quiet);
  opacity: .45 }
.samples { margin: 0; padding: 0; list-style: none } .samples li { padding: .55rem 0 .55rem 1.9rem;
  border-bottom: 1px solid var(--line); break-inside: avoid; overflow-wrap: anywhere; position: relative }
.mark { position: absolute; left: .2rem; color: var(--accent) } .wrong .mark { color: var(--wrong) }
.samples bdi { white-space: pre-wrap } .samples .quiet { display: block; font-size: .85rem }
footer { margin-top: 3.5rem; padding-top: .8rem; border-top: 1px solid var(--line); color: var(--quiet);
  font-size: .8rem; overflow-wrap: anywhere } footer p { max-width: none }
"""
)


class Curve(NamedTuple):
    """Points of (step, value) under a name; `kind` is "major" or "minor"."""

    name: str
    kind: str
    points: list[tuple[float, float]]


def write_report(
    path: Path,
    *,
    title: str,
    evaluation: Evaluation,
    metrics: Path | None,
    looks: Sequence[tuple[str, Seen]],
    samples: int = 12,
    note: str = "",
) -> None:
    """Write the report; `metrics` is a run's metrics.jsonl, `note` says how it came about (the command, the seed)."""
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="quiet">{escaped(note)}</p>' if note else "",
        _headline(evaluation),
        _curves(metrics),
        _rows_section("By source length", "in tokens", evaluation.by_length),
        *(_rows_section(f"By {name}", _order(rows), rows) for name, rows in evaluation.groups.items()),
        _samples_section(evaluation, samples),
        _looks_section(looks),
        _footer(evaluation),
    ]
    write_file(path, document(title, _STYLE, "\n".join(filter(None, body))).encode())


def _headline(evaluation: Evaluation) -> str:
    """The numbers to read first."""
    numbers = {}
    if evaluation.quality is not None:
        found = evaluation.quality
        numbers = {"exact match, %": found.exact, "BLEU": found.bleu, "chrF": found.chrf}
    shown = {name: f"{value:.2f}" for name, value in numbers.items()}
    shown |= {
        "perplexity": f"{evaluation.perplexity:.3f}",
        "bits per byte": f"{evaluation.bits_per_byte:.3f}",
        "loss, nats a token": f"{evaluation.loss:.3f}",
    }
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown.items())
    return f'<dl class="numbers">{tiles}</dl>'


def _curves(metrics: Path | None) -> str:
    """How the run went, if its metrics are there."""
    lines = _read_metrics(metrics)
    training = Curve("training", "minor", _points(lines, "loss"))
    validation = Curve("validation", "major", _points(lines, "valid_loss"))
    exact = Curve("validation", "major", _points(lines, "valid_exact"))
    drawn = [_chart("Loss", [training, validation]), _chart("Exact match, %", [exact])]
    return f'<h2>Learning</h2><div class="side">{"".join(drawn)}</div>' if any(drawn) else ""


def _read_metrics(path: Path | None) -> list[dict[str, object]]:
    """The objects of a metrics.jsonl; a line that is not one (cut off by a kill, say) is passed over."""
    if path is None or not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            value = json.loads(line, parse_int=float)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _points(lines: list[dict[str, object]], name: str) -> list[tuple[float, float]]:
    """(step, value) of every line that has both as finite numbers, in order, thinned out to a few hundred."""
    points = {}
    for line in lines:
        step, value = line.get("step"), line.get(name)
        if isinstance(step, float) and isinstance(value, float) and math.isfinite(step + value):
            points[step] = value
    ordered = sorted(points.items())
    stride = math.ceil(len(ordered) / _POINTS) or 1
    return ordered[::stride]


def _chart(title: str, curves: list[Curve]) -> str:
    """Curves over steps as an SVG, from zero up; nothing if no curve has two points."""
    curves = [curve for curve in curves if len(curve.points) > 1]
    if not curves:
        return ""
    left, top, right, bottom = 44, 34, _WIDTH - 12, _HEIGHT - 26
    last = max(1.0, *(curve.points[-1][0] for curve in curves))
    rows = _ticks(max(value for curve in curves for _, value in curve.points))

    def across(step: float) -> float:
        return left + (right - left) * step / last

    def down(value: float) -> float:
        return bottom - (bottom - top) * max(0.0, value) / rows[-1]

    parts = [f'<text x="0" y="12">{title}</text>']
    for value in rows:
        parts.append(f'<path class="rule" d="M{left} {down(value):.1f}H{right}"/>')
        parts.append(f'<text x="{left - 8}" y="{down(value):.1f}" dy=".35em" text-anchor="end">{value:g}</text>')
    for step in (tick for tick in _ticks(last) if tick <= last):
        parts.append(f'<text x="{across(step):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{step:,.9g}</text>')
    for place, curve in enumerate(curves):
        line = " ".join(f"{across(step):.1f},{down(value):.1f}" for step, value in curve.points)
        parts.append(f'<polyline class="{curve.kind}" points="{line}"/>')
        parts.append(
            f'<text class="{curve.kind}" x="{right - 70 * place}" y="12" text-anchor="end">{curve.name}</text>'
        )
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}"><title>{title}</title>{"".join(parts)}</svg>'
    )


def _ticks(highest: float) -> list[float]:
    """Round numbers from zero to the first that is not below the highest: 0, 500, 1000, 1500 for 1200."""
    highest = highest if highest > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(highest / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= highest / 4)
    return [step * count for count in range(math.ceil(highest / step) + 1)]


def _rows_section(title: str, note: str, rows: Sequence[Row]) -> str:
    """A table of rows, or two of half of them each where there are many."""
    if not rows:
        return ""
    share = len(rows) if len(rows) <= _ROWS_A_TABLE else -(-len(rows) // 2)
    drawn = "".join(_table(rows[start : start + share]) for start in range(0, len(rows), share))
    note = f"<small>{note}</small>" if note else ""
    return f'<h2>{escaped(title)}{note}</h2><div class="side">{drawn}</div>'


def _order(rows: Sequence[Row]) -> str:
    return "" if all(row.name.isdecimal() for row in rows) else "worst first"


def _table(rows: Sequence[Row]) -> str:
    lines = "".join(
        f"<tr><td><bdi>{escaped(row.name)}</bdi></td><td>{row.lines:,}</td><td>{row.exact:.1f}</td>"
        f"<td>{row.chrf:.1f}</td><td>{row.bleu:.1f}</td><td>{_bars(row)}</td></tr>"
        for row in rows
    )
    heads = '<th></th><th>lines</th><th class="exact">exact</th><th>chrF</th><th>BLEU</th>'
    return f'<table><thead><tr>{heads}<th class="bars"></th></tr></thead><tbody>{lines}</tbody></table>'


def _bars(row: Row) -> str:
    """Exact match over chrF, each out of a hundred."""
    return (
        '<svg class="bar" viewBox="0 0 100 9" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="exact" width="{row.exact:.1f}" height="5"/>'
        f'<rect class="chrf" y="6" width="{row.chrf:.1f}" height="3"/></svg>'
    )


def _samples_section(evaluation: Evaluation, samples: int) -> str:
    """The first wrong lines and the first right ones, half and half where there are enough of both."""
    lines = list(zip(evaluation.sources, evaluation.hypotheses, evaluation.references))
    wrong = [line for line in lines if line[1] != line[2]]
    right = [line for line in lines if line[1] == line[2]]
    shown_right = right[: max(samples // 2, samples - len(wrong))]
    shown_wrong = wrong[: samples - len(shown_right)]
    if not (shown_right or shown_wrong):
        return ""
    counts = f"{len(wrong):,} of {len(lines):,} lines are wrong; here the first {len(shown_wrong)} of them, "
    counts += f"and the first {len(shown_right)} that are right"
    items = "".join(_sample(*line) for line in shown_wrong + shown_right)
    return f'<h2>Samples<small>{counts}</small></h2><ol class="samples">{items}</ol>'


def _sample(source: str, said: str, reference: str) -> str:
    lines = f'<span class="quiet"><bdi>{escaped(source)}</bdi></span><bdi>{escaped(said)}</bdi>'
    if said == reference:
        return f'<li><span class="mark" role="img" aria-label="right">✓</span>{lines}</li>'
    return (
        f'<li class="wrong"><span class="mark" role="img" aria-label="wrong">✗</span>{lines}'
        f'<span class="quiet">should be <bdi>{escaped(reference)}</bdi></span></li>'
    )


def _looks_section(looks: Sequence[tuple[str, Seen]]) -> str:
    """A map for each text that was looked at, if the model attends at all."""
    drawn = [overview(seen.source_tokens, seen.target_tokens, seen.weights, title=caption) for caption, seen in looks]
    note = "a row is a token that is said, a column one that is looked at; the mean of all layers and heads"
    return f"<h2>Attention<small>{note}</small></h2>{''.join(drawn)}" if any(drawn) else ""


def _footer(evaluation: Evaluation) -> str:
    """What the numbers rest on."""
    found = evaluation.quality
    dropped = [f"no loss for {count:,} lines: {reason}" for reason, count in evaluation.dropped.items()]
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    versions = f"regard {__version__}, torch {torch.__version__}"
    lines = [
        f"{evaluation.tokens:,} tokens predicted, {evaluation.seconds:.1f} s; {machine}; {versions}",
        *dropped,
        *([f"BLEU {found.bleu_signature}", f"chrF {found.chrf_signature}"] if found else []),
    ]
    return f"<footer>{''.join(f'<p>{escaped(line)}</p>' for line in lines)}</footer>"
