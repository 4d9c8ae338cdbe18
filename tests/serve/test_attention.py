"""Attention views under real HTTP requests: their pages, weights, other texts, ablations, and what is refused."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.layers.contract import Ablation
from regard.models import zoo
from regard.serve.attention import View, Views
from regard.show.payload import TracePage, side_by_side
from tests.laws.zoo import MODELS
from tests.small import TEXTS, small

from .live import Live, live

TEXT, TARGET = "The cat sat on the mat.", "the dog ran"
LAYER = "decoder.1.cross"


class Client:
    """A client of one view of a server that runs in this process."""

    def __init__(self, server: Live, view: View) -> None:
        self.server, self.view, self.base = server, view, f"/attention/{view.id}"

    def __call__(self, endpoint: str = "", body: Any = None, *, base: str | None = None, **given: Any) -> Any:
        return self.server(f"{self.base if base is None else base}/{endpoint}", body, **given)

    def json(self, endpoint: str, body: Any) -> Any:
        return self.server.json(f"{self.base}/{endpoint}", body)

    def weights(self, **request: Any) -> np.ndarray:
        status, content, headers = self("weights?" + urlencode(request))
        assert status == 200, content
        return np.frombuffer(content, "<f2").reshape([int(part) for part in headers["X-Shape"].split(",")])

    @property
    def shown(self) -> TracePage:
        made = self.view.made
        assert made is not None
        return made.shown


@pytest.fixture(scope="module")
def models() -> list[Any]:
    return [small(MODELS[name], generation_config={"max_length": 7}) for name in ("transformer", "rotary")]


def viewed(server: Live, make: Any, text: str, target: str | None = None) -> Client:
    """A view in the worker of the first model, with its page made."""
    views: Views = server.app.state.views
    found = Client(server, views.add(server.app.state.models["one"].workers, make, text, target))
    assert found()[0] == 200
    return found


@pytest.fixture(scope="module")
def server(models: list[Any]) -> Iterator[Live]:
    with live({"one": models[0]}) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Live, models: list[Any]) -> Client:
    def trace_text(text: str, target: str | None) -> TracePage:
        return side_by_side(*(model.look(text, target) for model in models), labels=["one", "two"])

    return viewed(server, trace_text, TEXT, TARGET)


def test_the_page_is_served_and_may_connect_to_its_server_only(client: Client):
    status, content, headers = client()
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    text = content.decode()
    assert "connect-src 'self'" in text
    payload = json.loads(re.search(r'id="regard">(.*?)</script>', text, re.DOTALL).group(1))
    assert payload["live"] == "."
    assert len(client.view.id) > 20
    assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert [trace["label"] for trace in payload["traces"]] == ["one", "two"]


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1.example.org", "", "0.0.0.0"])
def test_requests_under_another_host_name_are_refused(client: Client, host: str):
    for endpoint, body in (("", None), ("weights?head=0", None), ("trace", {"text": "a"}), ("ablate", {"heads": []})):
        status, content, _ = client(endpoint, body, Host=host)
        assert status == 421
        assert list(json.loads(content)) == ["error"]


def test_this_machine_has_two_host_names(client: Client):
    assert client(Host=f"localhost:{client.server.port}")[0] == 200
    assert client(Host=f"127.0.0.1:{client.server.port}")[0] == 200


@pytest.mark.parametrize("base", ["/attention", "/attention/wrong", "/wrong", "/attention/..", "/attention/%2e%2e"])
def test_requests_without_the_secret_id_are_refused(client: Client, base: str):
    for endpoint, body in (("", None), ("weights?head=0", None), ("trace", {"text": "a"}), ("ablate", {"heads": []})):
        status, content, _ = client(endpoint, body, base=base)
        assert status == 404
        assert client.view.id.encode() not in content


def test_two_views_have_two_secrets(client: Client):
    other = viewed(client.server, client.view.make, TEXT)
    assert other.view.id != client.view.id


@pytest.mark.parametrize("trace", [0, 1])
def test_weights_are_the_tensors(client: Client, trace: int):
    weights = client.shown.traces[trace][1].weights[LAYER].numpy()
    heads, rows, columns = weights.shape
    for head in range(heads):
        found = client.weights(trace=trace, layer=LAYER, head=head, rows=f"0:{rows}", columns=f"0:{columns}", size=64)
        np.testing.assert_allclose(found, weights[head], rtol=1e-3, atol=1e-6)
    part = client.weights(trace=trace, layer=LAYER, head=1, rows="1:3", columns="2:5", size=64)
    np.testing.assert_allclose(part, weights[1, 1:3, 2:5], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tiles_hold_the_maximum_weight(client: Client, size: int):
    weights = client.shown.traces[0][1].weights["encoder.0.self"][0]
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
    assert answer["page"]["live"] == "."
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
    example, network = client.shown.traces[0][1].example, models[0].network
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
    before = client.view.made
    status, content, _ = client(endpoint, raw=body)
    assert status == 400
    assert "\n" not in json.loads(content)["error"]
    assert client.view.made is before
    assert client()[0] == 200


@pytest.mark.parametrize("text", ["", " ", "\0", "\ud800", "<script>alert(1)</script>", "\u202eabc", "ab" * 3000])
def test_any_text_is_traced_or_refused_in_one_line(client: Client, text: str):
    status, content, _ = client("trace", {"text": text, "target": "the cat"})
    assert status in (200, 400), content[:300]
    assert client()[0] == 200
    assert client.json("trace", {"text": TEXT})["page"]["traces"]


def test_a_body_above_the_limit_is_refused(client: Client):
    status, content, _ = client("trace", raw=b"x" * 3_000_000)
    assert status == 413
    assert list(json.loads(content)) == ["error"]
    assert client()[0] == 200


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"BREW /x HTTP/1.1\r\n\r\n"],
)
def test_malformed_requests_do_no_harm(client: Client, sent: bytes):
    with socket.create_connection(("127.0.0.1", client.server.port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1 << 16)
    assert client()[0] == 200


def test_a_client_that_disconnects_does_no_harm(client: Client, capfd: pytest.CaptureFixture[str]):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", client.server.port), timeout=60) as connection:
            connection.sendall(f"GET {client.base}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert client()[0] == 200
    assert capfd.readouterr() == ("", "")


def test_concurrent_requests_are_answered(client: Client):
    shape = client.shown.traces[0][1].weights[LAYER].shape
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
        expected = client.shown.traces[0][1].weights[LAYER][head % shape[0]]
        np.testing.assert_allclose(found[head], expected, rtol=1e-3, atol=1e-6)


def reject_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize(
    ("endpoint", "body"), [("ablate", {"trace": 0, "heads": [["decoder.0.self", 0]]}), ("trace", {"text": "the cat"})]
)
def test_answers_are_json_even_if_the_logits_are_nan(server: Live, endpoint: str, body: dict[str, Any]):
    model = small(zoo.gpt2(16, 1, 2))
    model.network.readout.lm_head.weight.data.fill_(float("nan"))
    status, content, _ = viewed(server, model.look, TEXTS[0])(endpoint, body)
    assert status == 200
    found = json.loads(content, parse_constant=reject_constant)
    ablation = found if endpoint == "ablate" else found["page"]["traces"][0]["ablation"]
    assert ablation["loss"] is None


def test_requests_from_a_page_of_an_older_text_are_refused(server: Live):
    client = viewed(server, small(zoo.gpt2(16, 1, 2)).look, TEXTS[0])
    before = client.view.revision
    query = {"trace": "0", "layer": "decoder.0.self", "head": "0", "rows": "0:2", "columns": "0:2", "size": "8"}
    assert client.weights(**query, revision=before).shape == (2, 2)
    after = client.json("trace", {"text": "the cat", "revision": before})["page"]["revision"]
    assert client.weights(**query, revision=after).shape == (2, 2)
    old = urlencode({**query, "revision": before})
    for status, content, _ in (
        client(f"weights?{old}"),
        client("ablate", {"trace": 0, "heads": [], "revision": before}),
    ):
        assert status == 400
        assert "another window has loaded another text" in json.loads(content)["error"]


@pytest.mark.parametrize("target", [None, "the cat sat on the"])
def test_an_ablated_translation_uses_the_options_of_the_model(server: Live, target: str | None):
    model = small(
        zoo.transformer(16, 2, 2), generation_config={"max_new_tokens": 3, "num_beams": 2, "bad_words_ids": [[5]]}
    )
    client = viewed(server, model.look, TEXTS[0], target)
    assert client.json("ablate", {"trace": 0, "heads": []})["output"] == model.translate(TEXTS[0])


def test_a_view_that_left_memory_is_made_again(server: Live):
    model, made = small(zoo.gpt2(16, 1, 2)), []

    def make(text: str, target: str | None) -> TracePage:
        made.append(text)
        return model.look(text, target)

    first = viewed(server, make, TEXTS[0])
    for text in TEXTS:
        viewed(server, model.look, text)
    assert first.view.made is None
    assert sum(view.made is not None for view in server.app.state.views.views.values()) == server.app.state.views.held
    query = {"layer": "decoder.0.self", "head": 0, "rows": "0:2", "columns": "0:2", "size": 8}
    np.testing.assert_allclose(
        first.weights(**query), model.look(TEXTS[0]).weights["decoder.0.self"][0, :2, :2], rtol=1e-3, atol=1e-6
    )
    assert made == [TEXTS[0]] * 2


def test_the_oldest_view_is_forgotten():
    views, workers = Views(remembered=3), SimpleNamespace(pin=lambda: None)
    found = [views.add(workers, lambda text, target: None, str(number)) for number in range(4)]
    assert list(views.views) == [view.id for view in found[1:]]
    views.find(found[1].id)
    views.add(workers, lambda text, target: None, "new")
    assert found[1].id in views.views
    assert found[2].id not in views.views


def test_a_text_that_cannot_be_traced_leaves_no_view(server: Live):
    count = len(server.app.state.views.views)
    status, content, _ = server("/page/attention", {"model": "one", "text": " "})
    assert status == 400
    assert "empty" in json.loads(content)["error"]
    assert len(server.app.state.views.views) == count


def test_an_error_of_ours_tells_only_its_id(server: Live, client: Client):
    def fail(*texts: str | None) -> TracePage:
        raise RuntimeError(f"a secret: {texts}")

    view = server.app.state.views.add(server.app.state.models["one"].workers, fail, TEXT)
    status, content, _ = server(f"/attention/{view.id}/")
    assert status == 500
    assert b"secret" not in content
    assert client()[0] == 200
