"""A model that learnt chorales writes a MIDI file."""

from __future__ import annotations

import json
from pathlib import Path

import mido
import pytest

from regard.data.corpora.chorales import Chord, voices_of
from tests.training.runs import regard

RECIPE = """
[model]
name     = "gpt2"
width    = 16
depth    = 1
heads    = 2
dropout  = 0.0
position = "rotary"

[text]
folder    = "{folder}"
train     = "chorales.json"
valid     = "chorales.json"
transpose = 2
tokenizer = "word"
task   = {{ kind = "language_model", length = 64 }}

[train]
steps        = 60
batch_tokens = 256
learning_rate = 2e-2
optimizer    = "muon"
label_smoothing = 0.0
schedule     = {{ kind = "cosine", warmup = 5 }}
"""


def scale(first: int) -> list[Chord]:
    """Four voices that climb together, a step every two sixteenths."""
    return [(first + step, first - 5 + step, first - 12 + step, first - 24 + step) for step in range(8) for _ in "ab"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("music")
    pieces = [scale(first) for first in range(62, 70)]
    (folder / "chorales.json").write_text(json.dumps({"train": pieces, "valid": pieces[:2]}))
    (folder / "music.toml").write_text(RECIPE.format(folder=folder))
    code, out, err = regard("train", folder / "music.toml", "--out", folder / "run")
    assert (code, err) == (0, "")
    assert "is ready" in out
    return folder / "run"


def test_a_piece_is_written_as_midi_and_as_text_and_both_say_the_same(model: Path, tmp_path: Path):
    wanted = ("generate", model, "| 165 260 353 441", "--max-tokens", "60", "--temperature", "0")
    code, text, _ = regard(*wanted)
    assert code == 0
    for name in ("piece.mid", "piece.txt"):
        code, said, err = regard(*wanted, "--out", tmp_path / name)
        assert (code, said, err) == (0, f"Wrote {tmp_path / name}.\n", "")
    assert (tmp_path / "piece.txt").read_text() == text
    tracks = mido.MidiFile(tmp_path / "piece.mid").tracks
    played = [[message.note for message in track if message.type == "note_on"] for track in tracks]
    assert played == [[note.pitch for note in voice] for voice in voices_of(text)]
    assert played[0][0] == 65


def test_a_model_that_says_no_music_writes_no_midi(model: Path, tmp_path: Path):
    for prompt in ("def main(", "|"):
        code, _, err = regard("generate", model, prompt, "--max-tokens", "0", "--out", tmp_path / "piece.mid")
        assert code == 2
        assert err.startswith("regard: error: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "piece.mid").exists()
