"""`regard show` in real processes: one file, or a page on a local port until it is told to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from regard.models import zoo
from tests.laws.zoo import MODELS
from tests.small import save_model, small
from tests.training.runs import ENVIRONMENT, CommandProcess, regard, write_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with several checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    assert regard("train", write_recipe(folder), "--out", folder / "run", "--set", "train.steps=21")[0] == 0
    return folder / "run"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of other kinds, not learnt."""
    folder = tmp_path_factory.mktemp("others")
    names = {"bahdanau": "bahdanau", "gpt2": "gpt2", "bert": "bert", "seq2seq": "seq2seq"}
    return {
        name: save_model(folder / name, small(MODELS[kind], generation_config={"max_length": 7}))
        for name, kind in names.items()
    }


def payload(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.search(r'id="regard">(.*?)</script>', path.read_text(), re.DOTALL).group(1))
    return found


def shown(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    code, out, err = regard("show", *arguments, "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert out.startswith(f"{tmp_path / 'page.html'} shows ")
    return payload(tmp_path / "page.html")


def test_a_file_shows_every_layer(run: Path, tmp_path: Path):
    code, out, _ = regard("show", run, "abc", "--out", tmp_path / "page.html")
    assert (code, out) == (0, f"{tmp_path / 'page.html'} shows 3 attention layers.\n")
    page = payload(tmp_path / "page.html")
    assert page["live"] is None
    [trace] = page["traces"]
    assert trace["label"] == run.name
    assert [layer["name"] for layer in trace["layers"]] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]
    assert trace["sides"]["source"]["tokens"][:3] == ["a", "b", "c"]


def test_the_target_may_be_given_and_layers_chosen(run: Path, tmp_path: Path):
    [trace] = shown(tmp_path, run, "abc", "--target", "cba", "--layers", "decoder.*.cross")["traces"]
    assert [layer["name"] for layer in trace["layers"]] == ["decoder.0.cross"]
    assert trace["sides"]["target"]["tokens"][:3] == ["c", "b", "a"]
    [trace] = shown(tmp_path, run, "abc", "--layers", "decoder.*.cross", "--layers", "encoder.0.self")["traces"]
    assert {layer["name"] for layer in trace["layers"]} == {"decoder.0.cross", "encoder.0.self"}


def test_a_beam_brings_its_tree(run: Path, tmp_path: Path):
    assert shown(tmp_path, run, "abc", "--beam", "3")["traces"][0]["beams"]
    assert shown(tmp_path, run, "abc", "--beam", "1")["traces"][0]["beams"] is None


def test_another_model_stands_beside(run: Path, others: dict[str, Path], tmp_path: Path):
    page = shown(
        tmp_path, run, "the cat", "--target", "a", "--against", others["bahdanau"], "--against", others["seq2seq"]
    )
    assert page["slider"] is False
    assert [trace["label"] for trace in page["traces"]] == ["run", "bahdanau", "seq2seq"]
    assert [bool(trace["layers"]) for trace in page["traces"]] == [True, True, False]


def test_checkpoints_are_shown_in_the_course_of_time(run: Path, tmp_path: Path):
    page = shown(tmp_path, run, "abc", "--checkpoints")
    assert page["slider"] is True
    labels = [trace["label"] for trace in page["traces"]]
    assert labels == ["step 7", "step 14", "step 21"]
    assert len({json.dumps(trace["sides"]) for trace in page["traces"]}) == 1, "they say the same, to be compared"
    weights = [trace["layers"][0]["weights"]["blob"] for trace in page["traces"]]
    assert len(set(weights)) == 3


def test_checkpoints_of_a_language_model_continue_the_text_once():
    from regard.cli.show import _generated

    model = small(zoo.gpt2(16, 1, 2))
    continuation = _generated(model, "the cat", None, 5)
    assert "the cat" + continuation == model.generate("the cat", max_tokens=5, temperature=0.0)


def test_a_language_model_goes_on(others: dict[str, Path], tmp_path: Path):
    short, long = (shown(tmp_path, others["gpt2"], "the cat", "--length", n)["traces"][0] for n in (0, 5))
    assert len(long["sides"]["decoder_input"]["tokens"]) == len(short["sides"]["decoder_input"]["tokens"]) + 5
    assert list(long["sides"]) == ["decoder_input"]


def test_a_model_without_attention_says_so(others: dict[str, Path], tmp_path: Path):
    code, out, _ = regard("show", others["seq2seq"], "the cat", "--out", tmp_path / "page.html")
    assert (code, out) == (0, f"{tmp_path / 'page.html'} shows only text: this model has no attention.\n")
    assert payload(tmp_path / "page.html")["traces"][0]["generation"]


def test_the_text_may_come_from_standard_input(others: dict[str, Path], tmp_path: Path):
    command = [sys.executable, "-m", "regard", "show", others["bert"], "-", "--out", tmp_path / "page.html"]
    done = subprocess.run([*map(str, command)], input=b"the cat\nsat", capture_output=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert payload(tmp_path / "page.html")["traces"][0]["sides"]["source"]["word_texts"][1:-1] == ["the", "cat", "sat"]
    done = subprocess.run([*map(str, command)], input=b"\xff\xfe\x00", capture_output=True, env=ENVIRONMENT)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["RUN"], "regard show --help"),
        (["RUN", "abc", "--layers", "decoder.9.*"], "Known: encoder.0.self"),
        (["RUN", "abc", "--layers", ""], "Known: encoder.0.self"),
        (["RUN", ""], "empty"),
        (["BERT", " "], "empty"),
        (["RUN", "abc", "--length", "3"], "language model"),
        (["RUN", "abc", "--length", "-3"], "--length"),
        (["RUN", "abc", "--beam", "0"], "beam"),
        (["RUN", "abc", "--against", "RUN"], "itself"),
        (["RUN", "abc", "--against", "nowhere"], "nowhere"),
        (["RUN", "abc", "--checkpoints", "--against", "BERT"], "--against"),
        (["BERT", "abc", "--checkpoints"], "no checkpoints"),
        (["BERT", "abc", "--target", "x"], "target"),
        (["nowhere", "abc"], "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    run: Path, others: dict[str, Path], tmp_path: Path, arguments: list[str], said: str
):
    words = [{"RUN": str(run), "BERT": str(others["bert"])}.get(word, word) for word in arguments]
    code, out, err = regard("show", *words, "--out", tmp_path / "page.html")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err
    assert not (tmp_path / "page.html").exists()


def test_a_file_that_cannot_be_written_is_said_in_a_line(run: Path, tmp_path: Path):
    code, out, err = regard("show", run, "abc", "--out", tmp_path / "nowhere" / "page.html")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert str(tmp_path / "nowhere") in err


def test_a_folder_is_no_page(run: Path, tmp_path: Path):
    code, out, err = regard("show", run, "abc", "--out", tmp_path)
    assert (code, out) == (2, "")
    assert err == f"regard: error: {tmp_path} is a folder (--out). Name a file in it.\n"


@pytest.mark.parametrize("text", ["", " ", "\u202e<script>", "x" * 3000, "ein\nzwei"])
def test_any_text_is_shown_or_refused_in_a_line(run: Path, tmp_path: Path, text: str):
    code, out, err = regard("show", run, text, "--target", "ab", "--out", tmp_path / "page.html")
    assert (code, out.count("\n"), err.count("\n")) in ((0, 1, 0), (2, 0, 1)), err


def test_a_page_tells_nothing_of_the_folders_of_its_maker(others: dict[str, Path], tmp_path: Path):
    found = shown(tmp_path, others["bert"].resolve(), "the cat", "--against", others["gpt2"].resolve())
    assert [trace["label"] for trace in found["traces"]] == ["bert", "gpt2"]
    assert str(others["bert"].parent) not in (tmp_path / "page.html").read_text()


def test_ctrl_c_writes_what_is_ready(others: dict[str, Path], tmp_path: Path):
    page = tmp_path / "page.html"
    # A signal right after the positional encodings: what follows is left out.
    stopped = (
        "import os, signal, sys; from regard.show import payload; from regard.cli import main;"
        "tables = payload.position_tables;"
        "payload.position_tables = lambda *some: (os.kill(os.getpid(), signal.SIGINT), tables(*some))[1];"
        "sys.argv = ['regard', 'show', *sys.argv[1:]]; main()"
    )
    command = [sys.executable, "-c", stopped, others["gpt2"], "the cat", "--out", page]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 130
    assert done.stderr == f"regard: stopped; {page} shows what was ready.\n"
    left_out = [f"{name} (stopped before it was ready)" for name in ("Nearest neighbours", "Explanation", "Ablation")]
    assert f"Left out: {'; '.join(left_out)}" in done.stdout
    [trace] = payload(page)["traces"]
    assert [bool(trace[name]) for name in ("positions", "generation", "ablation")] == [True, True, False]


def line_of(life: CommandProcess) -> str:
    """The first line that a process says."""
    said = b""
    while not said.endswith(b"\n"):
        more = os.read(life.readers[0].fileno(), 1 << 16)
        assert more, "it ended without a word"
        said += more
    return said.decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_page_is_served_until_it_is_told_to_stop(run: Path, number: signal.Signals, code: int):
    life = CommandProcess(["show", str(run), "abc", "--no-browser"])
    try:
        said = line_of(life)
        address = re.fullmatch(
            r"The page is at (http://127\.0\.0\.1:\d+/attention/[\w-]{20,}/) \(Ctrl-C ends it\)\.\n", said
        ).group(1)
        with urlopen(address, timeout=60) as answer:
            assert '"live":"."' in answer.read().decode()
        front = address.partition("/attention")[0]
        with urlopen(f"{front}/page/models", timeout=60) as answer:
            assert [model["name"] for model in json.load(answer)] == [run.name]
        life.send_signal(number)
        assert life.wait(60)
    finally:
        life.kill()
    assert life.returncode == code
    assert os.read(life.readers[1].fileno(), 1 << 16) == b""
    with pytest.raises(URLError):
        urlopen(address, timeout=5)


def test_it_stops_while_an_answer_is_worked_out(run: Path):
    command = [sys.executable, "-m", "regard", "show", run, "abc", "--no-browser"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as life:
        try:
            port, place = re.search(r":(\d+)(/\S+)", life.stdout.readline()).groups()
            asking = HTTPConnection("127.0.0.1", int(port))
            asking.request("POST", f"{place}trace", json.dumps({"text": "abc " * 20_000, "target": "a"}))
            asking.sock.settimeout(1.0)
            with pytest.raises(TimeoutError):
                asking.sock.recv(1)  # it is being worked out
            life.send_signal(signal.SIGINT)
            assert (life.wait(60), life.stderr.read()) == (130, "")
        finally:
            life.kill()


def test_a_port_that_is_taken_is_refused_in_a_line(run: Path):
    life = CommandProcess(["show", str(run), "abc", "--no-browser"])
    try:
        port = re.search(r":(\d+)/", line_of(life)).group(1)
        code, out, err = regard("show", run, "abc", "--no-browser", "--port", port)
    finally:
        life.kill()
    assert (code, out) == (2, "")
    assert f"port {port} of 127.0.0.1 cannot be used" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("port", ["-1", "70000"])
def test_a_port_that_cannot_be_is_refused_in_a_line(run: Path, port: str):
    code, out, err = regard("show", run, "abc", "--no-browser", "--port", port)
    assert (code, out) == (2, "")
    assert "--port" in err
    assert err.count("\n") == 1


def test_other_models_and_checkpoints_are_served_too(run: Path, others: dict[str, Path]):
    for options, names, labels in (
        (["--against", str(others["bahdanau"]), "--target", "a"], [run.name, "bahdanau"], [run.name, "bahdanau"]),
        (["--checkpoints"], [run.name], ["step 7", "step 14", "step 21"]),
    ):
        life = CommandProcess(["show", str(run), "abc", "--no-browser", *options])
        try:
            address = re.search(r"http://\S+", line_of(life)).group()
            with urlopen(address, timeout=60) as answer:
                page = json.loads(re.search(r'id="regard">(.*?)</script>', answer.read().decode(), re.DOTALL).group(1))
            with urlopen(f"{address.partition('/attention')[0]}/page/models", timeout=60) as answer:
                assert [model["name"] for model in json.load(answer)] == names
        finally:
            life.kill()
        assert [trace["label"] for trace in page["traces"]] == labels


def without_server() -> None:
    """Pretend that the packages of the extra are not installed."""
    sys.modules["fastapi"] = None


def test_without_the_extra_the_page_is_a_file(run: Path):
    code, out, err = regard("show", run, "abc", "--no-browser", driver=without_server)
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    path = Path(first.partition(" shows ")[0])
    assert "pip install 'regard[serve]'" in second
    assert payload(path)["live"] is None
