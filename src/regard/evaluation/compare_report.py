"""The HTML report of a comparison: one offline file without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.evaluation.charts import Curve, chart, key, short, style_of
from regard.evaluation.compare import AttentionSample, Comparison, Contender
from regard.evaluation.report import STYLE, footer, halves, mark
from regard.evaluation.significance import BootstrapScore, Row
from regard.show.html import document, escaped, overview
from regard.store.files import write_file

_STYLE = (
    STYLE
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
_BESIDE = 3
_NO_ATTENTION = "no attention: the decoder reads only the encoder's last state"


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
        _samples(comparison),
        _attention(comparison, samples),
        *(_group(comparison, name, rows) for name, rows in comparison.models[0].rows.items() if name not in axes),
        footer([f"{comparison.seconds:.1f} s", *filter(None, [note, *comparison.notes()])]),
    ]
    write_file(Path(path), document(title, _STYLE, "\n".join(filter(None, body))).encode())


def _models(comparison: Comparison) -> str:
    """Scores, size, speed and memory of every model."""
    costs = [comparison.costs(model) for model in comparison.models]
    heads = "".join(f"<th>{title}</th>" for title in ("", *comparison.titles.values(), *costs[0]))
    rows = []
    for number, (model, cells) in enumerate(zip(comparison.models, costs)):
        scores = "".join(_score(comparison, model.scores[name]) for name in comparison.titles)
        numbers = "".join(f"<td>{cell}</td>" for cell in cells.values())
        rows.append(f"<tr><td>{key(model.name, style_of(number))}</td>{scores}{numbers}</tr>")
    return _table(heads, rows)


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
    return _section(comparison, heading, [_rows(comparison, name, some) for some in halves(ordered)])


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
    return _table(f"<th></th><th>lines</th>{heads}", lines)


def _key(number: int, model: Contender, max_characters: int) -> str:
    return key(short(model.name, max_characters), style_of(number))


def _table(heads: str, rows: Sequence[str]) -> str:
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _samples(comparison: Comparison) -> str:
    """The lines whose translations differ most."""
    if not comparison.differing:
        return ""
    items = "".join(_sample(comparison, line) for line in comparison.differing)
    note = f"the {len(comparison.differing)} lines whose translations differ most"
    return f'<h2>Where they differ<small>{note}</small></h2><ol class="samples many">{items}</ol>'


def _sample(comparison: Comparison, line: int) -> str:
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
    return f'<dd class="{"right" if right else "wrong"}">{mark(right=right)}<bdi>{escaped(hypothesis)}</bdi></dd>'


def _attention(comparison: Comparison, samples: Sequence[AttentionSample]) -> str:
    """The attention of all models for the same lines, side by side."""
    drawn = "".join(_sample_figures(comparison.models, sample) for sample in samples)
    note = "rows: target tokens (queries); columns: source tokens (keys); the heads that align best"
    return f"<h2>Attention<small>{note}</small></h2>{drawn}" if drawn else ""


def _sample_figures(models: Sequence[Contender], sample: AttentionSample) -> str:
    figures = "".join(
        overview(trace.source_tokens, trace.target_tokens, trace.alignment_weights, title=name)
        or f'<figure class="wide"><figcaption>{escaped(name)}</figcaption><p class="quiet">{_NO_ATTENTION}</p></figure>'
        for name, trace in zip((short(model.name, 28) for model in models), sample.traces)
    )
    return f'<p><bdi>{escaped(sample.source)}</bdi></p><div class="attention">{figures}</div>'
