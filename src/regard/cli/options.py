"""What several verbs share: options, and lines in and out."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from regard.errors import InputError

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.decode.generate import Progress


ModelFolder = Annotated[Path, typer.Argument(help="A model folder.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(help="Processor threads to use.", min=1, show_default="all")]

_CHUNK = 2048


def use_threads(threads: int | None) -> None:
    """Limit torch to so many threads."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def load_model(folder: Path, device: str, threads: int | None) -> LoadedModel:
    """The model of a folder, on a device."""
    from regard.api import load

    use_threads(threads)
    return load(folder, device=device)


def input_lines() -> Iterator[list[str]]:
    """Standard input in chunks of lines, cut at newlines only."""
    from regard.data.read.files import STANDARD_INPUT, decode_line, refuse_foreign

    stream: BinaryIO = sys.stdin.buffer
    number = 0
    while chunk := list(islice(stream, _CHUNK)):
        if not number:
            refuse_foreign(STANDARD_INPUT, chunk[0][:2])
            chunk[0] = chunk[0].removeprefix(codecs.BOM_UTF8)
        yield [decode_line(line.removesuffix(b"\n"), STANDARD_INPUT, number + i) for i, line in enumerate(chunk, 1)]
        number += len(chunk)


def json_text(row: dict[str, object]) -> str:
    """A row as a line of JSON; half a character pair, which no text can hold, stays escaped."""
    text = json.dumps(row, ensure_ascii=False)
    return text if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text) else json.dumps(row)


def json_line(line: str) -> dict[str, Any]:
    """A line of JSON with its text under "text", or a plain line; what else it holds is passed through."""
    if not line.lstrip().startswith("{"):
        return {"text": line}
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"standard input holds a line that is not JSON: {error}. Leave out --json?") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise InputError('a JSON line needs its text under "text" (standard input).')
    return value


def two_columns(line: str, number: int) -> tuple[str, str]:
    """The two texts of a line, with a tab between them."""
    first, tab, second = line.partition("\t")
    if not tab:
        raise InputError(
            f"line {number:,} is one text, this takes two (standard input). Write both in a line, a tab between them."
        )
    return first, second


@contextmanager
def progress(total: int, what: str, least: int = 2) -> Iterator[Progress]:
    """A bar on a terminal, nothing in a pipe, nor for fewer than so many."""
    if not sys.stderr.isatty() or total < least:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.advance(task, done)
