"""The HTML reports of an evaluation and of a comparison: each is one offline file without scripts."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.evaluation import charts
from regard.evaluation.charts import Curve, chart, key, points, read_metrics, short, style_of
from regard.evaluation.compare import AttentionSample, Comparison, Contender
from regard.evaluation.evaluate import Evaluation
from regard.evaluation.significance import BootstrapScore, Row, is_numbered
from regard.show import html as pages
from regard.show.html import document, escaped, overview
from regard.show.trace import AttentionTrace
from regard.store.files import write_output
from regard.version import __version__

_ROWS_PER_TABLE = 12
_BESIDE = 3  # models whose chart and table stand side by side
_NO_ATTENTION = "no attention: the decoder reads only the encoder's last state"
_HEADS = "rows: target tokens (queries); columns: source tokens (keys); the heads that align best"

_STYLE = (
    pages.STYLE
    + charts.STYLE
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
_COMPARISON_STYLE = (
    _STYLE
    + """
.scroll { overflow-x: auto } h1 ~ .scroll { margin-top: 1.6rem }
.scroll td, .scroll th { white-space: nowrap; vertical-align: top }
td .key { display: inline-block; min-width: 7rem; max-width: 22rem; white-space: normal }
td small { display: block; color: var(--quiet) } td .sure { color: var(--accent) }
.answers { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; margin: .2rem 0 0 }
.answers dd { font-size: inherit; font-weight: inherit; line-height: inherit;
  letter-spacing: 0; padding-left: 1.4rem; position: relative } .samples .answers .mark { left: 0 }
.below .plot { max-width: 40rem; margin-bottom: 1rem }
.many { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 0 3rem }
.many li { padding-left: 0 }
.attention { display: flex; flex-wrap: wrap; gap: 0 2rem; margin-bottom: 1.2rem } .attention .wide { margin: .4rem 0 }
.attention figure { max-width: 100% } .attention svg { max-width: 100%; height: auto } .attention p { max-width: 14rem }
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
    dropped = [f"no loss for {count:,} lines: {reason}" for reason, count in evaluation.dropped.items()]
    found = evaluation.quality
    signatures = [f"BLEU {found.bleu_signature}", f"chrF {found.chrf_signature}"] if found else []
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="quiet">{escaped(note)}</p>' if note else "",
        _headline(evaluation),
        _curves(metrics),
        _rows_section("By source length", "in tokens", evaluation.by_length),
        *(_rows_section(f"By {name}", _order(rows), rows) for name, rows in evaluation.groups.items()),
        _samples_section(evaluation, samples),
        _attention_section(traces),
        _footer([f"{evaluation.tokens:,} tokens predicted, {evaluation.seconds:.1f} s", *dropped, *signatures]),
    ]
    write_output(path, document(title, _STYLE, "\n".join(filter(None, body))).encode())


def _headline(evaluation: Evaluation) -> str:
    """The main scores."""
    shown, found = {}, evaluation.quality
    if found is not None:
        shown = {"exact match, %": f"{found.exact:.2f}", "BLEU": f"{found.bleu:.2f}", "chrF": f"{found.chrf:.2f}"}
    shown["perplexity"] = f"{evaluation.perplexity:.3f}"
    if evaluation.bits_per_byte is not None:
        shown["bits per byte"] = f"{evaluation.bits_per_byte:.3f}"
    if evaluation.unknown:
        shown["characters unknown, %"] = f"{100 * evaluation.unknown:.2f}"
    shown["loss, nats per token"] = f"{evaluation.loss:.3f}"
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown.items())
    return f'<dl class="numbers">{tiles}</dl>'


def _curves(metrics: Path | None) -> str:
    """The training curves, if there are metrics."""
    lines = read_metrics(metrics)
    training = Curve("training", "minor", points(lines, "loss"))
    validation = Curve("validation", "major", points(lines, "valid_loss"))
    exact = Curve("validation", "major", points(lines, "valid_exact"))
    drawn = [chart("Loss", [training, validation]), chart("Exact match, %", [exact])]
    return f'<h2>Training</h2><div class="side">{"".join(drawn)}</div>' if any(drawn) else ""


def _rows_section(title: str, note: str, rows: Sequence[Row]) -> str:
    """A table of rows; many rows make two tables."""
    if not rows:
        return ""
    drawn = "".join(map(_quality_table, _halves(rows)))
    note = f"<small>{note}</small>" if note else ""
    return f'<h2>{escaped(title)}{note}</h2><div class="side">{drawn}</div>'


def _halves(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """All rows, or two halves of many rows, to stand side by side."""
    share = len(rows) if len(rows) <= _ROWS_PER_TABLE else -(-len(rows) // 2)
    return [rows[start : start + share] for start in range(0, len(rows), share)]


def _order(rows: Sequence[Row]) -> str:
    return "" if is_numbered([row.name for row in rows]) else "worst first"


def _quality_table(rows: Sequence[Row]) -> str:
    lines = "".join(
        f"<tr><td><bdi>{escaped(row.name)}</bdi></td><td>{row.lines:,}</td><td>{row.exact:.1f}</td>"
        f"<td>{row.chrf:.1f}</td><td>{row.bleu:.1f}</td><td>{_bars(row)}</td></tr>"
        for row in rows
    )
    heads = '<th></th><th>lines</th><th class="exact">exact</th><th>chrF</th><th>BLEU</th>'
    return _table(f'{heads}<th class="bars"></th>', lines)


def _table(heads: str, lines: str) -> str:
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


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
        return f"<li>{_mark(right=True)}{lines}</li>"
    return (
        f'<li class="wrong">{_mark(right=False)}{lines}'
        f'<span class="quiet">should be <bdi>{escaped(reference)}</bdi></span></li>'
    )


def _mark(*, right: bool) -> str:
    """A sign for a right or wrong line, with a label for screen readers."""
    sign, word = ("✓", "right") if right else ("✗", "wrong")
    return f'<span class="mark" role="img" aria-label="{word}">{sign}</span>'


def _attention_section(traces: Sequence[tuple[str, AttentionTrace]]) -> str:
    """An attention matrix per sample, if the model has attention."""
    drawn = "".join(_matrix(trace, caption) for caption, trace in traces)
    return f"<h2>Attention<small>{_HEADS}</small></h2>{drawn}" if drawn else ""


def _matrix(trace: AttentionTrace, title: str) -> str:
    return overview(trace.source_tokens, trace.target_tokens, trace.alignment_weights, title=title)


def _footer(lines: Sequence[str]) -> str:
    """How numbers were measured; the first line also names the machine and the versions."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    first = f"{lines[0]}; {machine}; regard {__version__}, torch {torch.__version__}"
    return f"<footer>{''.join(f'<p>{escaped(line)}</p>' for line in (first, *lines[1:]))}</footer>"


def write_comparison(
    path: str | Path, comparison: Comparison, samples: Sequence[AttentionSample] = (), *, note: str = ""
) -> None:
    """Write the report; `note` is the command line."""
    title = f"{len(comparison.models)} models on {comparison.corpus}"
    axes = comparison.axes
    kinds = "lines" if comparison.translates else "documents"
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="quiet">{comparison.texts:,} {kinds}; the first is the baseline.</p>',
        _models(comparison),
        *(_axis(comparison, name, rows) for name, rows in axes.items()),
        _differing_lines(comparison),
        _attention(comparison, samples),
        *(_group(comparison, name, rows) for name, rows in comparison.models[0].rows.items() if name not in axes),
        _footer([f"{comparison.seconds:.1f} s", *filter(None, [note, *comparison.notes()])]),
    ]
    write_output(Path(path), document(title, _COMPARISON_STYLE, "\n".join(filter(None, body))).encode())


def _models(comparison: Comparison) -> str:
    """Scores, size, speed and memory of every model."""
    costs = [comparison.costs(model) for model in comparison.models]
    heads = "".join(f"<th>{title}</th>" for title in ("", *comparison.titles.values(), *costs[0]))
    rows = []
    for number, (model, cells) in enumerate(zip(comparison.models, costs)):
        scores = "".join(_score(comparison, model.scores[name]) for name in comparison.titles)
        numbers = "".join(f"<td>{cell}</td>" for cell in cells.values())
        rows.append(f"<tr><td>{key(model.name, style_of(number))}</td>{scores}{numbers}</tr>")
    return _scrolling_table(heads, rows)


def _score(comparison: Comparison, score: BootstrapScore) -> str:
    """A score with its margin, and the p-value of its difference from the first."""
    sure = ' class="sure"' if score.p is not None and score.p < 0.05 else ""
    below = "" if score.p is None else f"<small><span{sure}>p {score.p:.3f}</span></small>"
    return f"<td>{comparison.shown(score)}{below}</td>"


def _axis(comparison: Comparison, axis: str, rows: Sequence[Row]) -> str:
    """The metric of every model along an ordered axis, as a chart and a table."""
    lines = zip(comparison.models, comparison.values(axis))
    curves = [Curve(model.name, style_of(number), list(enumerate(line))) for number, (model, line) in enumerate(lines)]
    drawn = chart(comparison.titles[comparison.metric], curves, [row.name for row in rows])
    return _section(comparison, f"By {escaped(axis)}", [drawn, _rows(comparison, axis, rows)])


def _group(comparison: Comparison, name: str, rows: Sequence[Row]) -> str:
    """The metric of every model per group; the group that is worst for the baseline comes first."""
    ordered = sorted(rows, key=lambda row: float(getattr(row, comparison.metric)))
    heading = f"By {escaped(name)}<small>{comparison.titles[comparison.metric]}, worst first</small>"
    return _section(comparison, heading, [_rows(comparison, name, some) for some in _halves(ordered)])


def _section(comparison: Comparison, heading: str, drawn: Sequence[str]) -> str:
    """Content under a heading, side by side unless many models make it too wide."""
    wide = len(comparison.models) > _BESIDE
    return f'<h2>{heading}</h2><div class="{"below" if wide else "side"}">{"".join(drawn)}</div>'


def _rows(comparison: Comparison, axis: str, rows: Sequence[Row]) -> str:
    """Rows of the first model, each beside the rows of the same name of the others."""
    found = [{row.name: row for row in model.rows[axis]} for model in comparison.models]
    heads = "".join(f"<th>{_key(number, model, 14)}</th>" for number, model in enumerate(comparison.models))
    lines = [
        f"<tr><td><bdi>{escaped(row.name)}</bdi></td><td>{row.lines:,}</td>"
        + "".join(f"<td>{getattr(of_model[row.name], comparison.metric):.1f}</td>" for of_model in found)
        + "</tr>"
        for row in rows
    ]
    return _scrolling_table(f"<th></th><th>lines</th>{heads}", lines)


def _key(number: int, model: Contender, max_characters: int) -> str:
    return key(short(model.name, max_characters), style_of(number))


def _scrolling_table(heads: str, rows: Sequence[str]) -> str:
    return f'<div class="scroll">{_table(heads, "".join(rows))}</div>'


def _differing_lines(comparison: Comparison) -> str:
    """The lines whose translations differ most."""
    if not comparison.differing:
        return ""
    items = "".join(_differing_line(comparison, line) for line in comparison.differing)
    note = f"the {len(comparison.differing)} lines whose translations differ most"
    return f'<h2>Where they differ<small>{note}</small></h2><ol class="samples many">{items}</ol>'


def _differing_line(comparison: Comparison, line: int) -> str:
    reference = comparison.references[line]
    translations = "".join(
        f"<dt>{_key(number, model, 28)}</dt>{_translation(model.translations[line], reference)}"
        for number, model in enumerate(comparison.models)
    )
    return (
        f'<li><span class="quiet"><bdi>{escaped(comparison.sources[line])}</bdi></span>'
        f'<dl class="answers"><dt>reference</dt><dd><bdi>{escaped(reference)}</bdi></dd>{translations}</dl></li>'
    )


def _translation(hypothesis: str, reference: str) -> str:
    right = hypothesis == reference
    return f'<dd class="{"right" if right else "wrong"}">{_mark(right=right)}<bdi>{escaped(hypothesis)}</bdi></dd>'


def _attention(comparison: Comparison, samples: Sequence[AttentionSample]) -> str:
    """The attention of all models for the same lines, side by side."""
    drawn = "".join(_sample_figures(comparison.models, sample) for sample in samples)
    return f"<h2>Attention<small>{_HEADS}</small></h2>{drawn}" if drawn else ""


def _sample_figures(models: Sequence[Contender], sample: AttentionSample) -> str:
    figures = "".join(
        _matrix(trace, name)
        or f'<figure class="wide"><figcaption>{escaped(name)}</figcaption><p class="quiet">{_NO_ATTENTION}</p></figure>'
        for name, trace in zip((short(model.name, 28) for model in models), sample.traces)
    )
    return f'<p><bdi>{escaped(sample.source)}</bdi></p><div class="attention">{figures}</div>'
