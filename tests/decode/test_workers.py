"""Worker threads: the same results as in one thread, torch's settings untouched, errors and Ctrl-C at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from regard.decode import generate, inputs
from regard.decode.options import Options
from regard.decode.workers import Workers, can_share
from regard.models import zoo
from regard.models.readouts import Label
from tests.laws.zoo import MODELS
from tests.small import TEXTS, small

MANY = [" ".join(text.split()[:size]) for text in TEXTS for size in range(1, 9)]
WAIT = 60


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small batches, and two threads until the end of the test."""
    before = torch.get_num_threads()
    monkeypatch.setattr(inputs, "MAX_ROWS", 4)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def network() -> Any:
    return small(zoo.transformer(16, 1, 2)).network


def seen_threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that search, as they do."""
    names: set[str] = set()
    plain = generate.search

    def search(*given: Any, **options: Any) -> Any:
        names.add(threading.current_thread().name)
        assert torch.get_num_threads() == 1 or threading.current_thread() is threading.main_thread()
        return plain(*given, **options)

    monkeypatch.setattr(generate, "search", search)
    return names


translator = small(MODELS["pre-norm"], generation_config={"max_length": 12})
writer = small(zoo.gpt2(16, 1, 2), generation_config={"max_length": 12})
bert = small(MODELS["bert"])
labels = small(replace(MODELS["bert"], readout=Label(("good", "bad")), auxiliary=None))

WORK: dict[str, Callable[[], Any]] = {
    "beam": lambda: translator.translations(MANY, replace(translator.defaults(), beam=3, n_best=2)),
    "samples": lambda: writer.continuations(MANY, Options(max_tokens=6, temperature=1.0, n_best=2)),
    "embed": lambda: bert.embed(MANY).tolist(),
    "tokens": lambda: [row.tolist() for _, row in bert.embed(MANY, tokens=True)],
    "classify": lambda: labels.classify(MANY),
    "score": lambda: writer.scores(MANY),
    "pairs": lambda: translator.scores(MANY, MANY),
    "masked": lambda: bert.scores(MANY[:6]),
    "fill": lambda: bert.fill([f"[MASK] {text}" for text in MANY]),
}


@pytest.mark.parametrize("name", WORK)
def test_the_number_of_threads_changes_nothing(name: str):
    torch.set_num_threads(1)
    alone = WORK[name]()
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert WORK[name]() == alone
        assert torch.get_num_threads() == threads


def test_batches_are_searched_in_several_threads_of_one_thread_each(monkeypatch: pytest.MonkeyPatch):
    names = seen_threads(monkeypatch)
    done: list[float] = []
    translator.translations(MANY, progress=done.append)
    assert names == {"regard-batches"}
    assert sum(done) == len(MANY)


def test_one_batch_stays_in_the_callers_thread(monkeypatch: pytest.MonkeyPatch):
    names = seen_threads(monkeypatch)
    translator.translate(MANY[:3])
    assert names == {"MainThread"}


def test_a_callback_at_each_step_is_called_in_order(monkeypatch: pytest.MonkeyPatch):
    names = seen_threads(monkeypatch)
    requests = generate.translation_requests(translator.network, translator.tokenizers, MANY, translator.defaults())
    generate.generate_texts(
        translator.network, translator.target_tokenizer, requests, translator.defaults(), on_step=lambda *_: None
    )
    assert names == {"MainThread"}


def test_the_callers_number_of_threads_is_untouched_in_new_threads_too():
    torch.set_num_threads(2)
    assert {torch.get_num_threads() for _ in Workers(network()).run(range(6), lambda number: number)} == {2}
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert counts == [2]


def test_no_gradient_is_kept_in_a_worker():
    weights = torch.ones(2, requires_grad=True)
    found = [result for _, result in Workers(network()).run(range(4), lambda number: (weights * number).requires_grad)]
    assert found == [False] * 4


def test_an_error_is_raised_at_once_and_ends_the_other_batches():
    workers, began = Workers(network()), threading.Event()

    def work(number: int) -> None:
        if number == 1:
            assert began.wait(WAIT)
            raise ValueError("row 1")
        began.set()
        while True:  # as a search that goes on for long
            workers.check()

    with pytest.raises(ValueError, match="row 1"):
        list(workers.run(range(10), work))
    assert "regard-batches" not in {thread.name for thread in threading.enumerate()}


def test_ctrl_c_ends_the_work_at_once():
    workers, started = Workers(network()), []

    def work(number: int) -> None:
        started.append(number)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        while True:
            workers.check()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(workers.run(range(10), work))
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(started) == [0, 1]
    assert "regard-batches" not in {thread.name for thread in threading.enumerate()}


def test_a_caller_who_stops_reading_ends_the_work():
    for batch, _ in Workers(network()).run(count(), lambda number: number):
        if batch == 3:
            break
    assert "regard-batches" not in {thread.name for thread in threading.enumerate()}


def test_what_may_keep_state_is_not_shared():
    class Own(torch.nn.Linear):
        pass

    shared = network()
    assert can_share(shared.eval())
    assert not can_share(shared.train())
    handle = shared.eval().register_forward_hook(lambda *_: None)
    assert not can_share(shared)
    handle.remove()
    assert can_share(shared)
    shared.own = Own(2, 2)
    assert not can_share(shared)
    assert Workers(shared).count == 1


def test_vectors_are_those_of_each_text_alone():
    together, alone = bert.embed(MANY), np.concatenate([bert.embed([text]) for text in MANY])
    np.testing.assert_allclose(together, alone, atol=1e-5)
