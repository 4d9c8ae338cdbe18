"""Charts of training curves and scores, as SVG for a page and as PNG; and the metrics.jsonl behind them."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.evaluation.significance import Row
from regard.extras import extra
from regard.show.html import escaped
from regard.store.files import write_output

Lines = list[dict[str, object]]


def read_metrics(path: Path | None) -> Lines:
    """The objects of a metrics.jsonl; skips a line that is no JSON object (one cut off by a kill, say)."""
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


def points(lines: Lines, name: str) -> list[tuple[float, float]]:
    """(step, value) of every line that has both as finite numbers, in order; the last line of a step counts."""
    found = {}
    for line in lines:
        step, value = line.get("step"), line.get(name)
        if isinstance(step, float) and isinstance(value, float) and math.isfinite(step + value):
            found[step] = value
    return sorted(found.items())


ACCENT, QUIET, _LINE = "#17508c", "#6c6f76", "#dcdcd6"
COLORS = (ACCENT, "#c4511d", "#2b7a4b", "#7a4fa3", "#a07400", "#b02a63", "#0a7a85", "#4d5057")
_DARK = ("#86b7f3", "#ff9d70", "#7bcf9d", "#c6a5f2", "#e3bf5b", "#f58fb8", "#6bcfd8", "#c3c6cc")
_MARKS = "osD^vPX*"
_POINTS = 500  # per curve
_DOTS = 16  # a curve of at most so many points marks each
_LABELS = 12  # of buckets on the axis
_WIDTH, _HEIGHT = 460, 180

STYLE = (
    """
.chart { display: block; width: 100%; font-size: 11px } .chart text { fill: var(--quiet) }
.chart .rule { stroke: var(--line) } .chart polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round }
.minor { --own: var(--quiet) } .major { --own: var(--accent) }
.chart polyline { stroke: var(--own) } .chart circle { fill: var(--own) } .chart .minor { opacity: .75 }
.chart .again { stroke-dasharray: 5 3 }
.plot figcaption { display: flex; flex-wrap: wrap; gap: 0 1.2em; margin-bottom: .4rem }
.key { overflow-wrap: anywhere } .key::before { content: ""; display: inline-block; width: .7em; height: .7em;
  margin-right: .45em; border-radius: 50%; background: var(--own) }
"""
    + " ".join(f".m{number} {{ --own: {color} }}" for number, color in enumerate(COLORS))
    + "\n@media screen and (prefers-color-scheme: dark) { "
    + " ".join(f".m{number} {{ --own: {color} }}" for number, color in enumerate(_DARK))
    + " }\n"
)


class Curve(NamedTuple):
    """A named curve; `style` is its CSS class: "major", "minor", or what `style_of(number)` gives."""

    name: str
    style: str
    points: Sequence[tuple[float, float]]


def style_of(number: int) -> str:
    """The CSS class of the n-th of several curves; after eight, colours repeat with dashes."""
    return f"m{number % len(COLORS)}" + (" again" if number >= len(COLORS) else "")


def key(name: str, style: str) -> str:
    """A legend entry: a name with the colour of its curve."""
    return f'<span class="key {style}"><bdi>{escaped(name)}</bdi></span>'


def chart(title: str, curves: Sequence[Curve], buckets: Sequence[str] = ()) -> str:
    """Curves over steps or over named buckets, from zero up, as an SVG figure; empty if no curve has two points."""
    curves = [curve for curve in curves if len(curve.points) > 1]
    if not curves:
        return ""
    left, top, right, bottom = 44, 10, _WIDTH - 12, _HEIGHT - 26
    start, last = (-0.4, len(buckets) - 0.6) if buckets else (0.0, max(1.0, *(c.points[-1][0] for c in curves)))
    rows = ticks(max(value for curve in curves for _, value in curve.points))
    stride = math.ceil(len(buckets) / _LABELS)
    labels = [(float(number), name) for number, name in enumerate(buckets) if number % stride == 0]
    labels = labels or [(step, f"{step:,.9g}") for step in ticks(last) if step <= last]

    def across(step: float) -> float:
        return left + (right - left) * (step - start) / (last - start)

    def down(value: float) -> float:
        return bottom - (bottom - top) * max(0.0, value) / rows[-1]

    parts = []
    for value in rows:
        parts.append(f'<path class="rule" d="M{left} {down(value):.1f}H{right}"/>')
        parts.append(f'<text x="{left - 8}" y="{down(value):.1f}" dy=".35em" text-anchor="end">{value:g}</text>')
    for step, label in labels:
        text = escaped(label.replace("-", "–"))
        parts.append(f'<text x="{across(step):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{text}</text>')
    for curve in reversed(curves):  # the first lies on top
        points = curve.points[:: math.ceil(len(curve.points) / _POINTS)]
        dots = [(f"{across(step):.1f}", f"{down(value):.1f}") for step, value in points]
        line = " ".join(",".join(dot) for dot in dots)
        parts.append(f'<polyline class="{curve.style}" points="{line}"/>')
        if len(dots) <= _DOTS:
            parts += [f'<circle class="{curve.style}" cx="{x}" cy="{y}" r="2.8"/>' for x, y in dots]
    keys = "".join(key(curve.name, curve.style) for curve in curves)
    return (
        f'<figure class="plot"><figcaption><span>{escaped(title)}</span>{keys}</figcaption>'
        f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}"><title>{escaped(title)}</title>'
        f"{''.join(parts)}</svg></figure>"
    )


def ticks(highest: float) -> list[float]:
    """Round numbers from zero to the first that is not below the highest: 0, 500, 1000, 1500 for 1200."""
    highest = round(highest, 9) if highest > 0 else 1.0  # a perfect BLEU is a little more than a hundred
    power = 10.0 ** math.floor(math.log10(highest / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= highest / 4)
    return [step * count for count in range(math.ceil(highest / step) + 1)]


class Line(NamedTuple):
    """A value per bucket; without a colour it gets the next one."""

    name: str
    values: tuple[float, ...]
    color: str | None = None


class Panel(NamedTuple):
    """Lines over the same buckets, and the number of text lines per bucket."""

    label: str
    buckets: tuple[str, ...]
    counts: tuple[int, ...]
    lines: tuple[Line, ...]


def panel(label: str, rows: Sequence[Row], lines: Sequence[Line]) -> Panel:
    """A panel whose buckets are those of some rows."""
    return Panel(label, tuple(row.name for row in rows), tuple(row.lines for row in rows), tuple(lines))


def draw(path: Path, panels: Sequence[Panel], title: str = "") -> None:
    """Draw panels that have the same lines side by side into a PNG, with the number of text lines below."""
    with extra("demo", "a plot"):
        from matplotlib.figure import Figure

    wide = 7.2 if len(panels) == 1 else 5.4 * len(panels)
    figure = Figure(figsize=(wide, 4.4), dpi=160, layout="constrained")
    axes = figure.subplots(2, len(panels), sharex="col", height_ratios=(5, 1), squeeze=False)
    highest = ticks(max(value for one in panels for line in one.lines for value in line.values))
    for (above, below), one in zip(axes.T, panels):
        _draw_lines(above, one, highest)
        _draw_counts(below, one)
        for axis in (above, below):
            axis.spines[:].set_visible(False)
            axis.tick_params(length=0, colors=QUIET, labelsize=9)
            axis.xaxis.label.set(color=QUIET, fontsize=9)
    for other in axes[0, 1:]:
        other.tick_params(labelleft=False)
    axes[0, 0].set_ylabel(title, color=QUIET, fontsize=9)
    names = [short(line.name, 44) for line in panels[0].lines]
    columns = max(1, min(len(names), int(13 * wide / (max(map(len, names)) + 6))))
    legend = figure.legend(
        axes[0, 0].lines, [str(number) for number in range(len(names))], loc="outside upper left", ncols=columns,
        frameon=False, labelcolor="linecolor",
    )  # fmt: skip
    # In a label, matplotlib would read $ as a formula and hide a name that begins with _.
    for text, name in zip(legend.get_texts(), names):
        text.set(parse_math=False, text=name)
    written, suffix = io.BytesIO(), path.suffix.lower().removeprefix(".")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(written, format=suffix if suffix in figure.canvas.get_supported_filetypes() else "png")
    write_output(path, written.getvalue())


def _draw_lines(axes: Any, panel: Panel, highest: Sequence[float]) -> None:
    """One line with its own colour and marker per model; the first lies on top."""
    columns = range(len(panel.buckets))
    for number, line in enumerate(panel.lines):
        color = line.color or COLORS[number % len(COLORS)]
        style = "-" if number < len(COLORS) else "--"
        axes.plot(
            columns, line.values, style, color=color, linewidth=2, marker=_MARKS[number % len(_MARKS)], markersize=5,
            clip_on=False, zorder=3 - number / 100,
        )  # fmt: skip
    axes.set(ylim=(0, highest[-1]), yticks=list(highest), xlim=(-0.6, len(panel.buckets) - 0.4))
    axes.grid(axis="y", color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_counts(axes: Any, panel: Panel) -> None:
    """A bar per bucket: its number of text lines."""
    columns = range(len(panel.buckets))
    bars = axes.bar(columns, panel.counts, width=0.62, color=_LINE)
    axes.bar_label(bars, [f"{count:,}" for count in panel.counts], color=QUIET, fontsize=8, padding=2)
    axes.set_xticks(list(columns), [name.replace("-", "–") for name in panel.buckets])
    axes.set(yticks=[], xlabel=f"{panel.label}, and the number of lines")
    axes.margins(y=0.35)


def short(name: str, max_characters: int) -> str:
    """A name with its middle cut out if it is too long."""
    half = max_characters // 2
    return name if len(name) <= max_characters else f"{name[: half - 1]}…{name[-half:]}"
