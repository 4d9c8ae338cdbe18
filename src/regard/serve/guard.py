"""The guard before every route, a pure ASGI middleware: Host check, API key, body limit, error shapes, metrics.

It reads the whole body before the route runs, and it cancels the route as soon as the client is gone.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

from starlette._utils import get_route_path

from regard.serve.metrics import Metrics
from regard.serve.models import Models
from regard.serve.refusal import Refusal, refusal_of, shown
from regard.serve.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_ROUTES = frozenset({"/health"})  # need no key
WHILE_LOADING = frozenset({"/docs", "/openapi.json", "/metrics"})  # need no model
AUTHORIZED = "regard_authorized"  # key of the scope: the request has shown the API key
_CLIENT_GONE = 499
_HOST = re.compile(r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]/@\s]*))(:\d{1,5})?")
_SAFE = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))


class Guard:
    """Wraps the app; `key_in_body` are the paths whose body or query may hold the API key (LibreTranslate's)."""

    def __init__(
        self, app: App, *, models: Models, settings: Settings, metrics: Metrics, key_in_body: Iterable[str] = ()
    ) -> None:
        self.app, self.models, self.settings, self.metrics = app, models, settings, metrics
        self.key_in_body = tuple(key_in_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, reply = time.monotonic(), Reply(send)
        try:
            await self._admitted(scope, receive, reply)
        except (Exception, asyncio.CancelledError) as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            if not reply.started:
                refused = Refusal(503, "server is stopping", code="stopping") if cancelled else refusal_of(error)
                await reply.refuse(refused, get_route_path(scope))
            elif not cancelled:
                refusal_of(error)  # logs it; the reply cannot be taken back
                raise
            if cancelled:
                raise
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self.metrics.count_request(route, reply.status, time.monotonic() - started)

    async def _admitted(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Check a request, read its body, and run the route until it ends or its client is gone."""
        path, headers = get_route_path(scope), Headers(scope)
        self._require_host(headers)
        scope[AUTHORIZED] = path in OPEN_ROUTES or self._has_key(headers)
        if not scope[AUTHORIZED] and not self._key_may_follow(path):
            raise missing_key(headers)
        self._require_ready(path)
        body = await read_body(receive, headers, self.settings.max_body)
        if body is None:
            reply.status = _CLIENT_GONE
            return
        gone = asyncio.create_task(_disconnected(receive))
        work = asyncio.create_task(_run(self.app, scope, _replay(body, gone), reply))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not reply.complete:
                reply.status = reply.status or _CLIENT_GONE
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                return
            await work
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    def _require_host(self, headers: Headers) -> None:
        """Refuse a foreign Host: a page from elsewhere could reach this server by DNS rebinding."""
        host = headers.get("host")
        match = _HOST.fullmatch(host)
        name = "" if match is None else match["v6"] or match["name"]
        if not name or not self.settings.allows_host(name):
            message = f"Host {shown(host)} is not allowed; see --allow-host"
            raise Refusal(421, message, code="wrong_host")

    def _has_key(self, headers: Headers) -> bool:
        return self.settings.api_key is None or is_key(headers.given_key, self.settings.api_key)

    def _key_may_follow(self, path: str) -> bool:
        """Whether a route looks for the key in its body or its query; a path that ends in / stands for all below."""
        return any(path == one or (one.endswith("/") and path.startswith(one)) for one in self.key_in_body)

    def _require_ready(self, path: str) -> None:
        if self.models.stopping:
            raise Refusal(503, "server is stopping", code="stopping")
        if not self.models.ready and not self.models.loading:  # mounted in another app, which runs no lifespan of ours
            self.models.start_loading()
        if not self.models.ready and path not in WHILE_LOADING:
            done, count = len(self.models), len(self.models.given)
            raise Refusal(503, f"model is loading ({done} of {count} ready)", code="loading")


class Headers:
    """The headers of a request."""

    def __init__(self, scope: Scope) -> None:
        self.raw: list[tuple[bytes, bytes]] = scope["headers"]

    def get(self, name: str) -> str:
        """The value of a header; several are refused, since two readers might choose differently."""
        found = [value for key, value in self.raw if key == name.encode()]
        if len(found) > 1:
            raise Refusal(400, f"the header {name} occurs {len(found)} times; send it once", code="bad_header")
        return found[0].decode("latin-1").strip() if found else ""

    @property
    def given_key(self) -> str | None:
        """The API key of the Authorization header: a bearer token, or the password that a browser asked for."""
        kind, _, value = self.get("authorization").partition(" ")
        if kind.lower() == "bearer":
            return value.strip()
        if kind.lower() == "basic":
            with suppress(binascii.Error, ValueError):
                return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        return None


class Reply:
    """Sends a reply, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self.send, self.status, self.started, self.complete = send, 0, False, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            known = {name for name, _ in message.get("headers", [])}
            message["headers"] = [*message.get("headers", []), *(pair for pair in _SAFE if pair[0] not in known)]
        else:
            self.complete = not message.get("more_body", False)
        await self.send(message)

    async def refuse(self, refusal: Refusal, path: str) -> None:
        """Send a refusal in the shape of the path."""
        body = refusal.body(path)
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": refusal.status, "headers": raw})
        await self({"type": "http.response.body", "body": body, "more_body": False})


def is_key(given: object, key: str) -> bool:
    """Compare an API key in constant time."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), key.encode())


def missing_key(headers: Headers | None = None) -> Refusal:
    """The refusal of a request without the API key; a browser that opens a page asks its user for it."""
    asks = headers is not None and "text/html" in headers.get("accept")
    scheme = 'Basic realm="regard: the API key is the password"' if asks else "Bearer"
    headers_ = {"WWW-Authenticate": scheme}
    return Refusal(401, "missing or wrong API key", code="invalid_api_key", headers=headers_)


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes | None:
    """The whole body, or None if the client is gone; one above the limit is refused before it is read to its end."""
    length = headers.get("content-length")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(int(length[:20]), limit)
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        found += message.get("body", b"")
        if len(found) > limit:
            raise _too_large(len(found), limit)
        if not message.get("more_body", False):
            return bytes(found)


def _too_large(size: int, limit: int) -> Refusal:
    message = f"body is {size / 1e6:.1f} MB, limit {limit / 1e6:g} MB"
    return Refusal(413, message, code="body_too_large")


async def _run(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _replay(body: bytes, gone: asyncio.Task[None]) -> Receive:
    """A receive that gives the body that was read already, then waits for the client to be gone."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.wait({gone})
        return {"type": "http.disconnect"}

    return receive
