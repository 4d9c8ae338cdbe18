"""Opening a converted model: a translator, a language model or an encoder, imported when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from regard.engines.folder import Engine, read_converted

if TYPE_CHECKING:
    from regard.engines.model import Answers, ConvertedModel

_ASKED = "Leave it out, or use --engine auto, which leaves it to torch."


def open_converted(
    folder: Path, torch: Callable[[], Answers] | None, *, engine: Engine = "auto", defaults_from: Path | None = None,
    threads: int | None = None,
) -> ConvertedModel:  # fmt: skip
    """The model in a converted folder. Where an `engine` is asked for by name, torch never takes its place."""
    asked = engine != "auto" and torch is not None
    torch, remedy = (None, _ASKED) if asked else (torch, None)
    converted = read_converted(folder)
    if converted is not None and converted.shape == "decoder":
        from regard.engines.language_model import LanguageModel

        return LanguageModel(folder, torch, defaults_from=defaults_from, threads=threads, remedy=remedy)
    if converted is not None and converted.shape == "encoder":
        from regard.engines.encoder import TextEncoder

        return TextEncoder(folder, torch, defaults_from=defaults_from, threads=threads, remedy=remedy)
    from regard.engines.translator import Translator

    return Translator(folder, torch, defaults_from=defaults_from, threads=threads, remedy=remedy)
