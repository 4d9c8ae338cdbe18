"""The command serve."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, EngineOption, Parts, Threads, own_parts, use_threads
from regard.errors import InputError, Interrupted

EXTRA = ("fastapi", "uvicorn", "prometheus_client", "python_multipart", "babel")


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODEL...", help="Model folders, each with the name it is served by.", show_default=False
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 is a free one.", min=0, max=65_535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="REGARD_API_KEY", help="Refuse requests without this key.", show_default=False),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Listen beyond this machine without a key.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A host name that clients use; can be repeated.", show_default=False)
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="An origin whose pages may ask, or *; can be repeated.", show_default="none"),
    ] = None,
    languages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=de:en",
            help="The languages of a translator; can be repeated.",
            show_default="from its recipe or model card",
        ),
    ] = None,
    detect: Annotated[
        Path | None, typer.Option(help="A classifier of languages, for /detect and auto.", show_default="none")
    ] = None,
    max_waiting: Annotated[int, typer.Option(help="Requests that may wait per model.", min=1)] = 64,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Requests that a model decodes on different cores.", min=1, max=256, show_default="--threads"
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens per text.", min=1)] = 4_096,
    max_characters: Annotated[int, typer.Option(help="Characters per text.", min=1)] = 50_000,
    max_body: Annotated[int, typer.Option(help="Bytes per request.", min=1_000)] = 2_000_000,
    grace: Annotated[float, typer.Option(help="Seconds to finish what is in flight at the end.", min=0)] = 30.0,
    parts: Parts = None,
    engine: EngineOption = "auto",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Serve models over HTTP: a page to type in, OpenAI's and LibreTranslate's interfaces.

    A model is named as in de-en=runs/de-en, else by its folder. The page is at the address that is printed, the
    interface under /docs. Ctrl-C or SIGTERM ends it, after what is in flight is finished.

    Example: regard serve de-en=runs/de-en runs/python --port 8000
    """
    require_extra("regard serve")
    folders = named_folders(models)
    from regard.serve.settings import Settings, parse_languages

    pairs = dict(parse_languages(one) for one in languages or ())

    settings = Settings(
        host=host, port=port, api_key=api_key or None, hosts=tuple(allow_host or ()), cors=tuple(cors or ()),
        max_waiting=max_waiting, workers=workers, max_tokens=max_tokens, max_characters=max_characters,
        max_body=max_body, grace_seconds=grace,
    )  # fmt: skip
    if not settings.is_local and settings.api_key is None and not open_:
        raise InputError(f"{host} can be reached from other machines (--host). Add --api-key KEY, or --open to let "
                         "everybody use it.")  # fmt: skip
    from regard.engines.folder import PROGRAMS, find_converted

    if engine in PROGRAMS and device not in ("auto", "cpu"):
        name = PROGRAMS[engine].name
        raise InputError(f"{name} runs on the CPU here, not on {device} (--device). Leave out --device.")
    use_threads(threads)
    from regard.api import LoadedModel, load
    from regard.serve.app import create_app
    from regard.serve.protocol import run_server

    for folder in folders.values() if engine != "auto" else ():
        find_converted(folder, engine)  # type: ignore[arg-type]  # refuses an engine before anything is loaded
    own = own_parts(parts)

    def read(folder: Path) -> LoadedModel:
        chosen = "torch" if folder == detect else engine
        place = "cpu" if chosen in PROGRAMS else device
        return load(folder, device=place, parts=own, engine=chosen)  # type: ignore[arg-type]  # checked above

    app = create_app(folders, settings, languages=pairs, detector=detect, read=read)
    names = ", ".join(folders)
    received = run_server(
        app, settings, on_ready=lambda address: _say(f"Serving {names} at {address} (Ctrl-C ends it).")
    )
    if not app.state.finished:  # a thread inside torch would crash the interpreter at exit
        sys.stdout.flush()
        os._exit(128 + received if received else 0)
    if received:
        raise Interrupted("stopped.", signal=received)


def _say(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()


def require_extra(command: str) -> None:
    """Refuse a command whose packages are not installed."""
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{command} needs {', '.join(missing)}, which is not installed. "
                         "Install it: pip install 'regard[serve]'.")  # fmt: skip


def named_folders(models: list[str]) -> dict[str, Path]:
    """The folders by the names they are served by; each name once."""
    found: dict[str, Path] = {}
    for one in models:
        before, equals, after = one.partition("=")
        named = bool(equals) and "/" not in before  # a "=" in a folder's name comes after a slash
        name, folder = (before, after) if named else (Path(one).resolve().name, one)
        if not name or not folder or not name.isprintable() or "/" in name or len(name) > 100:
            raise InputError(f'"{one}" names no model. Write NAME=FOLDER, or a folder.')
        if name in found:
            raise InputError(f"two models are named {name}. Name them: {name}=FIRST other=SECOND.")
        found[name] = Path(folder)
    return found
