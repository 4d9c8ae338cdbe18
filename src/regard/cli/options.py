"""Options that several commands share, and reading and writing lines."""

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

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.decode.generate import Progress

Row = dict[str, Any]
ModelFolder = Annotated[Path, typer.Argument(help="A model folder.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1, show_default="all")]
Parts = Annotated[
    list[Path] | None,
    typer.Option(help="Your Python file that defines parts; it is executed. Can be repeated.", show_default=False),
]
Beam = Annotated[int | None, typer.Option(help="Beam size; 1 is greedy.", show_default="the model's")]

_CHUNK = 2048  # lines


def use_threads(threads: int | None) -> None:
    """Limit torch to this many threads."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def load_model(folder: Path, device: str, threads: int | None, parts: list[Path] | None = None) -> LoadedModel:
    """Load a model folder onto a device."""
    from regard.api import load

    use_threads(threads)
    return load(folder, device=device, parts=own_parts(parts))


def own_parts(files: list[Path] | None) -> tuple[type, ...]:
    """The parts in the files that the user named."""
    if not files:
        return ()
    from regard.config.recipe import read_parts

    return read_parts(*files)


def trained_on_pairs(folder: Path, parts: list[Path] | None) -> bool:
    """Whether the recipe of a model trains on labelled pairs of texts."""
    recipe = folder / "recipe.toml"
    if not recipe.is_file():
        return False
    from regard.config.recipe import read_recipe

    return len(read_recipe(recipe, parts=own_parts(parts)).text.fields or ()) > 2


def input_lines() -> Iterator[list[str]]:
    """Standard input in chunks of lines, split at newlines only."""
    from regard.data.read.texts import STANDARD_INPUT, decode_line, refuse_utf16_and_gzip

    stream: BinaryIO = sys.stdin.buffer
    number = 0
    while chunk := list(islice(stream, _CHUNK)):
        if not number:
            refuse_utf16_and_gzip(STANDARD_INPUT, chunk[0][:2])
            chunk[0] = chunk[0].removeprefix(codecs.BOM_UTF8)
        yield [decode_line(line.removesuffix(b"\n"), STANDARD_INPUT, number + i) for i, line in enumerate(chunk, 1)]
        number += len(chunk)


def json_text(row: Row) -> str:
    """A row as a line of JSON; an unpaired surrogate, which UTF-8 cannot hold, stays escaped."""
    text = json.dumps(row, ensure_ascii=False)
    return text if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text) else json.dumps(row)


@contextmanager
def progress(total: int, what: str, least: int = 2) -> Iterator[Progress]:
    """A progress bar on a terminal; none in a pipe, nor for fewer than `least` items."""
    if not sys.stderr.isatty() or total < least:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.advance(task, done)
