"""The command show."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    Beam,
    Device,
    ModelFolder,
    Parts,
    Threads,
    input_lines,
    load_model,
    own_parts,
    progress,
    use_threads,
)
from regard.errors import InputError

_LONG = 2_000  # tokens per head, from which on a progress bar shows
_GRACE = 0.5  # seconds to finish a request after Ctrl-C

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.show.payload import TracePage
    from regard.show.server import TraceText


def show(
    model: ModelFolder,
    text: Annotated[str, typer.Argument(help="The input text; - reads standard input.", show_default=False)],
    target: Annotated[
        str | None, typer.Option(help="The target or continuation to show; by default the model generates it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the page to this file; it works offline.", show_default="a local server")
    ] = None,
    against: Annotated[list[Path] | None, typer.Option(help="Another model to compare with; can be repeated.")] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Show every checkpoint of the model's run, with a time slider.")
    ] = False,
    layers: Annotated[
        list[str] | None, typer.Option(help='Only these layers, like "decoder.*.cross"; can be repeated.')
    ] = None,
    beam: Beam = None,
    length: Annotated[int, typer.Option(help="Language models: number of tokens to generate.", min=0)] = 0,
    port: Annotated[int, typer.Option(help="Without --out: the local port.", show_default="a free one")] = 0,
    browser: Annotated[bool, typer.Option(help="Without --out: open a browser.")] = True,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show the attention of every layer and head: on a local web page, or as one offline HTML file.

    Example: regard show runs/dates "15. März 2024" --out page.html
    """
    if text == "-":
        text = "\n".join(line for lines in input_lines() for line in lines)
    if out is not None and not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write into (--out). Make it first.")
    if out is not None and out.is_dir():
        raise InputError(f"{out} is a folder (--out). Name a file in it, like {out / 'page.html'}.")
    if checkpoints and against:
        raise InputError("checkpoints of one run and other models cannot share a page. Leave out --against.")
    models = _models(model, against or [], checkpoints, device, threads, parts)
    trace_text = partial(_trace_page, models, layers=layers, beam=beam, length=length, slider=checkpoints)
    shown = trace_text(text, target)
    if out is None:
        _serve(shown, trace_text, port, browser)
        return
    with progress(shown.work, "tracing", least=_LONG) as done:
        shown.save(out, progress=done)
    counts = [len(trace.weights) for _, trace in shown.traces]
    layers_of = " and ".join(str(count) for count in sorted(set(counts)))
    what = f"{layers_of} attention layer{'s' * (max(counts) > 1)}"
    each = f" of each of {len(counts)} models" if len(counts) > 1 else ""
    typer.echo(f"{out} shows {f'{what}{each}' if any(counts) else 'only text: this model has no attention'}.")


def _models(
    folder: Path, against: list[Path], checkpoints: bool, device: str, threads: int | None, parts: list[Path] | None
) -> dict[str, LoadedModel]:
    """The models by their labels on the page."""
    folders = [folder, *against]
    if not checkpoints:
        if len(set(folders)) < len(folders):
            raise InputError("a model is compared with itself (--against). Name another.")
        return {str(name): load_model(name, device, threads, parts) for name in folders}
    from regard.api import load, steps

    use_threads(threads)
    found, own = steps(folder), own_parts(parts)
    if not found:
        raise InputError(f"{folder} has no checkpoints (--checkpoints). Train with train.keep to keep some.")
    return {f"step {step:,}": load(folder, device=device, step=step, parts=own) for step in found}


def _trace_page(
    models: dict[str, LoadedModel], text: str, target: str | None, *, layers: list[str] | None, beam: int | None,
    length: int, slider: bool,
) -> TracePage:  # fmt: skip
    """The attention of all models. All checkpoints get the target that the last one generates, so that they compare."""
    from regard.api import side_by_side

    *_, last = models.values()
    if slider and target is None and last.shape != "encoder":
        target, length = _generated(last, text, beam, length), 0
    found = [model.look(text, target, layers or "*", beam=beam, length=length) for model in models.values()]
    return side_by_side(*found, labels=list(models), slider=slider)


def _generated(model: LoadedModel, text: str, beam: int | None, length: int) -> str | None:
    """The translation or continuation that the model generates."""
    if model.network.shape != "decoder":
        return model.translate(text, beam=beam)
    return model.generate(text, max_tokens=length, temperature=0.0).removeprefix(text) if length else None


def _serve(shown: TracePage, trace_text: TraceText, port: int, browser: bool) -> None:
    """Serve the page until Ctrl-C."""
    import webbrowser

    from regard.show.server import PageServer

    with PageServer(shown, trace_text, port) as server:
        typer.echo(f"The page is at {server.address} (Ctrl-C ends it).")
        sys.stdout.flush()
        if browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            try:
                idle = server.lock.acquire(timeout=_GRACE)
            except KeyboardInterrupt:
                idle = False
            if not idle:
                os._exit(130)  # a request is running, and a thread inside torch would crash the interpreter at exit
            raise
