"""Evaluate a model on a corpus: BLEU, chrF, accuracy, correlation, perplexity and bits per byte."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.api import LoadedModel
from regard.data.character_samples import with_characters
from regard.data.read.corpus import Corpus
from regard.data.read.texts import split_pairs
from regard.data.samples import Samples
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.masked_lm import MaskedLM
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tasks.translation import Translation
from regard.data.tokenize.encode import encode_texts
from regard.decode.classify import NO_TAG, LabelPrediction, NumberPrediction, Prediction, TagPrediction, label_names
from regard.decode.confidence import right_words
from regard.decode.generate import GeneratedText
from regard.decode.inputs import capabilities
from regard.decode.options import Options
from regard.errors import InputError, suggest
from regard.evaluation.charts import ACCENT, QUIET, Line, draw, panel
from regard.evaluation.significance import Row, by_group, by_length, counted, is_numbered, metrics
from regard.evaluation.sliding_window import read_documents, reading_mode
from regard.metrics import (
    Quality,
    Reliability,
    Scoring,
    agreement,
    bits_per_byte,
    correlation,
    perplexity,
    quality,
    reliability,
)
from regard.progress import Progress
from regard.training.validate import predict, unknown_text

_LABELS_SHOWN = 40


@dataclass(frozen=True)
class LabelRow:
    """Precision, recall and F1 of one label."""

    name: str
    count: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, kw_only=True)
class LabelEvaluation:
    """The scores of a classifier, a regression model or a tagger."""

    scores: dict[str, float]
    lines: int
    predictions: int  # one per line, or one per word
    dropped: dict[str, int]  # lines that were not evaluated, by reason
    by_label: tuple[LabelRow, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return asdict(self)

    def text(self) -> str:
        """All numbers for a terminal."""
        wide = max(map(len, self.scores))
        lines = [f"{name:<{wide}}  {value:.4f}" for name, value in self.scores.items()]
        lines[0] += f"   of {self.predictions:,} predictions in {self.lines:,} lines"
        lines += [f"        {count:,} lines not evaluated: {reason}" for reason, count in self.dropped.items()]
        lines.append(f"time    {self.seconds:.1f} s")
        if self.by_label:
            wide = max(len("label"), *(len(row.name) for row in self.by_label))
            lines += ["", f"{'label':<{wide}}  {'count':>7}  {'precision':>9}  {'recall':>6}  {'F1':>6}"]
            lines += [
                f"{row.name:<{wide}}  {row.count:>7,}  {row.precision:>9.4f}  {row.recall:>6.4f}  {row.f1:>6.4f}"
                for row in self.by_label[:_LABELS_SHOWN]
            ]
            rest = len(self.by_label) - _LABELS_SHOWN
            lines += [f"and {rest:,} more"] if rest > 0 else []
        return "\n".join(lines)


def evaluate_labels(model: LoadedModel, corpus: Corpus, *, progress: Progress = lambda done: None) -> LabelEvaluation:
    """Compare predicted labels, numbers or tags with the targets: accuracy, F1, correlations."""
    start = time.perf_counter()
    assert corpus.targets is not None
    references = {line: target.strip() for line, target in enumerate(corpus.targets) if target.strip()}
    if not references:
        raise InputError(f"{corpus.names[-1]} holds no label. Name a file with one per line.")
    lines, missing = len(references), len(corpus) - len(references)
    progress(missing)
    predictions = model.classify(_texts(corpus, [*references]), progress=progress)
    dropped = {"no label": missing} if missing else {}
    if model.description.readout.outputs == "numbers":
        numbers = np.array([_number(corpus, line, text) for line, text in references.items()])
        found = np.array([one.number for one in predictions if isinstance(one, NumberPrediction)])
        scores = {**correlation(found, numbers), "mean squared error": float(((found - numbers) ** 2).mean())}
        return LabelEvaluation(
            scores=scores, lines=lines, predictions=lines, dropped=dropped, seconds=time.perf_counter() - start
        )
    names = [*label_names(model.network), NO_TAG]
    predicted, expected = _label_ids(corpus, references, predictions, names)
    return LabelEvaluation(
        scores=agreement(predicted, expected), lines=lines, predictions=len(predicted), dropped=dropped,
        by_label=_by_label(predicted, expected, names), seconds=time.perf_counter() - start,
    )  # fmt: skip


def _texts(corpus: Corpus, lines: Sequence[int]) -> list[str] | list[tuple[str, str]]:
    """The texts of some lines, or the pairs of texts."""
    if not corpus.paired_sources:
        return [corpus.sources[line] for line in lines]
    for line in lines:
        if "\t" not in corpus.sources[line]:
            raise InputError(f"{corpus.where([line])} is one text, not two with a tab between them. Correct it.")
    first, second = split_pairs(corpus.sources)
    return [(first[line], second[line]) for line in lines]


def _label_ids(
    corpus: Corpus, references: Mapping[int, str], predictions: Sequence[Prediction], names: Sequence[str]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The ids of all predicted labels, and of the expected ones."""
    predicted: list[int] = []
    expected: list[int] = []
    ids = {name: number for number, name in enumerate(names)}
    for (line, text), one in zip(references.items(), predictions):
        wanted = text.split() if isinstance(one, TagPrediction) else [text]
        given = one.tags if isinstance(one, TagPrediction) else (one.label,) if isinstance(one, LabelPrediction) else ()
        if len(wanted) != len(given):
            raise InputError(
                f"{corpus.where([line])}: {len(given):,} words have {len(wanted):,} tags (--reference). "
                "Give one tag per word, separated by spaces."
            )
        for name in wanted:
            if name not in ids:
                known = suggest(name, names[:-1])
                raise InputError(f'{corpus.where([line])}: this model has no label "{name}" (--reference). {known}')
        predicted += [ids[name] for name in given]
        expected += [ids[name] for name in wanted]
    return np.array(predicted, dtype=np.int64), np.array(expected, dtype=np.int64)


def _by_label(
    predicted: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], names: Sequence[str]
) -> tuple[LabelRow, ...]:
    """Precision, recall and F1 of every label that occurs."""
    hits, given, actual = (
        np.bincount(some, minlength=len(names)) for some in (predicted[predicted == expected], predicted, expected)
    )  # fmt: skip
    return tuple(
        LabelRow(
            name, int(actual[label]), float(hits[label] / max(1, given[label])),
            float(hits[label] / max(1, actual[label])), float(2 * hits[label] / (given[label] + actual[label])),
        )
        for label, name in enumerate(names)
        if given[label] + actual[label]
    )  # fmt: skip


def _number(corpus: Corpus, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f'{corpus.where([line])}: "{text[:40]}" is no number (--reference). Correct it.')
    return value


_BATCH_TOKENS = 8192
_UNBOUNDED = 1 << 30
_CHUNK = 128  # tokens per sample of an encoder
_ROWS_SHOWN = 12
_LOSS_SHARE = 0.1  # of the time that a translator takes; the rest is the search
_THRESHOLD = 0.9  # of the confidence in a line
_MANY_UNKNOWN = 0.01  # of all characters


@dataclass(frozen=True)
class ConfidenceQuality:
    """How far the confidences in words and sentences can be relied on, and the lines at or above a threshold."""

    calibrated: bool
    words: Reliability
    sentences: Reliability
    threshold: float
    lines: int
    right: int  # of these lines, how many are equal to their reference
    all_lines: int

    def text(self) -> list[str]:
        """All numbers for a terminal."""
        kind = "calibrated" if self.calibrated else "raw"
        curve = "  ".join(f"{mean:.2f}:{share:.2f}" for mean, share, _ in self.words.curve)
        shown = f", {100 * self.right / self.lines:.1f} % of them right" if self.lines else ""
        return [
            f"confidence  {kind}, calibration error {self.words.error:.4f} for {self.words.count:,} words, "
            f"{self.sentences.error:.4f} for {self.sentences.count:,} sentences",
            f"        words, confidence:share right  {curve}",
            f"        {self.lines:,} of {self.all_lines:,} lines have {self.threshold:g} or more{shown}",
        ]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of a translator or language model; a language model has no quality, rows or lines."""

    loss: float  # nats per token
    perplexity: float
    bits_per_byte: float | None  # None if only some tokens are predicted
    tokens: int
    dropped: dict[str, int]  # lines without a loss, by reason
    unknown: float = 0.0  # the share of characters outside the vocabulary
    seconds: float = 0.0
    quality: Quality | None = None
    confidence: ConfidenceQuality | None = None
    comet: float | None = None
    by_length: tuple[Row, ...] = ()  # the source's length in tokens
    groups: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    sources: tuple[str, ...] = field(default=(), repr=False)
    hypotheses: tuple[str, ...] = field(default=(), repr=False)
    references: tuple[str, ...] = field(default=(), repr=False)

    @property
    def warning(self) -> str:
        """What a reader of these numbers must know: that many characters are unknown; usually nothing."""
        if self.unknown < _MANY_UNKNOWN:
            return ""
        return (
            f"warning: this model's tokenizer does not know {percent(self.unknown)} of the characters. Loss and "
            "perplexity count only the unknown token; bits per byte add 8 bits for each byte that it stands for."
        )

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data, without the lines of text."""
        plain = asdict(self)
        for name in ("sources", "hypotheses", "references"):
            del plain[name]
        return plain

    def text(self) -> str:
        """All numbers for a terminal."""
        found, lines = self.quality, []
        if found is not None:
            lines = [
                f"exact   {found.exact:.2f} % of {found.lines:,} lines",
                f"BLEU    {found.bleu:.2f}   {found.bleu_signature}",
                f"chrF    {found.chrf:.2f}   {found.chrf_signature}",
            ]
            lines += [] if found.ter is None else [f"TER     {found.ter:.2f}   {found.ter_signature}"]
            lines += [] if self.comet is None else [f"COMET   {100 * self.comet:.2f}"]
        lines += [] if self.confidence is None else self.confidence.text()
        loss = f"{self.loss:.4f} nats per token ({self.tokens:,} tokens), perplexity {self.perplexity:.3f}"
        bits = "" if self.bits_per_byte is None else f", {self.bits_per_byte:.4f} bits per byte"
        unknown = f", {percent(self.unknown)} of the characters unknown" if self.unknown else ""
        lines.append(f"loss    {loss}{bits}{unknown}")
        lines += [f"        no loss for {count:,} lines: {reason}" for reason, count in self.dropped.items()]
        lines.append(f"time    {self.seconds:.1f} s")
        tables = ({"source length in tokens": self.by_length} if self.by_length else {}) | self.groups
        parts = [lines, *(_table(title, rows) for title, rows in tables.items())]
        return "\n\n".join(map("\n".join, parts))


def evaluate(
    model: LoadedModel,
    corpus: Corpus,
    options: Options | None = None,
    *,
    window: int | None = None,
    stride: int | None = None,
    references: Sequence[Sequence[str]] = (),
    scoring: Scoring | None = None,
    threshold: float | None = None,
    progress: Progress = lambda done: None,
) -> Evaluation | LabelEvaluation:
    """Evaluate a model on a corpus; `progress` counts texts.

    `references` are more references per line, `scoring` says how they are compared. The confidence in translations is
    evaluated if the model is calibrated, or a `threshold` is given.

    Scores translations, predicted labels, or the loss of the text. A language model reads it through a sliding `window`
    of tokens that moves by `stride`; a model with constant memory reads it in one pass.
    """
    start = time.perf_counter()
    require_fit(model, corpus)
    if model.description.readout.outputs in ("labels", "numbers"):
        return evaluate_labels(model, corpus, progress=progress)
    if (window, stride) != (None, None) and (model.network.shape != "decoder" or corpus.targets is not None):
        raise InputError("only a language model uses a sliding window. Leave out --window and --stride.")
    if corpus.targets is not None:
        task = Translation(model.network.max_positions or _UNBOUNDED)
        evaluation = _measured(model, corpus, task, lambda done: progress(_LOSS_SHARE * done))
        answers = model.translations(corpus.sources, options, progress=lambda done: progress((1 - _LOSS_SHARE) * done))
        best, every = [found[0] for found in answers], [corpus.targets, *references]
        evaluation = _with_quality(evaluation, model, corpus, tuple(one.text for one in best), every, scoring)
        if model.calibration is not None or threshold is not None:
            measured = confidence_quality(model, corpus.sources, best, corpus.targets, threshold or _THRESHOLD)
            evaluation = replace(evaluation, confidence=measured)
    elif model.network.shape == "decoder":
        samples = LanguageModel().samples(corpus, (model.tokenizer, None))
        losses, tokens = read_documents(model, samples.stream, reading_mode(model, window, stride), progress=progress)
        evaluation = _from_loss(float(losses.sum()), tokens, samples, model)
    else:
        evaluation = replace(_measured(model, corpus, _pretraining_task(model), progress), bits_per_byte=None)
    return replace(evaluation, seconds=time.perf_counter() - start)


def confidence_quality(
    model: LoadedModel,
    sources: Sequence[str],
    translations: Sequence[GeneratedText],
    references: Sequence[str],
    threshold: float,
) -> ConfidenceQuality:
    """Compare the confidence in translations with what is right."""
    found = model.translation_confidences(sources, translations)
    words = [(word.probability, right) for one, reference in zip(found, references)
             for word, right in zip(one.words, right_words([word.word for word in one.words], reference))]  # fmt: skip
    exact = np.array([one.text == reference for one, reference in zip(translations, references)], dtype=float)
    sentences = np.array([one.sentence for one in found])
    sure = sentences >= threshold
    of_words = np.array(words, dtype=float).reshape(-1, 2)
    return ConfidenceQuality(
        model.calibration is not None, reliability(of_words[:, 0], of_words[:, 1]), reliability(sentences, exact),
        threshold, int(sure.sum()), int(exact[sure].sum()), len(exact),
    )  # fmt: skip


def length_rows(
    lengths: Sequence[int], hypotheses: Sequence[str], *references: Sequence[str], scoring: Scoring | None = None
) -> tuple[Row, ...]:
    """The quality by length, in about six buckets of equally many lines; "9-12" holds the lengths 9 to 12."""
    return counted(hypotheses, metrics(*references, scoring=scoring)).rows(by_length(lengths))


def group_rows(
    groups: Sequence[str], hypotheses: Sequence[str], *references: Sequence[str], scoring: Scoring | None = None
) -> tuple[Row, ...]:
    """The quality per group: numeric groups in order, others with the worst first."""
    rows = counted(hypotheses, metrics(*references, scoring=scoring)).rows(by_group(groups))
    return rows if is_numbered(groups) else tuple(sorted(rows, key=lambda row: (row.exact, row.chrf)))


def plot_by_length(evaluation: Evaluation, path: Path) -> None:
    """Draw exact match and chrF by source length into a PNG, with the number of lines below."""
    rows = evaluation.by_length
    if not rows:
        raise InputError("there are no translations to plot by length. Evaluate a translator on pairs.")
    lines = [
        Line("exact match", tuple(row.exact for row in rows), ACCENT),
        Line("chrF", tuple(row.chrf for row in rows), QUIET),
    ]
    draw(path, [panel("source length in tokens", rows, lines)])


def _measured(
    model: LoadedModel,
    corpus: Corpus,
    task: Translation | MaskedLM | SpanCorruption | BidirectionalLM,
    progress: Progress,
) -> Evaluation:
    """The loss of a corpus; `progress` counts its texts."""
    plain = task.samples(corpus, (model.tokenizer, model.target_tokenizer))
    samples = with_characters(plain, model.tokenizer, model.description.embed.characters)
    per_sample = len(corpus) / max(1, len(samples))
    found = predict(
        model.network, samples, _BATCH_TOKENS, predictions=False, progress=lambda done: progress(per_sample * done)
    )
    return _from_loss(found.loss, found.targets, samples, model)


def _from_loss(total: float, tokens: int, samples: Samples, model: LoadedModel) -> Evaluation:
    loss, unknown = total / max(1, tokens), unknown_text(samples, model.tokenizers)
    bits = bits_per_byte(total + float(unknown.nats.sum()), samples.bytes)
    return Evaluation(
        loss=loss, perplexity=perplexity(loss), bits_per_byte=bits, tokens=tokens, dropped=samples.left_out.counts(),
        unknown=unknown.share,
    )  # fmt: skip


def percent(share: float) -> str:
    """A share in per cent, with two digits that count."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.1f} %"


def _pretraining_task(model: LoadedModel) -> MaskedLM | SpanCorruption | BidirectionalLM:
    """The pre-training task that an encoder or encoder-decoder is evaluated on, with fixed draws."""
    length = min(_CHUNK, model.network.max_positions or _CHUNK)
    if model.network.shape != "encoder":
        return SpanCorruption(length)
    return MaskedLM(length) if "fill" in capabilities(model.description, model.tokenizer) else BidirectionalLM(length)


def _with_quality(
    evaluation: Evaluation,
    model: LoadedModel,
    corpus: Corpus,
    hypotheses: tuple[str, ...],
    references: Sequence[Sequence[str]],
    scoring: Scoring | None,
) -> Evaluation:
    """The evaluation with the quality of the translations: all lines, by length and by group."""
    lengths = encode_texts(model.tokenizer, corpus.sources).lengths.tolist()
    return replace(
        evaluation,
        quality=quality(hypotheses, *references, scoring=scoring),
        by_length=length_rows(lengths, hypotheses, *references, scoring=scoring),
        groups={
            name: group_rows(of_line, hypotheses, *references, scoring=scoring)
            for name, of_line in corpus.groups.items()
        },
        sources=tuple(corpus.sources),
        hypotheses=hypotheses,
        references=tuple(references[0]),
    )


def _table(title: str, rows: Sequence[Row]) -> list[str]:
    """The first rows under a heading."""
    wide = max(len(title), *(len(row.name) for row in rows))
    lines = [f"{title:<{wide}}  {'lines':>7}  {'exact':>6}  {'BLEU':>6}  {'chrF':>6}"]
    lines += [
        f"{row.name:<{wide}}  {row.lines:>7,}  {row.exact:>6.2f}  {row.bleu:>6.2f}  {row.chrf:>6.2f}"
        for row in rows[:_ROWS_SHOWN]
    ]
    rest = len(rows) - _ROWS_SHOWN
    return [*lines, f"and {rest:,} more"] if rest > 0 else lines


def require_fit(model: LoadedModel, corpus: Corpus) -> None:
    """Refuse pairs for a language model, and plain text for a translator or classifier."""
    known, name = capabilities(model.description, model.tokenizer), corpus.names[0]
    if known == ("embed",) and model.description.readout.outputs == "vectors":
        raise InputError("this model outputs vectors, which cannot be scored against a reference. Try: regard embed.")
    paired = known[0] in ("translate", "classify")
    if paired and corpus.targets is None and "fill" not in known:
        what = "translates" if known[0] == "translate" else "classifies"
        raise InputError(f"this model {what}, {name} is plain text. Give --source and --reference, or pairs as --text.")
    if not paired and corpus.targets is not None:
        raise InputError(
            f"this model does not translate, {name} holds pairs. Give plain text as --text, or one of its --fields."
        )
