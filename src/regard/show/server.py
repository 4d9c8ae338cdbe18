"""Local HTTP server of the page, which also answers requests for exact weights, another text and ablations."""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch
from torch import Tensor

from regard.errors import InputError, RegardError
from regard.progress import QUIET, Progress
from regard.show.ablation import ablate
from regard.show.html import json_text, page
from regard.show.payload import TracePage, page_payload
from regard.show.trace import AttentionTrace

_MAX_REQUEST = 1 << 20  # bytes
_MAX_TILES = 1024  # per side
_TIMEOUT = 30.0  # seconds without data from a client

TraceText = Callable[[str, str | None], TracePage]
"""A text, and perhaps its target -> the page that shows them."""


class PageServer(ThreadingHTTPServer):
    """Serves one page at a time on this machine, under a secret path."""

    daemon_threads = True

    def __init__(self, shown: TracePage, trace_text: TraceText, port: int = 0, *, progress: Progress = QUIET) -> None:
        self.trace_text, self.lock, self.revision = trace_text, Lock(), 0
        self.base_path = f"/{secrets.token_urlsafe(16)}"
        try:
            super().__init__(("127.0.0.1", port), _RequestHandler)
        except (OSError, OverflowError) as error:
            raise InputError(f"port {port} cannot be used ({error}). Leave out --port to use a free one.") from None
        self.show(shown, progress)

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://127.0.0.1:{self.server_port}{self.base_path}/"

    @property
    def allowed_hosts(self) -> tuple[str, str]:
        """The allowed Host headers; under DNS rebinding a page from elsewhere sends another."""
        return f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}"

    def show(self, shown: TracePage, progress: Progress = QUIET) -> None:
        """Serve this page from now on; requests from older pages are refused."""
        payload, blobs = page_payload(shown.traces, slider=shown.slider, live=self.base_path, progress=progress)
        self.revision += 1
        self.shown, self.payload = shown, ({**payload, "revision": self.revision}, blobs)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early; print any other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def weights(self, request: Mapping[str, str]) -> Tensor:
        """A part of a head's attention matrix, max-pooled to at most `size` tiles per side."""
        trace = self.requested_trace(request)
        name = request.get("layer", "")
        if name not in trace.layers:
            raise InputError(f"no layer is named {name!r}. Known: {', '.join(trace.layers)}.")
        shape = trace.layers[name].shape
        head, size = _number(request, "head", shape.heads), max(1, _number(request, "size", _MAX_TILES + 1))
        (first, last), columns = _span(request, "rows", shape.queries), _span(request, "columns", shape.keys)
        step = -(-(last - first) // size)
        found = [
            max_pool(trace.rows(name, head, at, min(at + step, last))[:, slice(*columns)], 1, size)
            for at in range(first, last, max(1, step))
        ]
        return torch.cat(found) if found else torch.zeros(0, 0)

    def trace(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Trace another text."""
        text, target = request.get("text"), request.get("target") or None
        if not isinstance(text, str) or not (target is None or isinstance(target, str)):
            raise InputError("text and target must be strings.")
        self.show(self.trace_text(text, target))
        payload, blobs = self.payload
        return {"page": payload, "blobs": [base64.b64encode(blob).decode() for blob in blobs]}

    def ablate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Switch heads off."""
        heads = request.get("heads")
        if not isinstance(heads, list) or not all(_is_head(head) for head in heads):
            raise InputError('heads must be a list of layers and numbers, like [["decoder.0.self", 2]].')
        example = self.requested_trace(request).example
        assert example is not None, "a served trace has an example"
        off, inputs = [(name, number) for name, number in heads], example.collector.inputs
        return ablate(example.network, example.tokenizers, inputs, example.target_ids, off, options=example.options)

    def requested_trace(self, request: Mapping[str, Any]) -> AttentionTrace:
        """The trace that a request is about, if its page is the one served now."""
        if str(request.get("revision", self.revision)) != str(self.revision):
            raise InputError("another window has loaded another text. Reload this page.")
        return self.shown.traces[_number(request, "trace", len(self.shown.traces))][1]


def max_pool(weights: Tensor, rows: int, columns: int) -> Tensor:
    """T x S -> at most rows x columns tiles, the maximum of each."""
    height, width = (max(1, -(-length // most)) for length, most in zip(weights.shape, (rows, columns)))
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[1] % width, 0, -weights.shape[0] % height))
    tiles: Tensor = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height))
    return tiles.amax((1, 3))


class _RequestHandler(BaseHTTPRequestHandler):
    """One request."""

    server: PageServer
    server_version, sys_version, protocol_version, timeout = "regard", "", "HTTP/1.1", _TIMEOUT

    def do_GET(self) -> None:
        """The page, or weights."""
        path = urlsplit(self.path)
        if path.path == f"{self.server.base_path}/":
            self._answer(lambda: ("text/html; charset=utf-8", page(*self.server.payload).encode()))
        elif path.path == f"{self.server.base_path}/weights":
            self._answer(lambda: self._bytes(self.server.weights(dict(parse_qsl(path.query)))))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here.")

    def do_POST(self) -> None:
        """Trace another text, or ablate heads."""
        base, server = self.server.base_path, self.server
        endpoints = {f"{base}/trace": server.trace, f"{base}/ablate": server.ablate}
        length = self.headers.get("Content-Length", "")
        if self.path not in endpoints:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here.")
        elif not length.isdecimal() or int(length) > _MAX_REQUEST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send {_MAX_REQUEST:,} bytes at most.")
        else:
            body = self.rfile.read(int(length))
            self._answer(lambda: ("application/json", json_text(endpoints[self.path](_object(body))).encode()))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _bytes(self, weights: Tensor) -> tuple[str, bytes]:
        self.shape = ",".join(map(str, weights.shape))
        return "application/octet-stream", weights.half().contiguous().numpy().tobytes()

    def _answer(self, make: Callable[[], tuple[str, bytes]]) -> None:
        if self.headers.get("Host") not in self.server.allowed_hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "this page is for this machine only.")
            return
        try:
            with self.server.lock, torch.inference_mode():
                kind, body = make()
        except RegardError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        except Exception as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
            return
        self._send(HTTPStatus.OK, kind, body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # the rest of the request is not read
        self._send(status, "application/json", json.dumps({"error": why}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        shape = {"X-Shape": self.shape} if status == HTTPStatus.OK and kind == "application/octet-stream" else {}
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **shape, **_STRICT}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


_STRICT = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError("the request is not a JSON object.")
    return found


def _number(request: Mapping[str, Any], name: str, below: int) -> int:
    try:
        number = int(request.get(name, 0))
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < below:
        raise InputError(f"{name} must be a number below {below:,}.")
    return number


def _span(request: Mapping[str, str], name: str, length: int) -> tuple[int, int]:
    try:
        first, last = map(int, request.get(name, "").split(":"))
    except ValueError:
        first, last = 0, -1
    if not 0 <= first <= last <= length:
        raise InputError(f"{name} must be two numbers up to {length:,}, like 0:{length}.")
    return first, last


def _is_head(head: Any) -> bool:
    return isinstance(head, list) and [type(part) for part in head] == [str, int]
