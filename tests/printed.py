"""Runs the commands and the Python of a document exactly as printed, in a shell and in a folder of their own.

Nothing is replaced. So that a page takes seconds, the built-in corpora are cut short, and every training gets few steps
(`short`). A line that no test can run says so where readers see it: `# needs the network`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from tests.training.runs import PROCESSES

UNRUN = re.compile(
    r"needs (the network|several machines|your own (file|model))|takes (minutes|hours)|this project's own tests"
)
SERVES = "until Ctrl-C"
BACKGROUND = re.compile(r" &\s*(#.*)?$")  # a server that the rest of the page talks to
BIN = Path(sys.executable).parent


def short(steps: int) -> list[str]:
    """The settings that every training gets in addition."""
    return [f"train.steps={steps}", "train.valid_lines=2", "train.samples=0"]


# Python that starts in 20 ms and hands its command to the process that has imported everything.
CLIENT = """import json, os, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["REGARD_SOCKET"])
socket.send_fds(line, [json.dumps([os.getcwd(), sys.argv[1:]]).encode()], [0, 1, 2])
sys.exit(int(line.recv(16)))
"""


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """The commands of a block for the shell, those that continue on the next line in one piece."""
        found = self.text.replace("\\\n", "").splitlines()
        return [line for line in found if line.strip() and not line.lstrip().startswith("#")]


def blocks(path: Path) -> list[Block]:
    """The blocks of a page that can be run, in order."""
    return [
        Block(*found) for found in re.findall(r"^```(sh|python)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    ]


def run_page(blocks: list[Block], folder: Path, *, steps: int = 2) -> str:
    """Run blocks in order in a folder; -> what they print. Python blocks share their names, as in one session."""
    said, session = [], ""
    with ExitStack() as servers, shell(folder, steps) as environment:
        for language, found in groupby(blocks, lambda block: block.language):
            if language == "python":
                session += "".join(block.text for block in found)  # what stands above runs again and defines its names
                said.append(run_line(f"regard-python <<'END'\n{session}\nEND", folder, environment))
            else:
                runnable = [line for block in found for line in block.lines if not UNRUN.search(line)]
                for line in runnable:
                    if BACKGROUND.search(line):
                        servers.enter_context(served(BACKGROUND.sub("", line), folder, environment))
                    else:
                        said.append(run_line(line, folder, environment))
    return "".join(said)


@contextmanager
def served(line: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """A server that a page starts in the background, from the line with its address to the end of the page."""
    command = ["bash", "-eu", "-c", f"exec {line}"]
    pipe: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipe) as process:
        assert process.stdout
        assert any("http://" in each for each in process.stdout), f"{line}\nprinted no address"
        reading = threading.Thread(target=process.stdout.read, daemon=True)
        reading.start()
        try:
            yield
        finally:
            process.terminate()
            reading.join(60)


def run_line(line: str, folder: Path, environment: dict[str, str]) -> str:
    """Run one line in a shell; it must succeed. A server is stopped with Ctrl-C once it prints its address."""
    command = ["bash", "-eu", "-o", "pipefail", "-c", line]
    pipe: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipe) as process:
        assert process.stdout
        if SERVES not in line:
            said, expected = process.communicate(timeout=600)[0], {0}
        else:
            said, expected = next((each for each in process.stdout if "http://" in each), ""), {0, 130, -signal.SIGINT}
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode in expected, f"{line}\nended with {process.returncode}:\n{said[-3000:]}"
    return said


@contextmanager
def shell(folder: Path, steps: int) -> Iterator[dict[str, str]]:
    """The environment of a shell whose `regard` and `torchrun` are ours, with short training."""
    programs = folder / ".bin"
    programs.mkdir()
    (programs / "client.py").write_text(CLIENT)
    client = f"exec '{sys.executable}' -S -E '{programs}/client.py'"
    train = " ".join(f"--set {setting}" for setting in short(steps))
    _write(programs / "regard", f'{client} regard "$@"')
    _write(programs / "regard-python", f"{client} python")
    _write(programs / "torchrun", f"exec '{BIN}/torchrun' \"$@\" {train}")
    _write(programs / "python", f"exec '{sys.executable}' \"$@\"")
    address = str(folder / ".bin" / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(_short_path(address))
        server.listen()
        threading.Thread(target=_serve, args=(server, steps), daemon=True).start()
        yield {
            **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "BROWSER": "true",
            "REGARD_SOCKET": _short_path(address), "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip


def _write(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _short_path(path: str) -> str:
    """The address of a socket has at most 107 characters, so it names the folder by a descriptor if it must."""
    return path if len(path) < 100 else f"/proc/{os.getpid()}/fd/{os.open(Path(path).parent, os.O_RDONLY)}/socket"


def _serve(server: socket.socket, steps: int) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection, steps), daemon=True).start()


def _answer(connection: socket.socket, steps: int) -> None:
    """Run one command in a process of its own with the client's input and output; send its exit code."""
    with connection:
        message, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
        own = [DupFd(stream) for stream in streams]
        process = PROCESSES.Process(target=_command, args=(own, short(steps), *json.loads(message)))
        process.start()
        for stream in streams:
            os.close(stream)
        if connection in wait([connection, process.sentinel]):  # the client is gone: Ctrl-C
            os.kill(process.pid, signal.SIGINT)
        process.join()
        with suppress(BrokenPipeError):
            connection.send(str(process.exitcode).encode())


def _command(streams: list[Any], settings: list[str], folder: str, arguments: list[str]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.detach(), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    _shorten(settings)
    verb, *rest = arguments
    if verb == "python":
        exec(compile(sys.stdin.read(), "document", "exec", dont_inherit=True), {"__name__": "__main__"})
        sys.exit()
    from regard.cli import main

    recipe = rest[:1] == ["train"] and len(rest) > 1
    sys.argv = ["regard", *rest, *([word for setting in settings for word in ("--set", setting)] if recipe else [])]
    main()


def _shorten(extra: list[str]) -> None:
    """Cut the built-in corpora short, and give `regard.train` a few steps."""
    import regard
    from regard.config import run
    from regard.data.corpora import dates, languages, python_source

    dates._SIZES.update(train=1500, valid=20, test=40)
    languages._SIZES.update(train=1500, valid=20, test=40)
    names = python_source._source_names
    python_source._source_names = lambda folder: [name for name in names(folder) if name.startswith(("json", "email"))]
    train = run.train

    def train_shortly(*given: Any, settings: Any = (), **named: Any) -> Any:
        return train(*given, settings=[*settings, *extra], **named)

    regard.train = train_shortly
