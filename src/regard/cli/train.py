"""The commands train, plan, init and convert."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regard.cli.options import Device, Parts, Threads, json_text, own_parts, refuse_unused, use_threads
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.engines.prove import Sample

_SAMPLE_LINES = 20_000  # of the validation text, of which those for the sample are taken
_KINDS = ("huggingface", "regard", "ctranslate2", "onnx")

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
    note = partial(typer.echo, err=True)
    recipe = recipe_for(files, fields=chosen, model=model, minutes=minutes, measure=measure, note=note)
    typer.echo(recipe, nl=False)


def convert(
    source: Annotated[Path, typer.Argument(help="A model folder, or hf:org/model.", show_default=False)],
    target: Annotated[
        Path | None,
        typer.Argument(help="The new folder.", show_default="for ctranslate2 and onnx in SOURCE/engines"),
    ] = None,
    to: Annotated[str, typer.Option(help="huggingface, regard, ctranslate2 or onnx.")] = "huggingface",
    precision: Annotated[
        str | None, typer.Option(help="Of ctranslate2: float32, or int8, which rounds.", show_default="float32")
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="Lines to check ctranslate2 or onnx on.",
            show_default="the validation text of the model's recipe",
        ),
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read the weights of pytorch_model.bin in a separate process.")
    ] = False,
    adapter: Annotated[
        list[Path] | None,
        typer.Option(help="The folder of an adapter to merge into SOURCE. Can be repeated.", show_default=False),
    ] = None,
    parts: Parts = None,
) -> None:
    """Convert a model folder to the Hugging Face format, to regard's own, or for the engines CTranslate2 and ONNX.

    An adapter (LoRA) as SOURCE is merged into the model that it was trained on.

    For CTranslate2, torch and the converted model answer a sample, and proof.json says how many answers are equal. A
    translator, a language model or an encoder can be converted, if its parts are those of a Transformer.

    To ONNX it writes graphs that any language can run, and nothing if they answer a sample differently.

    Example: regard convert runs/python published/python
    Example: regard convert runs/adapter merged --to regard
    Example: regard convert runs/dates --to ctranslate2 --precision int8
    """
    if to not in _KINDS:
        raise InputError(f'no format is called "{to}" (--to). Use {" or ".join(_KINDS)}.')
    if to == "ctranslate2":
        refuse_unused("merges into --to regard or --to huggingface. Convert what it wrote.", adapter=adapter)
        _to_ctranslate2(source, target, precision or "float32", sample, allow_pickle, parts)
        return
    refuse_unused("is for --to ctranslate2. Leave it out.", precision=precision)
    if to == "onnx":
        refuse_unused("merges into --to regard or --to huggingface. Convert what it wrote.", adapter=adapter)
        _to_onnx(source, target, sample, allow_pickle, parts)
        return
    refuse_unused("is for --to ctranslate2 or onnx. Leave it out.", sample=sample)
    if target is None:
        raise InputError(f"the new folder is missing (regard convert). Name it: regard convert {source} FOLDER.")
    from regard.store.convert import convert as convert_folder

    form: Literal["regard", "huggingface"] = "regard" if to == "regard" else "huggingface"
    loaded = convert_folder(
        source, target, form, pickles=allow_pickle, parts=own_parts(parts), adapters=adapter or ()
    )  # fmt: skip
    count = sum(parameter.numel() for parameter in loaded.network.parameters())
    merged = "".join(f"; merged {one}" for one in loaded.network.adapters)
    typer.echo(f"{target}: {count:,} parameters{merged}", err=True)


def _to_ctranslate2(
    source: Path, target: Path | None, precision: str, sample: Path | None, pickles: bool, parts: list[Path] | None
) -> None:
    from regard.engines.folder import engine_version, place_of

    if engine_version() is None:
        raise InputError("CTranslate2 is not installed (--to ctranslate2). Install it: pip install 'regard[engines]'.")
    from regard.engines.convert import convert_to_ctranslate2
    from regard.store.convert import read_source
    from regard.store.folder import local_folder

    loaded = read_source(source, pickles=pickles, parts=own_parts(parts))
    if loaded.network.adapters:
        raise InputError(f"{source} is an adapter (--to ctranslate2). Merge it first: regard convert {source} MERGED "
                         "--to regard.")  # fmt: skip
    kind: Literal["float32", "int8"] = precision  # type: ignore[assignment]  # checked by the conversion
    place = target or place_of(source, kind)
    chosen = _sample(source, sample, parts, translates=loaded.network.shape == "encoder-decoder")
    proof = convert_to_ctranslate2(loaded, local_folder(source), place, kind, chosen)
    bleu = "" if proof.bleu is None else f"; BLEU {proof.bleu:.2f}, torch {proof.torch_bleu:.2f}"
    more = "" if proof.difference is None else f"; numbers of vectors differ by up to {proof.difference:g}"
    typer.echo(f"{place}: {proof.equal_lines:,} of {proof.lines:,} lines as torch answers them{bleu}{more}", err=True)


def _to_onnx(source: Path, target: Path | None, sample: Path | None, pickles: bool, parts: list[Path] | None) -> None:
    from regard.engines.onnx_export import convert_to_onnx
    from regard.store.convert import read_source

    loaded = read_source(source, pickles=pickles, parts=own_parts(parts))
    place = target or source / "engines" / "onnx"
    chosen = _sample(source, sample, parts, translates=loaded.network.shape == "encoder-decoder")
    model = convert_to_onnx(loaded, place, chosen.lines)
    graphs = [name for name, given in (("encoder", model.encoder), ("decoder_step", model.decoder_step)) if given]
    typer.echo(f"{place}: {' and '.join(graphs)}, checked on a sample", err=True)


def _sample(model: Path, named: Path | None, parts: list[Path] | None, *, translates: bool) -> Sample:
    """The lines that the user named, or the validation text of the model's recipe, or an embedded text."""
    from regard.config.recipe import read_recipe
    from regard.data.read.corpus import read_lines
    from regard.engines.prove import Sample

    if named is not None:
        return Sample.of(read_lines(named))
    recipe = model / "recipe.toml"
    try:
        corpus = read_recipe(recipe, parts=own_parts(parts)).text.read("valid") if recipe.is_file() else None
    except InputError:  # its files are elsewhere
        corpus = None
    if corpus is not None and translates:
        return Sample.of(corpus.sources, corpus.targets)
    if corpus is not None:  # whose documents may have many lines
        lines = (line for text in corpus.sources for line in text.splitlines() if line.strip())
        return Sample.of([*islice(lines, _SAMPLE_LINES)])
    typer.echo("The model's own validation text is not here; it is checked on embedded lines. Or give --sample FILE.",
               err=True)  # fmt: skip
    return Sample.embedded()
