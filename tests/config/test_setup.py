"""Fine-tuning with more positions than the pretrained model has, and random positions that train all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from regard import zoo
from regard.config.recipe import read_recipe
from regard.config.run import train
from regard.config.setup import default_task, prepare, with_readout_for
from regard.data.read.corpus import Corpus, read_corpus
from regard.data.read.texts import ReadOptions
from regard.data.tasks import BidirectionalLM, Classification, MaskedLM, SpanCorruption, Translation
from regard.data.tasks.base import TaskBase
from regard.data.tasks.language_model import LanguageModel, PackedSamples
from regard.data.tokenize.train import Character
from regard.errors import InputError
from regard.layers.positions import Axial, Learned
from regard.models.readouts import First, Max, Mean
from regard.store.folder import read_folder
from regard.store.loading import TRAINED_LENGTH
from regard.training.distributed import World
from regard.training.log import Quiet

CPU = torch.device("cpu")
MODEL = 'name = "gpt2"\nwidth = 16\ndepth = 1\nheads = 2\ninner = 24\ndropout = 0.0\n'
AXIAL = MODEL + 'position = { kind = "axial", shape = [4, 8], widths = [6, 10] }\n'
LEARNED = MODEL + 'position = { kind = "learned", max_positions = 32 }\n'
CHARACTERS = 'tokenizer = "character"\n'
TEXT = 'train = "plain.txt"\nvalid = "plain.txt"\ndocuments = "line"\n'
SETTINGS = """
steps = 4
batch_tokens = 200
learning_rate = 1e-2
schedule = { kind = "constant" }
save_every = 2
valid_every = 4
"""


def written(folder: Path, model: str, task: str, text: str = TEXT) -> Path:
    """A recipe."""
    folder.mkdir(exist_ok=True)
    folder.joinpath("plain.txt").write_text("".join(f"{'abcdefgh'[i % 8 :]} {'hgf' * (i % 3)}\n" for i in range(60)))
    path = folder / "recipe.toml"
    path.write_text(
        f'[model]\n{model}\n[text]\nfolder = "{folder}"\n{text}task = {task}\n[train]{SETTINGS}'
    )  # fmt: skip
    return path


def short(length: int) -> str:
    """The task with rows of this length."""
    return f'{{ kind = "language_model", length = {length} }}'


def test_only_a_translator_is_stored_with_beams(tmp_path: Path):
    train(written(tmp_path, MODEL, short(32), TEXT + CHARACTERS), tmp_path / "writer")
    assert "num_beams" not in json.loads((tmp_path / "writer" / "generation_config.json").read_text())
    pairs = 'train = "{plain,plain}.txt"\n' + CHARACTERS
    recipe = written(tmp_path, 'name = "transformer"\nwidth = 16\ndepth = 1\nheads = 2', '"translation"', pairs)
    train(recipe, tmp_path / "translator")
    assert json.loads((tmp_path / "translator" / "generation_config.json").read_text())["num_beams"] == 5


@pytest.mark.parametrize(
    ("model", "grown", "tables"),
    [(AXIAL, Axial((9, 8), (6, 10)), ("rows", "columns")), (LEARNED, Learned(70), ("weight",))],
)
def test_a_model_with_more_positions_starts_with_the_pretrained_weights(
    model: str, grown: Any, tables: Any, tmp_path: Path
):
    train(written(tmp_path, model, short(32), TEXT + CHARACTERS), tmp_path / "before")
    recipe = written(tmp_path, f'init = "{tmp_path / "before"}"\nmax_positions = 70', short(70))
    (tmp_path / "after").mkdir()
    after = prepare(read_recipe(recipe), tmp_path / "after", World(CPU), Quiet()).network.eval()
    before = read_folder(tmp_path / "before", CPU).network
    assert after.description.embed.position == grown
    assert after.max_positions == grown.max_positions
    old, new = dict(before.named_parameters()), dict(after.named_parameters())
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert torch.equal(new[name][: len(tensor)], tensor), name
    table, known = new[f"embed.position.{tables[0]}"], old[f"embed.position.{tables[0]}"]
    assert len(table) > len(known)
    assert torch.allclose(table[len(known) :], known.mean(0).expand(len(table) - len(known), -1))
    ids = torch.randint(4, 10, (2, 30))
    assert torch.equal(before(ids), after(ids))


def test_a_run_with_more_positions_can_be_resumed(tmp_path: Path):
    train(written(tmp_path, AXIAL, short(32), TEXT + CHARACTERS), tmp_path / "before")
    recipe = written(tmp_path, f'init = "{tmp_path / "before"}"\nmax_positions = 40', short(40))
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "parts", settings=["train.steps=3"])
    train(recipe, tmp_path / "parts")
    whole, parts = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "parts"))
    assert whole["embed.position.rows"].shape == (5, 6)
    assert all(torch.equal(whole[tensor], parts[tensor]) for tensor in whole)


@pytest.mark.parametrize(
    ("model", "message"),
    [(AXIAL, r"max_positions = 31 is less than the 32 positions .* \(model.max_positions\)"),
     (MODEL + 'position = "sinusoid"\n', r"no table of positions that could grow \(model.max_positions\)")],
)  # fmt: skip
def test_positions_that_cannot_grow_are_refused(model: str, message: str, tmp_path: Path):
    train(written(tmp_path, model, short(20), TEXT + CHARACTERS), tmp_path / "before")
    recipe = written(tmp_path, f'init = "{tmp_path / "before"}"\nmax_positions = 31', short(20))
    with pytest.raises(InputError, match=message) as caught:
        train(recipe, tmp_path / "after")
    assert "\n" not in str(caught.value)


RANDOM = '{ kind = "language_model", length = 10, random_positions = 32 }'


def samples_at_random(tmp_path: Path, **changes: Any) -> PackedSamples:
    """Rows of ten tokens at random offsets among 32 positions."""
    (tmp_path / "plain.txt").write_text("".join(f"{'abcdefgh'[i % 8 :]}\n" for i in range(60)))
    corpus = read_corpus(str(tmp_path / "plain.txt"), ReadOptions(documents=changes.pop("documents", "file")))
    return LanguageModel(**{"length": 10, "random_positions": 32, **changes}).samples(
        corpus, (Character().train(["abcdefgh"]), None)
    )


@pytest.mark.parametrize("documents", ["file", "line"])
def test_rows_start_at_every_position(documents: str, tmp_path: Path):
    samples, plain = (samples_at_random(tmp_path, documents=documents, random_positions=count) for count in (32, 0))
    every = np.arange(len(samples))
    found = [samples.batch(every, draw) for draw in range(40)]
    still = plain.batch(every, 1)
    within = still.inputs.get("positions", torch.arange(10))
    real = still.inputs.get("padding", torch.ones_like(still.inputs["ids"], dtype=torch.bool))
    firsts = set()
    for batch in found:
        first = (batch.inputs["positions"] - within)[:, 0]
        assert torch.equal((within + first[:, None])[real], batch.inputs["positions"][real])
        assert batch.inputs["positions"].max() < 32
        assert torch.equal(batch.inputs["ids"], still.inputs["ids"])
        assert torch.equal(batch.targets, still.targets)
        firsts |= set(first[:-1].tolist())
    assert firsts == set(range(23))  # 22 + 10 = 32


def test_the_start_of_a_row_does_not_depend_on_the_batch(tmp_path: Path):
    samples = samples_at_random(tmp_path)
    every, alone = samples.batch(np.arange(len(samples)), 5), samples.batch([3], 5)
    assert torch.equal(every.inputs["positions"][3], alone.inputs["positions"][0])
    assert torch.equal(alone.inputs["positions"], samples.batch([3], 5).inputs["positions"])
    other = samples.batch(np.arange(len(samples)), 6)
    assert not torch.equal(every.inputs["positions"], other.inputs["positions"])


def test_validation_starts_at_the_first_position(tmp_path: Path):
    assert "positions" not in samples_at_random(tmp_path).batch([0, 3]).inputs


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_run_with_random_positions_can_be_resumed(accumulate: int, tmp_path: Path):
    recipe = written(tmp_path, AXIAL, RANDOM, TEXT + CHARACTERS)
    more = [f"train.accumulate={accumulate}"]
    train(recipe, tmp_path / "whole", settings=more)
    train(recipe, tmp_path / "parts", settings=[*more, "train.steps=3"])
    train(recipe, tmp_path / "parts", settings=more)
    whole, parts = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "parts"))
    assert all(torch.equal(whole[tensor], parts[tensor]) for tensor in whole)
    start = prepare(read_recipe(recipe), tmp_path / "whole", World(CPU), Quiet()).network.embed.position.rows
    assert (whole["embed.position.rows"] != start).any(dim=1).all()  # all are trained, though rows have ten tokens


@pytest.mark.parametrize(
    ("model", "task", "message"),
    [(AXIAL, RANDOM.replace("32", "33"), r"text.task.random_positions\) has 33 tokens, this model reads 32"),
     (AXIAL, RANDOM.replace("32", "9"), r"random_positions = 9 leaves no room for rows of 10 tokens")],
)  # fmt: skip
def test_random_positions_beyond_the_table_are_refused(model: str, task: str, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        train(written(tmp_path, model, task, TEXT + CHARACTERS), tmp_path / "out")


@pytest.mark.parametrize(("task", "length"), [(short(10), 10), (RANDOM, 32)])
def test_a_folder_stores_the_trained_length(tmp_path: Path, task: str, length: int):
    model = train(written(tmp_path / "text", LEARNED, task, TEXT + CHARACTERS), tmp_path / "run")
    assert model.config[TRAINED_LENGTH] == length


def test_fine_tuning_on_shorter_texts_keeps_the_trained_length(tmp_path: Path):
    train(written(tmp_path, LEARNED, short(20), TEXT + CHARACTERS), tmp_path / "before")
    after = written(tmp_path / "more", f'init = "{tmp_path / "before"}"', short(10))
    assert train(after, tmp_path / "after").config[TRAINED_LENGTH] == 20
    assert train(after, tmp_path / "after", settings=["train.steps=5"]).config[TRAINED_LENGTH] == 20


def test_the_default_task_depends_on_the_corpus_and_the_shape_of_the_model():
    pairs, plain = Corpus(["a"], ["b"], ("t.de", "t.en")), Corpus(["a"], None, ("t.txt",))
    for model, task in ((zoo.transformer(), Translation()), (zoo.bert(), Classification())):
        assert default_task(model, pairs, False, "it") == task
    for model, task in ((zoo.gpt2(), LanguageModel()), (zoo.bert(), MaskedLM()), (zoo.elmo(), BidirectionalLM())):
        assert default_task(model, plain, False, "it") == task
    assert default_task(zoo.t5(), plain, True, "it") == SpanCorruption()
    with pytest.raises(InputError, match="has one side"):
        default_task(zoo.t5(), plain, False, "it")


def test_the_readout_follows_from_what_a_task_outputs_whatever_its_class():
    class Moods(TaskBase):
        outputs = "labels"
        labels = ("happy", "sad")

    model = with_readout_for(zoo.bert(width=16, depth=1, heads=2), Moods())
    assert (model.readout.outputs, model.readout.labels) == ("labels", ("happy", "sad"))
    assert model == with_readout_for(zoo.bert(width=16, depth=1, heads=2), Classification(labels=("happy", "sad")))


def test_a_readout_that_names_its_pooling_keeps_it():
    recipe = read_recipe("languages")
    assert with_readout_for(recipe.model, Classification(labels=("de", "en"))).readout.pool == Mean()
    assert with_readout_for(recipe.model, Classification(labels=("de", "en")), Max()).readout.pool == Max()
    bert = zoo.bert(width=16, depth=1, heads=2)
    assert with_readout_for(bert, Classification(labels=("de", "en"))).readout.pool == First()
