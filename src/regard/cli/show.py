"""The verb that shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device, ModelFolder, Threads, input_lines, load_model, progress, use_threads
from regard.errors import InputError

_LONG = 2_000  # tokens read by a head, from which on a bar shows how far it is
_PATIENCE = 0.5  # seconds for an answer that is being worked out when someone says stop


if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.show.payload import Shown
    from regard.show.server import Again


def show(
    model: ModelFolder,
    text: Annotated[str, typer.Argument(help="What the model reads; - reads standard input.", show_default=False)],
    target: Annotated[
        str | None, typer.Option(help="What it says, or how the text goes on; else its own words.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write: one file that needs no network.", show_default="a local port"),
    ] = None,
    against: Annotated[list[Path] | None, typer.Option(help="Another model to compare; may be given again.")] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Show every checkpoint of the model's run, with a time slider.")
    ] = False,
    layers: Annotated[
        list[str] | None, typer.Option(help='Only these, like "decoder.*.cross"; may be given again.')
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beams; 1 is greedy.", show_default="the model's")] = None,
    length: Annotated[int, typer.Option(help="Language models: tokens to go on by itself.", min=0)] = 0,
    port: Annotated[int, typer.Option(help="Without --out: the local port.", show_default="a free one")] = 0,
    browser: Annotated[bool, typer.Option(help="Without --out: open a browser.")] = True,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show what every layer and head attends to: as a page on a local port, or as one file that needs no network.

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
    models = _models(model, against or [], checkpoints, device, threads)

    def again(text: str, target: str | None) -> Shown:
        return _seen(models, text, target, layers, beam, length, slider=checkpoints)

    shown = again(text, target)
    if out is None:
        _serve(shown, again, port, browser)
        return
    with progress(shown.effort, "looking", least=_LONG) as done:
        shown.save(out, progress=done)
    counts = [len(seen.weights) for _, seen in shown.looks]
    layers_of = " and ".join(str(count) for count in sorted(set(counts)))
    seen_of = f"{layers_of} attention layer{'s' * (max(counts) > 1)}"
    each = f" of each of {len(counts)} models" if len(counts) > 1 else ""
    typer.echo(f"{out} shows {f'{seen_of}{each}' if any(counts) else 'only text: this model has no attention'}.")


def _models(
    folder: Path, against: list[Path], checkpoints: bool, device: str, threads: int | None
) -> dict[str, LoadedModel]:
    """By what each is called on the page."""
    folders = [folder, *against]
    if not checkpoints:
        if len(set(folders)) < len(folders):
            raise InputError("a model is compared with itself (--against). Name another.")
        return {str(name): load_model(name, device, threads) for name in folders}
    from regard.api import load, steps

    use_threads(threads)
    found = steps(folder)
    if not found:
        raise InputError(f"{folder} has no checkpoints (--checkpoints). Train with train.keep to keep some.")
    return {f"step {step:,}": load(folder, device=device, step=step) for step in found}


def _seen(
    models: dict[str, LoadedModel],
    text: str,
    target: str | None,
    layers: list[str] | None,
    beam: int | None,
    length: int,
    *,
    slider: bool,
) -> Shown:
    """What all models attend to. Checkpoints all say what the last of them would say, so that they can be compared."""
    from regard.api import beside

    last = list(models.values())[-1].network
    if slider and target is None and last.decoder is not None:
        target, length = _words(list(models.values())[-1], text, beam, length), 0
    found = [model.look(text, target, layers or "*", beam=beam, length=length) for model in models.values()]
    return beside(*found, labels=list(models), slider=slider)


def _words(model: LoadedModel, text: str, beam: int | None, length: int) -> str | None:
    """What a model says by itself."""
    if model.network.encoder is not None:
        return model.translate(text, beam=beam)
    return model.generate(text, max_tokens=length, temperature=0.0) if length else None


def _serve(shown: Shown, again: Again, port: int, browser: bool) -> None:
    """Answer until someone says stop."""
    import webbrowser

    from regard.show.server import Live

    with Live(shown, again, port) as live:
        typer.echo(f"The page is at {live.address} (Ctrl-C ends it).")
        sys.stdout.flush()
        if browser:
            webbrowser.open(live.address)
        try:
            live.serve_forever()
        except KeyboardInterrupt:
            try:
                idle = live.one_at_a_time.acquire(timeout=_PATIENCE)
            except KeyboardInterrupt:
                idle = False
            if not idle:
                os._exit(130)  # an answer is being worked out, and a thread inside torch brings the interpreter down
            raise
