"""The guard before every route: key, host, body limits, malformed requests, slow and dropped clients."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import regard.serve
from regard.api import LoadedModel
from regard.serve.settings import Settings

from .conftest import KEY
from .live import Live, live

Models = dict[str, LoadedModel]
WAIT = 5.0  # seconds until a reply
ENDLESS = {"model": "endless", "prompt": "The", "max_tokens": 4_000, "temperature": 0}


def routes_of(routes: Any) -> Iterator[tuple[str, str]]:
    """The method and path of every route of an app, those of included routers too."""
    for route in routes:
        if hasattr(route, "original_router"):
            yield from routes_of(route.original_router.routes)
        else:
            path = re.sub(r"\{[^}]+\}", "something", route.path)
            yield from ((method, path) for method in route.methods)


def ask(
    server: Live, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    found = reply.status, reply.read(), reply.headers
    connection.close()
    return found


def raw(server: Live, content: bytes, *, wait: float = WAIT) -> bytes:
    """What the server replies to some bytes, until it closes or has said a whole reply."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        found = b""
        with suppress(OSError):  # closed before all was sent; the reply may be there nevertheless
            connection.sendall(content)
        ends = time.monotonic() + wait
        while time.monotonic() < ends:
            try:
                some = connection.recv(1 << 16)
            except ConnectionError:
                break
            if not some:
                break
            found += some
            head, blank, rest = found.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
            if blank and content.startswith(b"HEAD"):
                break
            length = re.search(rb"content-length: (\d+)", head.lower())
            if blank and length and len(rest) >= int(length[1]):
                break
        else:
            raise AssertionError(f"no reply within {wait} s")
        return found


def shape_is_right(path: str, content: bytes) -> bool:
    """Whether an error has the shape of its route."""
    error = json.loads(content)["error"]
    if path.startswith("/v1/"):
        return set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str)
    return isinstance(error, str)


def test_there_are_routes_to_guard(server: Live):
    found = set(routes_of(server.app.routes))
    assert {("POST", "/v1/completions"), ("POST", "/translate"), ("GET", "/"), ("GET", "/metrics")} <= found
    assert len(found) > 20


def test_every_route_but_health_needs_the_key(locked: Live):
    for method, path in routes_of(locked.app.routes):
        body = b"{}" if method == "POST" else None
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {KEY}x"}):
            status, content, answered = ask(locked, method, path, body, **headers)
            assert status == (200 if path == "/health" else 401), (method, path)
            assert path == "/health" or (shape_is_right(path, content) and answered["WWW-Authenticate"])
        assert ask(locked, method, path, body, Authorization=f"Bearer {KEY}")[0] not in (401, 500), (method, path)
    assert ask(locked, "GET", "/nowhere")[0] == 401
    assert ask(locked, "POST", "/translate", b"no JSON")[0] == 401


def test_a_browser_is_asked_for_the_key_as_a_password(locked: Live):
    asked = ask(locked, "GET", "/", Accept="text/html")
    assert asked[0] == 401
    assert asked[2]["WWW-Authenticate"].startswith("Basic")
    password = base64.b64encode(f"anybody:{KEY}".encode()).decode()
    assert ask(locked, "GET", "/", Authorization=f"Basic {password}")[0] == 200
    assert ask(locked, "GET", "/", Authorization="Basic nonsense")[0] == 401


def test_every_route_refuses_a_foreign_host(server: Live):
    for method, path in routes_of(server.app.routes):
        status, content, _ = ask(server, method, path, b"{}" if method == "POST" else None, Host="evil.example")
        assert status == 421, (method, path)
        assert b"Host 'evil.example' is not allowed; see --allow-host" in content
        assert shape_is_right(path, content)
    for host in ("localhost", "127.0.0.1", f"localhost:{server.port}", "[::1]:80"):
        assert ask(server, "GET", "/health", Host=host)[0] == 200
    for host in ("127.0.0.1.evil.example", "localhost@evil", "0x7f.1", "", "8.8.8.8", "localhost:x"):
        assert ask(server, "GET", "/health", Host=host)[0] in (400, 421), host


def test_other_hosts_are_allowed_by_name_and_addresses_where_the_server_is_open():
    assert Settings(hosts=("models.example",)).allows_host("Models.Example")
    assert not Settings().allows_host("10.0.0.3")
    beyond = Settings(host="0.0.0.0", api_key="x")
    assert beyond.allows_host("10.0.0.3")
    assert not beyond.allows_host("evil.example")


def test_every_route_limits_the_body(server: Live):
    for method, path in routes_of(server.app.routes):
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
        found = raw(server, head + b"Content-Length: 5100000\r\n\r\n" + b"x" * 100)
        assert found.startswith(b"HTTP/1.1 413"), (method, path)
        assert b"body is 5.1 MB, limit 2 MB" in found
        chunk = b"186a0\r\n" + b"x" * 100_000 + b"\r\n"
        found = raw(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + 21 * chunk + b"0\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 413"), (method, path)


def test_pages_from_elsewhere_may_not_read_replies_unless_asked(server: Live, tiny: Models):
    asked = {"Origin": "https://elsewhere.example", "Access_Control_Request_Method": "POST"}
    assert "Access-Control-Allow-Origin" not in ask(server, "GET", "/health", **asked)[2]
    assert ask(server, "OPTIONS", "/translate", **asked)[0] == 405
    settings = Settings(port=0, cors=("https://elsewhere.example",), api_key=KEY, grace_seconds=5.0)
    with live({"writer": tiny["writer"]}, settings) as shared:
        assert ask(shared, "OPTIONS", "/translate", **asked)[0] == 200  # a browser asks without the key
        refused = ask(shared, "POST", "/translate", b"{}", **asked)
        assert refused[0] == 401
        assert refused[2]["Access-Control-Allow-Origin"] == "https://elsewhere.example"
        assert "Access-Control-Allow-Origin" not in ask(shared, "GET", "/health", Origin="https://other.example")[2]


BODIES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b'{"model": "writer" "prompt"}', "body is not JSON: expecting ',' delimiter at byte 19"),
    "nothing": (b"", "body is not JSON: expecting value at byte 0"),
    "a list": (b"[]", "body must be a JSON object"),
    "NaN": (b'{"model": "writer", "prompt": "x", "temperature": NaN}', "NaN is not a number"),
    "minus infinity": (b'{"model": "writer", "prompt": "x", "temperature": -Infinity}', "-Infinity"),
    "a huge float": (b'{"model": "writer", "prompt": "x", "temperature": 1e999}', "temperature"),
    "5,000 digits": (b'{"seed": ' + b"9" * 5_000 + b"}", "an integer has 5,000 digits"),
    "a surrogate": (rb'{"model": "writer", "prompt": "abcdef\ud83d"}', "unpaired surrogate (U+D83D) at position 6"),
    "a surrogate as a name": (rb'{"\ud83d": 1}', "unpaired surrogate"),
    "a name twice": (b'{"model": "writer", "model": "other", "prompt": "x"}', "a name occurs twice"),
    "deep": (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "deep objects": (b'{"a":' * 100_000, "nested too deeply"),
    "not UTF-8": (b'{"prompt": "\xff"}', "body is not UTF-8 at byte 12"),
    "UTF-16": ('{"prompt": "x"}'.encode("utf-16"), "body is not UTF-8"),
    "a NUL": (b'{"prompt": "\x00"}', "body is not JSON: invalid control character at byte 12"),
}  # fmt: skip


@pytest.mark.parametrize("what", BODIES)
def test_a_malformed_body_is_400_and_never_repeated(server: Live, what: str):
    body, why = BODIES[what]
    status, content, _ = ask(server, "POST", "/v1/completions", body, Content_Type="application/json")
    assert status == 400
    assert why in json.loads(content)["error"]["message"]
    assert len(content) < 600
    status, content, _ = ask(server, "POST", "/translate", body, Content_Type="application/json")
    assert status == 400
    assert isinstance(json.loads(content)["error"], str)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content_Type": "application/json; charset=latin-1"}, b"{}"),
        ({"Content_Type": "application/json; charset=utf-16"}, b"{}"),
        ({"Content_Type": "text/plain"}, b"{}"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, b"model=writer"),
        ({"Content_Encoding": "gzip"}, gzip.compress(b" " * 1_000_000)),
    ],
)
def test_another_media_type_is_415(server: Live, headers: dict[str, str], body: bytes):
    status, content, _ = ask(server, "POST", "/v1/completions", body, **headers)
    assert (status, shape_is_right("/v1/", content)) == (415, True)


def test_a_form_with_a_million_fields_is_refused(server: Live):
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    assert ask(server, "POST", "/translate", b"&".join([b"a=1"] * 400_000), **kind)[0] == 400
    assert ask(server, "POST", "/translate", b"q=%ff&source=de&target=en", **kind)[0] == 400
    broken = {"Content_Type": "multipart/form-data; boundary=x"}
    for body in (
        b"",
        b"--x",
        b"--x\r\n\r\n\r\n--x--",
        b"--y\r\n" * 10,
        b'--x\r\nContent-Disposition: form-data; name="q"',
    ):
        assert ask(server, "POST", "/translate", body, **broken)[0] == 400, body
    assert ask(server, "POST", "/translate", b"", Content_Type="multipart/form-data")[0] == 400


NAMES = (
    "../../etc/passwd",
    "/etc/passwd",
    "hf:gpt2",
    "http://169.254.169.254/",
    "file:///etc",
    "..%2f..",
    "a\x00b",
    "",
)


def test_a_name_of_a_model_never_becomes_a_path_or_a_download(server: Live):
    for name in NAMES:
        body = json.dumps({"model": name, "prompt": "x"}).encode()
        status, content, _ = ask(server, "POST", "/v1/completions", body)
        assert status == 404
        assert "is not served here; available: de-en" in json.loads(content)["error"]["message"]


HOST = b"Host: localhost\r\n"
POST = b"POST /translate HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def get(path: bytes, method: bytes = b"GET") -> bytes:
    """A request for a path."""
    return method + b" " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"


def post(*headers: bytes) -> bytes:
    """A request with a small body and some headers."""
    return POST + b"".join(header + b"\r\n" for header in headers) + b"Content-Length: 2\r\n\r\n{}"


RAW = [
    b"",
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"\x00" * 100 + b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + HOST + b"Host: evil\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 1_000_000,
    get(b"/" + b"a" * 1_000_000),
    get(b"/\xff"),
    get(b"http://[::1"),
    get(b"/%00%ff%2e%2e/"),
    get(b"//etc/passwd"),
    get(b"/static/../../x"),
    get(b"/static/%2e%2e%2f%2e%2e%2fx"),
    get(b"/v1/models/%ed%a0%bd"),
    get(b"/page/run?model=%ff&after=%00"),
    get(b"/attention/x/weights?rows=9e9:1"),
    get(b"*", b"OPTIONS"),
    get(b"localhost:80", b"CONNECT"),
    get(b"/", b"TRACE"),
    get(b"/health", b"BREW"),
    get(b"/", b"HEAD"),
    POST + b"Content-Length: -1\r\n\r\n",
    POST + b"Content-Length: x\r\n\r\n",
    POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    post(b"Content-Length: 3"),
    post(b"Transfer-Encoding: chunked"),
    post(b"Transfer-Encoding: gzip"),
    post(b"Expect: 100-continue"),
    post(b"Upgrade: websocket", b"Connection: Upgrade"),
    post(b"Content-Type: application/json", b"Content-Type: text/plain"),
    post(b"Authorization: \xff\xfe"),
    post(b" folded: x"),
    post() + b"garbage\r\n\r\n" * 3,
    CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"-5\r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"ffffffffffffffffff\r\n",
    CHUNKED + b"2\r\n{}XX0\r\n\r\n",
]


def reply_is_sound(found: bytes) -> bool:
    """Whether a reply to rubbish is none, or not a fault of the server's."""
    match = re.match(rb"HTTP/1\.1 (\d{3})", found)
    return (not found) or (match is not None and int(match[1]) < 500)


@pytest.mark.parametrize("content", RAW, ids=range(len(RAW)))
def test_rubbish_gets_no_5xx_and_no_traceback(locked: Live, content: bytes):
    found = raw(locked, content)  # it waits at most 1 s for the rest of a request
    assert reply_is_sound(found), found[:200]
    assert b"Traceback" not in found
    assert ask(locked, "GET", "/health")[0] == 200


def mutated(chance: random.Random) -> bytes:
    """A good request with a few bytes changed, lines doubled or dropped, or its end cut off."""
    path = chance.choice(
        ["/v1/completions", "/translate", "/v1/embeddings", "/detect", "/health", "/languages", "/page/models"]
    )
    body = json.dumps(
        {"model": "writer", "prompt": "The", "max_tokens": 2, "q": "x", "source": "de", "target": "en"}
    ).encode()
    method = chance.choice(["GET", "POST", "PUT"])
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    content = bytearray(head.encode() + body)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(content) or 1)
        match chance.randrange(5):
            case 0:
                content[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                content[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 20)))
            case 2:
                del content[at : at + chance.randint(1, 20)]
            case 3:
                content[at:at] = content[at : at + chance.randint(1, 80)]
            case 4:
                content[at:at] = chance.choice(
                    [b"\r\n", b"\x00", b"\r\n\r\n", b"\xff\xfe", b"Transfer-Encoding: chunked\r\n", b"{" * 999]
                )
    return bytes(content)


def weather(server: Live, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        content = mutated(chance)
        assert reply_is_sound(found := raw(server, content)), (seed, number, content, found[:300])


def test_a_few_dozen_mutated_requests_get_no_5xx(locked: Live):
    weather(locked, 60, seed=0)
    assert ask(locked, "GET", "/health")[0] == 200


@pytest.mark.storm
def test_two_thousand_mutated_requests_get_no_5xx(tiny: Models):
    with live(tiny, Settings(port=0, receive_seconds=0.2, grace_seconds=5.0)) as server:
        weather(server, 2_000, seed=1)
        assert server.json("/health") == {"status": "ok"}


def test_a_slow_sender_is_told_and_dropped(locked: Live):
    for begun in (
        b"GET /health HTTP/1.1\r\nHo",
        POST + b"Content-Length: 50\r\n\r\n{",
        CHUNKED,
    ):
        with socket.create_connection(("127.0.0.1", locked.port), timeout=30) as connection:
            for byte in begun[:-1]:
                connection.send(bytes([byte]))
            connection.send(begun[-1:])
            found = b""
            while some := connection.recv(1 << 16):
                found += some
        assert found.startswith(b"HTTP/1.1 408"), found
        assert b"did not arrive within 1 s" in found


def eventually(is_true: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < ends, what
        time.sleep(0.02)


def connections(server: Live) -> int:
    """Connections that the server holds open."""
    return len(server.server.server_state.connections)


def test_a_reader_that_takes_nothing_is_dropped(tiny: Models):
    settings = Settings(port=0, write_seconds=0.5, grace_seconds=5.0)
    with live({"writer": tiny["writer"]}, settings) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.setblocking(False)
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sent = 0
        try:
            while sent < 2_000:
                connection.send(asked)
                sent += 1
        except BlockingIOError:
            pass
        eventually(lambda: connections(server) == 0, "the reader was not dropped")
        assert ask(server, "GET", "/health")[0] == 200


def test_a_stream_that_nobody_reads_is_cancelled_and_takes_little_memory(tiny: Models):
    settings, most = Settings(port=0, write_seconds=0.5, grace_seconds=5.0), 4_000
    asked = {"model": "endless", "prompt": "a", "max_tokens": most, "stream": True, "logprobs": 20}
    body = json.dumps(asked).encode()
    with live({"endless": tiny["endless"]}, settings) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        eventually(lambda: connections(server) == 1, "the connection was not accepted")
        (held,) = server.server.server_state.connections
        held.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        worker, unsent = server.app.state.models["endless"].workers, [0]

        def is_cancelled() -> bool:
            unsent.append(held.transport.get_write_buffer_size())
            return worker.steps > 0 and worker.running == 0

        eventually(is_cancelled, "nobody reads, and the model goes on")
        assert worker.steps < most, "it was generated to its end"
        assert max(unsent) < 500_000


@pytest.mark.parametrize("stream", [False, True])
def test_a_dropped_connection_takes_its_job_along(server: Live, stream: bool):
    worker = server.app.state.models["endless"].workers
    eventually(lambda: worker.running == 0, "a job was left over")
    connection = socket.create_connection(("127.0.0.1", server.port))
    body = json.dumps({**ENDLESS, "stream": stream}).encode()
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    begun = worker.steps
    eventually(lambda: worker.steps > begun + 3, "the job did not start")
    connection.close()
    eventually(lambda: worker.running == 0, "the job goes on")
    assert worker.steps < begun + 3_000
    assert worker.waiting == 0


def test_metrics_count_routes_not_paths(server: Live):
    for name in range(5):
        ask(server, "GET", f"/v1/models/unknown-{name}")
        ask(server, "GET", f"/nowhere/{name}")
    text = ask(server, "GET", "/metrics")[1].decode()
    assert re.search(r'regard_requests_total\{route="/v1/models/\{id\}",status="404"\} [5-9]', text)
    assert "unknown-" not in text
    assert "nowhere" not in text
    assert 'regard_waiting{model="writer"} 0.0' in text
    assert re.search(r'regard_steps_total\{model="writer"\} \d', text)
    assert "regard_request_seconds_bucket" in text


def test_the_docs_need_nothing_from_elsewhere(server: Live):
    status, content, _ = ask(server, "GET", "/docs")
    assert status == 200
    assert b"/v1/completions" in content
    assert not re.search(rb"(src|href)=['\"]?(https?:)?//", content)
    assert b"default-src 'none'; style-src 'sha256-" in content
    assert b"unsafe-inline" not in content


def test_replies_say_nothing_about_the_server(server: Live):
    headers = ask(server, "GET", "/health")[2]
    assert "Server" not in headers
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_model_that_is_loading_is_503_with_retry_after(tmp_path: Any, tiny: Models):
    release = threading.Event()

    def slowly(_: Any) -> LoadedModel:
        assert release.wait(60)
        return tiny["writer"]

    with live({"writer": tmp_path}, Settings(port=0, grace_seconds=5.0), read=slowly, ready=False) as server:
        status, content, headers = ask(server, "GET", "/health")
        assert (status, headers["Retry-After"]) == (503, "3")
        assert json.loads(content) == {"error": "model is loading (0 of 1 ready)"}
        assert ask(server, "POST", "/v1/completions", b"{}")[0] == 503
        assert ask(server, "GET", "/docs")[0] == 200
        release.set()
        eventually(lambda: ask(server, "GET", "/health")[0] == 200, "the model did not load")


def test_the_app_can_be_mounted_in_another(tiny: Models):
    outer = FastAPI()
    outer.mount("/attic", regard.serve.create_app({"writer": tiny["writer"]}, Settings(hosts=("testserver",))))
    client = TestClient(outer)
    assert client.get("/attic/v1/models").json()["data"][0]["id"] == "writer"
    assert client.get("/attic/v1/models/x").json()["error"]["code"] == "model_not_found"
    assert client.get("/attic/nowhere").json() == {"error": "there is nothing here"}
    body = {"model": "writer", "prompt": "The", "max_tokens": 2, "temperature": 0}
    assert len(client.post("/attic/v1/completions", json=body).json()["choices"]) == 1
    assert client.get("/attic/v1/models", headers={"Host": "evil.example"}).status_code == 421


def test_a_mounted_app_loads_its_folders_at_the_first_request(tiny: Models, tmp_path: Any):
    outer = FastAPI()
    settings = Settings(hosts=("testserver",))
    outer.mount("/attic", regard.serve.create_app({"writer": tmp_path}, settings, read=lambda _: tiny["writer"]))
    client = TestClient(outer)
    assert client.get("/attic/health").status_code in (200, 503)
    eventually(lambda: client.get("/attic/health").status_code == 200, "the model did not load")
    assert client.get("/attic/v1/models").json()["data"][0]["id"] == "writer"
