"""The commands evaluate, compare and check."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regard.cli.options import (
    Beam,
    Device,
    ModelFolder,
    Parts,
    Threads,
    json_text,
    limit_threads,
    load_model,
    own_parts,
    progress,
    refuse_unused,
    require_output,
    trained_on_pairs,
    use_threads,
)
from regard.errors import InputError, RunFailed, suggest
from regard.schema import finite

TextFiles = Annotated[
    list[str] | None,
    typer.Option(
        help="What train reads: text to predict, or pairs or labelled text in one file; a file, folder, .csv, .tsv, "
        ".jsonl, .gz, data/test.{de,en}, or - for standard input. Can be repeated.",
        show_default=False,
    ),
]
DocumentsOption = Annotated[
    str | None, typer.Option(help="A document of --text is a file, line or paragraph.", show_default="as in training")
]
Fields = Annotated[
    str | None,
    typer.Option(help="Columns or JSON fields of --text: text, or source,target.", show_default="as in training"),
]

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.config.recipe import Text
    from regard.data.read.corpus import Corpus
    from regard.evaluation.compare import Comparison
    from regard.evaluation.evaluate import Evaluation, LabelEvaluation
    from regard.metrics import Scoring


def evaluate(
    model: ModelFolder,
    source: Annotated[Path | None, typer.Option(help="Lines to translate or to classify.")] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(
            help="The reference translations, labels, numbers or tags. Can be repeated: several translations per line.",
            show_default=False,
        ),
    ] = None,
    text: TextFiles = None,
    documents: DocumentsOption = None,
    fields: Fields = None,
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs", help="A source line holds two texts with a tab between them.", show_default="as in training"
        ),
    ] = False,
    beam: Beam = None,
    window: Annotated[
        int | None, typer.Option(help="Sliding window: tokens per pass.", min=1, show_default="as in training")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Tokens by which the sliding window moves.", min=1, show_default="half of the window"),
    ] = None,
    tokenize: Annotated[
        str | None,
        typer.Option(help="Tokenization of BLEU in sacreBLEU: 13a, intl, char, zh, none, ...", show_default="13a"),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Compare in small letters.")] = False,
    ter: Annotated[bool, typer.Option("--ter", help="Print the translation edit rate too.")] = False,
    comet: Annotated[Path | None, typer.Option(help="A COMET model on disk, to score with.")] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(help="Gold alignments, NAACL or Moses: print the alignment error rate of the attention."),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="Print what share of the lines with this confidence or more is right.",
            min=0,
            max=1,
            show_default="0.9, if calibrated",
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="Calibrate the confidence by these pairs, or the recipe's validation text, and save it."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write quality by source length as a PNG.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report with curves and alignments.")] = None,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Evaluate a model: BLEU and chrF with signatures, exact match, loss, perplexity and bits per byte.

    For a classifier: accuracy, macro F1 and Matthews' correlation; for regression: Pearson and Spearman correlation.
    Without files it uses the test text of the model's own recipe.

    Example: regard evaluate runs/de-en --source test.de --reference test.en
    """
    from dataclasses import replace

    from regard.evaluation.evaluate import Evaluation, plot_by_length
    from regard.evaluation.evaluate import evaluate as evaluate_model

    for option, path in (("--plot", plot), ("--report", report)):
        require_output(option, path)
    if source is None:
        refuse_unused("says how --source is read. Give --source, or leave it out.", pairs=pairs)
    first, others = (reference[0], reference[1:]) if reference else (None, [])
    split: Literal["valid", "test"] = "valid" if calibrate else "test"
    corpus = _corpus("evaluate", model, source, first, (text, documents, fields), parts, split)
    if source is not None and (pairs or trained_on_pairs(model)):
        corpus = replace(corpus, paired_sources=True)
    loaded = load_model(model, device, threads, parts)
    if corpus.targets is None or loaded.description.readout.outputs != "tokens":
        refuse_unused("is for translations, and nothing is translated here. Leave it out.", beam=beam, plot=plot,
                      tokenize=tokenize, lowercase=lowercase, ter=ter, comet=comet, alignments=alignments,
                      confidence=confidence, calibrate=calibrate, reference=others or None)  # fmt: skip
    if loaded.description.readout.outputs != "tokens":
        refuse_unused("is for models that write text. Leave it out.", report=report, window=window, stride=stride)
    if alignments is not None:
        refuse_unused("is for translations, and --alignments aligns given pairs. Leave it out.", beam=beam, plot=plot,
                      report=report, tokenize=tokenize, lowercase=lowercase, ter=ter, comet=comet,
                      confidence=confidence, calibrate=calibrate, reference=others or None)  # fmt: skip
        _print_alignments(loaded, corpus, alignments, as_json)
        return
    if calibrate:
        refuse_unused("is for an evaluation, and --calibrate makes none. Leave it out.", beam=beam, plot=plot,
                      report=report, tokenize=tokenize, lowercase=lowercase, ter=ter, comet=comet,
                      confidence=confidence, reference=others or None)  # fmt: skip
        _calibrate(loaded, corpus, model, as_json)
        return
    scored = _scoring(tokenize, lowercase, ter)
    options = loaded.defaults()
    options = options if beam is None else replace(options, beam=beam)
    with progress(len(corpus), "evaluating", least=1) as advance:
        found = evaluate_model(
            loaded, corpus, options, window=window, stride=stride, references=_more_references(others, corpus),
            scoring=scored, threshold=confidence, progress=advance,
        )  # fmt: skip
    if comet is not None and isinstance(found, Evaluation):
        from regard.evaluation.comet import comet_score

        found = replace(found, comet=comet_score(comet, found.sources, found.hypotheses, found.references))
    _print(found, as_json)
    if isinstance(found, Evaluation) and found.warning:
        typer.echo(found.warning, err=True)
    if not isinstance(found, Evaluation):
        return
    if plot is not None:
        plot_by_length(found, plot)
        typer.echo(f"{plot} shows quality by source length.", err=True)
    if report is not None:
        import torch

        from regard.evaluation.compare import sample_lines
        from regard.evaluation.report import write_report

        traces = [(found.sources[line], loaded.look(found.sources[line])) for line in sample_lines(found.sources)]
        metrics = model / "metrics.jsonl"
        note = f"regard {' '.join(sys.argv[1:])}, with {torch.get_num_threads()} threads on {loaded.device}."
        write_report(report, title=model.name, evaluation=found, metrics=metrics, traces=traces, note=note)
        typer.echo(f"The report is in {report}.", err=True)


def _scoring(tokenize: str | None, lowercase: bool, ter: bool) -> Scoring:
    """How translations are compared; a tokenization that sacreBLEU does not know is refused."""
    from sacrebleu.metrics.bleu import BLEU

    from regard.metrics import Scoring

    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise InputError(f'"{tokenize}" is not known (--tokenize). {suggest(tokenize, [*BLEU.TOKENIZERS])}')
    scoring = Scoring(tokenize, lowercase, ter)
    try:
        scoring.bleu()
    except (ImportError, RuntimeError) as error:
        raise InputError(f"{str(error).strip().splitlines()[0]} (--tokenize {tokenize}).") from error
    return scoring


def _more_references(paths: list[Path], corpus: Corpus) -> list[list[str]]:
    """The second and later references, as many lines each as the first."""
    from regard.data.read.corpus import read_lines

    found = []
    for path in paths:
        lines = list(read_lines(path))
        if len(lines) != len(corpus):
            raise InputError(f"{path} has {len(lines):,} lines, the first reference {len(corpus):,} (--reference). "
                             "Give one line per source.")  # fmt: skip
        found.append(lines)
    return found


def _print_alignments(loaded: LoadedModel, corpus: Corpus, path: Path, as_json: bool) -> None:
    """Print the alignment error rate of the model's attention on given pairs."""
    from regard.evaluation.alignments import evaluate_alignments, read_gold

    assert corpus.targets is not None
    gold = read_gold(path, corpus.sources, corpus.targets)
    found = evaluate_alignments(loaded, corpus.sources, corpus.targets, gold)
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else found.text())


def _calibrate(loaded: LoadedModel, corpus: Corpus, model: Path, as_json: bool) -> None:
    """Calibrate the confidence of a model by pairs, and write it to its folder."""
    from dataclasses import asdict

    from regard.decode.confidence import write_calibration

    assert corpus.targets is not None
    with progress(len(corpus), "calibrating", least=1) as advance:
        loaded.calibrate(corpus.sources, corpus.targets, progress=advance)
    assert loaded.calibration is not None
    write_calibration(model, loaded.calibration)
    typer.echo(json.dumps(asdict(loaded.calibration), indent=2) if as_json else loaded.calibration.text())


def compare(
    models: Annotated[list[Path], typer.Argument(help="Model folders, two or more.", show_default=False)],
    source: Annotated[Path | None, typer.Option(help="Lines to translate.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The reference translations.")] = None,
    text: TextFiles = None,
    documents: DocumentsOption = None,
    fields: Fields = None,
    beam: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy.", show_default="each model's")] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="The metric by length: exact, bleu or chrf.",
            show_default="exact if a model gets half of them right, else chrf",
        ),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="Count source lengths in words or characters.", show_default="words")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write quality by source length as a PNG.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report with charts and alignments.")] = None,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Compare models on one text: quality (with significance, and by length), size, speed and memory.

    The first model is the baseline. Without files it uses the test text of the first model's recipe.

    Example: regard compare runs/transformer runs/small --source test.de --reference test.en --report compare.html
    """
    from regard.evaluation.compare import attention_samples, distinct_names, plot_comparison
    from regard.evaluation.compare import compare as compare_models

    for option, path in (("--plot", plot), ("--report", report)):
        require_output(option, path)
    distinct_names(models)
    corpus = _corpus("compare", models[0], source, reference, (text, documents, fields), parts)
    if corpus.targets is None:
        refuse_unused("is for translations, and nothing is translated here. Leave it out.", beam=beam, metric=metric,
                      unit=unit, plot=plot)  # fmt: skip
    threads = None if threads is None else limit_threads(threads)
    with progress(len(models) * len(corpus), "comparing", least=1) as advance:
        found = compare_models(
            models, corpus, metric=metric, unit=unit or "words", beam=beam, device=device, threads=threads, parts=parts,
            progress=advance,
        )  # fmt: skip
    _print(found, as_json)
    if plot is not None:
        plot_comparison(found, plot)
        typer.echo(f"{plot} shows quality by source length.", err=True)
    if report is not None:
        from regard.evaluation.report import write_comparison

        use_threads(threads)
        samples = attention_samples(found, device=device, parts=own_parts(parts))
        write_comparison(report, found, samples, note=f"regard {' '.join(sys.argv[1:])}")
        typer.echo(f"The report is in {report}.", err=True)


def check(
    model: ModelFolder,
    source: Annotated[Path | None, typer.Option(help="Lines for a translator to read (the first 32).")] = None,
    text: Annotated[Path | None, typer.Option(help="Lines for any other model to read (the first 32).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random test tokens.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per law.")] = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Check that KV cache, batch, padding and recording change no output (the laws); exit code 1 if a law is broken.

    Example: regard check runs/de-en --source test.de
    """
    from regard.data.read.corpus import read_lines
    from regard.evaluation.check import check_laws

    loaded = load_model(model, device, threads, parts)
    translates = loaded.network.shape == "encoder-decoder"
    lines, stray, option = (source, text, "--source") if translates else (text, source, "--text")
    if stray is not None:
        raise InputError(
            f"this model {'translates' if translates else 'reads one text'} (regard check). Give {option}."
        )
    results = []
    for result in check_laws(loaded, None if lines is None else read_lines(lines), seed=seed):
        typer.echo(json_text(result.to_json()) if as_json else result.text())
        results.append(result)
    counts = Counter(result.verdict for result in results)
    if counts["BROKEN"]:
        own = "look for the mistake in your own parts; or " if parts else ""
        are = "is" if counts["BROKEN"] == 1 else "are"
        raise RunFailed(
            f"{counts['BROKEN']} of {counts['BROKEN'] + counts['holds']} laws {are} broken ({model}). "
            f"Do not rely on this model: {own}try --device cpu, and report it if that does not help."
        )
    if not as_json:
        drift = f", {counts['drifts']} drift as published chunks do" if counts["drifts"] else ""
        typer.echo(f"All {counts['holds']} laws hold that apply ({counts['skipped']} skipped{drift}).")


def _print(found: Evaluation | LabelEvaluation | Comparison, as_json: bool) -> None:
    """Print a result as text or as JSON."""
    typer.echo(json.dumps(finite(found.to_json()), indent=2, ensure_ascii=False) if as_json else found.text())


def _corpus(
    verb: str,
    model: Path,
    source: Path | None,
    reference: Path | None,
    texts: tuple[list[str] | None, str | None, str | None],
    parts: list[Path] | None,
    split: Literal["valid", "test"] = "test",
) -> Corpus:
    """The files that the user named, or the test text of the model's own recipe; `texts`, with documents and fields."""
    from regard.config.recipe import Text, read_recipe
    from regard.data.read.corpus import read_pairs

    names, documents, fields = texts
    if (source is None) != (reference is None):
        raise InputError(
            f"--source and --reference go together (regard {verb}). Give both, or a table with labels as --text FILE."
        )
    if source is not None and reference is not None:
        if any(texts):
            raise InputError(f"--source and --reference are plain lines (regard {verb}). Leave out --text, --documents "
                             "and --fields.")  # fmt: skip
        return read_pairs(source, reference)
    recipe = model / "recipe.toml"
    settings = read_recipe(recipe, parts=own_parts(parts)).text if recipe.is_file() else None
    if names:
        return _read_texts(settings or Text(train=names[0]), names, documents, fields)
    if documents is not None or fields is not None:
        raise InputError(f"--documents and --fields say how --text is read (regard {verb}). Give --text.")
    if settings is None:
        raise InputError(f"{model} has no recipe.toml. Give --source F --reference F, or --text F.")
    corpus = settings.read(split)
    if corpus is None and split == "test" and isinstance(settings.valid, float):
        share = f"{100 * settings.valid:g}% of the text"
        typer.echo(f"No test text: these are the {share} that were held out, and chose the best weights.", err=True)
        corpus = settings.read("valid")
    if corpus is None:
        what = "test" if split == "test" else "validation"
        raise InputError(f"{recipe} names no {what} text. Give --source F --reference F, or --text F.")
    return corpus


def _read_texts(settings: Text, names: list[str], documents: str | None, fields: str | None) -> Corpus:
    """Files read as in training, unless the user says otherwise; plain text has no fields."""
    from dataclasses import replace
    from typing import cast, get_args

    from regard.data.read.formats import has_fields
    from regard.data.read.texts import Documents

    if documents is not None and documents not in get_args(Documents):
        raise InputError(f'"{documents}" is not known (--documents). {suggest(documents, get_args(Documents))}')
    named = tuple(fields.split(",")) if fields else settings.fields if any(map(has_fields, names)) else None
    files = replace(settings, train=names[0], valid=None, test=tuple(names), folder=None, corpus=None, transpose=0)
    cut = cast(Documents, documents or settings.documents)
    corpus = replace(files, documents=cut, fields=named).read("test")
    assert corpus is not None
    return corpus
