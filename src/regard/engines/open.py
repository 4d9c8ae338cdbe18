"""Opening a converted model: a translator, a language model or an encoder, imported when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from regard.engines.folder import read_converted

if TYPE_CHECKING:
    from regard.engines.model import Answers, ConvertedModel


def open_converted(
    folder: Path, torch: Callable[[], Answers] | None, *, defaults_from: Path | None = None, threads: int | None = None
) -> ConvertedModel:  # fmt: skip
    """The model in a converted folder; `torch` loads it for what the engine cannot honour."""
    converted = read_converted(folder)
    if converted is not None and converted.shape == "decoder":
        from regard.engines.language_model import LanguageModel

        return LanguageModel(folder, torch, defaults_from=defaults_from, threads=threads)
    if converted is not None and converted.shape == "encoder":
        from regard.engines.encoder import TextEncoder

        return TextEncoder(folder, torch, defaults_from=defaults_from, threads=threads)
    from regard.engines.translator import Translator

    return Translator(folder, torch, defaults_from=defaults_from, threads=threads)
