"""The command convert: a model folder in another format, or for another program."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Parts, own_parts, refuse_unused
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.engines.folder import Precision, Proof
    from regard.engines.prove import Sample
    from regard.store.loading import Loaded

_SAMPLE_LINES = 20_000  # of the validation text, of which those for the sample are taken
_FORMATS = "huggingface", "regard", "ctranslate2", "onnx", "argos"


def convert(
    source: Annotated[Path, typer.Argument(help="A model folder, or hf:org/model.", show_default=False)],
    target: Annotated[
        Path | None,
        typer.Argument(help="The new folder.", show_default="for ctranslate2 and onnx in SOURCE/engines"),
    ] = None,
    to: Annotated[str, typer.Option(help="huggingface, regard, ctranslate2, onnx or argos.")] = "huggingface",
    precision: Annotated[
        str | None,
        typer.Option(help="Of ctranslate2 and argos: float32, or int8, which rounds.", show_default="float32"),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="Lines to compare the converted model on.", show_default="the validation text of the model's recipe"
        ),
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="Of argos: the codes of source and target, as de-en.", show_default=False)
    ] = None,
    adapter: Annotated[
        list[Path] | None,
        typer.Option(help="The folder of an adapter to merge into SOURCE. Can be repeated.", show_default=False),
    ] = None,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle",
            help="Read pytorch_model.bin, or a checkpoint of fairseq, OpenNMT-py or Joey NMT, "
            "in a separate process that reaches nothing.",
        ),
    ] = False,
    parts: Parts = None,
) -> None:
    """Convert a model folder to the Hugging Face format or regard's own, or for CTranslate2, ONNX or Argos Translate.

    Checkpoints of fairseq, OpenNMT-py, Joey NMT and Marian are read too, with the vocabularies beside them. An adapter
    (LoRA) as SOURCE is merged into the model that it was trained on.

    CTranslate2, ONNX and Argos Translate are checked: torch and the converted model answer a sample.

    Example: regard convert runs/python published/python

    Example: regard convert runs/adapter merged --to regard

    Example: regard convert runs/dates --to ctranslate2 --precision int8

    Example: regard convert runs/de-en de-en.argosmodel --to argos --languages de-en

    Example: regard convert fairseq/checkpoint_best.pt runs/lstm --to regard --allow-pickle
    """
    if to not in _FORMATS:
        raise InputError(f'no format is called "{to}" (--to). Use {" or ".join(_FORMATS)}.')
    if to not in ("ctranslate2", "argos"):
        refuse_unused("is for --to ctranslate2 or argos. Leave it out.", precision=precision)
    if to != "argos":
        refuse_unused("is for --to argos. Leave it out.", languages=languages)
    if to in ("huggingface", "regard"):
        refuse_unused("is for --to ctranslate2, onnx or argos. Leave it out.", sample=sample)
    else:
        refuse_unused("merges into --to regard or --to huggingface. Convert what it wrote.", adapter=adapter)
    read = _Reader(source, sample, allow_pickle, parts)
    if to == "ctranslate2":
        _to_ctranslate2(read, target, precision)
    elif to == "onnx":
        _to_onnx(read, target)
    elif to == "argos":
        _to_argos(read, target, languages, precision)
    else:
        _to_folder(read, target, to, adapter or [])


@dataclass(frozen=True)
class _Reader:
    """What is converted: a source, and how it is read and sampled."""

    source: Path
    named: Path | None
    pickles: bool
    parts: list[Path] | None

    def model(self) -> Loaded:
        """The model of the source, for another program: not an adapter."""
        from regard.store.convert import read_source

        loaded = read_source(self.source, pickles=self.pickles, parts=own_parts(self.parts))
        if loaded.network.adapters:
            raise InputError(f"{self.source} is an adapter (regard convert). Merge it first: regard convert "
                             f"{self.source} MERGED --to regard.")  # fmt: skip
        return loaded

    def sample(self, loaded: Loaded) -> Sample:
        """The lines that the user named, or the validation text of the model's recipe, or an embedded text."""
        from regard.config.recipe import read_recipe
        from regard.data.read.corpus import read_lines
        from regard.engines.prove import Sample

        if self.named is not None:
            return Sample.of(read_lines(self.named))
        recipe = self.source / "recipe.toml"
        try:
            corpus = read_recipe(recipe, parts=own_parts(self.parts)).text.read("valid") if recipe.is_file() else None
        except InputError:  # its files are elsewhere
            corpus = None
        if corpus is not None and loaded.network.shape == "encoder-decoder":
            return Sample.of(corpus.sources, corpus.targets)
        if corpus is not None:  # whose documents may have many lines
            lines = (line for text in corpus.sources for line in text.splitlines() if line.strip())
            return Sample.of([*islice(lines, _SAMPLE_LINES)])
        typer.echo("The model's own validation text is not here; it is checked on embedded lines. Or give --sample "
                   "FILE.", err=True)  # fmt: skip
        return Sample.embedded()


def _to_folder(read: _Reader, target: Path | None, to: str, adapters: list[Path]) -> None:
    from regard.store.convert import convert as convert_folder

    target = _required(target, read.source, "FOLDER")
    loaded = convert_folder(
        read.source, target, "regard" if to == "regard" else "huggingface", pickles=read.pickles,
        parts=own_parts(read.parts), adapters=adapters,
    )  # fmt: skip
    count = sum(parameter.numel() for parameter in loaded.network.parameters())
    merged = "".join(f"; merged {one}" for one in loaded.network.adapters)
    typer.echo(f"{target}: {count:,} parameters{merged}", err=True)


def _to_ctranslate2(read: _Reader, target: Path | None, precision: str | None) -> None:
    _require_ctranslate2("ctranslate2", "engines")
    from regard.engines.convert import convert_to_ctranslate2
    from regard.engines.folder import place_of
    from regard.store.folder import local_folder

    kind, loaded = _precision(precision), read.model()
    place = target or place_of(read.source, kind)
    proof = convert_to_ctranslate2(loaded, local_folder(read.source), place, kind, read.sample(loaded))
    typer.echo(f"{place}: {_said(proof)}", err=True)


def _to_onnx(read: _Reader, target: Path | None) -> None:
    from regard.engines.folder import place_of
    from regard.engines.onnx_export import convert_to_onnx
    from regard.store.folder import local_folder

    loaded, folder = read.model(), local_folder(read.source)
    place = target or place_of(folder, "float32", "onnxruntime")
    model, proof = convert_to_onnx(loaded, folder, place, read.sample(loaded))
    graphs = [name for name, given in (("encoder", model.encoder), ("decoder_step", model.decoder_step)) if given]
    said = "checked on a sample" if proof is None else _said(proof)
    typer.echo(f"{place}: {' and '.join(graphs)}, {said}", err=True)


def _said(proof: Proof) -> str:
    bleu = "" if proof.bleu is None else f"; BLEU {proof.bleu:.2f}, torch {proof.torch_bleu:.2f}"
    more = "" if proof.difference is None else f"; numbers of vectors differ by up to {proof.difference:g}"
    return f"{proof.equal_lines:,} of {proof.lines:,} lines as torch answers them{bleu}{more}"


def _to_argos(read: _Reader, target: Path | None, languages: str | None, precision: str | None) -> None:
    _require_ctranslate2("argos", "convert")
    target = _required(target, read.source, "NAME.argosmodel")
    if languages is None:
        raise InputError("the languages are missing (--languages). Name both: --languages de-en.")
    from regard.engines.argos import Package, write_argos

    package, kind, loaded = Package.of(languages), _precision(precision), read.model()
    equal, lines = write_argos(loaded, target, package, kind, read.sample(loaded))
    typer.echo(f"{target}: {equal:,} of {lines:,} lines as torch translates them", err=True)


def _required(target: Path | None, source: Path, name: str) -> Path:
    if target is None:
        raise InputError(f"the new {'file' if '.' in name else 'folder'} is missing (regard convert). Name it: regard "
                         f"convert {source} {name}.")  # fmt: skip
    return target


def _require_ctranslate2(to: str, extra: str) -> None:
    from regard.engines.folder import engine_version

    if engine_version() is None:
        raise InputError(f"CTranslate2 is not installed (--to {to}). Install it: pip install 'regard[{extra}]'.")


def _precision(given: str | None) -> Precision:
    from regard.engines.folder import PRECISIONS

    if given not in (None, *PRECISIONS):
        raise InputError(f'no precision is called "{given}" (--precision). Use {" or ".join(PRECISIONS)}.')
    return "int8" if given == "int8" else "float32"
