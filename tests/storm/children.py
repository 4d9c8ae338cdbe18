"""Commands in forked children, which have imported everything; an audit hook records what they try to do."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto")
CODE = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")
PATIENCE = 12  # times the seconds of the processor that a child may take
_LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")


@dataclass(frozen=True)
class Child:
    """How a child ended, what it said, what it took, and the events that were watched."""

    code: int
    said: str
    seconds: float
    processor_seconds: float
    megabytes: int  # the most resident memory, what was imported before included
    events: tuple[str, ...]


def import_all() -> None:
    """Import what commands import when they are called, so that a child has it."""
    import matplotlib.pyplot  # noqa: F401
    import torch._dynamo

    import regard.cli
    import regard.config.init
    import regard.config.run
    import regard.engines.convert
    import regard.evaluation.check
    import regard.evaluation.compare
    import regard.evaluation.evaluate
    import regard.evaluation.plan
    import regard.serve.app
    import regard.serve.protocol
    import regard.store.convert  # noqa: F401

    torch.set_num_threads(1)


def is_outbound(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an event of the network leaves this machine."""
    if event == "socket.connect":
        address = arguments[1]
        return isinstance(address, tuple) and not str(address[0]).startswith(_LOOPBACK)
    host = arguments[1][0] if event == "socket.sendto" and isinstance(arguments[1], tuple) else arguments[0]
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    return bool(host) and isinstance(host, str) and not host.startswith(_LOOPBACK)


def watch(report: int, secret: Path | None) -> None:
    """Write the events that matter to a descriptor, one per line, from now on."""
    name = None if secret is None else str(secret)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        seen = event in CODE or (event in NETWORK and is_outbound(event, arguments))
        if event == "open" and name is not None and isinstance(arguments[0], str | bytes | os.PathLike):
            seen = os.path.realpath(os.fsdecode(arguments[0])) == name
        if seen:
            os.write(report, f"{event} {arguments!r}"[:300].replace("\n", " ").encode(errors="replace") + b"\n")

    sys.addaudithook(hook)


def forked(
    arguments: Iterable[object], folder: Path, *, stdin: bytes = b"a\n", seconds: int = 10,
    stop_after: float | None = None, secret: Path | None = None,
) -> Child:  # fmt: skip
    """Run the command line in a child that may take so many `seconds` of the processor.

    `stop_after` so many seconds it gets SIGTERM. Opening `secret` is an event.
    """
    (folder / "stdin").write_bytes(stdin)
    for name in ("said", "events"):
        (folder / name).write_bytes(b"")
    began, child = time.monotonic(), os.fork()
    if child == 0:
        _run([str(argument) for argument in arguments], folder, seconds, stop_after, secret)
    _, status, used = os.wait4(child, 0)
    said = (folder / "said").read_text(errors="replace")
    events = tuple((folder / "events").read_text(errors="replace").splitlines())
    took = time.monotonic() - began
    return Child(
        os.waitstatus_to_exitcode(status), said, took, used.ru_utime + used.ru_stime, used.ru_maxrss >> 10, events
    )


def _run(arguments: list[str], folder: Path, seconds: int, stop_after: float | None, secret: Path | None) -> None:
    code = 70
    try:
        for number, path, how in ((0, "stdin", os.O_RDONLY), (1, "/dev/null", os.O_WRONLY), (2, "said", os.O_RDWR)):
            os.dup2(os.open(folder / path, how), number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
        report = os.open(folder / "events", os.O_WRONLY)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor, which other programs do not lengthen
        signal.alarm(PATIENCE * seconds)  # for a child that waits for ever
        if stop_after is not None:
            threading.Timer(stop_after, os.kill, (os.getpid(), signal.SIGTERM)).start()
        os.chdir(folder)
        watch(report, None if secret is None else secret.resolve())
        from regard.cli import run

        code = run(arguments)
        sys.stderr.flush()
    finally:
        os._exit(code)  # whatever was raised, what is around the fork belongs to the parent


def fault(child: Child, codes: tuple[int, ...] = (2, 3)) -> str:
    """What is wrong with how a hostile case ended: it must be refused in one line, with one of these exit codes."""
    from tests.storm.rows import one_line

    if child.code < 0:
        return f"signal {-child.code}"
    if child.events:
        return child.events[0]
    if child.code not in codes:
        return f"exit {child.code}: {child.said[-300:]!r}"
    return one_line(child.said) if child.code else ""
