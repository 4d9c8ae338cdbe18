"""Searches in processes of their own: the answers of decoding alone, whatever ends first, and nothing that is left."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.api import LoadedModel
from regard.decode.continuous import ContinuousSearch, Partial
from regard.decode.generate import Request, generate_texts
from regard.decode.options import Options
from regard.decode.terms import Constraints
from regard.errors import InputError
from regard.serve.pool import WorkerPool
from regard.serve.processes import AVAILABLE, ProcessSearch, SearchFailed
from regard.serve.settings import Settings
from regard.serve.worker import SearchHere, Stopping
from tests.decode.test_continuous import LETTERS, failing_for
from tests.laws.zoo import BEGIN

from .live import live
from .test_command import process
from .test_worker import ENDLESS, LONG, model, until  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="searches have processes of their own on Linux only")
BAD = 39  # a token


def state_of(number: int) -> list[str]:
    """The state of a process and its parent, as /proc has them; a process that ended and was not waited for is "Z"."""
    with suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[:2]
    return ["Z", ""]


def exists(number: int) -> bool:
    return state_of(number)[0] != "Z"


def children_of(number: int) -> list[int]:
    every = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [one for one in every if state_of(one)[1] == str(number)]


def processes_of(pool: WorkerPool) -> list[int]:
    found = [worker._search.process for worker in pool.workers]  # type: ignore[attr-defined]
    assert None not in found
    return found


@pytest.fixture
def make(model: LoadedModel) -> Iterator[Callable[..., WorkerPool]]:  # noqa: F811
    """Starts a pool; its processes are what the test changed of the model by then."""
    pools: list[WorkerPool] = []

    def start(workers: int = 2) -> WorkerPool:
        pools.append(pool := WorkerPool(model, workers=workers))
        pool.start()
        return pool

    yield start
    for pool in pools:
        running = [number for worker in pool.workers if (number := getattr(worker._search, "process", None))]
        pool.stop(0)
        for worker in pool.workers:
            worker._thread.join(20)
            assert not worker._thread.is_alive()
        assert not any(map(exists, running))


def test_several_workers_search_in_processes_and_one_in_its_thread(make):
    assert all(isinstance(worker._search, ProcessSearch) for worker in make().workers)
    assert isinstance(make(1).workers[0]._search, SearchHere)


def test_a_model_with_own_parts_is_searched_in_the_thread(make, model: LoadedModel):  # noqa: F811
    class Own(torch.nn.Identity):
        """A part of the caller's own."""

    model.network.own = Own()
    (worker,) = make().workers
    assert isinstance(worker._search, SearchHere)
    assert worker.generate([replace(LONG, max_tokens=3)], Options()).future.result(20)


def test_what_cannot_be_pickled_is_in_the_processes_all_the_same(make, model: LoadedModel):  # noqa: F811
    decode, inside = model.network.decode, lambda: os.getpid()
    parent = os.getpid()

    def own(*given: object):
        assert inside() != parent
        return decode(*given)

    model.network.decode = own  # type: ignore[method-assign]
    assert make().generate([replace(LONG, max_tokens=3)], Options()).future.result(20)


def test_streams_get_each_token_with_its_logprobs(make, model: LoadedModel):  # noqa: F811
    options, request = Options(temperature=1.0, n_best=2, min_tokens=6), Request((BEGIN, 7), None, 9, seed=3)
    heard: list[Partial] = []
    job = make().generate([request], options, on_token=lambda _, new: heard.append(new), top_logprobs=2)
    found = job.future.result(20)[0]
    here = ContinuousSearch(model.network, LETTERS)
    told: list[Partial] = []
    ticket = here.add(request, options, on_token=told.append, top_logprobs=2)
    while here.busy:
        here.step()
    assert heard == told
    assert found == ticket.result
    assert len(heard) > 10


def test_a_listener_that_fails_ends_its_own_request_only(make):
    pool = make(2)
    job = pool.generate([LONG], ENDLESS, on_token=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job.future.result(20)
    until(lambda: pool.running == 0)
    assert_stands_still(pool)


def assert_stands_still(pool: WorkerPool) -> None:
    """No search goes on."""
    steps = -1
    while steps != pool.steps:
        steps = pool.steps
        time.sleep(0.1)
    assert pool.running == 0


def test_a_cancelled_request_leaves_its_process(make, model: LoadedModel):  # noqa: F811
    pool = make()
    seen = threading.Event()
    jobs = [pool.generate([LONG], ENDLESS, on_token=lambda *_: seen.set()) for _ in range(4)]
    assert seen.wait(20)
    stays = pool.generate([Request((BEGIN, 9), None, 60)], Options(min_tokens=60))
    for job in jobs:
        job.cancel()
    expected = generate_texts(model.network, LETTERS, [Request((BEGIN, 9), None, 60)], Options(min_tokens=60))[0]
    assert [text.tokens for text in stays.future.result(20)[0]] == [text.tokens for text in expected]
    assert_stands_still(pool)


def test_a_request_does_not_wait_for_the_end_of_another(make):
    pool = make()
    long = [pool.generate([LONG], ENDLESS) for _ in range(2)]
    until(lambda: pool.running == 2)
    assert all(pool.generate([replace(LONG, max_tokens=3)], Options()).future.result(20) for _ in range(4))
    assert pool.run(lambda _, items: items, [1]).future.result(20) == [1]
    assert not any(job.future.done() for job in long)


def test_the_steps_of_all_processes_are_counted(make):
    pool = make()
    jobs = [pool.generate([replace(LONG, max_tokens=20)], Options(min_tokens=20)) for _ in range(2)]
    assert all(job.future.result(20) for job in jobs)
    assert pool.steps == 40
    os.kill(processes_of(pool)[0], signal.SIGKILL)
    jobs = [pool.generate([replace(LONG, max_tokens=20)], Options(min_tokens=20)) for _ in range(2)]
    assert all(job.future.result(20) for job in jobs)
    assert pool.steps == 80


def test_the_failure_of_one_row_leaves_its_neighbours_right(
    make, model: LoadedModel, monkeypatch: pytest.MonkeyPatch  # noqa: F811
):  # fmt: skip
    options = Options(min_tokens=8, suppress_tokens=(BAD,))
    requests = [Request((BEGIN, 5 + number), None, 10) for number in range(4)]
    expected = [generate_texts(model.network, LETTERS, [request], options)[0] for request in requests]
    failing_for(model.network, BAD, monkeypatch)
    pool = make()
    bad = pool.generate([Request((BEGIN, BAD), None, 10)], options)
    found = [pool.generate([request], options).future.result(20)[0] for request in requests]
    assert [texts[0].tokens for texts in found] == [texts[0].tokens for texts in expected]
    with pytest.raises(SearchFailed, match=r"in failing\n.*\nRuntimeError: a row is bad"):
        bad.future.result(20)


def test_a_request_that_a_search_refuses_is_refused_with_its_reason(make):
    job = make().generate([replace(LONG, constraints=Constraints(("a",)))], Options())
    with pytest.raises(InputError, match="does not honour constraints"):
        job.future.result(20)


def test_requests_of_a_process_that_is_killed_are_retried(make, model: LoadedModel):  # noqa: F811
    options, requests = Options(min_tokens=100), [Request((BEGIN, 5 + number), None, 100) for number in range(6)]
    expected = [generate_texts(model.network, LETTERS, [request], options)[0] for request in requests]
    pool, heard = make(), list[int]()
    jobs = [pool.generate([request], options) for request in requests[1:]]
    jobs.insert(0, pool.generate(requests[:1], options, on_token=lambda _, new: heard.append(len(new.tokens))))
    until(lambda: len(heard) > 3)
    killed = processes_of(pool)
    for number in killed:
        os.kill(number, signal.SIGKILL)
    found = [job.future.result(60)[0] for job in jobs]
    assert [texts[0].tokens for texts in found] == [texts[0].tokens for texts in expected]
    assert heard == [*range(1, 101)]
    assert not set(killed) & set(processes_of(pool))
    assert not any(map(exists, killed))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_goes_on_after_a_signal_to_all_processes(make, number: signal.Signals):
    pool, heard = make(), list[int]()
    options = Options(min_tokens=100)
    jobs = [
        pool.generate([Request((BEGIN, 5), None, 100)], options, on_token=lambda _, new: heard.append(len(new.tokens)))
        for _ in range(2)
    ]
    until(lambda: len(heard) > 3)
    signalled = processes_of(pool)
    for one in signalled:
        os.kill(one, number)
    assert [len(job.future.result(60)[0][0].tokens) for job in jobs] == [100, 100]
    assert processes_of(pool) == signalled  # and not others, which were begun to retry the requests
    assert all(map(exists, signalled))


def test_a_request_that_ends_its_process_fails_and_its_neighbours_do_not(
    make, model: LoadedModel, monkeypatch: pytest.MonkeyPatch  # noqa: F811
):  # fmt: skip
    decode, parent = model.network.decode, os.getpid()

    def ending(ids: torch.Tensor, *given: object):
        if (ids == BAD).any() and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return decode(ids, *given)

    options = Options(min_tokens=30, suppress_tokens=(BAD,))
    requests = [Request((BEGIN, 5 + number), None, 30) for number in range(4)]
    expected = [generate_texts(model.network, LETTERS, [request], options)[0] for request in requests]
    monkeypatch.setattr(model.network, "decode", ending)
    pool = make()
    jobs = [pool.generate([request], options) for request in [*requests, Request((BEGIN, BAD), None, 10)]]
    found = [job.future.result(60)[0] for job in jobs[:4]]
    assert [texts[0].tokens for texts in found] == [texts[0].tokens for texts in expected]
    with pytest.raises(SearchFailed, match="the process that decoded this request has ended"):
        jobs[4].future.result(60)
    assert pool.generate(requests[:1], options).future.result(20)[0][0].tokens == expected[0][0].tokens


def test_an_idle_process_that_is_killed_is_replaced(make):
    pool = make()
    for number in processes_of(pool):
        os.kill(number, signal.SIGKILL)
    jobs = [pool.generate([replace(LONG, max_tokens=3)], Options()) for _ in range(2)]
    assert all(job.future.result(20) for job in jobs)


def test_requests_fail_while_no_process_can_start_and_not_after(make, monkeypatch: pytest.MonkeyPatch):
    def unable() -> int:
        raise BlockingIOError("too many processes")

    pool = make()
    with monkeypatch.context() as full:
        full.setattr(os, "fork", unable)
        for number in processes_of(pool):
            os.kill(number, signal.SIGKILL)
        with pytest.raises(SearchFailed):
            pool.generate([LONG], ENDLESS).future.result(20)
    assert pool.generate([replace(LONG, max_tokens=3)], Options()).future.result(20)


def test_a_process_has_one_thread_that_computes(make):
    pool = make()
    jobs = [pool.generate([LONG], ENDLESS, on_token=lambda *_: None) for _ in range(2)]
    until(lambda: pool.running == 2)
    assert {len(os.listdir(f"/proc/{number}/task")) for number in processes_of(pool)} == {2}
    for job in jobs:
        job.cancel()


def test_what_does_not_finish_within_the_grace_ends_with_its_process(make):
    pool = make()
    job = pool.generate([replace(LONG, max_tokens=100_000)], Options(min_tokens=100_000))
    until(lambda: pool.running == 1)
    running = processes_of(pool)
    assert not pool.stop(0.0)
    with pytest.raises(Stopping):
        job.future.result(20)
    until(lambda: not any(map(exists, running)))


def test_a_stopped_pool_finishes_what_its_processes_have(make):
    pool = make()
    jobs = [pool.generate([replace(LONG, max_tokens=100)], Options(min_tokens=100)) for _ in range(4)]
    running = processes_of(pool)
    assert pool.stop(20)
    assert all(len(job.future.result(0)[0][0].tokens) == 100 for job in jobs)
    assert not any(Path(f"/proc/{number}").exists() for number in running)


def test_a_process_inherits_no_connection(tiny: dict[str, LoadedModel]):
    """Also not one that was open when it began, as a second process begins only after the first was killed."""
    with live({"writer": tiny["endless"]}, Settings(port=0, workers=2, grace_seconds=1.0)) as server:
        pool = server.app.state.models["writer"].workers
        open_one = http.client.HTTPConnection("127.0.0.1", server.port)
        open_one.connect()
        for number in processes_of(pool):
            os.kill(number, signal.SIGKILL)
        jobs = [pool.generate([replace(LONG, max_tokens=3)], Options()) for _ in range(2)]
        assert all(job.future.result(20) for job in jobs)
        for number in processes_of(pool):
            files = [os.readlink(path) for path in Path(f"/proc/{number}/fd").iterdir() if int(path.name) > 2]
            assert [file.partition(":")[0] for file in files] == ["socket"], files
        open_one.close()


@pytest.mark.parametrize("in_flight", [0, 4])
def test_no_process_is_left_when_the_server_is_killed(folder: Path, in_flight: int):
    with process(folder, "--workers", "2", "--threads", "2") as served:
        asked = {
            "model": "writer",
            "prompt": "The cat",
            "max_tokens": 4000,
            "temperature": 0,
            "logit_bias": {"2": -100},
        }

        def ask() -> None:
            with suppress(OSError, http.client.HTTPException):
                served.ask("/v1/completions", asked)

        threads = [threading.Thread(target=ask) for _ in range(in_flight)]
        for thread in threads:
            thread.start()
        until(lambda: served.running() == in_flight)
        children = children_of(served.process.pid)
        assert len(children) == 2
        served.process.kill()
        try:
            until(lambda: not any(map(exists, children)))
        finally:
            for number in filter(exists, children):
                os.kill(number, signal.SIGKILL)
        for thread in threads:
            thread.join(20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_lets_what_is_in_flight_finish(folder: Path, number: signal.Signals):
    with process(folder, "--workers", "2", "--threads", "2") as served:
        asked = {"model": "writer", "prompt": "The cat", "max_tokens": 800, "temperature": 0, "logit_bias": {"2": -100}}
        found: list[tuple[int, dict]] = []
        threads = [
            threading.Thread(target=lambda: found.append(served.ask("/v1/completions", asked))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        until(lambda: served.running() == 4)
        children = children_of(served.process.pid)
        for one in (*children, served.process.pid):
            os.kill(one, number)
        for thread in threads:
            thread.join(60)
        code, errors = served.end(None)
        assert [(status, reply["usage"]["completion_tokens"]) for status, reply in found] == [(200, 800)] * 4
        assert code == (0 if number == signal.SIGTERM else 130)
        assert "Traceback" not in errors
        assert not any(map(exists, children))
