"""The verbs that judge."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device, ModelFolder, Threads, json_text, load_model, progress, use_threads
from regard.cli.read import learnt_pairs
from regard.errors import InputError, RunFailed

if TYPE_CHECKING:
    from regard.data.read.corpus import Corpus
    from regard.evaluation.compare import Comparison
    from regard.evaluation.evaluate import AnswerEvaluation, Evaluation


def evaluate(
    model: ModelFolder,
    source: Annotated[Path | None, typer.Option(help="Lines to translate or to classify.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Their right translations, labels, numbers or tags.")] = None,
    text: Annotated[Path | None, typer.Option(help="A text to predict.")] = None,
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs", help="A source is two texts, with a tab between them.", show_default="as the model has learnt"
        ),
    ] = False,
    beam: Annotated[int | None, typer.Option(help="Beams; 1 is greedy.", show_default="the model's")] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Tokens a language model reads at once.", min=1, show_default="what it has learnt to"),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Tokens by which the window moves on.", min=1, show_default="half of the window"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write quality by source length as a PNG.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report with curves and alignments.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Judge a model: BLEU and chrF with signatures, exact match, loss, perplexity and bits per byte.

    Of a classifier: accuracy, macro F1 and Matthews' correlation, or Pearson's and Spearman's of numbers.
    Without files: on the test text of its own recipe.

    Example: regard evaluate runs/de-en --source test.de --reference test.en
    """
    from dataclasses import replace

    from regard.evaluation.evaluate import Evaluation, plot_by_length
    from regard.evaluation.evaluate import evaluate as judge

    corpus = _corpus("evaluate", model, source, reference, text)
    if source is not None and (pairs or learnt_pairs(model)):
        corpus = replace(corpus, joined=True)
    loaded = load_model(model, device, threads)
    options = loaded.defaults()
    options = options if beam is None else replace(options, beam=beam)
    with progress(len(corpus), "evaluating", least=1) as advance:
        found = judge(loaded, corpus, options, window=window, stride=stride, progress=advance)
    _say(found, as_json)
    if not isinstance(found, Evaluation):
        if plot is not None or report is not None:
            raise InputError("there are no translations to draw (--plot, --report). Evaluate a translator on pairs.")
        return
    if plot is not None:
        plot_by_length(found, plot)
        typer.echo(f"{plot} shows quality by source length.", err=True)
    if report is not None:
        import torch

        from regard.evaluation.report import telling, write_report

        looks = [(found.sources[place], loaded.look(found.sources[place])) for place in telling(found.sources)]
        metrics = model / "metrics.jsonl"
        note = f"regard {' '.join(sys.argv[1:])}, with {torch.get_num_threads()} threads on {loaded.device}."
        write_report(report, title=model.name, evaluation=found, metrics=metrics, looks=looks, note=note)
        typer.echo(f"{report} is the report.", err=True)


def compare(
    models: Annotated[list[Path], typer.Argument(help="Model folders, two or more.", show_default=False)],
    source: Annotated[Path | None, typer.Option(help="Lines to translate.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Their right translations.")] = None,
    text: Annotated[Path | None, typer.Option(help="A text to predict.")] = None,
    beam: Annotated[int | None, typer.Option(help="Beams; 1 is greedy.", show_default="each model's")] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Show exact, bleu or chrf by length.", show_default="exact if a model gets half right"),
    ] = None,
    unit: Annotated[str, typer.Option(help="Count source lengths in words or characters.")] = "words",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write quality by source length as a PNG.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report with charts and alignments.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Compare models on one text: quality with significance, by length too, size, speed and memory.

    The others are held against the first. Without files: on the test text of its own recipe.

    Example: regard compare runs/transformer runs/small --source test.de --reference test.en --report compare.html
    """
    from regard.evaluation.compare import compare as judge
    from regard.evaluation.compare import distinct_names, look_at, plot_comparison

    distinct_names(models)
    corpus = _corpus("compare", models[0], source, reference, text)
    with progress(len(models) * len(corpus), "comparing", least=1) as advance:
        found = judge(
            models, corpus, metric=metric, unit=unit, beam=beam, device=device, threads=threads, progress=advance
        )
    _say(found, as_json)
    if plot is not None:
        plot_comparison(found, plot)
        typer.echo(f"{plot} shows quality by source length.", err=True)
    if report is not None:
        from regard.evaluation.compare_report import write_comparison

        use_threads(threads)
        write_comparison(report, found, look_at(found, device=device), note=f"regard {' '.join(sys.argv[1:])}")
        typer.echo(f"{report} is the report.", err=True)


def check(
    model: ModelFolder,
    source: Annotated[Path | None, typer.Option(help="Lines to read, for a translator; the first 32 are.")] = None,
    text: Annotated[Path | None, typer.Option(help="Lines to read, for any other model; the first 32 are.")] = None,
    seed: Annotated[int, typer.Option(help="Of the tokens that are drawn besides.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a law.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Prove the laws on a model: memory, batches, padding and looking change nothing; ends with 1 when one is broken.

    Example: regard check runs/de-en --source test.de
    """
    from regard.data.read.corpus import read_lines
    from regard.evaluation.check import check as prove

    loaded = load_model(model, device, threads)
    translates = loaded.network.encoder is not None and loaded.network.decoder is not None
    lines, stray, option = (source, text, "--source") if translates else (text, source, "--text")
    if stray is not None:
        raise InputError(
            f"this model {'translates' if translates else 'reads one text'} (regard check). Give {option}."
        )
    found = []
    for finding in prove(loaded, None if lines is None else read_lines(lines), seed=seed):
        typer.echo(json_text(finding.to_json()) if as_json else finding.text())
        found.append(finding)
    counts = Counter(finding.verdict for finding in found)
    if counts["BROKEN"]:
        names = ", ".join(finding.law for finding in found if finding.verdict == "BROKEN")
        raise RunFailed(
            f"{counts['BROKEN']} of {counts['BROKEN'] + counts['holds']} laws are broken ({model}): {names}. "
            "Do not rely on it; try --device cpu, and report it if that is no better."
        )
    if not as_json:
        drift = f", {counts['drifts']} drift as published chunks do" if counts["drifts"] else ""
        typer.echo(f"All {counts['holds']} laws hold that apply ({counts['skipped']} skipped{drift}).")


def _say(found: Evaluation | AnswerEvaluation | Comparison, as_json: bool) -> None:
    """Print what was found, for a person or for a program."""
    typer.echo(json.dumps(found.to_json(), indent=2, ensure_ascii=False) if as_json else found.text())


def _corpus(verb: str, model: Path, source: Path | None, reference: Path | None, text: Path | None) -> Corpus:
    """The files that were named, or the test text of the model's own recipe."""
    from regard.data.read.corpus import read_corpus, read_pairs

    if text is not None:
        if source or reference:
            raise InputError(
                f"--text does not go with --source and --reference (regard {verb}). Give one or the other."
            )
        return read_corpus(str(text))
    if (source is None) != (reference is None):
        raise InputError(f"--source and --reference go together (regard {verb}). Give both.")
    if source is not None and reference is not None:
        return read_pairs(source, reference)
    recipe = model / "recipe.toml"
    if not recipe.is_file():
        raise InputError(f"{model} has no recipe.toml. Say --source F --reference F, or --text F.")
    from regard.config.recipe import read_recipe

    corpus = read_recipe(recipe).text.read("test")
    if corpus is None:
        raise InputError(f"{recipe} names no test text. Say --source F --reference F, or --text F.")
    return corpus
