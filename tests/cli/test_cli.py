"""The command line in real processes: what it prints, where, and with which exit code."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regard.models import zoo
from regard.models.readouts import Label
from regard.store.folder import read_description
from tests.small import save_model, small
from tests.training.runs import ENVIRONMENT, regard, terminate_at, write_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    code, out, err = regard("train", write_recipe(folder), "--out", folder / "run")
    assert (code, err) == (0, "")
    assert "is ready" in out
    return folder / "run"


def fed(text: bytes, *arguments: object) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "regard", *map(str, arguments)], input=text, capture_output=True, env=ENVIRONMENT
    )
    return done.returncode, done.stdout, done.stderr


def without_torch(*arguments: str) -> str:
    """Run the command line in a process that cannot import torch."""
    program = "import sys; sys.modules['torch'] = None; from regard.cli import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


VERBS = (
    "train init plan translate generate fill embed classify score show serve evaluate compare check lab convert bench"
)


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS.split())])
def test_help_needs_no_torch_and_gives_an_example(verb: list[str]):
    said = without_torch(*verb, "--help")
    assert "Usage: regard" in said
    assert not verb or "Example: regard" in said
    assert all(line.startswith("  Example: ") for line in said.splitlines() if "Example: " in line)


def test_the_recipes_are_listed_without_torch():
    assert {line.split()[0] for line in without_torch("train").splitlines()} >= {"dates", "python", "transformer-base"}


def test_the_version_is_said():
    assert without_torch("--version").startswith("regard 0.")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["trane"], 2, "train"),
        (["translate"], 2, "regard translate --help"),
        (["translate", "--nonsense", "x"], 2, "--nonsense"),
        (["translate", "nowhere"], 2, "no such model folder: nowhere"),
        (["translate", "nowhere", "--beam", "many"], 2, "--beam"),
        (["classify", "nowhere", "A fine film."], 2, 'echo "TEXT" | regard classify MODEL, or < FILE'),
        (["train", "dats"], 2, 'Did you mean "dates"?'),
        (["train", "nowhere.toml"], 2, "nowhere.toml"),
        (["train", "dates", "--set", "train.stepz=3"], 2, 'Did you mean "steps"?'),
        (["train", "dates", "--set", "model.width=100", "--set", "model.heads=12"], 2, "not divisible by 12 heads"),
        (["train", "dates", "--set", "model.name=transfomer"], 2, 'Did you mean "transformer"?'),
        (["train", "dates", "--set", "text.tokenizer.kind=bpx"], 2, 'Did you mean "bpe"?'),
        (["train", "dates", "--set", "train.steps=many"], 2, "a whole number"),
        (["train", "dates", "--set", "nonsense"], 2, "train.steps=2000"),
        (["train", "dates", "--set", "trian.steps=3"], 2, 'Did you mean "train"?'),
        (["train", "dates", "--set", "text.corpus=date"], 2, 'Did you mean "dates"?'),
        (["train", "dates", "--device", "toaster", "--set", "train.steps=1"], 2, "toaster"),
        (["init", "nowhere.txt"], 2, "no such file: nowhere.txt"),
        (["evaluate", "nowhere"], 2, "nowhere"),
        (["evaluate", "nowhere", "--source", "reviews.csv"], 2, "a table with labels as --text FILE"),
        (["generate", "nowhere", "x", "--top-p", "7"], 2, "top_p"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(arguments: list[str], code: int, said: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "regard", *arguments], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.startswith("regard: error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_debug_shows_the_traceback():
    code, _, err = regard("translate", "nowhere", "--debug")
    assert code == 2
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "abc\n".encode("utf-16"),
            "looks like UTF-16 (BOM FF FE). Convert: iconv -f UTF-16 -t UTF-8 < FILE > utf8.txt.",
        ),
        (
            gzip.compress(b"abc\n", mtime=0),
            "is gzip (1F 8B). Rename it to end in .gz, or decompress it: gzip -dc < FILE > plain",
        ),
    ],
    ids=["UTF-16", "gzip"],
)
def test_input_that_is_no_text_is_called_what_it_is(model: Path, given: bytes, said: str):
    code, out, err = fed(given, "translate", model)
    assert (code, out, err.count(b"\n")) == (2, b"", 1)
    assert f"standard input {said}" in err.decode()


def test_a_translation_is_a_line_for_a_line(model: Path):
    code, out, err = fed("abc\n\nde\u2028f\u0085\r\nghi".encode(), "translate", model)
    assert (code, err) == (0, b"")
    lines = out.split(b"\n")
    assert len(lines) == 5
    assert lines[1] == b""
    assert lines[-1] == b""


def test_bytes_that_are_not_utf8_are_named_by_line_and_byte(model: Path):
    code, _, err = fed(b"abc\nab\xe9c\n", "translate", model)
    assert code == 2
    assert b"standard input line 2, byte 3: 0xE9" in err


def test_the_n_best_come_in_moses_form_best_first(model: Path):
    code, out, _ = fed(b"abc\nde\n", "translate", model, "--beam", "4", "--n-best", "3")
    rows = [line.split(" ||| ") for line in out.decode().splitlines()]
    assert code == 0
    assert [row[0] for row in rows] == ["0", "0", "0", "1", "1", "1"]
    scores = [float(row[2]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)


def test_json_lines_pass_through_what_they_hold(model: Path):
    given = b'{"text": "abc", "id": 7}\nplain\n'
    code, out, _ = fed(given, "translate", model, "--json", "--n-best", "2")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert rows[0]["id"] == 7
    assert rows[1]["text"] == "plain"
    assert rows[0]["translation"] == rows[0]["n_best"][0]["translation"]
    assert fed(b"{oops\n", "translate", model, "--json")[0] == 2


def test_what_goes_out_is_utf8_whatever_the_locale(model: Path):
    given = b'{"text": "abc", "id": "\\ud800", "name": "\xc3\xa9"}\n'
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", str(model), "--json"], input=given, capture_output=True,
        env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["name"] == "é"


def test_a_reader_that_goes_away_is_no_error(model: Path):
    command = f"yes abc | head -5000 | {sys.executable} -m regard translate {model} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stderr == ""


def unread() -> None:
    """Nobody reads our output."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, sys.stdout.fileno())


def unread_and_ended() -> None:
    unread()
    terminate_at(3)


def test_a_run_that_nobody_listens_to_goes_on_to_its_end(tmp_path: Path):
    words = ["train", write_recipe(tmp_path), "--set", "train.steps=5", "--out", tmp_path / "run"]
    code, _, err = regard(*words, driver=unread_and_ended)
    assert (code, err.count("\n")) == (143, 1)
    assert "stopped by SIGTERM at step 4" in err
    assert regard(*words, driver=unread) == (141, "", "")
    assert (tmp_path / "run" / "checkpoints" / "step-5").is_dir()


@pytest.mark.parametrize(("policy", "spins"), [(None, "1000"), ("passive", "0"), ("active", "30000000000")])
def test_threads_that_wait_spin_shortly_unless_told_otherwise(model: Path, policy: str | None, spins: str):
    environment = {key: value for key, value in ENVIRONMENT.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | ({"OMP_WAIT_POLICY": policy} if policy else {})
    command = [sys.executable, "-m", "regard", "translate", str(model)]
    done = subprocess.run(command, input="abc", capture_output=True, text=True, env=environment)
    said = [line.split("'")[1] for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not said:
        pytest.skip("torch does not use GNU's OpenMP here")
    assert set(said) == {spins}


def test_a_prefix_begins_every_answer(model: Path):
    code, out, _ = fed(b"abc\ndef\n", "translate", model, "--prefix", "9a")
    assert code == 0
    assert all(line.startswith("9a") for line in out.decode().splitlines())


def test_an_evaluation_gives_scores_with_signatures(model: Path, tmp_path: Path):
    text = model.parent
    files = ["--source", text / "valid.a", "--reference", text / "valid.b"]
    code, out, _ = regard("evaluate", model, *files, "--plot", tmp_path / "p.png", "--report", tmp_path / "r.html")
    assert code == 0
    assert "BLEU" in out
    assert "version:" in out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "r.html").read_text()
    code, out, _ = regard("evaluate", model, *files, "--json")
    assert json.loads(out)["quality"]["lines"] == 12
    code, _, err = regard("evaluate", model, *files, "--plot", tmp_path / "nowhere" / "p.png")
    assert code == 2
    assert err.count("\n") == 1
    code, _, err = regard("evaluate", model)
    assert code == 2
    assert "names no test text" in err


def test_a_damaged_model_is_exit_code_three(model: Path, tmp_path: Path):
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    code, _, err = regard("translate", tmp_path)
    assert code == 3
    assert err.count("\n") == 1
    assert "damaged" in err


@pytest.mark.parametrize("head", ["sentence\tlabel\n", ""])
def test_a_recipe_for_labelled_lines_trains_a_classifier(tmp_path: Path, head: str):
    lines = [f"film number {number} is {'fine' if number % 2 else 'dull'}\t{number % 2}\n" for number in range(200)]
    (tmp_path / "films.tsv").write_text(head + "".join(lines))
    code, recipe, _ = regard("init", tmp_path / "films.tsv")
    assert code == 0
    assert ("fields" in recipe) == bool(head)
    (tmp_path / "r.toml").write_text(recipe)
    assert regard("train", tmp_path / "r.toml", "--out", tmp_path / "run", "--set", "train.steps=2")[0] == 0
    assert read_description(tmp_path / "run")[0].readout.outputs == "labels"


def test_a_recipe_for_own_files_trains(tmp_path: Path):
    write_recipe(tmp_path, lines=300)
    code, recipe, _ = regard("init", tmp_path / "train.a", tmp_path / "train.b")
    assert code == 0
    (tmp_path / "recipe.toml").write_text(recipe)
    settings = ["--set", "train.steps=3", "--set", "model.width=16", "--set", "model.depth=1"]
    code, _, err = regard("train", tmp_path / "recipe.toml", "--out", tmp_path / "run", *settings)
    assert (code, err) == (0, "")
    code, recipe, _ = regard("init", tmp_path / "train.a")
    (tmp_path / "plain.toml").write_text(recipe)
    assert regard("train", tmp_path / "plain.toml", "--out", tmp_path / "plain", *settings)[0] == 0
    code, out, _ = regard("generate", tmp_path / "plain", "ab", "--max-tokens", "5")
    assert code == 0
    assert out.startswith("ab")
    drawn = ["--max-tokens", "5", "--seed", "3"]
    said = regard("generate", tmp_path / "plain", "ab\nba", *drawn)
    assert fed(b"ab\nba\n", "generate", tmp_path / "plain", "-", *drawn)[1].decode() == said[1]
    (tmp_path / "prompt.txt").write_text("ab\nba\n")
    with (tmp_path / "prompt.txt").open() as file:  # a file needs no "-"
        found = subprocess.run(
            [sys.executable, "-m", "regard", "generate", tmp_path / "plain", *drawn], stdin=file, capture_output=True,
            text=True, env=ENVIRONMENT,
        )  # fmt: skip
    assert found.stdout == said[1]


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path):
    (tmp_path / "file").write_text("")
    code, _, err = regard("train", write_recipe(tmp_path), "--out", tmp_path / "file" / "run")
    assert code == 2
    assert "not writable" in err


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    code, _, err = regard("train", recipe, "--out", tmp_path / "run", "--set", "train.learning_rate=1e38")
    assert code == 1
    assert err.count("\n") == 1
    assert "train.a:" in err
    assert "train.learning_rate" in err


def test_a_run_learns_from_standard_input_and_several_corpora(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    lines = "".join(f"{word}\t{word[::-1]}\n" for word in ("abc", "bcd", "cde", "def") * 9)
    settings = ["train.steps=2", "train.average=1", "text.task.max_length=9"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    code, _, err = fed(lines.encode(), "train", recipe, "--out", tmp_path / "one", "--set", "text.train=-", *arguments)
    assert (code, err) == (0, b"")
    assert "standard input" in (tmp_path / "one" / "data.txt").read_text()
    (tmp_path / "more.tsv").write_text(lines)
    several = 'text.train=["train.{a,b}", {path = "more.tsv", weight = 2.5}]'
    where = ["--set", several, "--set", f"text.folder={tmp_path}", "--set", "text.valid=valid.{a,b}"]
    code, out, err = regard("train", recipe, "--out", tmp_path / "two", *where, *arguments)
    assert (code, err) == (0, "")
    said = (tmp_path / "two" / "data.txt").read_text()
    assert "more.tsv" in said
    assert "x 2.5" in said
    left = (tmp_path / "two" / "left-out.tsv").read_text().splitlines()
    assert f"{len(left):,} of 156 left out" in out
    assert "\tlonger than 9 tokens" in left[0]


def test_a_sketch_for_pairs_in_one_file_trains(tmp_path: Path):
    lines = "".join(f"{word}\t{word[::-1]}\n" for word in ("abc", "bcd", "cde", "def") * 9)
    (tmp_path / "pairs.tsv").write_text(lines)
    code, recipe, err = regard("init", tmp_path / "pairs.tsv")
    assert code == 0
    assert "held out: by content" in err
    assert "on this machine" in err
    assert "valid     = 0." in recipe
    (tmp_path / "recipe.toml").write_text(recipe)
    settings = ["--set", "train.steps=1", "--set", "model.width=16", "--set", "model.depth=1"]
    assert regard("train", tmp_path / "recipe.toml", *settings, "--out", tmp_path / "run")[0] == 0
    weightless = ["--set", f'text.train=[{{path = "{tmp_path}/pairs.tsv", weight = 0}}]']
    code, _, err = regard("train", tmp_path / "recipe.toml", *settings, *weightless, "--out", tmp_path / "none")
    assert (code, "weight above 0" in err) == (2, True)
    code, recipe, err = regard("init", tmp_path / "pairs.tsv", "--model", tmp_path / "nowhere")
    assert (code, recipe, err.count("\n")) == (2, "", 1)  # an error that comes late stands alone
    assert "no such model folder" in err
    (tmp_path / "empty.txt").write_text("")
    assert regard("init", tmp_path / "empty.txt")[0] == 2
    assert regard("train", tmp_path / "recipe.toml", "--set", 'text.train=""', "--out", tmp_path / "none")[0] == 2


def on_a_terminal(*arguments: object, text: bytes = b"") -> bytes:
    """What a command prints on a terminal."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "regard", *map(str, arguments)]
    done = subprocess.run(command, input=text, stdout=theirs, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    assert done.returncode in (0, 2, 3)
    printed = b""
    try:
        while chunk := os.read(ours, 65536):
            printed += chunk
    except OSError:  # the end of what was printed
        pass
    os.close(ours)
    return printed


def test_what_stands_in_a_file_cannot_command_a_terminal(tmp_path: Path):
    label = "\x1b[2J\x9bm\x07good"
    description = replace(zoo.bert(16, 1, heads=2), readout=Label((label, label + "er")))
    folder = save_model(tmp_path / "labels", small(description))
    printed = on_a_terminal("classify", folder, text=b"the cat\n")
    assert b"\\x1b[2J\\x9bm\\x07good" in printed
    assert not {0x1B, 0x07, 0x9B} & set(printed)
    (folder / "manifest.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "\x1b]0;owned\x07"}))
    assert b"\x1b" not in on_a_terminal("classify", folder)
    assert label in fed(b"the cat\n", "classify", save_model(tmp_path / "b", small(description)))[1].decode()
