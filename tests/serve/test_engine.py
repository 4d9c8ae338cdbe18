"""A served model with a proven conversion: the engine answers what it honours as torch would, torch all the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regard.api import LoadedModel, load
from regard.cli import run
from regard.engines.convert import Sample, convert_to_ctranslate2
from regard.engines.folder import place_of
from regard.store.convert import read_source
from tests.laws.zoo import MODELS
from tests.small import TEXTS, save_model, small

from .live import Live, live

pytest.importorskip("ctranslate2")
ENGINE = "ctranslate2-float32"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator with a proven conversion."""
    folder = tmp_path_factory.mktemp("served") / "de-en"
    save_model(folder, small(MODELS["pre-norm"], generation_config={"max_length": 12, "num_beams": 3}))
    convert_to_ctranslate2(read_source(folder), folder, place_of(folder, "float32"), "float32", Sample.of(TEXTS))
    return folder


@pytest.fixture(scope="module")
def fast(converted: Path) -> Iterator[Live]:
    with live({"de-en": converted}, languages={"de-en": ("de", "en")}) as found:
        yield found


@pytest.fixture(scope="module")
def model(converted: Path) -> LoadedModel:
    return load(converted, engine="torch")


def jobs(server: Live) -> dict[str, int]:
    """The jobs of each engine so far."""
    found = re.findall(r'^regard_jobs_total\{engine="(.+)",model="de-en"\} (\d+)', server("/metrics")[1].decode(), re.M)
    return {engine: int(float(count)) for engine, count in found}


def engines_used(server: Live, path: str, body: Any) -> tuple[set[str], Any]:
    """The engines that a request took, and its reply."""
    before = jobs(server)
    status, content, _ = server(path, body)
    assert status == 200, content
    return {engine for engine, count in jobs(server).items() if count > before[engine]}, content


def translating(text: Any, **asked: Any) -> dict[str, Any]:
    return {"q": text, "source": "de", "target": "en", **asked}


def completing(**asked: Any) -> dict[str, Any]:
    return {"model": "de-en", "prompt": TEXTS[0], **asked}


def test_a_plain_request_is_answered_by_the_engine_as_torch_answers(fast: Live, model: LoadedModel):
    before = jobs(fast)
    found = fast.json("/translate", translating([*TEXTS, "", "two\nlines"]))["translatedText"]
    assert found == [*model.translate([*TEXTS, ""]), "\n".join(model.translate(["two", "lines"]))]
    assert fast.json("/v1/completions", completing())["choices"][0]["text"] == model.translate(TEXTS[0])
    assert jobs(fast) == {ENGINE: before[ENGINE] + 2, "torch": before["torch"]}


def test_requests_that_wait_together_get_the_answers_of_each_alone(fast: Live, model: LoadedModel):
    asked = [(text, beam) for text in TEXTS for beam in (1, 2, 3)] * 2
    with ThreadPoolExecutor(8) as clients:
        found = [*clients.map(lambda one: fast.json("/translate", translating(one[0], beam=one[1])), asked)]
    expected = {one: model.translate(one[0], beam=one[1]) for one in set(asked)}
    assert [reply["translatedText"] for reply in found] == [expected[one] for one in asked]


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": 2}, {"stream": True, "beam": 1}, {"stop": "a"}, {"temperature": 0.7, "seed": 1},
        {"presence_penalty": 0.5}, {"logit_bias": {"7": -50}},
    ],
    ids=lambda asked: next(iter(asked)),
)  # fmt: skip
def test_what_the_engine_cannot_honour_goes_to_torch(fast: Live, asked: dict[str, Any]):
    used, _ = engines_used(fast, "/v1/completions", completing(**asked))
    assert used == {"torch"}


def test_alternatives_are_searched_by_the_engine_and_alignments_are_found_by_torch(fast: Live, model: LoadedModel):
    asked = translating(TEXTS[0], alternatives=2, alignment=True, confidence=True)
    before = jobs(fast)
    reply = fast.json("/translate", asked)
    assert all(jobs(fast)[engine] > count for engine, count in before.items())
    best, *others = [one.text for one in model.translations([TEXTS[0]], replace(model.defaults(), n_best=3))[0]]
    assert (reply["translatedText"], reply["alternatives"]) == (best, others)
    assert reply["alignment"][0]["target"] == best
    assert " ".join(word["word"] for word in reply["confidence"]) == best


def test_the_list_of_models_names_the_engine(fast: Live, server: Live):
    assert fast.json("/v1/models/de-en")["engine"] == ENGINE
    assert {one["engine"] for one in server.json("/v1/models")["data"]} == {"torch"}


def test_torch_serves_a_converted_model_where_it_is_asked_for(converted: Path, model: LoadedModel):
    with live({"de-en": converted}, read=lambda folder: load(folder, engine="torch")) as found:
        assert found.json("/v1/models/de-en")["engine"] == "torch"
        reply = found.json("/translate", {"q": TEXTS[0], "source": "source", "target": "target"})
        assert reply["translatedText"] == model.translate(TEXTS[0])
        assert [*jobs(found)] == ["torch"]


def test_an_engine_that_is_not_there_is_refused(folder: Path, converted: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["serve", str(folder), "--engine", "ctranslate2"]) == 2
    assert "is not converted to CTranslate2 (--engine ctranslate2)" in capsys.readouterr().err
    assert run(["serve", str(converted), "--engine", "ctranslate2", "--device", "cuda"]) == 2
    assert "runs on the CPU here, not on cuda (--device)" in capsys.readouterr().err
    assert run(["serve", str(converted), "--engine", "fast"]) == 2
    assert 'no engine is called "fast" (--engine)' in capsys.readouterr().err
