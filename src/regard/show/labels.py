"""The names of layers and models on the page, in the words of the papers, each with a tip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_KINDS = {"self": "self-attention", "cross": "cross-attention"}
_TIPS = {
    ("encoder", "self"): "each token attends to the tokens of its own text",
    ("decoder", "self"): "each token attends to itself and to the tokens before it",
    ("decoder", "cross"): "each token of the target attends to the tokens of the source",
}


def layer_label(name: str, *, only_stack: bool) -> tuple[str, str]:
    """The title of a layer and its tip: "cross-attention, layer 1" for decoder.1.cross.

    `only_stack`: the model has no other stack, so the title does not name it.
    """
    stack, number, part = (*name.split("."), "", "")[:3]
    kind = _KINDS.get(part, part.replace("_", " ") or stack)
    title = kind if only_stack or part == "cross" else f"{stack} {kind}"
    title = f"{title}, layer {number}" if number.isdecimal() else title
    tip = _TIPS.get((stack, part), f"the attention of the layer {name}")
    return title, f"{tip} ({name} in Python; layers and heads count from 0)"


def model_labels(folders: Sequence[Path]) -> list[str]:
    """The last parts of the folders' paths, as many as tell them apart: a page does not tell where its maker works."""
    parts = [folder.parts if str(folder).startswith("hf:") else folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        found = ["/".join(some[-count:]) for some in parts]
        if len(set(found)) == len(found):
            break
    return found
