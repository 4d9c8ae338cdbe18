"""The HTML report of an evaluation: one offline file without scripts."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.evaluation import charts as chart
from regard.evaluation.charts import Curve, points, read_metrics
from regard.evaluation.evaluate import Evaluation
from regard.evaluation.significance import Row, is_numbered
from regard.show import html as pages
from regard.show.html import document, escaped, overview
from regard.show.trace import AttentionTrace
from regard.store.files import write_file
from regard.version import __version__

_ROWS_PER_TABLE = 12

STYLE = (
    pages.STYLE
    + chart.STYLE
    + """
.numbers { display: flex; flex-wrap: wrap; gap: 1rem 3rem; margin: 2rem 0 0 }
.numbers div { display: flex; flex-direction: column-reverse } dd { margin: 0; font-size: 2rem; font-weight: 300;
  line-height: 1.15; letter-spacing: -.02em } .numbers div:first-child dd { color: var(--accent); font-weight: 500 }
dt { color: var(--quiet); font-size: .8rem }
.side { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1.2rem 3rem }
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


def write_report(
    path: Path,
    *,
    title: str,
    evaluation: Evaluation,
    metrics: Path | None,
    traces: Sequence[tuple[str, AttentionTrace]],
    samples: int = 12,
    note: str = "",
) -> None:
    """Write the report; `metrics` is the run's metrics.jsonl, `note` is the command line."""
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="quiet">{escaped(note)}</p>' if note else "",
        _headline(evaluation),
        _curves(metrics),
        _rows_section("By source length", "in tokens", evaluation.by_length),
        *(_rows_section(f"By {name}", _order(rows), rows) for name, rows in evaluation.groups.items()),
        _samples_section(evaluation, samples),
        _attention_section(traces),
        _footer(evaluation),
    ]
    write_file(path, document(title, STYLE, "\n".join(filter(None, body))).encode())


def _headline(evaluation: Evaluation) -> str:
    """The main scores."""
    numbers = {}
    if evaluation.quality is not None:
        found = evaluation.quality
        numbers = {"exact match, %": found.exact, "BLEU": found.bleu, "chrF": found.chrf}
    shown = {name: f"{value:.2f}" for name, value in numbers.items()}
    shown["perplexity"] = f"{evaluation.perplexity:.3f}"
    if evaluation.bits_per_byte is not None:
        shown["bits per byte"] = f"{evaluation.bits_per_byte:.3f}"
    shown["loss, nats per token"] = f"{evaluation.loss:.3f}"
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown.items())
    return f'<dl class="numbers">{tiles}</dl>'


def _curves(metrics: Path | None) -> str:
    """The training curves, if there are metrics."""
    lines = read_metrics(metrics)
    training = Curve("training", "minor", points(lines, "loss"))
    validation = Curve("validation", "major", points(lines, "valid_loss"))
    exact = Curve("validation", "major", points(lines, "valid_exact"))
    drawn = [chart.chart("Loss", [training, validation]), chart.chart("Exact match, %", [exact])]
    return f'<h2>Training</h2><div class="side">{"".join(drawn)}</div>' if any(drawn) else ""


def _rows_section(title: str, note: str, rows: Sequence[Row]) -> str:
    """A table of rows; many rows make two tables."""
    if not rows:
        return ""
    drawn = "".join(map(_table, halves(rows)))
    note = f"<small>{note}</small>" if note else ""
    return f'<h2>{escaped(title)}{note}</h2><div class="side">{drawn}</div>'


def halves(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """All rows, or two halves of many rows, to stand side by side."""
    share = len(rows) if len(rows) <= _ROWS_PER_TABLE else -(-len(rows) // 2)
    return [rows[start : start + share] for start in range(0, len(rows), share)]


def _order(rows: Sequence[Row]) -> str:
    return "" if is_numbered([row.name for row in rows]) else "worst first"


def _table(rows: Sequence[Row]) -> str:
    lines = "".join(
        f"<tr><td><bdi>{escaped(row.name)}</bdi></td><td>{row.lines:,}</td><td>{row.exact:.1f}</td>"
        f"<td>{row.chrf:.1f}</td><td>{row.bleu:.1f}</td><td>{_bars(row)}</td></tr>"
        for row in rows
    )
    heads = '<th></th><th>lines</th><th class="exact">exact</th><th>chrF</th><th>BLEU</th>'
    return f'<table><thead><tr>{heads}<th class="bars"></th></tr></thead><tbody>{lines}</tbody></table>'


def _bars(row: Row) -> str:
    """Bars of exact match and chrF, each out of 100."""
    return (
        '<svg class="bar" viewBox="0 0 100 9" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="exact" width="{row.exact:.1f}" height="5"/>'
        f'<rect class="chrf" y="6" width="{row.chrf:.1f}" height="3"/></svg>'
    )


def _samples_section(evaluation: Evaluation, samples: int) -> str:
    """The first wrong and the first right lines, half of each if there are enough."""
    lines = list(zip(evaluation.sources, evaluation.hypotheses, evaluation.references))
    wrong = [line for line in lines if line[1] != line[2]]
    right = [line for line in lines if line[1] == line[2]]
    shown_right = right[: max(samples // 2, samples - len(wrong))]
    shown_wrong = wrong[: samples - len(shown_right)]
    if not (shown_right or shown_wrong):
        return ""
    counts = f"{len(wrong):,} of {len(lines):,} lines are wrong; below the first {len(shown_wrong)} of them, "
    counts += f"and the first {len(shown_right)} that are right"
    items = "".join(_sample(*line) for line in shown_wrong + shown_right)
    return f'<h2>Samples<small>{counts}</small></h2><ol class="samples">{items}</ol>'


def _sample(source: str, hypothesis: str, reference: str) -> str:
    lines = f'<span class="quiet"><bdi>{escaped(source)}</bdi></span><bdi>{escaped(hypothesis)}</bdi>'
    if hypothesis == reference:
        return f"<li>{mark(right=True)}{lines}</li>"
    return (
        f'<li class="wrong">{mark(right=False)}{lines}'
        f'<span class="quiet">should be <bdi>{escaped(reference)}</bdi></span></li>'
    )


def mark(*, right: bool) -> str:
    """A sign for a right or wrong line, with a label for screen readers."""
    sign, word = ("✓", "right") if right else ("✗", "wrong")
    return f'<span class="mark" role="img" aria-label="{word}">{sign}</span>'


def sample_lines(sources: Sequence[str]) -> list[int]:
    """The indices of a short, a medium and a long source."""
    indices = {source: index for index, source in reversed(list(enumerate(sources)))}
    ordered = sorted(indices, key=len)
    chosen = [indices[ordered[len(ordered) * part // 8]] for part in (2, 5, 7)] if ordered else []
    return list(dict.fromkeys(chosen))


def _attention_section(traces: Sequence[tuple[str, AttentionTrace]]) -> str:
    """An attention matrix per sample, if the model has attention."""
    drawn = [
        overview(trace.source_tokens, trace.target_tokens, trace.alignment_weights, title=caption)
        for caption, trace in traces
    ]
    note = "rows: target tokens (queries); columns: source tokens (keys); the heads that align best"
    return f"<h2>Attention<small>{note}</small></h2>{''.join(drawn)}" if any(drawn) else ""


def _footer(evaluation: Evaluation) -> str:
    """How the numbers were measured."""
    found = evaluation.quality
    dropped = [f"no loss for {count:,} lines: {reason}" for reason, count in evaluation.dropped.items()]
    signatures = [f"BLEU {found.bleu_signature}", f"chrF {found.chrf_signature}"] if found else []
    return footer([f"{evaluation.tokens:,} tokens predicted, {evaluation.seconds:.1f} s", *dropped, *signatures])


def footer(lines: Sequence[str]) -> str:
    """How numbers were measured; the first line also names the machine and the versions."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    first = f"{lines[0]}; {machine}; regard {__version__}, torch {torch.__version__}"
    return f"<footer>{''.join(f'<p>{escaped(line)}</p>' for line in (first, *lines[1:]))}</footer>"
