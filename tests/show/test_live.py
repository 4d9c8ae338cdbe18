"""The page on a local port, asked with real requests: what it answers, and whom it does not."""

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

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.errors import InputError
from regard.layers.contract import Ablation
from regard.show.payload import Shown, beside
from regard.show.server import Live
from tests.laws.zoo import MODELS
from tests.small import small

TEXT, SAID = "The cat sat on the mat.", "the dog ran"
LAYER = "decoder.1.cross"


class Asking:
    """A client of a server that runs in this process."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def __call__(
        self, what: str = "", body: Any = None, *, raw: bytes | None = None, place: str | None = None, **headers: str
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.live.server_port, timeout=60)
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        path = f"{self.live.place if place is None else place}/{what}"
        connection.request(
            "GET" if sent is None else "POST", path, sent, {k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.headers
        connection.close()
        return found

    def json(self, what: str, body: Any) -> dict[str, Any]:
        status, said, headers = self(what, body)
        assert (status, headers["Content-Type"]) == (200, "application/json"), said
        found: dict[str, Any] = json.loads(said)
        return found

    def weights(self, **asked: Any) -> np.ndarray:
        status, said, headers = self("weights?" + urlencode(asked))
        assert status == 200, said
        return np.frombuffer(said, "<f2").reshape([int(part) for part in headers["X-Shape"].split(",")])


@pytest.fixture(scope="module")
def models() -> list[Any]:
    return [small(MODELS[name], generation={"max_length": 7}) for name in ("transformer", "rotary")]


@pytest.fixture(scope="module")
def ask(models: list[Any]) -> Iterator[Asking]:
    def again(text: str, target: str | None) -> Shown:
        return beside(*(model.look(text, target) for model in models), labels=["one", "two"])

    with Live(again(TEXT, SAID), again) as live:
        thread = Thread(target=live.serve_forever, args=(0.01,))
        thread.start()
        yield Asking(live)
        live.shutdown()
        thread.join()


def test_the_page_is_served_with_its_place_and_may_ask_there_only(ask: Asking):
    status, said, headers = ask()
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    text = said.decode()
    assert "connect-src 'self'" in text
    payload = json.loads(re.search(r'id="regard">(.*?)</script>', text, re.DOTALL).group(1))
    assert payload["live"] == ask.live.place
    assert len(ask.live.place) > 20
    assert [look["label"] for look in payload["looks"]] == ["one", "two"]


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1", "127.0.0.1:1", "", "0.0.0.0"])
def test_a_page_of_another_name_that_leads_here_is_refused(ask: Asking, host: str):
    for what, body in (("", None), ("weights?head=0", None), ("look", {"text": "a"}), ("off", {"heads": []})):
        status, said, _ = ask(what, body, Host=host)
        assert status == 403
        assert list(json.loads(said)) == ["error"]


def test_this_machine_has_two_names(ask: Asking):
    assert ask(Host=f"localhost:{ask.live.server_port}")[0] == 200
    assert ask(Host=f"127.0.0.1:{ask.live.server_port}")[0] == 200


@pytest.mark.parametrize("place", ["", "/wrong", "/../", "//", "/%2e%2e"])
def test_nothing_is_told_to_who_does_not_know_the_secret(ask: Asking, place: str):
    for what, body in (("", None), ("weights?head=0", None), ("look", {"text": "a"}), ("off", {"heads": []})):
        status, said, _ = ask(what, body, place=place)
        assert status == 404
        assert ask.live.place.encode() not in said


def test_two_servers_have_two_secrets(ask: Asking):
    with Live(ask.live.shown, ask.live.again) as other:
        assert other.place != ask.live.place
        assert other.server_port != ask.live.server_port


@pytest.mark.parametrize("look", [0, 1])
def test_weights_are_the_tensors(ask: Asking, look: int):
    weights = ask.live.shown.looks[look][1].weights[LAYER].numpy()
    heads, rows, columns = weights.shape
    for head in range(heads):
        found = ask.weights(look=look, layer=LAYER, head=head, rows=f"0:{rows}", columns=f"0:{columns}", size=64)
        np.testing.assert_allclose(found, weights[head], rtol=1e-3, atol=1e-6)
    part = ask.weights(look=look, layer=LAYER, head=1, rows="1:3", columns="2:5", size=64)
    np.testing.assert_allclose(part, weights[1, 1:3, 2:5], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tiles_hold_the_greatest_weight(ask: Asking, size: int):
    weights = ask.live.shown.looks[0][1].weights["encoder.0.self"][0]
    rows, columns = weights.shape
    found = ask.weights(layer="encoder.0.self", head=0, rows=f"0:{rows}", columns=f"0:{columns}", size=size)
    step = -(-rows // size)
    assert max(found.shape) <= size
    for i in range(found.shape[0]):
        for j in range(found.shape[1]):
            tile = weights[i * step : (i + 1) * step, j * step : (j + 1) * step]
            assert found[i, j] == pytest.approx(float(tile.max()), rel=1e-3)


@pytest.mark.parametrize(
    "asked",
    [
        {}, {"layer": "nowhere"}, {"layer": "nowhere", "rows": "0:1", "columns": "0:1", "size": "1"},
        {"rows": "x:y"}, {"rows": "3:1"}, {"rows": "-1:3"}, {"rows": "1"}, {"rows": "1:2:3"}, {"columns": "a"},
        {"head": "99"}, {"head": "-1"}, {"head": "x"}, {"look": "2"}, {"look": "-1"}, {"size": "x"}, {"size": "-4"},
        {"size": "100000"}, {"head": "9" * 400}, {"rows": "0:" + "9" * 30}, {"columns": "0:" + "9" * 30},
        {"rows": "0:99999"}, {"columns": "0:99999"}, {"rows": "50:60"}, {"columns": "50:60"},
    ],
)  # fmt: skip
def test_rubbish_about_weights_is_refused_in_a_line(ask: Asking, asked: dict[str, str]):
    whole = {"look": "0", "layer": LAYER, "head": "0", "rows": "0:2", "columns": "0:2", "size": "8"} if asked else {}
    status, said, _ = ask("weights?" + urlencode({**whole, **asked}))
    assert status == 400
    assert "\n" not in json.loads(said)["error"]


def test_another_text_is_looked_at(ask: Asking, models: list[Any]):
    answer = ask.json("look", {"text": "A dog ran in the park.", "target": "the cat"})
    expected = models[1].look("A dog ran in the park.", "the cat")
    look = answer["page"]["looks"][1]
    assert answer["page"]["live"] == ask.live.place
    assert look["sides"]["source"]["tokens"] == expected.source_tokens
    assert look["sides"]["said"]["tokens"] == expected.target_tokens
    layer = next(layer for layer in look["layers"] if layer["name"] == LAYER)
    blob = base64.b64decode(answer["blobs"][layer["weights"]["blob"]])
    weights = np.frombuffer(blob, "<f2").reshape(layer["weights"]["shape"])
    np.testing.assert_allclose(weights, expected.weights[LAYER], rtol=1e-3, atol=1e-6)
    again = ask.weights(look=1, layer=LAYER, head=0, rows="0:2", columns="0:3", size=8)
    np.testing.assert_array_equal(again, weights[0, :2, :3])
    assert expected.source_tokens[2] in ask()[1].decode()


def test_without_a_target_it_says_its_own_words(ask: Asking, models: list[Any]):
    for given in ({"text": TEXT}, {"text": TEXT, "target": None}, {"text": TEXT, "target": ""}):
        answer = ask.json("look", given)
        assert answer["page"]["looks"][0]["sides"]["said"]["tokens"] == models[0].look(TEXT).target_tokens


def test_heads_are_switched_off(ask: Asking, models: list[Any]):
    heads = [["decoder.0.cross", 1], ["encoder.1.self", 0], ["encoder.1.self", 2]]
    answer = ask.json("off", {"look": 0, "heads": heads})
    text, network = ask.live.shown.looks[0][1].text, models[0].network
    said = torch.tensor(text.said)
    with torch.inference_mode():
        was = network.readout(network.hidden_states(**text.reading.inputs))[0]
        off = Ablation({"decoder.0.cross": (1,), "encoder.1.self": (0, 2)})
        now = network.readout(network.hidden_states(**text.reading.inputs, ablation=off))[0]
    assert answer["loss"] == pytest.approx(float(F.cross_entropy(now, said)), rel=1e-4)
    changed = (was.argmax(-1) != now.argmax(-1)).nonzero().flatten().tolist()
    assert [row for row, _, _ in answer["changed"]] == changed
    assert isinstance(answer["said"], str)
    none = ask.json("off", {"look": 0, "heads": []})
    assert none["loss"] == pytest.approx(float(F.cross_entropy(was, said)), rel=1e-4)
    assert none["changed"] == []


RUBBISH: list[bytes] = [
    b"", b"{", b"null", b"[]", b'"text"', b"3", b"\xff\xfe\x00", b'{"text": ' + b"[" * 50_000, b'{"text": NaN}',
    b'{"text": 3}', b'{"text": ["a"]}', b'{"text": "a", "target": 3}', b'{"text": null}', b"{}", b'{"heads": 3}',
    b'{"heads": [["decoder.0.self"]]}', b'{"heads": [["decoder.0.self", "0"]]}', b'{"heads": [[0, 0]]}',
    b'{"heads": [["decoder.0.self", 99]]}', b'{"heads": [["decoder.0.self", -1]]}', b'{"heads": [["nowhere", 0]]}',
    b'{"heads": [["decoder.0.self", true]]}', b'{"heads": [["decoder.0.self", 0.5]]}', b'{"heads": {"a": 1}}',
    b'{"look": 7, "heads": []}', b'{"look": "x", "heads": []}', b'{"look": [0], "heads": []}',
]  # fmt: skip


@pytest.mark.parametrize("what", ["look", "off"])
@pytest.mark.parametrize("body", RUBBISH)
def test_rubbish_is_refused_and_the_server_goes_on(ask: Asking, what: str, body: bytes):
    before = ask.live.payload
    status, said, _ = ask(what, raw=body)
    assert status == 400
    assert "\n" not in json.loads(said)["error"]
    assert ask.live.payload is before
    assert ask()[0] == 200


@pytest.mark.parametrize("text", ["", " ", "\0", "\ud800", "<script>alert(1)</script>", "\u202eabc", "ab" * 3000])
def test_any_text_is_looked_at_or_refused_in_a_line(ask: Asking, text: str):
    status, said, _ = ask("look", {"text": text, "target": "the cat"})
    assert status in (200, 400), said[:300]
    assert ask()[0] == 200
    assert ask.json("look", {"text": TEXT})["page"]["looks"]


def test_a_request_that_is_too_long_is_not_read(ask: Asking):
    for length in (str(1 << 40), "-1", "x", "1e3"):
        with socket.create_connection(("127.0.0.1", ask.live.server_port), timeout=60) as client:
            head = (
                f"POST {ask.live.place}/look HTTP/1.1\r\nHost: {ask.live.names[0]}\r\nContent-Length: {length}\r\n\r\n"
            )
            client.sendall(head.encode())
            assert client.makefile("rb").readline().split()[1] == b"413"
    assert ask()[0] == 200


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"BREW /x HTTP/1.1\r\n\r\n"],
)
def test_what_is_no_request_does_no_harm(ask: Asking, sent: bytes):
    with socket.create_connection(("127.0.0.1", ask.live.server_port), timeout=60) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        client.recv(1 << 16)
    assert ask()[0] == 200


def test_who_goes_away_in_the_middle_does_no_harm(ask: Asking, capfd: pytest.CaptureFixture[str]):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", ask.live.server_port), timeout=60) as client:
            client.sendall(f"GET {ask.live.place}/ HTTP/1.1\r\nHost: {ask.live.names[0]}\r\n\r\n".encode())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert ask()[0] == 200
    assert capfd.readouterr() == ("", "")


def test_several_ask_at_once(ask: Asking):
    shape = ask.live.shown.looks[0][1].weights[LAYER].shape
    found: list[Any] = [None] * 6

    def weights(head: int) -> None:
        asked = {
            "layer": LAYER,
            "head": head % shape[0],
            "rows": f"0:{shape[1]}",
            "columns": f"0:{shape[2]}",
            "size": 64,
        }
        found[head] = ask.weights(**asked)

    threads = [Thread(target=weights, args=(head,)) for head in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for head in range(6):
        expected = ask.live.shown.looks[0][1].weights[LAYER][head % shape[0]]
        np.testing.assert_allclose(found[head], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_cannot_be_is_refused(ask: Asking, port: int):
    with pytest.raises(InputError, match="Leave out --port"):
        Live(ask.live.shown, ask.live.again, port)


def test_a_port_that_is_taken_is_refused(ask: Asking):
    with pytest.raises(InputError, match=f"port {ask.live.server_port} cannot be used"):
        Live(ask.live.shown, ask.live.again, ask.live.server_port)
