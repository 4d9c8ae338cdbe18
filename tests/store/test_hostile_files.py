"""Hostile files, in children under an audit hook: pickles that run code, bombs of size, names that point elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.storm import b
from tests.storm.children import fault
from tests.storm.payloads import config_bombs, file_bombs, pickles

VERBS = ("score", "convert", "convert a pickle", "init")  # every run of the tests tries these; the storm tries all


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> b.Place:
    return b.Place(tmp_path_factory.mktemp("place"))


@pytest.fixture
def model(place: b.Place, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place.good, tmp_path / "model"))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("where", b.PLACES[:2])
def test_no_payload_runs_code(place: b.Place, model: Path, tmp_path: Path, verb: str, where: str):
    (model / "model.safetensors").unlink()
    payloads = pickles(tmp_path / "sentinel")
    assert len(payloads) == b.PICKLES
    for number, (name, content) in enumerate(payloads.items()):
        if number % (28 if "pickle" in verb else len(VERBS)) == VERBS.index(verb):  # each starts a process with torch
            (model / where).write_bytes(content)
            child = place.run(b.MODEL_VERBS[verb], model)
            assert not (tmp_path / "sentinel").exists(), name
            assert [event for event in child.events if not b.allowed(event, verb)] == [], name
            assert child.code in (2, 3), (name, child.said)


def test_the_payloads_would_run_code(tmp_path: Path):
    import pickle

    content = pickles(tmp_path / "sentinel")["mkdir.pickle"]
    pickle.loads(content)
    assert (tmp_path / "sentinel").is_dir()


@pytest.mark.parametrize("name", [*config_bombs(), *(name for name in file_bombs() if "pickle" not in name)])
def test_bombs_of_size_are_refused_without_being_read(place: b.Place, model: Path, name: str):
    if name in config_bombs():
        b.edit(model / "config.json", config_bombs()[name])
    else:
        file, write = file_bombs()[name]
        write(model / file)
    usual = place.run(b.MODEL_VERBS["score"], place.good).megabytes
    child = place.run(b.MODEL_VERBS["score"], model)
    assert fault(child, (1, 2, 3)) == ""
    assert child.code
    assert child.megabytes - usual <= 200


@pytest.mark.parametrize("where", b.NAMED)
def test_names_that_point_outside_a_folder_open_nothing(place: b.Place, model: Path, tmp_path: Path, where: str):
    secret = tmp_path / "elsewhere" / "secret.safetensors"
    secret.parent.mkdir()
    shutil.copyfile(model / "model.safetensors", secret)
    for name in b.pointing(secret, model, where)[::4]:
        shutil.rmtree(model)
        shutil.copytree(place.good, model)
        (model / "link.safetensors").symlink_to(secret)
        (model / "link").symlink_to(secret.parent)
        verb, fine = b.NAMED[where](model, name)
        child = place.run(b.MODEL_VERBS[verb], model, secret=secret)
        assert [event for event in child.events if event.startswith("open")] == [], name
        assert child.code or fine, name
        assert "Traceback" not in child.said
