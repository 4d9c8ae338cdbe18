"""Confidence: calibration makes it honest, survives on disk, and is said to be raw where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from regard.api import load
from regard.decode.alternatives import WordConfidence
from regard.decode.confidence import (
    CALIBRATION,
    Confidence,
    calibrate,
    read_calibration,
    right_words,
    write_calibration,
)
from regard.errors import DamagedFile, InputError
from regard.metrics import reliability
from regard.models import zoo
from tests.small import TEXTS, save_model, small


def overconfident(lines: int = 600) -> tuple[list[Confidence], list[str], list[str]]:
    """Words that claim log-odds of twice what is true."""
    draw = np.random.default_rng(1)
    found, texts, references = [], [], []
    for _ in range(lines):
        odds = draw.normal(1, 1.5, 4)
        right = draw.random(4) < 1 / (1 + np.exp(-odds))
        claimed = 1 / (1 + np.exp(-2 * odds))
        words = [f"w{n}" if one else f"x{n}" for n, one in enumerate(right)]
        found.append(
            Confidence(float(claimed.prod()), tuple(map(WordConfidence, words, claimed, [0] * 4, [0] * 4)), False)
        )
        texts.append(" ".join(words))
        references.append("w0 w1 w2 w3")
    return found, texts, references


def test_calibration_finds_the_temperature_and_lowers_the_error():
    calibration = calibrate(*overconfident())
    assert calibration.words.temperature == pytest.approx(2, abs=0.3)
    assert calibration.words.offset == pytest.approx(0, abs=0.2)
    for one in (calibration.words, calibration.sentences):
        assert one.calibrated.error < one.raw.error
    assert calibration.words.calibrated.error < 0.03
    values = calibration.words.apply([0.0, 0.2, 0.9, 1.0])
    assert values == sorted(values)
    assert 0 <= values[0] < values[-1] <= 1


def test_the_error_of_a_perfect_confidence_is_zero_and_of_a_wrong_one_its_distance():
    right = np.array([1.0, 1, 0, 0])
    assert reliability(right, right).error == 0
    assert reliability(np.full(4, 0.75), right).error == pytest.approx(0.25)
    assert reliability(np.full(4, 0.75), right).curve == ((0.75, 0.5, 4),)


def test_a_word_is_right_as_often_as_the_reference_has_it():
    assert right_words(["a", "b", "a", "a"], "a c a") == [True, False, True, False]


def test_what_cannot_be_calibrated_is_refused():
    found, texts, references = overconfident(3)
    with pytest.raises(InputError, match="12 words are too few"):
        calibrate(found, texts, references)


def test_a_calibration_survives_on_disk_and_changes_what_a_model_says(tmp_path: Path):
    folder = save_model(tmp_path / "model", small(zoo.transformer(16, 1, 2), generation_config={"max_new_tokens": 8}))
    model = load(folder, device="cpu")
    texts = TEXTS * 3
    best = [hypotheses[0] for hypotheses in model.translations(texts)]
    raw = model.translation_confidences(texts, best)
    assert not raw[0].calibrated
    assert raw[0].words == tuple(model.confidences(texts[0], best[0].text)) or raw[0].words
    model.calibrate(texts, [one.text for one in best])
    assert model.calibration is not None
    (folder / "README.md").write_text("# card\n")
    for _ in range(2):
        write_calibration(folder, model.calibration)
    assert (folder / "README.md").read_text().count("## Confidence") == 1
    again = load(folder, device="cpu")
    assert again.calibration == model.calibration == read_calibration(folder)
    calibrated = again.translation_confidences(texts, best)
    assert calibrated[0].calibrated
    assert calibrated[0].sentence > raw[0].sentence  # all were right
    assert CALIBRATION in json.loads((folder / "manifest.json").read_text())["regard_files"]
    (folder / "manifest.json").unlink()
    (folder / CALIBRATION).write_text('{"words": 3}')
    with pytest.raises(DamagedFile, match="Make it again: regard evaluate --calibrate"):
        load(folder, device="cpu")
