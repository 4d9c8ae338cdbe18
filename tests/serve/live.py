"""A server in a thread of this process, and a plain HTTP client of it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

from regard.serve.app import create_app
from regard.serve.protocol import bind, make_server
from regard.serve.settings import Settings

WAIT = 60.0  # seconds


class Live:
    """A running server."""

    def __init__(self, app: Any, server: Any, port: int) -> None:
        self.app, self.server, self.port = app, server, port
        self.address = f"http://127.0.0.1:{port}"

    def __call__(
        self, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """GET a path, or POST a body to it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET" if sent is None else "POST", path, sent, given)
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.headers
        connection.close()
        return found

    def json(self, path: str, body: Any = None) -> Any:
        """The JSON of a reply that is good."""
        status, content, headers = self(path, body)
        assert (status, headers["Content-Type"]) == (200, "application/json"), content
        return json.loads(content)


@contextmanager
def live(
    models: Mapping[str, Any], settings: Settings | None = None, *, languages: Mapping[str, Any] | None = None,
    detector: Any = None, read: Any = None, ready: bool = True,
) -> Iterator[Live]:  # fmt: skip
    """Serve models until the end of the block."""
    settings = settings or Settings(port=0, grace_seconds=5.0)
    app, listening = (
        create_app(models, settings, languages=languages, detector=detector, read=read),
        bind("127.0.0.1", 0),
    )
    server = make_server(app, settings)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    found = Live(app, server, listening.getsockname()[1])
    try:
        ends = time.monotonic() + WAIT
        while found("/health")[0] != 200 and ready:
            assert time.monotonic() < ends, "the server is not ready"
            time.sleep(0.02)
        yield found
    finally:
        server.should_exit = True
        thread.join(WAIT)
