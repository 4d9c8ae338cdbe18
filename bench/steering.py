"""Glossary, minimum Bayes risk and ensembles on a test set: terms met, BLEU with paired significance, processor time.

python -m bench.steering glossary MODEL DATA    # DATA/train.{de,en} and DATA/test_2016_flickr.{de,en}
python -m bench.steering mbr MODEL DATA --lines 300
python -m bench.steering ensemble MODEL,MODEL,MODEL DATA
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU

import regard
from bench.documents import IBM1
from regard.api import Glossary
from regard.decode.terms import Constraints, contains

TERMS, SEED, RESAMPLES = 50, 1, 1000


def main() -> None:
    """Measure one part, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["glossary", "mbr", "ensemble"])
    parser.add_argument("models")
    parser.add_argument("data", type=Path)
    parser.add_argument("--lines", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    models = [regard.load(folder, device="cpu", engine="torch") for folder in given.models.split(",")]
    source, target = (_lines(given.data / f"test_2016_flickr.{side}")[: given.lines] for side in ("de", "en"))
    parts = {"glossary": glossary, "mbr": minimum_risk, "ensemble": ensemble}
    print(json.dumps(parts[given.part](models, source, target, given.data), indent=1))


def glossary(models: Sequence[Any], source: list[str], target: list[str], data: Path) -> dict[str, Any]:
    """50 nouns of the training text: 25 with their first choice, 25 with one that beam 5 does not give by itself."""
    model, translate = models[0], models[0].translate
    plain, seconds = _timed(lambda: translate(source, beam=5))
    usual, unusual = _terms(data, source, plain)
    found: dict[str, Any] = {"terms": {"usual": usual, "unusual": unusual}, "plain": _score(plain, target)}
    for name, terms in (("usual", usual), ("unusual", unusual), ("both", usual | unusual)):
        model.__dict__.pop("compiler", None)  # compiling is part of the time
        texts, taken = _timed(lambda terms=terms: translate(source, beam=5, glossary=terms))
        _, again = _timed(lambda: translate(source, beam=5))
        listed = Glossary.of(terms)
        wanted = [(text, word) for line, text in zip(source, texts) for word in listed.constraints(line, _NONE).must]
        found[name] = _score(texts, target) | _significance(plain, texts, target) | {
            "wanted": len(wanted), "met": sum(contains(text, word) for text, word in wanted),
            "time": taken / min(seconds, again),
        }  # fmt: skip
    return found


def minimum_risk(models: Sequence[Any], source: list[str], target: list[str], _: Path) -> dict[str, Any]:
    """Minimum Bayes risk over samples and over the n best, against beam 5."""
    model = models[0]
    plain, seconds = _timed(lambda: model.translate(source, beam=5))
    found: dict[str, Any] = {"lines": len(source), "beam 5": _score(plain, target)}
    settings: dict[str, dict[str, Any]] = {"chrf, 32 samples": {"mbr": "chrf", "mbr_candidates": 32},
                                           "bleu, 32 samples": {"mbr": "bleu", "mbr_candidates": 32},
                                           "chrf, 12 best": {"mbr": "chrf", "beam": 12}}  # fmt: skip
    for name, options in settings.items():
        texts, taken = _timed(lambda options=options: model.translate(source, **options))
        found[name] = _score(texts, target) | _significance(plain, texts, target) | {"time": taken / seconds}
    return found


def ensemble(models: Sequence[Any], source: list[str], target: list[str], _: Path) -> dict[str, Any]:
    """Each model alone and all together, beam 5."""
    alone = [model.translate(source, beam=5) for model in models]
    together = regard.ensemble(models).translate(source, beam=5)
    best = max(alone, key=lambda texts: _score(texts, target)["bleu"])
    scores = [_score(texts, target) for texts in alone]
    return {"alone": scores, "together": _score(together, target) | _significance(best, together, target)}


def _terms(data: Path, source: list[str], plain: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Nouns drawn by seed, each with the word that two IBM models 1 translate it by, or with their second choice.

    A second choice is a word that beam 5 uses in none of the lines with the noun.
    """
    pairs = [(_words(one), [word.lower() for word in _words(other)]) for one, other in
             zip(_lines(data / "train.de"), _lines(data / "train.en"))]  # fmt: skip
    forward, backward = IBM1(pairs), IBM1([(other, one) for one, other in pairs])
    trained = Counter(word for words, _ in pairs for word in set(words))
    tested = Counter(word for line in source for word in set(_words(line)))
    nouns = sorted(word for word, count in tested.items()
                   if word[0].isupper() and len(word) > 3 and 3 <= count <= 60 and trained[word] >= 20)  # fmt: skip
    choices: dict[str, list[tuple[float, str]]] = {noun: [] for noun in nouns}
    for (noun, word), value in forward.table.items():
        other = backward.table[word, noun]
        if noun in choices and value >= 0.02 and other >= 0.02 and word.isalpha():
            choices[noun].append((value * other, word))
    random.Random(SEED).shuffle(nouns)
    usual: dict[str, str] = {}
    unusual: dict[str, str] = {}
    for noun in nouns:
        ranked = [word for _, word in sorted(choices[noun], reverse=True)]
        if not ranked or forward.table[noun, ranked[0]] < 0.4:
            continue
        shown = " ".join(text for line, text in zip(source, plain) if contains(line, noun)).lower()
        second = [word for word in ranked[1:] if not contains(shown, word, prefix=True)]
        if len(unusual) < TERMS // 2 and second:
            unusual[noun] = second[0]
        elif len(usual) < TERMS // 2:
            usual[noun] = ranked[0]
    return usual, unusual


def _significance(one: list[str], other: list[str], target: list[str]) -> dict[str, float]:
    """Paired bootstrap over lines: the difference in BLEU, its 95 % interval, and how often it has the other sign."""
    metric, generator = BLEU(), np.random.default_rng(SEED)
    statistics = [np.array(metric._extract_corpus_statistics(texts, [target])) for texts in (one, other)]
    draws = generator.integers(0, len(target), (RESAMPLES, len(target)))
    scores = [np.array([metric._compute_score_from_stats(list(rows[draw].sum(0))).score for draw in draws])
              for rows in statistics]  # fmt: skip
    gains = scores[1] - scores[0]
    low, high = np.percentile(gains, [2.5, 97.5]).tolist()
    mean = _score(other, target)["bleu"] - _score(one, target)["bleu"]
    return {
        "gain": mean,
        "low": low,
        "high": high,
        "p": float(min(1.0, 2 * min((gains <= 0).mean(), (gains >= 0).mean()))),
    }


def _score(texts: list[str], target: list[str]) -> dict[str, float]:
    return {"bleu": BLEU().corpus_score(texts, [target]).score}


def _timed(work: Any) -> tuple[Any, float]:
    begun = time.process_time()
    return work(), time.process_time() - begun


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _words(line: str) -> list[str]:
    return [word for word in (part.strip(".,;:!?\"'()") for part in line.split()) if word]


_NONE = Constraints()

if __name__ == "__main__":
    main()
