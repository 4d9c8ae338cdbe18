"""The local page server under real HTTP requests: its answers, and the requests it refuses."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
from collections.abc import Iterator
from threading import Thread
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.errors import InputError
from regard.layers.contract import Ablation
from regard.models import zoo
from regard.show.payload import TracePage, side_by_side
from regard.show.server import PageServer
from tests.laws.zoo import MODELS
from tests.small import TEXTS, small

TEXT, TARGET = "The cat sat on the mat.", "the dog ran"
LAYER = "decoder.1.cross"


class Client:
    """A client of a server that runs in this process."""

    def __init__(self, server: PageServer) -> None:
        self.server = server

    def __call__(
        self, endpoint: str = "", body: Any = None, *, raw: bytes | None = None, base: str | None = None, **headers: str
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=60)
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        path = f"{self.server.base_path if base is None else base}/{endpoint}"
        connection.request(
            "GET" if sent is None else "POST", path, sent, {k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.headers
        connection.close()
        return found

    def json(self, endpoint: str, body: Any) -> dict[str, Any]:
        status, content, headers = self(endpoint, body)
        assert (status, headers["Content-Type"]) == (200, "application/json"), content
        found: dict[str, Any] = json.loads(content)
        return found

    def weights(self, **request: Any) -> np.ndarray:
        status, content, headers = self("weights?" + urlencode(request))
        assert status == 200, content
        return np.frombuffer(content, "<f2").reshape([int(part) for part in headers["X-Shape"].split(",")])


@pytest.fixture(scope="module")
def models() -> list[Any]:
    return [small(MODELS[name], generation_config={"max_length": 7}) for name in ("transformer", "rotary")]


@pytest.fixture(scope="module")
def client(models: list[Any]) -> Iterator[Client]:
    def trace_text(text: str, target: str | None) -> TracePage:
        return side_by_side(*(model.look(text, target) for model in models), labels=["one", "two"])

    with PageServer(trace_text(TEXT, TARGET), trace_text) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Client(server)
        server.shutdown()
        thread.join()


def test_the_page_is_served_and_may_connect_to_its_server_only(client: Client):
    status, content, headers = client()
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    text = content.decode()
    assert "connect-src 'self'" in text
    payload = json.loads(re.search(r'id="regard">(.*?)</script>', text, re.DOTALL).group(1))
    assert payload["live"] == client.server.base_path
    assert len(client.server.base_path) > 20
    assert [trace["label"] for trace in payload["traces"]] == ["one", "two"]


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1", "127.0.0.1:1", "", "0.0.0.0"])
def test_requests_under_another_host_name_are_refused(client: Client, host: str):
    for endpoint, body in (("", None), ("weights?head=0", None), ("trace", {"text": "a"}), ("ablate", {"heads": []})):
        status, content, _ = client(endpoint, body, Host=host)
        assert status == 403
        assert list(json.loads(content)) == ["error"]


def test_this_machine_has_two_host_names(client: Client):
    assert client(Host=f"localhost:{client.server.server_port}")[0] == 200
    assert client(Host=f"127.0.0.1:{client.server.server_port}")[0] == 200


@pytest.mark.parametrize("base", ["", "/wrong", "/../", "//", "/%2e%2e"])
def test_requests_without_the_secret_path_are_refused(client: Client, base: str):
    for endpoint, body in (("", None), ("weights?head=0", None), ("trace", {"text": "a"}), ("ablate", {"heads": []})):
        status, content, _ = client(endpoint, body, base=base)
        assert status == 404
        assert client.server.base_path.encode() not in content


def test_two_servers_have_two_secrets(client: Client):
    with PageServer(client.server.shown, client.server.trace_text) as other:
        assert other.base_path != client.server.base_path
        assert other.server_port != client.server.server_port


@pytest.mark.parametrize("trace", [0, 1])
def test_weights_are_the_tensors(client: Client, trace: int):
    weights = client.server.shown.traces[trace][1].weights[LAYER].numpy()
    heads, rows, columns = weights.shape
    for head in range(heads):
        found = client.weights(trace=trace, layer=LAYER, head=head, rows=f"0:{rows}", columns=f"0:{columns}", size=64)
        np.testing.assert_allclose(found, weights[head], rtol=1e-3, atol=1e-6)
    part = client.weights(trace=trace, layer=LAYER, head=1, rows="1:3", columns="2:5", size=64)
    np.testing.assert_allclose(part, weights[1, 1:3, 2:5], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tiles_hold_the_maximum_weight(client: Client, size: int):
    weights = client.server.shown.traces[0][1].weights["encoder.0.self"][0]
    rows, columns = weights.shape
    found = client.weights(layer="encoder.0.self", head=0, rows=f"0:{rows}", columns=f"0:{columns}", size=size)
    step = -(-rows // size)
    assert max(found.shape) <= size
    for i in range(found.shape[0]):
        for j in range(found.shape[1]):
            tile = weights[i * step : (i + 1) * step, j * step : (j + 1) * step]
            assert found[i, j] == pytest.approx(float(tile.max()), rel=1e-3)


@pytest.mark.parametrize(
    "query",
    [
        {}, {"layer": "nowhere"}, {"layer": "nowhere", "rows": "0:1", "columns": "0:1", "size": "1"},
        {"rows": "x:y"}, {"rows": "3:1"}, {"rows": "-1:3"}, {"rows": "1"}, {"rows": "1:2:3"}, {"columns": "a"},
        {"head": "99"}, {"head": "-1"}, {"head": "x"}, {"trace": "2"}, {"trace": "-1"}, {"size": "x"}, {"size": "-4"},
        {"size": "100000"}, {"head": "9" * 400}, {"rows": "0:" + "9" * 30}, {"columns": "0:" + "9" * 30},
        {"rows": "0:99999"}, {"columns": "0:99999"}, {"rows": "50:60"}, {"columns": "50:60"},
    ],
)  # fmt: skip
def test_invalid_requests_for_weights_are_refused_in_one_line(client: Client, query: dict[str, str]):
    valid = {"trace": "0", "layer": LAYER, "head": "0", "rows": "0:2", "columns": "0:2", "size": "8"} if query else {}
    status, content, _ = client("weights?" + urlencode({**valid, **query}))
    assert status == 400
    assert "\n" not in json.loads(content)["error"]


def test_another_text_is_traced(client: Client, models: list[Any]):
    answer = client.json("trace", {"text": "A dog ran in the park.", "target": "the cat"})
    expected = models[1].look("A dog ran in the park.", "the cat")
    trace = answer["page"]["traces"][1]
    assert answer["page"]["live"] == client.server.base_path
    assert trace["sides"]["source"]["tokens"] == expected.source_tokens
    assert trace["sides"]["target"]["tokens"] == expected.target_tokens
    layer = next(layer for layer in trace["layers"] if layer["name"] == LAYER)
    blob = base64.b64decode(answer["blobs"][layer["weights"]["blob"]])
    weights = np.frombuffer(blob, "<f2").reshape(layer["weights"]["shape"])
    np.testing.assert_allclose(weights, expected.weights[LAYER], rtol=1e-3, atol=1e-6)
    again = client.weights(trace=1, layer=LAYER, head=0, rows="0:2", columns="0:3", size=8)
    np.testing.assert_array_equal(again, weights[0, :2, :3])
    assert expected.source_tokens[2] in client()[1].decode()


def test_without_a_target_the_model_generates_one(client: Client, models: list[Any]):
    for given in ({"text": TEXT}, {"text": TEXT, "target": None}, {"text": TEXT, "target": ""}):
        answer = client.json("trace", given)
        assert answer["page"]["traces"][0]["sides"]["target"]["tokens"] == models[0].look(TEXT).target_tokens


def test_heads_are_switched_off(client: Client, models: list[Any]):
    heads = [["decoder.0.cross", 1], ["encoder.1.self", 0], ["encoder.1.self", 2]]
    answer = client.json("ablate", {"trace": 0, "heads": heads})
    example, network = client.server.shown.traces[0][1].example, models[0].network
    targets = torch.tensor(example.target_ids)
    with torch.inference_mode():
        before = network.readout(network.hidden_states(**example.collector.inputs))[0]
        off = Ablation({"decoder.0.cross": (1,), "encoder.1.self": (0, 2)})
        after = network.readout(network.hidden_states(**example.collector.inputs, ablation=off))[0]
    assert answer["loss"] == pytest.approx(float(F.cross_entropy(after, targets)), rel=1e-4)
    changed = (before.argmax(-1) != after.argmax(-1)).nonzero().flatten().tolist()
    assert [row for row, _, _ in answer["changed"]] == changed
    assert isinstance(answer["output"], str)
    none = client.json("ablate", {"trace": 0, "heads": []})
    assert none["loss"] == pytest.approx(float(F.cross_entropy(before, targets)), rel=1e-4)
    assert none["changed"] == []


INVALID: list[bytes] = [
    b"", b"{", b"null", b"[]", b'"text"', b"3", b"\xff\xfe\x00", b'{"text": ' + b"[" * 50_000, b'{"text": NaN}',
    b'{"text": 3}', b'{"text": ["a"]}', b'{"text": "a", "target": 3}', b'{"text": null}', b"{}", b'{"heads": 3}',
    b'{"heads": [["decoder.0.self"]]}', b'{"heads": [["decoder.0.self", "0"]]}', b'{"heads": [[0, 0]]}',
    b'{"heads": [["decoder.0.self", 99]]}', b'{"heads": [["decoder.0.self", -1]]}', b'{"heads": [["nowhere", 0]]}',
    b'{"heads": [["decoder.0.self", true]]}', b'{"heads": [["decoder.0.self", 0.5]]}', b'{"heads": {"a": 1}}',
    b'{"trace": 7, "heads": []}', b'{"trace": "x", "heads": []}', b'{"trace": [0], "heads": []}',
]  # fmt: skip


@pytest.mark.parametrize("endpoint", ["trace", "ablate"])
@pytest.mark.parametrize("body", INVALID)
def test_invalid_bodies_are_refused_and_the_server_keeps_running(client: Client, endpoint: str, body: bytes):
    before = client.server.payload
    status, content, _ = client(endpoint, raw=body)
    assert status == 400
    assert "\n" not in json.loads(content)["error"]
    assert client.server.payload is before
    assert client()[0] == 200


@pytest.mark.parametrize("text", ["", " ", "\0", "\ud800", "<script>alert(1)</script>", "\u202eabc", "ab" * 3000])
def test_any_text_is_traced_or_refused_in_one_line(client: Client, text: str):
    status, content, _ = client("trace", {"text": text, "target": "the cat"})
    assert status in (200, 400), content[:300]
    assert client()[0] == 200
    assert client.json("trace", {"text": TEXT})["page"]["traces"]


def test_a_request_that_is_too_long_is_not_read(client: Client):
    for length in (str(1 << 40), "-1", "x", "1e3"):
        with socket.create_connection(("127.0.0.1", client.server.server_port), timeout=60) as connection:
            host, path = client.server.allowed_hosts[0], client.server.base_path
            head = f"POST {path}/trace HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.makefile("rb").readline().split()[1] == b"413"
    assert client()[0] == 200


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"BREW /x HTTP/1.1\r\n\r\n"],
)
def test_malformed_requests_do_no_harm(client: Client, sent: bytes):
    with socket.create_connection(("127.0.0.1", client.server.server_port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1 << 16)
    assert client()[0] == 200


def test_a_client_that_disconnects_does_no_harm(client: Client, capfd: pytest.CaptureFixture[str]):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", client.server.server_port), timeout=60) as connection:
            connection.sendall(
                f"GET {client.server.base_path}/ HTTP/1.1\r\nHost: {client.server.allowed_hosts[0]}\r\n\r\n".encode()
            )
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert client()[0] == 200
    assert capfd.readouterr() == ("", "")


def test_concurrent_requests_are_answered(client: Client):
    shape = client.server.shown.traces[0][1].weights[LAYER].shape
    found: list[Any] = [None] * 6

    def weights(head: int) -> None:
        request = {
            "layer": LAYER,
            "head": head % shape[0],
            "rows": f"0:{shape[1]}",
            "columns": f"0:{shape[2]}",
            "size": 64,
        }
        found[head] = client.weights(**request)

    threads = [Thread(target=weights, args=(head,)) for head in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for head in range(6):
        expected = client.server.shown.traces[0][1].weights[LAYER][head % shape[0]]
        np.testing.assert_allclose(found[head], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("port", [-1, 70_000])
def test_an_invalid_port_is_refused(client: Client, port: int):
    with pytest.raises(InputError, match="Leave out --port"):
        PageServer(client.server.shown, client.server.trace_text, port)


def test_a_port_in_use_is_refused(client: Client):
    with pytest.raises(InputError, match=f"port {client.server.server_port} cannot be used"):
        PageServer(client.server.shown, client.server.trace_text, client.server.server_port)


def reject_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize(
    ("endpoint", "body"), [("ablate", {"trace": 0, "heads": [["decoder.0.self", 0]]}), ("trace", {"text": "the cat"})]
)
def test_answers_are_json_even_if_the_logits_are_nan(endpoint: str, body: dict[str, Any]):
    model = small(zoo.gpt2(16, 1, 2))
    model.network.readout.lm_head.weight.data.fill_(float("nan"))
    with PageServer(model.look(TEXTS[0]), lambda text, target: model.look(text, target)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            with urlopen(Request(f"{server.address}{endpoint}", json.dumps(body).encode()), timeout=60) as answer:
                found = json.loads(answer.read(), parse_constant=reject_constant)
        finally:
            server.shutdown()
            thread.join()
    ablation = found if endpoint == "ablate" else found["page"]["traces"][0]["ablation"]
    assert ablation["loss"] is None


def test_requests_from_a_page_of_an_older_text_are_refused():
    model = small(zoo.gpt2(16, 1, 2))
    with PageServer(model.look(TEXTS[0]), lambda text, target: model.look(text, target)) as server:
        before = server.payload[0]["revision"]
        query = {"trace": "0", "layer": "decoder.0.self", "head": "0", "rows": "0:2", "columns": "0:2", "size": "8"}
        assert server.weights({**query, "revision": str(before)}).shape == (2, 2)
        after = server.trace({"text": "the cat", "revision": before})["page"]["revision"]
        assert server.weights({**query, "revision": str(after)}).shape == (2, 2)
        with pytest.raises(InputError, match="another window has loaded another text"):
            server.weights({**query, "revision": str(before)})
        with pytest.raises(InputError, match="another window has loaded another text"):
            server.ablate({"trace": 0, "heads": [], "revision": before})


@pytest.mark.parametrize("target", [None, "the cat sat on the"])
def test_an_ablated_translation_uses_the_options_of_the_model(target: str | None):
    model = small(
        zoo.transformer(16, 2, 2), generation_config={"max_new_tokens": 3, "num_beams": 2, "bad_words_ids": [[5]]}
    )
    with PageServer(model.look(TEXTS[0], target), lambda text, target: model.look(text, target)) as server:
        assert server.ablate({"trace": 0, "heads": []})["output"] == model.translate(TEXTS[0])
