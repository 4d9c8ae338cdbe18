"""Translation by CTranslate2, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.decode.long_lines import cut_long_lines
from regard.decode.mbr import MBR
from regard.decode.options import Options
from regard.decode.requests import GeneratedText, Request, translation_requests
from regard.decode.terms import Constraints
from regard.engines.model import open_ctranslate2
from regard.engines.search import Searcher
from regard.progress import QUIET, Progress


class Translator(Searcher):
    """A converted translator: `translations` as a loaded model has them; what it cannot do is left to torch."""

    def translations(
        self, texts: Sequence[str], options: Options | None = None, *, prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraints | None] | None = None, mbr: MBR | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best translations of each text with their scores, as torch finds them."""
        options = options or self.defaults()
        reason = self.unable(
            (), options, prefix=any(prefixes or ()), alignment=alignment, replace_unknown=replace_unknown,
            constraints=any(constraints or ()), mbr=mbr,
        )  # fmt: skip
        length, encoded = self.converted.trained_length, [] if reason else self.tokenizer.encode_batch(texts)
        cut = None if reason else cut_long_lines(
            self, self.tokenizer, texts, encoded, options, trained_length=length, prefixes=prefixes,
            first_line=first_line, note=self._note,
        )  # fmt: skip
        if cut is not None:
            found = self.translations(cut.pieces, options, progress=progress and cut.progress(progress))
            return cut.put_together(found, options)
        requests = [] if reason else translation_requests(
            self, self.tokenizers, encoded, options, first_line=first_line, trained_length=length, note=self._note
        )  # fmt: skip
        reason = reason or self.unable(requests, options)
        if reason:
            return self._in_torch(reason, "translates").translations(
                texts, options, prefixes=prefixes, constraints=constraints, mbr=mbr, progress=progress,
                alignment=alignment, replace_unknown=replace_unknown, first_line=first_line,
            )  # fmt: skip
        return self.search(requests, options, progress or QUIET)

    def _open(self, workers: int) -> Any:
        return open_ctranslate2("Translator", self.folder, workers)

    def _start(self, requests: Sequence[Request], horizon: int, search: dict[str, Any]) -> list[Any]:
        started: list[Any] = self._model.translate_batch(
            _sources(requests), min_decoding_length=0, max_decoding_length=horizon, max_input_length=0, **search
        )  # fmt: skip
        return started

    def _answer(self, result: Any) -> tuple[Sequence[Sequence[int]], Sequence[float]]:
        return [[*map(int, tokens)] for tokens in result.hypotheses], result.scores

    def _start_scoring(self, requests: Sequence[Request]) -> list[Any]:
        targets = [[str(token) for token in request.prompt[1:-1]] for request in requests]
        started: list[Any] = self._model.score_batch(
            _sources(requests), targets, max_input_length=0, asynchronous=True
        )  # fmt: skip
        return started


def _sources(requests: Sequence[Request]) -> list[list[str]]:
    """The sources as CTranslate2 reads them: tokens are named by their ids."""
    return [[*map(str, request.source or ())] for request in requests]
