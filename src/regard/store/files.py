"""Files that are either wholly there or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regard.errors import DamagedFile, DiskTrouble, InputError


def write_file(path: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, then take its name: nobody ever sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk_trouble(path, len(content)):
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


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
        raise DiskTrouble(f"cannot write {path}: {error.strerror or error}{_room(path, needed)}.") from error


def _room(path: Path, needed: int) -> str:
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return ""
    free = status.f_bavail * status.f_frsize
    return f" (needs {needed:,} bytes, {free:,} free). Free some space or choose another --out"


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors form of some tensors."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return bytes(save(whole, metadata={"format": "pt"}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, copied into memory."""
    require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError, KeyError) as error:
        raise DamagedFile(f"{path} is damaged: {_first_line(error)}. Restore it from a copy.") from error


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes that a safetensors file holds, without reading the tensors."""
    require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise DamagedFile(f"{path} is damaged: {_first_line(error)}. Restore it from a copy.") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object a JSON file holds."""
    require_file(path)
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is not JSON: {_first_line(error)}. Restore it from a copy.") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} does not hold an object. Restore it from a copy.")
    return value


def json_bytes(value: Any) -> bytes:
    """Readable JSON with a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def require_file(path: Path) -> None:
    """Say what is missing, or unreadable, before anything tries to read it."""
    if not path.is_file():
        raise InputError(f"no such file: {path}. Is {path.parent} a model folder?")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path} is not readable by this user. Ask its owner for chmod 644.")


def sha256(content: bytes) -> str:
    """The hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
