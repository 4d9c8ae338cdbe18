"""A language model in CTranslate2: continuation of prompts and scores of texts, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.decode.options import Options
from regard.decode.requests import GeneratedText, Request, prompt_requests
from regard.decode.terms import Constraints
from regard.engines.model import open_ctranslate2
from regard.engines.search import Searcher
from regard.progress import QUIET, Progress


class LanguageModel(Searcher):
    """A converted language model: `continuations` and `scores`; what it cannot do is left to torch."""

    def continuations(
        self, prompts: Sequence[str], options: Options, *, constraints: Sequence[Constraints | None] | None = None,
        progress: Progress | None = None,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best continuations of each prompt with their scores, as torch finds them."""
        requests = prompt_requests(self, self.tokenizer, prompts, options)
        reason = self.unable(requests, options, constraints=any(constraints or ()))
        if reason:
            in_torch = self._in_torch(reason, "generates")
            return in_torch.continuations(prompts, options, constraints=constraints, progress=progress)
        return self.search(requests, options, progress or QUIET)

    def _open(self, workers: int) -> Any:
        return open_ctranslate2("Generator", self.folder, workers)

    def _start(self, requests: Sequence[Request], horizon: int, search: dict[str, Any]) -> list[Any]:
        started: list[Any] = self._model.generate_batch(
            _prompts(requests), include_prompt_in_result=False, min_length=0, max_length=horizon, **search
        )  # fmt: skip
        return started

    def _answer(self, result: Any) -> tuple[Sequence[Sequence[int]], Sequence[float]]:
        return result.sequences_ids, result.scores

    def _start_scoring(self, requests: Sequence[Request]) -> list[Any]:
        started: list[Any] = self._model.score_batch(_prompts(requests), max_input_length=0, asynchronous=True)
        return started


def _prompts(requests: Sequence[Request]) -> list[list[str]]:
    """The prompts as CTranslate2 reads them: tokens are named by their ids."""
    return [[*map(str, request.prompt)] for request in requests]
