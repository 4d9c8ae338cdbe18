"""Downloads of hf:org/model from the Hugging Face hub: only plain files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import regard
from regard.errors import InputError
from tests.parity import zoo
from tests.parity.folders import perturbed, save_theirs

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOAD = """
import sys, regard
from regard.errors import InputError
try:
    print(regard.load(sys.argv[1], device="cpu").network.vocabulary)
except InputError as error:
    print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs."""

    folder: Path
    requested: list[str]

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def respond(self) -> None:
        path = urlsplit(self.path).path
        names = sorted(file.name for file in self.folder.iterdir())
        if path.startswith("/api/models/org/tiny/revision/"):
            siblings = [{"rfilename": name} for name in names]
            self.send({"id": "org/tiny", "sha": COMMIT, "siblings": siblings})
        elif path.startswith("/api/models/org/tiny/tree/"):
            self.send([{"type": "file", "path": name, "size": (self.folder / name).stat().st_size, "oid": "0" * 40}
                       for name in names])  # fmt: skip
        elif path.startswith("/org/tiny/resolve/") and path.rpartition("/")[2] in names:
            self.requested.append(path.rpartition("/")[2])
            self.send((self.folder / path.rpartition("/")[2]).read_bytes())
        else:
            self.send({"error": "Repository not found"}, 404)

    def send(self, content: object, status: int = 200) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header(
            "Content-Type", "application/octet-stream" if isinstance(content, bytes) else "application/json"
        )
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_model_on_the_hub_is_downloaded_and_loaded(tmp_path: Path):
    Hub.folder, Hub.requested = save_theirs(perturbed(zoo.ALL["gpt2"]()), tmp_path / "m"), []
    for name in ("pytorch_model.bin", "modeling.py", "training_args.bin"):
        (Hub.folder / name).write_bytes(b"harm")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "kept"),
                "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}  # fmt: skip

    def load(name: str) -> str:
        command = [sys.executable, "-c", LOAD, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **endpoint})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    try:
        assert load("hf:org/tiny") == "40"
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(Hub.requested)
        assert not any(name.endswith((".bin", ".py")) for name in Hub.requested)
        message = load("hf:org/other")
        assert message.startswith("cannot download hf:org/other")
        assert "\n" not in message
    finally:
        server.shutdown()


@pytest.mark.parametrize("name", ["hf:", "hf:../x", "hf:a/b/c", "hf:a b", "hf:a/b@../x", "hf:http://x/y"])
def test_malformed_names_are_refused_before_any_connection(name: str):
    with pytest.raises(InputError, match="not a name on the hub"):
        regard.load(name)
