"""Continuous batching: requests join running searches at the next step, and leave when finished or cancelled.

Requests with the same options share one search, whose rows stand at positions of their own. Searches with other
options, or of models whose output depends on padding, take turns with it. Joining rows was measured to be faster than
turns for requests that arrive one after the other, so turns are only for those that cannot join.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.generate import (
    GeneratedText,
    Request,
    encode_sources,
    end_token,
    generated_texts,
    sample_requests,
    stopping_criterion,
)
from regard.decode.generate import TokenLogprobs as TokenLogprobs
from regard.decode.hypotheses import Candidates, Hypothesis
from regard.decode.inputs import BATCH_TOKENS, MAX_ROWS
from regard.decode.options import Options
from regard.decode.score import forced_logprobs
from regard.decode.search import Search, joinable_options
from regard.errors import InputError
from regard.models.model import Network

_MAX_SEARCHES = 8  # that take turns
_CROWD, _PATIENCE = 4, 4  # requests wait so many steps for others, if so many times their rows are running
_PADDED, _ALWAYS = 4, 4096  # rows are padded to at most so many times their tokens, unless all is at most so many


@dataclass(frozen=True)
class Partial:
    """The tokens that a row has generated so far, all of them; `finished` with the last of its calls only."""

    tokens: tuple[int, ...]
    logprobs: TokenLogprobs | None
    sample: int = 0  # the number of the row among the samples of its request
    finished: Hypothesis | None = None


OnToken = Callable[[Partial], None]
"""Called after each step, in the thread that steps: for greedy search and sampling, not for beams."""


@dataclass(eq=False)
class Ticket:
    """A request in a continuous search; it has ended when it has a result or an error."""

    request: Request
    options: Options
    on_token: OnToken | None = None
    top_logprobs: int | None = None
    result: list[GeneratedText] | None = None
    error: Exception | None = None
    started: bool = False  # its prompt was read
    cancelled: bool = False
    patience: int = _PATIENCE  # steps that it can still wait for others
    alone: bool = False  # retried in a search of its own, because one with others failed
    rows: list[_Row] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.cancelled or self.result is not None or self.error is not None


@dataclass(eq=False)
class _Row:
    """One sentence of a search: a request, or one of its samples."""

    ticket: Ticket
    request: Request
    number: int
    sample: int
    sent: int = 0  # tokens that `on_token` got
    tokens: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    hypotheses: list[Hypothesis] = field(default_factory=list)

    def restart(self) -> None:
        """Forget what was generated, but not what was sent."""
        self.tokens, self.values, self.top, self.hypotheses = [], [], [], []

    @property
    def observed(self) -> bool:
        """Whether its tokens are needed at each step."""
        return self.ticket.on_token is not None or self.ticket.top_logprobs is not None

    def logprobs(self) -> TokenLogprobs | None:
        if self.ticket.top_logprobs is None:
            return None
        return TokenLogprobs(tuple(self.tokens), tuple(self.values), tuple(self.top))


@dataclass(eq=False)
class _Running:
    """A running search and its rows by number."""

    search: Search
    key: Options
    rows: dict[int, _Row]
    width: int = 0  # the most source and target tokens of a row so far

    def measure(self) -> None:
        source = self.search.context.source
        self.width = max(self.width, self.search.longest_row() + (0 if source is None else source.states.shape[1]))

    def tokens(self) -> int:
        """The tokens of its rows, without padding."""
        read = sum(row.request.length for row in self.rows.values())
        return read + sum(self.search.generated_lengths())


class ContinuousSearch:
    """Requests join running searches at the next step, and leave when they are finished or cancelled.

    The results are those of `generate_texts` for each request alone. `batch_tokens` bounds a search, beams and padding
    included. One thread uses it; only `cancel` may be called from another.
    """

    def __init__(self, network: Network, tokenizer: Tokenizer, *, batch_tokens: int = BATCH_TOKENS) -> None:
        self.network, self.tokenizer, self.batch_tokens = network, tokenizer, batch_tokens
        self.equal_lengths = not network.description.incremental  # where padding changes the output
        self._tickets: list[Ticket] = []  # that have not ended
        self.waiting: deque[Ticket] = deque()
        self.running: list[_Running] = []
        self.steps = 0  # of all searches
        self._numbers = count()

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.waiting or self.running)

    def add(
        self, request: Request, options: Options, *, on_token: OnToken | None = None, top_logprobs: int | None = None
    ) -> Ticket:
        """Queue a request; it starts at the next step, if there is room. `top_logprobs` asks for log-probabilities."""
        if request.constraints or options.beam_groups > 1:
            what = "constraints" if request.constraints else "beam_groups"
            raise InputError(f"continuous batching does not honour {what}. Leave it out, or translate in one call.")
        ticket = Ticket(request, options, on_token, top_logprobs)
        ticket.rows = [
            _Row(ticket, one, next(self._numbers), sample)
            for sample, one in enumerate(sample_requests(request, options))
        ]
        self._tickets.append(ticket)
        self.waiting.append(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Take a request out before the next step; it will not be returned."""
        ticket.cancelled = True

    @torch.inference_mode()
    def step(self) -> list[Ticket]:
        """Read the prompts of some waiting requests, and advance one running search by one token; -> what ended."""
        try:
            self._remove_cancelled()
            ended = self._admit()
            if self.running:
                running = self.running.pop(0)
                ended += self._guarded(running.rows.values(), lambda: self._advance(running))
        except Exception as error:
            ended = self._end_all(error)
        self._tickets = [ticket for ticket in self._tickets if not ticket.ended]
        return ended

    def _end_all(self, error: Exception) -> list[Ticket]:
        """End all requests with an error that cannot be laid to some of them; the search is as new."""
        ended = [ticket for ticket in self._tickets if not ticket.ended]
        for ticket in ended:
            ticket.error = error
        self.waiting.clear()
        self.running.clear()
        return ended

    def _remove_cancelled(self) -> None:
        if any(ticket.ended for ticket in self.waiting):
            self.waiting = deque(ticket for ticket in self.waiting if not ticket.ended)
        for running in list(self.running):
            gone = [number for number, row in running.rows.items() if row.ticket.ended]
            for number in gone:
                del running.rows[number]
            if not running.rows:
                self.running.remove(running)
            elif gone:
                running.search.remove(gone)

    def _admit(self) -> list[Ticket]:
        """Start the first waiting requests for which there is room: prefill, then join a running search."""
        tickets, host = self._next_batch()
        if not tickets or (host is not None and self._may_wait(tickets, host)):
            return []
        chosen = set(map(id, tickets))
        self.waiting = deque(ticket for ticket in self.waiting if id(ticket) not in chosen)
        rows = [row for ticket in tickets for row in ticket.rows]
        for ticket in tickets:
            ticket.started = True
        ended = self._guarded(rows, lambda: self._start(rows))
        fresh = next((one for one in self.running if any(row.number in one.rows for row in rows)), None)
        if host is not None and fresh is not None:
            self.running.remove(fresh)
            ended += self._guarded([*host.rows.values(), *fresh.rows.values()], lambda: self._join(host, fresh))
        return ended

    def _start(self, rows: Sequence[_Row]) -> list[Ticket]:
        """Prefill and the first token, in a search of its own."""
        key = joinable_options(rows[0].ticket.options)
        return self._advance(_Running(self._search(rows), key, {row.number: row for row in rows}))

    def _next_batch(self) -> tuple[list[Ticket], _Running | None]:
        """Waiting requests with the same options, first come first served, and the search that they can join."""
        seen: set[Options] = set()
        for ticket in self.waiting:
            key = joinable_options(ticket.options)
            if key in seen and not ticket.alone:
                continue
            seen.add(key)
            hosts = [one for one in self.running if one.key == key] if not (self.equal_lengths or ticket.alone) else []
            host = next((one for one in hosts if self._fits([ticket], one)), None)
            if host is None and len(self.running) >= _MAX_SEARCHES:
                continue
            batch = [ticket]
            for other in self.waiting if not ticket.alone else ():
                if other is ticket or other.alone or joinable_options(other.options) != key:
                    continue
                if not self._fits([*batch, other], host):
                    break
                batch.append(other)
            return batch, host
        return [], None

    def _may_wait(self, tickets: Sequence[Ticket], host: _Running) -> bool:
        """Whether few requests wait for more: reading prompts and joining cost about a step of a large search."""
        rows = sum(len(ticket.rows) for ticket in tickets)
        tickets[0].patience -= 1
        return len(host.rows) > _CROWD * rows and tickets[0].patience >= 0

    def _fits(self, tickets: Sequence[Ticket], host: _Running | None) -> bool:
        """Whether requests can share a search: within the budget, not mostly padding, equal lengths where needed."""
        requests = [row.request for ticket in tickets for row in ticket.rows]
        if self.equal_lengths and len({(len(one.prompt), len(one.source or ())) for one in requests}) > 1:
            return False
        rows = len(requests) + (0 if host is None else len(host.rows))
        width = max([*(request.length for request in requests), 0 if host is None else host.width])
        tokens = sum(request.length for request in requests) + (0 if host is None else host.tokens())
        within = rows <= MAX_ROWS and rows * width <= self.batch_tokens // tickets[0].options.beam
        return within and rows * width <= max(_PADDED * tokens, _ALWAYS)

    def _search(self, rows: Sequence[_Row]) -> Search:
        """A search of these rows alone, all with the same options, before its first step."""
        options, sources = rows[0].ticket.options, [row.request.source for row in rows]
        return Search(
            self.network, [row.request.prompt for row in rows], options, eos=end_token(self.tokenizer),
            limits=[row.request.max_tokens for row in rows], seeds=[row.request.seed for row in rows],
            numbers=[row.number for row in rows], source=encode_sources(self.network, sources),
            stopping_criteria=[stopping_criterion(self.tokenizer, row.ticket.options) for row in rows],
        )  # fmt: skip

    def _join(self, host: _Running, fresh: _Running) -> list[Ticket]:
        host.search.join(fresh.search)
        host.rows |= fresh.rows
        host.measure()
        return []

    def _advance(self, running: _Running) -> list[Ticket]:
        """One step of a search; it goes to the end of the queue of searches."""
        search = running.search

        def observe(active: Tensor, candidates: Candidates, _: Tensor) -> None:
            if search.beam == 1 and any(row.observed for row in running.rows.values()):
                _observe([running.rows[number] for number in active.tolist()], search, candidates)

        if len(search.active):
            search.step(observe)
            self.steps += 1
        running.measure()
        ended = []
        for number in list(search.results):
            row = running.rows.pop(number)
            row.hypotheses = search.results.pop(number)
            ended += self._publish(row, row.hypotheses[0])
            if row.ticket not in ended and all(one.hypotheses for one in row.ticket.rows):
                ended.append(self._finish(row.ticket))
        for row in running.rows.values():
            ended += self._publish(row)
        if running.rows:
            self.running.append(running)
        return ended

    def _publish(self, row: _Row, finished: Hypothesis | None = None) -> list[Ticket]:
        """Call `on_token` if there is something new; if that fails, the request has ended."""
        ticket = row.ticket
        if ticket.on_token is None or ticket.options.beam > 1 or ticket.ended:
            return []
        if len(row.tokens) <= row.sent and finished is None:
            return []
        row.sent = max(row.sent, len(row.tokens))
        try:
            ticket.on_token(Partial(tuple(row.tokens), row.logprobs(), row.sample, finished))
        except Exception as error:
            ticket.error = error
            return [ticket]
        return []

    def _finish(self, ticket: Ticket) -> Ticket:
        """Set the result of a request whose rows have finished."""
        try:
            hypotheses = [hypothesis for row in ticket.rows for hypothesis in row.hypotheses]
            texts = generated_texts(self.tokenizer, ticket.request, hypotheses, ticket.options)
            ticket.result = texts if ticket.top_logprobs is None else self._with_logprobs(ticket, texts)
        except Exception as error:
            ticket.error = error
        return ticket

    def _with_logprobs(self, ticket: Ticket, texts: list[GeneratedText]) -> list[GeneratedText]:
        """The texts with log-probabilities: those of the steps, or for beams those of one forward pass."""
        if ticket.options.beam == 1 or ticket.options.temperature > 0:
            known = {row.hypotheses[0].tokens: row.logprobs() for row in ticket.rows}
            return [replace(text, logprobs=known[text.tokens]) for text in texts]
        prompt = ticket.request.prompt
        forced = [replace(ticket.request, prompt=(*prompt, *t.tokens), special_tokens=len(prompt)) for t in texts]
        found = forced_logprobs(self.network, forced, ticket.top_logprobs or 0)
        return [replace(text, logprobs=logprobs) for text, logprobs in zip(texts, found)]

    def _guarded(self, rows: Iterable[_Row], work: Callable[[], list[Ticket]]) -> list[Ticket]:
        """Work on a search; if it fails, retry each of its requests alone. What fails alone has ended."""
        tickets = list(dict.fromkeys(row.ticket for row in rows))
        try:
            return work()
        except Exception as error:
            ended = [ticket for ticket in tickets if ticket.alone and not ticket.ended]
            for ticket in ended:
                ticket.error = error
            self.running = [one for one in self.running if not any(row.ticket in tickets for row in one.rows.values())]
            for ticket in reversed([one for one in tickets if not one.ended]):
                ticket.alone = True
                for row in ticket.rows:
                    row.restart()
                self.waiting.appendleft(ticket)
            return ended


def _observe(rows: Sequence[_Row], search: Search, candidates: Candidates) -> None:
    """Add the step's token, its log-probability and the best few to each row that needs them."""
    chosen = search.last_tokens(candidates)
    values = candidates.log_probabilities[:, 0].gather(1, chosen[:, None])[:, 0].tolist()
    ends, tokens = candidates.eos[:, 0].tolist(), chosen.tolist()
    most = max((row.ticket.top_logprobs or 0 for row in rows), default=0)
    best = candidates.log_probabilities[:, 0].topk(min(most, candidates.log_probabilities.shape[-1]), dim=-1)
    names, tops = best.indices.tolist(), best.values.tolist()
    for index, row in enumerate(rows):
        if row.observed and not ends[index] and values[index] > -torch.inf:
            row.tokens.append(tokens[index])
            row.values.append(values[index])
            wanted = row.ticket.top_logprobs or 0
            row.top.append(tuple(zip(names[index][:wanted], tops[index][:wanted])))
