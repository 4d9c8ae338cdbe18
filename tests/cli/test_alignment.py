"""Alignments and unknown words on the command line, and what training leaves for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import regard as package
from regard.data.tokenize.train import Character, Word
from regard.errors import DamagedFile, InputError
from regard.models import zoo
from regard.store.folder import unique_parameters, write_description, write_generation_config, write_weights
from tests.cli.test_cli import fed
from tests.training.runs import regard, write_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    steps = "train.steps=12", "train.average=1"
    code, _, err = regard(
        "train", write_recipe(folder), "--out", folder / "run", *(w for s in steps for w in ("--set", s))
    )
    assert (code, err) == (0, "")
    return folder / "run"


def written(folder: Path, description: zoo.Model, *, size: int | None = None) -> Path:
    """A model that has learnt nothing."""
    texts = ["abc def ghi abc"]
    tokenizer = Character().train(texts) if size is None else Word(size).train(texts)
    torch.manual_seed(5)
    network = description.build(tokenizer.vocabulary)
    write_description(folder, network, (tokenizer, None), task="translate", generation_config={"num_beams": 2})
    write_weights(folder, unique_parameters(network))
    return folder


def test_training_leaves_the_heads_that_align_best_and_comes_to_them_again(model: Path):
    kept = (model / "generation_config.json").read_bytes()
    heads = json.loads(kept)["alignment_heads"]
    assert {layer for layer, _ in heads} == {0}
    assert {head for _, head in heads} <= {0, 1}
    code, out, err = regard(
        "train", model.parent / "reverse.toml", "--out", model, "--set", "train.steps=12", "--set", "train.average=1"
    )
    assert (code, err) == (0, "")
    assert "is finished" in out
    assert (model / "generation_config.json").read_bytes() == kept


def test_the_alignment_stands_behind_the_text_as_marian_has_it(model: Path):
    code, out, err = fed(b"abc de\n\nf\n", "translate", model, "--alignment")
    plain = fed(b"abc de\n\nf\n", "translate", model)[1].decode().splitlines()
    lines = [line.split(" ||| ") for line in out.decode().split("\n")[:-1]]
    assert (code, err) == (0, b"")
    assert [line[0] for line in lines] == plain
    assert lines[1] == ["", ""]
    for text, links in (lines[0], lines[2]):
        pairs = [tuple(map(int, pair.split("-"))) for pair in links.split()]
        assert pairs == sorted(pairs)
        assert {j for _, j in pairs} == set(range(len(text.split())))


def test_of_the_n_best_the_alignment_stands_before_the_score(model: Path):
    _, out, _ = fed(b"abc de\n", "translate", model, "--alignment", "--n-best", "2", "--min-tokens", "3")
    rows = [line.split(" ||| ") for line in out.decode().splitlines()]
    assert [(len(row), row[0]) for row in rows] == [(4, "0"), (4, "0")]
    assert all(float(row[3]) < 0 and "-" in row[2] for row in rows)


def test_json_holds_the_alignment_as_pairs(model: Path):
    _, out, _ = fed(b"abc de\n", "translate", model, "--alignment", "--json", "--n-best", "2")
    row = json.loads(out)
    assert row["alignment"] == row["n_best"][0]["alignment"]
    assert all(i < 2 for i, _ in row["alignment"])
    assert "alignment" not in json.loads(fed(b"abc de\n", "translate", model, "--json")[1])


@pytest.mark.parametrize("option", ["--alignment", "--replace-unknown"])
def test_a_model_that_does_not_attend_refuses_in_one_line(option: str, tmp_path: Path):
    folder = written(tmp_path, zoo.seq2seq(8, 1))
    code, out, err = fed(b"abc\n", "translate", folder, option)
    assert (code, out, err.count(b"\n")) == (2, b"", 1)
    assert b"has no cross-attention" in err
    with pytest.raises(InputError, match="no cross-attention"):
        package.load(folder).align(["a"], ["b"])


def test_unknown_words_are_said_as_the_source_has_them(tmp_path: Path):
    folder = written(tmp_path, zoo.luong(8, 1), size=6)
    model = package.load(folder)
    with torch.no_grad():
        model.network.readout.lm_head.bias[model.tokenizer.unk] = 99.0
        write_weights(folder, unique_parameters(model.network))
    plain = fed(b"Hut\n", "translate", folder, "--max-tokens", "3")[1]
    code, out, _ = fed(b"Hut\n", "translate", folder, "--max-tokens", "3", "--replace-unknown", "--alignment")
    assert (code, plain, out) == (0, b"\n", b"Hut Hut Hut ||| 0-0 0-1 0-2\n")
    options = model.defaults()
    assert package.load(folder).translate("Hut", options=options, replace_unknown=True).split()[0] == "Hut"


def test_heads_can_be_chosen_and_kept(tmp_path: Path):
    folder = written(tmp_path, zoo.transformer(8, 2, 2))
    loaded = package.load(folder)
    assert len(loaded.aligner.heads) == 4
    pairs = ["abc def", "def", "ghi abc"] * 4
    gold = loaded.align(pairs, pairs)
    loaded.generation_config["alignment_heads"] = [(1, 0)]
    assert loaded.aligner.heads == [(1, 0)]
    heads = loaded.choose_alignment_heads(pairs, pairs, gold)
    assert loaded.align(pairs, pairs) == gold
    write_generation_config(folder, loaded.generation_config)
    assert list(package.load(folder).aligner.heads) == heads
    assert package.load(folder).defaults().beam == 2
    with pytest.raises(InputError, match="12 pairs and 1 alignments"):
        loaded.choose_alignment_heads(pairs, pairs, gold[:1])
    with pytest.raises(InputError, match="align takes lists of texts"):
        loaded.align("abc", "abc")


@pytest.mark.parametrize(
    ("heads", "said"),
    [("much", "alignment_heads"), ([[0]], "alignment_heads"), ([[0, 7]], "no cross-attention head 7 in layer 0")],
)
def test_heads_that_cannot_be_are_a_damaged_file(heads: object, said: str, tmp_path: Path):
    folder = written(tmp_path, zoo.transformer(8, 1, 2))
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": heads}))
    with pytest.raises(DamagedFile, match=said):
        package.load(folder).align(["a"], ["b"])
