"""The commands train, plan and init."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Parts, Threads, json_text, own_parts, progress, refuse_unused, use_threads

Settings = Annotated[list[str] | None, typer.Option("--set", help="Set a key of the recipe, as in train.steps=2000.")]


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a built-in recipe.", show_default=False)
    ] = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="The model folder; a run found there resumes.", show_default="runs/RECIPE")
    ] = None,
    new_data: Annotated[
        bool,
        typer.Option("--new-data", help="Resume although the text has changed; start the new text from its beginning."),
    ] = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model, or resume the run in the folder. Without a recipe: list the built-in recipes.

    Example: regard train dates --set train.steps=500 --out runs/dates
    """
    from regard.config import builtin_recipes

    if recipe is None:
        refuse_unused("needs a recipe. Name one, as in regard train dates.", set=settings, out=out, new_data=new_data,
                      parts=parts, threads=threads)  # fmt: skip
        for name, text in builtin_recipes().items():
            typer.echo(f"{name:20} {text.splitlines()[0].lstrip('# ')}")
        return
    from regard.config.run import train as train_recipe
    from regard.training.log import watcher

    use_threads(threads)
    folder = out or Path("runs") / Path(recipe).stem
    own = own_parts(parts)
    train_recipe(
        recipe, folder, settings=settings or (), device=device, progress=watcher(), new_data=new_data, parts=own
    )
    if os.environ.get("RANK", "0") == "0":  # rank 0 prints for all processes
        typer.echo(f"{folder} is ready.")


def plan(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a built-in recipe.", show_default=False)],
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Estimate parameters, memory, speed and time before training, and what to change if memory is too small.

    It trains a throw-away network for some steps, and writes nothing but the cache.

    Example: regard plan recipe.toml --set train.batch_tokens=16384
    """
    from regard.config.recipe import read_recipe
    from regard.evaluation.plan import plan as estimate
    from regard.models.device import choose_device

    use_threads(threads)
    found = estimate(read_recipe(recipe, settings or (), own_parts(parts)), choose_device(device))
    typer.echo(json_text(found.to_json()) if as_json else found.text())


def init(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Texts, parallel texts, tables (.csv, .tsv), JSON lines, or a folder of them.", show_default=False
        ),
    ],
    fields: Annotated[
        str | None, typer.Option(help="The columns or keys to read: a text, then its target or label.", metavar="A,B")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The folder of a pretrained model to fine-tune.")] = None,
    minutes: Annotated[float, typer.Option(help="How long training may take on this machine.", min=1)] = 40,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Read your own files and write a commented recipe for this much text on this machine.

    Files named train, valid (val, dev) and test are used as such; without a validation text, some text is held out.

    Example: regard init data/train.de data/train.en > recipe.toml
    """
    from functools import partial

    from regard.config.init import measured_pace, recipe_for
    from regard.models.device import choose_device

    use_threads(threads)
    chosen = [] if fields is None else [name.strip() for name in fields.split(",")]
    measure = partial(measured_pace, device=choose_device(device))
    notes: list[str] = []  # an error stands alone
    with progress(None, "reading the text, and training a throw-away network to measure its speed"):
        recipe = recipe_for(files, fields=chosen, model=model, minutes=minutes, measure=measure, note=notes.append)
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(recipe, nl=False)
