"""HTTP/1.1 for the server: uvicorn's h11 protocol with deadlines for slow senders and slow readers; `run_server`."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import InputError
from regard.serve.settings import Settings

_LEAST_RATE = 1_024  # bytes per second that a reader must take
_MAX_HEAD = 65_536  # bytes of a request before its body
_RECEIVING = (h11.IDLE, h11.SEND_BODY)
_SWITCH_SECONDS = 0.0005  # that a thread may hold Python's lock while another waits; Python's default is ten times that


class JoinedWrites:
    """A transport that sends the head of a reply together with what follows it: one system call for both.

    A call lets another thread have Python's lock, and while models compute, getting it back takes longer than the call.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport, self.loop, self.held = transport, loop, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        """Hold the first data until the next, or until the event loop has nothing else to do now."""
        if self.held:
            self._send(data)
        elif data:
            self.held = data
            self.loop.call_soon(self._send)

    def close(self) -> None:
        """Send what is held, and close."""
        self._send()
        self.transport.close()

    def _send(self, data: bytes = b"") -> None:
        data, self.held = self.held + data, b""
        if data:
            self.transport.write(data)


class DeadlineProtocol(H11Protocol):
    """Drops a client that does not send a whole request in time, or does not read its reply."""

    receive_seconds = write_seconds = 20.0
    receive_timer: asyncio.TimerHandle | None = None
    write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` tells of every byte that waits
        self._start_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE:
            self._start_receiving()
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # a faulty body after the reply
            self.transport.abort()
        self._check_received()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._start_receiving()  # a part of the next request came with this one
        self._check_received()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; once a reply has begun, the connection can only be closed."""
        self._refuse(400, "the request is not valid HTTP/1.1", "bad_http")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_writing()
        waiting = self.transport.get_write_buffer_size()
        self.write_timer = self.loop.call_later(self.write_seconds, self._check_written, waiting)

    def resume_writing(self) -> None:
        self._stop_writing()
        super().resume_writing()

    def _start_receiving(self) -> None:
        if self.receive_timer is None:
            self.receive_timer = self.loop.call_later(self.receive_seconds, self._too_slow)

    def _check_received(self) -> None:
        """Stop the clock once a request is complete; between requests uvicorn's own clock runs."""
        between = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if self.conn.their_state not in _RECEIVING or between:
            self._stop_receiving()

    def _stop_receiving(self) -> None:
        if self.receive_timer is not None:
            self.receive_timer.cancel()
            self.receive_timer = None

    def _stop_writing(self) -> None:
        if self.write_timer is not None:
            self.write_timer.cancel()
            self.write_timer = None

    def _too_slow(self) -> None:
        self.receive_timer = None
        self._refuse(408, f"the request did not arrive within {self.receive_seconds:g} s", "timeout")

    def _check_written(self, before: int) -> None:
        """Drop a reader that took less than the least rate since `before` bytes waited."""
        waiting = self.transport.get_write_buffer_size()
        if before - waiting < _LEAST_RATE * self.write_seconds:
            self.transport.abort()
            return
        self.write_timer = self.loop.call_later(self.write_seconds, self._check_written, waiting)

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Refuse a request that no route gets to see, and close the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete and self.cycle.response_started:
            self.transport.abort()
            return
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        kind, size = (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())
        reply = h11.Response(status_code=status, headers=[kind, size, (b"connection", b"close")])
        with suppress(h11.LocalProtocolError):  # a reply to the request before has just been sent
            for event in (reply, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server; it remembers the signal that stops it."""

    stopped_by = 0

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop; meanwhile the event loop need not wait long for workers that compute."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            super().run(sockets)
        finally:
            sys.setswitchinterval(before)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As in uvicorn, but a stop by a signal is a good end: the signal is not raised again."""
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stopped_by = self.stopped_by or sig
        super().handle_exit(sig, frame)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at this address."""
    try:
        if not 0 <= port <= 65_535:  # getaddrinfo takes it modulo 65,536
            raise OverflowError("it is not between 0 and 65,535")
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(2048)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"port {port} of {host} cannot be used: {why} (--host, --port). Choose another.") from None
    return found


def address_of(found: socket.socket) -> str:
    """The address of a bound socket, for a browser."""
    host, port = found.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: FastAPI, settings: Settings) -> Server:
    """The server of an app made by `create_app`, which `run(sockets=[bind(host, port)])` starts."""
    deadlines = {"receive_seconds": settings.receive_seconds, "write_seconds": settings.write_seconds}
    config = uvicorn.Config(
        app, http=type("Protocol", (DeadlineProtocol,), deadlines), ws="none", loop="asyncio", lifespan="on",
        log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_seconds, timeout_graceful_shutdown=math.ceil(settings.grace_seconds),
        h11_max_incomplete_event_size=_MAX_HEAD,
    )  # fmt: skip
    return Server(config)


def run_server(app: FastAPI, settings: Settings, *, on_ready: Callable[[str], None] = lambda address: None) -> int:
    """Serve an app until a signal; -> the signal. `on_ready` gets the address when all models are loaded."""
    listening = bind(settings.host, settings.port)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # rubbish from outside is no news
    server = make_server(app, settings)
    failures: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    app.state.on_ready, app.state.on_failure = partial(on_ready, address_of(listening)), fail
    server.run(sockets=[listening])
    if failures:
        raise failures[0]
    return server.stopped_by if server.stopped_by != signal.SIGTERM else 0
