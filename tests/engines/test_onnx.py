"""A model converted to ONNX answers as torch does, in batches and lengths of any size, and without torch."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from regard.api import LoadedModel, load
from regard.cli import run
from regard.decode.inputs import capabilities
from regard.decode.options import Options
from regard.engines.convert import convert_to_ctranslate2
from regard.engines.encoder import TextEncoder
from regard.engines.folder import find_converted, place_of, read_proof
from regard.engines.onnx_export import convert_to_onnx
from regard.engines.onnx_folder import read_onnx
from regard.engines.prove import Sample
from regard.errors import DamagedFile, InputError, Note, RunFailed
from regard.extras import EXTRAS
from regard.layers.contract import Context, Facts, Memory, Sublayer
from regard.layers.embedding import CharacterCNN
from regard.layers.join import PreNorm, RMSNorm
from regard.layers.lsh.masks import Chunks, RankWindow
from regard.models import zoo
from regard.models.model import Model
from regard.models.readouts import Dense, Label, Last, Mean, Tags, Vector
from regard.store.convert import read_source
from regard.store.folder import unique_parameters, write_weights
from regard.store.loading import Loaded
from tests.engines.test_encoders import same_predictions
from tests.engines.test_engines import STARTED, no_torch
from tests.laws.zoo import CLASSIFIERS, ENCODERS, GENERATORS
from tests.printed import blocks
from tests.small import TEXTS, WORDPIECE, save_model, small

ROOT = Path(__file__).parent.parent.parent
LABEL = Label(("one", "two", "three"), Last())
PAGE = ROOT / "docs" / "onnx.md"
NAMES = ("one", "two", "three")
TINY = {"width": 16, "depth": 1, "heads": 2, "inner": 24, "dropout": 0.0}
PROMPTS = ["the dog", "A dog ran in the park and", "the"]  # of different lengths
SOURCES = [*TEXTS, "dog", "the park and the mat " * 6]

QUICK: dict[str, Model] = {
    "transformer": zoo.transformer(**TINY, join=PreNorm(RMSNorm())),
    "sha-rnn": zoo.sha_rnn(16, 1, window=6, dropout=0.0),
}
SLOW = GENERATORS | {
    "luong, tiny": zoo.luong(16, 1, dropout=0.0),
    "reformer, rounds": zoo.reformer(**TINY, pattern=RankWindow(3), buckets=4, rounds=2, attention=("lsh",)),
}


def converted(folder: Path, description: Model, **settings: Any) -> LoadedModel:
    """A small model, converted to a folder."""
    model = small(description, **settings)
    loaded = Loaded(model.network, (WORDPIECE, None), {"model_type": "regard"}, settings.get("generation_config") or {})
    convert_to_onnx(loaded, folder.parent, folder, Sample.of(TEXTS))
    return model


def opened(folder: Path) -> TextEncoder:
    return TextEncoder(folder, no_torch)


def reference_decoder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the documents, from the block of the page, which is run whole on a converted model."""
    (code,) = (block.text for block in blocks(PAGE) if "class Generator" in block.text)
    (folder.parent / "models").mkdir()
    (folder.parent / "models" / "dates-onnx").symlink_to(folder)
    monkeypatch.chdir(folder.parent)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "onnx.md", "exec"), names)
    assert sum(1 for line in code.splitlines() if line.strip()) <= 60
    return names["Generator"](folder)


def greedy_tokens(model: LoadedModel, texts: list[str], most: int) -> list[list[int]]:
    options = Options(max_tokens=most)
    translates = model.network.shape == "encoder-decoder"
    found = model.translations(texts, options) if translates else model.continuations(texts, options)
    return [list(one[0].tokens) for one in found]


def check_generator(folder: Path, description: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = converted(folder, description)
    decoder = reference_decoder(folder, monkeypatch)
    texts = SOURCES if description.encoder else PROMPTS
    config = json.loads((folder / "config.json").read_text())
    around = config["tokens"]
    rows = [around["prefix"] + WORDPIECE.encode(text) + around["suffix"] for text in texts]
    theirs = decoder.continued(rows, 12)
    assert theirs == greedy_tokens(model, texts, 12)
    alone = [decoder.continued([row], 12)[0] for row in rows[:2]]
    assert alone == theirs[:2]


@pytest.mark.parametrize("name", QUICK)
def test_the_decoder_of_the_documents_writes_what_greedy_search_writes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    check_generator(tmp_path / "model", QUICK[name], monkeypatch)


@pytest.mark.storm
@pytest.mark.parametrize("name", SLOW)
def test_every_generator_of_the_zoo_is_converted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_generator(tmp_path / "model", SLOW[name], monkeypatch)


def check_encoder(folder: Path, description: Model) -> None:
    model = converted(folder, description)
    engine = opened(folder)
    for pool in (None, "mean", "max", "last", "first"):
        expected = model.embed(SOURCES, pool=pool)
        np.testing.assert_allclose(engine.embed(SOURCES, pool=pool), expected, rtol=1e-4, atol=1e-4)
    for (names, ours), (same, theirs) in zip(model.embed(SOURCES, tokens=True), engine.embed(SOURCES, tokens=True)):
        assert names == same
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)
    assert ("classify" in engine.verbs) == ("classify" in capabilities(model.description, model.tokenizer))
    if "classify" in engine.verbs:
        texts: list[Any] = [*pairwise(SOURCES)] if model.classifies_pairs else SOURCES
        same_predictions(model.classify(texts), engine.classify(texts))


ENCODER = zoo.bert(**TINY, max_positions=64)
WORDS = zoo.elmo(width=16, inner=12, embed=zoo.bert(**TINY).embed, clip=0.5)
CHARACTERS = zoo.elmo(width=16, inner=12, embed=CharacterCNN(filters=((1, 4), (2, 4)), characters=12), clip=0.5)
HEADS: dict[str, Model] = {
    "dense vector": replace(ENCODER, readout=Vector(Mean(), dense=(Dense(10), Dense(7, None)))),
    "recurrent by characters, tags": replace(CHARACTERS, readout=Tags(NAMES)),
}
SLOW_HEADS = CLASSIFIERS | ENCODERS | {
    "recurrent, tags": replace(WORDS, readout=Tags(NAMES)), "label": replace(ENCODER, readout=Label(NAMES)),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_an_encoder_gives_the_vectors_and_labels_of_torch(name: str, tmp_path: Path):
    check_encoder(tmp_path / "model", HEADS[name])


@pytest.mark.storm
@pytest.mark.parametrize("name", SLOW_HEADS)
def test_every_encoder_of_the_zoo_is_converted(name: str, tmp_path: Path):
    check_encoder(tmp_path / "model", SLOW_HEADS[name])


def test_the_labels_of_pairs_are_those_of_torch_too(tmp_path: Path):
    check_encoder(tmp_path / "model", zoo.bert(**TINY, max_positions=64, next_sentence=True))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LoadedModel]:
    folder = tmp_path_factory.mktemp("onnx") / "model"
    return folder, converted(folder, QUICK["sha-rnn"], generation_config={"suppress_tokens": [7], "max_new_tokens": 9})


def feed(model: Any, position: list[int], ids: list[int], memory: dict[str, Any]) -> dict[str, Any]:
    given = {"ids": np.array(ids), "position": np.array(position), **memory}
    return {name: given[name] for name in model.decoder_step}


def step_through(folder: Path, rows: list[list[int]], starts: list[int]) -> tuple[list[Any], dict[str, Any]]:
    """Step rows of which row i begins at step starts[i]; -> the logits of each step, and the memory."""
    model = read_onnx(folder)
    session = onnxruntime.InferenceSession(folder / "decoder_step.onnx")
    sizes = {"batch": len(rows), "past": 0}
    memory = {one.name: np.zeros([sizes.get(n, n) for n in one.shape], one.type) for one in model.memory}
    names, found = [output.name for output in session.get_outputs()], []
    for step in range(max(start + len(row) for row, start in zip(rows, starts))):
        position = [step - start for start in starts]
        ids = [row[at] if 0 <= at < len(row) else 0 for row, at in zip(rows, position)]
        outputs = dict(zip(names, session.run(None, feed(model, [max(0, at) for at in position], ids, memory))))
        memory = {one.name: outputs[one.next] for one in model.memory}
        found.append(outputs["logits"])
    return found, memory


def test_rows_of_a_batch_may_be_at_different_positions(tmp_path: Path):
    folder = tmp_path / "model"
    converted(folder, zoo.gpt2(**TINY))
    rows = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14]]
    together, _ = step_through(folder, rows, [0, 2])
    alone, _ = step_through(folder, rows[1:], [0])
    for at in range(4):
        np.testing.assert_allclose(together[at + 2][1], alone[at][0], atol=1e-4)


def test_a_window_bounds_the_memory(windowed: tuple[Path, LoadedModel]):
    folder, model = windowed
    row = [5 + number % 30 for number in range(20)]
    logits, memory = step_through(folder, [row], [0])
    sizes = [memory[one.name].shape[1] for one in read_onnx(folder).memory if "past" in one.shape]
    assert sizes == [6] * len(sizes)
    assert sizes
    expected = model.network(torch.tensor([row]))[0].detach().numpy()
    np.testing.assert_allclose(np.concatenate(logits), expected, atol=1e-3, rtol=1e-3)


def test_the_folder_says_the_model_s_own_defaults(windowed: tuple[Path, LoadedModel]):
    greedy = read_onnx(windowed[0]).greedy
    assert greedy is not None
    assert (greedy.suppress_tokens, greedy.max_tokens) == ((7,), 9)


@dataclass(frozen=True)
class Peeking:
    """A layer of somebody's own, which looks at numbers in Python: a trace keeps those of its example."""

    name: ClassVar[str] = "peeking"
    facts: ClassVar[Facts] = Facts(constant_memory=True)

    def build(self, width: int, source_width: int | None = None) -> Sublayer:
        return PeekingLayer()


class PeekingLayer(Sublayer):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        return x * float(x.abs().mean()), None


def test_a_graph_that_answers_differently_is_not_written(tmp_path: Path):
    decoder = zoo.gpt2(**TINY).decoder
    assert decoder is not None
    layers = ((*decoder.layers[0], Peeking()),)
    description = replace(zoo.gpt2(**TINY), decoder=replace(decoder, layers=layers))
    with pytest.raises(RunFailed, match=r"differently \(decoder_step.onnx, logits, line \d of the sample, token"):
        converted(tmp_path / "model", description)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "description",
    [
        zoo.reformer(**TINY, pattern=Chunks(4), buckets=4, attention=("lsh",)),
        zoo.reformer(**TINY, pattern=Chunks(4), shape="encoder", attention=("local",)),
    ],
)
def test_chunks_are_refused_by_name(description: Model, tmp_path: Path):
    with pytest.raises(InputError, match=r"chunks .* rank_window"):
        converted(tmp_path / "model", description)
    assert not list(tmp_path.iterdir())


def test_the_command_converts_a_folder_and_overwrites_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder = save_model(tmp_path / "model", small(zoo.lstm_lm(16, 1)))
    monkeypatch.setattr("sys.argv", ["regard"])
    command = ["convert", str(folder), "--to", "onnx"]
    assert run(command) == 0
    said = capsys.readouterr().err
    assert "engines/onnxruntime-float32: decoder_step, checked on a sample" in said
    assert run(command) == 0  # again, in its own place
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    capsys.readouterr()
    assert run([*command[:2], str(tmp_path / "other"), *command[2:]]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"
    assert run([*command[:2], str(folder), *command[2:]]) == 2  # the model itself
    assert "exists already" in capsys.readouterr().err
    assert run([*command, "--precision", "int8"]) == 2
    assert "is for --to ctranslate2" in capsys.readouterr().err


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that labels texts, converted in its own place."""
    folder = save_model(tmp_path_factory.mktemp("beside") / "model", small(replace(ENCODER, readout=LABEL)))
    place = place_of(folder, "float32", "onnxruntime")
    convert_to_onnx(read_source(folder), folder, place, Sample.of(TEXTS))
    return folder


@pytest.mark.parametrize("engine", ["onnxruntime", "alone"])
def test_commands_of_encoders_run_without_torch(engine: str, beside: Path):
    model, place = load(beside, engine="torch"), place_of(beside, "float32", "onnxruntime")
    words = [str(place)] if engine == "alone" else [str(beside), "--engine", engine]
    found = []
    for command in ("classify", "embed"):
        done = subprocess.run(
            [sys.executable, "-c", STARTED, command, *words], input="\n".join(TEXTS).encode(), capture_output=True,
            check=False,
        )  # fmt: skip
        assert done.stderr.decode().splitlines() == ["False"]  # torch was not imported
        found.append(done.stdout)
    assert found[0].decode().splitlines() == [one.label for one in model.classify(TEXTS)]
    np.testing.assert_allclose(np.load(io.BytesIO(found[1])), model.embed(TEXTS), rtol=1e-4, atol=1e-4)


def test_auto_takes_what_is_proven_in_float32_first(beside: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(beside, folder)
    place = place_of(folder, "float32", "onnxruntime")
    proof = read_proof(place)
    assert proof is not None
    assert (proof.engine, proof.lines, proof.equal_lines) == ("onnxruntime", len(TEXTS), len(TEXTS))
    convert_to_ctranslate2(read_source(folder), folder, place_of(folder, "int8"), "int8", Sample.of(TEXTS))
    assert find_converted(folder, "auto", "embed") == place  # before CTranslate2 in int8
    other = place_of(folder, "float32")
    convert_to_ctranslate2(read_source(folder), folder, other, "float32", Sample.of(TEXTS))
    assert find_converted(folder, "auto", "embed") == other
    assert find_converted(folder, "onnxruntime", "embed") == place
    write_weights(folder, {name: value + 1 for name, value in unique_parameters(load(folder).network).items()})
    with pytest.raises(InputError, match="was converted from other weights"):
        find_converted(folder, "onnxruntime", "embed")


def test_what_the_runtime_does_not_do_is_refused_or_left_to_torch(beside: Path, windowed: tuple[Path, LoadedModel]):
    with pytest.raises(InputError, match="ONNX Runtime does not generate here"):
        find_converted(beside, "onnxruntime", "generate")
    with pytest.raises(InputError, match="holds graphs for other programs"):
        find_converted(windowed[0], "auto", "generate")
    with pytest.warns(Note, match="ONNX Runtime does not honour layer, so torch embeds"):
        load(beside, engine="onnxruntime").embed(TEXTS, layer=1)
    with pytest.raises(InputError, match="--precision"):
        load(beside, engine="onnxruntime", precision="int8")


def test_graphs_of_a_generator_beside_its_model_leave_it_to_torch(
    windowed: tuple[Path, LoadedModel], tmp_path: Path, recwarn: pytest.WarningsRecorder
):
    folder = save_model(tmp_path / "model", windowed[1])
    shutil.copytree(windowed[0], place_of(folder, "float32", "onnxruntime"))
    assert find_converted(folder, "auto", "generate") is None
    assert find_converted(folder, "auto") is None
    assert not recwarn.list


def test_what_is_no_graph_is_refused_in_one_line(tmp_path: Path, beside: Path):
    with pytest.raises(InputError, match=r"config\.json"):
        read_onnx(tmp_path)
    with pytest.raises(InputError, match="not converted to ONNX"):
        read_onnx(beside)
    folder = tmp_path / "model"
    shutil.copytree(place_of(beside, "float32", "onnxruntime"), folder)
    engine = opened(folder)
    with pytest.raises(InputError, match="tokens"):
        engine.embed(["the cat sat on the mat " * 40])
    with pytest.raises(InputError, match="one or the other"):
        engine.classify(["a", ("a", "b")])
    (folder / "encoder.onnx").write_bytes(b"no graph")
    with pytest.raises(DamagedFile, match=r"encoder\.onnx"):
        opened(folder)
    for path in folder.glob("*manifest*"):
        path.unlink()
    with pytest.raises(DamagedFile, match=r"encoder\.onnx cannot be used"):
        opened(folder)
    (folder / "config.json").write_text('{"format": "regard-onnx", "shape": 3}')
    with pytest.raises(DamagedFile, match="cannot be used"):
        read_onnx(folder)


def test_the_extra_names_what_a_conversion_imports():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {line.partition(">")[0] for line in declared["onnx"]} == set(EXTRAS["onnx"])
