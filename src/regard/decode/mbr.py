"""Minimum Bayes risk decoding: of several candidates, the one most similar to all of them (Kumar & Byrne 2004).

The similarity of all pairs is computed at once, from one count per n-gram and candidate. It is the sentence score of
sacreBLEU: chrF (Popović 2015), or BLEU with exponential smoothing over the orders that there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.decode.options import Options
from regard.decode.requests import GeneratedText
from regard.errors import InputError

Matrix = NDArray[np.float64]
Metric = Literal["chrf", "bleu"]

_CHRF_ORDERS, _BLEU_ORDERS = 6, 4
_BETA = 2.0  # of chrF: recall weighs more than precision
_EPSILON = 0.02  # of epsilon sampling, which suits minimum Bayes risk best (Freitag 2023)


@dataclass(frozen=True)
class MBR:
    """Minimum Bayes risk: the similarity, and how many candidates are sampled; with beams they are the n best."""

    metric: Metric = "chrf"
    candidates: int = 32

    def __post_init__(self) -> None:
        if self.metric not in _METRICS:
            raise InputError(f'the risk is measured by "chrf" or "bleu", got "{self.metric}" (mbr).')
        if not 1 <= self.candidates <= 1024:
            raise InputError(f"mbr_candidates must be 1 to 1024, got {self.candidates}.")

    def sampling(self, options: Options) -> Options:
        """Options that sample the candidates, unless they search with a beam or sample already."""
        if options.temperature > 0:
            return options
        return replace(options, beam=1, n_best=1, temperature=1.0, epsilon=_EPSILON)

    def candidate_options(self, options: Options) -> Options:
        """Options that find the candidates: samples, or all that a beam search found."""
        return replace(options, n_best=self.candidates if options.temperature > 0 else options.beam)

    def rank(self, candidates: Sequence[GeneratedText], *, sampled: bool) -> list[GeneratedText]:
        """Distinct candidates, best first; the score is the expected similarity.

        The expectation is over the samples, or over the n best with the model's probabilities.
        """
        if any(one.impossible is not None for one in candidates):
            return list(candidates)
        distinct = list({one.text: one for one in reversed(candidates)}.values())[::-1]
        if sampled:
            counts = Counter(one.text for one in candidates)
            weights = np.array([counts[one.text] for one in distinct], dtype=float)
        else:
            values = np.array([one.log_probability for one in distinct])
            weights = np.exp(values - values.max())
        texts = [one.text for one in distinct]
        expected = _METRICS[self.metric](texts) @ (weights / weights.sum())
        order = np.argsort(-expected, kind="stable").tolist()
        return [replace(distinct[index], score=float(expected[index])) for index in order]


def chrf_matrix(texts: Sequence[str]) -> Matrix:
    """The chrF of each text against each as the reference."""
    plain = ["".join(text.split()) for text in texts]
    precision = recall = orders = np.zeros((len(texts), len(texts)))
    for order in range(1, _CHRF_ORDERS + 1):
        matches, sizes = _matches([[text[i : i + order] for i in range(len(text) - order + 1)] for text in plain])
        both = (sizes[:, None] > 0) & (sizes[None, :] > 0)
        precision = precision + np.where(both, matches / np.maximum(sizes, 1)[:, None], 0.0)
        recall = recall + np.where(both, matches / np.maximum(sizes, 1)[None, :], 0.0)
        orders = orders + both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    below = _BETA**2 * precision + recall
    found: Matrix = np.where(below > 0, 100 * (1 + _BETA**2) * precision * recall / np.where(below > 0, below, 1), 0.0)
    return found


def bleu_matrix(texts: Sequence[str]) -> Matrix:
    """The BLEU of each text against each as the reference."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    tokenize = Tokenizer13a()  # type: ignore[no-untyped-call]
    rows = [tokenize(text.rstrip()).split() for text in texts]
    lengths = np.array([len(row) for row in rows], dtype=float)
    logs = orders = np.zeros((len(texts), len(texts)))
    smooth, hits = np.ones_like(logs), np.zeros_like(logs)
    for order in range(1, _BLEU_ORDERS + 1):
        matches, sizes = _matches([[tuple(row[i : i + order]) for i in range(len(row) - order + 1)] for row in rows])
        there = sizes[:, None] > 0
        smooth = np.where(there & (matches == 0), 2 * smooth, smooth)
        value = np.where(matches > 0, matches, 1 / smooth) / np.maximum(sizes, 1)[:, None]
        logs, orders, hits = logs + np.where(there, np.log(value), 0.0), orders + there, hits + matches
    short = np.minimum(0.0, 1 - lengths[None, :] / np.maximum(lengths, 1)[:, None])
    found: Matrix = np.where(hits > 0, 100 * np.exp(short + logs / np.maximum(orders, 1)), 0.0)
    return found


def _matches(rows: Sequence[Sequence[Any]]) -> tuple[Matrix, NDArray[np.int64]]:
    """For n-grams per text: how many each pair of texts shares, and how many each has."""
    known: dict[Any, int] = {}
    numbers = [[known.setdefault(gram, len(known)) for gram in row] for row in rows]
    counts = np.zeros((len(rows), max(1, len(known))), dtype=np.int32)
    for index, row in enumerate(numbers):
        np.add.at(counts[index], row, 1)
    shared = np.stack([np.minimum(one, counts).sum(axis=1) for one in counts]) if len(rows) else counts
    return shared.astype(float), counts.sum(axis=1).astype(np.int64)


_METRICS: dict[str, Callable[[Sequence[str]], Matrix]] = {"chrf": chrf_matrix, "bleu": bleu_matrix}
