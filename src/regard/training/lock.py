"""What protects a run: one process a folder, and signals that save before they end."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from regard import messages
from regard.errors import DiskTrouble, InputError
from regard.store.files import PART, disk_trouble


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system lets go of it when the process ends, however it ends."""
    prepare(folder)
    with open(folder / ".lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise messages.IN_USE(folder=folder, holder=holder) from None
        except OSError as error:
            raise InputError(f"{folder} cannot be locked: {error.strerror}. Choose --out on another disk.") from None
        holder = f"process {os.getpid()} on host {socket.gethostname()} (started {time.strftime('%H:%M')})"
        with disk_trouble(folder / ".lock", len(holder)):
            lock.truncate(0)
            os.write(lock.fileno(), holder.encode())
        for left in folder.glob(f".*{PART}"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)
        yield


def prepare(folder: Path) -> None:
    """Make the folder, and be sure that it can be written to before any work is done."""
    probe = folder / f".probe-{os.getpid()}{PART}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskTrouble(f"{folder}: {error.strerror}. Free some space or choose another --out.") from None
        raise messages.NOT_WRITABLE(folder=folder, why=error.strerror) from None


class Signals:
    """Notices the first SIGINT or SIGTERM; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def watched(self) -> Iterator[Signals]:
        """Watch for signals (in the main thread; elsewhere Python cannot) until the end of the block."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._notice) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
