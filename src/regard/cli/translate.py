"""The commands translate and generate."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    Device,
    ModelFolder,
    Parts,
    Threads,
    input_lines,
    json_line,
    json_text,
    load_model,
    progress,
)
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.decode.generate import GeneratedText
    from regard.decode.options import Options


def translate(
    model: ModelFolder,
    beam: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy.", show_default="the model's")] = None,
    n_best: Annotated[int, typer.Option(help="Print the n best, as 'line ||| text ||| score'.")] = 1,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Length penalty; larger values favour long translations.", show_default="the model's"),
    ] = None,
    coverage_penalty: Annotated[
        float, typer.Option(help="Coverage penalty for source tokens that get no attention.")
    ] = 0.0,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of tokens.", show_default="the model's, or 2 x source + 50")
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(help="Minimum number of tokens.", show_default="the model's, or 0")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Repeat no n-gram of this size; 0 is off.", show_default="the model's, or 0")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: makes repeated tokens less likely.", show_default="the model's, or 1")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Start every translation with this text.")] = None,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Print the word alignment, as 'text ||| 0-0 1-2'.")
    ] = False,
    replace_unknown: Annotated[
        bool, typer.Option("--replace-unknown", help="Replace unknown tokens by the aligned source words.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Above 0: sample instead of searching.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: sample from the most likely tokens with this total probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines in and out; unknown keys pass through.")] = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate standard input line by line; on a terminal it asks for lines.

    Example: regard translate runs/dates < dates.txt > iso.txt
    """
    loaded = load_model(model, device, threads, parts)
    defaults = loaded.defaults()
    given: dict[str, Any] = {
        "length_penalty": length_penalty, "max_tokens": max_tokens, "min_tokens": min_tokens,
        "no_repeat_ngram": no_repeat_ngram, "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    options = replace(
        defaults,
        beam=max(n_best, defaults.beam) if beam is None else beam,
        n_best=n_best,
        **{name: value for name, value in given.items() if value is not None},
        coverage_penalty=coverage_penalty,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    translations = partial(loaded.translations, alignment=alignment, replace_unknown=replace_unknown)
    if sys.stdin.isatty():
        _interactive(translations, options, prefix)
        return
    done = 0
    for lines in input_lines():
        rows = [json_line(line) for line in lines] if as_json else [{"text": line} for line in lines]
        texts = [row["text"] for row in rows]
        with progress(len(texts), "translating") as advance:
            prefixes = None if prefix is None else [prefix] * len(texts)
            found = translations(
                texts, replace(options, seed=seed + done), prefixes=prefixes, progress=advance, first_line=done + 1
            )
        for number, (row, answers) in enumerate(zip(rows, found)):
            sys.stdout.write(_written(row if as_json else None, done + number, answers, n_best))
        sys.stdout.flush()
        done += len(rows)


def _written(row: dict[str, object] | None, number: int, answers: list[GeneratedText], n_best: int) -> str:
    """The output for a line: the translation, the n best in the Moses format, or a JSON object."""
    if row is not None:
        several = [_facts(answer) for answer in answers]
        more = {"n_best": several} if n_best > 1 else {}
        return json_text({**row, **several[0], **more}) + "\n"
    if n_best > 1:
        return "".join(f"{number} ||| {_one_line(answer)} ||| {answer.score:.4f}\n" for answer in answers)
    return _one_line(answers[0]) + "\n"


def _facts(answer: GeneratedText) -> dict[str, object]:
    """A translation for JSON."""
    links = {} if answer.alignment is None else {"alignment": answer.alignment}
    return {"translation": answer.text, "score": answer.score, **links}


def _one_line(answer: GeneratedText) -> str:
    """Line i of the output belongs to line i of the input; the alignment, if any, follows the text."""
    from regard.decode.alignment import write_moses

    text = answer.text.replace("\n", " ")
    return text if answer.alignment is None else f"{text} ||| {write_moses(answer.alignment)}"


def _interactive(translations: Callable[..., list[list[GeneratedText]]], options: Options, prefix: str | None) -> None:
    typer.echo("Type a line, get its translation; Ctrl-D ends.", err=True)
    while True:
        try:
            line = input("> ")
        except EOFError:
            typer.echo("", err=True)
            return
        try:
            for answer in translations([line], options, prefixes=[prefix or ""])[0]:
                typer.echo(_one_line(answer))
        except InputError as error:
            typer.echo(f"regard: error: {error}", err=True)


def generate(
    model: ModelFolder,
    prompt: Annotated[
        str | None,
        typer.Argument(help="The text to continue; - reads standard input.", show_default="redirected input"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of new tokens.", min=0, show_default="the model's, or 200")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 is all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: sample from the most likely tokens with this total probability.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Sample from tokens at least this fraction as likely as the best.")
    ] = 0.0,
    beam: Annotated[int, typer.Option(help="Beam size, with temperature 0.")] = 1,
    no_repeat_ngram: Annotated[int, typer.Option(help="Repeat no n-gram of this size; 0 is off.")] = 0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: makes repeated tokens less likely.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; can be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write to this file: MIDI if it ends in .mid, else text.")] = None,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Continue a text.

    Example: regard generate runs/python "def main(" --temperature 0.8
    """
    from regard.decode.options import Options

    if prompt == "-" or (prompt is None and _redirected()):
        prompt = "\n".join(line for lines in input_lines() for line in lines)

    options = Options(
        beam=beam, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
        no_repeat_ngram=no_repeat_ngram, repetition_penalty=repetition_penalty, stop=tuple(stop or ()),
    )  # fmt: skip
    loaded = load_model(model, device, threads, parts)
    own = loaded.defaults()
    options = replace(
        options, max_tokens=own.max_tokens if max_tokens is None else max_tokens, suppress_tokens=own.suppress_tokens,
        begin_suppress_tokens=own.begin_suppress_tokens, forced_eos=own.forced_eos, extra_eos=own.extra_eos,
    )  # fmt: skip
    text = loaded.continuations([prompt or ""], options)[0][0].text
    if out is None:
        typer.echo(text)
        return
    _save(text, out)
    typer.echo(f"Wrote {out}.")


def _redirected() -> bool:
    """Whether standard input is a file; a pipe may never deliver anything."""
    try:
        return stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def _save(text: str, out: Path) -> None:
    """Write a text to a file, as MIDI if the file ends in .mid."""
    from regard.data.corpora.chorales import midi_of
    from regard.store.files import write_file

    write_file(out, midi_of(text) if out.suffix in (".mid", ".midi") else f"{text}\n".encode())
