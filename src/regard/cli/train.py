"""The verbs that make models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Threads, json_text, use_threads
from regard.errors import InputError


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a built-in recipe.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Set a key of the recipe, as in train.steps=2000.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The model's folder; a run found there goes on.", show_default="runs/RECIPE")
    ] = None,
    new_data: Annotated[
        bool, typer.Option("--new-data", help="Go on although the text has changed, from its beginning.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model, or go on with what the folder holds. Without a recipe: list those that are built in.

    Example: regard train dates --set train.steps=500 --out runs/dates
    """
    from regard.config.recipes import builtin_recipes

    if recipe is None:
        for name, text in builtin_recipes().items():
            typer.echo(f"{name:20} {text.splitlines()[0].lstrip('# ')}")
        return
    from regard.config.run import train as train_recipe
    from regard.training.log import watcher

    use_threads(threads)
    folder = out or Path("runs") / Path(recipe).stem
    train_recipe(recipe, folder, settings=settings or (), device=device, watcher=watcher(), new_data=new_data)
    if os.environ.get("RANK", "0") == "0":  # one of the processes speaks for all
        typer.echo(f"{folder} is ready.")


def plan(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a built-in recipe.", show_default=False)],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Set a key of the recipe, as in train.steps=2000.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Say what a training would take, before any: parameters, memory, speed and time, and what to change if it is much.

    Takes some steps with a network that is thrown away; writes nothing but the cache.

    Example: regard plan recipe.toml --set train.batch_tokens=16384
    """
    from regard.config.recipe import read_recipe
    from regard.evaluation.plan import plan as foresee
    from regard.models.device import choose_device

    use_threads(threads)
    found = foresee(read_recipe(recipe, settings or ()), choose_device(device))
    typer.echo(json_text(found.to_json()) if as_json else found.text())


def init(
    files: Annotated[
        list[Path],
        typer.Argument(help="One text, two whose lines belong together, or lines with a label.", show_default=False),
    ],
) -> None:
    """Write a commented recipe for your own files.

    Example: regard init data/train.de data/train.en > recipe.toml
    """
    from regard.config.init import recipe_for

    typer.echo(recipe_for(files), nl=False)


_KINDS = ("huggingface", "regard")


def convert(
    source: Annotated[Path, typer.Argument(help="A model folder, or hf:org/model.", show_default=False)],
    target: Annotated[Path, typer.Argument(help="The new folder.", show_default=False)],
    to: Annotated[str, typer.Option(help="huggingface or regard.")] = "huggingface",
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pytorch_model.bin, in a process of its own.")
    ] = False,
) -> None:
    """Write a model folder as Hugging Face's library reads it, or as regard's own.

    Example: regard convert runs/dates published/dates
    """
    if to not in _KINDS:
        raise InputError(f'no folder of kind "{to}" (--to). Use {" or ".join(_KINDS)}.')
    from regard.store.convert import convert as exchange

    loaded = exchange(source, target, "regard" if to == "regard" else "huggingface", pickles=allow_pickle)
    count = sum(parameter.numel() for parameter in loaded.network.parameters())
    typer.echo(f"{target}: {count:,} parameters", err=True)
