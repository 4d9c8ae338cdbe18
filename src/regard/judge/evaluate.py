"""How good a model is on a corpus: what it says against what is right, by group and by length, and its loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.api import LoadedModel
from regard.decode.choose import Options
from regard.errors import InputError
from regard.learn.validate import summed_loss
from regard.metrics import Quality, bits_per_byte, perplexity, quality
from regard.text.corpus import Corpus
from regard.text.encode import encode_texts
from regard.text.problem import NextToken, Translation

_BATCH_TOKENS = 8192
_UNBOUNDED = 1 << 30
_ROW_LENGTH = 512  # of a language model that could read any length
_BUCKETS = 6
_ROWS_SHOWN = 12
_ACCENT, _QUIET, _LINE = "#17508c", "#6c6f76", "#dcdcd6"


@dataclass(frozen=True)
class Row:
    """The quality of some of the lines."""

    name: str
    lines: int
    exact: float
    bleu: float
    chrf: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What `evaluate` found; a language model has no quality, no rows and no lines of text."""

    loss: float  # nats per token
    perplexity: float
    bits_per_byte: float
    tokens: int
    dropped: dict[str, int]  # lines without a loss, by reason
    seconds: float = 0.0
    quality: Quality | None = None
    by_length: tuple[Row, ...] = ()  # the source's length in tokens
    groups: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    sources: tuple[str, ...] = field(default=(), repr=False)
    hypotheses: tuple[str, ...] = field(default=(), repr=False)
    references: tuple[str, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data, without the lines of text."""
        plain = asdict(self)
        for name in ("sources", "hypotheses", "references"):
            del plain[name]
        return plain

    def text(self) -> str:
        """All numbers for a terminal."""
        parts = [[*self._quality_lines(), *self._loss_lines(), f"time    {self.seconds:.1f} s"]]
        if self.by_length:
            parts.append(_table("source length in tokens", self.by_length))
        parts += [_table(name, rows) for name, rows in self.groups.items()]
        return "\n\n".join("\n".join(lines) for lines in parts)

    def _quality_lines(self) -> list[str]:
        found = self.quality
        if found is None:
            return []
        return [
            f"exact   {found.exact:.2f} % of {found.lines:,} lines",
            f"BLEU    {found.bleu:.2f}   {found.bleu_signature}",
            f"chrF    {found.chrf:.2f}   {found.chrf_signature}",
        ]

    def _loss_lines(self) -> list[str]:
        dropped = [f"        no loss for {count:,} lines: {reason}" for reason, count in self.dropped.items()]
        return [
            f"loss    {self.loss:.4f} nats a token ({self.tokens:,} tokens), "
            f"perplexity {self.perplexity:.3f}, {self.bits_per_byte:.4f} bits per byte",
            *dropped,
        ]


def evaluate(
    model: LoadedModel,
    corpus: Corpus,
    options: Options | None = None,
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Translate and judge every pair, or read every document; `progress` is told how many more texts are done."""
    start = time.perf_counter()
    _require_fit(model, corpus)
    evaluation = _measured(model, corpus)
    if corpus.targets is None:
        progress(len(corpus))
    else:
        said = tuple(answers[0].text for answers in model.translations(corpus.sources, options, progress=progress))
        evaluation = _judged(evaluation, model, corpus, said)
    return replace(evaluation, seconds=time.perf_counter() - start)


def length_rows(lengths: Sequence[int], hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Row, ...]:
    """The quality by length, in about six buckets of equally many lines; "9-12" holds the lengths 9 to 12."""
    if not len(lengths):
        return ()
    shares = np.linspace(0, 1, _BUCKETS + 1)[1:]
    ends = np.unique(np.quantile(lengths, shares, method="inverted_cdf")).astype(int)
    starts = [int(min(lengths)), *(ends[:-1] + 1)]
    bucket = np.searchsorted(ends, lengths)
    names = [str(end) if start == end else f"{start}-{end}" for start, end in zip(starts, ends)]
    return tuple(_row(name, bucket == place, hypotheses, references) for place, name in enumerate(names))


def group_rows(groups: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Row, ...]:
    """The quality of each group: in order where groups are numbers, else the worst first."""
    names = sorted(set(groups))
    rows = [_row(name, np.array([group == name for group in groups]), hypotheses, references) for name in names]
    if all(name.isdecimal() for name in names):
        return tuple(sorted(rows, key=lambda row: int(row.name)))
    return tuple(sorted(rows, key=lambda row: (row.exact, row.chrf)))


def plot_by_length(evaluation: Evaluation, path: Path) -> None:
    """A PNG of exact match and chrF by source length, with the number of lines below."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MultipleLocator

    rows = evaluation.by_length
    if not rows:
        raise InputError("there are no translations to plot by length. Evaluate a translator on pairs.")
    places = range(len(rows))
    figure = Figure(figsize=(7.2, 4.4), dpi=160, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
    for name, values, color in (
        ("exact match", [row.exact for row in rows], _ACCENT),
        ("chrF", [row.chrf for row in rows], _QUIET),
    ):
        above.plot(places, values, color=color, linewidth=2, marker="o", markersize=5, clip_on=False, label=name)
    above.set(ylim=(0, 100), xlim=(-0.6, len(rows) - 0.4))
    above.yaxis.set_major_locator(MultipleLocator(25))
    above.grid(axis="y", color=_LINE, linewidth=0.8)
    above.set_axisbelow(True)
    above.legend(loc="lower left", frameon=False, ncols=2, labelcolor="linecolor", bbox_to_anchor=(-0.01, 1.0))
    bars = below.bar(places, [row.lines for row in rows], width=0.62, color=_LINE)
    below.bar_label(bars, [f"{row.lines:,}" for row in rows], color=_QUIET, fontsize=8, padding=2)
    below.set_xticks(list(places), [row.name.replace("-", "–") for row in rows])
    below.set(yticks=[], xlabel="source length in tokens, and how many lines have it")
    below.margins(y=0.35)
    for axes in (above, below):
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, colors=_QUIET, labelsize=9)
        axes.xaxis.label.set(color=_QUIET, fontsize=9)
    figure.savefig(path)


def _measured(model: LoadedModel, corpus: Corpus) -> Evaluation:
    """The loss of a corpus."""
    longest = model.network.longest
    problem: Translation | NextToken
    problem = NextToken(longest or _ROW_LENGTH) if corpus.targets is None else Translation(longest or _UNBOUNDED)
    samples = problem.samples(corpus, (model.tokenizer, model.target_tokenizer))
    total, tokens = summed_loss(model.network, samples, _BATCH_TOKENS)
    loss = total / tokens
    return Evaluation(
        loss=loss,
        perplexity=perplexity(loss),
        bits_per_byte=bits_per_byte(total, samples.bytes),
        tokens=tokens,
        dropped=samples.left_out.counts(),
    )


def _judged(evaluation: Evaluation, model: LoadedModel, corpus: Corpus, said: tuple[str, ...]) -> Evaluation:
    """The evaluation with the quality of what was said, of all lines and by length and group."""
    assert corpus.targets is not None
    references = tuple(corpus.targets)
    lengths = encode_texts(model.tokenizer, corpus.sources).lengths.tolist()
    return replace(
        evaluation,
        quality=quality(said, references),
        by_length=length_rows(lengths, said, references),
        groups={name: group_rows(of_line, said, references) for name, of_line in corpus.groups.items()},
        sources=tuple(corpus.sources),
        hypotheses=said,
        references=references,
    )


def _row(name: str, chosen: NDArray[np.bool_], hypotheses: Sequence[str], references: Sequence[str]) -> Row:
    places = np.flatnonzero(chosen).tolist()
    found = quality([hypotheses[place] for place in places], [references[place] for place in places])
    return Row(name, found.lines, found.exact, found.bleu, found.chrf)


def _table(title: str, rows: Sequence[Row]) -> list[str]:
    """Rows under a heading; of many, the first."""
    wide = max(len(title), *(len(row.name) for row in rows))
    lines = [f"{title:<{wide}}  {'lines':>7}  {'exact':>6}  {'BLEU':>6}  {'chrF':>6}"]
    lines += [
        f"{row.name:<{wide}}  {row.lines:>7,}  {row.exact:>6.2f}  {row.bleu:>6.2f}  {row.chrf:>6.2f}"
        for row in rows[:_ROWS_SHOWN]
    ]
    rest = len(rows) - _ROWS_SHOWN
    return [*lines, f"and {rest:,} more"] if rest > 0 else lines


def _require_fit(model: LoadedModel, corpus: Corpus) -> None:
    """Refuse pairs for a language model, and plain text for a translator."""
    if model.network.encoder is not None and corpus.targets is None:
        raise InputError(f"this model translates, {corpus.names[0]} has one side. Give --source and --reference.")
    if model.network.encoder is None and corpus.targets is not None:
        raise InputError(f"this model does not translate, {corpus.names[0]} has two sides. Give --text.")
