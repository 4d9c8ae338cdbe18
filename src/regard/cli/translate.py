"""The verbs that speak."""

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

from regard.cli.options import Device, ModelFolder, Threads, input_lines, json_line, json_text, load_model, progress
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.decode.generate import Answer
    from regard.decode.options import Options


def translate(
    model: ModelFolder,
    beam: Annotated[int | None, typer.Option(help="Beams; 1 is greedy.", show_default="the model's")] = None,
    n_best: Annotated[int, typer.Option(help="Say the best n, as 'line ||| text ||| score'.")] = 1,
    length_penalty: Annotated[
        float | None, typer.Option(help="Favours long answers.", show_default="the model's")
    ] = None,
    coverage_penalty: Annotated[float, typer.Option(help="Punishes source words nobody attended to.")] = 0.0,
    max_tokens: Annotated[
        int | None, typer.Option(help="The longest answer.", show_default="the model's, or 2 x source + 50")
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(help="The shortest answer.", show_default="the model's, or 0")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None,
        typer.Option(help="Never say a run of so many tokens twice; 0 is off.", show_default="the model's, or 0"),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: shuns tokens already said.", show_default="the model's, or 1")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Begin every answer with this.")] = None,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Say which words belong together, as 'text ||| 0-0 1-2'.")
    ] = False,
    replace_unknown: Annotated[
        bool, typer.Option("--replace-unknown", help="For a word the vocabulary lacks, say the source's.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Above 0: draw samples instead of searching.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that make up this much.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines in and out; unknown keys pass through.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate standard input line by line; on a terminal without input, ask for lines.

    Example: regard translate runs/dates < dates.txt > iso.txt
    """
    loaded = load_model(model, device, threads)
    defaults = loaded.defaults()
    said: dict[str, Any] = {
        "length_penalty": length_penalty, "max_tokens": max_tokens, "min_tokens": min_tokens,
        "no_repeat_ngram": no_repeat_ngram, "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    options = replace(
        defaults,
        beam=max(n_best, defaults.beam) if beam is None else beam,
        n_best=n_best,
        **{name: value for name, value in said.items() if value is not None},
        coverage_penalty=coverage_penalty,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    speak = partial(loaded.translations, alignment=alignment, replace_unknown=replace_unknown)
    if sys.stdin.isatty():
        _converse(speak, options, prefix)
        return
    done = 0
    for lines in input_lines():
        rows = [json_line(line) for line in lines] if as_json else [{"text": line} for line in lines]
        texts = [row["text"] for row in rows]
        with progress(len(texts), "translating") as advance:
            prefixes = None if prefix is None else [prefix] * len(texts)
            found = speak(
                texts, replace(options, seed=seed + done), prefixes=prefixes, progress=advance, first=done + 1
            )
        for place, (row, answers) in enumerate(zip(rows, found)):
            sys.stdout.write(_written(row if as_json else None, done + place, answers, n_best))
        sys.stdout.flush()
        done += len(rows)


def _written(row: dict[str, object] | None, number: int, answers: list[Answer], n_best: int) -> str:
    """What is printed for a line: its text, its n best in Moses' form, or a JSON object."""
    if row is not None:
        several = [_facts(answer) for answer in answers]
        more = {"n_best": several} if n_best > 1 else {}
        return json_text({**row, **several[0], **more}) + "\n"
    if n_best > 1:
        return "".join(f"{number} ||| {_one_line(answer)} ||| {answer.score:.4f}\n" for answer in answers)
    return _one_line(answers[0]) + "\n"


def _facts(answer: Answer) -> dict[str, object]:
    """An answer for JSON."""
    links = {} if answer.alignment is None else {"alignment": answer.alignment}
    return {"translation": answer.text, "score": answer.score, **links}


def _one_line(answer: Answer) -> str:
    """Line i of the output belongs to line i of the input, whatever the model said; the alignment, if any, follows."""
    from regard.decode.alignment import moses

    text = answer.text.replace("\n", " ")
    return text if answer.alignment is None else f"{text} ||| {moses(answer.alignment)}"


def _converse(speak: Callable[..., list[list[Answer]]], options: Options, prefix: str | None) -> None:
    typer.echo("Type a line, get its translation; Ctrl-D ends.", err=True)
    while True:
        try:
            line = input("> ")
        except EOFError:
            typer.echo("", err=True)
            return
        try:
            for answer in speak([line], options, prefixes=[prefix or ""])[0]:
                typer.echo(_one_line(answer))
        except InputError as error:
            typer.echo(f"regard: error: {error}", err=True)


def generate(
    model: ModelFolder,
    prompt: Annotated[
        str | None,
        typer.Argument(help="The text to continue; - is standard input.", show_default="a file that is given as it"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="How many tokens to add at most.", min=0, show_default="the model's, or 200")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that make up this much.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Draw from tokens at least this fraction as likely as the best.")] = 0.0,
    beam: Annotated[int, typer.Option(help="With temperature 0: beams.")] = 1,
    no_repeat_ngram: Annotated[int, typer.Option(help="Never say a run of so many tokens twice; 0 is off.")] = 0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: shuns tokens already said.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given again.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A file to write: music if it ends in .mid, else the text.")] = None,
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
    loaded = load_model(model, device, threads)
    own = loaded.defaults()
    options = replace(
        options, max_tokens=own.max_tokens if max_tokens is None else max_tokens, never=own.never,
        not_first=own.not_first, last=own.last, also_end=own.also_end,
    )  # fmt: skip
    text = loaded.continuations([prompt or ""], options)[0][0].text
    if out is None:
        typer.echo(text)
        return
    _save(text, out)
    typer.echo(f"{out} is written.")


def _redirected() -> bool:
    """Whether standard input is a file; of a pipe nobody knows whether anything will come."""
    try:
        return stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def _save(text: str, out: Path) -> None:
    """Write a text to a file, as music where the file's name says so."""
    if out.suffix in (".mid", ".midi"):
        from regard.show.midi import save_midi

        save_midi(text, out)
    else:
        from regard.store.files import write_file

        write_file(out, f"{text}\n".encode())
