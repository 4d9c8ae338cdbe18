"""TODO."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from regard.api import LoadedModel, load
from regard.config.recipe import read_recipe
from regard.config.setup import prepare
from regard.data.read.corpus import Corpus
from regard.decode.alignment import cross_heads
from regard.errors import InputError
from regard.models.device import choose_device
from regard.store.checkpoint import Checkpoint, checkpoints, newest_step
from regard.store.folder import write_generation
from regard.training.distributed import joined
from regard.training.lock import only_one
from regard.training.log import Quiet, Watcher
from regard.training.loop import Run

_ALIGNED = 200


def train(
    recipe: str | Path,
    out: str | Path | None = None,
    *,
    settings: Sequence[str] = (),
    device: str = "auto",
    watcher: Watcher | None = None,
    new_data: bool = False,
) -> LoadedModel:
    """Train what a recipe describes, or go on with what the folder holds, `new_data`: with other text; -> the model."""
    parsed = read_recipe(recipe, settings)
    folder = Path(out) if out is not None else Path("runs") / parsed.name
    with joined(choose_device(device), parsed.train.timeout) as world:
        watching = watcher if watcher is not None and world.first else Quiet()
        with only_one(folder) if world.first else nullcontext():
            require_own(folder)
            step = int(world.lead(lambda: newest_step(checkpoints(folder), watching.note)))
            found = None if step < 0 else Checkpoint(checkpoints(folder) / f"step-{step}", step)
            job = world.in_turn(lambda: prepare(parsed, folder, world, watching, found, new_data=new_data))
            Run(job, folder, world.device, watching, world).go()
            valid = None if job.valid is None else job.valid[0]
            world.lead(lambda: write_aligner(folder, valid, device))
    return load(folder, device=device)


def write_aligner(folder: Path, valid: Corpus | None, device: str) -> None:
    """Which heads align words best, as the first validation pairs show it, into generation_config.json."""
    if valid is None or valid.targets is None:
        return
    model = load(folder, device=device)
    if cross_heads(model.network):
        model.choose_aligner(valid.sources[:_ALIGNED], valid.targets[:_ALIGNED])
        write_generation(folder, model.generation)


def require_own(folder: Path) -> None:
    """Refuse to write over a model that no run of ours is making here."""
    if (folder / "model.safetensors").exists() and not checkpoints(folder).exists():
        raise InputError(f"{folder} holds a model but no checkpoints to go on from. Choose another --out.")
