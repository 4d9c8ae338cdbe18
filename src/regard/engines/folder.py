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
from regard.errors import DamagedFile, InputError, Note
from regard.schema import from_dict
from regard.store.files import read_json

Engine = Literal["auto", "torch", "ctranslate2"]
"""What runs a model: torch, CTranslate2, or the converted model if there is one that is proven to answer alike."""

Precision = Literal["float32", "int8"]
ENGINES: tuple[Engine, ...] = ("auto", "torch", "ctranslate2")
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
PROOF, OURS = "proof.json", "regard"

_INSTALL = "Install it: pip install 'regard[engines]'."


@dataclass(frozen=True)
class Converted:
    """What config.json of a converted model says for us, under the key `regard`."""

    precision: Precision
    vocabulary: int
    reads: Reads = "source"
    shape: str = "encoder-decoder"
    max_positions: int | None = None  # of the model; None when any text has positions
    written_positions: int | None = None  # that the engine has; None when it computes them
    trained_length: int | None = None
    published: bool = False  # converted from a published folder, so generation_config.json here is the one to read


@dataclass(frozen=True)
class Proof:
    """How many sample lines the engine answers as torch does, and what that was measured with."""

    weights: str  # SHA-256 of the weights that were converted
    engine: str
    version: str
    precision: Precision
    options: dict[str, Any]
    lines: int
    equal_lines: int
    bleu: float | None = None  # where the sample has references
    torch_bleu: float | None = None
    patience: float | None = None  # of beam search, that gave the answers of an exact search; None: none did

    @property
    def share(self) -> float:
        """The share of equal lines."""
        return self.equal_lines / max(1, self.lines)


def place_of(folder: Path, precision: Precision) -> Path:
    """Where the converted model of a model folder lies, if no other place was named."""
    return folder / "engines" / f"ctranslate2-{precision}"


def weights_digest(folder: Path) -> str:
    """The SHA-256 of a folder's weights, of all files if there are several."""
    digests = []
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def engine_version() -> str | None:
    """The version of CTranslate2; None where it is not installed."""
    try:
        return version("ctranslate2")
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


def find_converted(folder: Path, engine: Engine) -> Path | None:
    """The folder of the converted model to use; None: torch.

    `auto` takes one that is proven for these weights and this version; `ctranslate2` is refused where there is none.
    """
    if engine not in ENGINES:
        raise InputError(f'no engine is called "{engine}" (--engine). Use {", ".join(ENGINES)}.')
    if engine == "torch":
        return None
    if read_converted(folder) is not None:
        if engine_version() is None:
            raise InputError(f"{folder} is converted to CTranslate2, which is not installed. {_INSTALL}")
        return folder
    present = [place for precision in PRECISIONS if (place := place_of(folder, precision)).is_dir()]
    if engine == "ctranslate2" and engine_version() is None:
        raise InputError(f"CTranslate2 is not installed (--engine ctranslate2). {_INSTALL}")
    faults = list(_faults(folder, present))
    for place, fault in zip(present, faults):
        if fault is None:
            if engine == "auto":
                _note_rounding(place)
            return place
    if engine == "ctranslate2":
        found = f"{present[0]} {faults[0]}" if faults else f"{folder} is not converted to CTranslate2"
        raise InputError(f"{found} (--engine ctranslate2). Convert it: regard convert {folder} --to ctranslate2.")
    if faults:
        warnings.warn(f"{present[0]} {faults[0]}; torch is used. Convert it again.", Note, stacklevel=2)
    return None


def _note_rounding(place: Path) -> None:
    """One line if answers may differ from those of torch although nobody asked for an engine."""
    proof = read_proof(place)
    if proof is not None and proof.precision == "int8":
        warnings.warn(
            f"{place} answers {proof.equal_lines:,} of {proof.lines:,} lines as torch does. Choose: --engine torch, or "
            "--engine ctranslate2.", Note, stacklevel=3,
        )  # fmt: skip


def _faults(folder: Path, places: list[Path]) -> Iterator[str | None]:
    """Why each converted model cannot be used; None where it can."""
    weights = weights_digest(folder) if places else ""
    for place in places:
        proof, installed = read_proof(place), engine_version()
        if proof is None:
            yield "has no proof.json"
        elif proof.weights != weights:
            yield "was converted from other weights"
        elif proof.version != installed:
            yield f"was proven with CTranslate2 {proof.version}, {installed or 'none'} is installed"
        else:
            yield None
