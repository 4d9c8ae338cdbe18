"""Confidence per word and per sentence of a translation, calibrated by temperature scaling (Guo 2017) with an offset.

The raw confidence of a word is the geometric mean of the probabilities of its tokens, that of a sentence is the product
of all. A word is right if the reference has it too, each of its words once; a sentence if it is the reference.
Calibration maps log-odds x to x / temperature + offset, fitted to what is right on held-out pairs (Platt 1999).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.decode.alternatives import WordConfidence, word_confidences
from regard.decode.generate import GeneratedText, Request
from regard.decode.score import forced_log_probabilities
from regard.errors import DamagedFile, InputError
from regard.metrics import Reliability, reliability
from regard.models.model import Network
from regard.schema import from_dict
from regard.store.files import json_bytes, read_json
from regard.store.manifest import write_model_files

CALIBRATION = "calibration.json"
_MOST = 30.0  # log-odds; what is surer counts as so sure
_LEAST = 20  # words without which nothing is fitted
_ROUNDS = 50


@dataclass(frozen=True)
class Scaling:
    """Temperature scaling with an offset, and the reliability before and after it, on pairs it was not fitted to."""

    temperature: float
    offset: float
    raw: Reliability
    calibrated: Reliability

    def apply(self, probabilities: Sequence[float]) -> list[float]:
        """Calibrated confidences."""
        return _scaled(_log_odds(probabilities), self.temperature, self.offset).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Calibration:
    """How the confidences of a model's words and sentences are calibrated."""

    words: Scaling
    sentences: Scaling

    def text(self) -> str:
        """The expected calibration error before and after, as a table of Markdown."""
        rows = [
            f"| {name} | {one.raw.count:,} | {one.raw.error:.4f} | {one.calibrated.error:.4f} | {one.temperature:.3g} |"
            for name, one in (("words", self.words), ("sentences", self.sentences))
        ]
        head = "| confidence | number | error raw | error calibrated | temperature |\n|---|---|---|---|---|"
        return "\n".join([head, *rows])


@dataclass(frozen=True)
class Confidence:
    """The confidence in a translation and in each of its words; raw probabilities, if it is not calibrated."""

    sentence: float
    words: tuple[WordConfidence, ...]
    calibrated: bool


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of a model folder, if it has one."""
    path = folder / CALIBRATION
    if not path.is_file():
        return None
    try:
        found: Calibration = from_dict(Calibration, read_json(path), where=str(path))
    except InputError as error:
        raise DamagedFile(f"{path} cannot be used: {error} Make it again: regard evaluate --calibrate.") from error
    for one in (found.words, found.sentences):
        if not (math.isfinite(one.temperature) and math.isfinite(one.offset) and one.temperature > 0):
            raise DamagedFile(f"{path} cannot be used. Make it again: regard evaluate --calibrate.")
    return found


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write calibration.json, and its table into the model card, if there is one."""
    contents = {CALIBRATION: json_bytes(asdict(calibration))}
    card = folder / "README.md"
    if card.is_file():
        before = card.read_text("utf-8").partition(_HEADING)[0].rstrip("\n")
        contents["README.md"] = f"{before}\n{_HEADING}{calibration.text()}\n".encode()
    write_model_files(folder, contents)


_HEADING = "\n## Confidence\n\nExpected calibration error on validation pairs, fitted on the other half.\n\n"


def confidences(
    network: Network,
    tokenizer: Any,
    requests: Sequence[Request],
    translations: Sequence[GeneratedText],
    calibration: Calibration | None = None,
) -> list[Confidence]:
    """The confidence in translations; each request is what its translation was generated for."""
    forced = [replace(one, prompt=(*one.prompt, *text.tokens)) for one, text in zip(requests, translations)]
    some = [index for index, text in enumerate(translations) if text.tokens]
    values = dict(zip(some, forced_log_probabilities(network, [forced[index] for index in some]) if some else []))
    found = []
    for index, (request, text) in enumerate(zip(requests, translations)):
        ids = [*request.prompt[request.special_tokens :], *text.tokens]
        words = word_confidences(tokenizer, ids, values[index]) if index in values else []
        whole = math.exp(min(0.0, text.log_probability))
        if calibration is not None:
            scaled = calibration.words.apply([word.probability for word in words])
            words = [replace(word, probability=one) for word, one in zip(words, scaled)]
            whole = calibration.sentences.apply([whole])[0]
        found.append(Confidence(whole, tuple(words), calibration is not None))
    return found


def right_words(words: Sequence[str], reference: str) -> list[bool]:
    """Whether the reference has each word too; of a word that it has once, only the first is right."""
    left, right = Counter(reference.split()), []
    for word in words:
        right.append(left[word] > 0)
        left[word] -= 1
    return right


def calibrate(found: Sequence[Confidence], texts: Sequence[str], references: Sequence[str]) -> Calibration:
    """Fit the calibration of raw confidences to what is right; its errors are measured by two-fold cross-validation."""
    if any(one.calibrated for one in found):
        raise InputError("these confidences are calibrated already. Give raw ones.")
    words = [(word.probability, right, line % 2) for line, (one, reference) in enumerate(zip(found, references))
             for word, right in zip(one.words, right_words([word.word for word in one.words], reference))]  # fmt: skip
    if len(words) < _LEAST:
        raise InputError(f"{len(words):,} words are too few to calibrate with. Give {_LEAST} or more.")
    lines = [
        (one.sentence, text == reference, line % 2)
        for line, (one, text, reference) in enumerate(zip(found, texts, references))
    ]
    return Calibration(_fitted(words), _fitted(lines))


def _fitted(rows: Sequence[tuple[float, bool, int]]) -> Scaling:
    raw, right, half = (np.array(column, dtype=float) for column in zip(*rows))
    odds, calibrated = _log_odds(raw), raw.copy()
    for fold in (0, 1):
        held, rest = half == fold, half != fold
        if held.any() and rest.any():
            calibrated[held] = _scaled(odds[held], *_fit(odds[rest], right[rest]))
    temperature, offset = _fit(odds, right)
    return Scaling(temperature, offset, reliability(raw, right), reliability(calibrated, right))


def _fit(odds: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[float, float]:
    """The temperature and offset of the highest likelihood, by Newton's method; targets are smoothed as Platt's."""
    count = right.sum()
    targets = np.where(right > 0, (count + 1) / (count + 2), 1 / (len(right) - count + 2))
    slope, offset = 1.0, 0.0
    for _ in range(_ROUNDS):
        expected = 1 / (1 + np.exp(-np.clip(slope * odds + offset, -_MOST, _MOST)))
        gradient = np.array([((targets - expected) * odds).sum(), (targets - expected).sum()])
        weight = expected * (1 - expected)
        hessian = np.array([[(weight * odds**2).sum(), (weight * odds).sum()], [(weight * odds).sum(), weight.sum()]])
        step = np.linalg.solve(hessian + 1e-6 * np.eye(2), gradient)
        step = step / max(1.0, float(np.abs(step).max()))
        slope, offset = max(0.01, slope + float(step[0])), offset + float(step[1])
        if np.abs(step).max() < 1e-9:
            break
    return 1 / slope, offset


def _log_odds(probabilities: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    values = np.clip(np.asarray(probabilities, dtype=float), 1e-13, 1 - 1e-13)
    return np.asarray(np.clip(np.log(values) - np.log1p(-values), -_MOST, _MOST))


def _scaled(odds: NDArray[np.float64], temperature: float, offset: float) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(odds / temperature + offset, -_MOST, _MOST))))
