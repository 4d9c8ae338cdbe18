"""Conversion of a translator to CTranslate2, and the proof that it then answers as torch does."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from regard.data.corpora.languages import language_lines
from regard.decode.generate import translate
from regard.decode.inputs import capabilities
from regard.decode.options import Options, default_options
from regard.engines.folder import (
    OURS,
    PRECISIONS,
    PROOF,
    Converted,
    Precision,
    Proof,
    engine_version,
    read_converted,
    weights_digest,
)
from regard.engines.spec import max_positions, refusal, spec_of
from regard.engines.translator import Translator, refused
from regard.errors import InputError, RunFailed
from regard.metrics import quality
from regard.progress import waiting
from regard.schema import to_dict
from regard.store.files import disk_errors, json_bytes
from regard.store.generation_config import to_regard
from regard.store.loading import TRAINED_LENGTH, Loaded
from regard.store.manifest import write_manifest

_LINES = 200  # of the sample
_PATIENCES = 1.0, 1.2, 1.5, 2.0  # of CTranslate2's beam search, that are tried
_LEAST_SHARE = 0.95  # of equal lines in float32, where only ties may differ


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


def convert_to_ctranslate2(
    loaded: Loaded, source: Path, target: Path, precision: Precision, sample: Sample
) -> Proof:  # fmt: skip
    """Write a model as a CTranslate2 folder with its tokenizers, its default options and the proof."""
    if precision not in PRECISIONS:
        raise InputError(f'no precision is called "{precision}" (--precision). Use {" or ".join(PRECISIONS)}.')
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and read_converted(target) is None)):
        raise InputError(f"{target} exists already. Name a folder that does not.")
    verb = capabilities(loaded.network.description, loaded.tokenizers[0])[0]
    if verb != "translate":
        raise refusal(f"a model made to {verb}")
    spec = _spec(loaded, precision)
    unfinished = target.with_name(f".{target.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with disk_errors(target, 0):
            unfinished.mkdir(parents=True)
            spec.save(str(unfinished))
            _write_ours(unfinished, loaded)
        write_manifest(unfinished)
        proof = _proof(loaded, unfinished, weights_digest(source), precision, sample)
        with disk_errors(target, 0):
            (unfinished / PROOF).write_bytes(json_bytes(asdict(proof)))
        write_manifest(unfinished)
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return proof


def _spec(loaded: Loaded, precision: Precision) -> Any:
    """CTranslate2's specification, complete and quantized. Tokens are named by their ids: text is our tokenizers'."""
    network, (source, target) = loaded.network, loaded.tokenizers
    sizes = network.source_vocabulary or network.vocabulary, network.vocabulary
    names = [str(token) for token in range(max(sizes))]
    spec = spec_of(network, (names[: sizes[0]], names[: sizes[1]]))
    special = target or source
    spec.config.decoder_start_token = spec.config.bos_token = str(special.bos)
    spec.config.eos_token = spec.config.unk_token = str(special.eos)
    model = network.description
    converted = Converted(
        precision, network.vocabulary, max_positions=model.embed.max_positions, written_positions=max_positions(model),
        trained_length=loaded.config.get(TRAINED_LENGTH), published=loaded.config.get("model_type") != "regard",
    )  # fmt: skip
    spec.config.add_attribute(OURS, asdict(converted))
    both = [tokenizer and tokenizer.special_tokens for tokenizer in loaded.tokenizers]
    if any(both):
        spec.config.add_attribute("special_tokens", [to_dict(special) if special else None for special in both])
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    return spec


def _write_ours(folder: Path, loaded: Loaded) -> None:
    published = loaded.config.get("model_type") != "regard"
    settings = to_regard(loaded.generation_config) if published else loaded.generation_config
    (folder / "generation_config.json").write_bytes(json_bytes(settings))
    for name, tokenizer in zip(("tokenizer.json", "target_tokenizer.json"), loaded.tokenizers):
        if tokenizer is not None:
            (folder / name).write_bytes(tokenizer.to_json().encode())


def _proof(loaded: Loaded, folder: Path, weights: str, precision: Precision, sample: Sample) -> Proof:
    """Translate the sample with both engines and count the equal lines."""
    options, tokenizers = _options(loaded), (loaded.tokenizers[0], loaded.tokenizers[1] or loaded.tokenizers[0])
    lines = list(sample.lines)
    with waiting(2 * len(lines), "checking") as advance:
        engine = Translator(folder, _no_torch)
        engine.patience = _patience(engine, lines, replace(options, n_best=1, early_stopping="never"))
        options = _honoured(options, engine)
        theirs = [found[0].text for found in engine.translations(lines, options, progress=advance)]
        trained = loaded.config.get(TRAINED_LENGTH)
        found = translate(loaded.network, tokenizers, lines, options, progress=advance, trained_length=trained)
    ours = [one[0].text for one in found]
    equal = sum(one == other for one, other in zip(ours, theirs))
    bleu = torch_bleu = None
    if sample.references is not None:
        bleu, torch_bleu = (round(quality(texts, sample.references).bleu, 2) for texts in (theirs, ours))
    kept = {name: getattr(options, name) for name in ("beam", "length_penalty", "normalization", "early_stopping")}
    proof = Proof(weights, "ctranslate2", engine_version() or "", precision, kept, len(lines), equal, bleu,
                  torch_bleu, engine.patience)  # fmt: skip
    if precision == "float32" and proof.share < _LEAST_SHARE:
        raise RunFailed(f"CTranslate2 answers only {equal:,} of {len(lines):,} lines as torch does, so the model is "
                        "not converted. Use --engine torch.")  # fmt: skip
    return proof


def _patience(engine: Translator, lines: Sequence[str], options: Options) -> float | None:
    """The least patience with which the engine finds the sample's best hypotheses; None: it must search exactly."""
    engine.patience = None
    exact = [found[0].text for found in engine.translations(lines, options)]
    for patience in _PATIENCES:
        engine.patience = patience
        if [found[0].text for found in engine.translations(lines, options)] == exact:
            return patience
    return None


def _honoured(options: Options, engine: Translator) -> Options:
    """The options, or those of an exact search where the engine needs one."""
    exact = options.early_stopping is False and engine.patience is None
    return replace(options, early_stopping="never") if exact else options


def _options(loaded: Loaded) -> Options:
    """The model's defaults, without what the engine leaves to torch."""
    ours = loaded.config.get("model_type", "regard") == "regard"
    options = default_options(loaded.generation_config, ours=ours, translates=True)
    if refused(options, None) is None:
        return options
    return Options(
        beam=options.beam, length_penalty=options.length_penalty, normalization=options.normalization,
        max_tokens=options.max_tokens,
    )  # fmt: skip


def _no_torch() -> Any:
    raise RunFailed("a line of the sample is too long for CTranslate2. Give shorter lines: --sample FILE.")
