"""`regard init`: what it understands of a user's files, and that its recipes make sense."""

from __future__ import annotations

import csv
import io
import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.config.init import Pace, recipe_for, recipe_for_model
from regard.config.recipe import Recipe, parse_recipe
from regard.config.setup import read_setup
from regard.errors import InputError
from regard.models import zoo

DRAW = random.Random(1)
WORDS = [f"{one}{vowel}{other}" for one in "bdfg" for vowel in "aeiou" for other in ("na", "ne", "ri")]
SENTENCES = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(3, 9))) for _ in range(300)]


def table(rows: list[tuple[object, ...]], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tables_of(*files: Path, **options: Any) -> dict[str, Any]:
    found = tomllib.loads(recipe_for(files, **options))
    recipe = parse_recipe(found, name="r", where="test")
    if "init" not in found["model"]:
        assert isinstance(recipe, Recipe)
    for split in ("train", "valid"):
        assert recipe.text.read(split) is not None  # type: ignore[arg-type]
    return found


PAIRS = [(source, source[::-1]) for source in SENTENCES]
LABELS = [(source, "long" if len(source) > 30 else "short") for source in SENTENCES]


def lines(*names: str, rows: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"id": n, names[0]: row[0], names[1]: row[1]}) + "\n" for n, row in enumerate(rows))


@pytest.mark.parametrize(
    ("name", "content", "model", "fields", "task"),
    [
        ("t.csv", table([("de", "en"), *PAIRS]), "transformer", ["de", "en"], None),
        ("t.csv", table(PAIRS), "transformer", None, None),
        ("t.csv", table([("id", "English", "German"), *((n, *p) for n, p in enumerate(PAIRS))], ";"), "transformer",
         ["English", "German"], None),
        ("t.tsv", table([("id", "src", "tgt"), *((n, *p) for n, p in enumerate(PAIRS))], "\t"), "transformer",
         ["src", "tgt"], None),
        ("t.csv", table([("id", "review", "stars"), *((n, t, n % 5) for n, t in enumerate(SENTENCES))]), "bert",
         ["review", "stars"], "classification"),
        ("t.csv", table([("nr", "was", "wie"), *((n, *p) for n, p in enumerate(LABELS))]), "bert", ["was", "wie"],
         "classification"),
        ("t.tsv", table(LABELS, "\t"), "bert", None, "classification"),
        ("t.csv", table([("premise", "hypothesis", "label"), *((*p, n % 3) for n, p in enumerate(PAIRS))]), "bert",
         ["premise", "hypothesis", "label"], "classification"),
        ("t.csv", table([("text", "score"), *((t, n / 7) for n, t in enumerate(SENTENCES))]), "bert",
         ["text", "score"], "regression"),
        ("t.csv", table([("text",), *((t,) for t in SENTENCES)]), "gpt2", ["text"], None),
        ("t.jsonl", lines("de", "en", rows=PAIRS), "transformer", ["de", "en"], None),
        ("t.jsonl", lines("text", "label", rows=LABELS), "bert", ["text", "label"], "classification"),
        ("t.jsonl", "".join(json.dumps({"translation": {"de": a, "en": b}}) + "\n" for a, b in PAIRS), "transformer",
         None, None),
        ("t.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in SENTENCES), "gpt2", ["text"], None),
        ("t.txt", "\n".join(SENTENCES), "gpt2", None, None),
    ],
)  # fmt: skip
def test_what_people_have_is_understood(
    tmp_path: Path, name: str, content: str, model: str, fields: list[str] | None, task: str | None
) -> None:
    found = tables_of(write(tmp_path / name, content))
    assert found["model"]["name"] == model
    assert found["text"].get("fields") == fields
    assert found["text"].get("task") == task
    assert 0 < found["text"]["valid"] <= 0.5
    assert found["train"]["patience"] == 8
    assert found["train"]["schedule"]["warmup"] == found["train"]["steps"] // 10


def test_columns_are_shown_and_chosen(tmp_path: Path) -> None:
    rows = [(f"a {text}", f"b {text}", f"c {text}") for text in SENTENCES]
    path = write(tmp_path / "t.csv", table([("eins", "zwei", "drei"), *rows]))
    with pytest.raises(InputError, match=r'3 columns: eins \("a .*"\), zwei .*, drei .*--fields eins,zwei'):
        recipe_for([path])
    assert tables_of(path, fields=["zwei", "drei"])["text"]["fields"] == ["zwei", "drei"]
    assert tables_of(path, fields=["2", "3"])["text"]["fields"] == ["2", "3"]
    with pytest.raises(InputError, match=r"no column vier \(--fields\)\. It has eins"):
        recipe_for([path], fields=["vier"])
    with pytest.raises(InputError, match=r"plain text, which has no columns \(--fields\)"):
        recipe_for([write(tmp_path / "t.txt", "text\n" * 99)], fields=["a"])


def test_splits_are_found_by_name_and_beside_the_training_text(tmp_path: Path) -> None:
    for name in ("train.de", "train.en", "val.de", "val.en", "test.de", "test.en", "README"):
        write(tmp_path / name, "".join(f"{text} {name}\n" for text in SENTENCES))
    expected = {split: f"{tmp_path}/{name}.{{de,en}}" for split, name in
                (("train", "train"), ("valid", "val"), ("test", "test"))}  # fmt: skip
    train = [tmp_path / "train.de", tmp_path / "train.en"]
    for files in ([tmp_path], train, [tmp_path / f"{name}.{side}" for name in ("test", "val", "train") for side in
                                      ("de", "en")]):  # fmt: skip
        assert {split: tables_of(*files)["text"][split] for split in expected} == expected
    for name in ("reviews-train.csv", "reviews-dev.csv"):
        write(tmp_path / "r" / name, table([("text", "label"), *LABELS]))
    found = tables_of(tmp_path / "r")["text"]
    assert (found["train"], found["valid"]) == (f"{tmp_path}/r/reviews-train.csv", f"{tmp_path}/r/reviews-dev.csv")
    for side in ("train.fr", "val.fr"):
        write(tmp_path / side, "".join(f"{text}\n" for text in SENTENCES))
    with pytest.raises(InputError, match=r"train\.de, .*train\.fr: a pair is two files in two languages"):
        recipe_for([tmp_path])


def test_folders_and_lists_of_texts_are_documents(tmp_path: Path) -> None:
    files = [write(tmp_path / "books" / f"{name}.txt", "\n".join(SENTENCES[:count])) for name, count in
             (("a", 100), ("b", 200), ("c", 150))]  # fmt: skip
    assert tables_of(tmp_path / "books")["text"]["train"] == str(tmp_path / "books")
    assert tables_of(*files)["text"]["train"] == list(map(str, files))
    assert tables_of(*files[:2])["text"]["train"] == list(map(str, files[:2]))
    pairs = [write(tmp_path / f"{name}.{side}", "\n".join(SENTENCES)) for name in "xy" for side in ("de", "en")]
    assert tables_of(*pairs)["text"]["train"] == [f"{tmp_path}/x.{{de,en}}", f"{tmp_path}/y.{{de,en}}"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", "PK\x03\x04", r"t\.xlsx is a spreadsheet, not text\. Save it as CSV"),
        ("t.docx", "PK\x03\x04", r"t\.docx is a word processor's document, not text\. Save it as plain text"),
        ("deu.txt", "eins\tone\nzwei\ttwo\n", r"deu\.txt holds 2 columns between tabs"),
        ("t.txt", "eins\tone\nzwei\ttwo\n", r"t\.txt holds 2 columns between tabs, .* Rename it: mv .*t\.tsv"),
        ("t.json", '[{"de": "a", "en": "b"}]', r"one JSON list of objects, .* Write one object per line: python -c"),
        ("t{a,b}.txt", "x", r"a name with braces means a pair"),
        ("t.csv", "", r"t\.csv has 0 lines"),
    ],
)
def test_what_it_cannot_read_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe_for([write(tmp_path / name, content)])


def test_steps_fit_the_minutes_and_the_epochs(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS * 40))
    told: list[str] = []

    def at(speed: float, **options: Any) -> dict[str, Any]:
        return tables_of(path, measure=lambda recipe: Pace(400, 1_000_000, speed, 7), note=told.append, **options)

    fast, usual, slow = at(1e9), at(5_000), at(10)
    assert fast["train"]["steps"] == 25 * 400  # never more epochs than help
    assert usual["train"]["steps"] == pytest.approx(5_000 * 40 * 60 / 2500, rel=0.05)
    assert slow["train"]["steps"] == 10 * 40 * 60 // 2500  # the limit is kept, and what would help is said
    assert "2,000 would take 5.8 days (--minutes 8334)" in told[-1]
    assert at(5_000, minutes=20)["train"]["steps"] == pytest.approx(usual["train"]["steps"] / 2, rel=0.05)
    assert "steps are 12 epochs, about 40 minutes on this machine" in " ".join(told)
    assert usual["train"]["valid_every"] == usual["train"]["save_every"] <= usual["train"]["steps"] / 10


def test_a_label_may_be_held_out_altogether_and_a_named_column_may_have_many(tmp_path: Path) -> None:
    rows = [(text, f"rare {n}" if n % 15 == 7 else "long" if len(text) > 30 else "short")
            for n, text in enumerate(SENTENCES)]  # fmt: skip
    tables = tables_of(write(tmp_path / "t.csv", table([("review", "stars"), *rows])))
    assert tables["text"]["task"] == "classification"
    recipe = parse_recipe(tables, name="r", where="test")
    train = recipe.text.read("train")
    assert train is not None
    trained = set(train.targets or ())
    assert trained < {label for _, label in rows}
    assert len(read_setup(recipe).model.readout.labels) == 22  # type: ignore[union-attr]


def test_many_files_on_the_command_line_lose_their_ends_and_this_is_said(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.txt", "\n".join(SENTENCES[: 50 + n])) for n in range(25)]
    said: list[str] = []
    assert "by content" not in recipe_for(files, note=said.append)
    assert "and 22 more: 25 texts" in said[0]
    assert "held out: 5% of each document" in said[1]


def test_a_slow_machine_gets_a_smaller_model_and_more_text_a_larger_one(tmp_path: Path) -> None:
    little = write(tmp_path / "a.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    much = write(tmp_path / "b.tsv", "".join(f"{n} {a}\t{b}\n" for n, (a, b) in enumerate(PAIRS * 100)))
    sizes = [tables_of(path)["model"]["width"] for path in (little, much)]
    assert sizes == [128, 160]
    slow = tables_of(much, measure=lambda recipe: Pace(400, 1_000_000, 100.0))
    assert slow["model"]["width"] == 128
    assert tables_of(little)["train"]["batch_tokens"] < tables_of(much)["train"]["batch_tokens"]


def test_a_given_model_is_fine_tuned_with_a_lower_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    fresh, tuned = tables_of(path), tables_of(path, model=tmp_path / "run")
    assert tuned["model"] == {"init": str(tmp_path / "run")}
    assert "tokenizer" not in tuned["text"]
    assert tuned["train"]["learning_rate"] <= fresh["train"]["learning_rate"] / 5


def test_a_narrow_model_learns_at_a_high_rate_and_a_model_of_ones_own_at_a_lower_one(tmp_path: Path) -> None:
    pairs = write(tmp_path / "a.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    more = write(tmp_path / "b.tsv", "".join(f"{n} {a}\t{b}\n" for n, (a, b) in enumerate(PAIRS * 100)))
    labels = write(tmp_path / "c.tsv", table(LABELS, "\t"))
    found = [tables_of(path) for path in (pairs, more, labels)]
    assert [one["train"]["learning_rate"] for one in found] == [3e-3, 2e-3, 1.5e-3]
    assert [one["model"].get("join") for one in found] == ["pre_norm", "pre_norm", None]
    assert {one["train"]["schedule"]["kind"] for one in found} == {"cosine"}
    assert recipe_for_model(zoo.transformer(512, 6, 8), [pairs]).train.learning_rate == 1e-3


def test_few_texts_that_differ_leave_something_to_train_and_to_validate(tmp_path: Path) -> None:
    found = tables_of(write(tmp_path / "t.tsv", "ab\tba\nbc\tcb\ncd\tdc\nde\ted\n" * 9))
    assert found["text"]["valid"] >= 0.1
    said: list[str] = []
    alone = tomllib.loads(recipe_for([write(tmp_path / "u.tsv", "ab\tba\n" * 9)], note=said.append))
    assert "valid" not in alone["text"]
    assert "patience" not in alone["train"]
    assert any("nothing is held out" in line for line in said)


def test_python_trains_on_the_same_files(tmp_path: Path) -> None:
    model = zoo.gpt2(16, 1, 2)
    path = write(tmp_path / "t.csv", table([("text",), *((text,) for text in SENTENCES)]))
    trained = regard.train(model, text=path, out=tmp_path / "run", steps=2)
    assert trained.description == model
    assert tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["text"]["fields"] == ["text"]
    assert "validation also in training" in (tmp_path / "run" / "data.txt").read_text()


def test_music_has_its_splits_in_one_file(tmp_path: Path) -> None:
    chorales = {split: [[[67, 62, 59, 43]] * 16] * 3 for split in ("train", "valid", "test")}
    path = write(tmp_path / "music.json", json.dumps(chorales))
    found = tables_of(path)["text"]
    assert [found[split] for split in chorales] == [str(path)] * 3
    assert found["tokenizer"] == {"kind": "word"}
