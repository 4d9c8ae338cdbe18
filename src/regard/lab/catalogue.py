"""The claims by group, and their facts for the list, which needs no torch: they are read, not imported."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InputError, suggest

if TYPE_CHECKING:
    from regard.lab.claim import Claim

GROUPS: Mapping[str, tuple[str, ...]] = {
    "recurrence": ("bottleneck", "vanishing", "distance", "parallel"),
    "attention": ("scale", "saturation", "heads", "symmetry", "scores"),
    "order": ("positions", "extrapolation", "order"),
    "depth": ("residuals", "norm", "axis", "nonlinearity"),
    "training": ("leak", "exposure", "tying"),
    "long-texts": ("lsh", "reversible", "book"),
    "transfer": ("critic", "pretraining", "transfer", "explanation"),
}
"""The names of the claims, by the page of docs/ that explains them."""

NAMES = tuple(name for names in GROUPS.values() for name in names)
FOLDER = Path("runs") / "lab"
FINDING = "finding.json"

_CLAIMS = Path(__file__).parent / "claims"
_LISTED = ("name", "question", "source", "minutes", "fewest")


@functools.cache
def facts(name: str) -> dict[str, Any]:
    """The literal facts of a claim: name, question, source, minutes, fewest."""
    tree = ast.parse((_CLAIMS / f"{name}.py").read_text(encoding="utf-8"))
    (call,) = (
        node.value for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CLAIM" and isinstance(node.value, ast.Call)
    )  # fmt: skip
    values = {keyword.arg: keyword.value for keyword in call.keywords}
    return {key: ast.literal_eval(values[key]) for key in _LISTED}


def listed(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Every claim with its facts and the last verdict found below a folder, or None."""
    return [{**facts(name), "verdict": last_verdict(folder / name)} for name in NAMES]


def last_verdict(folder: Path) -> str | None:
    """The verdict of the finding in a folder; None if there is none that can be read."""
    try:
        found = json.loads((folder / FINDING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    verdict = found.get("verdict") if isinstance(found, dict) else None
    return verdict if isinstance(verdict, str) else None


def require_name(name: str) -> str:
    """The name of a claim of ours, or an error."""
    if name in NAMES:
        return name
    raise InputError(f'no claim is called "{name}" (regard lab). {suggest(name, NAMES)}')


def find(name: str) -> Claim[Any]:
    """A claim of ours by its name, or a claim of the user's own by its file, which is executed."""
    if name.endswith(".py"):
        return _own(Path(name))
    claim: Claim[Any] = importlib.import_module(f"regard.lab.claims.{require_name(name)}").CLAIM
    return claim


def _own(path: Path) -> Claim[Any]:
    """The claim in a Python file that the user named."""
    from regard.lab.claim import Claim

    if not path.is_file():
        raise InputError(f"no such file: {path} (regard lab). Name the Python file of a claim.")
    spec = importlib.util.spec_from_file_location(f"regard_claim_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their annotations up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be run: {type(error).__name__}: {error} (regard lab).") from error
    claim = getattr(module, "CLAIM", None)
    if not isinstance(claim, Claim):
        raise InputError(f"{path} defines no CLAIM (regard lab). Assign it a regard.lab.Claim.")
    return claim
