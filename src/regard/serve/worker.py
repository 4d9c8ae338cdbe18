"""A worker of a served model: a bounded queue, continuous batching, other work batched between the steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch

from regard.api import LoadedModel
from regard.decode.continuous import ContinuousSearch, OnToken, Partial, Ticket
from regard.decode.generate import GeneratedText, Request
from regard.decode.inputs import BATCH_TOKENS
from regard.decode.options import Options

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFull(Exception):
    """As many jobs wait as may; try again later."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(f"{waiting} requests waiting, limit {limit}")
        self.waiting, self.limit = waiting, limit


class Stopping(Exception):
    """The worker takes no new jobs, or gave this one up, because it is stopping."""


class Job(Generic[T]):
    """Work that a worker does: its future, and a way to give it up."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.future: Future[T] = Future()
        self.future.add_done_callback(lambda future: wake() if future.cancelled() else None)

    def cancel(self) -> None:
        """Give the job up, from any thread: its rows leave before the next step, queued work never starts."""
        self.future.cancel()

    def succeed(self, result: T) -> None:
        """Set the result, unless the job was given up."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Set the error, unless the job was given up."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class _Generation(Job[list[list[GeneratedText]]]):
    """Requests that are generated for."""

    def __init__(self, wake: Callable[[], None], requests: Sequence[Request], options: Options) -> None:
        super().__init__(wake)
        self.requests, self.options = requests, options
        self.on_token: Callable[[int, Partial], None] | None = None
        self.top_logprobs: int | None = None
        self.tickets: list[Ticket] = []

    @property
    def started(self) -> bool:
        """Whether a prompt was read."""
        return any(ticket.started for ticket in self.tickets)

    def add_to(self, search: Searching) -> None:
        """Queue the requests in a search."""
        for index, request in enumerate(self.requests):
            call = None if self.on_token is None else partial(self.on_token, index)
            ticket = search.add(request, self.options, on_token=call, top_logprobs=self.top_logprobs)
            self.tickets.append(ticket)

    def settle(self) -> bool:
        """Set the result when all requests have theirs, or the first error; -> whether the job is over."""
        errors = [ticket.error for ticket in self.tickets if ticket.error is not None]
        results = [ticket.result for ticket in self.tickets if ticket.result is not None]
        if errors:
            self.fail(errors[0])
        elif len(results) == len(self.tickets):
            self.succeed(results)
        if self.future.done():
            for ticket in self.tickets:
                ticket.cancelled = True
        return self.future.done()


class _Work(Job[list[Any]]):
    """A function of the model and some items."""

    def __init__(
        self, wake: Callable[[], None], function: Callable[[LoadedModel, list[Any]], list[Any]], items: Sequence[Any],
        tokens: int, key: Hashable,
    ) -> None:  # fmt: skip
        super().__init__(wake)
        self.function, self.items, self.tokens, self.key = function, list(items), tokens, key


class Searching(Protocol):
    """What decodes the requests of a worker: a continuous search in its thread, or one in a process."""

    @property
    def steps(self) -> int:
        """The decoding steps so far."""

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""

    def start(self) -> None:
        """Begin, before the worker's thread does."""

    def add(
        self, request: Request, options: Options, *, on_token: OnToken | None = None, top_logprobs: int | None = None
    ) -> Ticket:
        """Queue a request."""

    def step(self) -> list[Ticket]:
        """Advance; -> what ended. A ticket that was cancelled leaves first."""

    def wake(self) -> None:
        """Let a step that waits return; from any thread."""

    def kill(self) -> None:
        """End what runs at once; from any thread."""

    def close(self) -> None:
        """Leave nothing behind."""


class SearchHere(ContinuousSearch):
    """A continuous search in the worker's thread, where no step waits and nothing is left."""

    def start(self) -> None:
        """Nothing is to be started."""

    wake = kill = close = start


class Worker:
    """A thread that advances searches step by step and runs batched work between the steps.

    `threads` tells before each step with how many threads torch may compute.
    """

    def __init__(
        self, model: LoadedModel, *, max_waiting: int = 64, batch_tokens: int = BATCH_TOKENS,
        threads: Callable[[], int] = torch.get_num_threads, search: Searching | None = None,
    ) -> None:  # fmt: skip
        self.model, self.max_waiting, self.batch_tokens, self.threads = model, max_waiting, batch_tokens, threads
        self._search: Searching = search or SearchHere(model.network, model.target_tokenizer, batch_tokens=batch_tokens)
        self._changed = threading.Condition()
        self._queued: deque[_Generation] = deque()  # not yet in the search
        self._generations: list[_Generation] = []  # in the search
        self._work: deque[_Work] = deque()
        self._busy: list[_Work] = []  # being run
        self._stopping = self._abandoned = False
        self._thread = threading.Thread(target=self._loop, name="regard-worker", daemon=True)

    @property
    def waiting(self) -> int:
        """Jobs that have not started."""
        with self._changed:
            unstarted = sum(not job.started for job in self._generations)
            return len(self._queued) + len(self._work) + unstarted

    @property
    def running(self) -> int:
        """Jobs that have started."""
        with self._changed:
            return sum(job.started for job in self._generations) + len(self._busy)

    @property
    def load(self) -> int:
        """Jobs that are not finished."""
        with self._changed:
            return len(self._queued) + len(self._work) + len(self._generations) + len(self._busy)

    @property
    def steps(self) -> int:
        """The decoding steps so far."""
        return self._search.steps

    def start(self) -> None:
        """Start the search and the thread."""
        self._search.start()
        self._thread.start()

    def generate(
        self,
        requests: Sequence[Request],
        options: Options,
        *,
        on_token: Callable[[int, Partial], None] | None = None,
        top_logprobs: int | None = None,
    ) -> Job[list[list[GeneratedText]]]:
        """Generate for each request, as `generate_texts` does; raises QueueFull or Stopping at once.

        `on_token` gets the index of a request and its tokens after each step, in the worker's thread, for greedy search
        and sampling; it must not block. `top_logprobs` asks for the log-probabilities of tokens and of the best few.
        """
        job = _Generation(self._wake, requests, options)
        job.on_token, job.top_logprobs = on_token, top_logprobs
        self._submit(job, self._queued)
        return job

    def run(
        self,
        function: Callable[[LoadedModel, list[Item]], list[Result]],
        items: Sequence[Item],
        *,
        tokens: int = 0,
        key: Hashable = None,
    ) -> Job[list[Result]]:
        """Run a function of the model and some items between two steps; raises QueueFull or Stopping at once.

        Waiting jobs with the same key, which must be the same work, are batched into one call of about `batch_tokens`.
        """
        job = _Work(self._wake, function, items, tokens, key)
        self._submit(job, self._work)
        return job

    def refuse(self) -> None:
        """Take no new jobs; the thread ends after the accepted ones."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stop(self, grace: float) -> bool:
        """Take no new jobs, finish the accepted ones and end the thread; -> whether all finished within the grace."""
        self.refuse()
        if self._thread.is_alive():
            self._thread.join(grace)
        with self._changed:
            left = [*self._queued, *self._generations, *self._work, *self._busy]
            left = [job for job in left if not job.future.done()]
            self._abandoned = True
        if self._thread.is_alive():
            self._search.kill()
        for job in left:
            job.fail(Stopping("the server is stopping"))
        return not left and not self._thread.is_alive()

    def _submit(self, job: Any, queue: deque[Any]) -> None:
        with self._changed:
            if self._stopping:
                raise Stopping("the server is stopping")
            if (waiting := self.waiting) >= self.max_waiting:
                raise QueueFull(waiting, self.max_waiting)
            queue.append(job)
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._search.wake()

    def _loop(self) -> None:
        """Work until told to stop: between two steps new requests are taken in, and one batch of other work is run."""
        try:
            with torch.inference_mode():
                while self._wait():
                    self._use_threads()
                    self._take_in()
                    self._run_batch()
                    self._step()
        finally:
            self._search.close()

    def _wait(self) -> bool:
        """Wait for something to do; -> whether to go on."""
        with self._changed:
            while not (left := self._queued or self._work or self._search.busy) and not self._stopping:
                self._changed.wait()
            return bool(left) and not self._abandoned

    def _use_threads(self) -> None:
        """Compute with as many threads as may be used now; the number is this thread's own."""
        if torch.get_num_threads() != (number := self.threads()):
            torch.set_num_threads(number)

    def _take_in(self) -> None:
        """Put new requests into the search, and drop jobs that were given up."""
        with self._changed:
            while self._queued:
                job = self._queued.popleft()
                job.add_to(self._search)
                self._generations.append(job)
            self._settle()

    def _settle(self) -> None:
        """Drop the jobs that are over; those that were given up take their rows out of the search."""
        self._generations = [job for job in self._generations if not job.settle()]

    def _step(self) -> None:
        if not self._search.busy:
            return
        if self._work:
            self._search.wake()  # so that it does not wait for news
        self._search.step()
        with self._changed:
            self._settle()

    def _run_batch(self) -> None:
        """Run the first job of the queue, together with those of the same key."""
        with self._changed:
            jobs = self._next_work()
            self._busy = jobs
        if not jobs:
            return
        try:
            self._run(jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].fail(error)
            else:
                self._run_one_by_one(jobs)
        with self._changed:
            self._busy = []

    def _run_one_by_one(self, jobs: Sequence[_Work]) -> None:
        """Run jobs that failed together, so that only what fails alone fails."""
        for job in jobs:
            try:
                self._run([job])
            except Exception as error:
                job.fail(error)

    def _next_work(self) -> list[_Work]:
        jobs: list[_Work] = []
        tokens, left = 0, deque[_Work]()
        for job in self._work:
            if job.future.done():  # given up
                continue
            same = not jobs or (job.key is not None and job.key == jobs[0].key)
            if same and (not jobs or tokens + job.tokens <= self.batch_tokens):
                tokens += job.tokens
                if job.future.set_running_or_notify_cancel():
                    jobs.append(job)
            else:
                left.append(job)
        self._work.clear()  # not replaced: `run` may hold it while it waits for the lock
        self._work.extend(left)
        return jobs

    def _run(self, jobs: Sequence[_Work]) -> None:
        items = [item for job in jobs for item in job.items]
        results = iter(found := jobs[0].function(self.model, items))
        if len(found) != len(items):
            raise ValueError(f"{len(items)} items have {len(found)} results")
        for job in jobs:
            job.succeed([next(results) for _ in job.items])
