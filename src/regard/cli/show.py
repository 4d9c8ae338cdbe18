"""The command show."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
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
    refuse_unused,
    require_output,
    use_threads,
)
from regard.errors import InputError, Interrupted
from regard.progress import Progress

_LONG = 2_000  # tokens per head, from which on a progress bar shows
_GRACE = 0.5  # seconds to finish a request after Ctrl-C

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.serve.attention import MakePage
    from regard.show.payload import TracePage
    from regard.training.lock import Signals


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
    port: Annotated[int | None, typer.Option(help="Without --out: the local port.", show_default="a free one")] = None,
    browser: Annotated[
        bool | None, typer.Option(help="Without --out: open a browser.", show_default="--browser")
    ] = None,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show the attention of every layer and head: on a local web page, or as one offline HTML file.

    Example: regard show runs/dates "15. März 2024" --out page.html
    """
    if text == "-":
        text = "\n".join(line for lines in input_lines() for line in lines)
    require_output("--out", out)
    if checkpoints and against:
        raise InputError("checkpoints of one run and other models cannot share a page. Leave out --against.")
    if out is not None:
        refuse_unused("is for the local server, and --out writes a file. Leave it out.", port=port,
                      browser=browser)  # fmt: skip
    if target is not None and not length:
        refuse_unused("searches for a target, and --target gives one. Leave one of them out.", beam=beam)
    models = _models(model, against or [], checkpoints, device, threads, parts)
    if not length and all(one.shape != "encoder-decoder" for one in models.values()):
        refuse_unused("searches for a target, and this model reads only the text. Leave it out.", beam=beam)
    make = partial(_trace_page, models, layers=layers, beam=beam, length=length, slider=checkpoints)
    if out is None and _has_server():
        folders = {model.name or "model": model} if checkpoints else dict(zip(models, [model, *(against or [])]))
        _serve(models, folders, make, (text, target), port or 0, browser is not False)
        return
    shown = make(text, target)
    if out is None:
        out = Path(tempfile.mkdtemp(prefix="regard-")) / "page.html"
        _save(shown, out)
        typer.echo("It is a file, since nothing is installed to serve it: pip install 'regard[serve]'.")
        if browser is not False:
            webbrowser.open(out.as_uri())
        return
    _save(shown, out)


def _save(shown: TracePage, out: Path) -> None:
    """Write the page to a file; Ctrl-C writes what is ready."""
    with _stoppable(shown.work, "tracing", least=_LONG) as (done, signals):
        left_out = shown.save(out, progress=done)
    without = f" Left out: {'; '.join(f'{what} ({why})' for what, why in left_out.items())}." if left_out else ""
    typer.echo(f"{_summary(out, shown)}{without}")
    if signals.received:
        raise Interrupted(f"stopped; {out} shows what was ready.", signal=signals.received)


def _summary(out: Path, shown: TracePage) -> str:
    """What the page shows, in one line."""
    counts = [len(trace.layers) for _, trace in shown.traces]
    layers = " and ".join(str(count) for count in sorted(set(counts)))
    what = f"{layers} attention layer{'s' * (max(counts) > 1)}"
    each = f" of each of {len(counts)} models" if len(counts) > 1 else ""
    return f"{out} shows {f'{what}{each}' if any(counts) else 'only text: this model has no attention'}."


@contextmanager
def _stoppable(total: int | None, what: str, least: int = 2) -> Iterator[tuple[Progress, Signals]]:
    """A progress bar, and Ctrl-C that stops at the next step: what is ready by then is shown. A second one ends."""
    from regard.show.collect import Stopped
    from regard.training.lock import Signals

    signals = Signals()
    with signals.watched(), progress(total, f"{what} (Ctrl-C: show what is ready)", least=least) as done:

        def advance(count: float) -> None:
            done(count)
            if signals.received:
                raise Stopped

        try:
            yield advance, signals
        except Stopped:
            said = "stopped before the first layer was ready: there is no page. Try a shorter text, or fewer --layers."
            raise Interrupted(said, signal=signals.received or signal.SIGINT) from None


def _models(
    folder: Path, against: list[Path], checkpoints: bool, device: str, threads: int | None, parts: list[Path] | None
) -> dict[str, LoadedModel]:
    """The models by their labels on the page."""
    folders = [folder, *against]
    if not checkpoints:
        if len({name.resolve() for name in folders}) < len(folders):
            raise InputError("a model is compared with itself (--against). Name another.")
        from regard.show.labels import model_labels

        labels = model_labels(folders)
        return {label: load_model(name, device, threads, parts) for label, name in zip(labels, folders)}
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
    found = []
    for model in models.values():
        with _stoppable(None, "reading and generating") as (done, _):
            found.append(model.look(text, target, layers or "*", beam=beam, length=length, progress=done))
    return side_by_side(*found, labels=list(models), slider=slider)


def _generated(model: LoadedModel, text: str, beam: int | None, length: int) -> str | None:
    """The translation or continuation that the model generates."""
    if model.network.shape != "decoder":
        return model.translate(text, beam=beam)
    return model.generate(text, max_tokens=length, temperature=0.0).removeprefix(text) if length else None


def _has_server() -> bool:
    """Whether the packages of the `serve` extra are installed."""
    try:
        import regard.serve.app  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("regard"):
            raise
        return False
    return True


def _serve(
    models: dict[str, LoadedModel], folders: dict[str, Path], make: MakePage, texts: tuple[str, str | None], port: int,
    browser: bool,
) -> None:  # fmt: skip
    """Serve the models with one view until Ctrl-C; of several checkpoints the last is the model."""
    from regard.serve.app import create_app
    from regard.serve.models import ServedModel
    from regard.serve.pool import WorkerPool
    from regard.serve.protocol import bind, run_server
    from regard.serve.settings import Settings
    from regard.store.languages import folder_languages

    if port:
        bind("127.0.0.1", port).close()  # said before the text is traced
    served = {
        name: ServedModel(name, model, WorkerPool(model), folder, folder_languages(folder), int(time.time()))
        for (name, folder), model in zip(folders.items(), [*models.values()][-len(folders) :])
    }
    settings = Settings(port=port, grace_seconds=_GRACE)
    app = create_app(served, settings)
    shown = make(*texts)
    view = app.state.views.add(next(iter(served.values())).workers, make, *texts)
    with _stoppable(shown.work, "tracing", least=_LONG) as (done, _):
        view.show(*texts, shown, done)

    def ready(address: str) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Ctrl-C may cut a request short
        page = f"{address}/attention/{view.id}/"
        typer.echo(f"The page is at {page} (Ctrl-C ends it).")
        sys.stdout.flush()
        if browser:
            Thread(target=webbrowser.open, args=[page], daemon=True).start()

    number = run_server(app, settings, on_ready=ready)
    if any(one.workers.running for one in served.values()):
        os._exit(128 + number)  # a thread inside torch would crash the interpreter at exit
    if number:
        raise KeyboardInterrupt
