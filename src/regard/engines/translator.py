"""Translation by CTranslate2 with our ranking: the hypotheses of its beam search, scored and bounded as ours are.

CTranslate2 keeps and drops the same hypotheses as our search at every step, but it stops by another rule and divides by
another length. So it is asked for all hypotheses up to some step, the horizon, with their log-probabilities. Those that
are not finished there bound every later score, as in our own search. A sentence whose bound is not below its n-th best
score is searched again with a farther horizon, up to its limit. Nothing here imports torch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from regard.data.tokenize.encode import Reads
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.options import Options, default_options
from regard.decode.requests import GeneratedText, Request, translation_requests
from regard.engines.folder import Converted, read_converted
from regard.errors import InputError, Note
from regard.progress import QUIET, Progress
from regard.store.generation_config import read_own_generation_config
from regard.store.manifest import require_unchanged
from regard.store.tokenizers import read_tokenizers

_HONOURED = "beam", "n_best", "length_penalty", "normalization", "max_tokens", "seed"
_ROWS, _TOKENS = 64, 2048  # of a batch
_AHEAD, _STEP = 8, 8  # the first horizon, beyond the length of the source; horizons are multiples of the step
_FALL = 1.5  # by how many nats the log-probability of what is not finished falls per token, about
_COARSE = 16  # multiples to which limits are rounded where the search stops by itself


class Torch(Protocol):
    """The same model in torch, for what the engine cannot do."""

    def translations(
        self, texts: Sequence[str], options: Options | None = None, *, prefixes: Sequence[str] | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """As `Translator.translations`."""


@dataclass(frozen=True)
class _Found:
    """The hypotheses of one sentence: tokens, log-probability, whether an end token ended it."""

    hypotheses: list[tuple[tuple[int, ...], float, bool]]
    highest: float | None  # log-probability of what was not finished at the horizon; None: nothing is known


class Translator:
    """A converted translator: `translations` as a loaded model has them; what it cannot do is left to torch."""

    def __init__(
        self,
        folder: Path,
        torch: Callable[[], Torch] | None,
        *,
        defaults_from: Path | None = None,
        threads: int | None = None,
    ) -> None:
        import ctranslate2

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
        self._loaded: Torch | None = None
        cores = threads or len(os.sched_getaffinity(0))
        self._model: Any = ctranslate2.Translator(str(folder), device="cpu", inter_threads=cores, intra_threads=1)
        self._noted: set[str] = set()

    @property
    def reads(self) -> Reads:
        """What it reads: the source of a translation."""
        return self.converted.reads

    @property
    def max_positions(self) -> int | None:
        """How many tokens it can read at once; None when there is no bound."""
        return self.converted.max_positions

    def defaults(self) -> Options:
        """The model's default decoding options (generation_config.json)."""
        return default_options(self.generation_config, ours=True, translates=True)

    def translations(
        self, texts: Sequence[str], options: Options | None = None, *, prefixes: Sequence[str] | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best translations of each text with their scores, as torch finds them."""
        options = options or self.defaults()
        reason = refused(options, prefixes, alignment=alignment, replace_unknown=replace_unknown)
        requests = [] if reason else self._requests(texts, options, first_line)
        reason = reason or self._too_long(requests)
        if reason:
            return self._in_torch(reason).translations(
                texts, options, prefixes=prefixes, progress=progress, alignment=alignment,
                replace_unknown=replace_unknown, first_line=first_line,
            )  # fmt: skip
        found = self._search(requests, options, progress or QUIET)
        return [self._texts(one, request, options) for one, request in zip(found, requests)]

    def _in_torch(self, reason: str) -> Torch:
        """The model in torch, loaded when it is needed first."""
        if self._torch is None:
            raise InputError(f"CTranslate2 does not honour {reason}, and {self.folder} holds no weights for torch. "
                             "Leave it out, or name the model it was converted from.")  # fmt: skip
        self._note(f"CTranslate2 does not honour {reason}, so torch translates.")
        self._loaded = self._loaded or self._torch()
        return self._loaded

    def _requests(self, texts: Sequence[str], options: Options, first_line: int) -> list[Request]:
        return translation_requests(
            self, self.tokenizers, texts, options, first_line=first_line,
            trained_length=self.converted.trained_length, note=self._note,
        )  # fmt: skip

    def _too_long(self, requests: Sequence[Request]) -> str | None:
        """Where a text or its translation may have more tokens than the engine has positions."""
        most = self.converted.written_positions
        if most is None or all(max(len(one.source or ()), one.max_tokens + 1) <= most for one in requests):
            return None
        return f"more than {most:,} tokens"

    def _note(self, text: str) -> None:
        """Each kind of note once."""
        kind = text.partition(" ")[0]
        if kind not in self._noted:
            warnings.warn(text, Note, stacklevel=2)
        self._noted.add(kind)

    def _texts(self, found: _Found, request: Request, options: Options) -> list[GeneratedText]:
        tokenizer = self.tokenizers[1]
        scored = ((total / options.penalty(len(tokens) + ended), tokens, total, ended)
                  for tokens, total, ended in found.hypotheses)  # fmt: skip
        best = sorted(scored, key=lambda one: -one[0])[: options.n_best]
        texts = [GeneratedText(tokenizer.decode(tokens), score, total, tokens, ended)
                 for score, tokens, total, ended in best]  # fmt: skip
        return texts or [GeneratedText("", 0.0, 0.0, (), False)]

    def _search(self, requests: Sequence[Request], options: Options, progress: Progress) -> list[_Found]:
        """The hypotheses of each request, among them the n best of our search."""
        results = [_Found([], None) for _ in requests]
        limits = [request.max_tokens for request in requests]
        stops = options.beam == 1 or (options.length_penalty == 0 and options.n_best == 1)
        first = _rounded_down if stops else _first_horizon
        lengths = [len(request.source or ()) for request in requests]
        horizons = {index: first(lengths[index], limit) for index, limit in enumerate(limits) if limit}
        progress(len(requests) - len(horizons))
        while horizons:
            running = [
                (indices, horizon, self._start([requests[index] for index in indices], horizon, options, stops))
                for indices, horizon in _batches(horizons, requests)
            ]
            for indices, horizon, answers in running:
                for index, answer in zip(indices, answers):
                    results[index] = found = _read(answer.result(), horizon)
                    farther = _farther(found, horizon, limits[index], options, stops)
                    if farther is None:
                        del horizons[index]
                        progress(1)
                    else:
                        horizons[index] = farther
        return results

    def _start(self, requests: Sequence[Request], horizon: int, options: Options, stops: bool) -> list[Any]:
        """Start the search of a batch, up to this many tokens; -> one result to wait for per request."""
        every = {} if stops else {"patience": float(horizon), "num_hypotheses": options.beam * horizon}
        started: list[Any] = self._model.translate_batch(
            [[str(token) for token in request.source or ()] for request in requests], beam_size=options.beam,
            length_penalty=0.0, min_decoding_length=0, max_decoding_length=horizon, max_input_length=0,
            return_scores=True, asynchronous=True, **every,
        )  # fmt: skip
        return started


def refused(
    options: Options, prefixes: Sequence[str] | None, *, alignment: bool = False, replace_unknown: bool = False
) -> str | None:
    """The first option that the engine cannot honour; None if it honours all."""
    plain = Options(**{name: getattr(options, name) for name in _HONOURED})
    if options.beam == 1:  # nothing to rank, so nothing stops early
        plain = replace(plain, early_stopping=options.early_stopping)
    asked = {"prefix": any(prefixes or ()), "alignment": alignment, "replace_unknown": replace_unknown}
    names = [field.name for field in fields(Options) if getattr(options, field.name) != getattr(plain, field.name)]
    names += [name for name, wanted in asked.items() if wanted]
    return names[0] if names else None


def _first_horizon(source: int, limit: int) -> int:
    return min(limit, _rounded_up(source + _AHEAD))


def _rounded_up(length: float) -> int:
    return -(-int(length) // _STEP) * _STEP


def _rounded_down(_source: int, limit: int) -> int:
    """A coarse limit, so that sentences of several lengths share a batch."""
    return limit // _COARSE * _COARSE or limit


def _farther(found: _Found, horizon: int, limit: int, options: Options, stops: bool) -> int | None:
    """The next horizon; None if no later hypothesis can be among the n best."""
    if horizon >= limit:
        return None
    if stops:
        return None if found.hypotheses[0][2] else limit
    ended = sorted((total / options.penalty(len(tokens) + 1.0) for tokens, total, ended in found.hypotheses if ended))
    if len(ended) < options.n_best or found.highest is None:
        return min(limit, 2 * horizon)
    # As `Search.can_improve`: sums only fall, and no length is more favourable than this one.
    best_penalty = options.penalty(float(limit if options.length_penalty > 0 else horizon + 1))
    missing = found.highest - ended[-options.n_best] * best_penalty
    return None if missing <= 0 else min(limit, max(horizon + _STEP, _rounded_up(horizon + missing / _FALL)))


def _read(result: Any, horizon: int) -> _Found:
    """The hypotheses of a result; those as long as the horizon were not finished there."""
    rows = [(tuple(map(int, tokens)), float(total)) for tokens, total in zip(result.hypotheses, result.scores)]
    open_rows = [total for tokens, total in rows if len(tokens) == horizon]
    # If every best candidate ended at the horizon, the unfinished ones are below those.
    last = open_rows or [total for tokens, total in rows if len(tokens) == horizon - 1]
    return _Found([(tokens, total, len(tokens) < horizon) for tokens, total in rows], max(last, default=None))


def _batches(horizons: dict[int, int], requests: Sequence[Request]) -> Iterator[tuple[list[int], int]]:
    """Batches of one horizon, longest first, of sources of similar length."""
    order = sorted(horizons, key=lambda index: (-horizons[index], -len(requests[index].source or ())))
    for horizon, group in groupby(order, key=horizons.__getitem__):
        batch: list[int] = []
        for index in group:
            longest = len(requests[batch[0]].source or ()) if batch else 0
            if batch and (len(batch) >= _ROWS or (len(batch) + 1) * longest > _TOKENS):
                yield batch, horizon
                batch = []
            batch.append(index)
        yield batch, horizon
