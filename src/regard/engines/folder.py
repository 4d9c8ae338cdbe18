"""Folders of converted models: config.json, tokenizers, default options, and the proof that they answer as torch.

Nothing here imports torch, so that a converted model starts fast.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from regard.data.tokenize.encode import Reads
from regard.engines.head import Head
from regard.errors import DamagedFile, InputError, Note
from regard.schema import from_dict
from regard.store.files import read_json

Engine = Literal["auto", "torch", "ctranslate2", "onnxruntime"]
"""What runs a model: torch, a runtime, or the converted model if there is one that is proven to answer alike."""

Runtime = Literal["ctranslate2", "onnxruntime"]
"""A program that runs converted models."""

Precision = Literal["float32", "int8"]
ENGINES: tuple[Engine, ...] = ("auto", "torch", "ctranslate2", "onnxruntime")
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
CONVERTED_PRECISION = (
    "a converted model has the precision of its conversion (--precision). Leave out --precision, or use --engine torch."
)
PROOF, OURS = "proof.json", "regard"


@dataclass(frozen=True)
class Program:
    """What people call a runtime, what installs it and converts to it; the runtime's name is that of its package."""

    name: str
    extra: str
    target: str  # of regard convert --to
    verbs: tuple[str, ...]  # the commands that it can run at all

    @property
    def remedy(self) -> str:
        """What to do where it is not installed."""
        return f"Install it: pip install 'regard[{self.extra}]'."


PROGRAMS: dict[Runtime, Program] = {
    "ctranslate2": Program(
        "CTranslate2", "engines", "ctranslate2", ("translate", "generate", "score", "embed", "classify")
    ),
    "onnxruntime": Program("ONNX Runtime", "onnx", "onnx", ("embed", "classify")),
}
"""The runtimes, in the order in which `auto` looks for converted models, those in float32 first."""


@dataclass(frozen=True)
class Converted:
    """What config.json of a converted model says for us, under the key `regard`."""

    precision: Precision
    vocabulary: int
    runtime: Runtime = "ctranslate2"
    verbs: tuple[str, ...] = ("translate", "score")  # the commands that it runs
    reads: Reads = "source"
    shape: str = "encoder-decoder"
    max_positions: int | None = None  # of the model; None when any text has positions
    written_positions: int | None = None  # that the engine has; None when it computes them
    trained_length: int | None = None
    published: bool = False  # converted from a published folder, so generation_config.json here is the one to read
    max_text_length: int | None = None  # tokens of a text that are embedded
    vector_width: int = 0  # of an encoder's hidden states
    segments: int = 0  # how many kinds of segments an encoder embeds
    characters: int = 0  # per word, where an encoder reads characters
    head: Head | None = None  # what an encoder's hidden states become


@dataclass(frozen=True)
class Proof:
    """How many sample lines the engine answers as torch does, and what that was measured with."""

    weights: str  # SHA-256 of the weights that were converted
    engine: Runtime
    version: str
    precision: Precision
    options: dict[str, Any]
    lines: int
    equal_lines: int
    difference: float | None = None  # of an encoder's vectors, the largest, relative to the vector's largest number
    bleu: float | None = None  # where the sample has references
    torch_bleu: float | None = None
    patience: float | None = None  # of beam search, that gave the answers of an exact search; None: none did

    @property
    def share(self) -> float:
        """The share of equal lines."""
        return self.equal_lines / max(1, self.lines)


def place_of(folder: Path, precision: Precision, runtime: Runtime = "ctranslate2") -> Path:
    """Where the converted model of a model folder lies, if no other place was named."""
    return folder / "engines" / f"{runtime}-{precision}"


def weights_digest(folder: Path) -> str:
    """The SHA-256 of a folder's weights, of all files if there are several."""
    digests = []
    older = (path for pattern in ("*.bin", "*.hdf5") for path in folder.glob(pattern))
    for path in sorted(folder.glob("*.safetensors")) or sorted(older):
        with open(path, "rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def engine_version(runtime: Runtime = "ctranslate2") -> str | None:
    """The version of a runtime; None where it is not installed."""
    try:
        return version(runtime)
    except PackageNotFoundError:
        return None


def read_converted(folder: Path) -> Converted | None:
    """What config.json of a converted model says for us; None for any other folder."""
    path = folder / "config.json"
    ours = read_json(path).get(OURS) if path.is_file() else None
    return None if ours is None else _parsed(Converted, ours, path)


def read_proof(folder: Path) -> Proof | None:
    """The proof of a converted model; None without one."""
    path = folder / PROOF
    return _parsed(Proof, read_json(path), path) if path.is_file() else None


def _parsed(kind: type[Any], value: Any, path: Path) -> Any:
    try:
        return from_dict(kind, value, where=str(path))
    except (InputError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be used: {error}") from error


def find_converted(folder: Path, engine: Engine, verb: str | None = None) -> Path | None:
    """The folder of the converted model that runs a command (or any); None: torch.

    `auto` takes one that is proven for these weights and this version; a runtime that is named and lacks is refused.
    """
    if engine not in ENGINES:
        raise InputError(f'no engine is called "{engine}" (--engine). Use {", ".join(ENGINES)}.')
    if engine == "torch":
        return None
    alone = read_converted(folder)
    if alone is not None:
        _require_runs(folder, alone, engine, verb)
        return folder
    runtimes = [runtime for runtime in PROGRAMS if engine in ("auto", runtime)]
    _require_verb(engine, runtimes[0], verb)
    places = [place_of(folder, precision, runtime) for precision in PRECISIONS for runtime in runtimes]
    fits = [place for place in places if place.is_dir() and _runs(place, verb)]
    missing = [runtime for runtime in runtimes if engine != "auto" and engine_version(runtime) is None]
    if missing:
        raise _not_installed(f"{PROGRAMS[missing[0]].name} is not installed (--engine {engine})", missing[0])
    faults = list(_faults(folder, fits))
    for place, fault in zip(fits, faults):
        if fault is None:
            if engine == "auto":
                _note_rounding(place)
            return place
    if engine != "auto":
        other = f"{folder} is not converted to {PROGRAMS[runtimes[0]].name}" + (f" to {verb}" if verb else "")
        found = f"{fits[0]} {faults[0]}" if faults else other
        raise InputError(f"{found} (--engine {engine}). Convert it: regard convert {folder} --to "
                         f"{PROGRAMS[runtimes[0]].target}.")  # fmt: skip
    if faults:
        warnings.warn(f"{fits[0]} {faults[0]}; torch is used. Convert it again.", Note, stacklevel=2)
    return None


def _require_verb(engine: Engine, runtime: Runtime, verb: str | None) -> None:
    """Refuse a runtime that was named for a command that it never runs."""
    if engine == runtime and verb is not None and verb not in PROGRAMS[runtime].verbs:
        raise InputError(f"{PROGRAMS[runtime].name} does not {verb} here (--engine {engine}). Leave out --engine.")


def _require_runs(folder: Path, alone: Converted, engine: Engine, verb: str | None) -> None:
    """Refuse a converted model without its model folder that cannot do what is asked for."""
    program = PROGRAMS[alone.runtime]
    if engine not in ("auto", alone.runtime):
        raise InputError(f"{folder} is converted to {program.name} (--engine {engine}). Leave out --engine.")
    if engine_version(alone.runtime) is None:
        raise _not_installed(f"{folder} is converted to {program.name}, which is not installed", alone.runtime)
    if not alone.verbs:
        raise InputError(f"{folder} holds graphs for other programs; regard runs encoders in {program.name}. Name the "
                         "model it was converted from.")  # fmt: skip
    if verb is not None and verb not in alone.verbs:
        raise InputError(f"{folder} is converted to {program.name} to {' and '.join(alone.verbs)}, not to {verb}. "
                         "Name the model it was converted from.")  # fmt: skip


def _not_installed(what: str, runtime: Runtime) -> InputError:
    return InputError(f"{what}. {PROGRAMS[runtime].remedy}")


def _runs(place: Path, verb: str | None) -> bool:
    converted = read_converted(place)
    return converted is None or (bool(converted.verbs) if verb is None else verb in converted.verbs)


def _note_rounding(place: Path) -> None:
    """One line if answers may differ from those of torch although nobody asked for an engine."""
    proof = read_proof(place)
    if proof is not None and proof.precision == "int8":
        warnings.warn(
            f"{place} answers {proof.equal_lines:,} of {proof.lines:,} lines as torch does. Choose: --engine torch, or "
            f"--engine {proof.engine}.", Note, stacklevel=3,
        )  # fmt: skip


def _faults(folder: Path, places: list[Path]) -> Iterator[str | None]:
    """Why each converted model cannot be used; None where it can."""
    weights = weights_digest(folder) if places else ""
    for place in places:
        proof = read_proof(place)
        if proof is None:
            yield "has no proof.json"
        elif proof.weights != weights:
            yield "was converted from other weights"
        elif proof.version != (installed := engine_version(proof.engine)):
            name = PROGRAMS[proof.engine].name
            yield f"was proven with {name} {proof.version}, {installed or 'none'} is installed"
        else:
            yield None
