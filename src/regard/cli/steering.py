"""Options that steer a search: terms, patterns, several models, minimum Bayes risk, diverse beams, streams."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Row, json_text, load_converted, load_model, refuse_engine, refuse_unused
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.decode.mbr import MBR
    from regard.decode.options import Options
    from regard.decode.terms import Constraints, Glossary
    from regard.decode.text_generator import TextGenerator
    from regard.engines.model import ConvertedModel

ModelFolders = Annotated[
    list[Path], typer.Argument(help="A model folder; several are an ensemble.", metavar="MODEL...", show_default=False)
]
Must = Annotated[
    list[str] | None, typer.Option(help="A term that every text must contain; can be repeated.", show_default=False)
]
MustNot = Annotated[
    list[str] | None, typer.Option(help="A term that no text may contain; can be repeated.", show_default=False)
]
GlossaryFile = Annotated[
    Path | None,
    typer.Option(help="Lines 'source term, tab, target term': used where the source has it.", show_default=False),
]
GlossaryPrefix = Annotated[
    bool, typer.Option("--glossary-prefix", help="Terms of the glossary may begin a longer word (inflections).")
]
Regex = Annotated[
    str | None, typer.Option(help="A regular expression that the whole new text must match.", show_default=False)
]
Alternatives = Annotated[
    int | None, typer.Option(help="Print so many alternatives for the word --at.", min=1, show_default=False)
]
At = Annotated[
    str | None, typer.Option(help="The number of a word, counted from 0, or the word itself.", show_default=False)
]
Weights = Annotated[
    str | None, typer.Option(help="The weights of several models, as 1,1,2.", show_default="all the same")
]
Fusion = Annotated[
    Path | None, typer.Option(help="A language model for shallow fusion, with the same vocabulary.", show_default=False)
]
FusionWeight = Annotated[float | None, typer.Option(help="The weight of --fusion.", show_default="0.2")]
Mbr = Annotated[
    str | None,
    typer.Option(help="Minimum Bayes risk by chrf or bleu: of samples, or with --beam of its hypotheses.",
                 show_default=False),
]  # fmt: skip
MbrCandidates = Annotated[int | None, typer.Option(help="Samples for --mbr.", min=1, show_default="32")]
BeamGroups = Annotated[
    int | None, typer.Option(help="Diverse beam search: groups that share the beams.", min=1, show_default="1")
]
Diversity = Annotated[
    float | None, typer.Option(help="Penalty for a token that an earlier group takes.", min=0, show_default="0.5")
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Nucleus sampling: sample from the most likely tokens with this total probability.", show_default="1"
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="0")]
Typical = Annotated[
    float | None, typer.Option(help="Locally typical sampling, with this total probability.", show_default="1")
]
Epsilon = Annotated[
    float | None, typer.Option(help="Sample from tokens that are at least so probable.", show_default="0")
]
Stream = Annotated[bool, typer.Option("--stream", help="Print the text token by token, as it is generated.")]

SAMPLES = "is for sampling. Set --temperature above 0, or leave it out."
SEARCHES = "is for a search, and a temperature above 0 samples. Set --temperature 0, or leave it out."
_STREAMED = "needs whole texts, and --stream prints token by token. Leave one of them out."
_TRANSLATED = "is for whole translations, and --alternatives prints words. Leave one of them out."
_ALONE = "takes one model. Leave it out, or name one model."


@dataclass(frozen=True)
class Steering:
    """What lines are steered by: terms and patterns for all of them."""

    must: tuple[str, ...] = ()
    must_not: tuple[str, ...] = ()
    glossary: Glossary | None = None
    regex: str | None = None

    def __bool__(self) -> bool:
        return bool(self.must or self.must_not or self.glossary or self.regex)

    def constraints(self, rows: Sequence[Row], done: int) -> list[Constraints] | None:
        """The constraints of each row, those of its own keys "must" and "must_not" included; None: there are none."""
        own = [
            {key: _terms(row, key, done + number) for key in ("must", "must_not")} for number, row in enumerate(rows, 1)
        ]
        if not self and not any(terms for some in own for terms in some.values()):
            return None
        from regard.decode.text_generator import line_constraints  # which imports torch

        found: list[Constraints] = []
        for row, some in zip(rows, own):
            one = line_constraints(
                [row["text"]], must=(*self.must, *some["must"]), must_not=(*self.must_not, *some["must_not"]),
                regex=self.regex, glossary=self.glossary,
            )  # fmt: skip
            found += one or line_constraints([row["text"]], glossary={}) or []
        return found


def read_steering(
    must: list[str] | None, must_not: list[str] | None, regex: str | None, glossary: Path | None = None, *,
    prefix: bool = False,
) -> Steering:  # fmt: skip
    """The options as one object; a glossary is read from its file."""
    from regard.decode.terms import Constraints, Glossary

    if glossary is None:
        refuse_unused("is for a glossary. Add --glossary, or leave it out.", glossary_prefix=prefix)
    terms = None if glossary is None else Glossary.read(glossary, prefix=prefix)
    Constraints(tuple(must or ()), (), tuple(must_not or ()), regex)  # refuses what is no term
    return Steering(tuple(must or ()), tuple(must_not or ()), terms, regex)


def target_prefixes(rows: Sequence[Row], prefix: str | None, done: int) -> list[str] | None:
    """What each translation begins with: the row's own "target_prefix", or that of all; None: nothing."""
    given = [row.get("target_prefix", prefix or "") for row in rows]
    for number, one in enumerate(given, done + 1):
        if not isinstance(one, str):
            raise InputError(f'standard input line {number:,} has a "target_prefix" that is no text. Give a text.')
    return given if any(given) else None


def _terms(row: Row, key: str, number: int) -> tuple[str, ...]:
    """The terms under a key of a JSON line: a list of texts, or one text."""
    value: Any = row.get(key, ())
    terms = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else (None,)
    if not all(isinstance(term, str) for term in terms):
        raise InputError(f'standard input line {number:,} has terms under "{key}" that are no texts. '
                         f'Write "{key}": ["a term"].')  # fmt: skip
    return terms


def load_writer(
    models: Sequence[Path], device: str, threads: int | None, parts: list[Path] | None, engine: str, *,
    weights: str | None = None, fusion: Path | None = None, fusion_weight: float | None = None, alone: bool = False,
    precision: str | None = None,
) -> LoadedModel | ConvertedModel | TextGenerator:  # fmt: skip
    """One model, several as an ensemble, or one fused with a language model; `alone`: one in torch."""
    if fusion is None:
        refuse_unused("is for shallow fusion. Add --fusion, or leave it out.", fusion_weight=fusion_weight)
    if len(models) == 1:
        refuse_unused("is for several models. Name more than one, or leave it out.", weights=weights)
        if fusion is None:
            if alone:
                refuse_engine(engine, "finds no alternatives and does not stream")
                return load_model(models[0], device, threads, parts, precision)
            return load_converted("translate", models[0], device, threads, parts, engine, precision)
    refuse_engine(engine, "runs one model alone")
    for path in models[1:]:
        if not path.exists() and not str(path).startswith("hf:"):
            raise InputError(f"{path} is no model folder (MODEL). Texts are lines of standard input: "
                             f'echo "TEXT" | regard translate {models[0]}, or < FILE.')  # fmt: skip
    from regard.decode.text_generator import ensemble

    loaded: list[TextGenerator] = [load_model(path, device, threads, parts, precision) for path in models]
    together = loaded[0] if len(loaded) == 1 else ensemble(loaded, _numbers(weights, len(loaded)))
    if fusion is None:
        return together
    other = load_model(fusion, device, threads, parts, precision)
    return together.fuse(other, 0.2 if fusion_weight is None else fusion_weight)


def _numbers(text: str | None, count: int) -> list[float] | None:
    if text is None:
        return None
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f'"{text}" is no list of numbers (--weights). Write them as 1,1,2.') from None
    if len(found) != count:
        raise InputError(f"{count} models and {len(found)} weights: give one weight per model (--weights).")
    return found


def refuse_search_options(given: Mapping[str, Any], *, sampling: bool, risk: MBR | None) -> None:
    """Refuse what does not go together: `given` are the options by name, as typed."""
    if sampling:
        refuse_unused(SEARCHES, **{name: given.get(name) for name in ("beam", "beam_groups", "must", "glossary")})
    elif risk is None or given["beam"] is not None:
        refuse_unused(SAMPLES, **{name: given.get(name) for name in ("top_p", "typical", "epsilon", "seed")})
    if given["beam_groups"] is None:
        refuse_unused("is for groups of beams. Add --beam-groups, or leave it out.", diversity=given["diversity"])
    else:
        steering = ("must", "must_not", "glossary", "regex")
        refuse_unused("is not honoured by groups of beams. Leave out --beam-groups, or this.",
                      **{name: given.get(name) for name in steering})  # fmt: skip
    if given["beam"] == 1:
        wants = "takes a beam search, and --beam 1 is greedy. Raise --beam, or leave it out."
        refuse_unused(wants, must=given["must"], glossary=given["glossary"], mbr=given["mbr"])
    if given["mbr"] is not None and given["beam"] is not None:
        refuse_unused("counts samples, and with --beam the candidates are its hypotheses. Leave it out.",
                      mbr_candidates=given["mbr_candidates"])  # fmt: skip
    if given["stream"]:
        whole = ("must", "glossary", "mbr", "alternatives", "alignment", "replace_unknown", "json", "beam_groups",
                 "prefix")  # fmt: skip
        refuse_unused(_STREAMED, **{name: given.get(name) for name in whole})
        refuse_unused(_STREAMED, beam=given["beam"] if given["beam"] not in (None, 1) else None,
                      n_best=given["n_best"] if given["n_best"] != 1 else None)  # fmt: skip
    _refuse_with_alternatives(given)


def _refuse_with_alternatives(given: Mapping[str, Any]) -> None:
    if given["alternatives"] is None:
        refuse_unused("is the word that --alternatives are for. Add --alternatives, or leave it out.", at=given["at"])
        return
    if given["at"] is None:
        raise InputError("--alternatives are for a word. Name it by its number: --at 0 is the first.")
    names = ("must", "must_not", "glossary", "regex", "mbr", "alignment", "replace_unknown", "beam_groups",
             "prefix")  # fmt: skip
    refuse_unused(_TRANSLATED, **{name: given.get(name) for name in names})
    refuse_unused(_TRANSLATED, n_best=given["n_best"] if given["n_best"] != 1 else None)
    refuse_unused(_ALONE, fusion=given["fusion"], weights=given["weights"])
    if len(given["models"]) > 1:
        raise InputError("--alternatives takes one model (MODEL). Name one.")
    if given["temperature"] > 0:
        raise InputError("--alternatives complete a text by a search. Leave out --temperature.")


def stream_lines(
    model: ConvertedModel | TextGenerator, rows: Sequence[Row], options: Options, constraints: list[Constraints] | None
) -> None:
    """Print the translation of each line token by token."""
    from regard.decode.text_generator import TextGenerator

    assert isinstance(model, TextGenerator)
    for number, row in enumerate(rows):
        only = None if constraints is None else constraints[number]
        pieces = model.stream(
            row["text"], options=replace(options, seed=options.seed + number),
            must_not=only.must_not if only else (), regex=only.regex if only else None,
        )  # fmt: skip
        for piece in pieces:
            sys.stdout.write(piece.replace("\n", " "))
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()


def write_alternatives(
    model: ConvertedModel | TextGenerator, rows: Sequence[Row], options: Options, *, count: int, at: str, done: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Print the alternatives for a word of each line's translation: probability, word and text, or as JSON."""
    from regard.api import LoadedModel

    assert isinstance(model, LoadedModel)
    word = int(at) if at.isdecimal() else at
    for number, row in enumerate(rows, done + 1):
        (best, *_), *_ = model.translations([row["text"]], options, first_line=number)
        try:
            found = model.alternatives(row["text"], best.text, word, count, options=options)
        except InputError as error:
            raise InputError(f"line {number:,}: {error}") from None
        if as_json:
            several = [{"word": one.word, "probability": one.probability, "translation": one.text} for one in found]
            facts = {"translation": best.text, "score": best.score, "alternatives": several}
            sys.stdout.write(json_text({**row, **facts}) + "\n")
        else:
            lines = (f"{one.probability:.4f}\t{one.word}\t{' '.join(one.text.splitlines())}\n" for one in found)
            sys.stdout.writelines(lines)
        sys.stdout.flush()


_EVERY = "is for lines: not every sentence of --file can be so. Use --glossary or --must-not, or leave it out."
_LINE_TERMS = ("must", "must_not", "glossary", "regex")
_ONE_MODEL = ("mbr", "alternatives", "at", "weights", "fusion", "beam_groups",
              "diversity", "stream")  # fmt: skip
_LINES = ("prefix", "alignment", "replace_unknown", "json")


def refuse_document_options(
    given: Mapping[str, Any], *, file: Path | None, out: Path | None, language: str | None, confidence: bool
) -> None:
    """Refuse what does not go together with a document, or with confidences: `given` are the options, as typed."""
    several = len(given["models"]) > 1 or None
    if file is None:
        refuse_unused("is for a document. Name one with --file, or leave it out.", out=out, language=language)
    else:
        refuse_unused(
            "is for lines, and --file names a document. Leave it out.", confidence=confidence,
            n_best=given["n_best"] if given["n_best"] > 1 else None, **{name: given[name] for name in _LINES},
        )  # fmt: skip
        refuse_unused(_EVERY, must=given["must"], regex=given["regex"])
    if confidence and (given["n_best"] > 1 or given["temperature"] > 0):
        refuse_unused(
            "is for the best translation of a search. Leave it out, or leave out --n-best and --temperature.",
            confidence=confidence,
        )
    if file is not None or confidence:
        what = "--file" if file is not None else "--confidence"
        names = _ONE_MODEL if file is not None else (*_LINE_TERMS, *_ONE_MODEL)
        refuse_unused(f"does not go together with {what}. Leave one of them out.",
                      **{name: given[name] for name in names})  # fmt: skip
        if several:
            raise InputError(f"{what} takes one model (MODEL). Name one.")
