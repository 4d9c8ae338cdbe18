"""A continuous search in a process of its own: searches that run at the same time do not share Python's lock.

The process is a fork: it begins with the model as it is in memory, and only requests and results are sent, over a pipe.
"""

from __future__ import annotations

import gc
import logging
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, NoReturn

import torch

from regard.api import LoadedModel
from regard.decode.continuous import ContinuousSearch, OnToken, Partial, Ticket
from regard.decode.generate import Request, TokenLogprobs
from regard.decode.hypotheses import Hypothesis
from regard.decode.options import Options
from regard.errors import InputError

_log = logging.getLogger("regard.serve")

AVAILABLE = sys.platform == "linux"
_PACKING_ROWS, _PACKING_TOKENS = 16, 2
_STANDARD = 3  # input, output and errors: the first descriptors of a process
_STEPS = struct.Struct("q")


class SearchFailed(RuntimeError):
    """What a search raised in its process, with its traceback; or the process ended."""


@dataclass(frozen=True)
class _Tokens:
    """What a row generated since it was last told, from a place on."""

    sample: int
    start: int
    tokens: tuple[int, ...]
    logprobs: TokenLogprobs | None
    finished: Hypothesis | None


@dataclass
class _Row:
    """All that was told of a row."""

    sent: int = 0  # tokens that `on_token` got
    tokens: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)

    def extended(self, new: _Tokens) -> Partial:
        """With new tokens after those before them."""
        self.tokens[new.start :] = new.tokens
        if new.logprobs is None:
            return Partial(tuple(self.tokens), None, new.sample, new.finished)
        self.values[new.start :], self.top[new.start :] = new.logprobs.log_probabilities, new.logprobs.top
        logprobs = TokenLogprobs(tuple(self.tokens), tuple(self.values), tuple(self.top))
        return Partial(logprobs.tokens, logprobs, new.sample, new.finished)


@dataclass
class _Asked:
    """A request, and what the process told of its rows."""

    ticket: Ticket
    rows: dict[int, _Row] = field(default_factory=dict)

    def tell(self, new: _Tokens) -> None:
        """Call `on_token` with the new tokens; if that fails, the request has ended."""
        row = self.rows.setdefault(new.sample, _Row())
        partial = row.extended(new)
        again = len(partial.tokens) <= row.sent and partial.finished is None  # it is retried
        if self.ticket.on_token is None or self.ticket.ended or again:
            return
        row.sent = len(partial.tokens)
        try:
            self.ticket.on_token(partial)
        except Exception as error:
            self.ticket.error = error


class ProcessSearch:
    """A continuous search in a process, as `ContinuousSearch` is one in its thread.

    If the process ends by itself, a fresh one begins. What the old one worked on is retried, one request at a time, so
    that only what ends its process alone fails. One thread uses a search; `wake` and `kill` may be called from any.
    """

    def __init__(self, make: Callable[[], ContinuousSearch]) -> None:
        self.make = make
        self._waiting: deque[_Asked] = deque()  # not yet in the process
        self._asked: dict[int, _Asked] = {}
        self._numbers = count()
        self._steps = mmap.mmap(-1, _STEPS.size)  # shared with the process
        self._bell, self._ear = socket.socketpair()
        for end in (self._bell, self._ear):
            end.setblocking(False)
        self._connection: Connection | None = None
        self._killed = self._rung = False
        self.process: int | None = None

    @property
    def steps(self) -> int:
        """The decoding steps so far."""
        found: int = _STEPS.unpack_from(self._steps)[0]
        return found

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._waiting or self._asked)

    def start(self) -> None:
        """Start the process, unless it was killed."""
        if self._killed:
            raise BrokenPipeError
        ours, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: other threads are not copied
            process = os.fork()
        if process == 0:
            ours.close()
            _live(theirs, self.make, self._steps)
        theirs.close()
        self._connection, self.process = ours, process

    def add(
        self, request: Request, options: Options, *, on_token: OnToken | None = None, top_logprobs: int | None = None
    ) -> Ticket:
        """Queue a request, as a continuous search does."""
        ticket = Ticket(request, options, on_token, top_logprobs)
        self._waiting.append(_Asked(ticket))
        return ticket

    def step(self) -> list[Ticket]:
        """Tell the process what is new, and wait until it answers or `wake` is called; -> what ended."""
        if self._connection is None:
            try:
                self.start()
            except OSError as error:
                return self._fail(self._waiting, error)
        try:
            self._tell()
            return self._hear() if self._asked else []
        except (EOFError, OSError) as error:
            return self._begin_again(error)

    def wake(self) -> None:
        """Let a step that waits return, because there is something to tell; from any thread."""
        if not self._rung:
            self._rung = True
            with suppress(OSError):  # it is closed
                self._bell.send(b"\0")

    def kill(self) -> None:
        """End the process at once, from any thread; no fresh one begins."""
        self._killed = True
        if (process := self.process) is not None:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """End the process, and leave nothing of it."""
        self.kill()
        self._end()
        self._bell.close()
        self._ear.close()

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        process, self.process = self.process, None
        if process is not None:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)

    def _tell(self) -> None:
        """Take back what was given up, and send what waits; what is retried alone is alone in the process."""
        connection = self._connection
        assert connection is not None
        for number in [number for number, asked in self._asked.items() if asked.ticket.ended]:
            connection.send((number, None))
            del self._asked[number]
        self._forget()
        while self._waiting and self._may_begin(self._waiting[0].ticket):
            asked, number = self._waiting.popleft(), next(self._numbers)
            self._asked[number], ticket = asked, asked.ticket
            what = ticket.request, ticket.options, ticket.on_token is not None, ticket.top_logprobs
            connection.send((number, what))

    def _forget(self) -> None:
        """Drop what has ended before it began."""
        self._waiting = deque(asked for asked in self._waiting if not asked.ticket.ended)

    def _may_begin(self, ticket: Ticket) -> bool:
        return not self._asked or not (ticket.alone or any(asked.ticket.alone for asked in self._asked.values()))

    def _hear(self) -> list[Ticket]:
        """Wait for news of the process, or to be woken; -> what ended."""
        connection, ended = self._connection, list[Ticket]()
        assert connection is not None
        ready = wait([connection, self._ear])
        with suppress(BlockingIOError):
            self._ear.recv(16)
        self._rung = False  # not before: what rings now is heard, since requests are looked for after this step
        for number, what, found in connection.recv() if connection in ready else ():
            if (asked := self._asked.get(number)) is None:  # given up meanwhile
                continue
            if what == "started":
                asked.ticket.started = True
            elif what == "tokens":
                asked.tell(found)
            else:
                setattr(asked.ticket, what, found)
                ended.append(self._asked.pop(number).ticket)
        return ended

    def _begin_again(self, error: Exception) -> list[Ticket]:
        """The process has ended: what it worked on is retried alone, what was alone in it has failed."""
        self._end()
        left = [asked for asked in self._asked.values() if not asked.ticket.ended]
        self._asked.clear()
        failed = self._fail([asked for asked in left if asked.ticket.alone or self._killed], error)
        for asked in left:
            asked.ticket.alone = True
        self._waiting.extendleft(reversed(left))
        self._forget()
        if not self._killed:
            _log.error("a process that decodes has ended; of its requests, %d are retried", len(left) - len(failed))
        return failed

    def _fail(self, some: Iterable[_Asked], cause: Exception) -> list[Ticket]:
        """End requests with an error."""
        tickets = [asked.ticket for asked in some]
        for ticket in tickets:
            ticket.error = SearchFailed("the process that decoded this request has ended")
            ticket.error.__cause__ = cause
        self._forget()
        return tickets


def pack_weights(model: LoadedModel) -> None:
    """Decode a few tokens, so that processes which begin later share the packed weights: in memory and in the cache."""
    search, bos = ContinuousSearch(model.network, model.target_tokenizer), model.target_tokenizer.bos
    source = None if model.network.shape == "decoder" else (model.tokenizer.bos,) * _PACKING_TOKENS
    for _ in range(_PACKING_ROWS):
        search.add(Request((bos,), source, _PACKING_TOKENS), Options(min_tokens=_PACKING_TOKENS))
    while search.busy:
        search.step()


def _live(connection: Connection, make: Callable[[], ContinuousSearch], steps: mmap.mmap) -> NoReturn:
    """The life of the process, which has nothing of its parent's but memory and standard descriptors.

    It ends with the pipe, so also if the parent is killed. A signal to the whole group of processes, such as Ctrl-C, is
    for the parent alone, which lets what is in flight finish.
    """
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        gc.freeze()  # an object of the parent's that is collected would close a descriptor which is ours by then
        _close_others(connection.fileno())
        torch.set_num_threads(1)  # the threads of the parent's are not here
        _Process(connection, make(), steps).run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # nothing of the parent's is flushed or finalized twice


def _close_others(kept: int) -> None:
    """Close all descriptors but one and the standard ones: an open copy of a client's connection would keep it open."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number >= _STANDARD and number != kept:
            with suppress(OSError):  # the folder itself was open
                os.close(number)


@dataclass(eq=False)
class _Given:
    """A request in the process, and what was told of it."""

    number: int
    ticket: Ticket
    started: bool = False
    told: dict[int, int] = field(default_factory=dict)  # tokens, by sample


class _Process:
    """Advances the requests that arrive over the pipe, and tells what becomes of them."""

    def __init__(self, connection: Connection, search: ContinuousSearch, steps: mmap.mmap) -> None:
        self.connection, self.search, self.steps = connection, search, steps
        self.before: int = _STEPS.unpack_from(steps)[0]  # of the processes before
        self.given: dict[int, _Given] = {}
        self.inbox: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self.news: list[tuple[int, str, Any]] = []

    def run(self) -> None:
        """Advance the search for ever."""
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            while not self.search.busy or not self.inbox.empty():
                self._take_in(*self.inbox.get())
            self.search.step()
            _STEPS.pack_into(self.steps, 0, self.before + self.search.steps)
            self._report()

    def _receive(self) -> None:
        """Read all that is sent at once, so that no sender waits for a step; the process ends with the pipe."""
        try:
            while True:
                self.inbox.put(self.connection.recv())
        finally:
            os._exit(0)

    def _take_in(self, number: int, asked: tuple[Request, Options, bool, int | None] | None) -> None:
        """Add a request, or give it up."""
        if asked is None:
            if (given := self.given.pop(number, None)) is not None:
                self.search.cancel(given.ticket)
            return
        request, options, streams, top_logprobs = asked
        given = _Given(number, Ticket(request, options))
        call = partial(self._on_token, given) if streams else None
        try:
            given.ticket = self.search.add(request, options, on_token=call, top_logprobs=top_logprobs)
        except Exception as error:
            given.ticket.error = error
        self.given[number] = given
        self._report()

    def _on_token(self, given: _Given, new: Partial) -> None:
        start = min(given.told.get(new.sample, 0), len(new.tokens))
        given.told[new.sample] = len(new.tokens)
        logprobs = new.logprobs and TokenLogprobs(
            (), new.logprobs.log_probabilities[start:], new.logprobs.top[start:]
        )  # fmt: skip
        tokens = _Tokens(new.sample, start, new.tokens[start:], logprobs, new.finished)
        self.news.append((given.number, "tokens", tokens))

    def _report(self) -> None:
        """Tell which requests have started and ended, and their new tokens."""
        for given in [*self.given.values()]:
            ticket = given.ticket
            if ticket.started and not given.started:
                given.started = True
                self.news.append((given.number, "started", True))
            if ticket.ended:
                del self.given[given.number]
                error = None if ticket.error is None else _sendable(ticket.error)
                self.news.append((given.number, "result" if error is None else "error", error or ticket.result))
        if self.news:
            self.connection.send(self.news)
            self.news = []


def _sendable(error: Exception) -> Exception:
    """An error that can be sent: one about the request as it is, any other as its traceback."""
    if isinstance(error, InputError):
        return InputError(str(error))
    return SearchFailed("".join(traceback.format_exception(error)))
