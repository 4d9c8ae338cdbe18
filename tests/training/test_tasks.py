"""Every task can be trained, from scratch or by fine-tuning, and a run of it can be resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regard.config.recipe import read_recipe
from regard.config.run import train
from regard.config.setup import prepare
from regard.errors import InputError
from regard.evaluation.check import check
from regard.store.folder import read_folder, unique_parameters, write_description, write_weights
from regard.training.distributed import World
from regard.training.log import Quiet
from regard.training.loop import Run
from regard.training.step import Trainer
from tests.training.runs import same_tensors

SMALL = "width = 16\ndepth = 2\nheads = 2\ninner = 24\n"
BERT = f'name = "bert"\n{SMALL}max_positions = 40\n'
GPT2 = f'name = "gpt2"\n{SMALL}'
T5 = f'name = "t5"\n{SMALL}'
SHA = 'name = "sha_rnn"\nwidth = 16\ndepth = 2\nwindow = 30\n'
CHARACTER_CNN = 'embed = { kind = "character_cnn", filters = [[1, 8], [2, 8]], characters = 8 }\n'
ELMO = f'name = "elmo"\nwidth = 16\ninner = 24\nclip = "none"\n{CHARACTER_CNN}'
CHARACTERS = 'tokenizer = { kind = "character", sentinels = 16 }\n'
WORDS = 'tokenizer = "word"\n'
PLAIN = 'train = "plain.txt"\nvalid = "plain.txt"\ndocuments = "line"\n' + CHARACTERS
LABELLED = 'train = "labels.tsv"\nvalid = "labels.tsv"\nfields = ["text", "label"]\n' + CHARACTERS
PAIRED = 'train = "pairs.tsv"\nvalid = "pairs.tsv"\nfields = ["1", "2", "3"]\n' + CHARACTERS

TASKS = {
    "masked lm": (BERT, PLAIN + 'task = { kind = "masked_lm", length = 24 }'),
    "next sentence": (BERT, PLAIN + 'task = { kind = "masked_lm", length = 24, next_sentence = true }'),
    "truncated bptt": (SHA, PLAIN + 'task = { kind = "truncated_bptt", length = 24, streams = 7 }'),
    "bidirectional lm": (ELMO, PLAIN.replace(CHARACTERS, WORDS) + 'task = { kind = "bidirectional_lm", length = 24 }'),
    "labels, characters": (ELMO, LABELLED.replace(CHARACTERS, WORDS) + 'task = "classification"'),
    "span corruption": (T5, PLAIN + 'task = { kind = "span_corruption", length = 24 }'),
    "labels, encoder": (BERT, LABELLED + 'task = "classification"'),
    "labels, decoder": (GPT2, LABELLED + 'task = "classification"'),
    "labels, encoder of an encoder-decoder": (T5, LABELLED + 'task = "classification"'),
    "labels of pairs": (BERT, PAIRED.replace("pairs", "next") + 'task = { kind = "classification", max_length = 40 }'),
    "regression of pairs": (BERT, PAIRED + 'task = { kind = "regression", max_length = 40 }'),
    "tags": (BERT, 'train = "tags.{a,b}"\nvalid = "tags.{a,b}"\n' + CHARACTERS + 'task = "tagging"'),
    "contrastive": (BERT, 'train = "tags.{a,b}"\nvalid = "tags.{a,b}"\n' + CHARACTERS + 'task = "contrastive"'),
    "text to text": (T5, 'train = [{ path = "tags.{a,b}", prefix = "tag: " }]\nvalid = "tags.{a,b}"\n' + CHARACTERS),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words with a repeating order of letters; the label tells the first letter, the number their count."""
    folder = tmp_path_factory.mktemp("texts")
    words = [("abcdefgh" * 3)[start : start + 3 + start % 5 + length] for start in range(8) for length in range(1, 8)]
    halves = list(zip(words, words[1:] + words[:1]))
    texts = {
        "plain.txt": [f"{one} {other} {one}" for one, other in halves],
        "labels.tsv": ["text\tlabel", *[f"{word}\t{'early' if word[0] < 'e' else 'late'}" for word in words]],
        "pairs.tsv": [f"{one}\t{other}\t{len(one)}.0" for one, other in halves],
        "next.tsv": [f"{one}\t{other}\t{one[0]}" for one, other in halves],
        "tags.a": [f"{one} {other}" for one, other in halves],
        "tags.b": [f"{one[0]} {other[0]}" for one, other in halves],
    }
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


SETTINGS = """
steps = 8
batch_tokens = 300
learning_rate = 1e-2
schedule = { kind = "constant" }
label_smoothing = 0.0
save_every = 4
valid_every = 4
"""


def write(folder: Path, model: str, text: str, **settings: Any) -> Path:
    path = folder / "recipe.toml"
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    path.write_text(f'[model]\n{model}\n[text]\nfolder = "{folder}"\n{text}\n[train]{SETTINGS}{lines}')
    return path


def make_trainer(recipe: Path, out: Path) -> Trainer:
    job = prepare(read_recipe(recipe), out, World(torch.device("cpu")), Quiet())
    return Run(job, out, torch.device("cpu"), Quiet()).trainer


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_trained(folder: Path, tmp_path: Path, name: str):
    model, text = TASKS[name]
    tmp_path.joinpath("out").mkdir()
    trainer = make_trainer(write(folder, model + "dropout = 0.0\n", text), tmp_path / "out")
    losses = [trainer.advance().loss for _ in range(120)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert all(parameter.grad is not None for parameter in trainer.network.parameters())


@pytest.mark.parametrize("name", TASKS)
def test_a_resumed_run_equals_the_unbroken_one(folder: Path, tmp_path: Path, name: str):
    recipe = write(folder, *TASKS[name])
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "parts", settings=["train.steps=3"])
    train(recipe, tmp_path / "parts", settings=["train.steps=8"])
    assert same_tensors(tmp_path / "whole", tmp_path / "parts", "checkpoints/step-8/model.safetensors")


@pytest.mark.parametrize("name", [name for name in TASKS if name != "contrastive"])
def test_gradient_accumulation_adds_up_to_the_step(folder: Path, tmp_path: Path, name: str):
    model, text = TASKS[name]
    found = []
    for accumulate in (1, 3):
        out = tmp_path / str(accumulate)
        out.mkdir()
        trainer = make_trainer(write(folder, model + "dropout = 0.0\n", text, accumulate=accumulate), out)
        found.append([trainer.advance().loss for _ in range(3)])
    assert found[0] == pytest.approx(found[1], rel=2e-3)


def test_fine_tuning_starts_with_the_pretrained_weights(folder: Path, tmp_path: Path):
    train(write(folder, *TASKS["masked lm"]), tmp_path / "before")
    init = f'init = "{tmp_path / "before"}"\nwords = ["hgf", "abc"]'
    text = LABELLED.replace(CHARACTERS, "") + 'task = "classification"'
    (tmp_path / "out").mkdir()
    recipe = write(folder, init, text, groups='[{ match = "embed.*", lr_scale = 0.0 }]')
    trainer = make_trainer(recipe, tmp_path / "out")
    before, after = read_folder(tmp_path / "before", torch.device("cpu")), trainer.network
    old, new = dict(before.network.named_parameters()), dict(after.named_parameters())
    same = [name for name in new if name in old and torch.equal(new[name][: len(old[name])], old[name])]
    assert {name.rpartition(".")[0] for name in new if name not in same} == {"readout.inner", "readout.out"}
    assert after.description.readout.labels == ("early", "late")
    assert after.vocabulary == before.network.vocabulary + 2
    table = after.embed.table.weight
    parts = before.tokenizers[0].encode("hgf")
    assert torch.allclose(table[before.network.vocabulary], table[parts].mean(dim=0))
    trainer.advance()
    assert torch.equal(after.embed.table.weight[: before.network.vocabulary], before.network.embed.table.weight)
    assert not torch.equal(after.encoder.layers[0]["self"].norm.weight, torch.ones(16))


def test_a_fine_tuning_run_can_be_resumed(folder: Path, tmp_path: Path):
    train(write(folder, *TASKS["span corruption"]), tmp_path / "before")
    text = 'train = [{ path = "tags.{a,b}", prefix = "tag: " }]\nvalid = "tags.{a,b}"\n'
    recipe = write(folder, f'init = "{tmp_path / "before"}"\nwords = ["tag"]', text)
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "parts", settings=["train.steps=3"])
    train(recipe, tmp_path / "parts")
    assert same_tensors(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        (GPT2, TASKS["masked lm"][1], r'"gpt2" cannot be trained as masked lm .*model.name = "bert"'),
        (BERT, TASKS["span corruption"][1], r'"bert" cannot be trained as span corruption .*model.name = "t5"'),
        (T5, PLAIN + 'task = "language_model"', r'"t5" cannot be trained as language model .*model.name = "gpt2"'),
        (BERT, TASKS["bidirectional lm"][1], r'"bert" cannot be trained as bidirectional lm .*model.name = "elmo"'),
        ('init = "nowhere"', PLAIN, r"keeps its own tokenizer"),
        ('init = "nowhere"', PLAIN.replace(CHARACTERS, ""), r"no such model folder: nowhere"),
        ('init = "nowhere"\nwords = ["a", "a"]', PLAIN.replace(CHARACTERS, ""), r"words must differ"),
        ('init = "nowhere"\nname = "bert"', PLAIN.replace(CHARACTERS, ""), r'unknown key "name"'),
        (T5, PLAIN.replace("16", "0") + 'task = "span_corruption"', r"sentinels"),
    ],
)
def test_tasks_that_do_not_fit_the_model_are_refused(folder: Path, tmp_path: Path, model: str, text: str, message: str):
    with pytest.raises(InputError, match=message):
        train(write(folder, model, text), tmp_path / "out")


def test_a_readout_with_other_labels_is_not_kept(folder: Path, tmp_path: Path):
    train(write(folder, *TASKS["labels of pairs"]), tmp_path / "eight")
    init = f'init = "{tmp_path / "eight"}"'
    text = LABELLED.replace(CHARACTERS, "")
    for task in ('task = "classification"', 'task = { kind = "classification", labels = ["late", "early"] }'):
        (tmp_path / task[:12]).mkdir(exist_ok=True)
        network = make_trainer(write(folder, init, text + task), tmp_path / task[:12]).network
        old = dict(read_folder(tmp_path / "eight", torch.device("cpu")).network.named_parameters())
        new = dict(network.named_parameters())
        assert new["readout.out.weight"].shape == (2, 16)
        assert not torch.equal(new["readout.out.weight"], old["readout.out.weight"][:2])
        assert torch.equal(new["readout.inner.weight"], old["readout.inner.weight"])
    plain = PLAIN.replace(CHARACTERS, "") + 'task = "masked_lm"'
    with pytest.raises(InputError, match=r"outputs labels, not tokens \(model.init\)"):
        train(write(folder, init, plain), tmp_path / "words")


def test_a_resume_does_not_need_the_pretrained_model(folder: Path, tmp_path: Path):
    train(write(folder, *TASKS["bidirectional lm"]), tmp_path / "before")
    text = LABELLED.replace(CHARACTERS, "") + 'task = "classification"'
    recipe = write(folder, f'init = "{tmp_path / "before"}"\npool = "mean"', text)
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "parts", settings=["train.steps=3"])
    shutil.rmtree(tmp_path / "before")
    model = train(recipe, tmp_path / "parts")
    assert same_tensors(tmp_path / "whole", tmp_path / "parts")
    assert {finding.verdict for finding in check(model)} <= {"holds", "skipped", "noted"}
    assert model.look("abc def").source_tokens[0] == "<s>"


def test_a_resume_keeps_embeddings_that_no_token_uses(folder: Path, tmp_path: Path):
    train(write(folder, *TASKS["masked lm"]), tmp_path / "before")
    found = read_folder(tmp_path / "before", torch.device("cpu"))
    (tmp_path / "larger").mkdir()
    larger = found.network.description.build(found.network.vocabulary + 7)
    write_description(tmp_path / "larger", larger, found.tokenizers, task="fill", generation_config={})
    write_weights(tmp_path / "larger", unique_parameters(larger))
    text = TASKS["masked lm"][1].replace(CHARACTERS, "")
    recipe = write(folder, f'init = "{tmp_path / "larger"}"\nwords = ["hgf"]', text)
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "parts", settings=["train.steps=3"])
    train(recipe, tmp_path / "parts")
    assert load_file(tmp_path / "whole" / "model.safetensors")["embed.table.weight"].shape[0] == larger.vocabulary
    assert same_tensors(tmp_path / "whole", tmp_path / "parts")
