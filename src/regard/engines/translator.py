"""Translation by CTranslate2 with our ranking: the hypotheses of its beam search, scored as ours are.

CTranslate2 keeps and drops the same hypotheses as our search at every step, but divides by another length and stops by
another rule: when `patience` times the beam size hypotheses are finished. Those are ranked by our scores. How patient
it must be to answer as an exact search does is measured once, when a model is converted (`Proof.patience`).

The exact search asks for all hypotheses up to some step, the horizon, with their log-probabilities. Those that are not
finished there bound every later score, as in our own search. A sentence whose bound is not below its n-th best score is
searched again with a farther horizon, up to its limit. Nothing here imports torch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol

from regard.data.tokenize.encode import Reads
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.mbr import MBR
from regard.decode.options import Options, default_options
from regard.decode.requests import GeneratedText, Request, translation_requests
from regard.decode.terms import Constraints
from regard.engines.folder import Converted, Precision, read_converted, read_proof
from regard.errors import InputError, Note
from regard.progress import QUIET, Progress
from regard.store.generation_config import read_own_generation_config
from regard.store.manifest import require_unchanged
from regard.store.tokenizers import read_tokenizers

_HONOURED = "beam", "n_best", "length_penalty", "normalization", "early_stopping", "max_tokens", "seed"
_HYPOTHESES: dict[Precision, int] = {"float32": 320, "int8": 80}  # of a batch, over all its beams
_ROWS, _TOKENS = 128, 4096  # of a batch, at most
_AHEAD, _STEP = 8, 8  # the first horizon, beyond the length of the source; horizons are multiples of the step
_FALL = 1.5  # by how many nats the log-probability of what is not finished falls per token, about

Rule = Literal["first", "patience", "horizon"]
"""When a search stops: with the best hypothesis finished, with enough of them finished, or with a proof (see above)."""


class Torch(Protocol):
    """The same model in torch, for what the engine cannot do."""

    def translations(
        self, texts: Sequence[str], options: Options | None = None, *, prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraints | None] | None = None, mbr: MBR | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """As `Translator.translations`."""


@dataclass(frozen=True)
class _Found:
    """The hypotheses of one sentence: tokens, log-probability, whether an end token ended it."""

    hypotheses: list[tuple[tuple[int, ...], float, bool]]
    horizon: int

    @property
    def cut(self) -> bool:
        """Whether the search ended at the horizon."""
        return not all(ended for _, _, ended in self.hypotheses)

    @property
    def highest(self) -> float | None:
        """The best log-probability of what was not finished at the horizon; None: nothing is known."""
        open_rows = [total for _, total, ended in self.hypotheses if not ended]
        # If every best candidate ended at the horizon, the unfinished ones are below those.
        last = open_rows or [total for tokens, total, _ in self.hypotheses if len(tokens) == self.horizon - 1]
        return max(last, default=None)


_EMPTY = GeneratedText("", 0.0, 0.0, (), False)


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
        proof = read_proof(folder)
        self.patience: float | None = None if proof is None else proof.patience  # None: the exact search

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
        constraints: Sequence[Constraints | None] | None = None, mbr: MBR | None = None,
        progress: Progress | None = None, alignment: bool = False, replace_unknown: bool = False, first_line: int = 1,
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best translations of each text with their scores, as torch finds them."""
        options = options or self.defaults()
        reason = refused(options, prefixes, alignment=alignment, replace_unknown=replace_unknown)
        if options.early_stopping is False and self._rule(options) == "horizon":
            reason = reason or "early_stopping"
        reason = reason or ("constraints" if any(constraints or ()) else "mbr" if mbr is not None else None)
        requests = [] if reason else self._requests(texts, options, first_line)
        reason = reason or self._too_long(requests)
        if reason:
            return self._in_torch(reason).translations(
                texts, options, prefixes=prefixes, constraints=constraints, mbr=mbr, progress=progress,
                alignment=alignment, replace_unknown=replace_unknown, first_line=first_line,
            )  # fmt: skip
        return self._search(requests, options, progress or QUIET)

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

    def _texts(self, found: _Found, options: Options) -> list[GeneratedText]:
        tokenizer = self.tokenizers[1]
        scored = ((total / options.penalty(len(tokens) + ended), tokens, total, ended)
                  for tokens, total, ended in found.hypotheses)  # fmt: skip
        best = sorted(scored, key=lambda one: -one[0])[: options.n_best]
        return [GeneratedText(tokenizer.decode(tokens), score, total, tokens, ended)
                for score, tokens, total, ended in best] or [_EMPTY]  # fmt: skip

    def _search(self, requests: Sequence[Request], options: Options, progress: Progress) -> list[list[GeneratedText]]:
        """The n-best translations of each request."""
        texts: list[list[GeneratedText]] = [[_EMPTY]] * len(requests)
        limits = {index: request.max_tokens for index, request in enumerate(requests) if request.max_tokens}
        progress(len(requests) - len(limits))
        rule = self._rule(options)
        horizons = {} if rule == "horizon" else limits
        while horizons:  # the second time with those that were cut short by the limit of another
            farther = {}
            for index, found in self._pass(requests, horizons, options, rule):
                if found.cut and found.horizon < limits[index]:
                    farther[index] = limits[index]
                else:
                    texts[index] = self._texts(found, options)
                    progress(1)
            horizons = farther
        if rule == "horizon":
            lengths = {index: len(requests[index].source or ()) for index in limits}
            horizons = {index: _first_horizon(lengths[index], limit) for index, limit in limits.items()}
        while horizons:
            for index, found in self._pass(requests, dict(horizons), options, "horizon"):
                next_horizon = _farther(found, limits[index], options)
                if next_horizon is None:
                    texts[index] = self._texts(found, options)
                    progress(1)
                    del horizons[index]
                else:
                    horizons[index] = next_horizon
        return texts

    def _rule(self, options: Options) -> Rule:
        if options.beam == 1 or (options.length_penalty == 0 and options.n_best == 1):
            return "first"
        as_one = options.early_stopping is True or (self.patience is not None and options.n_best == 1)
        return "patience" if as_one else "horizon"

    def _pass(
        self, requests: Sequence[Request], horizons: dict[int, int], options: Options, rule: Rule
    ) -> Iterator[tuple[int, _Found]]:  # fmt: skip
        """Search each sentence once, up to its horizon or a smaller one; -> index and what was found."""
        rows = max(1, min(_ROWS, _HYPOTHESES[self.converted.precision] // options.beam))
        running = [
            (indices, horizon, self._start([requests[index] for index in indices], horizon, options, rule))
            for indices, horizon in _batches(horizons, requests, rows, alike=rule == "horizon")
        ]
        power = options.length_penalty if rule == "patience" else 0.0
        for indices, horizon, answers in running:
            for index, answer in zip(indices, answers):
                yield index, _read(answer.result(), horizon, power)

    def _start(self, requests: Sequence[Request], horizon: int, options: Options, rule: Rule) -> list[Any]:
        """Start the search of a batch, up to this many tokens; -> one result to wait for per request."""
        patience = 1.0 if options.early_stopping is True or rule == "first" else self.patience or 1.0
        patience, power = (float(horizon), 0.0) if rule == "horizon" else (patience, options.length_penalty)
        count = options.n_best if rule == "first" else int(options.beam * patience)
        started: list[Any] = self._model.translate_batch(
            [[str(token) for token in request.source or ()] for request in requests], beam_size=options.beam,
            length_penalty=0.0 if rule == "first" else power, min_decoding_length=0, max_decoding_length=horizon,
            max_input_length=0, return_scores=True, asynchronous=True, patience=patience, num_hypotheses=count,
        )  # fmt: skip
        return started


def refused(
    options: Options, prefixes: Sequence[str] | None, *, alignment: bool = False, replace_unknown: bool = False
) -> str | None:
    """The first option that the engine cannot honour; None if it honours all."""
    plain = Options(**{name: getattr(options, name) for name in _HONOURED})
    asked = {"prefix": any(prefixes or ()), "alignment": alignment, "replace_unknown": replace_unknown}
    names = [field.name for field in fields(Options) if getattr(options, field.name) != getattr(plain, field.name)]
    names += [name for name, wanted in asked.items() if wanted]
    return names[0] if names else None


def _first_horizon(source: int, limit: int) -> int:
    return min(limit, _rounded_up(source + _AHEAD))


def _rounded_up(length: float) -> int:
    return -(-int(length) // _STEP) * _STEP


def _farther(found: _Found, limit: int, options: Options) -> int | None:
    """The next horizon; None if no later hypothesis can be among the n best."""
    if found.horizon >= limit:
        return None
    ended = sorted(total / options.penalty(len(tokens) + 1.0) for tokens, total, ended in found.hypotheses if ended)
    if len(ended) < options.n_best or found.highest is None:
        return min(limit, 2 * found.horizon)
    # As `Search.can_improve`: sums only fall, and no length is more favourable than this one.
    best_penalty = options.penalty(float(limit if options.length_penalty > 0 else found.horizon + 1))
    missing = found.highest - ended[-options.n_best] * best_penalty
    if missing <= 0:
        return None
    return min(limit, max(found.horizon + _STEP, _rounded_up(found.horizon + missing / _FALL)))


def _read(result: Any, horizon: int, power: float) -> _Found:
    """The hypotheses of a result, whose scores were divided by their length, end token included, to some power.

    Those as long as the horizon were not finished there.
    """
    rows = [(tuple(map(int, tokens)), score) for tokens, score in zip(result.hypotheses, result.scores)]
    return _Found(
        [(tokens, score * (len(tokens) + (len(tokens) < horizon)) ** power, len(tokens) < horizon)
         for tokens, score in rows], horizon,
    )  # fmt: skip


def _batches(
    horizons: dict[int, int], requests: Sequence[Request], rows: int, *, alike: bool
) -> Iterator[tuple[list[int], int]]:  # fmt: skip
    """Batches of sources of similar length, longest first, and the horizon of each: the smallest of its sentences.

    `alike`: only sentences with the same horizon share a batch.
    """
    lengths = {index: len(requests[index].source or ()) for index in horizons}
    order = sorted(horizons, key=lambda index: (-horizons[index], -lengths[index]))
    for _, group in groupby(order, key=lambda index: horizons[index] if alike else 0):
        batch: list[int] = []
        for index in group:
            if batch and (len(batch) >= rows or (len(batch) + 1) * max(lengths[batch[0]], lengths[index]) > _TOKENS):
                yield batch, horizons[batch[-1]]
                batch = []
            batch.append(index)
        yield batch, horizons[batch[-1]]
