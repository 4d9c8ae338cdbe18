"""Options that several commands share, and reading and writing lines."""

from __future__ import annotations

import codecs
import json
import os
import select
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import InputError, Note
from regard.progress import progress as progress
from regard.schema import finite

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.engines.model import ConvertedModel

Row = dict[str, Any]
ModelFolder = Annotated[Path, typer.Argument(help="A model folder.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine", help="torch, ctranslate2, onnxruntime, or auto: a converted model that is proven, else torch."
    ),
]
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="Of linear maps in torch: float32, bfloat16 or int8.", show_default="float32"),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1, show_default="all")]
Parts = Annotated[
    list[Path] | None,
    typer.Option(help="Your Python file that defines parts; it is executed. Can be repeated.", show_default=False),
]
Beam = Annotated[int | None, typer.Option(help="Beam size; 1 is greedy.", show_default="the model's")]

_FIRST_CHUNK, _CHUNK = 16, 512  # lines that are read at once; small ones first, so that answers come soon
_MAX_THREADS = 16  # per CPU


def use_threads(threads: int | None) -> None:
    """Limit torch to this many threads."""
    import torch

    if threads is not None:
        torch.set_num_threads(limit_threads(threads))


def limit_threads(threads: int) -> int:
    """The number of threads, or that of the CPUs if the system could not start so many."""
    cpus = os.cpu_count() or 1
    if threads <= _MAX_THREADS * cpus:
        return threads
    warnings.warn(f"{threads:,} threads are too many for {cpus} CPUs; {cpus} are used (--threads).", Note, stacklevel=2)
    return cpus


def load_model(
    folder: Path, device: str, threads: int | None, parts: list[Path] | None = None, precision: str | None = None
) -> LoadedModel:
    """Load a model folder onto a device."""
    from regard.api import load

    use_threads(threads)
    chosen: Any = precision or "float32"
    return load(folder, device=device, parts=own_parts(parts), engine="torch", precision=chosen)


def load_converted(
    verb: str, folder: Path, device: str, threads: int | None, parts: list[Path] | None, engine: str,
    precision: str | None = None,
) -> LoadedModel | ConvertedModel:  # fmt: skip
    """Load a model for a command: converted, where the engine is asked for or proven, else in torch."""
    from regard.engines.folder import find_converted

    if precision is not None and require_torch(engine):
        return load_model(folder, device, threads, parts, precision)
    if device not in ("auto", "cpu"):
        refuse_engine(engine, f"runs on the CPU here, not on {device} (--device)")
        return load_model(folder, device, threads, parts)
    found = find_converted(folder, engine, verb)  # type: ignore[arg-type]  # checked there
    if found is None or (device == "auto" and engine == "auto" and _has_gpu()):
        return load_model(folder, device, threads, parts)
    from regard.engines.open import open_converted

    threads = None if threads is None else limit_threads(threads)
    torch = None if found == folder else lambda: load_model(folder, device, threads, parts)
    return open_converted(found, torch, defaults_from=folder, threads=threads)


def refuse_engine(engine: str, why: str) -> None:
    """Refuse an engine that was asked for by name, where only torch will do."""
    if engine not in ("auto", "torch"):
        raise InputError(f"{engine} {why} (--engine). Leave out --engine.")


def require_torch(engine: str) -> bool:
    """True, or an error if another engine is asked for, where only torch can do it."""
    from regard.engines.folder import CONVERTED_PRECISION, PROGRAMS

    if engine in PROGRAMS:
        raise InputError(CONVERTED_PRECISION)
    return True


def _has_gpu() -> bool:
    """Whether `--device auto` would choose a GPU; asked without torch, which starts slowly."""
    return Path("/proc/driver/nvidia/version").exists() or sys.platform == "darwin"


def own_parts(files: list[Path] | None) -> tuple[type, ...]:
    """The parts in the files that the user named."""
    if not files:
        return ()
    from regard.config.recipe import read_parts

    return read_parts(*files)


def trained_on_pairs(folder: Path) -> bool:
    """Whether the recipe of a model trains on labelled pairs of texts; read without torch, which starts slowly."""
    recipe = folder / "recipe.toml"
    if not recipe.is_file():
        return False
    from regard.schema import parse_toml

    try:
        text = parse_toml(recipe.read_text("utf-8")).get("text")
    except (OSError, ValueError):  # whoever reads the recipe says so
        return False
    fields = text.get("fields") if isinstance(text, dict) else None
    return isinstance(fields, list) and len(fields) > 2


def input_lines() -> Iterator[list[str]]:
    r"""Standard input in chunks of lines, split at newlines only; no line waits for one that has not come yet.

    If the first line ends in \r\n, so do the others, and \r is no text.
    """
    from regard.data.read.texts import STANDARD_INPUT, decode_line

    done, size, lines, end = 0, _FIRST_CHUNK, list[bytes](), b""
    for some, last in _lines_as_they_come():
        lines += some
        if lines and not done:
            end = b"\r" if lines[0].endswith(b"\r") else b""
        while lines and (len(lines) >= size or last or not _input_is_ready()):
            numbered = enumerate(lines[:size], done + 1)
            yield [decode_line(line.removesuffix(end), STANDARD_INPUT, number) for number, line in numbered]
            done, size, lines = done + len(lines[:size]), min(2 * size, _CHUNK), lines[size:]


def _lines_as_they_come() -> Iterator[tuple[list[bytes], bool]]:
    """The lines of standard input, block by block, and whether they are the last."""
    from regard import messages
    from regard.data.read.texts import MAX_LINE_BYTES, STANDARD_INPUT, input_blocks, refuse_utf16_and_gzip

    rest, done = b"", 0
    for number, block in enumerate(input_blocks()):
        if not number:
            refuse_utf16_and_gzip(STANDARD_INPUT, block[:4])
            block = block.removeprefix(codecs.BOM_UTF8)
        *lines, rest = (rest + block).split(b"\n")
        done += len(lines)
        if len(rest) > MAX_LINE_BYTES:
            raise messages.GIANT_LINE(path=STANDARD_INPUT, line=done + 1, limit=MAX_LINE_BYTES)
        yield lines, False
    yield [rest] if rest else [], True


def _input_is_ready() -> bool:
    """Whether standard input has more, or has ended."""
    try:
        return bool(select.select([sys.stdin], [], [], 0)[0])
    except (OSError, ValueError):  # not a stream of the system
        return True


def json_text(row: Row) -> str:
    """A row as a line of JSON; an unpaired surrogate, which UTF-8 cannot hold, stays escaped."""
    row = finite(row)
    text = json.dumps(row, ensure_ascii=False)
    return text if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text) else json.dumps(row)


def refuse_unused(why: str, **given: object) -> None:
    """Refuse options that would change nothing; None and False are options that were not given."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise InputError(f"--{name.replace('_', '-')} {why}")


def require_output(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write into ({option}). Make it first.")
    if path.is_dir():
        raise InputError(f"{path} is a folder ({option}). Name a file in it.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: Permission denied ({option}). Choose another place.")
