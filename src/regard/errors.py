"""Errors by exit code. A message tells what (where), then what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


class RegardError(Exception):
    """An error that the user can correct; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 1


class RunFailed(RegardError):
    """The run itself failed: a loss that is not finite, memory that ran out."""


class InputError(RegardError, ValueError):
    """Bad input or usage: a missing file, an unknown key, widths that do not divide."""

    exit_code = 2


class DamagedFile(RegardError):
    """A damaged or hostile file."""

    exit_code = 3


class CannotResume(RegardError):
    """A run that cannot resume from its folder."""

    exit_code = 4


class DiskTrouble(RegardError):
    """A file that cannot be written."""

    exit_code = 74


class Interrupted(RegardError):
    """A signal ended the run after its work was saved; the exit code is 128 + the signal."""

    def __init__(self, message: str, *, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


class Note(UserWarning):
    """A note about a folder that loads nevertheless; the command line prints it as one line."""


def printable(text: str) -> str:
    """A text for a terminal: control characters, with which a file could command the terminal, are spelled out."""
    return text.translate(_CONTROLS)


def require_unicode(name: str, where: str) -> None:
    """Refuse a name whose bytes are not UTF-8: a recipe cannot hold it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode("utf-8", "backslashreplace").decode()
        raise InputError(f"the name {shown} is not UTF-8 ({where}). Rename the file or the folder.") from None


def suggest(name: str, known: Iterable[str]) -> str:
    """'Did you mean "x"?' for the nearest known name, else the list of what is known."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    near = near or [one for one in known if len(name) > 3 and name in one]
    if near:
        return f'Did you mean "{near[0]}"?'
    return f"Known: {', '.join(known)}." if known else "Leave it out."
