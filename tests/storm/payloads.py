"""Hostile files: pickles that run code, files that claim or unpack to enormous sizes, names that point elsewhere."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Calls:
    """Unpickled, it calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def _torch(value: Any, *, zipped: bool = True) -> bytes:
    content = io.BytesIO()
    torch.save(value, content, _use_new_zipfile_serialization=zipped)
    return content.getvalue()


def _tar(harm: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            member.size = len(harm)
            archive.addfile(member, io.BytesIO(harm))
    return content.getvalue()


def _zip(**members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, member in members.items():
            archive.writestr(f"archive/{name.replace('__', '.')}", member)
    return content.getvalue()


def _numpy(value: Any, *, several: bool = False) -> bytes:
    content, array = io.BytesIO(), np.array([value], dtype=object)
    np.savez(content, a=array) if several else np.save(content, array)
    return content.getvalue()


def _lying_storage() -> bytes:
    """A tensor of 2**40 numbers over a storage of four bytes."""
    with zipfile.ZipFile(io.BytesIO(_torch({"a": torch.zeros(1)}))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member.replace(b"K\x01", b"\x8a\x06\0\0\0\0\0\x01") if "pkl" in name else member)
    return content.getvalue()


def pickles(sentinel: Path) -> dict[str, bytes]:
    """Payloads by the name of a file; each would create the sentinel."""
    path, touch = str(sentinel), f"touch {sentinel}"
    code = f"__import__('os').mkdir({path!r})"
    system, mkdir = Calls(os.system, touch), Calls(os.mkdir, path)
    harm = pickle.dumps(mkdir, 4)
    nested = _torch(mkdir)
    return {
        "system.pkl": pickle.dumps(system, 4),
        "old.pkl": pickle.dumps(system, 0),
        "mkdir.pickle": harm,
        "eval.bin": pickle.dumps(Calls(eval, code), 4),
        "exec.bin": pickle.dumps(Calls(exec, code), 2),
        "popen.bin": pickle.dumps(Calls(subprocess.Popen, ["touch", path]), 4),
        "map.bin": pickle.dumps(Calls(map, os.mkdir, [path]), 4),
        "list.bin": pickle.dumps(Calls(list, Calls(map, os.mkdir, [path])), 4),
        "global.bin": f"cposix\nsystem\n(S'{touch}'\ntR.".encode(),
        "stack.bin": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([len(touch)]) + touch.encode() + b"\x85R.",
        "instance.bin": f"(S'{touch}'\niposix\nsystem\n.".encode(),
        "import.bin": f"c__builtin__\n__import__\n(S'os'\ntR0cposix\nmkdir\n(S'{path}'\ntR.".encode(),
        "model.pt": _torch(mkdir),
        "weights.pth": _torch({"a": torch.zeros(2), "b": mkdir}),
        "legacy.pt": _torch(mkdir, zipped=False),
        "tar.pt": _tar(harm),
        "nested.pt": pickle.dumps(Calls(torch.storage._load_from_bytes, nested), 4),
        "script.pt": _zip(data__pkl=harm, constants__pkl=harm, version=b"3\n"),
        "training_args.bin": _torch({"args": mkdir}),
        "optimizer.pt": _torch({"state": {0: mkdir}, "param_groups": []}),
        "rng_state.pth": _torch({"python": mkdir, "cpu": torch.zeros(8)}),
        ".metadata": pickle.dumps({"state_dict_metadata": mkdir}, 4),
        "array.npy": _numpy(mkdir),
        "arrays.npz": _numpy(mkdir, several=True),
        "model.joblib": b"ZF0x" + harm,
        "config.yaml": f'!!python/object/apply:os.system ["{touch}"]\n'.encode(),
        "setitem.bin": b"\x80\x02]q\x00K\x00K\x01s" + harm[2:],
        "lying.pt": _lying_storage(),
    }


def config_bombs() -> dict[str, dict[str, Any]]:
    """Settings of GPT-2 that ask for far more than the weights hold."""
    return {
        "hidden 1e9": {"n_embd": 10**9}, "layers 1e6": {"n_layer": 10**6}, "vocabulary 1e12": {"vocab_size": 10**12},
        "inner 1e15": {"n_inner": 10**15}, "positions 1e18": {"n_positions": 10**18}, "layers 9999": {"n_layer": 9999},
        "heads 1e9": {"n_head": 10**9}, "width of a key 1e12": {"n_embd": 10**12, "n_head": 1},
    }  # fmt: skip


def file_bombs() -> dict[str, tuple[str, Callable[[Path], None]]]:
    """Functions that write a bomb in place of a file, by what it is: the file's name and the function."""

    def many_tensors(path: Path) -> None:
        one = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        header = json.dumps({f"t{number}": one for number in range(100_000)}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header)

    def sparse(path: Path) -> None:
        header = json.dumps({"wte.weight": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(1 << 30)

    def long_header(path: Path) -> None:
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", 1 << 40))
            file.truncate(1 << 30)

    def deep(path: Path) -> None:
        path.write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)

    def large(path: Path) -> None:
        with open(path, "wb") as file:
            file.truncate(1 << 30)

    def digits(path: Path) -> None:
        path.write_bytes(b'{"n_embd": ' + b"9" * 1_000_000 + b"}")

    def zipped(path: Path) -> None:
        _compressed(path, _torch({"a": torch.zeros(1 << 25)}))

    return {
        "100,000 tensors in a header": ("model.safetensors", many_tensors),
        "a sparse file with a lying shape": ("model.safetensors", sparse),
        "a header of 1 TB": ("model.safetensors", long_header),
        "deep config": ("config.json", deep),
        "deep tokenizer": ("tokenizer.json", deep),
        "deep generation config": ("generation_config.json", deep),
        "1 GB of config": ("config.json", large),
        "1 GB of tokenizer": ("tokenizer.json", large),
        "a number of 1,000,000 digits": ("config.json", digits),
        "a compressed pickle": ("pytorch_model.bin", zipped),
    }


def _compressed(path: Path, content: bytes) -> None:
    """The members of an archive compressed, as no program of the field writes them."""
    with zipfile.ZipFile(io.BytesIO(content)) as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))


def outside(secret: Path, folder: Path) -> list[str]:
    """Names that point from a folder to a file outside of it."""
    relative = os.path.relpath(secret, folder)
    return [
        relative, str(secret), f"./{relative}", f"x/../{relative}", f"{folder.name}/../{relative}",
        f"../{folder.name}/{relative}",
        relative.replace("/", "\\"), relative.replace("/", "%2f"), relative.replace("..", "%2e%2e"),
        relative.replace("../", "..%2f"), relative.replace("../", "....//"), f"{relative}\0.safetensors", f"file://{secret}",
        f"~/{relative}", f"/{secret}", f"{relative}/", f" {relative}", relative.replace("../", "..;/"),
        relative.replace("../", "\u2025/"), f"link/{secret.name}", "link.safetensors", "..", ".", "",
    ]  # fmt: skip
