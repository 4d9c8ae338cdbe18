"""The command line: `regard COMMAND ...`; an error prints one line and sets the exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import typer

from regard.cli import bench, convert, evaluate, generate, lab, serve, show, train, translate
from regard.errors import Note, RegardError, printable
from regard.version import __version__

_OUT_OF_MEMORY = "out of memory. When training, see regard plan; otherwise give shorter texts or a smaller --beam."
_READ_LINES = "translate", "embed", "classify", "score"

app = typer.Typer(
    name="regard", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
for _command in (
    train.train, train.init, train.plan, translate.translate, generate.generate, translate.fill, translate.embed,
    translate.classify, translate.score, show.show, serve.serve, evaluate.evaluate, evaluate.compare, evaluate.check,
    lab.lab, convert.convert, bench.bench,
):  # fmt: skip
    app.command()(_command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Print the traceback of an error; it may stand anywhere."),
) -> None:
    """One small toolkit for the whole lineage of attention: train a model, use it, see what it attends to."""


def main() -> NoReturn:
    """Run the command line and end the process."""
    _open_closed_streams()
    # Before torch is imported. By default the threads of OpenMP spin for long while they wait for each other; beside
    # another busy program, the thread that would finish the work then gets no core. A short spin is as good alone.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # input and output are UTF-8, whatever the locale
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.isatty():
        sys.stdout = _Terminal(sys.stdout.detach(), encoding="utf-8", errors="backslashreplace", line_buffering=True)
    arguments = sys.argv[1:]
    ends = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:ends]
    kept = [word for word in arguments[:ends] if word != "--debug"] + arguments[ends:]
    code = run(kept, debug=debug)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python has nothing left to say about it
    sys.exit(code)


class _Terminal(io.TextIOWrapper):
    """Standard output on a terminal: what a model or a file says cannot command it."""

    def write(self, text: str, /) -> int:
        return super().write(printable(text))


def _open_closed_streams() -> None:
    """Open the standard streams that are closed, lest a file takes their place; reading and writing fail."""
    streams = ("stdin", "w", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)
    for number, (name, mode, flags) in enumerate(streams):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, flags), number)
            setattr(sys, name, os.fdopen(number, mode))


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    """The first Ctrl-C ends the command in good order, a second one at once."""
    signal.signal(number, lambda number, _: os._exit(128 + number))
    raise KeyboardInterrupt


def run(arguments: list[str], *, debug: bool = False) -> int:
    """Run a command; -> the exit code."""
    try:
        with _notes():
            code = _invoke(arguments or ["--help"])
        sys.stdout.flush()
        return code
    except RegardError as error:
        return _fail(error, str(error), error.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader of the pipe is gone: exit silently
        return 141
    except MemoryError as error:
        return _fail(error, _OUT_OF_MEMORY, 1, debug)
    except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        return _fail(error, f"{error.strerror} ({error.filename}). Name a file that can be used.", 2, debug)
    except OSError as error:
        return _fail(error, _disk_trouble(error), 74, debug)
    except UnicodeEncodeError as error:
        near = printable(error.object[max(0, error.start - 20) : error.end + 20])
        return _fail(error, f"a name or a text is not UTF-8, near {near!r}. Rename the file, or correct it.", 2, debug)
    except Exception as error:
        if hasattr(error, "format_message"):  # the argument parser's own
            return _fail(error, _usage(error, arguments), 2, debug)
        if "out of memory" in str(error) or "allocate memory" in str(error):
            return _fail(error, _OUT_OF_MEMORY, 1, debug)
        return _fail(error, f"internal error: {error!r}. Run again with --debug and report it.", 1, debug)


def _invoke(arguments: list[str]) -> int:
    """Run a command without catching errors; typer's own `main` would end the process when a pipe breaks."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("regard", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def _usage(error: Exception, arguments: list[str]) -> str:
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    verbs = [word for word in arguments[:1] if not word.startswith("-")]
    known = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    command = " ".join(["regard", *[verb for verb in verbs if verb in known]])
    if "unexpected extra argument" in message and verbs and verbs[0] in _READ_LINES:
        return f'{message} ({command}). Texts are lines of standard input: echo "TEXT" | {command} MODEL, or < FILE.'
    return f"{message} ({command}). See: {command} --help."


def _disk_trouble(error: OSError) -> str:
    if error.errno == errno.EBADF and error.filename is None:
        return "standard output is closed. Redirect it to a file: > out.txt."
    remedy = "Is the disk full?" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else "Choose another place."
    return f"{error.strerror or error} ({error.filename or 'output'}). {remedy}"


def _drop_output() -> None:
    """Send buffered output to /dev/null, else the interpreter complains at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _notes() -> Iterator[None]:
    """Print notes as one line, without the line of code that issues them."""
    with warnings.catch_warnings():
        plain = warnings.formatwarning

        def formatted(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
        ) -> str:
            ours = issubclass(category, Note)
            return f"note: {printable(str(message))}\n" if ours else plain(message, category, filename, lineno, line)

        warnings.formatwarning = formatted
        try:
            yield
        finally:
            warnings.formatwarning = plain


def _fail(error: Exception, message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    label = "" if code >= 128 else "error: "
    with suppress(OSError):  # the terminal may be gone
        print(f"regard: {label}{printable(' '.join(message.split()))}", file=sys.stderr)
    return code
