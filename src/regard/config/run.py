"""Training runs: `regard.train` trains a recipe or a Model value, or resumes the run that it finds in the folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from regard.api import LoadedModel
from regard.config.init import recipe_for_model
from regard.config.recipe import Recipe, read_recipe
from regard.config.setup import prepare
from regard.data.read.corpus import Corpus
from regard.decode.alignment import cross_attention_heads
from regard.decode.confidence import write_calibration
from regard.errors import InputError
from regard.models.device import choose_device
from regard.models.model import Model, Network
from regard.progress import QUIET
from regard.schema import require_parts
from regard.store.adapters import is_adapter
from regard.store.checkpoint import Checkpoint, checkpoints_folder, newest_step
from regard.store.folder import read_folder, write_generation_config
from regard.training.distributed import join_processes
from regard.training.lock import folder_lock
from regard.training.log import Quiet, Watcher, watcher
from regard.training.loop import Run

_ALIGNED = 200  # validation pairs by which alignment heads are chosen
_CALIBRATED = 400  # validation pairs by which confidences are calibrated


def train(
    recipe: str | Path | Model,
    out: str | Path | None = None,
    *,
    text: str | Path | Sequence[str | Path] | None = None,
    parts: Sequence[type] = (),
    steps: int | None = None,
    settings: Sequence[str] = (),
    device: str = "auto",
    progress: bool | Watcher = True,
    new_data: bool = False,
) -> LoadedModel:
    """Train a recipe or a Model value, or resume the run in `out` (with other text, if `new_data`); -> the model.

    A Model value needs `text`, a file or a pair of files; every key of the recipe that is not set is as `regard init`
    writes it. `parts` are classes of the caller's own that the recipe or the model consists of. `progress` is shown as
    a bar on a terminal, in the cell of a notebook, or as lines on standard error; False turns it off.
    """
    parts = require_parts(parts)
    if isinstance(settings, str):
        raise InputError(f'settings takes a list: settings=["{settings}"] (settings).')
    settings = [*settings, *([] if steps is None else [f"train.steps={steps}"])]
    parsed = _recipe_of(recipe, text, settings, parts)
    folder = Path(out) if out is not None else Path("runs") / parsed.name
    with join_processes(choose_device(device), parsed.train.timeout) as world:
        watching = Quiet() if not progress or not world.first else watcher(sys.stderr) if progress is True else progress
        with folder_lock(folder) if world.first else nullcontext():
            require_own(folder)
            step = int(world.on_rank_zero(lambda: newest_step(checkpoints_folder(folder), watching.note)))
            found = None if step < 0 else Checkpoint(checkpoints_folder(folder) / f"step-{step}", step)
            job = world.rank_zero_first(lambda: prepare(parsed, folder, world, watching, found, new_data=new_data))
            Run(job, folder, world.device, watching, world).train()
            valid = None if job.valid is None or not world.first else job.valid[0]
            return world.rank_zero_first(lambda: trained_model(folder, valid, device, parsed.parts))


def _recipe_of(
    recipe: str | Path | Model,
    text: str | Path | Sequence[str | Path] | None,
    settings: Sequence[str],
    parts: Sequence[type],
) -> Recipe:
    if isinstance(recipe, Network):
        raise InputError("regard.train takes the description of a model, not a network (recipe). Give "
                         "network.description; its weights are trained from scratch.")  # fmt: skip
    if not isinstance(recipe, Model | str | Path):
        called = getattr(recipe, "__name__", None)
        what = f"{called} is a function: call it, as in zoo.{called}()" if called else f"got {type(recipe).__name__}"
        raise InputError(f"regard.train takes a recipe or a model (recipe); {what}.")
    if not isinstance(recipe, Model):
        if text is not None:
            raise InputError('a recipe names its own text (text=). Use settings=["text.train=..."].')
        return read_recipe(recipe, settings, parts)
    if text is None:
        raise InputError("a model needs a text to be trained on (text=). Name a file, or a pair of files.")
    files = [text] if isinstance(text, (str, Path)) else text
    return recipe_for_model(recipe, [Path(file) for file in files], settings=settings, parts=parts)


def trained_model(folder: Path, valid: Corpus | None, device: str, parts: Sequence[type]) -> LoadedModel:
    """Load the trained model; with validation pairs, choose the heads that align best, and calibrate its confidence."""
    model = LoadedModel(read_folder(folder, choose_device(device), parts=parts))
    if valid is not None and valid.targets is not None and cross_attention_heads(model.network):
        model.choose_alignment_heads(valid.sources[:_ALIGNED], valid.targets[:_ALIGNED])
        write_generation_config(folder, model.generation_config)
    if valid is not None and valid.targets is not None and model.description.readout.outputs == "tokens":
        with suppress(InputError):  # too few words to calibrate with, or a text that the model cannot read
            model.calibrate(valid.sources[:_CALIBRATED], valid.targets[:_CALIBRATED], progress=QUIET)
            assert model.calibration is not None
            write_calibration(folder, model.calibration)
    return model


def require_own(folder: Path) -> None:
    """Refuse to overwrite a model that is not the result of a run in this folder."""
    holds = (folder / "model.safetensors").exists() or is_adapter(folder)
    if holds and not checkpoints_folder(folder).exists():
        raise InputError(f"{folder} holds a model but no checkpoints to resume from. Choose another folder.")
