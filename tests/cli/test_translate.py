"""The commands that use a model: what translate, generate, fill, embed, classify and score print, and their page."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import mido
import numpy as np
import pytest
import torch

import regard as package
from regard.api import load
from regard.cli import run
from regard.data.corpora.chorales import Chord, voices_of
from regard.data.tokenize.train import Character, Word, WordPiece
from regard.errors import DamagedFile, InputError
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.readouts import Label, Number, Tags
from regard.store.folder import unique_parameters, write_description, write_generation_config, write_weights
from tests.cli.test_cli import fed as piped
from tests.small import TEXTS, WORDPIECE, save_model, small
from tests.store.test_elmo import options as elmo_options
from tests.store.test_elmo import write as write_published
from tests.training.runs import ENVIRONMENT, regard, write_recipe

BERT = zoo.bert(16, 2, 2, max_positions=64)
LINES = "".join(f"{text}\n" for text in TEXTS)
Fed = Callable[..., tuple[int, bytes, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("read") / "runs"
    spans = WordPiece(80, sentinels=4).train(TEXTS * 4)
    save_model(root / "bert", small(BERT))
    save_model(root / "gpt2", small(zoo.gpt2(16, 1, 2, position=Learned(32))))
    save_model(root / "translator", small(zoo.transformer(16, 1, 2)))
    save_model(root / "t5", small(zoo.t5(16, 1, 2), (spans,), generation_config={"max_new_tokens": 6}))
    save_model(root / "labels", small(replace(BERT, readout=Label(("bad", "good")))))
    save_model(root / "numbers", small(replace(BERT, readout=Number())))
    save_model(root / "tags", small(replace(BERT, readout=Tags(("X", "Y")))))
    save_model(root / "pairs", small(zoo.bert(16, 1, 2, max_positions=64, next_sentence=True)))
    (root / "elmo").mkdir()
    write_published(root / "elmo", elmo_options())
    return root


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Fed:
    def go(given: str, *arguments: object) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        capsysbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return go


def test_a_text_is_filled_with_choices_and_lines_one_by_one(runs: Path, fed: Fed):
    model = load(runs / "bert", device="cpu")
    text = "The [MASK] sat on the <mask>."
    filled = model.fill(text, top=2)
    code, out, err = fed("", "fill", runs / "bert", text, "--top", "2")
    assert (code, err) == (0, "")
    first, *gaps = out.decode().split("\n\n")
    assert first == filled.text
    for said, choices in zip(gaps, filled.masks, strict=True):
        assert said.split("\n")[:2] == [f"{one.probability:.4f}  {one.text}" for one in choices]
    code, out, err = fed(f"{text}\n[MASK]\n", "fill", runs / "bert")
    assert out.decode().splitlines() == [filled.text, model.fill("[MASK]").text]
    code, out, _ = fed('{"text": "a [MASK]", "id": 7}\n', "fill", runs / "bert", "--json")
    row = json.loads(out)
    assert (row["id"], row["filled"]) == (7, model.fill("a [MASK]").text)
    assert len(row["masks"][0]) == 5


def test_a_translator_of_several_languages_is_told_which(runs: Path, fed: Fed):
    words = WORDPIECE.with_added_words(["__fr__", "__de__"])
    folder = save_model(runs.parent / "many", small(zoo.transformer(16, 1, 2), (words,)))
    model = load(folder, device="cpu")
    found = {}
    for language, token in (("fra", "__fr__"), ("de", "__de__")):
        code, out, err = fed(LINES, "translate", folder, "--target-language", language, "--max-tokens", 9)
        assert (code, err) == (0, "")
        found[language] = out.decode().splitlines()
        assert all(line.startswith(token) for line in found[language])
        options = replace(model.defaults(), max_tokens=9)
        assert model.translate(TEXTS, options=options, target_language=language) == found[language]
    (runs.parent / "text.txt").write_text(TEXTS[0])
    arguments = "--file", runs.parent / "text.txt", "--target-language", "fr", "--max-tokens", 9
    assert fed("", "translate", folder, *arguments)[1].decode() == found["fra"][0]
    code, _, err = fed(LINES, "translate", folder, "--target-language", "xx")
    assert (code, err.count("\n"), 'translate into "xx" (--target-language)' in err) == (2, 1, True)
    assert "codes: " in err
    code, _, err = fed(LINES, "translate", runs / "translator", "--target-language", "fr")
    assert (code, err.count("\n"), "no tokens of languages" in err) == (2, 1, True)


def test_spans_are_filled(runs: Path, fed: Fed):
    code, out, _ = fed("The <extra_id_0> sat.\nA [MASK] in [MASK].\n", "fill", runs / "t5")
    assert (code, len(out.decode().split("\n"))) == (0, 3)
    assert "extra_id" not in out.decode()


def test_vectors_are_written_as_numpy_has_them(runs: Path, fed: Fed):
    model = load(runs / "bert", device="cpu")
    code, out, err = fed(LINES, "embed", runs / "bert")
    assert (code, err) == (0, "")
    np.testing.assert_array_equal(np.load(io.BytesIO(out)), model.embed(TEXTS))
    _, out, _ = fed(LINES, "embed", runs / "bert", "--pool", "max", "--layer", "mix", "--normalised")
    expected = model.embed(TEXTS, pool="max", layer="mix", normalised=True)
    np.testing.assert_array_equal(np.load(io.BytesIO(out)), expected)
    _, out, _ = fed("", "embed", runs / "bert")
    assert np.load(io.BytesIO(out)).shape == (0, 16)
    _, out, _ = fed(LINES, "embed", runs / "bert", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    np.testing.assert_allclose([row["vector"] for row in rows], model.embed(TEXTS), rtol=1e-6)


def test_vectors_of_tokens_are_written_with_where_each_line_begins(runs: Path, fed: Fed):
    model = load(runs / "gpt2", device="cpu")
    _, out, _ = fed(LINES, "embed", runs / "gpt2", "--tokens", "--layer", "0")
    found = np.load(io.BytesIO(out))
    for place, (tokens, vectors) in enumerate(model.embed(TEXTS, layer=0, tokens=True)):
        own = slice(found["starts"][place], found["starts"][place + 1])
        assert found["tokens"][own].tolist() == tokens
        np.testing.assert_array_equal(found["vectors"][own], vectors)
    _, out, _ = fed(LINES, "embed", runs / "gpt2", "--tokens", "--json")
    assert json.loads(out.splitlines()[0])["tokens"] == model.embed(TEXTS[:1], tokens=True)[0][0]


def test_a_terminal_is_given_no_vectors(runs: Path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "regard", "embed", str(runs / "bert")]
    done = subprocess.run(
        command, input=b"a\n", stdout=follower, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=120, check=False
    )
    os.close(follower)
    os.close(leader)
    assert (done.returncode, b"> vectors.npy" in done.stderr) == (2, True)


def test_labels_numbers_and_tags_are_a_line_each(runs: Path, fed: Fed):
    labels, numbers, tags = (load(runs / name, device="cpu") for name in ("labels", "numbers", "tags"))
    _, out, _ = fed(LINES, "classify", runs / "labels")
    assert out.decode().split("\n")[:-1] == [found.label for found in labels.classify(TEXTS)]
    _, out, _ = fed(LINES, "classify", runs / "numbers")
    assert [float(line) for line in out.splitlines()] == pytest.approx(
        [found.number for found in numbers.classify(TEXTS)], rel=1e-4
    )
    _, out, _ = fed(LINES, "classify", runs / "tags")
    assert [line.split() for line in out.decode().splitlines()] == [list(one.tags) for one in tags.classify(TEXTS)]
    _, out, _ = fed(LINES, "classify", runs / "tags", "--json")
    assert json.loads(out.splitlines()[2])["words"] == [list(pair) for pair in tags.classify(TEXTS[2:3])[0].words]
    _, out, _ = fed(LINES, "classify", runs / "labels", "--json")
    row = json.loads(out.splitlines()[1])
    assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)


def test_pairs_are_two_columns(runs: Path, fed: Fed):
    model = load(runs / "labels", device="cpu")
    _, out, _ = fed("the cat\tthe dog\n", "classify", runs / "labels", "--pairs", "--json")
    assert json.loads(out)["probabilities"] == pytest.approx(model.classify([("the cat", "the dog")])[0].probabilities)
    code, _, err = fed("the cat\tthe dog\nthe cat\n", "classify", runs / "labels", "--pairs")
    assert (code, "line 2 holds one text, two are needed" in err) == (2, True)


@pytest.mark.parametrize(("name", "given"), [("gpt2", LINES), ("bert", LINES), ("translator", "the cat\ta dog\n")])
def test_a_score_is_a_number_a_line(name: str, given: str, runs: Path, fed: Fed):
    model = load(runs / name, device="cpu")
    found = model.scores(TEXTS) if name != "translator" else model.scores(["the cat"], ["a dog"])
    _, out, _ = fed(given, "score", runs / name)
    assert [float(line) for line in out.splitlines()] == pytest.approx([one.total for one in found], abs=1e-3)
    _, out, _ = fed(given, "score", runs / name, "--per-token")
    total, *cells = out.decode().splitlines()[0].split("\t")
    assert [cell.rsplit(" ", 1)[0] for cell in cells] == [text for text, _ in found[0].tokens]
    assert sum(float(cell.rsplit(" ", 1)[1]) for cell in cells) == pytest.approx(float(total), abs=0.01)
    _, out, _ = fed(given, "score", runs / name, "--json", "--per-token")
    row = json.loads(out.splitlines()[0])
    assert row["perplexity"] == pytest.approx(np.exp(-row["score"] / row["tokens"]))
    assert len(row["log_probabilities"]) == row["tokens"]


def test_pairs_of_json_are_source_and_target_or_a_text_with_a_tab(runs: Path, fed: Fed):
    given = '{"source": "the cat", "target": "a dog", "id": 7}\n{"text": "the cat\\ta dog", "source": "news"}\n'
    code, out, err = fed(given, "score", runs / "translator", "--json")
    assert (code, err) == (0, "")
    first, second = map(json.loads, out.splitlines())
    assert (first["id"], second["source"], first["score"]) == (7, "news", second["score"])
    code, out, _ = fed(given, "classify", runs / "labels", "--pairs", "--json")
    first, second = map(json.loads, out.splitlines())
    assert (code, first["probabilities"]) == (0, second["probabilities"])
    code, _, err = fed('{"source": "the cat"}\n', "score", runs / "translator", "--json")
    assert (code, 'line 1 has no texts under "source" and "target"' in err) == (2, True)
    code, _, err = fed('{"source": "the cat", "target": "a dog"}\n', "score", runs / "gpt2", "--json")
    assert (code, 'has no text under "text"' in err) == (2, True)


def test_a_classifier_is_evaluated(runs: Path, fed: Fed, tmp_path: Path):
    model = load(runs / "labels", device="cpu")
    right = [found.label for found in model.classify(TEXTS)]
    (tmp_path / "s").write_text(LINES)
    (tmp_path / "r").write_text("".join(f"{name}\n" for name in right))
    files = "--source", tmp_path / "s", "--reference", tmp_path / "r"
    code, out, err = fed("", "evaluate", runs / "labels", *files, "--json")
    assert (code, json.loads(out)["scores"]["accuracy"], err) == (0, 1.0, "")
    code, out, _ = fed("", "evaluate", runs / "labels", *files)
    assert b"accuracy" in out
    code, _, err = fed("", "evaluate", runs / "labels", *files, "--plot", tmp_path / "x.png")
    assert (code, "--plot is for translations" in err) == (2, True)
    (tmp_path / "s").write_text("".join(f"{text}\tthe cat\n" for text in TEXTS))
    said = model.classify([(text, "the cat") for text in TEXTS])
    (tmp_path / "r").write_text("".join(f"{one.label}\n" for one in said))
    code, out, _ = fed("", "evaluate", runs / "labels", *files, "--pairs", "--json")
    assert json.loads(out)["scores"]["accuracy"] == 1.0


def test_next_sentences_are_told_from_the_command_line(runs: Path, fed: Fed):
    pairs = list(pairwise(TEXTS))
    expected = [found.label for found in load(runs / "pairs", device="cpu").classify(pairs)]
    given = "".join(f"{one}\t{other}\n" for one, other in pairs)
    assert fed(given, "classify", runs / "pairs") == (0, "".join(f"{one}\n" for one in expected).encode(), "")
    code, out, _ = fed(given, "classify", runs / "pairs", "--json")
    assert set(json.loads(out.splitlines()[0])["probabilities"]) == {"next", "elsewhere"}
    code, _, err = fed("one text\n", "classify", runs / "pairs")
    assert (code, "tab" in err) == (2, True)


def test_vectors_of_a_character_model_are_named_by_its_words(runs: Path, fed: Fed):
    code, out, _ = fed("the cat\nthe cat\n", "embed", runs / "elmo", "--tokens")
    written = np.load(io.BytesIO(out))
    assert code == 0
    assert written["tokens"].tolist() == ["<s>", "the", "cat", "</s>"] * 2


def test_the_state_is_carried_from_line_to_line_on_the_command_line(runs: Path, fed: Fed):
    found = {}
    for option in ((), ("--stateful",)):
        code, out, _ = fed("the cat\nthe cat\n", "embed", runs / "elmo", *option)
        assert code == 0
        found[option] = np.load(io.BytesIO(out))
    apart, carried = found.values()
    assert abs(apart[0] - apart[1]).max() < 1e-5
    assert abs(carried[0] - carried[1]).max() > 1e-5


def test_a_window_is_said_on_the_command_line(runs: Path, fed: Fed, tmp_path: Path):
    (tmp_path / "t").write_text(" ".join(TEXTS * 3))
    losses = set()
    for options in ([], ["--stride", "2"], ["--window", "8"], ["--window", "8", "--stride", "1"]):
        code, out, _ = fed("", "evaluate", runs / "gpt2", "--text", tmp_path / "t", "--json", *options)
        assert code == 0
        losses.add(json.loads(out)["loss"])
    assert len(losses) == 4
    code, _, err = fed("", "evaluate", runs / "gpt2", "--text", tmp_path / "t", "--window", "99")
    assert (code, "--window" in err) == (2, True)


@pytest.mark.parametrize(
    ("verb", "name", "fits"),
    [("fill", "gpt2", "generate"), ("classify", "bert", "fill"), ("score", "labels", "classify"),
     ("translate", "bert", "fill"), ("generate", "translator", "translate")],
)  # fmt: skip
def test_the_wrong_verb_names_the_one_that_fits(verb: str, name: str, fits: str, runs: Path, fed: Fed):
    arguments = [verb, runs / name, *(["a"] if verb == "generate" else [])]
    code, out, err = fed("the [MASK]\n", *arguments)
    assert (code, out) == (2, b"")
    assert err == f"regard: error: this model does not {verb}; it was made to {fits}. Try: regard {fits}.\n"


def test_a_line_too_long_is_named_by_its_number_in_the_whole_input(tmp_path: Path, fed: Fed):
    folder = save_model(tmp_path / "m", small(zoo.transformer(16, 1, 2, position=Learned(8))))
    code, _, err = fed("\n" * 2049 + "the " * 11 + "\n", "translate", folder)
    assert (code, "line 2,050 has 12 tokens" in err) == (2, True)


def test_regard_alone_prints_its_help(fed: Fed):
    code, out, err = fed("")
    assert (code, err) == (0, "")
    assert out.decode().startswith("Usage: regard")
    assert len(out.splitlines()) > 10


# Alignments and unknown words, and what training leaves for them.


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_training_leaves_the_heads_that_align_best_and_comes_to_them_again(translator: Path):
    kept = (translator / "generation_config.json").read_bytes()
    heads = json.loads(kept)["alignment_heads"]
    assert {layer for layer, _ in heads} == {0}
    assert {head for _, head in heads} <= {0, 1}
    code, out, err = regard(
        "train",
        translator.parent / "reverse.toml",
        "--out",
        translator,
        "--set",
        "train.steps=12",
        "--set",
        "train.average=1",
    )
    assert (code, err) == (0, "")
    assert "is finished" in out
    assert (translator / "generation_config.json").read_bytes() == kept


def test_the_alignment_stands_behind_the_text_as_marian_has_it(translator: Path):
    code, out, err = piped(b"abc de\n\nf\n", "translate", translator, "--alignment")
    plain = piped(b"abc de\n\nf\n", "translate", translator)[1].decode().splitlines()
    lines = [line.split(" ||| ") for line in out.decode().split("\n")[:-1]]
    assert (code, err) == (0, b"")
    assert [line[0] for line in lines] == plain
    assert lines[1] == ["", ""]
    for text, links in (lines[0], lines[2]):
        pairs = [tuple(map(int, pair.split("-"))) for pair in links.split()]
        assert pairs == sorted(pairs)
        assert {j for _, j in pairs} == set(range(len(text.split())))


def test_of_the_n_best_the_alignment_stands_before_the_score(translator: Path):
    _, out, _ = piped(b"abc de\n", "translate", translator, "--alignment", "--n-best", "2", "--min-tokens", "3")
    rows = [line.split(" ||| ") for line in out.decode().splitlines()]
    assert [(len(row), row[0]) for row in rows] == [(4, "0"), (4, "0")]
    assert all(float(row[3]) < 0 and "-" in row[2] for row in rows)


def test_json_holds_the_alignment_as_pairs(translator: Path):
    _, out, _ = piped(b"abc de\n", "translate", translator, "--alignment", "--json", "--n-best", "2")
    row = json.loads(out)
    assert row["alignment"] == row["n_best"][0]["alignment"]
    assert all(i < 2 for i, _ in row["alignment"])
    assert "alignment" not in json.loads(piped(b"abc de\n", "translate", translator, "--json")[1])


@pytest.mark.parametrize("option", ["--alignment", "--replace-unknown"])
def test_a_model_that_does_not_attend_refuses_in_one_line(option: str, tmp_path: Path):
    folder = written(tmp_path, zoo.seq2seq(8, 1))
    code, out, err = piped(b"abc\n", "translate", folder, option)
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
    plain = piped(b"Hut\n", "translate", folder, "--max-tokens", "3")[1]
    code, out, _ = piped(b"Hut\n", "translate", folder, "--max-tokens", "3", "--replace-unknown", "--alignment")
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
    with pytest.raises(InputError, match="align takes as many targets as sources, got"):
        loaded.align(pairs, pairs[:1])
    with pytest.raises(InputError, match=r"align .* takes a list of texts"):
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


# Music.

RECIPE = """
[model]
name     = "gpt2"
width    = 16
depth    = 1
heads    = 2
dropout  = 0.0
position = "rotary"

[text]
folder    = "{folder}"
train     = "chorales.json"
valid     = "chorales.json"
transpose = 2
tokenizer = "word"
task   = {{ kind = "language_model", length = 64 }}

[train]
steps        = 60
batch_tokens = 256
learning_rate = 2e-2
optimizer    = "muon"
label_smoothing = 0.0
schedule     = {{ kind = "cosine", warmup = 5 }}
"""


def scale(first: int) -> list[Chord]:
    """Four voices that climb together, a step every two sixteenths."""
    return [(first + step, first - 5 + step, first - 12 + step, first - 24 + step) for step in range(8) for _ in "ab"]


@pytest.fixture(scope="module")
def composer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("music")
    pieces = [scale(first) for first in range(62, 70)]
    (folder / "chorales.json").write_text(json.dumps({"train": pieces, "valid": pieces[:2]}))
    (folder / "music.toml").write_text(RECIPE.format(folder=folder))
    code, out, err = regard("train", folder / "music.toml", "--out", folder / "run")
    assert (code, err) == (0, "")
    assert "is ready" in out
    return folder / "run"


def test_a_piece_is_written_as_midi_and_as_text_and_both_say_the_same(composer: Path, tmp_path: Path):
    wanted = ("generate", composer, "| 165 260 353 441", "--max-tokens", "60", "--temperature", "0")
    code, text, _ = regard(*wanted)
    assert code == 0
    for name in ("piece.mid", "piece.txt"):
        code, said, err = regard(*wanted, "--out", tmp_path / name)
        assert (code, said, err) == (0, f"Wrote {tmp_path / name}.\n", "")
    assert (tmp_path / "piece.txt").read_text() == text
    tracks = mido.MidiFile(tmp_path / "piece.mid").tracks
    played = [[message.note for message in track if message.type == "note_on"] for track in tracks]
    assert played == [[note.pitch for note in voice] for voice in voices_of(text)]
    assert played[0][0] == 65


def test_a_model_that_says_no_music_writes_no_midi(composer: Path, tmp_path: Path):
    for prompt in ("def main(", "|"):
        code, _, err = regard("generate", composer, prompt, "--max-tokens", "0", "--out", tmp_path / "piece.mid")
        assert code == 2
        assert err.startswith("regard: error: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "piece.mid").exists()
