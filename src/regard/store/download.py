"""Models by name: hf:org/model is fetched from the Hugging Face hub, and only when it is typed so."""

from __future__ import annotations

import re
from pathlib import Path

from regard.errors import InputError

_MARK = "hf:"
_NAME = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")
_PLAIN = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.spm"]
_PICKLES = ["pytorch_model*.bin"]


def located(folder: Path, *, pickles: bool = False) -> Path:
    """The folder itself, or where the files of hf:org/model (or hf:org/model@revision) are kept on this machine."""
    name = str(folder)
    if not name.startswith(_MARK):
        return folder
    asked = _NAME.fullmatch(name.removeprefix(_MARK))
    if asked is None or ".." in name:
        raise InputError(f"{name} is not a name on the hub. Write hf:org/model or hf:org/model@revision.")
    from huggingface_hub import snapshot_download

    wanted = [*_PLAIN, *(_PICKLES if pickles else [])]
    try:
        kept = snapshot_download(asked["repository"], revision=asked["revision"], allow_patterns=wanted)
    except Exception as error:  # the library has a family of its own for every way a connection fails
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"cannot download {name}: {why.rstrip('.')}. Check the name and the connection.") from error
    return Path(str(kept))
