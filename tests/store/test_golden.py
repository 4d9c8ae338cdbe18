"""Checkpoints and model folders of every format version that there was: they load, or are refused by their version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from regard.errors import CannotResume
from regard.store.checkpoint import FORMAT
from tests.storm import golden

READ = (FORMAT,)  # the formats that are still read; the others are refused


def version(folder: Path) -> int:
    return int(folder.parent.name.removeprefix("format-"))


def test_the_present_format_has_golden_runs():
    assert {folder.name for folder in golden.folders() if version(folder) == FORMAT} == set(golden.RECIPES)


@pytest.mark.parametrize("folder", golden.folders(), ids=lambda folder: f"{folder.parent.name} {folder.name}")
def test_a_golden_run_resumes_with_the_recorded_losses_and_outputs(folder: Path, tmp_path: Path):
    expected = json.loads((folder / "golden.json").read_text())
    if version(folder) not in READ:
        with pytest.raises(CannotResume, match=f"format {version(folder)}, this version reads {FORMAT}"):
            golden.resume(folder, tmp_path)
        return
    losses, outputs = golden.resume(folder, tmp_path)
    assert len(losses) == golden.LATER
    assert losses == pytest.approx(expected["losses"], rel=1e-6)
    assert outputs == expected["outputs"]


def test_a_checkpoint_of_a_later_format_is_refused_by_its_version(tmp_path: Path):
    folder = Path(shutil.copytree(golden.folders()[-1], tmp_path / golden.folders()[-1].name))
    path = folder / "run" / "checkpoints" / f"step-{golden.SAVED}" / "manifest.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    (tmp_path / "again").mkdir()
    with pytest.raises(CannotResume, match=f"format {FORMAT + 1}, this version reads {FORMAT}"):
        golden.resume(folder, tmp_path / "again")
