"""How good a model's names, numbers or tags are, against those that are right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.api import LoadedModel
from regard.data.read.corpus import Corpus
from regard.data.read.texts import halves
from regard.data.samples import Samples
from regard.data.tasks.bidirectional_lm import BidirectionalLM
from regard.data.tasks.language_model import LanguageModel
from regard.data.tasks.masked_lm import MaskedLM
from regard.data.tasks.span_corruption import SpanCorruption
from regard.data.tasks.translation import Translation
from regard.data.tokenize.characters import as_letters
from regard.data.tokenize.encode import encode_texts
from regard.decode.classify import UNSAID, Labelled, Numbered, Said, Tagged, Text, names_of
from regard.decode.generate import Progress
from regard.decode.inputs import verbs
from regard.decode.options import Options
from regard.errors import InputError, suggest
from regard.evaluation.charts import ACCENT, QUIET, Line, draw, panel
from regard.evaluation.significance import Row, by_group, by_length, counted, is_numbered, metrics
from regard.evaluation.sliding_window import Whole, Window, read_documents, way
from regard.metrics import Quality, agreement, bits_per_byte, correlation, perplexity, quality
from regard.training.validate import summed_loss

_NAMES_SHOWN = 40


@dataclass(frozen=True)
class NameRow:
    """How well a name is told: how many have it, how many of those it is given to, and of those that have it."""

    name: str
    count: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, kw_only=True)
class AnswerEvaluation:
    """What `evaluate` found of a model that says names or numbers."""

    scores: dict[str, float]
    lines: int
    judged: int  # answers: one a line, or one a word
    dropped: dict[str, int]  # lines that were not judged, by reason
    by_name: tuple[NameRow, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return asdict(self)

    def text(self) -> str:
        """All numbers for a terminal."""
        wide = max(map(len, self.scores))
        lines = [f"{name:<{wide}}  {value:.4f}" for name, value in self.scores.items()]
        lines[0] += f"   of {self.judged:,} answers in {self.lines:,} lines"
        lines += [f"        {count:,} lines not judged: {reason}" for reason, count in self.dropped.items()]
        lines.append(f"time    {self.seconds:.1f} s")
        if self.by_name:
            wide = max(len("name"), *(len(row.name) for row in self.by_name))
            lines += ["", f"{'name':<{wide}}  {'count':>7}  {'precision':>9}  {'recall':>6}  {'F1':>6}"]
            lines += [
                f"{row.name:<{wide}}  {row.count:>7,}  {row.precision:>9.4f}  {row.recall:>6.4f}  {row.f1:>6.4f}"
                for row in self.by_name[:_NAMES_SHOWN]
            ]
            rest = len(self.by_name) - _NAMES_SHOWN
            lines += [f"and {rest:,} more"] if rest > 0 else []
        return "\n".join(lines)


def evaluate_answers(
    model: LoadedModel, corpus: Corpus, *, progress: Callable[[float], None] = lambda done: None
) -> AnswerEvaluation:
    """What a model says of every text against the targets: accuracy and correlations."""
    start = time.perf_counter()
    assert corpus.targets is not None
    judged = [place for place, target in enumerate(corpus.targets) if target.strip()]
    if not judged:
        raise InputError(f"{corpus.names[-1]} holds no answer. Name a file with one a line.")
    progress(len(corpus) - len(judged))
    said = model.classify(_texts(corpus, judged), progress=progress)
    right = [corpus.targets[place].strip() for place in judged]
    dropped = {"no answer": len(corpus) - len(judged)} if len(judged) < len(corpus) else {}
    if model.description.readout.says == "numbers":
        numbers = np.array([_number(corpus, place, text) for place, text in zip(judged, right)])
        found = np.array([one.number for one in said if isinstance(one, Numbered)])
        scores = {**correlation(found, numbers), "mean squared error": float(((found - numbers) ** 2).mean())}
        return AnswerEvaluation(
            scores=scores, lines=len(judged), judged=len(judged), dropped=dropped,
            seconds=time.perf_counter() - start,
        )  # fmt: skip
    names = [*names_of(model.network), UNSAID]
    mine, theirs = _numbered(corpus, judged, said, right, names)
    return AnswerEvaluation(
        scores=agreement(mine, theirs),
        lines=len(judged),
        judged=len(mine),
        dropped=dropped,
        by_name=_by_name(mine, theirs, names),
        seconds=time.perf_counter() - start,
    )


def _texts(corpus: Corpus, places: Sequence[int]) -> list[Text]:
    """The texts at some places, or the pairs of texts."""
    if not corpus.joined:
        return [corpus.sources[place] for place in places]
    for place in places:
        if "\t" not in corpus.sources[place]:
            raise InputError(f"{corpus.where([place])} is one text, not two with a tab between them. Mend it.")
    first, second = halves(corpus.sources)
    return [(first[place], second[place]) for place in places]


def _numbered(
    corpus: Corpus, places: Sequence[int], said: Sequence[Said], right: Sequence[str], names: Sequence[str]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The numbers of all names that were said, and of those that are right."""
    mine: list[int] = []
    theirs: list[int] = []
    numbers = {name: number for number, name in enumerate(names)}
    for place, one, text in zip(places, said, right):
        expected = text.split() if isinstance(one, Tagged) else [text]
        given = one.tags if isinstance(one, Tagged) else (one.label,) if isinstance(one, Labelled) else ()
        if len(expected) != len(given):
            raise InputError(
                f"{corpus.where([place])}: {len(given):,} words have {len(expected):,} tags (--reference). "
                "Give each word one, all separated by spaces."
            )
        for name in expected:
            if name not in numbers:
                known = suggest(name, names[:-1])
                raise InputError(f'{corpus.where([place])}: this model knows no "{name}" (--reference). {known}')
        mine += [numbers[name] for name in given]
        theirs += [numbers[name] for name in expected]
    return np.array(mine, dtype=np.int64), np.array(theirs, dtype=np.int64)


def _by_name(mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], names: Sequence[str]) -> tuple[NameRow, ...]:
    """How well each name that occurs is told."""
    hits, given, there = (
        np.bincount(some, minlength=len(names)) for some in (mine[mine == theirs], mine, theirs)
    )  # fmt: skip
    return tuple(
        NameRow(
            name,
            int(there[place]),
            float(hits[place] / max(1, given[place])),
            float(hits[place] / max(1, there[place])),
            float(2 * hits[place] / (given[place] + there[place])),
        )
        for place, name in enumerate(names)
        if given[place] + there[place]
    )


def _number(corpus: Corpus, place: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f'{corpus.where([place])}: "{text[:40]}" is no number (--reference). Mend it.')
    return value


_BATCH_TOKENS = 8192
_UNBOUNDED = 1 << 30
_PIECE = 128  # tokens of a text that is read whole
_ROWS_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What `evaluate` found; a language model has no quality, no rows and no lines of text."""

    loss: float  # nats per token
    perplexity: float
    bits_per_byte: float | None  # None where only some tokens are asked for
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
        bits = "" if self.bits_per_byte is None else f", {self.bits_per_byte:.4f} bits per byte"
        loss = f"loss    {self.loss:.4f} nats a token ({self.tokens:,} tokens), perplexity {self.perplexity:.3f}{bits}"
        return [loss, *dropped]


def evaluate(
    model: LoadedModel,
    corpus: Corpus,
    options: Options | None = None,
    *,
    window: int | None = None,
    stride: int | None = None,
    progress: Progress = lambda done: None,
) -> Evaluation | AnswerEvaluation:
    """Judge what a model says of every text; `progress` is told how many more texts are done.

    A translator's translations, a classifier's answers, and of other models the loss of the text. Language models read
    it through a `window` of tokens that moves on by a `stride`; those that remember what they have read, whole.
    """
    start = time.perf_counter()
    require_fit(model, corpus)
    if model.description.readout.says in ("names", "numbers"):
        return evaluate_answers(model, corpus, progress=progress)
    if (window, stride) != (None, None) and (model.network.encoder is not None or corpus.targets is not None):
        raise InputError("only a language model reads through a window. Leave out --window and --stride.")
    if corpus.targets is not None:
        evaluation = _measured(model, corpus, Translation(model.network.max_positions or _UNBOUNDED))
        said = tuple(answers[0].text for answers in model.translations(corpus.sources, options, progress=progress))
        evaluation = _judged(evaluation, model, corpus, said)
    elif model.network.encoder is None:
        evaluation = _read(model, corpus, way(model, window, stride), progress)
    else:
        evaluation = replace(_measured(model, corpus, _learnt(model)), bits_per_byte=None)
        progress(len(corpus))
    return replace(evaluation, seconds=time.perf_counter() - start)


def length_rows(lengths: Sequence[int], hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Row, ...]:
    """The quality by length, in about six buckets of equally many lines; "9-12" holds the lengths 9 to 12."""
    return counted(hypotheses, metrics(references)).rows(by_length(lengths))


def group_rows(groups: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Row, ...]:
    """The quality of each group: in order where groups are numbers, else the worst first."""
    rows = counted(hypotheses, metrics(references)).rows(by_group(groups))
    return rows if is_numbered(groups) else tuple(sorted(rows, key=lambda row: (row.exact, row.chrf)))


def plot_by_length(evaluation: Evaluation, path: Path) -> None:
    """A PNG of exact match and chrF by source length, with the number of lines below."""
    rows = evaluation.by_length
    if not rows:
        raise InputError("there are no translations to plot by length. Evaluate a translator on pairs.")
    lines = [
        Line("exact match", tuple(row.exact for row in rows), ACCENT),
        Line("chrF", tuple(row.chrf for row in rows), QUIET),
    ]
    draw(path, [panel("source length in tokens", rows, lines)])


def _measured(model: LoadedModel, corpus: Corpus, task: Translation | MaskedLM | SpanCorruption | BidirectionalLM) -> Evaluation:
    """The loss of a corpus."""
    plain = task.samples(corpus, (model.tokenizer, model.target_tokenizer))
    samples = as_letters(plain, model.tokenizer, model.description.embed.letters)
    total, tokens = summed_loss(model.network, samples, _BATCH_TOKENS)
    return _lost(total, tokens, samples)


def _read(
    model: LoadedModel, corpus: Corpus, how: Window | Whole, progress: Progress
) -> Evaluation:  # fmt: skip
    """The loss of documents that are read whole or through a window."""
    samples = LanguageModel().samples(corpus, (model.tokenizer, None))
    losses, tokens = read_documents(model, samples.stream, how, progress=progress)
    return _lost(float(losses.sum()), tokens, samples)


def _lost(total: float, tokens: int, samples: Samples) -> Evaluation:
    loss = total / max(1, tokens)
    return Evaluation(
        loss=loss,
        perplexity=perplexity(loss),
        bits_per_byte=bits_per_byte(total, samples.bytes),
        tokens=tokens,
        dropped=samples.left_out.counts(),
    )


def _learnt(model: LoadedModel) -> MaskedLM | SpanCorruption | BidirectionalLM:
    """What a model that reads a text as a whole learns of it, drawn the same each time."""
    length = min(_PIECE, model.network.max_positions or _PIECE)
    if model.network.decoder is not None:
        return SpanCorruption(length)
    return MaskedLM(length) if "fill" in verbs(model.description, model.tokenizer) else BidirectionalLM(length)


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


def require_fit(model: LoadedModel, corpus: Corpus) -> None:
    """Refuse pairs for a model that reads one text, and plain text for one that says something of it."""
    known, name = verbs(model.description, model.tokenizer), corpus.names[0]
    if known == ("embed",) and model.description.readout.says == "vectors":
        raise InputError("this model makes vectors, which are right or wrong of no text alone. Try: regard embed.")
    answers = known[0] in ("translate", "classify")
    if answers and corpus.targets is None and "fill" not in known:
        what = "translates" if known[0] == "translate" else "classifies"
        raise InputError(f"this model {what}, {name} has one side. Give --source and --reference.")
    if not answers and corpus.targets is not None:
        raise InputError(f"this model does not translate, {name} has two sides. Give --text.")
