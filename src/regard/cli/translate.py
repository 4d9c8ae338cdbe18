"""The commands translate, generate, fill, embed, classify and score."""

from __future__ import annotations

import io
import json
import math
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from regard.cli.options import (
    Beam,
    Device,
    EngineOption,
    ModelFolder,
    Parts,
    Row,
    Threads,
    input_lines,
    json_text,
    load_model,
    load_translator,
    progress,
    refuse_unused,
    require_output,
    trained_on_pairs,
)
from regard.errors import InputError
from regard.progress import Progress

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.decode.classify import Prediction
    from regard.decode.confidence import Confidence
    from regard.decode.fill import FilledText
    from regard.decode.generate import GeneratedText
    from regard.decode.options import Options
    from regard.decode.score import TextScore

Json = Annotated[bool, typer.Option("--json", help="JSON lines in and out; unknown keys pass through.")]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Nucleus sampling: sample from the most likely tokens with this total probability.", show_default="1"
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="0")]

_PATIENCE = 2.0  # seconds until a prompt comes through a pipe
_SAMPLES = "is for sampling. Set --temperature above 0, or leave it out."
_SEARCHES = "is for a search, and a temperature above 0 samples. Set --temperature 0, or leave it out."
_RANKS = "ranks the results of a beam search. Raise --beam, or leave it out."


def translate(
    model: ModelFolder,
    beam: Beam = None,
    n_best: Annotated[int, typer.Option(help="Print the n best translations, as 'line ||| text ||| score'.")] = 1,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Length penalty; larger values favour long translations.", show_default="the model's"),
    ] = None,
    coverage_penalty: Annotated[
        float | None,
        typer.Option(help="Coverage penalty for source tokens that get no attention.", show_default="0"),
    ] = None,
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
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Print the confidence in the translation, as 'text ||| 0.97'.")
    ] = False,
    replace_unknown: Annotated[
        bool, typer.Option("--replace-unknown", help="Replace unknown tokens by the aligned source words.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Above 0: sample instead of searching.")] = 0.0,
    top_p: TopP = None,
    seed: Seed = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Translate this document: .txt, .md, .html, .srt, .vtt or .docx.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the document to this file.", show_default="standard output")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help="Source language of --file, as de: where its sentences end.", show_default="the recipe's"),
    ] = None,
    as_json: Json = False,
    parts: Parts = None,
    engine: EngineOption = "auto",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate standard input line by line; on a terminal it prompts for each line.

    What a converted model (regard convert MODEL --to ctranslate2) cannot do is translated by torch, with a note.

    Example: regard translate runs/dates < dates.txt > iso.txt
    """
    if temperature > 0:
        refuse_unused(_SEARCHES, beam=beam)
    else:
        refuse_unused(_SAMPLES, top_p=top_p, seed=seed)
    if file is None:
        refuse_unused("is for a document. Name one with --file, or leave it out.", out=out, language=language)
    else:
        refuse_unused("is for lines, and --file names a document. Leave it out.", n_best=n_best if n_best > 1 else None,
                      prefix=prefix, alignment=alignment, replace_unknown=replace_unknown, json=as_json,
                      confidence=confidence)  # fmt: skip
    if n_best > 1 or temperature > 0:
        refuse_unused("is for the best translation of a search. Leave it out, or leave out --n-best and --temperature.",
                      confidence=confidence)  # fmt: skip
    if file is not None or confidence:
        from regard.cli.document import load_for_documents, note_raw, sure, translate_file
    load = load_for_documents if file is not None or confidence else load_translator
    loaded = load(model, device, threads, parts, engine)
    defaults = loaded.defaults()
    given: Row = {
        "length_penalty": length_penalty, "max_tokens": max_tokens, "min_tokens": min_tokens, "top_p": top_p,
        "no_repeat_ngram": no_repeat_ngram, "repetition_penalty": repetition_penalty, "seed": seed,
        "coverage_penalty": coverage_penalty,
    }  # fmt: skip
    options = replace(
        defaults, beam=max(n_best, defaults.beam) if beam is None else beam, n_best=n_best, temperature=temperature,
        **{name: value for name, value in given.items() if value is not None},
    )  # fmt: skip
    if (n_best if temperature > 0 else options.beam) == 1 and not as_json:  # JSON has the score
        refuse_unused(_RANKS, length_penalty=length_penalty, coverage_penalty=coverage_penalty)
    if file is not None:
        translate_file(cast("LoadedModel", loaded), model, file, out, language=language, options=options)
        return
    translations = partial(loaded.translations, alignment=alignment, replace_unknown=replace_unknown)
    if confidence:
        note_raw(cast("LoadedModel", loaded))
        translations = partial(sure, cast("LoadedModel", loaded), translations)
    if sys.stdin.isatty() and not as_json:
        _interactive(translations, options, prefix)
        return
    for done, rows in _input_rows(as_json):
        texts = [row["text"] for row in rows]
        with progress(len(texts), "translating") as advance:
            prefixes = None if prefix is None else [prefix] * len(texts)
            seeded = replace(options, seed=options.seed + done)
            found = translations(texts, seeded, prefixes=prefixes, progress=advance, first_line=done + 1)
        for number, (row, answers) in enumerate(zip(rows, found), done):
            sys.stdout.write(_written(row if as_json else None, number, answers, n_best))
        sys.stdout.flush()


def _written(row: Row | None, number: int, answers: list[GeneratedText], n_best: int) -> str:
    """The output for a line: the translation, the n best in the Moses format, or a JSON object."""
    if row is not None:
        several = [_facts(answer) for answer in answers]
        more = {"n_best": several} if n_best > 1 else {}
        return json_text({**row, **several[0], **more}) + "\n"
    if n_best > 1:
        return "".join(f"{number} ||| {_text(answer)} ||| {answer.score:.4f}\n" for answer in answers)
    return _text(answers[0]) + "\n"


def _facts(answer: GeneratedText) -> Row:
    """A translation for JSON."""
    links = {} if answer.alignment is None else {"alignment": answer.alignment}
    return {"translation": answer.text, "score": answer.score, **links, **_confidence(answer)}


def _confidence(answer: GeneratedText) -> Row:
    """The confidence in a translation and in its words, if it was asked for."""
    found: Confidence | None = getattr(answer, "confidence", None)
    if found is None:
        return {}
    words = [{"word": one.word, "confidence": one.probability} for one in found.words]
    return {"confidence": found.sentence, "calibrated": found.calibrated, "words": words}


def _text(answer: GeneratedText) -> str:
    """A translation as one line; the alignment, if any, follows the text."""
    text, found = _one_line(answer.text), _confidence(answer)
    if answer.alignment is not None:
        from regard.decode.alignment import write_moses

        text = f"{text} ||| {write_moses(answer.alignment)}"
    return f"{text} ||| {found['confidence']:.4f}" if found else text


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
                typer.echo(_text(answer))
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
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the k most likely tokens; 0 is all.", show_default="0")
    ] = None,
    top_p: TopP = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Sample from tokens at least this fraction as likely as the best.", show_default="0"),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam size, with --temperature 0.", show_default="1")] = None,
    no_repeat_ngram: Annotated[int, typer.Option(help="Repeat no n-gram of this size; 0 is off.")] = 0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: makes repeated tokens less likely.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; can be repeated.")] = None,
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file: MIDI if it ends in .mid, else text.")] = None,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Continue a text.

    Example: regard generate runs/python "def main(" --temperature 0.8
    """
    from regard.decode.options import Options

    require_output("--out", out)
    if temperature > 0:
        refuse_unused(_SEARCHES, beam=beam)
    else:
        refuse_unused(_SAMPLES, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    given = {"beam": beam, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    options = Options(
        max_tokens=max_tokens, temperature=temperature, no_repeat_ngram=no_repeat_ngram,
        repetition_penalty=repetition_penalty, stop=tuple(stop or ()),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )  # fmt: skip
    if prompt == "-" or (prompt is None and _redirected()):
        prompt = "\n".join(line for lines in input_lines() for line in lines)
    loaded = load_model(model, device, threads, parts)
    text = loaded.continuations([prompt or ""], options.with_tokens_of(loaded.defaults()))[0][0].text
    if out is None:
        typer.echo(text)
        return
    from regard.data.corpora.chorales import midi_of
    from regard.store.files import write_output

    write_output(out, midi_of(text) if out.suffix in (".mid", ".midi") else f"{text}\n".encode())
    typer.echo(f"Wrote {out}.")


def _redirected() -> bool:
    """Whether standard input is a file or a pipe; one line says so if nothing comes through the pipe."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISFIFO(mode) and not select.select([sys.stdin], [], [], _PATIENCE)[0]:
        typer.echo("Waiting for the prompt from standard input; Ctrl-C ends.", err=True)
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def fill(
    model: ModelFolder,
    text: Annotated[
        str | None, typer.Argument(help="A text with [MASK] for each missing token.", show_default="standard input")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Candidates per mask, of a text argument or with --json.", min=1, show_default="5"),
    ] = None,
    as_json: Json = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Fill in masked tokens, or the spans of a T5 model.

    A mask is [MASK], <mask>, or <extra_id_0>, <extra_id_1>, ... for span corruption. For a text argument the candidates
    are printed with their probabilities; for standard input the filled text, line by line.

    Example: regard fill runs/bert "The [MASK] sat on the mat."
    """
    if text is None and not as_json:
        refuse_unused("prints candidates, and lines are only filled. Add --json, or leave it out.", top=top)
    loaded, top = load_model(model, device, threads, parts), top or 5
    if text is not None:
        filled = loaded.fill(text, top=top)
        typer.echo(json_text(_filled(filled)) if as_json else _choices(filled))
        return
    for done, rows in _input_rows(as_json):
        with _progress(done, rows, "filling") as advance:
            found = loaded.fill([row["text"] for row in rows], top=top, progress=advance)
        _write(json_text({**row, **_filled(one)}) if as_json else _one_line(one.text) for row, one in zip(rows, found))


def embed(
    model: ModelFolder,
    pool: Annotated[
        str | None,
        typer.Option(help="Pooling over tokens: mean, first, last or max.", show_default="the model's, or mean"),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(help="Layer number, 0 is the embedding; mix is the mean of all.", show_default="the last"),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Write one vector per token, as .npz.")] = False,
    normalised: Annotated[bool, typer.Option("--normalised", help="Scale every vector to length 1.")] = False,
    stateful: Annotated[
        bool,
        typer.Option("--stateful", help="Carry the recurrent state from line to line, as the published ELMo does."),
    ] = False,
    as_json: Json = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write one vector per line of standard input, as a numpy .npy file.

    With --tokens it writes an .npz file: "vectors" and "tokens" of all lines; line i has those from starts[i] to
    starts[i + 1].

    Example: regard embed runs/bert < sentences.txt > vectors.npy
    """
    import numpy as np

    if sys.stdout.isatty() and not as_json:
        raise InputError("vectors cannot be printed to a terminal (regard embed). Add > vectors.npy, or --json.")
    loaded = load_model(model, device, threads, parts)
    options: Row = {"pool": pool, "layer": _layer(layer), "normalised": normalised, "stateful": stateful}
    whole = [np.zeros((0, loaded.description.embedding_width), dtype=np.float32)]
    names: list[str] = []
    starts = [0]
    # A state is carried over all lines, so they are read at once.
    chunks = _input_rows(as_json)
    for done, rows in [(0, [row for _, some in chunks for row in some])] if stateful else chunks:
        texts = [row["text"] for row in rows]
        with _progress(done, rows, "embedding") as advance:
            of_tokens = loaded.embed(texts, **options, tokens=True, progress=advance) if tokens else []
            vectors = [one for _, one in of_tokens] if tokens else [*loaded.embed(texts, **options, progress=advance)]
        if as_json:
            facts: list[Row] = [{"tokens": names_of, "vectors": one.tolist()} for names_of, one in of_tokens]
            facts = facts or [{"vector": one.tolist()} for one in vectors]
            _write(json_text({**row, **fact}) for row, fact in zip(rows, facts))
        else:
            whole += vectors if tokens else [one[None] for one in vectors]
            names += [name for names_of, _ in of_tokens for name in names_of]
            starts += [starts[-1] + end for end in np.cumsum([len(one) for _, one in of_tokens]).tolist()]
    if not as_json:
        written = io.BytesIO()
        if tokens:
            np.savez(written, vectors=np.concatenate(whole), tokens=np.array(names, dtype=str), starts=starts)
        else:
            np.save(written, np.concatenate(whole))
        sys.stdout.buffer.write(written.getbuffer())


def classify(
    model: ModelFolder,
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="A line holds two texts with a tab between them.", show_default="as in training"),
    ] = False,
    as_json: Json = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Predict a label, a number, or a tag per word for each line of standard input.

    A BERT that was trained with next sentence prediction tells for each pair whether the second text is the next.
    With --json the probability of every label is printed too.

    Example: regard classify runs/reviews < reviews.txt
    """
    from regard.decode.classify import predicts_next_sentence

    loaded = load_model(model, device, threads, parts)
    paired = pairs or trained_on_pairs(model, parts) or predicts_next_sentence(loaded.description)
    for done, rows in _input_rows(as_json):
        texts = _two_columns(rows, done) if paired else [row["text"] for row in rows]
        with _progress(done, rows, "classifying") as advance:
            found = loaded.classify(texts, progress=advance)
        predicted = zip(rows, map(_predicted, found))
        _write(json_text({**row, **facts}) if as_json else line for row, (line, facts) in predicted)


def score(
    model: ModelFolder,
    per_token: Annotated[
        bool,
        typer.Option(
            "--per-token", help="Also print each token with its log-probability, as 'token number', separated by tabs."
        ),
    ] = False,
    as_json: Json = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the log-probability of each line of standard input, in nats; a translator reads source, tab, target.

    A masked language model masks one token at a time; the sum is a pseudo-log-likelihood (Salazar 2020).

    Example: regard score runs/python < lines.py
    """
    loaded = load_model(model, device, threads, parts)
    paired = loaded.network.shape == "encoder-decoder"
    for done, rows in _input_rows(as_json):
        sides = zip(*_two_columns(rows, done)) if paired else ([row["text"] for row in rows],)
        with _progress(done, rows, "scoring") as advance:
            found = loaded.scores(*sides, progress=advance)
        _write(_scored(row if as_json else None, one, per_token) for row, one in zip(rows, found))


def _input_rows(as_json: bool) -> Iterator[tuple[int, list[Row]]]:
    """Standard input in chunks: the number of lines before, and a row with its text per line."""
    done = 0
    for lines in input_lines():
        yield done, [_json_line(line, done + i) if as_json else {"text": line} for i, line in enumerate(lines, 1)]
        done += len(lines)


@contextmanager
def _progress(done: int, rows: Sequence[Row], what: str) -> Iterator[Progress]:
    """Progress in a chunk, with `done` lines before it; an error about text N of the chunk names its line."""
    try:
        with progress(len(rows), what) as advance:
            yield advance
    except InputError as error:
        found = re.match(r"(?:text|pair) ([\d,]+)", str(error))
        if found:
            line = done + int(found[1].replace(",", ""))
            error.args = (f"line {line:,}{str(error)[found.end() :]}",)
        raise


def _json_line(line: str, number: int) -> Row:
    """A JSON object with its text under "text", or a plain line; other keys are passed through."""
    where = f"standard input line {number:,}"
    if not line.lstrip().startswith("{"):
        return {"text": line}
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}. Leave out --json?") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise InputError(f'{where} has no text under "text". Give each line one, as in {{"text": "Hello"}}.')
    if "target_prefix" in value:
        raise InputError(f'{where} has a "target_prefix", which is not read. Use --prefix, for all lines.')
    return value


def _one_line(text: str) -> str:
    """Line i of the output belongs to line i of the input, so line breaks become spaces."""
    return text.replace("\n", " ")


def _two_columns(rows: Sequence[Row], done: int) -> list[tuple[str, str]]:
    """The two texts of each row, with a tab between them; `done` is the number of lines before."""
    pairs = [row["text"].partition("\t") for row in rows]
    for number, (_, tab, _) in enumerate(pairs, done + 1):
        if not tab:
            raise InputError(
                f"line {number:,} holds one text, two are needed (standard input). Put a tab between them."
            )
    return [(first, second) for first, _, second in pairs]


def _write(lines: Iterator[str]) -> None:
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()


def _filled(filled: FilledText) -> Row:
    masks = [
        [{"text": choice.text, "tokens": choice.tokens, "probability": choice.probability} for choice in some]
        for some in filled.masks
    ]
    return {"filled": filled.text, "masks": masks}


def _choices(filled: FilledText) -> str:
    """The filled text, and below it the candidates per mask."""
    lines = [_one_line(filled.text)]
    for some in filled.masks:
        lines += ["", *(f"{choice.probability:.4f}  {_one_line(choice.text)}" for choice in some)]
    return "\n".join(lines)


def _layer(name: str | None) -> Any:
    if name is None or name == "mix":
        return name
    try:
        return int(name)
    except ValueError:
        raise InputError(f'"{name}" is no layer (--layer). Use a number, or mix for the mean of all.') from None


def _predicted(prediction: Prediction) -> tuple[str, Row]:
    """A prediction as one line of text, and for JSON."""
    from regard.decode.classify import LabelPrediction, TagPrediction

    if isinstance(prediction, LabelPrediction):
        return _one_line(prediction.label), {"label": prediction.label, "probabilities": prediction.probabilities}
    if isinstance(prediction, TagPrediction):
        return " ".join(prediction.tags), {"words": prediction.words}
    return f"{prediction.number:.6g}", {"number": prediction.number}


def _scored(row: Row | None, scored: TextScore, per_token: bool) -> str:
    if row is None:
        cells = [f"{text} {value:.4f}" for text, value in scored.tokens] if per_token else []
        return "\t".join([f"{scored.total:.4f}", *cells])
    count = len(scored.tokens)
    mean = -scored.total / max(1, count)
    facts = {"score": scored.total, "tokens": count, "perplexity": math.exp(mean) if mean < 700 else None}
    return json_text({**row, **facts, **({"log_probabilities": scored.tokens} if per_token else {})})
