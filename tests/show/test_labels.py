"""The words of the page: layers as the papers name them, models without the paths of their maker."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.show.labels import layer_label, model_labels


@pytest.mark.parametrize(
    ("name", "only_stack", "title"),
    [
        ("decoder.1.cross", False, "cross-attention, layer 1"),
        ("decoder.1.self", False, "decoder self-attention, layer 1"),
        ("encoder.1.self", False, "encoder self-attention, layer 1"),
        ("encoder.0.self", True, "self-attention, layer 0"),
        ("decoder.11.self", True, "self-attention, layer 11"),
        ("decoder.2.my_part", True, "my part, layer 2"),
    ],
)
def test_a_layer_is_named_as_in_the_papers(name: str, only_stack: bool, title: str):
    found, tip = layer_label(name, only_stack=only_stack)
    assert found == title
    assert name in tip


def test_a_model_is_named_by_as_little_of_its_path_as_tells_it_apart(tmp_path: Path):
    assert model_labels([tmp_path / "dates"]) == ["dates"]
    assert model_labels([tmp_path / "a" / "dates", tmp_path / "b" / "dates"]) == ["a/dates", "b/dates"]
    assert model_labels([Path("hf:google-bert/bert-base-uncased")]) == ["bert-base-uncased"]
