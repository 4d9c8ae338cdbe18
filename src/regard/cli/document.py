"""`regard translate --file`: a whole document, with its markup, resumed if it was killed; and `--confidence`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.cli.options import load_model, own_parts, progress, require_output, require_torch, use_threads
from regard.cli.steering import Steering
from regard.decode.confidence import Confidence
from regard.decode.requests import GeneratedText
from regard.errors import InputError, Note
from regard.progress import Progress

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.decode.options import Options

_SHOWN = 5  # marked sentences


def translate_file(
    model: LoadedModel, folder: Path, file: Path, out: Path | None, *, language: str | None, options: Options,
    steering: Steering,
) -> None:  # fmt: skip
    """Translate a document to another file, or to standard output; sentences to look at go to standard error."""
    from regard.decode.document import open_document

    require_output("--out", out)
    if out is not None and out.exists() and out.samefile(file):
        raise InputError(f"{out} is the document itself (--out). Choose another file.")
    if out is None and file.suffix.lower() == ".docx" and sys.stdout.isatty():
        raise InputError("a Word document cannot be printed to a terminal (--file). Add --out translated.docx.")
    language = source_language(folder) if language is None else language
    total = open_document(file).sentences(model.splitter(language))
    with progress(total, "translating") as advance:
        found = model.translate_document(
            file, out, language=language, glossary=steering.glossary, must_not=steering.must_not, options=options,
            progress=advance,
        )  # fmt: skip
    if out is None:
        sys.stdout.buffer.write(found.content)
        sys.stdout.flush()
    if found.marked:
        count = len(found.marked)
        typer.echo(f"{count:,} of {found.sentences:,} sentences should be looked at:", err=True)
        for one in found.marked[:_SHOWN]:
            typer.echo(f"  {_short(one.source)} -> {_short(one.translation)}: {', '.join(one.differences)}.", err=True)
        if count > _SHOWN:
            typer.echo(f"  and {count - _SHOWN:,} more", err=True)


@dataclass(frozen=True)
class SureText(GeneratedText):
    """A translation with its confidence."""

    confidence: Confidence | None = None


def note_raw(model: LoadedModel) -> None:
    """Say that confidences are not calibrated, if they are not."""
    if model.calibration is None:
        warnings.warn("this model has no calibration.json, so its confidences are raw probabilities. Calibrate it: "
                      "regard evaluate MODEL --calibrate.", Note, stacklevel=2)  # fmt: skip


def sure(
    model: LoadedModel, translations: Callable[..., list[list[GeneratedText]]], texts: Sequence[str], *given: Options,
    prefixes: Sequence[str] | None = None, progress: Progress | None = None, first_line: int = 1, **steering: Any,
) -> list[list[GeneratedText]]:  # fmt: skip
    """The best translation of each text with its confidence."""
    found = translations(texts, *given, prefixes=prefixes, progress=progress, first_line=first_line, **steering)
    best = [hypotheses[0] for hypotheses in found]
    confidences = model.translation_confidences(texts, best, prefixes=prefixes)
    values = ({one.name: getattr(text, one.name) for one in fields(text)} for text in best)
    return [[SureText(**value, confidence=one)] for value, one in zip(values, confidences)]


def load_for_documents(
    folder: Path, device: str, threads: int | None, parts: list[Path] | None, engine: str, precision: str | None = None
) -> LoadedModel:
    """Load a model with torch, whose attention carries tags over; a converted one, if there is one, translates."""
    from regard.api import load

    use_threads(threads)
    if precision is not None and require_torch(engine):
        return load_model(folder, device, threads, parts, precision)
    return load(folder, device=device, parts=own_parts(parts), engine=engine)  # type: ignore[arg-type]  # checked there


def source_language(folder: Path) -> str | None:
    """The language that a model reads, if its recipe or its card names it."""
    from regard.store.languages import folder_languages

    found = folder_languages(folder)
    return None if found is None else found[0]


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
