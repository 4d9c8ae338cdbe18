"""Extras: without its packages, what needs them ends in one line that names the extra; the core needs none."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from regard.extras import EXTRAS

ROOT = Path(__file__).parent.parent
BLOCKED = sorted({package for packages in EXTRAS.values() for package in packages} | {"fastapi", "ctranslate2"})


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process in which the packages of all extras cannot be imported."""
    blocker = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
    return subprocess.run([sys.executable, "-c", blocker + code], capture_output=True, text=True, check=False)


def test_the_core_imports_no_extra():
    done = without_extras("import regard, regard.cli, regard.config.run, regard.store.folder, regard.api")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from regard.data.read.corpus import embedded_corpus as f; f('dates', 'valid')", "demo"),
        ("from regard.evaluation.charts import draw as f; f(None, [])", "demo"),
        ("from regard.data.corpora.chorales import midi_of as f; f('')", "music"),
        (
            "from pathlib import Path; from regard.data.read.texts import read_blocks as f; [*f(Path('t.parquet'))]",
            "data",
        ),
        ("from pathlib import Path; from regard.data.read.texts import read_blocks as f; [*f(Path('t.zst'))]", "data"),
        ("from regard.store.elmo import read_arrays as f; f(None, {})", "elmo"),
        ("from pathlib import Path; from regard.store.folder import local_folder as f; f(Path('hf:a/b'))", "hub"),
        ("from pathlib import Path; from regard.engines.onnx_folder import open_graph as f; f(Path('a'))", "onnx"),
        ("from regard.store.huggingface.tokenizers import _read_sentencepiece as f; f('x.model')", "published"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(code: str, extra: str):
    done = without_extras(f"""
from regard.errors import InputError
try:
    {code}
except InputError as error:
    print(error)
""")
    assert done.stdout.count("\n") == 1, done.stderr
    assert f"pip install 'regard[{extra}]'" in done.stdout


def test_every_extra_that_a_message_names_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert declared.keys() >= EXTRAS.keys() | {"serve", "engines", "convert", "notebook", "all"}
