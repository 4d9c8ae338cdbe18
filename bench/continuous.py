"""Continuous batching against offline batched decoding of the same sentences, in one thread, without a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.harness import Result, compare
from regard.api import LoadedModel
from regard.decode.continuous import ContinuousSearch
from regard.decode.generate import GeneratedText, Request, generate_texts, translation_requests
from regard.decode.options import Options


@dataclass(frozen=True)
class Batching:
    """The speeds of one kind of search, and the answers that differ between the two."""

    result: Result
    different: int


def measure(model: LoadedModel, texts: Sequence[str], *, beam: int, clients: int, rounds: int) -> Batching:
    """Sentences per second of processor time: offline, and with so many requests in flight."""
    options = replace(model.defaults(), beam=beam)
    requests = translation_requests(model.network, model.tokenizers, texts, options)
    found: dict[str, list[str]] = {}

    def block(name: str, work: Callable[[], list[list[GeneratedText]]]) -> Callable[[], float]:
        def timed() -> float:
            start = time.process_time()
            found[name] = [texts[0].text for texts in work()]
            return len(requests) / (time.process_time() - start)

        return timed

    contestants = {
        "offline": block("offline", lambda: generate_texts(model.network, model.tokenizers[1], requests, options)),
        f"{clients} in flight": block("continuous", lambda: continuous(model, requests, options, clients)),
    }
    result = compare("continuous", contestants, rounds)
    return Batching(result, sum(one != other for one, other in zip(found["offline"], found["continuous"])))


def continuous(
    model: LoadedModel, requests: Sequence[Request], options: Options, clients: int
) -> list[list[GeneratedText]]:
    """Each request as soon as one of those in flight has ended."""
    search, left = ContinuousSearch(model.network, model.tokenizers[1]), list(reversed(requests))
    tickets = [search.add(left.pop(), options) for _ in range(min(clients, len(left)))]
    while search.busy:
        for _ in search.step():
            if left:
                tickets.append(search.add(left.pop(), options))
    return [ticket.result or [] for ticket in tickets]
