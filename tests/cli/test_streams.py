"""Files, devices, pipes, closed streams and signals: what a command reads and where it writes."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from regard.cli import run
from regard.cli.options import json_text, limit_threads
from regard.data.read.cache import Cache
from regard.data.read.formats import open_sides
from regard.data.read.texts import ReadOptions
from regard.errors import DiskTrouble, InputError, Note
from regard.layers.positions import Learned
from regard.models import zoo
from regard.store.checkpoint import saved_steps
from regard.store.files import disk_errors, write_output
from regard.store.loading import TRAINED_LENGTH
from regard.training.lock import folder_lock
from tests.small import save_model, small
from tests.training.runs import ENVIRONMENT, regard, write_recipe

Run = tuple[int, str, str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("streams")
    save_model(root / "gpt2", small(zoo.gpt2(16, 1, 2, position=Learned(32))))
    save_model(root / "translator", small(zoo.transformer(16, 1, 2), generation_config={"max_new_tokens": 3}))
    return root


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "regard", *map(str, arguments)]


def shell(line: str) -> Run:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    return done.returncode, done.stdout, done.stderr


# Where a command writes


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_output(pipe, b"content")
    reader.join(10)
    assert got == [b"content"]
    assert pipe.is_fifo()


def test_standard_output_is_written_to_and_the_file_behind_it_is_not_replaced(tmp_path: Path):
    code = """from pathlib import Path; from regard.store.files import write_output
print(1); write_output(Path('/dev/stdout'), b'2'); print(3)"""
    with open(tmp_path / "log", "w") as log:
        log.write("0 ")
        log.flush()
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
        log.write("4")
    assert (tmp_path / "log").read_text() == "0 1\n23\n4"


def test_the_line_ends_of_windows_are_no_text(
    models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    found = []
    for end in (b"\n", b"\r\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat" + end + b"the" + end)))
        assert run(["translate", str(models / "translator"), "--json", "--max-tokens", "2"]) == 0
        found.append(capfd.readouterr().out)
    assert found[0] == found[1]
    assert "the cat" in found[0]


@pytest.mark.parametrize("verb", ["score", "embed"])
def test_a_line_that_is_too_long_is_named_by_its_number_in_all_of_standard_input(verb: str, models: Path):
    lines = "(yes the | head -30; yes the | head -60 | tr '\\n' ' ')"
    code, _, err = shell(f"{lines} | {sys.executable} -m regard {verb} {models / 'gpt2'} > {os.devnull}")
    assert code == 2
    assert "line 31 has" in err


def test_a_device_is_written_to_and_stays_a_device():
    leader, follower = os.openpty()  # a character device of our own
    device = Path(os.ttyname(follower))
    write_output(device, b"content")
    assert os.read(leader, 100) == b"content"
    assert device.is_char_device()
    os.close(follower)
    os.close(leader)


def test_a_link_is_written_through_and_the_mode_is_kept(tmp_path: Path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real")
    write_output(link, b"new")
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (True, "new", 0o640)
    (tmp_path / "dangling").symlink_to("made")
    write_output(tmp_path / "dangling", b"new")
    assert (tmp_path / "made").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "link", "made", "real"]


@pytest.mark.parametrize("verb", ["generate", "show"])
def test_out_goes_through_links(verb: str, models: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real").write_text("old")
    assert run([verb, str(models / "gpt2"), "the cat", "--out", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() != "old"


@pytest.mark.parametrize("option", ["--plot", "--report"])
def test_a_folder_is_no_place_for_a_picture(
    option: str, models: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "lines").write_text("the cat\n")
    (tmp_path / "folder").mkdir()
    files = ["--source", str(tmp_path / "lines"), "--reference", str(tmp_path / "lines")]
    for verb in (["evaluate", str(models / "translator")], ["compare", *[str(models / "translator")] * 2]):
        assert run([*verb, *files, option, str(tmp_path / "folder")]) == 2
        assert f"is a folder ({option})" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "lines"]


def test_a_picture_and_a_report_go_through_links(models: Path, tmp_path: Path):
    (tmp_path / "lines").write_text("the cat\n")
    for name in ("picture", "report"):
        (tmp_path / f"{name}-link").symlink_to(name)
    lines = str(tmp_path / "lines")
    outputs = ["--plot", str(tmp_path / "picture-link"), "--report", str(tmp_path / "report-link")]
    code = run(["evaluate", str(models / "translator"), "--source", lines, "--reference", lines, *outputs])
    assert code == 0
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "report").read_text()
    assert (tmp_path / "picture-link").is_symlink()


def test_only_a_full_disk_asks_for_space(tmp_path: Path):
    for number in (errno.EACCES, errno.EROFS, errno.ENOENT):
        with pytest.raises(DiskTrouble) as found, disk_errors(tmp_path / "file", 100):
            raise OSError(number, os.strerror(number))
        assert "space" not in str(found.value)
        assert "bytes" not in str(found.value)
    with (
        pytest.raises(DiskTrouble, match=r"needs 100 bytes, there was less\). Free some space"),
        disk_errors(tmp_path / "file", 100),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DiskTrouble, match=r"needs 1,\S+ bytes, [\d,]+ free\)"), disk_errors(tmp_path / "file", 10**18):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(BrokenPipeError), disk_errors(tmp_path / "file", 100):
        raise BrokenPipeError


# What a command reads


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_text_without_end_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.data.read.texts._MAX_WAIT", 0.1)
    path = Path("/dev/zero")
    if kind == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    with pytest.raises(InputError, match="nobody writes to this pipe" if kind == "pipe" else "is a device"):
        open_sides(str(path), ReadOptions(), Cache())


def test_a_pipe_is_read_like_a_file(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    content = b"one\ttwo\n" * 50_000  # more than a pipe holds
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(content))
    writer.start()
    sources, targets = open_sides(str(tmp_path / "pipe"), ReadOptions(), Cache())
    writer.join(10)
    assert (len(sources), sources[49_999], targets[0]) == (50_000, "one", "two")


def test_what_a_command_writes_can_be_read_in_place_of_a_file(models: Path, tmp_path: Path):
    (tmp_path / "lines").write_text("the cat\nthe dog\n")
    line = f"cd {tmp_path}; gzip -k lines; {' '.join(command('evaluate', models / 'translator'))} "
    expected = shell(line + "--source lines --reference lines --json")
    found = shell(line.replace("gzip -k lines;", "") + "--source <(zcat lines.gz) --reference <(cat lines) --json")
    scores = [json.loads(out)["quality"] for _, out, _ in (expected, found)]
    assert scores[0] == scores[1]


def test_a_recipe_can_come_through_a_pipe(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    line = f"{' '.join(command('train'))} <(cat {recipe}) --set train.steps=1 --out {tmp_path / 'run'}"
    assert shell(line)[::2] == (0, "")


def test_standard_input_without_end_is_refused(models: Path):
    for given in ("/dev/zero", ""):
        line = f"{' '.join(command('translate', models / 'translator'))} " + (
            f"< {given}" if given else "< <(head -c 2000000 /dev/zero | tr '\\0' a)"
        )
        code, out, err = shell(line)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert ("is a device" if given else "line 1 is longer than 1,000,000 bytes") in err


@pytest.mark.parametrize("encoding", ["utf-32", "utf-16"])
def test_encodings_are_called_what_they_are(
    encoding: str, models: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    content = "the cat\n".encode(encoding)
    (tmp_path / "lines").write_bytes(content)
    with pytest.raises(InputError, match=f"looks like {encoding.upper()} .*iconv -f {encoding.upper()} "):
        open_sides(str(tmp_path / "lines"), ReadOptions(), Cache())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert run(["translate", str(models / "translator")]) == 2
    assert f"looks like {encoding.upper()} (BOM" in capfd.readouterr().err


def test_a_line_is_answered_before_the_next_one_comes(models: Path):
    process = subprocess.Popen(
        command("score", models / "gpt2"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    for line in (b"the cat\n", b"the dog\n"):
        process.stdin.write(line)
        process.stdin.flush()
        answers.append(process.stdout.readline())  # would wait for ever
    process.stdin.close()
    assert all(float(answer) < 0 for answer in answers)
    assert process.wait(30) == 0


def test_chunks_of_lines_change_no_answer(
    models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    lines = [f"the cat {number}" for number in range(70)]
    outputs = []
    for first in (16, 512):
        monkeypatch.setattr(sys.modules["regard.cli.options"], "_FIRST_CHUNK", first)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        assert run(["translate", str(models / "translator"), "--temperature", "1"]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 70


def test_a_line_that_is_typed_and_is_not_utf8_does_not_end_the_session(models: Path):
    leader, follower = pty.openpty()
    words = command("translate", models / "translator")
    strict = {**ENVIRONMENT, "PYTHONIOENCODING": "utf-8:strict"}  # as in most locales
    with subprocess.Popen(words, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=strict) as process:
        os.close(follower)
        os.write(leader, b"\xff\nabc\n\x04")
        out, err = process.communicate(timeout=120)
    os.close(leader)
    assert process.returncode == 0
    assert out.count(b"\n") == 1
    assert b"the line is not UTF-8" in err


def test_a_prompt_comes_through_a_pipe(models: Path):
    line = " ".join(command("generate", models / "gpt2", "--max-tokens", 3))
    assert shell(f"echo the cat | {line}") == shell(f"{line} 'the cat'")


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [
        ("translate >&-", 74, "standard output is closed"),
        ("translate <&-", 2, "standard input: it is closed"),
        ("score <&-", 2, "standard input: it is closed"),
    ],
)
def test_a_closed_stream_is_one_line(closed: str, code: int, said: str, models: Path):
    verb, _, how = closed.partition(" ")
    model = models / ("gpt2" if verb == "score" else "translator")
    found, out, err = shell(f"echo the cat | {' '.join(command(verb, model))} {how}")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert said in err


def test_a_closed_stderr_sends_no_error_elsewhere(models: Path):
    assert shell(f"{' '.join(command('translate', models / 'nowhere'))} 2>&-") == (2, "", "")


# Signals, threads, folders


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_two_interrupts_leave_no_traceback(delay: float, models: Path):
    process = subprocess.Popen(
        command("score", models / "gpt2"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"the cat\n")
    process.stdin.flush()
    process.stdout.readline()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(delay)
    _, err = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)
    assert err == b""


def ignored_hangup() -> None:
    """As under nohup."""
    from tests.training.runs import at_steps

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    at_steps({0: lambda trainer: os.kill(os.getpid(), signal.SIGHUP)})


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path):
    words = ["train", write_recipe(tmp_path), "--set", "train.steps=2", "--out", tmp_path / "run"]
    assert regard(*words, driver=ignored_hangup)[0] == 0


def test_more_threads_than_the_system_can_start_are_not_started():
    with pytest.warns(Note, match=r"99,999 threads are too many for \d+ CPUs"):
        assert limit_threads(99_999) == os.cpu_count()
    assert limit_threads(3) == 3


def test_a_failed_run_leaves_no_empty_folder(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    before = sorted(tmp_path.iterdir())
    for text in ("nowhere", "/dev/zero"):
        assert run(["train", str(recipe), "--set", f"text.train={text}", "--out", str(tmp_path / "runs" / "a")]) == 2
    assert sorted(tmp_path.iterdir()) == before
    with suppress(KeyError), folder_lock(tmp_path / "b"):
        (tmp_path / "b" / "kept").touch()
        raise KeyError
    assert (tmp_path / "b" / "kept").exists()
    (tmp_path / "own").mkdir()
    with pytest.raises(KeyError), folder_lock(tmp_path / "own"):
        raise KeyError
    assert (tmp_path / "own").is_dir()


def test_a_name_that_is_not_utf8_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("regard.cli._invoke", lambda _: "runs/\udce9".encode())
    assert run(["translate", "x"]) == 2
    said = "a name or a text is not UTF-8, near 'runs/\\udce9'. Rename the file, or correct it."
    assert capsys.readouterr().err == f"regard: error: {said}\n"


def test_json_has_no_infinity():
    row = {"a": float("inf"), "b": [float("nan"), 1.5], "c": {"d": -float("inf")}}
    assert json_text(row) == '{"a": null, "b": [null, 1.5], "c": {"d": null}}'


# A text longer than those of the training


def test_a_long_line_is_named_once_and_one_that_is_kept_whole_has_a_bounded_translation(recwarn):
    model = small(zoo.transformer(16, 1, 2), config={TRAINED_LENGTH: 10})
    texts = ["the cat", "the cat sat " * 40, "the dog sat " * 40]
    found = model.translations(texts, replace(model.defaults(), n_best=2, beam=2), first_line=7)
    short, long, other = (some[0] for some in found)
    said = [str(warning.message) for warning in recwarn if warning.category is Note]
    assert len(said) == 1
    assert said[0].startswith("line 8 has ")
    assert "trained on at most 10;" in said[0]
    assert max(len(long.tokens), len(other.tokens)) <= 70
    unbounded = small(zoo.transformer(16, 1, 2))
    options = replace(unbounded.defaults(), n_best=2, beam=2)
    assert unbounded.translations(["the cat"], options)[0][0].tokens == short.tokens
    assert len(unbounded.translations(["the cat sat " * 40], options)[0][0].tokens) > 70
    assert len(recwarn) == 1


def test_a_run_whose_terminal_is_closed_is_saved(tmp_path: Path):
    out = tmp_path / "run"
    settings = ["train.steps=100000", "train.save_every=100000", "train.valid_every=1"]
    words = command("train", write_recipe(tmp_path), "--out", out, *(w for one in settings for w in ("--set", one)))
    pid, leader = pty.fork()
    if pid == 0:
        os.execve(words[0], words, ENVIRONMENT)
    log = out / "metrics.jsonl"
    while not log.exists() or log.read_text().count("\n") < 4:
        if select.select([leader], [], [], 0.01)[0]:
            os.read(leader, 1 << 16)
    os.close(leader)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    assert saved_steps(out / "checkpoints")
