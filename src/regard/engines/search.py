"""Search by CTranslate2 with our ranking: the hypotheses of its beam search, scored as ours are.

CTranslate2 keeps and drops the same hypotheses as our search at every step, but divides by another length and stops by
another rule: when `patience` times the beam size hypotheses are finished. Those are ranked by our scores. How patient
it must be to answer as an exact search does is measured once, when a model is converted (`Proof.patience`).

The exact search asks for all hypotheses up to some step, the horizon, with their log-probabilities. Those that are not
finished there bound every later score, as in our own search. A sentence whose bound is not below its n-th best score is
searched again with a farther horizon, up to its limit. Nothing here imports torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from regard.decode.options import Options
from regard.decode.requests import GeneratedText, Request, TextScore, scoring_requests
from regard.engines.folder import Precision, read_proof
from regard.engines.model import Answers, ConvertedModel
from regard.progress import QUIET, Progress

_HONOURED = "beam", "n_best", "length_penalty", "normalization", "early_stopping", "max_tokens", "seed"
_HYPOTHESES: dict[Precision, int] = {"float32": 320, "int8": 80}  # of a batch, over all its beams
_ROWS: dict[Precision, int] = {"float32": 128, "int8": 64}  # of a batch, at most
_TOKENS = 4096  # of a batch, at most
_AHEAD, _STEP = 8, 8  # the first horizon, beyond the length of the source; horizons are multiples of the step
_FALL = 1.5  # by how many nats the log-probability of what is not finished falls per token, about

Rule = Literal["first", "patience", "horizon"]
"""When a search stops: with the best hypothesis finished, with enough of them finished, or with a proof (see above)."""


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


_EMPTY = _Found([((), 0.0, False)], 0)  # of what no token may be generated for


class Searcher(ConvertedModel):
    """A converted model that writes text by greedy or beam search."""

    def __init__(
        self,
        folder: Path,
        torch: Callable[[], Answers] | None,
        *,
        defaults_from: Path | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(folder, torch, defaults_from=defaults_from, threads=threads)
        self._model: Any = self._open(self.threads)
        proof = read_proof(folder)
        self.patience: float | None = None if proof is None else proof.patience  # None: the exact search

    @abstractmethod
    def _open(self, workers: int) -> Any:
        """The model in CTranslate2, with so many workers of one thread."""

    @abstractmethod
    def _start(self, requests: Sequence[Request], horizon: int, search: dict[str, Any]) -> list[Any]:
        """Start the search of a batch, up to this many tokens; -> one result to wait for per request."""

    @abstractmethod
    def _answer(self, result: Any) -> tuple[Sequence[Sequence[int]], Sequence[float]]:
        """The tokens and the scores of the hypotheses in a result."""

    @abstractmethod
    def _start_scoring(self, requests: Sequence[Request]) -> list[Any]:
        """Start forced decoding of a batch; -> one result to wait for per request."""

    def unable(self, requests: Sequence[Request], options: Options, **asked: object) -> str | None:
        """What it cannot honour of these requests; None if it can do all. `asked`: what is no decoding option."""
        reason = refused(options, **asked)
        if options.early_stopping is False and self._rule(options) == "horizon":
            reason = reason or "early_stopping"
        if any(one.source is not None and len(one.prompt) > one.special_tokens for one in requests):
            reason = reason or "prefix"
        if any(one.constraints for one in requests):
            reason = reason or "constraints"
        return reason or self._too_long(requests)

    def _too_long(self, requests: Sequence[Request]) -> str | None:
        """Where a text or what is generated may have more tokens than the engine has positions."""
        most = self.converted.written_positions
        if most is None:
            return None
        longest = max((max(len(one.source or ()), len(one.prompt) + one.max_tokens) for one in requests), default=0)
        return f"more than {most:,} tokens" if longest > most else None

    def scores(
        self, source: Sequence[str], target: Sequence[str] | None = None, *, progress: Progress | None = None
    ) -> list[TextScore]:
        """The log-probability of each target given its source, or of each text, in total and per token."""
        requests = scoring_requests(self, self.tokenizers, source, target)
        reason = self._too_long(requests)
        if reason:
            return self._in_torch(reason, "scores").scores(source, target, progress=progress)
        found, tokenizer = [TextScore(0.0, ())] * len(requests), self.tokenizers[1]
        lengths = dict(enumerate(one.max_tokens for one in requests))
        batches = _batches(lengths, requests, _ROWS[self.converted.precision], alike=False)
        running = [(indices, self._start_scoring([requests[index] for index in indices])) for indices, _ in batches]
        for indices, answers in running:
            for index, answer in zip(indices, answers):
                request = requests[index]
                # That of the second token comes first; the tokens before the text are not scored.
                values = answer.result().log_probs[max(0, request.special_tokens - 1) :]
                names = tokenizer.token_texts(request.prompt[request.special_tokens :])
                found[index] = TextScore(float(sum(values)), tuple(zip(names, values)))
            (progress or QUIET)(len(indices))
        return found

    def search(
        self, requests: Sequence[Request], options: Options, progress: Progress = QUIET
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The n-best texts of each request."""
        rule = self._rule(options)
        empty = [index for index, request in enumerate(requests) if not request.max_tokens]
        found = dict(zip(empty, self._texts(requests, dict.fromkeys(empty, _EMPTY), options)))
        progress(len(empty))
        horizons = {index: one.max_tokens for index, one in enumerate(requests) if one.max_tokens}
        if rule == "horizon":
            horizons = {index: _first_horizon(requests[index], limit) for index, limit in horizons.items()}
        running = deque(self._started(requests, horizons, options, rule, alike=rule == "horizon"))
        while running:
            finished, farther = dict[int, _Found](), dict[int, int]()
            for index, one in running.popleft():
                limit = requests[index].max_tokens
                if rule == "horizon":
                    horizon = _farther(one, limit, options)
                else:  # cut short by the limit of another
                    horizon = limit if one.cut and one.horizon < limit else None
                if horizon is None:
                    finished[index] = one
                else:
                    farther[index] = horizon
            # Searched again at once, while other batches run, and not cut short by each other.
            running.extend(self._started(requests, farther, options, rule, alike=True))
            found |= zip(finished, self._texts(requests, finished, options))
            progress(len(finished))
        return [found[index] for index in range(len(requests))]

    def _texts(
        self, requests: Sequence[Request], found: Mapping[int, _Found], options: Options
    ) -> list[list[GeneratedText]]:  # fmt: skip
        """The best hypotheses of some requests by our scores as texts, prompts included."""
        best = [_ranked(one, options) for one in found.values()]
        prompts = (requests[index].prompt[requests[index].special_tokens :] for index in found)
        rows = [(*prompt, *tokens) for prompt, some in zip(prompts, best) for _, tokens, _, _ in some]
        texts = iter(self.tokenizers[1].decode_batch(rows))
        return [
            [GeneratedText(next(texts), score, total, tokens, ended) for score, tokens, total, ended in some]
            for some in best
        ]

    def _rule(self, options: Options) -> Rule:
        if options.beam == 1 or (options.length_penalty == 0 and options.n_best == 1):
            return "first"
        as_one = options.early_stopping is True or (self.patience is not None and options.n_best == 1)
        return "patience" if as_one else "horizon"

    def _started(
        self, requests: Sequence[Request], horizons: dict[int, int], options: Options, rule: Rule, *, alike: bool
    ) -> list[Iterator[tuple[int, _Found]]]:  # fmt: skip
        """Start to search each sentence up to its horizon or a smaller one; -> per batch, index and what is found."""
        precision = self.converted.precision
        rows = max(1, min(_ROWS[precision], _HYPOTHESES[precision] // options.beam))
        search = self._arguments(options, rule)
        power = options.length_penalty if rule == "patience" else 0.0

        def read(indices: list[int], horizon: int, answers: list[Any]) -> Iterator[tuple[int, _Found]]:
            for index, answer in zip(indices, answers):
                yield index, _read(*self._answer(answer.result()), horizon, power)

        return [
            read(indices, horizon, self._start([requests[index] for index in indices], horizon, search(horizon)))
            for indices, horizon in _batches(horizons, requests, rows, alike=alike)
        ]

    def _arguments(self, options: Options, rule: Rule) -> Callable[[int], dict[str, Any]]:
        """The arguments of CTranslate2's search up to some horizon."""

        def arguments(horizon: int) -> dict[str, Any]:
            patience = 1.0 if options.early_stopping is True or rule == "first" else self.patience or 1.0
            patience = float(horizon) if rule == "horizon" else patience
            return {
                "beam_size": options.beam, "patience": patience, "return_scores": True, "asynchronous": True,
                "length_penalty": options.length_penalty if rule == "patience" else 0.0,
                "num_hypotheses": options.n_best if rule == "first" else int(options.beam * patience),
            }  # fmt: skip

        return arguments


def _ranked(found: _Found, options: Options) -> list[tuple[float, tuple[int, ...], float, bool]]:
    """The n best hypotheses: score, tokens, log-probability, whether an end token ended it."""
    if not found.horizon:
        return [(total, tokens, total, ended) for tokens, total, ended in found.hypotheses]
    scored = [(total / options.penalty(len(tokens) + ended), tokens, total, ended)
              for tokens, total, ended in found.hypotheses]  # fmt: skip
    scored.sort(key=lambda one: -one[0])
    return scored[: options.n_best]


def refused(options: Options, **asked: object) -> str | None:
    """The first option that the engine cannot honour; None if it honours all. `asked`: what is no decoding option."""
    plain = Options(**{name: getattr(options, name) for name in _HONOURED})
    names = [field.name for field in fields(Options) if getattr(options, field.name) != getattr(plain, field.name)]
    names += [name for name, wanted in asked.items() if wanted]
    return names[0] if names else None


def _first_horizon(request: Request, limit: int) -> int:
    return min(limit, _rounded_up(len(request.source or ()) + _AHEAD))


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
    best_penalty = options.penalty(float(min(limit, options.best_length(found.horizon, limit))))
    missing = found.highest - ended[-options.n_best] * best_penalty
    if missing <= 0:
        return None
    return min(limit, max(found.horizon + _STEP, _rounded_up(found.horizon + missing / _FALL)))


def _read(rows: Sequence[Sequence[int]], scores: Sequence[float], horizon: int, power: float) -> _Found:
    """The hypotheses of a result, whose scores were divided by their length, end token included, to some power.

    Those as long as the horizon were not finished there.
    """
    ended = [len(tokens) < horizon for tokens in rows]
    totals = [score * (len(tokens) + end) ** power for tokens, score, end in zip(rows, scores, ended)]
    return _Found(list(zip(map(tuple, rows), totals, ended)), horizon)


def _batches(
    horizons: dict[int, int], requests: Sequence[Request], rows: int, *, alike: bool
) -> Iterator[tuple[list[int], int]]:  # fmt: skip
    """Batches of prompts of one length and of sources of similar length, longest first.

    With the horizon of each batch: the smallest of its sentences. `alike`: only equal ones share a batch.
    """

    def group(index: int) -> tuple[int, int]:
        return (horizons[index] if alike else 0), len(requests[index].prompt)

    lengths = {index: requests[index].length for index in horizons}
    order = sorted(horizons, key=lambda index: (group(index), horizons[index], lengths[index]), reverse=True)
    for _, some in groupby(order, key=group):
        batch: list[int] = []
        for index in some:
            if batch and (len(batch) >= rows or (len(batch) + 1) * max(lengths[batch[0]], lengths[index]) > _TOKENS):
                yield batch, min(horizons[index] for index in batch)
                batch = []
            batch.append(index)
        yield batch, min(horizons[index] for index in batch)
