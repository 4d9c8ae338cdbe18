"""No verb connects to anywhere, whatever stands where a model, a text or a recipe should; by an audit hook."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.storm import b
from tests.storm.children import is_outbound


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> b.Place:
    return b.Place(tmp_path_factory.mktemp("place"))


def outbound(place: b.Place, command: tuple[str, ...], model: object, text: object = None) -> list[str]:
    return [event for event in place.run(command, model, text).events if event.startswith("socket")]


@pytest.mark.parametrize("verb", b.MODEL_VERBS)
def test_a_verb_that_reads_a_model_connects_to_nothing(place: b.Place, verb: str):
    number = [*b.MODEL_VERBS].index(verb)
    assert outbound(place, b.MODEL_VERBS[verb], place.good) == []
    for address in b.ELSEWHERE[number % 6 :: 6]:
        assert outbound(place, b.MODEL_VERBS[verb], address) == [], address


@pytest.mark.parametrize("verb", b.FILE_VERBS)
def test_a_verb_that_reads_a_text_connects_to_nothing(place: b.Place, verb: str):
    for address in b.ELSEWHERE[::3]:
        assert outbound(place, b.FILE_VERBS[verb], place.good, address) == [], address


def test_a_server_connects_to_nothing(tmp_path: Path):
    assert b.served_addresses(tmp_path) == ""


def test_connections_beyond_this_machine_are_noticed():
    with socket.socket() as one:
        assert is_outbound("socket.connect", (one, ("192.0.2.1", 80)))
        assert not is_outbound("socket.connect", (one, ("127.0.0.1", 80)))
    assert is_outbound("socket.getaddrinfo", ("example.com", 80, 0, 0, 0))
    assert not is_outbound("socket.getaddrinfo", ("localhost", 80, 0, 0, 0))
