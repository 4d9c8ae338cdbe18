"""generation_config.json: invalid settings are refused, unsupported ones are noted."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.errors import DamagedFile, Note
from regard.store.folder import read_folder
from tests.parity.folders import CPU, ours
from tests.store.published import copy_folder, edit


@pytest.mark.parametrize(
    "setting",
    [
        {"eos_token_id": []}, {"eos_token_id": 10**30}, {"eos_token_id": [1, 40]}, {"decoder_start_token_id": 99_999},
        {"decoder_start_token_id": -1}, {"bad_words_ids": [[5], [999_999]]}, {"suppress_tokens": [-1]},
        {"forced_eos_token_id": 40}, {"forced_bos_token_id": 40}, {"begin_suppress_tokens": [40]},
        {"decoder_start_token_id": None, "pad_token_id": 40},
    ],
)  # fmt: skip
def test_token_ids_outside_the_vocabulary_are_refused_by_name(folders: Path, tmp_path: Path, setting: dict[str, Any]):
    folder = copy_folder(folders, "marian", tmp_path / "m")
    edit(folder / "generation_config.json", **setting)
    if None in setting.values():
        edit(folder / "config.json", decoder_start_token_id=None)
    with pytest.raises(DamagedFile, match=f"generation_config.json cannot be used: {list(setting)[-1]} ") as caught:
        read_folder(folder, CPU)
    assert len(str(caught.value)) < 400


def test_gpt2s_default_end_token_is_replaced_by_the_tokenizers(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "gpt2", tmp_path / "m")
    edit(folder / "generation_config.json", eos_token_id=50256)
    assert ours(folder).tokenizers[0].eos == 1


UNSUPPORTED = [{"num_beam_groups": 2}, {"encoder_repetition_penalty": 1.5}, {"bad_words_ids": [[5, 6]]},
           {"exponential_decay_length_penalty": [3, 1.1]}]  # fmt: skip


@pytest.mark.parametrize("setting", UNSUPPORTED)
def test_unsupported_settings_are_noted(folders: Path, tmp_path: Path, setting: dict[str, Any]):
    folder = copy_folder(folders, "marian", tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regard.load(folder)
        edit(folder / "generation_config.json", num_beam_groups=1, encoder_repetition_penalty=1.0, bad_words_ids=[[5]])
        regard.load(folder)
    edit(folder / "generation_config.json", **setting)
    with pytest.warns(Note, match=f"sets {next(iter(setting))}.*, which regard does not support"):
        regard.load(folder)


def test_the_command_line_prints_the_note_in_one_line(folders: Path, tmp_path: Path):
    folder = copy_folder(folders, "marian", tmp_path / "m")
    edit(folder / "generation_config.json", num_beam_groups=2)
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", str(folder)],
        input="abc\n", capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0
    path = folder / "generation_config.json"
    assert done.stderr == f"note: {path} sets num_beam_groups, which regard does not support.\n"
