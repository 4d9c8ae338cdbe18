"""The tutorial's notebook runs from its first cell to its last, and is stored with the results of a whole run."""

from __future__ import annotations

import ast
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "tutorial.ipynb"


RIGHT = ["2024-03-15", "1976-07-04", "1987-06-03"]


def test_the_notebook_is_stored_with_the_results_of_one_run():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells[1:])
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert NOTEBOOK.stat().st_size < 8_000_000


def test_both_models_of_the_stored_notebook_get_their_dates_right():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    stored = [
        "".join(output["data"]["text/plain"])
        for cell in cells
        if ".translate(DATES)" in "".join(cell["source"])
        for output in cell["outputs"]
        if output["output_type"] == "execute_result"
    ]
    assert [ast.literal_eval(text) for text in stored] == [RIGHT, RIGHT]


def test_the_stored_notebook_names_no_path_of_the_machine_that_ran_it():
    assert not re.search(r"/(home|root|tmp|work|Users)/", NOTEBOOK.read_text())


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path):
    # The notebook takes minutes (`make notebook` runs it whole and stores its results); here it takes a few steps.
    notebook: Any = nbformat.reads(NOTEBOOK.read_text().replace("STEPS = 450", "STEPS = 9"), as_version=4)
    assert "STEPS = 9" in notebook.cells[1].source
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
    assert (tmp_path / "runs" / "relative" / "model.safetensors").exists()
