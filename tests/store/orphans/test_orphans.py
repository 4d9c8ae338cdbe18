"""Models of other toolkits: their answers, line for line, and refusals by name."""

from __future__ import annotations

import importlib
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.errors import DamagedFile, InputError
from regard.store.convert import convert
from regard.store.unpickle import unpickle

FIXTURES = Path(__file__).parent / "fixtures"
TOOLKITS = {"fairseq": "fairseq", "joey": "joeynmt", "opennmt": "onmt", "marian": "ctranslate2"}


def checkpoint_of(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if path.suffix in (".pt", ".ckpt", ".npz"))


def check_answers(folder: Path, target: Path, expected: dict[str, list[str]]) -> None:
    """Compare greedy answers up to the length at which the toolkit was stopped."""
    convert(checkpoint_of(folder), target, "regard", pickles=True)
    ours = regard.load(target).translate(expected["lines"], beam=1)
    assert [text.split()[:20] for text in ours] == [text.split()[:20] for text in expected["greedy"]]


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
def test_a_frozen_model_answers_as_its_toolkit_did(name: str, tmp_path: Path) -> None:
    check_answers(FIXTURES / name, tmp_path / "ours", json.loads((FIXTURES / name / "expected.json").read_text()))


def test_fairseqs_beam_search_is_ours(tmp_path: Path) -> None:
    folder = FIXTURES / "fairseq-lstm_tied"
    expected = json.loads((folder / "expected.json").read_text())
    convert(folder / "checkpoint_best.pt", tmp_path / "ours", "regard", pickles=True)
    assert regard.load(tmp_path / "ours").translate(expected["lines"], beam=3) == expected["beam"]


@pytest.mark.storm
@pytest.mark.parametrize("toolkit", sorted(TOOLKITS))
def test_a_model_trained_in_its_toolkit_answers_the_same(toolkit: str, tmp_path: Path) -> None:
    pytest.importorskip(TOOLKITS[toolkit], reason=f"{toolkit} is not installed")
    made: Any = importlib.import_module(f"tests.store.orphans.with_{toolkit}")
    for name in made.MODELS:
        expected = made.make(name, tmp_path / name, seed=7)
        check_answers(tmp_path / name, tmp_path / f"{name}-ours", expected)


def test_a_pickle_is_refused_with_the_command_that_opens_it(tmp_path: Path) -> None:
    path = FIXTURES / "fairseq-lstm_tied" / "checkpoint_best.pt"
    with pytest.raises(DamagedFile, match=rf"regard convert {path} NEW --allow-pickle"):
        convert(path, tmp_path / "ours", "regard")


@pytest.mark.parametrize(("name", "allowed"), [("joey-gru", " --allow-pickle"), ("marian-post_norm", "")])
def test_loading_a_toolkits_files_names_the_command_that_converts_them(name: str, allowed: str) -> None:
    path = checkpoint_of(FIXTURES / name)
    for given in (path, path.parent):
        with pytest.raises(InputError, match=rf"regard convert {path} NEW --to regard{allowed}\.$"):
            regard.load(given)


def changed(folder: Path, change: dict[str, Any], where: str) -> Path:
    """A copy of a frozen folder of OpenNMT-py whose options or weights are changed."""
    shutil.copytree(FIXTURES / "opennmt-modern", folder)
    path = checkpoint_of(folder)
    with torch.serialization.safe_globals([__import__("argparse").Namespace]):
        state = torch.load(path, weights_only=True)
    values = vars(state["opt"]) if where == "opt" else state[where]
    for key, value in change.items():
        if value is None:
            del values[key]
        else:
            values[key] = value
    torch.save(state, path)
    return path


def test_settings_that_cannot_be_honoured_are_all_named(tmp_path: Path) -> None:
    path = changed(tmp_path / "model", {"copy_attn": True, "max_relative_positions": 20}, "opt")
    with pytest.raises(InputError, match=r"copy_attn = True.*max_relative_positions = 20"):
        convert(path, tmp_path / "ours", "regard", pickles=True)


def test_a_tensor_too_many_and_one_too_few_are_named(tmp_path: Path) -> None:
    norm = "encoder.layer_norm.weight"
    path = changed(tmp_path / "model", {"adapter.weight": torch.zeros(2), norm: None}, "model")
    with pytest.raises(DamagedFile, match=rf"lack: {norm}.*do not describe: adapter\.weight"):
        convert(path, tmp_path / "ours", "regard", pickles=True)


class Hostile:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.made = call, arguments

    def __reduce__(self) -> Any:
        return self.made


@pytest.mark.parametrize("kind", ["system", "eval", "nested"])
def test_a_hostile_checkpoint_runs_no_code(kind: str, tmp_path: Path) -> None:
    import os

    sentinel = tmp_path / "sentinel"
    calls = {
        "system": Hostile(os.system, f"touch {sentinel}"),
        "eval": Hostile(eval, f"open({str(sentinel)!r}, 'w')"),
        "nested": Hostile(torch.storage._load_from_bytes, pickle.dumps(Hostile(os.system, f"touch {sentinel}"))),
    }
    path = tmp_path / "checkpoint_best.pt"
    torch.save({"args": calls[kind], "model": {"a": torch.zeros(2)}}, path)
    with pytest.raises(DamagedFile, match="not a pickle of plain tensors"):
        convert(path, tmp_path / "ours", "regard", pickles=True)
    assert not sentinel.exists()


def test_a_small_pickle_of_a_huge_tensor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"model": {"a": torch.zeros(1).expand(1 << 34)}}, path)
    with pytest.raises(DamagedFile, match="far more than its own size"):
        unpickle([path], tmp_path / "out.safetensors")


def test_the_process_that_reads_a_pickle_reaches_nothing(tmp_path: Path) -> None:
    attempts = {
        "socket": "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
        "process": "import subprocess; subprocess.run(['true'])",
        "file": f"open({str(tmp_path / 'written')!r}, 'w')",
    }
    for what, code in attempts.items():
        guarded = f"from regard.store.unpickle import _isolate; _isolate(1 << 20, set())\n{code}"
        done = subprocess.run([sys.executable, "-c", guarded], capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr, what
    assert not (tmp_path / "written").exists()


def test_a_text_is_cut_by_the_codes_beside_the_dictionary(tmp_path: Path) -> None:
    from regard.store.orphans.texts import by_subword_nmt, vocabulary

    codes = tmp_path / "bpecodes"
    codes.write_text("#version: 0.2\nl o\nlo w</w>\ne r</w>\n")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "low", "lo@@", "n@@", "er", "w@@"]
    words = vocabulary(tokens, "<s>", "</s>", "<pad>", "<unk>", after=("</s>",), where=codes)
    tokenizer = by_subword_nmt(words, codes)
    # As subword-nmt 0.3.8 cuts it: low, lo@@ w@@ er, n@@ e@@ w, and neither e@@ nor w is in the dictionary.
    assert tokenizer.encode("low lower new") == [4, 5, 8, 7, 6, 3, 3]
    assert tokenizer.decode([5, 8, 7, 3, 4]) == "lower <unk> low"
