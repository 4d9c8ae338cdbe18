"""The command generate."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    Device,
    EngineOption,
    ModelFolder,
    Parts,
    Precision,
    Threads,
    input_lines,
    load_converted,
    load_model,
    refuse_engine,
    refuse_unused,
    require_output,
)
from regard.cli.steering import (
    SAMPLES,
    SEARCHES,
    Epsilon,
    Must,
    MustNot,
    Regex,
    Seed,
    Stream,
    TopP,
    Typical,
    read_steering,
)

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.decode.options import Options
    from regard.decode.terms import Constraints

_PATIENCE = 2.0  # seconds until a prompt comes through a pipe


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
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the k most likely tokens; 0 is all.", show_default="0")
    ] = None,
    top_p: TopP = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Sample from tokens at least this fraction as likely as the best.", show_default="0"),
    ] = None,
    typical: Typical = None,
    epsilon: Epsilon = None,
    beam: Annotated[int | None, typer.Option(help="Beam size, with --temperature 0.", show_default="1")] = None,
    no_repeat_ngram: Annotated[
        int, typer.Option(help="Repeat no n-gram of this size.", show_default="the model's, or off")
    ] = 0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: makes repeated tokens less likely.", show_default="the model's, or off")
    ] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; can be repeated.")] = None,
    seed: Seed = None,
    must: Must = None,
    must_not: MustNot = None,
    regex: Regex = None,
    stream: Stream = False,
    out: Annotated[Path | None, typer.Option(help="Write to this file: MIDI if it ends in .mid, else text.")] = None,
    parts: Parts = None,
    engine: EngineOption = "auto",
    precision: Precision = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Continue a text.

    Example: regard generate runs/python "def main(" --temperature 0.8

    Example: regard generate runs/python "x = " --regex "[0-9]+" --stream
    """
    from regard.decode.options import Options
    from regard.decode.requests import require_possible

    require_output("--out", out)
    if temperature > 0:
        refuse_unused(SEARCHES, beam=beam, must=must)
    else:
        refuse_unused(SAMPLES, top_k=top_k, top_p=top_p, min_p=min_p, typical=typical, epsilon=epsilon, seed=seed)
    if stream:
        several = beam if beam != 1 else None
        refuse_unused("needs the whole text, and --stream prints token by token.", out=out, beam=several, must=must)
    if beam == 1:
        refuse_unused("takes a beam search, and --beam 1 is greedy. Raise --beam, or leave it out.", must=must)
    steering = read_steering(must, must_not, regex)
    given = {
        "beam": beam, "top_k": top_k, "top_p": top_p, "min_p": min_p, "typical": typical, "epsilon": epsilon,
        "seed": seed,
    }  # fmt: skip
    options = Options(
        max_tokens=max_tokens, temperature=temperature, no_repeat_ngram=no_repeat_ngram,
        repetition_penalty=repetition_penalty, stop=tuple(stop or ()),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )  # fmt: skip
    if prompt == "-" or (prompt is None and _redirected()):
        prompt = "\n".join(line for lines in input_lines() for line in lines)
    prompt = prompt or ""
    constraints = steering.constraints([{"text": prompt}], 0)
    if stream:
        refuse_engine(engine, "does not stream")
        in_torch = load_model(model, device, threads, parts, precision)
        _stream_continuation(in_torch, prompt, options.with_tokens_of(in_torch.defaults()), constraints)
        return
    loaded = load_converted("generate", model, device, threads, parts, engine, precision)
    options = options.with_tokens_of(loaded.defaults())
    (found, *_), *_ = loaded.continuations([prompt], options, constraints=constraints)
    text = require_possible(found, "the text").text
    if out is None:
        typer.echo(text)
        return
    from regard.data.corpora.chorales import midi_of
    from regard.store.files import write_output

    write_output(out, midi_of(text) if out.suffix in (".mid", ".midi") else f"{text}\n".encode())
    typer.echo(f"Wrote {out}.")


def _stream_continuation(
    model: LoadedModel, prompt: str, options: Options, constraints: list[Constraints] | None
) -> None:
    """Print the prompt and its continuation, piece by piece."""
    sys.stdout.write(prompt)
    only = constraints[0] if constraints else None
    pieces = model.stream(
        prompt, options=options, must_not=only.must_not if only else (), regex=only.regex if only else None
    )
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _redirected() -> bool:
    """Whether standard input is a file or a pipe; one line says so if nothing comes through the pipe."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISFIFO(mode) and not select.select([sys.stdin], [], [], _PATIENCE)[0]:
        typer.echo("Waiting for the prompt from standard input; Ctrl-C ends.", err=True)
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
