"""The worker of a served model: its bounded queue, cancellation, isolated failures, batched work, and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace

import pytest
import torch

from regard.api import LoadedModel
from regard.decode.generate import Request, generate_texts
from regard.decode.options import Options
from regard.serve.worker import QueueFull, Stopping, Worker
from regard.store.loading import Loaded
from tests.decode.test_continuous import LETTERS, failing_for, some_requests
from tests.decode.test_search import often_ending
from tests.laws.zoo import BEGIN

LONG = Request((BEGIN, 6), None, 4000)
ENDLESS = Options(min_tokens=4000)


@pytest.fixture
def model() -> LoadedModel:
    with torch.no_grad():
        return LoadedModel(Loaded(often_ending("gpt2, rotary"), (LETTERS, None), {}, {}))


@pytest.fixture
def worker(model: LoadedModel) -> Iterator[Worker]:
    worker = Worker(model, max_waiting=3)
    worker.start()
    yield worker
    worker.stop(0)
    worker._thread.join(20)
    assert not worker._thread.is_alive()


class Gate:
    """Work that holds the worker's thread until it is opened."""

    def __init__(self, worker: Worker) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.job = worker.run(self.hold, [None])
        assert self.reached.wait(20)

    def hold(self, _: LoadedModel, items: list[None]) -> list[None]:
        self.reached.set()
        assert self.opened.wait(20)
        return items


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_jobs_get_the_texts_of_decoding_alone(model: LoadedModel, worker: Worker):
    requests = some_requests(model.network, 9, seed=1)
    jobs = [worker.generate(requests[start : start + 3], Options(beam=2)) for start in (0, 3, 6)]
    found = [texts for job in jobs for texts in job.future.result(20)]
    for texts, request in zip(found, requests):
        expected = generate_texts(model.network, LETTERS, [request], Options(beam=2))[0]
        assert [text.text for text in texts] == [text.text for text in expected]
    assert worker.steps > 0
    assert worker.waiting == worker.running == 0


def test_a_full_queue_refuses_at_once_and_takes_jobs_again_later(worker: Worker):
    gate = Gate(worker)
    jobs = [worker.generate([replace(LONG, max_tokens=3)], Options()) for _ in range(3)]
    assert (worker.waiting, worker.running) == (3, 1)
    for submit in (lambda: worker.generate([LONG], Options()), lambda: worker.run(lambda _, items: items, [1])):
        with pytest.raises(QueueFull, match="3 requests waiting, limit 3") as refused:
            submit()
        assert (refused.value.waiting, refused.value.limit) == (3, 3)
    gate.opened.set()
    assert all(job.future.result(20) for job in jobs)
    assert worker.run(lambda _, items: items, [1]).future.result(20) == [1]


def test_a_cancelled_job_runs_at_most_two_further_steps(worker: Worker):
    seen = threading.Event()
    job = worker.generate([LONG], ENDLESS, on_token=lambda *_: seen.set())
    assert seen.wait(20)
    job.cancel()
    before = worker.steps
    for number in range(6):  # each is run between two steps, if there are any
        assert worker.run(lambda _, items: items, [number]).future.result(20) == [number]
    assert worker.steps <= before + 2
    assert worker.running == 0
    with pytest.raises(CancelledError):
        job.future.result(0)


def test_a_cancelled_neighbour_leaves_the_others_as_they_are(model: LoadedModel, worker: Worker):
    request = Request((BEGIN, 9), None, 60)
    seen, gate = threading.Event(), Gate(worker)
    leaves = worker.generate([LONG], replace(ENDLESS, min_tokens=60), on_token=lambda *_: seen.set())
    stays = worker.generate([request], Options(min_tokens=60))
    gate.opened.set()
    assert seen.wait(20)
    leaves.cancel()
    expected = generate_texts(model.network, LETTERS, [request], Options(min_tokens=60))[0]
    assert [text.tokens for text in stays.future.result(20)[0]] == [text.tokens for text in expected]


def test_work_that_comes_while_the_next_is_chosen_is_not_lost(worker: Worker):
    queue, jobs = worker._work, []
    submit = threading.Thread(target=lambda: jobs.append(worker.run(lambda _, items: items, [1])))
    with worker._changed:
        submit.start()  # it waits for the lock
        worker._next_work()
        assert worker._work is queue
    submit.join(20)
    assert jobs[0].future.result(20) == [1]


def test_queued_work_that_is_cancelled_never_starts(worker: Worker):
    gate, started = Gate(worker), []
    work = worker.run(lambda _, items: started.append(items) or items, [1])
    generation = worker.generate([LONG], ENDLESS, on_token=lambda *_: started.append(None))
    work.cancel()
    generation.cancel()
    gate.opened.set()
    assert worker.run(lambda _, items: items, [2]).future.result(20) == [2]
    assert started == []
    assert worker.steps == 0


def test_the_failure_of_one_row_leaves_its_neighbours_right(
    model: LoadedModel, worker: Worker, monkeypatch: pytest.MonkeyPatch
):
    options = Options(min_tokens=8, suppress_tokens=(39,))
    requests = [Request((BEGIN, 5 + number), None, 10) for number in range(3)]
    expected = [generate_texts(model.network, LETTERS, [request], options)[0] for request in requests]
    failing_for(model.network, 39, monkeypatch)
    gate = Gate(worker)
    jobs = [worker.generate([one], options) for one in (requests[0], Request((BEGIN, 39), None, 10), requests[2])]
    gate.opened.set()
    for number in (0, 2):
        assert [text.tokens for text in jobs[number].future.result(20)[0]] == [text.tokens for text in expected[number]]
    with pytest.raises(RuntimeError, match="a row is bad"):
        jobs[1].future.result(20)
    assert worker.generate([requests[1]], options).future.result(20)


def test_work_with_the_same_key_is_batched_and_fails_one_by_one(worker: Worker):
    calls: list[list[int]] = []

    def invert(_: LoadedModel, items: list[int]) -> list[float]:
        assert torch.is_inference_mode_enabled()
        calls.append(items)
        return [1 / item for item in items]

    gate = Gate(worker)
    jobs = [worker.run(invert, items, key="invert") for items in ([1, 2], [4], [8])]
    gate.opened.set()
    assert [job.future.result(20) for job in jobs] == [[1, 0.5], [0.25], [0.125]]
    assert calls == [[1, 2, 4, 8]]
    calls.clear()
    gate = Gate(worker)
    jobs = [worker.run(invert, items, key="invert") for items in ([1, 2], [0], [8])]
    gate.opened.set()
    assert [jobs[number].future.result(20) for number in (0, 2)] == [[1, 0.5], [0.125]]
    with pytest.raises(ZeroDivisionError):
        jobs[1].future.result(20)
    assert calls == [[1, 2, 0, 8], [1, 2], [0], [8]]


def test_a_batch_of_work_is_bounded_by_tokens_and_kept_apart_by_key(worker: Worker):
    calls: list[list[int]] = []

    def note(_: LoadedModel, items: list[int]) -> list[int]:
        calls.append(items)
        return items

    gate = Gate(worker)
    keys = ["one", "one", None]
    jobs = [worker.run(note, [number], tokens=worker.batch_tokens, key=key) for number, key in enumerate(keys)]
    gate.opened.set()
    assert [job.future.result(20) for job in jobs] == [[0], [1], [2]]
    assert sorted(calls) == [[0], [1], [2]]
    calls.clear()
    gate = Gate(worker)
    jobs = [worker.run(note, [number], key=key) for number, key in enumerate([None, None, "one"])]
    gate.opened.set()
    assert [job.future.result(20) for job in jobs] == [[0], [1], [2]]
    assert sorted(calls) == [[0], [1], [2]]


def test_work_and_decoding_take_turns(worker: Worker):
    seen = threading.Event()
    long = worker.generate([LONG], ENDLESS, on_token=lambda *_: seen.set())
    assert seen.wait(20)
    for number in range(5):
        before = worker.steps
        assert worker.run(lambda _, items: items, [number]).future.result(20) == [number]
        until(lambda before=before: worker.steps > before)
    assert not long.future.done()


def test_stop_refuses_new_jobs_and_finishes_the_accepted_ones(worker: Worker):
    gate = Gate(worker)
    jobs = [worker.generate([replace(LONG, max_tokens=5)], Options(min_tokens=5)) for _ in range(2)]
    work, stopped = worker.run(lambda _, items: items, [1]), []
    stopping = threading.Thread(target=lambda: stopped.append(worker.stop(20)))
    stopping.start()
    until(lambda: worker._stopping)
    with pytest.raises(Stopping):
        worker.generate([LONG], Options())
    with pytest.raises(Stopping):
        worker.run(lambda _, items: items, [2])
    gate.opened.set()
    stopping.join(20)
    assert stopped == [True]
    assert all(len(job.future.result(0)[0][0].tokens) == 5 for job in jobs)
    assert work.future.result(0) == [1]


def test_what_does_not_finish_within_the_grace_is_given_up(worker: Worker):
    job = worker.generate([LONG], ENDLESS)
    until(lambda: worker.steps > 0)
    assert not worker.stop(0.0)
    with pytest.raises(Stopping):
        job.future.result(20)


def test_the_worker_survives_whatever_a_step_raises(worker: Worker, monkeypatch: pytest.MonkeyPatch):
    def broken() -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as broken_search:
        broken_search.setattr(worker._search, "_admit", broken)
        with pytest.raises(MemoryError):
            worker.generate([LONG], Options()).future.result(20)
    assert worker.generate([replace(LONG, max_tokens=2)], Options()).future.result(20)
