"""The commands translate, fill, embed, classify and score."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from regard import messages
from regard.cli.options import (
    Beam,
    Device,
    EngineOption,
    ModelFolder,
    Parts,
    Precision,
    Row,
    Threads,
    input_lines,
    json_text,
    load_converted,
    load_model,
    progress,
    refuse_unused,
    trained_on_pairs,
)
from regard.cli.steering import (
    Alternatives,
    At,
    BeamGroups,
    Diversity,
    Epsilon,
    Fusion,
    FusionWeight,
    GlossaryFile,
    GlossaryPrefix,
    Mbr,
    MbrCandidates,
    ModelFolders,
    Must,
    MustNot,
    Regex,
    Seed,
    Steering,
    Stream,
    TopP,
    Typical,
    Weights,
    load_writer,
    read_steering,
    refuse_document_options,
    refuse_search_options,
    stream_lines,
    target_prefixes,
    write_alternatives,
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
    from regard.decode.text_generator import TextGenerator
    from regard.engines.model import ConvertedModel

Json = Annotated[bool, typer.Option("--json", help="JSON lines in and out; unknown keys pass through.")]

_RANKS = "ranks the results of a beam search. Raise --beam, or leave it out."


def translate(
    model: ModelFolders,
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
    target_language: Annotated[
        str | None,
        typer.Option(help="Language to translate into, as fr, by a model of several.", show_default="the model's"),
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
    typical: Typical = None,
    epsilon: Epsilon = None,
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
    must: Must = None,
    must_not: MustNot = None,
    glossary: GlossaryFile = None,
    glossary_prefix: GlossaryPrefix = False,
    regex: Regex = None,
    alternatives: Alternatives = None,
    at: At = None,
    weights: Weights = None,
    fusion: Fusion = None,
    fusion_weight: FusionWeight = None,
    mbr: Mbr = None,
    mbr_candidates: MbrCandidates = None,
    beam_groups: BeamGroups = None,
    diversity: Diversity = None,
    stream: Stream = False,
    as_json: Json = False,
    parts: Parts = None,
    engine: EngineOption = "auto",
    precision: Precision = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate standard input line by line; on a terminal it prompts for each line.

    What a converted model (regard convert MODEL --to ctranslate2) cannot do is translated by torch, with a note. A line
    of --json may hold "must", "must_not" (lists of terms) and "target_prefix".

    Example: regard translate runs/dates < dates.txt > iso.txt

    Example: regard translate runs/dates --must 2024 < dates.txt

    Example: regard translate runs/dates runs/small --weights 2,1 --mbr chrf < dates.txt
    """
    if mbr is None:
        refuse_unused("is for minimum Bayes risk. Add --mbr, or leave it out.", mbr_candidates=mbr_candidates)
    risk = None
    if mbr is not None:
        from regard.decode.text_generator import minimum_risk

        risk = minimum_risk(mbr, mbr_candidates)  # type: ignore[arg-type]  # checked there
    typed: Row = {
        "beam": beam, "n_best": n_best, "temperature": temperature, "top_p": top_p, "typical": typical, "seed": seed,
        "epsilon": epsilon, "must": must, "must_not": must_not, "glossary": glossary, "regex": regex, "mbr": mbr,
        "alternatives": alternatives, "at": at, "weights": weights, "fusion": fusion, "mbr_candidates": mbr_candidates,
        "beam_groups": beam_groups, "diversity": diversity, "stream": stream, "json": as_json, "alignment": alignment,
        "replace_unknown": replace_unknown, "prefix": prefix, "models": model,
    }  # fmt: skip
    refuse_search_options(typed, sampling=temperature > 0, risk=risk)
    refuse_document_options(typed, file=file, out=out, language=language, confidence=confidence)
    steering = read_steering(must, must_not, regex, glossary, prefix=glossary_prefix)
    loaded: LoadedModel | ConvertedModel | TextGenerator
    if file is not None or confidence:
        from regard.cli.document import load_for_documents, note_raw, sure, translate_file

        loaded = load_for_documents(model[0], device, threads, parts, engine, precision)
    else:
        loaded = load_writer(
            model, device, threads, parts, engine, weights=weights, fusion=fusion, fusion_weight=fusion_weight,
            alone=stream or alternatives is not None, precision=precision,
        )  # fmt: skip
    if target_language is not None:
        loaded = loaded.translating_into(target_language)
    defaults = loaded.defaults()
    if stream:
        defaults = replace(defaults, beam=1)
    if risk is not None and beam is None and temperature == 0:
        defaults = risk.sampling(replace(defaults, n_best=1))
        temperature, beam = defaults.temperature, 1
    given: Row = {
        "length_penalty": length_penalty, "max_tokens": max_tokens, "min_tokens": min_tokens, "top_p": top_p,
        "no_repeat_ngram": no_repeat_ngram, "repetition_penalty": repetition_penalty, "seed": seed,
        "coverage_penalty": coverage_penalty, "typical": typical, "epsilon": epsilon, "beam_groups": beam_groups,
        "diversity": diversity,
    }  # fmt: skip
    options = replace(
        defaults, beam=max(n_best, defaults.beam) if beam is None else beam, n_best=n_best, temperature=temperature,
        **{name: value for name, value in given.items() if value is not None},
    )  # fmt: skip
    if (n_best if temperature > 0 else options.beam) == 1 and not as_json and risk is None:  # JSON has the score
        refuse_unused(_RANKS, length_penalty=length_penalty, coverage_penalty=coverage_penalty)
    if file is not None:
        translate_file(
            cast("LoadedModel", loaded), model[0], file, out, language=language, options=options, steering=steering
        )
        return
    translations = partial(loaded.translations, alignment=alignment, replace_unknown=replace_unknown, mbr=risk)
    if confidence:
        note_raw(cast("LoadedModel", loaded))
        translations = partial(sure, cast("LoadedModel", loaded), translations)
    if sys.stdin.isatty() and not as_json:
        _interactive(translations, options, prefix, steering)
        return
    for done, rows in _input_rows(as_json, prefixes=True):
        constraints = steering.constraints(rows, done)
        seeded = replace(options, seed=options.seed + done)
        if stream:
            stream_lines(loaded, rows, seeded, constraints)
            continue
        if alternatives is not None:
            write_alternatives(loaded, rows, options, count=alternatives, at=at or "0", done=done, as_json=as_json)
            continue
        with progress(len(rows), "translating") as advance:
            found = translations(
                [row["text"] for row in rows], seeded, prefixes=target_prefixes(rows, prefix, done),
                constraints=constraints, progress=advance, first_line=done + 1,
            )  # fmt: skip
        for number, (row, answers) in enumerate(zip(rows, found), done):
            sys.stdout.write(_written(row if as_json else None, number, answers, n_best))
        sys.stdout.flush()


def _written(row: Row | None, number: int, answers: list[GeneratedText], n_best: int) -> str:
    """The output for a line: the translation, the n best in the Moses format, or a JSON object."""
    if answers[0].impossible is not None:
        if row is None:
            raise messages.IMPOSSIBLE(what=f"line {number + 1:,}", why=answers[0].impossible)
        return json_text({**row, "translation": None, "reason": answers[0].impossible}) + "\n"
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


def _interactive(
    translations: Callable[..., list[list[GeneratedText]]], options: Options, prefix: str | None, steering: Steering
) -> None:
    from regard.decode.requests import require_possible

    typer.echo("Type a line, get its translation; Ctrl-D ends.", err=True)
    while True:
        try:
            line = input("> ")
        except EOFError:
            typer.echo("", err=True)
            return
        except UnicodeDecodeError:
            typer.echo("regard: error: the line is not UTF-8. Set the terminal to UTF-8.", err=True)
            continue
        try:
            constraints = steering.constraints([{"text": line}], 0)
            for answer in translations([line], options, prefixes=[prefix or ""], constraints=constraints)[0]:
                typer.echo(_text(require_possible(answer, "the line")))
        except InputError as error:
            typer.echo(f"regard: error: {error}", err=True)


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
    precision: Precision = None,
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
    loaded, top = load_model(model, device, threads, parts, precision), top or 5
    if text is not None:
        filled = loaded.fill(text, top=top)
        typer.echo(json_text(_filled(filled)) if as_json else _choices(filled))
        return
    loaded.fill([])  # a model that cannot is refused before anything is read
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
    engine: EngineOption = "auto",
    precision: Precision = None,
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
    loaded = load_converted("embed", model, device, threads, parts, engine, precision)
    options: Row = {"pool": pool, "layer": _layer(layer), "normalised": normalised, "stateful": stateful}
    whole = [np.zeros((0, loaded.embedding_width), dtype=np.float32)]
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
    engine: EngineOption = "auto",
    precision: Precision = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Predict a label, a number, or a tag per word for each line of standard input.

    A BERT that was trained with next sentence prediction tells for each pair whether the second text is the next.
    With --json the probability of every label is printed too.

    Example: regard classify runs/reviews < reviews.txt
    """
    loaded = load_converted("classify", model, device, threads, parts, engine, precision)
    paired = pairs or trained_on_pairs(model) or loaded.classifies_pairs
    loaded.classify([])  # a model that cannot is refused before anything is read
    for done, rows in _input_rows(as_json, paired=paired):
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
    engine: EngineOption = "auto",
    precision: Precision = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the log-probability of each line of standard input, in nats; a translator reads source, tab, target.

    A masked language model masks one token at a time; the sum is a pseudo-log-likelihood (Salazar 2020).

    Example: regard score runs/python < lines.py
    """
    loaded = load_converted("score", model, device, threads, parts, engine, precision)
    paired = loaded.shape == "encoder-decoder"
    for done, rows in _input_rows(as_json, paired=paired):
        sides = zip(*_two_columns(rows, done)) if paired else ([row["text"] for row in rows],)
        with _progress(done, rows, "scoring") as advance:
            found = loaded.scores(*sides, progress=advance)
        _write(_scored(row if as_json else None, one, per_token) for row, one in zip(rows, found))


def _input_rows(
    as_json: bool, *, prefixes: bool = False, paired: bool = False
) -> Iterator[tuple[int, list[Row]]]:  # fmt: skip
    """Standard input in chunks: the number of lines before, and a row with its text per line."""
    done = 0
    for lines in input_lines():
        numbered = enumerate(lines, done + 1)
        yield (
            done,
            [
                _json_line(line, n, prefixes=prefixes, paired=paired) if as_json else {"text": line}
                for n, line in numbered
            ],
        )
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


def _json_line(line: str, number: int, *, prefixes: bool = False, paired: bool = False) -> Row:
    """A JSON object with its text under "text", or a plain line; other keys are passed through.

    Two texts are under "source" and "target", as in training, or both under "text" with a tab between them.
    """
    where = f"standard input line {number:,}"
    if not line.lstrip().startswith("{"):
        return {"text": line}
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}. Leave out --json?") from None
    given: Row = value if isinstance(value, dict) else {}
    if not isinstance(given.get("text"), str) and not (paired and "text" not in given and _is_pair(given)):
        if paired:
            like = '{"source": "Hallo", "target": "Hello"}'
            raise InputError(f'{where} has no texts under "source" and "target". Give each line two, as in {like}.')
        raise InputError(f'{where} has no text under "text". Give each line one, as in {{"text": "Hello"}}.')
    if "target_prefix" in given and not prefixes:
        raise InputError(f'{where} has a "target_prefix", which only regard translate reads. Leave it out.')
    return given


def _is_pair(row: Row) -> bool:
    return isinstance(row.get("source"), str) and isinstance(row.get("target"), str)


def _one_line(text: str) -> str:
    """Line i of the output belongs to line i of the input, so line breaks become spaces."""
    return text.replace("\n", " ")


def _two_columns(rows: Sequence[Row], done: int) -> list[tuple[str, str]]:
    """The two texts of each row, source and target or with a tab between; `done` is the number of lines before."""
    pairs = [row["text"].partition("\t") if "text" in row else (row["source"], "\t", row["target"]) for row in rows]
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
    from regard.decode.requests import LabelPrediction, TagPrediction

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
