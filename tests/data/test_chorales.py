"""Chorales: lossless as text, transposed, and refused with their location when malformed."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import mido
import pytest

from regard.config.recipe import Text
from regard.data.corpora.chorales import SILENCE, Chord, Note, midi_of, read_chorales, text_of, transposed, voices_of
from regard.data.read.cache import Cache
from regard.data.read.corpus import read_corpus
from regard.data.tokenize.train import Word, train_tokenizers
from regard.errors import InputError

QUARTER = [(67, 62, 59, 43), (67, 62, 59, 43), (67, 64, 59, 43), (SILENCE,) * 4]


def chorale(seed: int, sixteenths: int = 40) -> list[Chord]:
    """Voices that hold, move and pause."""
    draw = random.Random(seed)
    chord = [67, 62, 55, 43]
    found = []
    for _ in range(sixteenths):
        chord = [
            pitch if draw.random() < 0.6 else draw.choice([SILENCE, *range(low, low + 12)])
            for pitch, low in zip(chord, (62, 57, 50, 41))
        ]
        found.append(tuple(chord))
    return found


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def chords(voices: tuple[list[Note], ...], sixteenths: int) -> list[Chord]:
    """The pitches of each sixteenth."""
    found = [[SILENCE] * 4 for _ in range(sixteenths)]
    for number, notes in enumerate(voices):
        for note in notes:
            for time in range(note.start, note.start + note.length):
                found[time][number] = note.pitch
    return [tuple(chord) for chord in found]


def test_a_chorale_has_one_word_per_voice_and_sixteenth_and_a_bar_before_each_quarter():
    assert text_of([*QUARTER, QUARTER[0]]) == "| 167 262 359 443 1 2 3 4 1 264 3 4 10 20 30 40 | 167 262 359 443"


@pytest.mark.parametrize("seed", range(5))
def test_the_text_of_a_chorale_is_lossless(seed: int):
    piece = chorale(seed)
    assert chords(voices_of(text_of(piece)), len(piece)) == piece


def test_every_pitch_has_a_word_in_every_voice():
    piece = [(pitch, 127 - pitch, pitch, 127 - pitch) for pitch in range(128)]
    assert chords(voices_of(text_of(piece)), len(piece)) == piece


def test_a_repeated_pitch_is_a_new_note_and_a_held_one_is_not():
    voices = voices_of("167 20 30 4 167 2 350 4 1 2 3 40")
    assert voices == ([Note(67, 0, 1), Note(67, 1, 2)], [], [Note(50, 1, 2)], [])


def test_an_incomplete_sixteenth_is_dropped():
    whole = "| 167 262 359 443 1 2 3 4"
    assert voices_of(f"{whole} 168 263") == voices_of(whole)
    for broken in ("168 |", "168|", "168 263", "263 360 448", "168 360 448"):
        assert voices_of(f"{whole} {broken} 169 264 360 445")[0] == [Note(67, 0, 2), Note(69, 2, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("167 262 x 443", 'word 3 is "x"'),
        ("167 262 3128 443", 'word 3 is "3128"'),
        ("167 262 559 443", 'word 3 is "559"'),
        ("167 262 - 443", 'word 3 is "-"'),
        ("167 262 ٣ 443", "word 3"),
        ("", "no note"),
        ("10 20 30 40 167", "no note"),
    ],
)
def test_text_that_is_no_music_is_refused(text: str, message: str):
    with pytest.raises(InputError, match=message):
        voices_of(text)


def test_a_word_tokenizer_is_lossless_for_music(tmp_path: Path):
    path = write(tmp_path / "m.json", [chorale(seed) for seed in range(8)])
    corpus = read_corpus(path)
    tokenizer, _ = train_tokenizers(Word(), corpus, Cache())
    for text in corpus.sources:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert len(ids) == len(text.split())
        assert tokenizer.unk not in ids


def test_a_file_with_splits_is_read_by_the_recipes_key_and_a_list_is_read_whole(tmp_path: Path):
    pieces = [chorale(seed) for seed in range(6)]
    path = write(tmp_path / "m.json", {"train": pieces[:3], "valid": pieces[3:5], "test": pieces[5:]})
    text = Text(train="m.json", valid="m.json", test="m.json", folder=str(tmp_path))
    for split, expected in (("train", pieces[:3]), ("valid", pieces[3:5]), ("test", pieces[5:])):
        assert list(text.read(split).sources) == [text_of(piece) for piece in expected]
    assert list(read_corpus(path).sources) == [text_of(pieces[5])]
    whole = write(tmp_path / "list.json", pieces)
    assert [*read_corpus(whole, split="train").sources] == [text_of(piece) for piece in pieces]
    (tmp_path / "z.json.gz").write_bytes(gzip.compress(Path(whole).read_bytes()))
    assert [*read_corpus(str(tmp_path / "z.json.gz")).sources] == [text_of(piece) for piece in pieces]


def test_missing_voices_are_silent_and_whole_numbers_may_be_written_as_floats(tmp_path: Path):
    path = write(tmp_path / "m.json", [[[67.0, -1.0, 59], [], [67]]])
    silent = SILENCE
    assert read_chorales(path, "train") == [
        [(67, silent, 59, silent), (silent, silent, silent, silent), (67, silent, silent, silent)]
    ]


def test_transposition_keeps_intervals_and_silence_and_stays_in_the_ranges_of_the_voices():
    wide, narrow = [(60, 55, 50, 40), (72, 67, 62, 52)], [(66, 61, SILENCE, 46)]
    found = dict(transposed([wide, narrow], 7))
    assert list(found)[:3] == [0, 1, -1]
    assert found[0] == [wide, narrow]
    assert found[3] == [[(69, 64, SILENCE, 49)]]
    assert found[-6] == [[(60, 55, SILENCE, 40)]]
    assert found[7] == found[-7] == []


def test_only_the_training_text_is_transposed(tmp_path: Path):
    pieces = [*(chorale(seed, 400) for seed in range(3)), [(72, 67, 60, 51)], *map(chorale, (4, 5))]
    write(tmp_path / "m.json", {"train": pieces[:4], "valid": pieces[4:]})
    plain = Text(train="m.json", valid="m.json", folder=str(tmp_path))
    text = Text(train="m.json", valid="m.json", folder=str(tmp_path), transpose=2)
    train = text.read("train")
    assert list(train.sources[:4]) == list(plain.read("train").sources)
    assert len(train) == sum(part.texts for part in train.subcorpora)
    assert len(train.subcorpora) == 4  # two semitones up, the bass would leave its range
    assert text.read("valid").digest == plain.read("valid").digest
    assert train.where([1]).endswith("m.json:2")
    assert train.subcorpora[1].texts == 1
    assert train.sources[4] == text_of([(73, 68, 61, 52)])
    assert train.where([4]).endswith("m.json +1:1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ('"x"', "must be a list"),
        ('{"valid": []}', 'no chorales under "train", only valid'),
        ('{"train": 3}', "must be a list"),
        ('{"train": []}', "0 lines"),
        ('{"train": [[]]}', "train, chorale 1"),
        ('{"train": [[[60]], [[60], 7]]}', "7 is no list of pitches .*chorale 2, sixteenth 2"),
        ("[[[60, 60, 60, 60, 60]]]", "5 voices .*chorale 1, sixteenth 1"),
        ("[[[60], [128]]]", "128 is no pitch .*sixteenth 2"),
        ("[[[-2]]]", "-2 is no pitch"),
        ("[[[60.5]]]", "60.5 is no pitch"),
        ("[[[NaN]]]", "NaN is no pitch"),
        ("[[[1e999]]]", "Infinity is no pitch"),
        ("[[[true]]]", "true is no pitch"),
        ('[[["67"]]]', '"67" is no pitch'),
        ("[[[[67]]]]", "is no pitch"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_malformed_file_is_refused_with_its_location_in_one_line(tmp_path: Path, content: str, message: str):
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(InputError, match=message) as error:
        read_corpus(str(tmp_path / "m.json"), split="train")
    assert "m.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_transpose_is_for_music_and_at_most_an_octave(tmp_path: Path):
    (tmp_path / "a.txt").write_text("words\n")
    with pytest.raises(InputError, match="file of music"):
        Text(train=str(tmp_path / "a.txt"), transpose=3).read("train")
    for wrong in ({"train": "m.json", "transpose": 13}, {"train": "m.json", "transpose": -1},
                  {"corpus": "dates", "transpose": 2}):  # fmt: skip
        with pytest.raises(InputError, match=r"text\.transpose"):
            Text(**wrong)


def sounding(content: bytes) -> tuple[list[Note], ...]:
    """The notes of each track of a MIDI file."""
    file = mido.MidiFile(file=io.BytesIO(content))
    voices = []
    for track in file.tracks:
        now, begun, notes = 0, {}, []
        for event in track:
            now += event.time
            if event.type == "note_on":
                assert not begun
                begun[event.note] = now
            elif event.type == "note_off":
                start = begun.pop(event.note)
                unit = file.ticks_per_beat // 4
                notes.append(Note(event.note, start // unit, (now - start) // unit))
        assert not begun
        voices.append(notes)
    return tuple(voices)


@pytest.mark.parametrize("seed", range(3))
def test_a_midi_file_has_the_notes_of_the_text(seed: int):
    text = text_of(chorale(seed))
    assert sounding(midi_of(text)) == voices_of(text)


def test_a_midi_file_has_one_track_and_channel_per_voice_and_the_length_of_the_piece():
    file = mido.MidiFile(file=io.BytesIO(midi_of(text_of(QUARTER * 6))))
    assert [track.name for track in file.tracks] == ["soprano", "alto", "tenor", "bass"]
    channels = [{message.channel for message in track if not message.is_meta} for track in file.tracks]
    assert channels == [{0}, {1}, {2}, {3}]
    assert file.length == pytest.approx((6 - 1 / 4) * 60 / 72)  # the last sixteenth is silent
