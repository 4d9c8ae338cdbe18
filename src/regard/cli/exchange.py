"""The verb that turns one kind of model folder into another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import InputError

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
    from regard.store.exchange import convert as exchange

    loaded = exchange(source, target, "regard" if to == "regard" else "huggingface", pickles=allow_pickle)
    count = sum(parameter.numel() for parameter in loaded.network.parameters())
    typer.echo(f"{target}: {count:,} parameters", err=True)
