"""Serving: many clients against offline batched decoding, a lone request against direct decoding, the first token."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

from bench.harness import Result, compare, per_second
from regard.api import LoadedModel
from regard.decode.generate import translation_requests
from regard.serve.app import create_app
from regard.serve.models import ServedModel
from regard.serve.protocol import bind, make_server
from regard.serve.settings import Settings

_READY = 60.0  # seconds until a server must answer


@dataclass(frozen=True)
class Serving:
    """The speeds, and the answers that differ from those of offline decoding."""

    throughput: Result
    lone: Result
    first: list[float]  # seconds until the first token of a stream
    whole: list[float]  # seconds of the whole stream
    clients: float  # seconds of processor that the clients took per request
    different: int


def measure(model: LoadedModel, texts: Sequence[str], *, clients: int, rounds: int, alone: int) -> Serving:
    """Offline decoding, clients of the workers and clients over HTTP, in turns; then single requests and streams.

    `alone` is the number of texts of the lone requests and of the streams.
    """
    some, answers, processor = list(texts[:alone]), {}, list[float]()
    with serving(model, clients) as (served, port):

        def offline() -> float:
            answers["offline"] = model.translate(list(texts))
            return len(texts)

        def over_http() -> float:
            found = ask(do="all", port=port, texts=list(texts), clients=clients)
            answers["HTTP"] = found["texts"]
            processor.append(found["processor"] / len(texts))
            return float(len(texts) / found["seconds"])

        def direct() -> float:
            for text in some:
                model.translate(text)
            return len(some)

        def lone() -> float:
            return float(len(some) / ask(do="all", port=port, texts=some, clients=1)["seconds"])

        throughput = compare(
            "serving",
            {
                "offline": per_second(offline),
                f"{clients} clients of the workers": per_second(lambda: through_workers(served, texts, clients)),
                f"{clients} clients over HTTP": over_http,
            },
            rounds,
        )
        single = compare("lone", {"direct": per_second(direct), "over HTTP": lone}, rounds)
        streams = ask(do="first", port=port, texts=some)
    different = sum(one != other for one, other in zip(answers["offline"], answers["HTTP"]))
    return Serving(throughput, single, streams["first"], streams["whole"], statistics.median(processor), different)


def through_workers(served: ServedModel, texts: Sequence[str], clients: int) -> float:
    """All texts, each client with one job at a time."""
    model, left = served.model, iter(range(len(texts)))
    options = model.defaults()

    def client() -> None:
        for index in left:  # a range iterator is safe to share between threads
            requests = translation_requests(model.network, model.tokenizers, [texts[index]], options)
            served.generate(requests, options).future.result()

    threads = [Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(texts)


@contextmanager
def serving(model: LoadedModel, clients: int) -> Iterator[tuple[ServedModel, int]]:
    """The model over HTTP on a free port until the end of the block; -> the model with its workers, and the port."""
    settings, listening = Settings(port=0, max_waiting=max(64, clients)), bind("127.0.0.1", 0)
    app = create_app({"served": model}, settings)
    server, port = make_server(app, settings), int(listening.getsockname()[1])
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        ends = time.monotonic() + _READY
        while not app.state.models.ready and time.monotonic() < ends:
            time.sleep(0.02)
        yield app.state.models["served"], port
    finally:
        server.should_exit = True
        thread.join()


def ask(**wanted: object) -> dict[str, Any]:
    """What clients in a process of their own measured."""
    command = [sys.executable, "-m", "bench.clients"]
    run = subprocess.run(command, input=json.dumps(wanted), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def facts(found: Serving, clients: int) -> dict[str, str]:
    """What the row says besides its table."""
    over = found.throughput.ratio(f"{clients} clients over HTTP", "offline")
    lone = found.lone.ratio("direct", "over HTTP")
    first, whole = (1000 * statistics.median(seconds) for seconds in (found.first, found.whole))
    return {
        "throughput": f"{over.median:.2f} ({over.low:.2f} to {over.high:.2f}) of offline decoding, over HTTP",
        "a lone request": f"takes {lone.median:.2f} ({lone.low:.2f} to {lone.high:.2f}) times as long as decoding it "
        "directly",
        "stream": f"first token after {first:.0f} ms, all after {whole:.0f} ms (greedy, medians)",
        "clients": f"{1000 * found.clients:.2f} ms of processor per request, on the same cores",
        "answers": f"{found.different:,} differ from those of offline decoding",
    }
