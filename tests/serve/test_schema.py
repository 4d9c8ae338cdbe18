"""Schemathesis over /openapi.json: requests inside and outside of the schema, replies checked against it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from .live import Live

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection, unsupported_method,
]  # fmt: skip

ABLE = {
    "CompletionRequest": ["writer", "endless", "de-en"],
    "EmbeddingRequest": ["writer", "filler", "de-en"],
    "ScoreRequest": ["writer", "filler"],
    "FillRequest": ["filler", "spans"],
    "ClassifyRequest": ["labels"],
}


def narrowed(server: Live) -> dict[str, Any]:
    """The server's schema with values that reach a model more often: served names, languages, few tokens."""
    schema = server.json("/openapi.json")
    models = schema["components"]["schemas"]
    for name, able in ABLE.items():
        models[name]["properties"]["model"]["enum"] = able
    for name in ("max_tokens", "n", "best_of", "beam", "logprobs"):
        models["CompletionRequest"]["properties"][name]["anyOf"][0]["maximum"] = 8
    for name in ("TranslateRequest", "TranslateFileForm"):
        models[name]["properties"]["source"]["enum"] = ["de", "auto", "source"]
        models[name]["properties"]["target"]["enum"] = ["en", "target"]
    return dict(schema)


def storm(server: Live, count: int, number: int) -> Counter[int]:
    """Send about `count` requests, half of them within the schema; -> how often each status was answered."""
    schema = schemathesis.openapi.from_dict(narrowed(server))
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 14
    posts = [operation for operation in operations if operation.method == "post"]
    answered: Counter[int] = Counter()
    for operation in operations:
        share = count // (2 * len(posts)) if operation in posts else max(2, count // 100)
        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
            if mode == GenerationMode.NEGATIVE and operation not in posts:
                continue  # nothing to get wrong
            strategy = operation.as_strategy(mode)

            @seed(number)
            @settings(max_examples=share, phases=[Phase.generate], database=None, deadline=None,
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            @given(case=strategy)
            def send(case: schemathesis.Case) -> None:
                found = case.call_and_validate(base_url=server.address, checks=CHECKS)
                answered[found.status_code] += 1

            send()
    return answered


def test_500_requests_break_no_promise_of_the_schema(server: Live):
    answered = storm(server, 500, 0)
    assert answered[200] > 50
    assert answered[400] > 50
    assert server.json("/health") == {"status": "ok"}


@pytest.mark.storm
def test_10000_requests_break_no_promise_of_the_schema(server: Live):
    answered = storm(server, 10_000, 1)
    print(answered, "seed 1")
    assert sum(answered.values()) >= 10_000
    assert server.json("/health") == {"status": "ok"}


def test_every_error_that_the_server_gives_is_in_the_schema(server: Live):
    schema = server.json("/openapi.json")
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            expected = {"400", "401", "408", "413", "421", "500", "503"}
            assert expected <= set(operation["responses"]), path
            assert "422" not in operation["responses"]
    assert not json.dumps(schema).count("#/$defs")
