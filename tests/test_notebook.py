"""The tutorial's notebook runs from its first cell to its last."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "tutorial.ipynb"


def test_the_notebook_is_stored_without_results():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert NOTEBOOK.stat().st_size < 20_000
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed, so no notebook is run.")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed, so no notebook is run.")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed, so no notebook is run.")
    # A few steps stand for those that a person waits for.
    text = NOTEBOOK.read_text().replace("STEPS = 300", "STEPS = 6").replace("model.width=64", "model.width=16")
    notebook: Any = nbformat.reads(text.replace("train.batch_tokens=1024", "train.batch_tokens=256"), as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    results = {
        "".join(cell.source): output.data
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    }
    pages = [data["text/html"] for data in results.values() if "text/html" in data]
    assert len(pages) == 3
    payloads = []
    for page in pages:
        assert page.startswith("<iframe srcdoc=")
        inside = unescape(re.search('srcdoc="(.*?)"', page, re.DOTALL).group(1))
        payloads.append(json.loads(re.search(r'id="regard">(.*?)</script>', inside, re.DOTALL).group(1)))
    assert [len(payload["traces"]) for payload in payloads] == [1, 2, 3]
    assert [payload["slider"] for payload in payloads] == [False, False, True]
    [shapes] = [data["text/plain"] for source, data in results.items() if "cross_attentions" in source]
    layers = eval(shapes)
    assert len(layers) == 2
    assert all(shape[:2] == (1, 4) for shape in layers)
    [entropies] = [data["text/plain"] for source, data in results.items() if source.startswith("{name: [round")]
    assert all(0 <= bits < 6 for heads in eval(entropies).values() for bits in heads)
    [moses] = [eval(data["text/plain"]) for source, data in results.items() if "moses" in source]
    assert re.fullmatch(r"(\d+-\d+( |$))*", moses)
    assert (tmp_path / "runs" / "additive" / "model.safetensors").exists()
