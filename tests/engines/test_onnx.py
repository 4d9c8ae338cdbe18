"""A model converted to ONNX answers as torch does, in batches and lengths of any size, and without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from regard.api import LoadedModel
from regard.cli import run
from regard.decode.options import Options
from regard.engines.onnx_encoder import OnnxEncoder
from regard.engines.onnx_export import convert_to_onnx
from regard.engines.onnx_folder import read_onnx
from regard.errors import DamagedFile, InputError, RunFailed
from regard.extras import EXTRAS
from regard.layers.contract import Context, Facts, Memory, Sublayer
from regard.layers.lsh.masks import Chunks, RankWindow
from regard.models import zoo
from regard.models.model import Model
from regard.models.readouts import Dense, Label, Last, Mean, MultiLabel, Number, Tags, Vector
from regard.store.loading import Loaded
from tests.laws.zoo import CLASSIFIERS, ENCODERS, GENERATORS, MODELS
from tests.printed import blocks
from tests.small import TEXTS, WORDPIECE, save_model, small

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "onnx.md"
NAMES = ("one", "two", "three")
TINY = {"width": 16, "depth": 1, "heads": 2, "inner": 24, "dropout": 0.0}
PROMPTS = ["the dog", "A dog ran in the park and", "the"]  # of different lengths
SOURCES = [*TEXTS, "dog", "the park and the mat " * 6]

QUICK: dict[str, Model] = {
    "transformer": zoo.transformer(**TINY),
    "luong": zoo.luong(16, 1, dropout=0.0),
    "sha-rnn": zoo.sha_rnn(16, 1, window=6, dropout=0.0),
    "reformer": zoo.reformer(**TINY, pattern=RankWindow(3), buckets=4, rounds=2, attention=("lsh",)),
}


def converted(folder: Path, description: Model, **settings: Any) -> LoadedModel:
    """A small model, converted to a folder."""
    model = small(description, **settings)
    loaded = Loaded(model.network, (WORDPIECE, None), {"model_type": "regard"}, settings.get("generation_config") or {})
    convert_to_onnx(loaded, folder, TEXTS)
    return model


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
@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_of_the_zoo_is_converted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_generator(tmp_path / "model", GENERATORS[name], monkeypatch)


def check_encoder(folder: Path, description: Model) -> None:
    model = converted(folder, description)
    engine = OnnxEncoder(folder)
    for pool in (None, "mean", "max", "last", "first"):
        expected = model.embed(SOURCES, pool=pool)
        np.testing.assert_allclose(engine.embed(SOURCES, pool=pool), expected, rtol=1e-3, atol=1e-4)
    readout = description.readout
    if isinstance(readout, Tags):
        assert engine.tags(SOURCES) == [list(one.words) for one in model.classify(SOURCES)]
    elif isinstance(readout, Number):
        assert engine.numbers(SOURCES) == pytest.approx([one.number for one in model.classify(SOURCES)], abs=1e-3)
    elif isinstance(readout, Label | MultiLabel):
        ours = model.classify(SOURCES)
        assert engine.classify(SOURCES) == [one.label for one in ours]
        for row, one in zip(engine.probabilities(SOURCES), ours, strict=True):
            assert row == pytest.approx(one.probabilities, abs=1e-4)


ENCODER = zoo.bert(**TINY, max_positions=64)
WORDS = zoo.elmo(width=16, inner=12, embed=zoo.bert(**TINY).embed, clip=0.5)
HEADS: dict[str, Model] = {
    "label": replace(ENCODER, readout=Label(NAMES)),
    "dense vector": replace(ENCODER, readout=Vector(Mean(), dense=(Dense(10), Dense(7, None)))),
    "recurrent, tags": replace(WORDS, readout=Tags(NAMES)),
}


@pytest.mark.parametrize("name", HEADS)
def test_an_encoder_gives_the_vectors_and_labels_of_torch(name: str, tmp_path: Path):
    check_encoder(tmp_path / "model", HEADS[name])


@pytest.mark.storm
@pytest.mark.parametrize("name", [*CLASSIFIERS, *ENCODERS])
def test_every_encoder_of_the_zoo_is_converted(name: str, tmp_path: Path):
    check_encoder(tmp_path / "model", MODELS[name])


def test_the_labels_of_pairs_are_those_of_torch_too(tmp_path: Path):
    model = converted(tmp_path / "model", zoo.bert(**TINY, max_positions=64, next_sentence=True))
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[0])]
    rows = OnnxEncoder(tmp_path / "model").probabilities(pairs)
    for row, one in zip(rows, model.classify(pairs), strict=True):
        assert row == pytest.approx(one.probabilities, abs=1e-4)


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
    assert "engines/onnx: decoder_step, checked on a sample" in said
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


def test_what_is_no_graph_is_refused_in_one_line(tmp_path: Path, windowed: tuple[Path, LoadedModel]):
    with pytest.raises(InputError, match="holds no encoder"):
        OnnxEncoder(windowed[0])
    with pytest.raises(InputError, match=r"config\.json"):
        OnnxEncoder(tmp_path)
    save_model(tmp_path / "torch", small(ENCODER))
    with pytest.raises(InputError, match="not converted to ONNX"):
        OnnxEncoder(tmp_path / "torch")
    folder = tmp_path / "model"
    converted(folder, HEADS["label"])
    engine = OnnxEncoder(folder)
    with pytest.raises(InputError, match="no number"):
        engine.numbers(TEXTS)
    with pytest.raises(InputError, match="no tags"):
        engine.tags(TEXTS)
    with pytest.raises(InputError, match="tokens"):
        engine.embed(["the cat sat on the mat " * 40])
    assert engine.embed(["the cat sat on the mat " * 40], max_length=64).shape == (1, 16)
    assert engine.embed([]).shape == (0, 16)
    with pytest.raises(InputError, match="one or the other"):
        engine.classify(["a", ("a", "b")])
    (folder / "encoder.onnx").write_bytes(b"no graph")
    with pytest.raises(DamagedFile, match=r"encoder\.onnx"):
        OnnxEncoder(folder)
    (folder / "MANIFEST.json").unlink(missing_ok=True)
    for path in folder.glob("*manifest*"):
        path.unlink()
    with pytest.raises(DamagedFile, match=r"encoder\.onnx cannot be used"):
        OnnxEncoder(folder)
    shutil.copyfile(folder / "tokenizer.json", folder / "config.json")
    with pytest.raises(InputError, match="not converted to ONNX"):
        OnnxEncoder(folder)
    (folder / "config.json").write_text('{"format": "regard-onnx", "shape": 3}')
    with pytest.raises(DamagedFile, match="cannot be used"):
        OnnxEncoder(folder)


def test_an_encoder_runs_without_torch(tmp_path: Path):
    converted(tmp_path / "model", replace(ENCODER, readout=Label(NAMES, Last())))
    code = (
        "import sys; from pathlib import Path; from regard.engines.onnx_encoder import OnnxEncoder\n"
        f"print(OnnxEncoder(Path({str(tmp_path / 'model')!r})).classify(['the dog sat'])[0])\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in NAMES


def test_the_extra_names_what_a_conversion_imports():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {line.partition(">")[0] for line in declared["onnx"]} == set(EXTRAS["onnx"])
