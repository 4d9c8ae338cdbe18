"""Pictures of findings as SVG that needs no style sheet: means over seeds, and the range of the seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from regard.evaluation.charts import COLORS, style_of, ticks
from regard.lab.claim import Picture
from regard.show.html import escaped

_WIDTH, _HEIGHT = 560, 250
_LEFT, _TOP, _RIGHT, _BOTTOM = 58, 14, 12, 34
_LINE = 18  # pixels of a row of the legend
_CHARACTER = 6.2  # pixels, about


def draw(picture: Picture) -> str:
    """The picture as a stand-alone SVG document, legible on light and dark; a page of ours gives it its own colours."""
    legend, rows = _legend([series.name for series in picture.series]) if len(picture.series) > 1 else ("", 0)
    turned = sum(len(label) + 2 for label in picture.labels) * _CHARACTER > _WIDTH - _LEFT
    bottom = _BOTTOM + (min(120, max(map(len, picture.labels)) * 4) if turned else 0)
    top = _TOP + _LINE * rows + 18
    height = _HEIGHT + top + bottom - _TOP - _BOTTOM
    floor = height - bottom
    found = [value for series in picture.series for values in series.values for value in values if math.isfinite(value)]
    down, rules = _scale(found or [1.0], top, floor, log=picture.log)
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(picture.labels))

    def across(number: int) -> float:
        return _LEFT + step * (number + 0.5)

    parts = [f'<text x="{_LEFT}" y="14" fill="currentColor">{escaped(picture.title)}</text>', legend]
    for value in rules:
        parts.append(f'<path d="M{_LEFT} {down(value):.1f}H{_WIDTH - _RIGHT}" stroke="#8884"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{down(value):.1f}" dy=".35em" text-anchor="end" fill="#777">{value:g}</text>'
        )
    for number, label in enumerate(picture.labels):
        x, y = across(number), floor + 16
        turn = f' transform="rotate(-24 {x:.1f} {y})" text-anchor="end"' if turned else ' text-anchor="middle"'
        parts.append(f'<text x="{x:.1f}" y="{y}" fill="#777"{turn}>{escaped(label)}</text>')
    for number, series in enumerate(picture.series):
        shift = (number - (len(picture.series) - 1) / 2) * min(5.0, step / (len(picture.series) + 1))
        columns = [(across(at) + shift, values) for at, values in enumerate(series.values)]
        parts.append(_series(columns, down, number, joined=picture.joined))
    title = f"<title>{escaped(picture.title)}</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'color="#667" font-family="system-ui, sans-serif" font-size="11" class="finding">{title}{"".join(parts)}</svg>'
    )


def _legend(names: Sequence[str]) -> tuple[str, int]:
    """The names with their colours, in as many rows as they need."""
    parts, x, row = [], float(_LEFT), 1
    for number, name in enumerate(names):
        width = 22 + _CHARACTER * len(name)
        if x + width > _WIDTH and x > _LEFT:
            x, row = float(_LEFT), row + 1
        y = 14 + _LINE * row
        parts.append(
            f'<circle class="{style_of(number)}" cx="{x + 4:.1f}" cy="{y - 4}" r="4" fill="{_color(number)}"/>'
            f'<text x="{x + 12:.1f}" y="{y}" fill="currentColor">{escaped(name)}</text>'
        )
        x += width
    return "".join(parts), row


def _series(
    columns: Sequence[tuple[float, Sequence[float]]], down: Callable[[float], float], number: int, *, joined: bool
) -> str:
    """The mean of each column as a dot, the range of the seeds as a bar, and a line through the means."""
    style, color = style_of(number), _color(number)
    parts, dots = [], []
    for x, values in columns:
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            continue
        low, high, middle = (down(value) for value in (min(finite), max(finite), statistics.fmean(finite)))
        dots.append(f"{x:.1f},{middle:.1f}")
        parts.append(f'<path class="{style}" d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{color}" stroke-width="1.5"/>')
        parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{middle:.1f}" r="3.2" fill="{color}"/>')
    if joined and len(dots) > 1:
        points = " ".join(dots)
        parts.append(f'<polyline class="{style}" points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    return "".join(parts)


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _scale(
    values: Sequence[float], top: float, floor: float, *, log: bool
) -> tuple[Callable[[float], float], list[float]]:
    """From a value to its height, and the values of the rules."""
    if log:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        high = max(high, low + 1)
        stride = math.ceil((high - low) / 6)
        rules = [10.0**power for power in range(low, high + 1, stride)]

        def height(value: float) -> float:
            power = math.log10(value) if value > 0 else low
            return floor - (floor - top) * (min(max(power, low), high) - low) / (high - low)

        return height, rules
    negative = ticks(-min(values)) if min(values) < 0 else [0.0]
    positive = ticks(max(values)) if max(values) > 0 else [0.0]
    rules = sorted({*(0.0 - value for value in negative), *positive})
    if len(rules) < 2:
        rules = [0.0, 1.0]
    return lambda value: floor - (floor - top) * (value - rules[0]) / (rules[-1] - rules[0]), rules
