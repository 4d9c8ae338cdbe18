"""The command `regard serve` in real processes: its address, its end by signals, and bad input in one line."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.cli.serve import named_folders
from regard.errors import InputError
from regard.serve.settings import parse_languages
from regard.store.languages import folder_languages
from tests.training.runs import ENVIRONMENT, regard

WAIT = 60.0
LONG = 1_500  # tokens that take a while
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "


class Process:
    """A `regard serve` that has said its address."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        command = [sys.executable, "-m", "regard", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, **environment}
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.search(r" at http://127\.0\.0\.1:(\d+) ", self.said)
        assert found, self.said + self.process.communicate()[1]
        self.port = int(found[1])

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())

    def running(self) -> int:
        """The requests that the model works on."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.request("GET", "/metrics")
        found = re.search(r"regard_running\{[^}]*\} (\d+)", connection.getresponse().read().decode())
        return int(found[1]) if found else 0

    def end(self, number: int | None) -> tuple[int, str]:
        """Send a signal, if any; -> the exit code, and what was said to standard error."""
        if number is not None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=WAIT)
        return self.process.returncode, errors


@contextmanager
def process(*arguments: object, **environment: str) -> Iterator[Process]:
    found = Process(*arguments, **environment)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def test_the_address_is_said_when_the_models_are_ready(folder: Path):
    with process(f"mine={folder}") as served:
        assert served.said.startswith("Serving mine at http://127.0.0.1:")
        assert served.ask("/health") == (200, {"status": "ok"})
        assert served.ask("/v1/models")[1]["data"][0]["id"] == "mine"
        assert served.end(signal.SIGTERM) == (0, "")


def test_sigterm_finishes_what_is_in_flight_and_ends_with_0(folder: Path):
    with process(folder) as served:
        found: list[tuple[int, Any]] = []
        asked = {
            "model": "writer",
            "prompt": "The cat",
            "max_tokens": LONG,
            "temperature": 0,
            "logit_bias": {"2": -100},
        }
        threads = [
            threading.Thread(target=lambda: found.append(served.ask("/v1/completions", asked))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        stream = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT)
        body = json.dumps({**asked, "stream": True}).encode()
        stream.sendall(f"{HEAD}{len(body)}\r\n\r\n".encode() + body)
        assert stream.recv(15) == b"HTTP/1.1 200 OK"
        while served.running() < 9:
            assert not found, "the requests must be in flight when the server is told to stop"
        served.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(WAIT)
        streamed = b""
        while some := stream.recv(1 << 16):
            streamed += some
        assert served.end(None) == (0, "")
        assert [status for status, _ in found] == [200] * 8
        assert [reply["usage"]["completion_tokens"] for _, reply in found] == [LONG] * 8
        assert len({reply["choices"][0]["text"] for _, reply in found}) == 1
        assert b"data: [DONE]" in streamed


def test_ctrl_c_ends_with_130(folder: Path):
    with process(folder) as served:
        code, errors = served.end(signal.SIGINT)
        assert code == 130
        assert "Traceback" not in errors


def test_a_key_can_come_from_the_environment(folder: Path):
    with process(folder, REGARD_API_KEY="from-outside") as served:
        assert served.ask("/v1/models")[0] == 401
        assert served.ask("/health")[0] == 200


def test_a_folder_that_is_overwritten_while_it_is_served_does_no_harm(folder: Path, tmp_path: Path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    asked = {"model": "copy", "prompt": "The cat", "max_tokens": 20, "temperature": 0}
    with process(copy) as served:
        before = served.ask("/v1/completions", asked)[1]["choices"]
        weights = copy / "model.safetensors"
        size = weights.stat().st_size
        with weights.open("r+b") as file:
            file.write(b"\xff" * size)
        assert served.ask("/v1/completions", asked)[1]["choices"] == before
        os.truncate(weights, 10)
        assert served.ask("/v1/completions", asked)[1]["choices"] == before
        shutil.rmtree(copy)
        assert served.ask("/v1/completions", asked)[1]["choices"] == before
        assert served.end(signal.SIGTERM) == (0, "")


def test_bad_usage_is_one_line_and_exit_code_2(folder: Path, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases: dict[tuple[object, ...], str] = {
            (folder, "--port", port): f"port {port} of 127.0.0.1 cannot be used: Address already in use",
            (folder, "--host", "0.0.0.0"): "Add --api-key KEY, or --open",
            (folder, "--host", "no.such.host.invalid", "--open"): "of no.such.host.invalid cannot be used",
            (tmp_path / "nothing", "--port", 0): "no such model folder",
            (folder, folder): "two models are named writer",
            (f"={folder}",): "names no model",
            (folder, "--languages", "writer=de"): "is not a model and its languages",
            (folder, "--languages", "other=de:en"): "there is no model other",
            (folder, "--port", "99999"): "Invalid value",
        }
        for arguments, why in cases.items():
            code, out, errors = regard("serve", *arguments)
            assert (code, out) == (2, ""), (arguments, errors)
            assert why in errors
            assert errors.count("\n") == 1


def test_a_damaged_model_is_one_line_and_exit_code_3(folder: Path, tmp_path: Path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "model.safetensors").write_bytes(b"nothing")
    code, out, errors = regard("serve", copy, "--port", 0)
    assert (code, out) == (3, "")
    assert errors.startswith("regard: error: ")
    assert errors.count("\n") == 1


def test_a_missing_extra_is_named(folder: Path):
    program = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('fastapi', 'uvicorn') else find(name, *a)\n"
        "from regard.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", str(folder)], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 2
    assert done.stderr == (
        "regard: error: regard serve needs fastapi, uvicorn, which is not installed. Install it: "
        "pip install 'regard[serve]'.\n"
    )


def test_models_are_named_by_hand_or_by_their_folder():
    assert named_folders(["a=x/y", "runs/b", "hf:org/c=d"]) == {
        "a": Path("x/y"), "b": Path("runs/b"), "c=d": Path("hf:org/c=d"),
    }  # fmt: skip
    with pytest.raises(InputError, match="two models are named b"):
        named_folders(["b=x", "y/b"])


@pytest.mark.parametrize(
    ("recipe", "card", "expected"),
    [
        ('[text]\ntrain = "data/train.{de,en}"', "", ("de", "en")),
        ('[text]\ntrain = "data/train.{de,en}.gz"', "", ("de", "en")),
        ('[text]\ntrain = "data/{de,en}.txt"', "", None),
        ('[text]\ntrain = [{path = "a.{fr,en}"}, "b.{fr,en}"]', "", ("fr", "en")),
        ('[text]\ntrain = ["a.{fr,en}", "b.{de,en}"]', "", None),
        ('[text]\ntrain = "data.jsonl"\nfields = ["pt-BR", "ja"]', "", ("pt-BR", "ja")),
        ('[text]\ntrain = "train.{a,b}"', "---\nlanguage:\n- nl\n- 'zh'\ntags: [x]\n---\nText", ("nl", "zh")),
        ("", "---\ntags: [x]\nlanguage: [nl, en]\n---\n", ("nl", "en")),
        ("", "---\nlanguage: [nl, en, de]\n---\n", None),
        ("", "language: [nl, en]\n", None),
        ("not toml [", "---\nlanguage: [nl, en]\n---\n", ("nl", "en")),
    ],
)
def test_languages_come_from_the_recipe_or_the_model_card(
    tmp_path: Path, recipe: str, card: str, expected: tuple[str, str] | None
):
    (tmp_path / "recipe.toml").write_text(recipe)
    (tmp_path / "README.md").write_text(card)
    assert folder_languages(tmp_path) == expected


def test_languages_can_be_given_by_hand():
    assert parse_languages("a=b=de:en") == ("a=b", ("de", "en"))
    for text in ("de:en", "x=de", "x=:en", "x=de:de", "x=DE:EN", ""):
        with pytest.raises(InputError):
            parse_languages(text)
