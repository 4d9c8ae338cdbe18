"""A converted model: its folder and tokenizers, and torch for what its engine cannot do; imported without torch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from regard.data.tokenize.encode import Reads
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.mbr import MBR
from regard.decode.options import Options, default_options
from regard.decode.requests import GeneratedText, Layer, Prediction, Request, Text, TextScore, TokenVectors, Vectors
from regard.decode.target_language import with_language
from regard.decode.terms import Constraints
from regard.engines.folder import PROGRAMS, Converted, read_converted
from regard.errors import DamagedFile, InputError, Note
from regard.progress import QUIET, Progress
from regard.store.generation_config import read_own_generation_config
from regard.store.manifest import require_unchanged
from regard.store.tokenizers import read_tokenizers


def open_ctranslate2(kind: Literal["Translator", "Generator", "Encoder"], folder: Path, workers: int) -> Any:
    """A model in CTranslate2, with so many workers of one thread; a damaged one is refused."""
    import ctranslate2

    try:
        return getattr(ctranslate2, kind)(str(folder), device="cpu", inter_threads=workers, intra_threads=1)
    except (RuntimeError, ValueError) as error:
        why = str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise DamagedFile(f"{folder} cannot be opened by CTranslate2: {why}. Convert the model again.") from None


def _lacks() -> NotImplementedError:
    return NotImplementedError("a command that is not among the verbs of this model")


class Answers(Protocol):
    """What a model answers, in torch or in another engine. A converted model has the commands among its `verbs`."""

    def translating_into(self, language: str) -> Self:
        """As `LoadedModel.translating_into`."""
        raise _lacks()

    def translations(
        self, texts: Sequence[str], options: Options | None = None, *, prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraints | None] | None = None, mbr: MBR | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """As `LoadedModel.translations`."""
        raise _lacks()

    def continuations(
        self, prompts: Sequence[str], options: Options, *, constraints: Sequence[Constraints | None] | None = None,
        progress: Progress | None = None,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """As `LoadedModel.continuations`."""
        raise _lacks()

    def embed(
        self, texts: Sequence[str], *, pool: str | None = None, layer: Layer = None, normalised: bool = False,
        tokens: bool = False, stateful: bool = False, progress: Progress | None = None,
    ) -> Vectors | list[TokenVectors]:  # fmt: skip
        """As `LoadedModel.embed`."""
        raise _lacks()

    def classify(self, texts: Sequence[Text], *, progress: Progress | None = None) -> list[Prediction]:
        """As `LoadedModel.classify`."""
        raise _lacks()

    def scores(
        self, source: Sequence[str], target: Sequence[str] | None = None, *, progress: Progress | None = None
    ) -> list[TextScore]:
        """As `LoadedModel.scores`."""
        raise _lacks()


class ConvertedModel(Answers):
    """A converted model: the base of what translates, generates and embeds in another engine than torch.

    Without `torch` an option that the engine cannot honour is an error.
    """

    def __init__(
        self,
        folder: Path,
        torch: Callable[[], Answers] | None,
        *,
        defaults_from: Path | None = None,
        threads: int | None = None,
    ) -> None:
        converted = read_converted(folder)
        if converted is None:
            raise InputError(f"{folder} is no converted model. Convert one: regard convert MODEL --to ctranslate2.")
        require_unchanged(folder)
        self.converted: Converted = converted
        source, target = read_tokenizers(folder)
        self.tokenizers: tuple[Tokenizer, Tokenizer] = source, target or source
        home = folder if defaults_from is None or converted.published else defaults_from
        self.generation_config = read_own_generation_config(home, converted)
        self.folder, self._torch = folder, torch
        self._loaded: Answers | None = None
        self.threads = threads or len(os.sched_getaffinity(0))
        self._noted: set[str] = set()

    embedding_width: int = 0  # of the vector of a text
    classifies_pairs: bool = False  # whether it tells if one text follows another, so that it reads pairs

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of what it reads."""
        return self.tokenizers[0]

    @property
    def verbs(self) -> tuple[str, ...]:
        """The commands that it runs."""
        return self.converted.verbs

    @property
    def shape(self) -> str:
        """Which stacks it has: "encoder", "decoder" or "encoder-decoder"."""
        return self.converted.shape

    @property
    def reads(self) -> Reads:
        """What it reads: a text, a prompt, or the source of a translation."""
        return self.converted.reads

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can read at once; None when there is no bound."""
        return self.converted.max_positions

    def defaults(self) -> Options:
        """The model's default decoding options (generation_config.json)."""
        return default_options(self.generation_config, ours=True, translates=self.shape != "decoder")

    def translating_into(self, language: str) -> Self:
        """As `LoadedModel.translating_into`; so is the model in torch that it leaves work to."""
        told, torch = copy(self), self._torch
        told.tokenizers, told.generation_config = with_language(self.tokenizers, self.generation_config, language)
        told._torch = None if torch is None else lambda: torch().translating_into(language)
        told._loaded = None
        return told

    def unable(self, requests: Sequence[Request], options: Options, **asked: object) -> str | None:
        """What it cannot honour of these requests to generate; None if it can do all."""
        return "generation"

    def search(
        self, requests: Sequence[Request], options: Options, progress: Progress = QUIET
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best texts of each request."""
        raise _lacks()

    def _in_torch(self, reason: str, does: str) -> Answers:
        """The model in torch, loaded when it is needed first; `does` is what it does there."""
        name = PROGRAMS[self.converted.runtime].name
        if self._torch is None:
            raise InputError(f"{name} does not honour {reason}, and {self.folder} holds no weights for torch. "
                             "Leave it out, or name the model it was converted from.")  # fmt: skip
        self._note(f"{name} does not honour {reason}, so torch {does}.")
        self._loaded = self._loaded or self._torch()
        return self._loaded

    def _note(self, text: str) -> None:
        """Each kind of note once."""
        kind = text.partition(" ")[0]
        if kind not in self._noted:
            warnings.warn(text, Note, stacklevel=2)
        self._noted.add(kind)
