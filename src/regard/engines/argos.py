"""Packages for Argos Translate and LibreTranslate (.argosmodel): a CTranslate2 model with a SentencePiece model."""

from __future__ import annotations

import io
import json
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import translate
from regard.decode.inputs import capabilities
from regard.decode.options import Options
from regard.engines.convert import Sample
from regard.engines.folder import Precision
from regard.engines.spec import refusal, spec_of
from regard.errors import InputError, RunFailed
from regard.extras import extra
from regard.store.files import json_bytes, write_file
from regard.store.loading import Loaded
from regard.version import __version__

_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[A-Za-z]{2,8})*")
_UNIGRAM, _IDENTITY = 1, "identity"
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_MOST_TOKENS = 200  # of an answer of the sample
_LEAST_SHARE = 0.95  # of equal lines, where only ties may differ
_ADVICE = 'Train with text.tokenizer = { kind = "sentencepiece", size = 8000 }.'


@dataclass(frozen=True)
class Package:
    """What the metadata of a package says: the codes and the names of the two languages."""

    source: str
    target: str
    source_name: str
    target_name: str
    version: str = "1.0"

    @classmethod
    def of(cls, languages: str) -> Package:
        """The package of "de-en"; names are in English."""
        source, dash, target = languages.partition("-")
        if not dash or not _LANGUAGE.fullmatch(source) or not _LANGUAGE.fullmatch(target):
            raise InputError(f'"{languages}" are not two codes of languages (--languages). Write --languages de-en.')
        return cls(source, target, _name(source), _name(target))

    @property
    def folder(self) -> str:
        """The name of the folder inside the package, as Argos Translate's own packages have it."""
        return f"translate-{self.source}_{self.target}-{self.version.replace('.', '_')}"

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "package_version": self.version, "argos_version": "1.9", "from_code": self.source,
            "from_name": self.source_name, "to_code": self.target, "to_name": self.target_name,
        }  # fmt: skip


def write_argos(
    loaded: Loaded, target: Path, package: Package, precision: Precision, sample: Sample
) -> tuple[int, int]:
    """Write a package, and return how many of the sample's lines it answers as torch does, and how many there are."""
    if target.exists():
        raise InputError(f"{target} exists already. Name a file that does not.")
    if target.suffix != ".argosmodel":
        raise InputError(
            f"{target} does not end in .argosmodel, which Argos Translate needs. Name it {target.stem}.argosmodel."
        )
    network, (tokenizer, second) = loaded.network, loaded.tokenizers
    verb = capabilities(network.description, tokenizer)[0]
    if verb != "translate":
        raise refusal(f"a model made to {verb}")
    if second is not None:
        raise InputError("Argos Translate has one tokenizer for both languages, this model has two. Train with "
                         "text.tokenizer.joint = true.")  # fmt: skip
    pieces = sentencepiece_model(tokenizer)
    names = [name for name, _ in _vocabulary(tokenizer)]
    names += [f"<unused{number}>" for number in range(len(names), network.vocabulary)]
    spec = spec_of(network, (names, names))
    spec.config.decoder_start_token = spec.config.bos_token = names[tokenizer.bos]
    spec.config.eos_token, spec.config.unk_token = names[tokenizer.eos], names[tokenizer.unk]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    with tempfile.TemporaryDirectory(prefix="regard-") as temporary:
        model = Path(temporary) / "model"
        model.mkdir()
        spec.save(str(model))
        (model.parent / "sentencepiece.model").write_bytes(pieces)
        equal, lines = _proof(loaded, model.parent, sample)
        if precision == "float32" and equal < _LEAST_SHARE * lines:
            raise RunFailed(f"the package answers only {equal:,} of {lines:,} lines as torch does and is not written. "
                            "Serve the model with regard serve.")  # fmt: skip
        write_file(target, _archive(model.parent, package, equal, lines))
    return equal, lines


def sentencepiece_model(tokenizer: Tokenizer) -> bytes:
    """The SentencePiece model that cuts every text as this tokenizer does; an error if there is none."""
    with extra("published", "a package for Argos Translate"):
        from sentencepiece import sentencepiece_model_pb2

    plain = json.loads(tokenizer.to_json())
    if plain["model"]["type"] != "Unigram" or (plain["pre_tokenizer"] or {}).get("type") != "Metaspace":
        raise InputError(
            f"Argos Translate reads SentencePiece only, and this tokenizer is none (text.tokenizer). {_ADVICE}"
        )
    steps = (plain["normalizer"] or {}).get("normalizers", [])
    if any(step["type"] != "Replace" for step in steps):
        raise InputError(f"this tokenizer changes characters in ways that are not written (normalizer). {_ADVICE}")
    special = {token["id"] for token in plain["added_tokens"] if token["special"]}
    proto = sentencepiece_model_pb2.ModelProto()
    for number, (text, score) in enumerate(_vocabulary(tokenizer)):
        kind = _UNKNOWN if number == tokenizer.unk else _CONTROL if number in special else _NORMAL
        proto.pieces.add(piece=text, score=score, type=kind)
    trainer = proto.trainer_spec
    trainer.model_type, trainer.vocab_size = _UNIGRAM, len(proto.pieces)
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = (
        tokenizer.unk,
        tokenizer.bos,
        tokenizer.eos,
        tokenizer.pad,
    )
    for name, number in (
        ("unk", tokenizer.unk),
        ("bos", tokenizer.bos),
        ("eos", tokenizer.eos),
        ("pad", tokenizer.pad),
    ):
        setattr(trainer, f"{name}_piece", proto.pieces[number].piece)
    spec = proto.normalizer_spec
    spec.name, spec.add_dummy_prefix, spec.remove_extra_whitespaces, spec.escape_whitespaces = (
        _IDENTITY,
        True,
        True,
        True,
    )
    return bytes(proto.SerializeToString(deterministic=True))


def _vocabulary(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    return [(text, score) for text, score in json.loads(tokenizer.to_json())["model"]["vocab"]]


def _proof(loaded: Loaded, folder: Path, sample: Sample) -> tuple[int, int]:
    """Translate the sample with the package and with torch, greedily, so that no rule of a beam search differs."""
    import ctranslate2
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    engine = ctranslate2.Translator(str(folder / "model"))
    lines = list(sample.lines)
    found = engine.translate_batch(
        processor.encode(lines, out_type=str), beam_size=1, max_decoding_length=_MOST_TOKENS, min_decoding_length=0
    )
    theirs = [processor.decode_pieces(one.hypotheses[0]).replace("_", " ").strip() for one in found]
    both = loaded.tokenizers[0], loaded.tokenizers[0]
    ours = translate(loaded.network, both, lines, Options(beam=1, max_tokens=_MOST_TOKENS))
    return sum(one[0].text.replace("_", " ").strip() == other for one, other in zip(ours, theirs)), len(lines)


def _archive(folder: Path, package: Package, equal: int, lines: int) -> bytes:
    """The zip file: one folder with the metadata, the model, its SentencePiece and a README."""
    readme = (
        f"# {package.source_name} to {package.target_name}\n\nTrained with regard {__version__}. Without a beam, "
        f"it answers {equal:,} of {lines:,} sample lines as the model that was trained.\n"
    )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{package.folder}/metadata.json", json_bytes(package.metadata))
        archive.writestr(f"{package.folder}/README.md", readme)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, f"{package.folder}/{path.relative_to(folder)}")
    return content.getvalue()


def _name(code: str) -> str:
    """The English name of a language, where Babel is installed; else its code."""
    try:
        from babel import Locale, UnknownLocaleError
    except ModuleNotFoundError:
        return code
    try:
        return Locale.parse(code, sep="-").get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code
