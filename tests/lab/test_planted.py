"""A rule can fail: a wrong model, planted in a claim, flips its verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.lab.claims import axis, order, reversible, saturation, scale, symmetry
from regard.layers.join import PreNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Learned
from regard.layers.scores import Dot, DotScore

# The folder of a finding is new in each test, so nothing is resumed.


def verdict(name: str, folder: Path, *settings: str) -> str:
    return regard.lab.run(name, minutes=1, seeds=2, settings=settings, out=folder / name, show=False).verdict


class ByWords(Dot):
    """Divides by the square root of the number of words instead of the key width (the erratum)."""

    def build(self, query_width: int, key_width: int, heads: int = 1) -> Any:
        return DotScore(1 / math.sqrt(32), 1.0)


def test_a_scale_by_the_number_of_words_is_no_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert verdict("scale", tmp_path / "right", "repeats=2") == "confirmed"
    monkeypatch.setitem(scale.SCORES, "scaled", ByWords())
    assert verdict("scale", tmp_path / "wrong", "repeats=2") != "confirmed"


def test_a_scaled_score_in_place_of_the_unscaled_one_does_not_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert verdict("saturation", tmp_path / "right", "queries=200") == "confirmed"
    monkeypatch.setitem(saturation.SCORES, "unscaled", Dot())
    assert verdict("saturation", tmp_path / "wrong", "queries=200") == "refuted"


class OverWords(nn.LayerNorm):
    """Layer normalization over words and width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)


def test_a_norm_over_words_refutes_the_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert verdict("axis", tmp_path / "right") == "confirmed"
    planted = {name: [OverWords(64)] for name in ("post-norm Transformer", "GPT-2", "BERT")}
    monkeypatch.setattr(axis, "norms", lambda width: planted)
    assert verdict("axis", tmp_path / "wrong") == "refuted"


def test_heads_that_are_drawn_at_random_are_not_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(symmetry.NOISE, "identical", None)
    assert verdict("symmetry", tmp_path, "steps=3", "width=16") == "refuted"


def test_a_residual_join_in_place_of_the_reversible_one_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(reversible.JOINS, "reversible", PreNorm())
    assert verdict("reversible", tmp_path, "length=1024", "width=64") == "refuted"


@pytest.mark.slow
def test_a_bag_of_words_that_secretly_has_positions_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert verdict("order", tmp_path / "right") == "confirmed"
    monkeypatch.setitem(order.POSITIONS, "bag of words", Learned(64))
    assert verdict("order", tmp_path / "wrong") == "refuted"


@pytest.mark.slow
def test_a_decoder_that_has_a_mask_after_all_does_not_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from regard.lab.claims import leak

    monkeypatch.setitem(leak.PATTERNS, "no mask", Causal())
    found = regard.lab.run("leak", minutes=3, seeds=1, settings=["steps=30"], out=tmp_path, show=False)
    assert found.verdict == "refuted"
