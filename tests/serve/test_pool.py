"""The workers of a served model: requests on several cores, one limit of what waits, threads shared, one end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from regard.api import LoadedModel
from regard.decode.generate import generate_texts
from regard.decode.options import Options
from regard.serve.pool import WorkerPool
from regard.serve.worker import QueueFull, Stopping
from tests.decode.test_continuous import LETTERS, some_requests

from .test_worker import ENDLESS, LONG, Gate, model, until  # noqa: F401 (a fixture)


@pytest.fixture
def pool(model: LoadedModel) -> Iterator[WorkerPool]:  # noqa: F811
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    found = WorkerPool(model, max_waiting=3)
    found.start()
    yield found
    found.stop(0)
    for worker in found.workers:
        worker._thread.join(20)
        assert not worker._thread.is_alive()
    torch.set_num_threads(before)


def threads_used(_: LoadedModel, items: list[Any]) -> list[int]:
    return [torch.get_num_threads()] * len(items)


def test_requests_run_at_once_on_different_workers(pool: WorkerPool):
    gates = [Gate(pool), Gate(pool)]  # the second is reached while the first still holds its worker
    assert (pool.running, pool.waiting) == (2, 0)
    for gate in gates:
        gate.opened.set()
    assert [gate.job.future.result(20) for gate in gates] == [[None], [None]]


def test_jobs_of_a_pool_get_the_texts_of_decoding_alone(model: LoadedModel, pool: WorkerPool):  # noqa: F811
    requests = some_requests(model.network, 9, seed=1)
    jobs = [pool.generate(requests[start : start + 3], Options(beam=2)) for start in (0, 3, 6)]
    found = [texts for job in jobs for texts in job.future.result(20)]
    for texts, request in zip(found, requests):
        expected = generate_texts(model.network, LETTERS, [request], Options(beam=2))[0]
        assert [text.text for text in texts] == [text.text for text in expected]
    assert all(worker.steps for worker in pool.workers)
    assert pool.steps == sum(worker.steps for worker in pool.workers)


def test_the_limit_of_what_waits_is_that_of_the_model(pool: WorkerPool):
    gates = [Gate(pool), Gate(pool)]
    jobs = [pool.run(lambda _, items: items, [number]) for number in range(3)]
    assert [worker.waiting for worker in pool.workers] in ([1, 2], [2, 1])
    with pytest.raises(QueueFull, match="3 requests waiting, limit 3"):
        pool.generate([LONG], Options())
    for gate in gates:
        gate.opened.set()
    assert [job.future.result(20) for job in jobs] == [[0], [1], [2]]


def test_a_lone_worker_uses_all_threads_and_two_share_them(pool: WorkerPool):
    assert pool.run(threads_used, [None]).future.result(20) == [2]
    gate = Gate(pool)
    assert pool.run(threads_used, [None]).future.result(20) == [1]
    gate.opened.set()
    until(lambda: pool.running == 0)
    assert pool.run(threads_used, [None]).future.result(20) == [2]
    assert torch.get_num_threads() == 2


def test_pinned_work_stays_in_one_thread(pool: WorkerPool):
    worker = pool.pin()
    names = {worker.run(lambda _, items: [threading.get_ident()], [None]).future.result(20)[0] for _ in range(4)}
    assert len(names) == 1


def test_a_stopped_pool_finishes_and_refuses(pool: WorkerPool):
    gate = Gate(pool)
    job = pool.generate([LONG], ENDLESS)
    until(lambda: pool.steps > 0)
    gate.opened.set()
    assert not pool.stop(0.05)
    with pytest.raises(Stopping):
        job.future.result(20)
    with pytest.raises(Stopping):
        pool.run(lambda _, items: items, [1])


def test_a_model_that_threads_cannot_share_has_one_worker(model: LoadedModel):  # noqa: F811
    model.network.register_forward_hook(lambda *_: None)
    assert len(WorkerPool(model, workers=4).workers) == 1


def test_the_number_of_workers_can_be_chosen(model: LoadedModel):  # noqa: F811
    assert len(WorkerPool(model, workers=3).workers) == 3
