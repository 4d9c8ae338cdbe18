"""The proof that a converted model answers as torch does: both answer sample lines, and the equal ones are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora.languages import language_lines
from regard.decode.classify import classify, predicts_next_sentence
from regard.decode.embed import embed
from regard.decode.generate import continue_prompts, translate
from regard.decode.options import Options, default_options
from regard.decode.requests import LabelPrediction, NumberPrediction, Prediction, Text, Vectors, add_special_tokens
from regard.engines.folder import PROGRAMS, PROOF, Precision, Proof, engine_version
from regard.engines.head import unit
from regard.engines.model import ConvertedModel
from regard.engines.open import open_converted
from regard.engines.search import Searcher, refused
from regard.errors import InputError, RunFailed
from regard.metrics import quality
from regard.progress import Progress, waiting
from regard.store.files import json_bytes
from regard.store.loading import MAX_TEXT_LENGTH, TRAINED_LENGTH, Loaded

_LINES = 200  # of the sample
_PATIENCES = 1.0, 1.2, 1.5, 2.0  # of CTranslate2's beam search, that are tried
_LEAST_SHARE = 0.95  # of equal lines in float32, where only ties may differ
_VECTORS_DIFFER = 1e-4  # at most, in float32, relative to the vector's largest number
_COSINE = 0.99  # at least, in int8
_NUMBERS_DIFFER = 1e-2  # of regression
_CHARACTERS, _PROMPT_WORDS, _NEW_TOKENS = 200, 8, 32  # of a prompt, and to generate
_MOST_TOKENS = 512  # of a line of the sample


@dataclass(frozen=True)
class Sample:
    """Lines to compare both engines on, with reference translations if there are any."""

    lines: tuple[str, ...]
    references: tuple[str, ...] | None = None

    @classmethod
    def of(cls, lines: Sequence[str], references: Sequence[str] | None = None) -> Sample:
        """At most 200 of the lines, evenly spread; empty lines prove nothing."""
        kept = [index for index in range(len(lines)) if lines[index].strip()]
        chosen = kept[:: max(1, -(-len(kept) // _LINES))]
        return cls(
            tuple(lines[index] for index in chosen),
            None if references is None else tuple(references[index] for index in chosen),
        )

    @classmethod
    def embedded(cls) -> Sample:
        """Short texts in many languages, for a model whose own text is not here."""
        return cls.of([line.text for line in language_lines("valid", lines=_LINES)])


def write_proof(loaded: Loaded, folder: Path, weights: str, precision: Precision, sample: Sample) -> Proof:
    """Answer the sample in a converted model and in torch, and write what came out; refuse a float32 that errs."""
    engine = open_converted(folder, _no_torch)
    runtime = engine.converted.runtime
    lines = _fitting(engine, sample)
    proof = Proof(weights, runtime, engine_version(runtime) or "", precision, {}, len(lines.lines), 0)
    with waiting(2 * len(lines.lines), "checking") as advance:
        proof = _PROOFS[engine.shape](loaded, engine, lines, proof, advance)
    if precision == "float32" and proof.share < _LEAST_SHARE:
        worst = "" if proof.difference is None else f" (numbers differ by up to {proof.difference:g})"
        raise RunFailed(f"{PROGRAMS[runtime].name} answers only {proof.equal_lines:,} of {proof.lines:,} lines as "
                        f"torch does{worst}, so the model is not converted. Use --engine torch.")  # fmt: skip
    (folder / PROOF).write_bytes(json_bytes(asdict(proof)))
    return proof


def _fitting(engine: ConvertedModel, sample: Sample) -> Sample:
    """The sample for a model: for a language model the beginnings of texts; none that has more tokens than it reads."""
    if engine.shape == "encoder-decoder":
        return sample
    most = engine.converted.written_positions or engine.max_positions or _MOST_TOKENS
    most = min(most, _MOST_TOKENS) - (_NEW_TOKENS if engine.shape == "decoder" else 0)
    texts = [" ".join(line[:_CHARACTERS].split(" ")[:_PROMPT_WORDS]) if engine.shape == "decoder" else line
             for line in sample.lines]  # fmt: skip
    rows = (add_special_tokens(engine, engine.tokenizer, ids) for ids in engine.tokenizer.encode_batch(texts))
    kept = Sample(tuple(text for text, row in zip(texts, rows) if len(row) <= most))
    if not kept.lines:
        raise InputError("every line of the sample is too long for this model. Give shorter lines: --sample FILE.")
    return kept


def _as_translator(loaded: Loaded, engine: ConvertedModel, sample: Sample, proof: Proof, advance: Progress) -> Proof:
    """Translate the sample with both engines and count the equal lines."""
    options, tokenizers = _options(loaded), (loaded.tokenizers[0], loaded.tokenizers[1] or loaded.tokenizers[0])
    lines = list(sample.lines)
    assert isinstance(engine, Searcher)
    engine.patience = _patience(engine, lines, replace(options, n_best=1, early_stopping="never"))
    options = _honoured(options, engine)
    theirs = [found[0].text for found in engine.translations(lines, options, progress=advance)]
    trained = loaded.config.get(TRAINED_LENGTH)
    found = translate(loaded.network, tokenizers, lines, options, progress=advance, trained_length=trained)
    ours = [one[0].text for one in found]
    bleu = torch_bleu = None
    if sample.references is not None:
        bleu, torch_bleu = (round(quality(texts, sample.references).bleu, 2) for texts in (theirs, ours))
    kept = {name: getattr(options, name) for name in ("beam", "length_penalty", "normalization", "early_stopping")}
    return replace(proof, options=kept, equal_lines=_equal(ours, theirs), bleu=bleu, torch_bleu=torch_bleu,
                   patience=engine.patience)  # fmt: skip


def _as_language_model(
    loaded: Loaded, engine: ConvertedModel, sample: Sample, proof: Proof, advance: Progress
) -> Proof:  # fmt: skip
    """Continue the sample greedily in both engines and count the equal texts."""
    options, lines = Options(max_tokens=_NEW_TOKENS), list(sample.lines)
    theirs = [found[0].text for found in engine.continuations(lines, options, progress=advance)]
    found = continue_prompts(loaded.network, loaded.tokenizers[0], lines, options, progress=advance)
    equal = _equal([one[0].text for one in found], theirs)
    return replace(proof, options={"beam": 1, "max_tokens": _NEW_TOKENS}, equal_lines=equal)


def _as_encoder(loaded: Loaded, engine: ConvertedModel, sample: Sample, proof: Proof, advance: Progress) -> Proof:
    """Embed the sample in both engines, or predict labels, and count the equal answers.

    Vectors are equal in float32 if no number differs by more than 0.0001 of the vector's largest, else if their cosine
    is at least 0.99.
    """
    network, tokenizer, lines = loaded.network, loaded.tokenizers[0], list(sample.lines)
    theirs = cast(Vectors, engine.embed(lines, progress=advance))
    ours = embed(network, tokenizer, lines, max_length=loaded.config.get(MAX_TEXT_LENGTH), progress=advance)
    differences = np.abs(ours - theirs).max(-1) / np.maximum(np.abs(ours).max(-1), 1e-12)
    same = differences <= _VECTORS_DIFFER if proof.precision == "float32" else _cosines(ours, theirs) >= _COSINE
    if "classify" in engine.verbs:
        predicts_pairs = predicts_next_sentence(network.description)
        texts: list[Text] = [*zip(lines, [*lines[1:], *lines[:1]])] if predicts_pairs else [*lines]
        pairs = zip(classify(network, tokenizer, texts), engine.classify(texts))
        same = same & np.array([_alike(one, other) for one, other in pairs])
    worst = float(f"{differences.max():.1e}")
    return replace(proof, equal_lines=int(same.sum()), difference=worst)


_PROOFS = {"encoder-decoder": _as_translator, "decoder": _as_language_model, "encoder": _as_encoder}


def _alike(ours: Prediction, theirs: Prediction) -> bool:
    """Whether two predictions say the same; numbers up to rounding."""
    if isinstance(ours, LabelPrediction) and isinstance(theirs, LabelPrediction):
        return ours.label == theirs.label
    if isinstance(ours, NumberPrediction) and isinstance(theirs, NumberPrediction):
        return abs(ours.number - theirs.number) <= _NUMBERS_DIFFER * max(1.0, abs(ours.number))
    return ours == theirs


def _cosines(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (unit(ours) * unit(theirs)).sum(-1)
    return found


def _equal(ours: Sequence[str], theirs: Sequence[str]) -> int:
    return sum(one == other for one, other in zip(ours, theirs))


def _patience(engine: Searcher, lines: Sequence[str], options: Options) -> float | None:
    """The least patience with which the engine finds the sample's best hypotheses; None: it must search exactly."""
    engine.patience = None
    exact = [found[0].text for found in engine.translations(lines, options)]
    for patience in _PATIENCES:
        engine.patience = patience
        if [found[0].text for found in engine.translations(lines, options)] == exact:
            return patience
    return None


def _honoured(options: Options, engine: Searcher) -> Options:
    """The options, or those of an exact search where the engine needs one."""
    exact = options.early_stopping is False and engine.patience is None
    return replace(options, early_stopping="never") if exact else options


def _options(loaded: Loaded) -> Options:
    """The model's defaults, without what the engine leaves to torch."""
    ours = loaded.config.get("model_type", "regard") == "regard"
    options = default_options(loaded.generation_config, ours=ours, translates=True)
    if refused(options) is None:
        return options
    return Options(
        beam=options.beam, length_penalty=options.length_penalty, normalization=options.normalization,
        max_tokens=options.max_tokens,
    )  # fmt: skip


def _no_torch() -> Any:
    raise RunFailed("a line of the sample is too long for the engine. Give shorter lines: --sample FILE.")
