"""Limits of the server that no reply shows: keys compared in constant time, heads cut off before their end."""

from __future__ import annotations

import hmac
import socket

import pytest

from regard.serve import guard

from .live import Live


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    assert guard.is_key("secret", "secret")
    assert not guard.is_key("secreT", "secret")
    assert not guard.is_key(None, "secret")
    assert compared == [(b"secret", b"secret"), (b"secreT", b"secret")]


def test_a_long_head_is_refused_before_its_end(server: Live):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000)
        found = connection.recv(1 << 16)  # the head has not ended, and never will
    assert found.startswith(b"HTTP/1.1 4")
