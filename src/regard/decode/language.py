"""Language detection: a text classifier whose labels are codes of languages, such as the recipe `languages` trains."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.classify import LabelPrediction, classify, label_names, predicted_readout, predicts_next_sentence
from regard.errors import InputError
from regard.models.model import Network

Detection = list[tuple[str, float]]
"""Codes of languages, each with the confidence in percent, best first."""

_MOST_CHARACTERS = 400  # the start of a text tells its language
_LETTER = re.compile(r"[^\W\d_]")


class Classifier(Protocol):
    """What `regard.load` returns for a classifier."""

    @property
    def network(self) -> Network: ...

    @property
    def tokenizer(self) -> Tokenizer: ...


class LanguageDetector:
    """Detects the language of texts with a model that labels them with the codes of languages."""

    def __init__(self, model: Classifier) -> None:
        description = model.network.description
        readout = predicted_readout(description)
        if readout.outputs != "labels" or readout.tokenwise or predicts_next_sentence(description):
            raise InputError(
                "this model labels no texts, so it detects no languages. Train one that does: regard train languages."
            )
        self.model, self.network, self.tokenizer = model, model.network, model.tokenizer
        self.languages = label_names(model.network)

    def detect(self, texts: Sequence[str], among: Collection[str] | None = None) -> list[Detection]:
        """The languages of each text with the confidence in percent, best first; `among` leaves out all others.

        The confidences of a text sum to 100. In a text without a letter no language is found: all have confidence 0.
        """
        chosen = [code for code in self.languages if among is None or code in among]
        if not chosen:
            raise InputError(
                f"this model knows none of {', '.join(among or ())} (among). It knows {', '.join(self.languages)}."
            )
        with_letters = [index for index, text in enumerate(texts) if _LETTER.search(text)]
        predictions = classify(self.network, self.tokenizer, [self._start(texts[index]) for index in with_letters])
        found: list[Detection] = [[(code, 0.0) for code in chosen] for _ in texts]
        for index, prediction in zip(with_letters, predictions):
            assert isinstance(prediction, LabelPrediction)
            found[index] = _percent({code: prediction.probabilities[code] for code in chosen})
        return found

    def _start(self, text: str) -> str:
        """The start of a text, from its first letter on, as much of it as the model reads."""
        letter = _LETTER.search(text)
        text = text[letter.start() if letter else 0 :][:_MOST_CHARACTERS]
        room = self.network.max_positions
        if room is None:
            return text
        offsets = self.tokenizer.encode_with_offsets(text).offsets[: max(1, room - 4)]
        return text[: offsets[-1][1]] if offsets else text


def _percent(probabilities: dict[str, float]) -> Detection:
    """Probabilities as shares of 100, largest first."""
    total = sum(probabilities.values())
    shares = {code: 100 * value / total if total else 0.0 for code, value in probabilities.items()}
    return sorted(shares.items(), key=lambda pair: -pair[1])
