"""What a validation during training measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import regard
from regard.models import zoo


@pytest.mark.parametrize(("text", "least", "most"), [("αβγδε ζηθ\n", 8, 12), ("the quick brown\n", 0, 8)])
def test_unknown_characters_of_the_validation_text_count_in_its_bits_per_byte(
    text: str, least: float, most: float, tmp_path: Path
):
    (tmp_path / "train.txt").write_text("the quick brown fox\n" * 40)
    (tmp_path / "valid.txt").write_text(text * 10)
    settings = [f"text.valid={tmp_path / 'valid.txt'}", "text.tokenizer=character"]
    regard.train(zoo.gpt2(16, 1, 2), text=tmp_path / "train.txt", out=tmp_path / "run", steps=2, settings=settings)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (found,) = (row["valid_bits_per_byte"] for row in rows if "valid_bits_per_byte" in row)
    assert least < found < most  # each unknown byte costs at least its eight bits
