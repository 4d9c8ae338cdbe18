"""Files that are either wholly there or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regard import messages
from regard.errors import DamagedFile, InputError, RunFailed

_POINTER = b"version https://git-lfs"
PART = ".part"  # how the names end that files have until they are whole

# Under its own key whatever the value, or a value of its form: no single flipped byte can hide it.
_DIGEST = re.compile(rb'"sha256":"([^"]*)"|"[^"]{6}":"([0-9a-f]{64})"')


def unwatched(point: str) -> None:
    """Nobody is told which point of a write was reached; tests of durability are."""


def write_file(path: Path, content: bytes, reached: Callable[[str], None] = unwatched) -> None:
    """Write beside the file, flush to the disk, then take its name: nobody ever sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    with disk_trouble(path, len(content)):
        try:
            write_flushed(beside, content, f".{path.name}", reached)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def write_flushed(path: Path, content: bytes, called: str, reached: Callable[[str], None]) -> None:
    """Write one file and flush it to the disk; `reached` is told of it by the name it is called."""
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
        reached(f"inside {called}")
        file.write(content[len(content) // 2 :])
        file.flush()
        os.fsync(file.fileno())
    reached(f"after {called}")


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_trouble(path: Path, needed: int) -> Iterator[None]:
    """Turn the system's word on a failed write into ours."""
    try:
        yield
    except OSError as error:
        room, remedy = _room(path, needed, error)
        raise messages.DISK_FULL(path=path, why=error.strerror or error, room=room, remedy=remedy) from error


def _room(path: Path, needed: int, error: OSError) -> tuple[str, str]:
    """What is needed, what there is, and what helps."""
    there = next(place for place in path.absolute().parents if os.path.exists(place))
    try:
        free = f"needs {needed:,} bytes, {shutil.disk_usage(there).free:,} free"
    except OSError:
        free = f"needs {needed:,} bytes"
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return f"{free}, {limit:,} allowed in a file", "Raise the limit with ulimit -f."
    return free, "Free some space or choose another --out."


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors form of some tensors, with the SHA-256 of it all; what is not finite is never written."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise RunFailed(f"{name} holds a value that is not finite, so it is not saved. Try a smaller train.rate.")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return _sealed(bytes(save(whole, metadata={"format": "pt"})))


def _sealed(content: bytes) -> bytes:
    """Add to the metadata the SHA-256 of the file as it is with 64 zeros in the digest's place."""
    end = 8 + int.from_bytes(content[:8], "little")
    before, mark, after = content[8:end].partition(b'"format":"pt"')
    head, tail = before + mark + b',"sha256":"', b'"' + after.rstrip()
    tail += b" " * (-(len(head) + 64 + len(tail)) % 8)  # tensors begin at multiples of 8
    length = (len(head) + 64 + len(tail)).to_bytes(8, "little")
    digest = sha256(length, head, b"0" * 64, tail, content[end:])
    return b"".join((length, head, digest.encode(), tail, content[end:]))


def _require_seal(path: Path) -> None:
    """Hold a file that carries its SHA-256 against it; files that others wrote carry none."""
    with open(path, "rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        found = _DIGEST.search(header)
        if found is None:
            return
        start, end = found.span(found.lastindex or 0)
        digest = hashlib.sha256(length + header[:start] + b"0" * 64 + header[end:])
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest().encode() != header[start:end]:
        raise messages.DAMAGED_WEIGHTS(path=path, why="it fails its checksum")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, checked and copied into memory."""
    require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            _require_seal(path)
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError, KeyError) as error:
        raise messages.DAMAGED_WEIGHTS(path=path, why=_first_line(error)) from error


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes that a safetensors file holds, without reading the tensors."""
    require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise messages.DAMAGED_WEIGHTS(path=path, why=_first_line(error)) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object a JSON file holds."""
    content = read_bounded(path)
    try:
        value = json.loads(content.decode("utf-8-sig"))
        if b"\\ud" in content or b"\\uD" in content:
            json.dumps(value, ensure_ascii=False).encode()  # half of a character pair is not text
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is not JSON: {_first_line(error)}. Restore it from a copy.") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} does not hold an object. Restore it from a copy.")
    return value


def read_bounded(path: Path, most: int = 64 << 20) -> bytes:
    """The bytes of a file that is read whole, and therefore may not be large."""
    require_file(path)
    size = path.stat().st_size
    if size > most:
        raise DamagedFile(f"{path} has {size:,} bytes; at most {most:,} are read. Is it the right file?")
    return path.read_bytes()


def json_bytes(value: Any) -> bytes:
    """Readable JSON with a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def require_file(path: Path) -> None:
    """Say what is missing, or unreadable, before anything tries to read it."""
    if not path.is_file():
        raise InputError(f"no such file: {path}. Is {path.parent} a model folder?")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path} is not readable by this user. Ask its owner for chmod 644.")
    with open(path, "rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise DamagedFile(f"{path} is a Git LFS pointer, not the file itself. Fetch it with: git lfs pull.")


def sha256(*parts: bytes) -> str:
    """The hexadecimal SHA-256 of some bytes, in parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
