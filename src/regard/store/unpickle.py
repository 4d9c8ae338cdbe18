"""Pickled weights, read in a process of their own that can reach nothing: out come tensors and plain settings.

The process has no network, starts no other, writes only its two files, and has memory for a few times the pickle's
size. It builds tensors and inert records; a pickle that names anything else is refused before anything of it is built.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import DamagedFile
from regard.models.device import own_memory
from regard.store.files import read_json

_TIMEOUT = 3600  # seconds for reading a pickle
_MOST_GROWTH = 6  # tensors share storage, and there are copies: memory for reading a pickle, per byte of it
_SPARE_MEMORY = 512 << 20
_MOST_VALUES = 5_000_000  # of the settings, vocabularies included
_MOST_DEPTH = 50
_NEW_NETWORK, _NEW_USERS = 0x40000000, 0x10000000  # flags of unshare(2)

# What a checkpoint holds besides the model, and only a resume needs.
_TRAINING = {
    "optimizer", "optim", "optimizer_state", "optimizer_history", "last_optimizer_state", "scheduler_state",
    "scaler_state", "train_iter_state", "extra_state", "lr_scheduler", "lr_schedulers", "amp_state",
}  # fmt: skip
# Classes of settings: none is imported, each becomes a record of what the pickle says.
_RECORDS = (
    "argparse.Namespace", "types.SimpleNamespace", "pathlib.PosixPath", "pathlib.PurePosixPath", "typing.Any",
    "omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata", "omegaconf.nodes.AnyNode", "omegaconf.nodes.StringNode", "omegaconf.nodes.IntegerNode",
    "omegaconf.nodes.FloatNode", "omegaconf.nodes.BooleanNode", "omegaconf.nodes.EnumNode",
    "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype", "_codecs.encode",
    "onmt.constants.CorpusTask",
)  # fmt: skip
# Of the guard inside the process: whatever leaves it or starts another.
_FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill",
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate",
    "os.putenv", "pty.spawn", "shutil.", "urllib.", "ftplib.", "http.", "smtplib.", "ctypes.dlopen", "webbrowser.",
)  # fmt: skip


def unpickle(paths: Sequence[Path], target: Path) -> dict[str, Any]:
    """Read pickles in another process: their tensors as `target`, a safetensors file; their settings are returned.

    A tensor's name is its path in the pickle, joined by dots.
    """
    names = [str(path.resolve()) for path in paths]
    command = [sys.executable, "-m", "regard.store.unpickle", str(target.resolve()), *names]
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=kept, timeout=_TIMEOUT,
                              check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DamagedFile(f"{paths[0]} takes too long to read. Download it again from a maker you trust.") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "Error" in line), "it cannot be read")[:200]
        raise DamagedFile(f"{paths[0]} is not a pickle of plain tensors: {why}. Download it again.")
    return read_json(target.with_suffix(".json"))


class Record:
    """An object of a pickle as what the pickle says of it; it runs nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.state = arguments, None

    def __setstate__(self, state: Any) -> None:
        self.arguments, self.state = (), state

    @property
    def plain(self) -> Any:
        """Its content: the attributes, the value of a node of omegaconf, or the parts of a path."""
        if not isinstance(self.state, dict):
            parts = self.arguments
            return (
                "/".join(parts).replace("//", "/") if parts and all(isinstance(part, str) for part in parts) else None
            )
        return next((self.state[key] for key in ("_content", "_val") if key in self.state), self.state)


def _write_plain(target: str, *sources: str) -> None:
    """In the process of its own: read pickles, write one safetensors file and one JSON file."""
    size = sum(Path(source).stat().st_size for source in sources)
    most = _MOST_GROWTH * size
    _isolate(most, {target, str(Path(target).with_suffix(".json"))})
    tensors: dict[str, Tensor] = {}
    settings: dict[str, Any] = {}
    try:
        with torch.serialization.safe_globals([(Record, name) for name in _RECORDS]):
            for source in sources:
                state = torch.load(source, map_location="cpu", weights_only=True)
                state = state.get("state_dict", state) if isinstance(state, dict) else {}
                state = {key: value for key, value in state.items() if key not in _TRAINING}
                settings |= _split(state, tensors)
        if not tensors:
            raise ValueError("it holds no tensors by name")
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > most:
            raise MemoryError
        copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
        save_file(copies, Path(target), metadata={"format": "pt"})
        Path(target).with_suffix(".json").write_text(json.dumps(settings), "utf-8")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise ValueError("it unpacks to far more than its own size") from None
        raise


def _split(state: dict[Any, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Take the tensors out, each under its path, and return what is left as JSON's values."""
    count = iter(range(_MOST_VALUES))

    def plain(value: Any, path: tuple[str, ...]) -> Any:
        if next(count, None) is None or len(path) > _MOST_DEPTH:
            raise ValueError("its settings are too many or too deep")
        value = value.plain if isinstance(value, Record) else value
        match value:
            case Tensor():
                tensors[".".join(path)] = value
                return None
            case dict():
                found = {str(key): plain(one, (*path, str(key))) for key, one in value.items()}
                return {key: one for key, one in found.items() if not isinstance(value.get(key), Tensor)}
            case list() | tuple() | set() | frozenset():
                return [plain(one, (*path, str(index))) for index, one in enumerate(value)]
            case bool() | int() | float() | str() | None:
                return value
        return str(type(value).__name__)

    kept: dict[str, Any] = plain(state, ())
    return kept


def _isolate(most: int, written: set[str]) -> None:
    """Give up the network, other processes, other files, and memory beyond what the pickle explains."""
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (_NEW_NETWORK, _NEW_NETWORK | _NEW_USERS):  # the second where this user may not do the first
        if getattr(libc, "unshare", lambda _: -1)(flags) == 0:
            break
    resource.setrlimit(resource.RLIMIT_AS, (own_memory("VmSize") + most + _SPARE_MEMORY,) * 2)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most + _SPARE_MEMORY,) * 2)

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and any(_writing(arguments)) and str(arguments[0]) not in written
        if writes or event.startswith(_FORBIDDEN):
            raise PermissionError(f"PermissionError: it asks for {event}, which reading weights never needs")

    sys.addaudithook(guard)


def _writing(arguments: tuple[Any, ...]) -> Iterator[bool]:
    """Whether the arguments of an `open` ask for writing."""
    _path, mode, flags = (*arguments, None, None, None)[:3]
    yield isinstance(mode, str) and not {"w", "a", "x", "+"}.isdisjoint(mode)
    yield isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


if __name__ == "__main__":
    _write_plain(*sys.argv[1:])
