"""The page on a local port: the same front end, which may ask for weights, another text, and heads switched off."""

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
from regard.show.ablation import without
from regard.show.page import json_text, page
from regard.show.payload import Shown, packed
from regard.show.trace import Seen

_LONGEST_REQUEST = 1 << 20
_MOST_TILES = 1024  # on a side
_PATIENCE = 30.0  # seconds that a client may stay silent

Again = Callable[[str, str | None], Shown]
"""A text, and perhaps what is said of it -> what there is to see."""


class Live(ThreadingHTTPServer):
    """Shows one page at a time to whoever knows its secret address on this machine."""

    daemon_threads = True

    def __init__(self, shown: Shown, again: Again, port: int = 0) -> None:
        self.again, self.one_at_a_time, self.turn = again, Lock(), 0
        self.place = f"/{secrets.token_urlsafe(16)}"
        try:
            super().__init__(("127.0.0.1", port), _Asked)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"port {port} cannot be used ({error}). Leave out --port, and a free one is found."
            ) from None
        self.show(shown)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://127.0.0.1:{self.server_port}{self.place}/"

    @property
    def names(self) -> tuple[str, str]:
        """What this machine is called by those who may ask; a page from elsewhere that leads here has another name."""
        return f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}"

    def show(self, shown: Shown) -> None:
        """What there is to see from now on; pages that show something else are told so when they ask."""
        payload, blobs = packed(shown.looks, slider=shown.slider, live=self.place)
        self.turn += 1
        self.shown, self.payload = shown, ({**payload, "turn": self.turn}, blobs)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who goes away before the answer is there needs none; anything else is said."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def weights(self, wanted: Mapping[str, str]) -> Tensor:
        """The greatest weight in each tile of a part of a head's matrix; the weights themselves where they are few."""
        seen = self.look_asked(wanted)
        name = wanted.get("layer", "")
        if name not in seen.layers:
            raise InputError(f"no layer is named {name!r}. Known: {', '.join(seen.layers)}.")
        shape = seen.layers[name].shape
        head, size = _number(wanted, "head", shape.heads), max(1, _number(wanted, "size", _MOST_TILES + 1))
        (first, last), columns = _span(wanted, "rows", shape.queries), _span(wanted, "columns", shape.keys)
        step = -(-(last - first) // size)
        found = [
            tiled(seen.rows(name, head, at, min(at + step, last))[:, slice(*columns)], 1, size)
            for at in range(first, last, max(1, step))
        ]
        return torch.cat(found) if found else torch.zeros(0, 0)

    def look(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Read another text."""
        text, target = wanted.get("text"), wanted.get("target") or None
        if not isinstance(text, str) or not (target is None or isinstance(target, str)):
            raise InputError("text and target must be texts.")
        self.show(self.again(text, target))
        payload, blobs = self.payload
        return {"page": payload, "blobs": [base64.b64encode(blob).decode() for blob in blobs]}

    def off(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Switch heads off."""
        heads = wanted.get("heads")
        if not isinstance(heads, list) or not all(_is_head(head) for head in heads):
            raise InputError('heads must be a list of layers and numbers, like [["decoder.0.self", 2]].')
        text = self.look_asked(wanted).text
        assert text is not None, "what is shown was looked at here"
        off, inputs = [(name, number) for name, number in heads], text.reading.inputs
        return without(text.network, text.tokenizers, inputs, text.said, off, options=text.options)

    def look_asked(self, wanted: Mapping[str, Any]) -> Seen:
        """The look that is asked about, by a page that shows what is shown now."""
        if str(wanted.get("turn", self.turn)) != str(self.turn):
            raise InputError("another text is shown by now, in another window. Load this page again.")
        return self.shown.looks[_number(wanted, "look", len(self.shown.looks))][1]


def tiled(weights: Tensor, rows: int, columns: int) -> Tensor:
    """T x S -> at most rows x columns: the greatest in each tile."""
    height, width = (max(1, -(-length // most)) for length, most in zip(weights.shape, (rows, columns)))
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[1] % width, 0, -weights.shape[0] % height))
    tiles: Tensor = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height))
    return tiles.amax((1, 3))


class _Asked(BaseHTTPRequestHandler):
    """One request."""

    server: Live
    server_version, sys_version, protocol_version, timeout = "regard", "", "HTTP/1.1", _PATIENCE

    def do_GET(self) -> None:
        """The page, or weights."""
        path = urlsplit(self.path)
        if path.path == f"{self.server.place}/":
            self._answer(lambda: ("text/html; charset=utf-8", page(*self.server.payload).encode()))
        elif path.path == f"{self.server.place}/weights":
            self._answer(lambda: self._bytes(self.server.weights(dict(parse_qsl(path.query)))))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here.")

    def do_POST(self) -> None:
        """Another text, or heads switched off."""
        does = {f"{self.server.place}/look": self.server.look, f"{self.server.place}/off": self.server.off}
        length = self.headers.get("Content-Length", "")
        if self.path not in does:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here.")
        elif not length.isdecimal() or int(length) > _LONGEST_REQUEST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send {_LONGEST_REQUEST:,} bytes at most.")
        else:
            body = self.rfile.read(int(length))
            self._answer(lambda: ("application/json", json_text(does[self.path](_object(body))).encode()))

    def log_message(self, format: str, *words: Any) -> None:
        """Say nothing."""

    def _bytes(self, weights: Tensor) -> tuple[str, bytes]:
        self.shape = ",".join(map(str, weights.shape))
        return "application/octet-stream", weights.half().contiguous().numpy().tobytes()

    def _answer(self, make: Callable[[], tuple[str, bytes]]) -> None:
        if self.headers.get("Host") not in self.server.names:
            self._refuse(HTTPStatus.FORBIDDEN, "this page is for this machine only.")
            return
        try:
            with self.server.one_at_a_time, torch.inference_mode():
                kind, body = make()
        except RegardError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        except Exception as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
            return
        self._send(HTTPStatus.OK, kind, body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # what else was sent is not read
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
        raise InputError("the request is no JSON object.")
    return found


def _number(wanted: Mapping[str, Any], name: str, below: int) -> int:
    try:
        number = int(wanted.get(name, 0))
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < below:
        raise InputError(f"{name} must be a number below {below:,}.")
    return number


def _span(wanted: Mapping[str, str], name: str, length: int) -> tuple[int, int]:
    try:
        first, last = map(int, wanted.get(name, "").split(":"))
    except ValueError:
        first, last = 0, -1
    if not 0 <= first <= last <= length:
        raise InputError(f"{name} must be two numbers up to {length:,}, like 0:{length}.")
    return first, last


def _is_head(head: Any) -> bool:
    return isinstance(head, list) and [type(part) for part in head] == [str, int]
