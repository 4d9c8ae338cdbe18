"""Golden runs: small checkpoints and model folders of every format version, kept in tests/golden, with later losses.

`python -m tests.storm.golden` writes those of the present format; do so once, right after the format was raised.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from regard.config.run import train
from regard.store.checkpoint import FORMAT, saved_steps
from tests.storm.rows import ROOT

GOLDEN = ROOT / "tests" / "golden"
SAVED, LATER = 5, 20  # steps before the checkpoint, and losses after it
TEXTS = ["abc cab", "hgf", "a bc"]
_UNNEEDED = ("*tfevents*", ".lock", "data.*", "left-out.tsv")

_TRAIN = """steps = 25
batch_tokens = 160
learning_rate = 1e-3
schedule = { kind = "constant" }
precision = "float32"
save_every = 100
valid_every = 100
log_every = 1
"""
RECIPES = {
    "translator": '[model]\nname = "transformer"\nwidth = 8\ndepth = 1\nheads = 2\ninner = 8\ndropout = 0.1\n'
    '[text]\ntrain = "text.{a,b}"\ntokenizer = "character"\n'
    f"[train]\n{_TRAIN}ema = 0.9\naccumulate = 2\n",
    "writer": '[model]\nname = "sha_rnn"\nwidth = 8\ndepth = 2\ninner = 8\nwindow = 20\ndropout = 0.1\n'
    '[text]\ntrain = "text.a"\ndocuments = "file"\ntokenizer = "character"\n'
    'task = { kind = "truncated_bptt", length = 8, streams = 4 }\n'
    f'[train]\n{_TRAIN}optimizer = "muon"\n',
}


def folders() -> list[Path]:
    """The golden runs of all formats."""
    return sorted(path.parent for path in GOLDEN.glob("format-*/*/golden.json"))


def write_recipe(folder: Path, name: str) -> Path:
    """The recipe of a golden run, which lies beside its text."""
    words = [("abcdefgh" * 2)[start : start + 2 + length] for start in range(8) for length in range(1, 5)]
    lines = [f"{one} {other}" for one, other in zip(words, words[1:] + words[:1])]
    (folder / "text.a").write_text("".join(f"{line}\n" for line in lines))
    (folder / "text.b").write_text("".join(f"{line[::-1]}\n" for line in lines))
    path = folder / "recipe.toml"
    path.write_text(RECIPES[name])
    return path


def losses(folder: Path) -> list[float]:
    """The losses after the golden checkpoint."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row and row["step"] > SAVED]


def outputs(model: Any, name: str) -> list[str]:
    """What the trained model makes of some texts."""
    return list(model.translate(TEXTS)) if name == "translator" else [str(model.generate("ab", max_tokens=8))]


def resume(golden: Path, folder: Path) -> tuple[list[float], list[str]]:
    """Resume a copy of a golden run; -> its losses, and what its model makes of some texts."""
    name = golden.name
    recipe = write_recipe(folder, name)
    out = Path(shutil.copytree(golden / "run", folder / "run"))
    with chdir(folder):
        model = train(recipe, out, progress=False, device="cpu")
    return losses(out), outputs(model, name)


def main() -> None:
    """Write the golden runs of the present format."""
    for name in RECIPES:
        golden = GOLDEN / f"format-{FORMAT}" / name
        shutil.rmtree(golden, ignore_errors=True)
        with tempfile.TemporaryDirectory() as temporary, chdir(temporary):
            folder = Path(temporary)
            recipe = write_recipe(folder, name)
            train(recipe, folder / "run", settings=[f"train.steps={SAVED}"], progress=False, device="cpu")
            golden.mkdir(parents=True)
            shutil.copytree(folder / "run", golden / "run", ignore=shutil.ignore_patterns(*_UNNEEDED))
            assert saved_steps(golden / "run" / "checkpoints") == [SAVED]
            model = train(recipe, folder / "run", progress=False, device="cpu")
            found = {"losses": losses(folder / "run"), "outputs": outputs(model, name)}
            (golden / "golden.json").write_text(json.dumps(found, indent=1) + "\n")
        print(golden, sum(path.stat().st_size for path in golden.rglob("*") if path.is_file()), "bytes")


if __name__ == "__main__":
    main()
