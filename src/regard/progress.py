"""Progress for people who wait: a bar on a terminal, a line that updates in a notebook, nothing in a pipe."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Literal

Progress = Callable[[float], None]
"""Receives how many more are done."""

QUIET: Progress = lambda done: None  # noqa: E731

Place = Literal["terminal", "notebook", "pipe"]

_SECONDS = 0.2  # between two updates of a notebook's cell
_KEPT = 200  # lines of a notebook's cell


def place() -> Place:
    """Where a person would see progress."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel"):
        return "notebook"
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else "pipe"


class Cell:
    """The output of a notebook's cell: lines, and below them a status that changes."""

    def __init__(self) -> None:
        display: Any = import_module("IPython.display").display
        self.lines: list[str] = []
        self.state, self.updated = "", 0.0
        self.handle: Any = display({"text/plain": ""}, raw=True, display_id=True)

    def print(self, line: str) -> None:
        """Add a line."""
        self.lines = [*self.lines, line][-_KEPT:]
        self.show()

    def status(self, text: str) -> None:
        """Change the status; not more often than a person can read."""
        self.state = text
        if time.monotonic() > self.updated + _SECONDS:
            self.show()

    def show(self) -> None:
        """Update the cell."""
        self.updated = time.monotonic()
        text = "\n".join([*self.lines, *([self.state] if self.state else [])])
        self.handle.update({"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}, raw=True)

    def counter(self, total: int | None, what: str) -> Progress:
        """A status that counts."""
        count = 0.0

        def advance(done: float) -> None:
            nonlocal count
            count += done
            self.status(f"{what}: {count:,.0f}" + ("" if total is None else f" of {total:,}"))

        return advance

    def clear(self) -> None:
        """Remove the status."""
        self.state = ""
        self.show()


@contextmanager
def progress(total: int | None, what: str, least: int = 2) -> Iterator[Progress]:
    """Progress towards a total; none for fewer than `least` items. No total: it only moves."""
    where = place() if total is None or total >= least else "pipe"
    if where == "pipe":
        yield QUIET
    elif where == "notebook":
        cell = Cell()
        try:
            yield cell.counter(total, what)
        finally:
            cell.clear()
    else:
        from rich.console import Console
        from rich.progress import Progress as Bars

        with Bars(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(what, total=total)
            yield lambda done: bars.advance(task, done)


@contextmanager
def waiting(total: int | None, what: str, seconds: float = 2.0) -> Iterator[Progress]:
    """As `progress`, but only for those who wait longer than some seconds."""
    begun, hidden = time.monotonic(), 0.0
    shown: Progress | None = None
    with ExitStack() as stack:

        def advance(done: float) -> None:
            nonlocal hidden, shown
            hidden += done
            if shown is None and time.monotonic() - begun >= seconds:
                shown = stack.enter_context(progress(total, what, least=1))
            if shown is not None:
                shown(hidden)
                hidden = 0.0

        yield advance
