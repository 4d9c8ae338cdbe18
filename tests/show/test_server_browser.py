"""The page served by a real process, in a real browser: another text, ablation, exact weights."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.api import LoadedModel, load
from regard.layers.positions import Rotary
from regard.models import zoo
from regard.show.ablation import ablate
from tests.laws.zoo import MODELS
from tests.small import save_model, small
from tests.training.runs import CommandProcess

from .browser import opened

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = small(MODELS["pre-norm"], generation_config={"max_length": 7})
    return save_model(tmp_path_factory.mktemp("live") / "model", model)


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load(folder, device="cpu")


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    process = CommandProcess(["show", str(folder), TEXT, "--no-browser", "--device", "cpu"])
    printed = b""
    while not printed.endswith(b"\n"):
        more = os.read(process.readers[0].fileno(), 1 << 16)
        assert more, "the process printed nothing"
        printed += more
    yield re.search(r"http://\S+", printed.decode()).group()
    process.send_signal(signal.SIGINT)
    assert process.wait(60)
    assert (process.returncode, os.read(process.readers[1].fileno(), 1 << 16)) == (130, b"")


def test_another_text_is_typed_in(address: str, model: LoadedModel, browser: Any):
    with opened(browser, address, online=True, view="matrix", layer="decoder.0.cross", head=1) as window:
        assert window.unnamed() == []
        window.page.fill("#trace-text", "A dog ran in the park")
        window.page.fill("#trace-target", "the cat played")
        window.page.press("#trace-target", "Enter")
        window.page.wait_for_function("() => document.querySelector('#texts').innerText.includes('played')")
        weights = model.look("A dog ran in the park", "the cat played").weights["decoder.0.cross"][1]
        found = window.settled().hovered("#map", 8, 8)
        assert len(found) >= 12
        assert found == {(r, c): pytest.approx(float(weights[r, c]), rel=1.5e-3, abs=1e-5) for r, c in found}
        for view in window.views:
            window.click(f"#tab-{view}")
            assert "could not be shown" not in window.page.text_content("#note")
        window.page.reload()
        assert "played" in window.ready().page.inner_text("#texts")


def test_the_error_of_a_refused_text_is_shown(address: str, browser: Any):
    with opened(browser, address, online=True) as window:
        window.page.fill("#trace-text", "the dog " * 200)  # more than this model has positions
        window.page.press("#trace-text", "Enter")
        window.page.wait_for_function("() => document.querySelector('#note').textContent.includes('could not')")
        assert window.page.is_enabled("#trace-form button")
        assert all("400" in error for error in window.errors)  # the browser logs the refusal
        window.errors.clear()


def test_several_heads_are_switched_off_together(address: str, model: LoadedModel, browser: Any):
    heads = [("decoder.0.cross", 1), ("encoder.1.self", 0)]
    example = model.look(TEXT).example
    inputs = example.collector.inputs
    expected = ablate(model.network, example.tokenizers, inputs, example.target_ids, heads, options=example.options)
    with opened(browser, address, online=True, view="ablation") as window:
        for layer, head in heads:
            window.page.check(f'tr[data-layer="{layer}"][data-head="{head}"] input[type="checkbox"]')
        window.page.wait_for_function(
            "() => document.querySelector('#ablation-result h3').textContent.startsWith('2 heads')"
        )
        window.page.wait_for_selector("#ablation-result output")
        assert window.data("#ablation-result output", "loss")[0][0] == pytest.approx(expected["loss"], rel=1e-5)
        assert window.page.text_content("#ablation-output").split() == expected["output"].split()
        rows = [row for (row,) in window.data("#ablation-result tr[data-row]", "row")]
        assert rows == [row for row, _, _ in expected["changed"]]
        ticked = window.hash
    with opened(browser, address + ticked, online=True) as window:  # the link restores what was ticked
        window.page.wait_for_selector("#ablation-result output")
        assert window.data("#ablation-result output", "loss")[0][0] == pytest.approx(expected["loss"], rel=1e-5)


def test_a_long_text_fetches_its_exact_weights(tmp_path: Path, browser: Any):
    description = zoo.gpt2(width=8, depth=1, heads=2, inner=8, position=Rotary(), dropout=0.0)
    model = small(description)
    folder = save_model(tmp_path / "long", model)
    text = " ".join(["the cat sat on a mat and a dog ran in the park"] * 330)
    process = CommandProcess(["show", str(folder), text, "--no-browser", "--device", "cpu"])
    try:
        printed = os.read(process.readers[0].fileno(), 1 << 16).decode()
        trace = load(folder, device="cpu").look(text)
        [layer] = trace.layers
        assert trace.layers[layer].weights is None
        row = 2_500
        exact = trace.rows(layer, 1, row, row + 1)[0]
        with opened(
            browser, re.search(r"http://\S+", printed).group(), online=True, view="matrix", head=1, row=row
        ) as window:
            window.page.wait_for_selector("#row-weights li")
            listed = window.data("#row-weights li", "column", "value")
            assert len(listed) >= 10
            assert dict(listed) == {c: pytest.approx(float(exact[c]), rel=1.5e-3, abs=1e-5) for c, _ in listed}
            with window.page.expect_response(lambda one: "/weights" in one.url) as response:
                for _ in range(12):
                    window.click("[aria-label='larger (+)']")
            assert response.value.status == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60)
