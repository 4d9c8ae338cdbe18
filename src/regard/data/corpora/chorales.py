"""Chorales: four-part music as text, and back, with one word per voice and sixteenth note.

"| 167 262 359 443 1 2 3 4 1 264 3 4 10 20 30 40" is a quarter note. The first digit of a word is its voice, from 1
for soprano to 4 for bass; then follows a MIDI pitch of two or three digits, 0 for silence, or nothing where the voice
holds its note. A bar precedes every quarter. So a model that starts in the middle of a piece knows voice and beat.
"""

from __future__ import annotations

import io
import itertools
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from regard.data.corpora import Split
from regard.data.read.texts import read_blocks
from regard.errors import InputError
from regard.extras import extra

Chord = tuple[int, ...]
"""The pitches of soprano, alto, tenor and bass in a sixteenth note."""

VOICES = ("soprano", "alto", "tenor", "bass")
SILENCE = -1
_BAR = "|"
_QUARTER = 4  # sixteenths
_PITCHES = range(128)
_WORDS = {
    f"{voice + 1}{written}": (voice, pitch)
    for voice in range(len(VOICES))
    for written, pitch in [("", None), ("0", SILENCE), *((f"{pitch:02}", pitch) for pitch in _PITCHES)]
}  # voice and pitch of each word; None: the voice holds its note
_WORD = {meaning: word for word, meaning in _WORDS.items()}
_MAX_BYTES = 100_000_000
_MIDI_TICKS, _MIDI_TEMPO, _MIDI_VELOCITY = 480, 72, 80  # ticks per quarter note, quarter notes per minute
_MIDI_CHOIR = 52  # General MIDI's "Choir Aahs", counted from 0
_SHAPE = "A sixteenth is a list of up to 4 MIDI pitches (0 to 127), soprano to bass, with -1 for silence."


@dataclass(frozen=True)
class Note:
    """A note: pitch, start and length, in sixteenths."""

    pitch: int
    start: int
    length: int


def is_music(path: str) -> bool:
    """Whether a file holds chorales: its name ends in .json or .json.gz."""
    return path.endswith((".json", ".json.gz"))


def has_splits(path: str) -> bool:
    """Whether a JSON file has chorales to train, to validate and to test."""
    content = _json(path)
    return isinstance(content, dict) and all(split in content for split in get_args(Split))


def read_chorales(path: str, split: Split) -> list[list[Chord]]:
    """The chorales of a JSON file: those of a split, or all if the file is one list."""
    content, where = _json(path), path
    if isinstance(content, dict):
        if split not in content:
            known = ", ".join(sorted(map(str, content))) or "nothing"
            raise InputError(f'{path} has no chorales under "{split}", only {known} (text.{split}). Name another file.')
        content, where = content[split], f"{path}: {split}"
    if isinstance(content, list) and content and all(isinstance(one, dict) for one in content):
        lines = "import json, sys; [print(json.dumps(one)) for one in json.load(sys.stdin)]"
        raise InputError(
            f"{path} is one JSON list of objects, and a .json holds music here (text). Write one object per line: "
            f"python -c '{lines}' < {shlex.quote(path)} > {shlex.quote(str(Path(path).with_suffix('.jsonl')))}."
        )
    if not isinstance(content, list):
        raise InputError(f"chorales must be a list ({where}). Write [chorale, ...]; do not name plain text .json.")
    return [_chorale(chorale, f"{where}, chorale {number:,}") for number, chorale in enumerate(content, 1)]


def text_of(chorale: Sequence[Chord]) -> str:
    """A chorale as words."""
    words: list[str] = []
    before: tuple[int | None, ...] = (None,) * len(VOICES)
    for number, chord in enumerate(chorale):
        words += [_BAR] if number % _QUARTER == 0 else []
        words += [
            _WORD[voice, None if pitch == last else pitch] for voice, (pitch, last) in enumerate(zip(chord, before))
        ]
        before = chord
    return " ".join(words)


def voices_of(text: str) -> tuple[list[Note], ...]:
    """The notes of each voice; an incomplete sixteenth (soprano to bass) is dropped."""
    voices: tuple[list[Note], ...] = tuple([] for _ in VOICES)
    for voice, pitches in zip(voices, zip(*_sixteenths(text))):
        # A note lasts until the next pitch or silence.
        starts = [index for index, pitch in enumerate(pitches) if pitch is not None]
        for start, stop in itertools.pairwise([*starts, len(pitches)]):
            if pitches[start] != SILENCE:
                voice.append(Note(pitches[start], start, stop - start))
    if not any(voices):
        raise InputError("there is no note in this text (music). Generate more: --max-tokens.")
    return voices


def midi_of(text: str) -> bytes:
    """The text of a chorale as a standard MIDI file, with one track per voice."""
    with extra("music", "a MIDI file"):
        import mido

    file = mido.MidiFile(type=1, ticks_per_beat=_MIDI_TICKS)
    for channel, (name, notes) in enumerate(zip(VOICES, voices_of(text))):
        track = file.add_track(name)
        if not channel:
            track.append(mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(_MIDI_TEMPO)))
        track.append(mido.Message("program_change", channel=channel, program=_MIDI_CHOIR))
        last = 0
        for note in notes:
            for kind, time in (("note_on", note.start), ("note_off", note.start + note.length)):
                ticks = (time - last) * _MIDI_TICKS // _QUARTER
                track.append(
                    mido.Message(kind, channel=channel, note=note.pitch, velocity=_MIDI_VELOCITY, time=ticks)
                )  # fmt: skip
                last = time
    content = io.BytesIO()
    file.save(file=content)
    return content.getvalue()


def transposed(chorales: Sequence[Sequence[Chord]], most: int) -> Iterator[tuple[int, list[list[Chord]]]]:
    """The chorales untransposed (0), then by up to `most` semitones up and down, if no voice leaves its range.

    The range of a voice is from its lowest to its highest pitch in all these chorales.
    """
    ranges_of = [_ranges(chorale) for chorale in chorales]
    widest = [(min(low), max(high)) for low, high in (zip(*found) for found in zip(*ranges_of))]
    for shift in sorted(range(-most, most + 1), key=lambda shift: (abs(shift), -shift)):
        yield shift, [
            [tuple(pitch if pitch == SILENCE else pitch + shift for pitch in chord) for chord in chorale]
            for chorale, ranges in zip(chorales, ranges_of)
            if all(low + shift >= lowest and high + shift <= highest
                   for (low, high), (lowest, highest) in zip(ranges, widest) if low <= high)
        ]  # fmt: skip


def _ranges(chorale: Sequence[Chord]) -> list[tuple[int, int]]:
    """The lowest and highest pitch of each voice; for a silent voice, lowest > highest."""
    voices = [[pitch for pitch in voice if pitch != SILENCE] for voice in zip(*chorale)]
    return [(min(voice, default=len(_PITCHES)), max(voice, default=SILENCE)) for voice in voices]


def _sixteenths(text: str) -> Iterator[tuple[Any, ...]]:
    """The pitches of each complete sixteenth."""
    kept: list[int | None] = []
    # The first bar of a piece has no space before it; a model may generate that token elsewhere.
    for number, word in enumerate(text.replace(_BAR, f" {_BAR} ").split(), 1):
        if word == _BAR:
            kept = []
            continue
        if word not in _WORDS:
            raise InputError(
                f'word {number:,} is "{word[:20]}", which is no music (text). A word is a voice from 1 to 4 and a '
                'pitch, as 167, or "|" before a quarter.'
            )
        voice, pitch = _WORDS[word]
        kept = [*kept[:voice], pitch] if voice in (0, len(kept)) else []
        if len(kept) == len(VOICES):
            yield tuple(kept)
            kept = []


def _json(path: str) -> Any:
    content = bytearray()
    for block in read_blocks(Path(path)):
        content += block
        if len(content) > _MAX_BYTES:
            raise InputError(
                f"{path} is larger than {_MAX_BYTES:,} bytes (text). Cut it into several files of chorales."
            )
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON: {error} (text). Name JSON lines .jsonl, and plain text anything but .json."
        ) from None


def _chorale(chorale: Any, where: str) -> list[Chord]:
    if not isinstance(chorale, list) or not chorale:
        raise InputError(f"a chorale is a list of sixteenths ({where}). {_SHAPE}")
    return [_chord(chord, f"{where}, sixteenth {number:,}") for number, chord in enumerate(chorale, 1)]


def _chord(chord: Any, where: str) -> Chord:
    """Four pitches; missing voices are silent."""
    if not isinstance(chord, list):
        raise InputError(f"{_brief(chord)} is no list of pitches ({where}). {_SHAPE}")
    if len(chord) > len(VOICES):
        raise InputError(f"{len(chord):,} voices ({where}). {_SHAPE}")
    for pitch in chord:
        if type(pitch) not in (int, float) or not (pitch in _PITCHES or pitch == SILENCE):
            raise InputError(f"{_brief(pitch)} is no pitch ({where}). {_SHAPE}")
    return (*map(int, chord), *[SILENCE] * (len(VOICES) - len(chord)))


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 20 else text[:17] + "..."
