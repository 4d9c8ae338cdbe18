"""The command bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import ModelFolder, Parts, json_text


def bench(
    model: ModelFolder,
    minutes: Annotated[float, typer.Option(help="How long to measure, about.")] = 1.0,
    text: Annotated[
        Path | None,
        typer.Option(help="Lines like those the model will get.", show_default="its validation text"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    parts: Parts = None,
) -> None:
    """Measure a model's speed on this machine, by engine, precision and threads, and advise.

    Each setting runs in a process of its own; all work in turns on the same lines. Close other programs first.

    Example: regard bench runs/dates --minutes 0.5
    """
    from regard.evaluation.bench import bench as measure

    found = measure(model, minutes=minutes, text=text, parts=parts or ())
    typer.echo(json_text(found.to_dict()) if as_json else str(found))
