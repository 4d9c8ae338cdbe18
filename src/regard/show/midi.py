"""Music heard: the text of a chorale as a MIDI file."""

from __future__ import annotations

import io
from pathlib import Path

from regard.data.corpora.chorales import VOICES, voices_of
from regard.store.files import write_file

_TICKS = 480  # a quarter note
_TEMPO = 72  # quarter notes a minute
_CHOIR = 52  # General MIDI's "Choir Aahs", counted from 0
_VELOCITY = 80


def midi(text: str) -> bytes:
    """A standard MIDI file with a track a voice, sung by a choir."""
    import mido

    file = mido.MidiFile(type=1, ticks_per_beat=_TICKS)
    for channel, (name, notes) in enumerate(zip(VOICES, voices_of(text))):
        track = file.add_track(name)
        if not channel:
            track.append(mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(_TEMPO)))
        track.append(mido.Message("program_change", channel=channel, program=_CHOIR))
        now = 0
        for note in notes:
            for kind, place in (("note_on", note.start), ("note_off", note.start + note.length)):
                track.append(
                    mido.Message(
                        kind, channel=channel, note=note.pitch, velocity=_VELOCITY, time=(place - now) * _TICKS // 4
                    )
                )
                now = place
    written = io.BytesIO()
    file.save(file=written)
    return written.getvalue()


def save_midi(text: str, path: str | Path) -> None:
    """Write what a model said, or the text of a chorale, as a MIDI file that one can play."""
    write_file(Path(path), midi(text))
