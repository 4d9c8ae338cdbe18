"""The verb that shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.common import Device, ModelFolder, Threads, input_lines, load_model
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.show.live import Again
    from regard.show.pack import Shown


def show(
    model: ModelFolder,
    text: Annotated[str, typer.Argument(help="What the model reads; - reads standard input.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="What it says; its own words if not given.")] = None,
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
    if checkpoints and against:
        raise InputError("checkpoints of one run and other models cannot share a page. Leave out --against.")
    models = _models(model, against or [], checkpoints, device, threads)

    def again(text: str, target: str | None) -> Shown:
        return _seen(models, text, target, layers, beam, length, slider=checkpoints)

    shown = again(text, target)
    if out is None:
        _serve(shown, again, port, browser)
        return
    shown.save(out)
    count = sum(len(seen.weights) for _, seen in shown.looks)
    seen_of = f"{count} attention layer{'s' * (count > 1)}" if count else "only text: this model has no attention"
    typer.echo(f"{out} shows {seen_of}.")


def _models(
    folder: Path, against: list[Path], checkpoints: bool, device: str, threads: int | None
) -> dict[str, LoadedModel]:
    """By what each is called on the page."""
    first = load_model(folder, device, threads)
    if not checkpoints:
        others = [(str(other), load_model(other, device, threads)) for other in against]
        names = [name for name, _ in others]
        if len({str(folder), *names}) <= len(names):
            raise InputError("a model is compared with itself (--against). Name another.")
        return {str(folder): first, **dict(others)}
    from regard.api import load, steps

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

    last = list(models.values())[-1]
    if slider and target is None and last.network.encoder is not None and last.network.decoder is not None:
        target = last.translate(text, beam=beam)
    found = [model.look(text, target, layers or "*", beam=beam, length=length) for model in models.values()]
    return beside(*found, labels=list(models), slider=slider)


def _serve(shown: Shown, again: Again, port: int, browser: bool) -> None:
    """Answer until someone says stop."""
    import webbrowser

    from regard.show.live import Live

    with Live(shown, again, port) as live:
        typer.echo(f"The page is at {live.address} (Ctrl-C ends it).")
        sys.stdout.flush()
        if browser:
            webbrowser.open(live.address)
        live.serve_forever()
