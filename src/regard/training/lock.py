"""The lock of a run's folder, and signals (SIGINT, SIGTERM, SIGHUP) that end a run after a checkpoint."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from regard import messages
from regard.errors import DiskTrouble, InputError
from regard.store.files import PARTIAL, disk_errors

_SAME_PRESS = 0.5  # seconds: signals this close together are one request to stop


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system releases it when the process ends, however it ends.

    A new folder that nothing was written to is removed again.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        make_writable(folder)
        with _locked(folder):
            yield
            new = []
    finally:
        if new and [path.name for path in folder.glob("*")] == [".lock"]:
            (folder / ".lock").unlink()
        with suppress(OSError):  # another process uses it, or something was written to it
            for path in new:
                path.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise messages.IN_USE(folder=folder, holder=holder) from None
        except OSError as error:
            raise InputError(f"{folder} cannot be locked: {error.strerror}. Choose a folder on another disk.") from None
        holder = f"{_this_process()} (started {time.strftime('%H:%M')})"
        with disk_errors(folder / ".lock", len(holder)):
            lock.truncate(0)
            os.write(lock.fileno(), holder.encode())
        for left in folder.glob(f".*{PARTIAL}"):  # by a process that was killed while writing
            left.unlink(missing_ok=True)
        yield


def _this_process() -> str:
    return f"process {os.getpid()} on host {socket.gethostname()}"


def require_lock(folder: Path) -> None:
    """Raise an error if another process took the folder: on some network disks, locks do not reach other machines."""
    try:
        holder = (folder / ".lock").read_text().strip()
    except OSError:  # nobody holds it, or the disk is in trouble, which the next write reports
        return
    if holder and not holder.startswith(f"{_this_process()} "):
        raise messages.IN_USE(folder=folder, holder=holder)


def make_writable(folder: Path) -> None:
    """Create the folder, and test that it can be written to before any work is done."""
    probe = folder / f".probe-{os.getpid()}{PARTIAL}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskTrouble(f"{folder}: {error.strerror}. Free some space or choose another folder.") from None
        raise messages.NOT_WRITABLE(folder=folder, why=error.strerror) from None


class Signals:
    """Records the first SIGINT, SIGTERM or SIGHUP. A later one ends the process at once, unless it follows at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.since = 0.0  # when it was received

    @contextmanager
    def watched(self) -> Iterator[Signals]:
        """Record signals until the end of the block; Python can do so in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup: the run outlives its terminal
            numbers.remove(signal.SIGHUP)
        before = {number: signal.signal(number, self._record) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self.since = number, time.monotonic()
        elif time.monotonic() - self.since > _SAME_PRESS:
            with suppress(OSError):  # not through a buffer, which this may have interrupted
                os.write(2, b"stopped at once: what came after the last checkpoint is lost\n")
            os._exit(128 + number)
