"""The commands fill, embed, classify and score."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
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
    own_parts,
    progress,
    two_columns,
)
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.decode.classify import Prediction
    from regard.decode.fill import Fill, FilledText
    from regard.decode.score import TextScore


Json = Annotated[bool, typer.Option("--json", help="JSON lines in and out; unknown keys pass through.")]
Row = dict[str, Any]


def fill(
    model: ModelFolder,
    text: Annotated[
        str | None, typer.Argument(help="A text with [MASK] for each missing token.", show_default="standard input")
    ] = None,
    top: Annotated[int, typer.Option(help="Candidates to print per mask.", min=1)] = 5,
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
    loaded = load_model(model, device, threads, parts)
    if text is not None:
        filled = loaded.fill(text, top=top)
        typer.echo(json_text(_filled(filled)) if as_json else _choices(filled))
        return
    for rows in _chunks(as_json):
        with progress(len(rows), "filling") as advance:
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
    as_json: Json = False,
    parts: Parts = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write one vector per line of standard input, as a numpy .npy file.

    With --tokens an .npz file: "vectors" and "tokens" of all lines; line i has those from starts[i] to starts[i + 1].

    Example: regard embed runs/bert < sentences.txt > vectors.npy
    """
    import numpy as np

    if sys.stdout.isatty() and not as_json:
        raise InputError("vectors cannot be printed to a terminal (regard embed). Add > vectors.npy, or --json.")
    loaded = load_model(model, device, threads, parts)
    chosen = _layer(layer)
    whole = [np.zeros((0, loaded.description.vector_width), dtype=np.float32)]
    names: list[str] = []
    starts = [0]
    for rows in _chunks(as_json):
        texts = [row["text"] for row in rows]
        with progress(len(texts), "embedding") as advance:
            if tokens:
                of_tokens = loaded.embed(
                    texts, pool=pool, layer=chosen, normalised=normalised, tokens=True, progress=advance
                )
                vectors = [one for _, one in of_tokens]
            else:
                of_tokens = []
                vectors = [
                    *loaded.embed(texts, pool=pool, layer=chosen, normalised=normalised, progress=advance)
                ]  # fmt: skip
        if as_json:
            facts: list[Row] = [{"tokens": names_of, "vectors": one.tolist()} for names_of, one in of_tokens]
            facts = facts or [{"vector": one.tolist()} for one in vectors]
            _write(json_text({**row, **fact}) for row, fact in zip(rows, facts))
        else:
            whole += vectors if tokens else [np.stack(vectors)]
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

    With --json the probability of every label is printed too.

    Example: regard classify runs/reviews < reviews.txt
    """
    loaded = load_model(model, device, threads, parts)
    paired = pairs or trained_on_pairs(model, parts)
    done = 0
    for rows in _chunks(as_json):
        texts = [
            two_columns(row["text"], done + number) if paired else row["text"] for number, row in enumerate(rows, 1)
        ]
        with progress(len(texts), "classifying") as advance:
            found = loaded.classify(texts, progress=advance)
        _write(
            json_text({**row, **_prediction_json(one)}) if as_json else _prediction_line(one)
            for row, one in zip(rows, found)
        )  # fmt: skip
        done += len(rows)


def score(
    model: ModelFolder,
    per_token: Annotated[
        bool,
        typer.Option(
            "--per-token", help="Print the log-probability of each token too, as 'token number', between tabs."
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
    done = 0
    for rows in _chunks(as_json):
        texts = [row["text"] for row in rows]
        columns = [two_columns(text, done + number) for number, text in enumerate(texts, 1)] if paired else []
        with progress(len(texts), "scoring") as advance:
            sides = ([one for one, _ in columns], [two for _, two in columns]) if paired else (texts, None)
            found = loaded.scores(*sides, progress=advance)
        _write(_scored(row if as_json else None, one, per_token) for row, one in zip(rows, found))
        done += len(rows)


def trained_on_pairs(folder: Path, parts: list[Path] | None) -> bool:
    """Whether the recipe of a model trains on labelled pairs of texts."""
    recipe = folder / "recipe.toml"
    if not recipe.is_file():
        return False
    from regard.config.recipe import read_recipe

    return len(read_recipe(recipe, parts=own_parts(parts)).text.fields or ()) > 2


def _chunks(as_json: bool) -> Iterator[list[Row]]:
    """Standard input as rows with their text."""
    for lines in input_lines():
        yield [json_line(line) for line in lines] if as_json else [{"text": line} for line in lines]


def _write(lines: Iterator[str]) -> None:
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()


def _one_line(text: str) -> str:
    """Line i of the output belongs to line i of the input, so line breaks become spaces."""
    return text.replace("\n", " ")


def _filled(filled: FilledText) -> Row:
    return {"filled": filled.text, "masks": [[_choice(choice) for choice in some] for some in filled.masks]}


def _choice(choice: Fill) -> Row:
    return {"text": choice.text, "tokens": choice.tokens, "probability": choice.probability}


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


def _prediction_json(prediction: Prediction) -> Row:
    """A prediction for JSON."""
    from regard.decode.classify import LabelPrediction, TagPrediction

    if isinstance(prediction, LabelPrediction):
        return {"label": prediction.label, "probabilities": prediction.probabilities}
    return {"words": prediction.words} if isinstance(prediction, TagPrediction) else {"number": prediction.number}


def _prediction_line(prediction: Prediction) -> str:
    """A prediction as one line of text."""
    from regard.decode.classify import LabelPrediction, TagPrediction

    if isinstance(prediction, LabelPrediction):
        return _one_line(prediction.label)
    return " ".join(prediction.tags) if isinstance(prediction, TagPrediction) else f"{prediction.number:.6g}"


def _scored(row: Row | None, scored: TextScore, per_token: bool) -> str:
    if row is None:
        cells = [f"{text} {value:.4f}" for text, value in scored.tokens] if per_token else []
        return "\t".join([f"{scored.total:.4f}", *cells])
    count = len(scored.tokens)
    mean = -scored.total / max(1, count)
    facts = {"score": scored.total, "tokens": count, "perplexity": math.exp(mean) if mean < 700 else math.inf}
    return json_text({**row, **facts, **({"log_probabilities": scored.tokens} if per_token else {})})
