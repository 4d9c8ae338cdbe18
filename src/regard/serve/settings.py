"""Settings of the server: address, API key, allowed hosts, CORS origins, limits and deadlines."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from regard.errors import InputError
from regard.store.languages import LANGUAGE_CODE
from regard.store.languages import Pair as Pair

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """What the server accepts; every limit is checked before any work is done."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: a free one
    api_key: str | None = None
    hosts: tuple[str, ...] = ()  # allowed Host headers besides those of `host` itself; "*" allows all
    cors: tuple[str, ...] = ()  # origins whose pages may read replies; "*" allows all

    max_body: int = 2_000_000  # bytes
    max_characters: int = 50_000  # per text
    max_items: int = 256  # texts per request
    max_lines: int = 2_000  # lines per request to translate
    max_tokens: int = 4_096  # new tokens per text
    max_choices: int = 8  # n, best_of, alternatives, beam
    max_rows: int = 512  # texts x choices per request
    max_stops: int = 16
    max_stop_characters: int = 200
    max_logprobs: int = 20
    max_bias: int = 1_024  # tokens of logit_bias
    max_files: int = 32  # translated files that are kept for download
    max_waiting: int = 64  # requests per model
    workers: int | None = None  # requests that a model decodes on different cores; None: as many as torch has threads

    receive_seconds: float = 20.0  # to send a whole request
    write_seconds: float = 20.0  # a reader slower than 1 kB per second over this time is dropped
    keep_alive_seconds: int = 5  # between two requests of a connection
    grace_seconds: float = 30.0  # to finish what is in flight when the server stops

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    def allows_host(self, name: str) -> bool:
        """Whether a Host header (without its port) names this server.

        Under DNS rebinding a page from elsewhere sends a name of its own, never an address: a server that listens
        beyond this machine allows every address.
        """
        name = name.lower().rstrip(".")
        allowed = {*LOOPBACK, self.host.lower(), *(host.lower() for host in self.hosts)}
        return name in allowed or "*" in allowed or (not self.is_local and is_address(name))


def is_address(name: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is this machine only."""
    return host in LOOPBACK or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def parse_languages(text: str) -> tuple[str, Pair]:
    """NAME=de:en -> the name of a model and its languages."""
    name, equals, pair = text.rpartition("=")
    source, colon, target = pair.partition(":")
    if (
        not (name and equals and colon and LANGUAGE_CODE.fullmatch(source) and LANGUAGE_CODE.fullmatch(target))
        or source == target
    ):
        raise InputError(f'"{text}" is not a model and its languages (--languages). Write NAME=de:en.')
    return name, (source, target)
