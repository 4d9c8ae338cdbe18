"""Tier C: the server answers right, or says no."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Callable, Coroutine
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tests.storm.rows import Case, Outcome, Row, tests

Part = Callable[[Any, dict[str, Path], int, int, Path], Coroutine[Any, Any, bool]]


def served(part: Part) -> Callable[[int, int, Path], Outcome]:
    """A part of `tests/serving.py`: all of its cases, or none; what it measured is the note."""

    def run(count: int, seed: int, folder: Path) -> Outcome:
        from tests import serving

        said = io.StringIO()
        with redirect_stdout(said):
            good = asyncio.run(part(serving, serving.make_models(folder), count, seed, folder))
        print(said.getvalue())
        return Outcome(count if good else 0, count, " ".join(said.getvalue().split())[:400])

    return run


def mutated_requests(count: int, seed: int, _folder: Path) -> Outcome:
    """Requests with bytes changed, lines doubled or dropped: no 5xx, no hang, and the server serves on."""
    from regard.serve.settings import Settings
    from tests.serve.live import live
    from tests.serve.test_guard import mutated, raw, reply_is_sound

    chance, cases = random.Random(seed), Case()
    with live(_models(), Settings(port=0, receive_seconds=0.2, grace_seconds=5.0)) as server:
        for number in range(count):
            content = mutated(chance)
            found = raw(server, content)
            cases.add(f"request {number}", "" if reply_is_sound(found) else f"{content[:200]!r}: {found[:200]!r}")
        assert server.json("/health") == {"status": "ok"}
    return cases.outcome()


def schema_requests(count: int, seed: int, _folder: Path) -> Outcome:
    """Requests that fit the schema, and such that do not (Schemathesis): no promise of the schema is broken."""
    from regard.serve.settings import Settings
    from tests.serve.live import live
    from tests.serve.test_schema import storm

    with live(_models(), Settings(port=0, grace_seconds=5.0), languages={"de-en": ("de", "en")}) as server:
        answered = storm(server, count, seed)  # raises at the first that breaks one
        assert server.json("/health") == {"status": "ok"}
    total = sum(answered.values())
    good = sum(number for status, number in answered.items() if status < 500 or status == 503)
    return Outcome(good, total, f"statuses {dict(sorted(answered.items()))}")


def _models() -> dict[str, Any]:
    """The models of the server's tests."""
    from tests.serve import conftest

    return dict(conftest.tiny.__wrapped__())


def batches(count: int, seed: int, _folder: Path) -> Outcome:
    """Requests decoded alone, and in batches that others join and leave: the same tokens."""
    import torch

    from tests.decode.test_continuous import CASES, assert_the_law

    cases, chance = Case(), random.Random(seed)
    with torch.no_grad():
        for number in range(-(-count // 5)):
            name, kind = CASES[chance.randrange(len(CASES))]
            fault = ""
            try:
                assert_the_law(name, kind, seed=number)
            except AssertionError as error:
                fault = str(error)[:200] or "different"
            for _ in range(5):  # requests of one search that are not cancelled
                cases.add(f"{name}, {kind}, seed {number}", fault)
    return cases.outcome()


OPENAI, GUARD = "tests/serve/test_openai.py", "tests/serve/test_guard.py"
ROWS = [
    Row("C1", "clients for 60 s, every answer compared with the model alone", 200, 3, served(
        lambda part, models, count, seed, _: part.many_clients(models, count, min(60.0, 0.3 * count), seed)), 20),
    Row("C2", "minutes of load at 80 %: memory and files stay as they were", 30, 31, served(
        lambda part, models, count, seed, _: part.soak(models, float(count), seed)), 1),
    Row("C3", "dropped requests leave the search", 200, 1, served(
        lambda part, models, count, seed, _: part.dropped(models, count, seed)), 20),
    Row("C4", "slow senders and as many slow readers", 100, 2, served(
        lambda part, models, count, seed, _: part.slow_clients(models, each=count, seconds=20.0, seed=seed)), 5),
    Row("C5", "SIGTERM with 20 requests in flight", 20, 4, served(
        lambda part, models, count, _, __: part.stopping(models, times=count, in_flight=20)), 1),
    Row("C6", "requests made from the schema, valid and not", 10_000, 12, schema_requests, 400),
    Row("C7", "malformed HTTP", 2_000, 4, mutated_requests, 20),
    Row("C8", "limits of parameters", 1, 1, tests(OPENAI, GUARD, "-k", "parameter or malformed or limits_the_body")),
    Row("C9", "requests alone and in random batches", 500, 5, batches, 5),
    Row("C10", "one failing request leaves its neighbours right", 1, 1, tests(
        "tests/serve/test_worker.py", OPENAI, "-k", "fail or survives or neighbour")),
    Row("C11", "weights replaced, cut and deleted while they are served", 3, 1, served(
        lambda part, models, _, seed, folder: part.replaced(models, folder, seed)), 3),
    Row("C12", "the clients of OpenAI and LibreTranslate", 1, 1, tests(
        OPENAI, "tests/serve/test_libretranslate.py")),
]  # fmt: skip
