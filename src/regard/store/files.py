"""Atomic file writes, and checked reads of safetensors and JSON files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from regard import messages
from regard.errors import DamagedFile, InputError, RegardError, RunFailed

if TYPE_CHECKING:
    from torch import Tensor

_LFS_POINTER = b"version https://git-lfs"
PARTIAL = ".part"  # suffix of a file until it is complete

# Matches the key with any value, or any key with a digest as its value: no single flipped byte can hide it.
_DIGEST = re.compile(rb'"sha256":"([^"]*)"|"[^"]{6}":"([0-9a-f]{64})"')


def ignore_write_point(point: str) -> None:
    """The default `on_write_point` hook: do nothing. Tests of durability pass their own."""


def write_file(
    path: Path,
    content: bytes,
    on_write_point: Callable[[str], None] = ignore_write_point,
    *,
    mode: int | None = None,
) -> None:
    """Write a file atomically: write a temporary file, flush it to disk, then rename it; `mode` are its permissions."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    with disk_errors(path, len(content)):
        try:
            write_flushed(temporary, content, f".{path.name}", on_write_point)
            if mode is not None:
                temporary.chmod(mode)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_output(path: Path, content: bytes) -> None:
    """Write a file that a person named: through links, into devices and pipes; a plain file atomically, mode kept."""
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name a file in it.")
    if not path.exists():
        write_file(Path(os.path.realpath(path)), content)
        return
    found = path.stat()
    is_stdout = os.path.samestat(found, os.fstat(1))  # /dev/stdout; a file behind it must not be replaced
    if stat.S_ISREG(found.st_mode) and not is_stdout:
        write_file(Path(os.path.realpath(path)), content, mode=stat.S_IMODE(found.st_mode))
        return
    sys.stdout.flush()
    with disk_errors(path, len(content)), open(os.dup(1) if is_stdout else path, "wb") as file:
        file.write(content)


def write_flushed(path: Path, content: bytes, label: str, on_write_point: Callable[[str], None]) -> None:
    """Write one file and flush it to disk; `on_write_point` gets `label` in the middle and at the end."""
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
        on_write_point(f"inside {label}")
        file.write(content[len(content) // 2 :])
        file.flush()
        os.fsync(file.fileno())
    on_write_point(f"after {label}")


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_new_folder(target: Path, may_replace: Callable[[Path], bool] = lambda _: False) -> None:
    """Raise an error if there is something that is neither an empty folder nor may be replaced."""
    if target.exists() and not _is_empty_folder(target) and not (target.is_dir() and may_replace(target)):
        raise InputError(f"{target} exists already. Name a folder that does not.")


def _is_empty_folder(path: Path) -> bool:
    """Whether it holds nothing but what a crash left."""
    return path.is_dir() and all(entry.name == PARTIAL for entry in path.iterdir())


@contextmanager
def new_folder(target: Path, may_replace: Callable[[Path], bool] = lambda _: False) -> Iterator[Path]:
    """A folder to write into, which becomes the target once it is whole; an error or a crash leaves no target.

    What a crash leaves has another name, and is cleared by the next attempt. One process at a time writes a target. An
    empty folder that exists is filled, for it may be a disk of its own.
    """
    require_new_folder(target, may_replace)
    place = Path(os.path.realpath(target))
    inside = place.is_dir() and _is_empty_folder(place)
    unfinished = place / PARTIAL if inside else place.with_name(f".{place.name}{PARTIAL}")
    new = [parent for parent in unfinished.parents if not parent.exists()]
    with disk_errors(target, 0):
        try:
            with _claimed(unfinished, target):
                yield unfinished
                if inside:
                    for path in unfinished.iterdir():
                        path.rename(place / path.name)
                else:
                    require_new_folder(target, may_replace)
                    _replace_folder(unfinished, place)
            sync_folder(place.parent)
        except RegardError as error:
            error.args = (str(error).replace(str(unfinished), str(target)),)
            raise
        finally:
            for parent in new:
                with suppress(OSError):  # it holds what was written
                    parent.rmdir()


@contextmanager
def _claimed(folder: Path, target: Path) -> Iterator[None]:
    """An empty folder that no other process fills; it is removed at the end, if it still has this name."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        taken = InputError(f"{target} is being written by another process. Name another folder.")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        except OSError:  # a file system without locks
            pass
        if not folder.is_dir() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise taken  # it has just been finished
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _replace_folder(new: Path, place: Path) -> None:
    """Give a folder its name; what had that name is removed after that."""
    old = place.with_name(f".{place.name}.old{PARTIAL}")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def disk_errors(path: Path, needed: int) -> Iterator[None]:
    """Turn an OSError of a write into our error about the disk; that nobody reads a pipe is no such error."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        where, remedy = _what_to_do(path, needed, error)
        raise messages.DISK_FULL(path=path, why=error.strerror or error, where=where, remedy=remedy) from error


def _what_to_do(path: Path, needed: int, error: OSError) -> tuple[str, str]:
    """The bytes needed, and free if they are too few; and a remedy. Nothing about space where it is not lacking."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "", "Choose another place, or change the permissions."
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return f" (needs {needed:,} bytes, {limit:,} allowed in a file)", "Raise the limit with ulimit -f."
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return "", "Choose another place."
    existing = next(parent for parent in path.absolute().parents if os.path.exists(parent))
    try:
        free = shutil.disk_usage(existing).free
    except OSError:
        free = needed
    # What was written of the file is removed by now, so more may be free than it needs.
    room = f"{free:,} free" if free < needed else "there was less"
    return f" (needs {needed:,} bytes, {room})" if needed else "", "Free some space or choose another place."


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialize tensors as safetensors, with a SHA-256 of the whole; refuse values that are not finite."""
    from safetensors.torch import save

    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise RunFailed(
                f"{name} holds a value that is not finite, so it is not saved. Try a smaller train.learning_rate."
            )
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # The library ends the process where memory for its two copies is short; this raises MemoryError, and costs nothing.
    bytearray(2 * sum(tensor.numel() * tensor.element_size() for tensor in contiguous.values()))
    return _with_checksum(bytes(save(contiguous, metadata={"format": "pt"})))


def _with_checksum(content: bytes) -> bytes:
    """Add the file's SHA-256 to its metadata; it is computed with 64 zeros in place of the digest."""
    end = 8 + int.from_bytes(content[:8], "little")
    before, mark, after = content[8:end].partition(b'"format":"pt"')
    head, tail = before + mark + b',"sha256":"', b'"' + after.rstrip()
    tail += b" " * (-(len(head) + 64 + len(tail)) % 8)  # tensors start at multiples of 8
    length = (len(head) + 64 + len(tail)).to_bytes(8, "little")
    digest = sha256(length, head, b"0" * 64, tail, content[end:])
    return b"".join((length, head, digest.encode(), tail, content[end:]))


def _check_checksum(path: Path) -> None:
    """Compare a file with the SHA-256 in its metadata; files written elsewhere have none."""
    with open(path, "rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        found = _DIGEST.search(header)
        if found is None:
            return
        start, end = found.span(found.lastindex or 0)
        digest = hashlib.sha256(length + header[:start] + b"0" * 64 + header[end:])
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest().encode() != header[start:end]:
        raise messages.DAMAGED_WEIGHTS(path=path, why="it fails its checksum")


def read_tensors(path: Path, *, unchanged: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file; its checksum is verified unless it is known to be unchanged."""
    require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            if not unchanged:
                _check_checksum(path)
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError, KeyError) as error:
        raise messages.DAMAGED_WEIGHTS(path=path, why=first_line(error)) from error


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read names and shapes from a safetensors header, not the tensors."""
    require_file(path)
    try:
        with safe_open(path, framework="np") as file:  # torch would map the whole file into memory
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise messages.DAMAGED_WEIGHTS(path=path, why=first_line(error)) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    content = read_bounded(path)
    try:
        value = json.loads(content.decode("utf-8-sig"))
        if b"\\ud" in content or b"\\uD" in content:
            json.dumps(value, ensure_ascii=False).encode()  # an unpaired surrogate is not text
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is not JSON: {first_line(error)}. Restore it from a copy.") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} does not hold an object. Restore it from a copy.")
    return value


def read_bounded(path: Path, max_bytes: int = 64 << 20) -> bytes:
    """Read a whole file, which may not be larger than `max_bytes`."""
    require_file(path)
    size = path.stat().st_size
    if size > max_bytes:
        raise DamagedFile(f"{path} has {size:,} bytes; at most {max_bytes:,} are read. Is it the right file?")
    return path.read_bytes()


def json_bytes(value: Any) -> bytes:
    """Indented JSON with a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def require_file(path: Path) -> None:
    """Raise an error if a file is missing, unreadable or a Git LFS pointer."""
    if not path.is_file():
        raise InputError(f"no such file: {path}. Is {path.parent} a model folder?")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path} is not readable by this user. Ask its owner for chmod 644.")
    with open(path, "rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise DamagedFile(f"{path} is a Git LFS pointer, not the file itself. Fetch it with: git lfs pull.")


def sha256(*parts: bytes) -> str:
    """The hexadecimal SHA-256 of concatenated bytes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def first_line(error: BaseException) -> str:
    """The first line of an error message, or the name of its class."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
