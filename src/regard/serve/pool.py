"""The workers of a served model: one per core, which share the weights; requests go to the least busy one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from regard.api import LoadedModel
from regard.decode.continuous import ContinuousSearch
from regard.decode.workers import can_share
from regard.serve import processes
from regard.serve.worker import Job, QueueFull, Searching, Worker

if TYPE_CHECKING:
    from regard.decode.continuous import Partial
    from regard.decode.generate import GeneratedText, Request
    from regard.decode.options import Options

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """Torch's threads, shared between the workers that are busy.

    Two workers with one thread each were measured to be faster than one with two threads. One that works alone uses all
    threads, so that a single request is as fast as decoding it directly.
    """

    def __init__(self) -> None:
        self.count, self.workers = torch.get_num_threads(), list[Worker]()

    def share(self) -> int:
        """The threads that a busy worker may use."""
        return max(1, self.count // max(1, sum(worker.load > 0 for worker in self.workers)))

    def worker(self, model: LoadedModel, max_waiting: int, search: Searching | None = None) -> Worker:
        """A worker that uses its share."""
        worker = Worker(model, max_waiting=max_waiting, threads=self.share, search=search)
        self.workers.append(worker)
        return worker


def search_apart(model: LoadedModel) -> Searching | None:
    """A search in a process of its own, where there is such a thing; None: one in the worker's thread."""
    if not processes.AVAILABLE or model.network.shape == "encoder":
        return None
    return processes.ProcessSearch(partial(ContinuousSearch, model.network, model.target_tokenizer))


def search_here(_: LoadedModel) -> None:
    """A search in the worker's thread."""


class WorkerPool:
    """The workers of one model, with one limit of what may wait; on a GPU, and where threads cannot share, one."""

    def __init__(
        self, model: LoadedModel, *, workers: int | None = None, max_waiting: int = 64, threads: Threads | None = None,
        search: Callable[[LoadedModel], Searching | None] = search_apart,
    ) -> None:  # fmt: skip
        threads, self.max_waiting, self._lock = threads or Threads(), max_waiting, threading.Lock()
        self.jobs = 0  # that were given to the workers
        count = (workers or threads.count) if can_share(model.network) else 1
        searches = [search(model) if count > 1 else None for _ in range(count)]
        self._apart = any(one is not None for one in searches)
        self.workers = [threads.worker(model, max_waiting, one) for one in searches]

    @property
    def waiting(self) -> int:
        """Jobs that have not started."""
        return sum(worker.waiting for worker in self.workers)

    @property
    def running(self) -> int:
        """Jobs that have started."""
        return sum(worker.running for worker in self.workers)

    @property
    def steps(self) -> int:
        """The decoding steps so far."""
        return sum(worker.steps for worker in self.workers)

    def start(self) -> None:
        """Start the threads and processes."""
        if self._apart:
            processes.pack_weights(self.workers[0].model)
        for worker in self.workers:
            worker.start()

    def generate(
        self,
        requests: Sequence[Request],
        options: Options,
        *,
        on_token: Callable[[int, Partial], None] | None = None,
        top_logprobs: int | None = None,
    ) -> Job[list[list[GeneratedText]]]:
        """Generate for each request, as a worker does."""
        with self._lock:
            return self._free().generate(requests, options, on_token=on_token, top_logprobs=top_logprobs)

    def run(
        self,
        function: Callable[[LoadedModel, list[Item]], list[Result]],
        items: Sequence[Item],
        *,
        tokens: int = 0,
        key: Hashable = None,
    ) -> Job[list[Result]]:
        """Run a function of the model and some items, as a worker does."""
        with self._lock:
            return self._free().run(function, items, tokens=tokens, key=key)

    def pin(self) -> Worker:
        """One of the workers, for work that one thread must do."""
        return min(self.workers, key=lambda worker: worker.load)

    def stop(self, grace: float) -> bool:
        """Take no new jobs, finish the accepted ones and end the threads; -> whether all finished within the grace."""
        ends = time.monotonic() + grace
        for worker in self.workers:
            worker.refuse()
        finished = [worker.stop(max(0.0, ends - time.monotonic())) for worker in self.workers]
        return all(finished)

    def _free(self) -> Worker:
        """The least busy worker, for one job; refuses if as many jobs wait for the model as may."""
        if (waiting := self.waiting) >= self.max_waiting:
            raise QueueFull(waiting, self.max_waiting)
        self.jobs += 1
        return self.pin()
