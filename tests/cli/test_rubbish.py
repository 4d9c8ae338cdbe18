"""200 kinds of rubbish on the command line: each ends with exactly one line, no traceback, and the right exit code."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regard import cli
from regard.config import run as _run  # noqa: F401 (imported once, before the children)
from regard.evaluation import check, compare, plan  # noqa: F401
from regard.models import zoo
from regard.models.readouts import Label, Vector
from regard.serve import app as _app  # noqa: F401
from tests.small import save_model, small

VERBS = ("translate", "generate", "fill", "embed", "classify", "score", "show", "evaluate", "compare", "check")
SMALL = {"width": 16, "depth": 1, "heads": 2}
KINDS = {
    "translator": zoo.transformer(**SMALL),
    "language": zoo.gpt2(**SMALL),
    "masked": zoo.bert(**SMALL),
    "labels": replace(zoo.bert(**SMALL), readout=Label(("good", "bad"))),
    "vectors": replace(zoo.bert(**SMALL), readout=Vector()),
}
# What each verb needs besides the model, and the kinds of model it cannot use.
NEEDS = {
    "generate": ["a"],
    "fill": ["a [MASK]"],
    "show": ["a", "--out", "page.html"],
    "evaluate": ["--text", "text.txt"],
    "compare": ["language", "--text", "text.txt"],
}
UNFIT = {
    "translate": ["language", "masked", "labels", "vectors"],
    "generate": ["translator", "masked", "labels", "vectors"],
    "fill": ["translator", "language", "labels", "vectors"],
    "classify": ["translator", "language", "masked", "vectors"],
    "score": ["labels", "vectors"],
}
RECIPE = """
[model]
name = "gpt2"
width = 16
depth = 1
heads = 2
[text]
train = "text.txt"
tokenizer = {kind = "byte"}
[train]
steps = 1
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, good and damaged, and with text and recipes of all sorts."""
    place = tmp_path_factory.mktemp("place")
    for name, description in KINDS.items():
        save_model(place / name, small(description))
    model = place / "translator"
    for name, file, content in DAMAGES:
        shutil.copytree(model, place / name)
        (place / name / "manifest.json").unlink()
        (place / name / file).write_bytes(content)
    shutil.copytree(model, place / "flipped")
    (place / "flipped" / "config.json").write_bytes((model / "config.json").read_bytes().replace(b"128", b"129") + b" ")
    shutil.copytree(model, place / "no-weights")
    (place / "no-weights" / "model.safetensors").unlink()
    shutil.copytree(model, place / "no-tokenizer")
    (place / "no-tokenizer" / "tokenizer.json").unlink()
    shutil.copytree(place / "no-weights", place / "pickle")
    (place / "pickle" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    (place / "empty").mkdir()
    for name, written in FILES.items():
        (place / name).write_bytes(written)
    for name, (old, new, _) in RECIPES.items():
        assert old in RECIPE
        (place / f"{name}.toml").write_text(RECIPE.replace(old, new))
    return place


DAMAGES = [
    ("not-json", "config.json", b"{"),
    ("a-list", "config.json", b"[1]"),
    ("no-model", "config.json", b'{"model_type": "regard"}'),
    ("unknown-type", "config.json", b'{"model_type": "mamba"}'),
    ("own-code", "config.json", b'{"model_type": "gpt2", "auto_map": {}}'),
    ("cut-weights", "model.safetensors", b"\x08\0\0\0\0\0\0\0{}"),
    ("empty-weights", "model.safetensors", b""),
    ("text-weights", "model.safetensors", b"hello, I am no weights at all"),
    ("lfs", "model.safetensors", b"version https://git-lfs"),
    ("bad-tokenizer", "tokenizer.json", b"{}"),
    ("binary-tokenizer", "tokenizer.json", b"\xff\xfe\0"),
    ("bad-generation", "generation_config.json", b'{"eos_token_id": [[]]}'),
    ("deep", "config.json", b"[" * 100_000),
    ("endless", "generation_config.json", b'{"max_new_tokens": 1000000000}'),
    ("surrogate", "config.json", b'{"a": "\\ud800"}'),
]
UNKNOWN = {"unknown-type": 2}

FILES = {
    "text.txt": b"the cat sat\na dog ran\n" * 20,
    "none.txt": b"",
    "blank.txt": b"\n\n\n",
    "latin.txt": b"caf\xe9\n",
    "utf16.txt": "the cat".encode("utf-16"),
    "gzip.txt": b"\x1f\x8b\x08",
    "nul.txt": b"a\0b\n",
    "short.txt": b"one\n",
    "bad.jsonl": b'{"text": \n',
    "number.jsonl": b"5\n",
    "bad.csv": b'a,"b\n',
    "page.xlsx": b"PK\x03\x04",
    "not.toml": b"a = \n",
    "binary.toml": b"\xff\xfe",
    "part.py": b"def broken(:\n",
    "nothing.py": b"x = 1\n",
    "broken.gz": b"\x1f\x8bxx",
}

RECIPES = {
    "unknown-key": ("width = 16", "widht = 16", 2),
    "unknown-model": ('"gpt2"', '"gpt9"', 2),
    "a-word": ("width = 16", 'width = "x"', 2),
    "no-width": ("width = 16", "width = 0", 2),
    "negative": ("depth = 1", "depth = -1", 2),
    "indivisible": ("heads = 2", "heads = 3", 2),
    "half-depth": ("depth = 1", "depth = 1.5", 2),
    "no-heads": ("heads = 2", "heads = 0", 2),
    "no-text": ('"text.txt"', '"gone.txt"', 2),
    "empty-text": ('"text.txt"', '"none.txt"', 2),
    "blank-text": ('"text.txt"', '"blank.txt"', 2),
    "latin": ('"text.txt"', '"latin.txt"', 2),
    "utf16": ('"text.txt"', '"utf16.txt"', 2),
    "gzip": ('"text.txt"', '"gzip.txt"', 2),
    "nul": ('"text.txt"', '"nul.txt"', 2),
    "jsonl": ('"text.txt"', '"bad.jsonl"', 2),
    "numbers": ('"text.txt"', '"number.jsonl"', 2),
    "folder": ('"text.txt"', '"empty"', 2),
    "sheet": ('"text.txt"', '"page.xlsx"', 2),
    "three": ('"text.txt"', '["a", "b", "c"]', 2),
    "five": ('"text.txt"', "5", 2),
    "bpx": ('"byte"', '"bpx"', 2),
    "huge": ('"byte"', '"bpe", size = 1000000000000', 2),
    "tiny": ('"byte"', '"bpe", size = 3', 2),
    "no-kind": ('kind = "byte"', "size = 5", 2),
    "steps": ("steps = 1", "steps = 0", 2),
    "minus": ("steps = 1", "steps = -5", 2),
    "many": ("steps = 1", 'steps = "many"', 2),
    "rate": ("steps = 1", "steps = 1\nlearning_rate = -1.0", 2),
    "batch": ("steps = 1", "steps = 1\nbatch_tokens = 0", 2),
    "optimizer": ("steps = 1", 'steps = 1\noptimizer = "adamx"', 2),
    "seed": ("steps = 1", 'steps = 1\nseed = "x"', 2),
    "table": ("[train]", "[trian]", 2),
    "no-table": ("[model]", "[modle]", 2),
    "save": ("steps = 1", "steps = 1\nsave_every = 0", 2),
    "keep": ("steps = 1", "steps = 1\nkeep = -1", 2),
    "average": ("steps = 1", "steps = 1\naverage = -1", 2),
    "both": ('train = "text.txt"', 'train = "text.txt"\ncorpus = "dates"', 2),
    "neither": ('train = "text.txt"\n', "", 2),
    "valid": ('train = "text.txt"', 'train = "text.txt"\nvalid = "gone.txt"', 2),
    "task": ('train = "text.txt"', 'train = "text.txt"\ntask = {kind = "nonsense"}', 2),
    "init": ("heads = 2", 'heads = 2\ninit = "gone"', 2),
    "twice": ("width = 16", "width = 16\nwidth = 16", 2),
    "mangled": ("[text]", "[text", 2),
    "infinite": ("steps = 1", "steps = 1\nlearning_rate = inf", 2),
    "dropout": ("heads = 2", "heads = 2\ndropout = 2.0", 2),
}

Case = tuple[int, str, bytes]  # the exit code, the command line, standard input


def cases() -> list[Case]:
    """Every verb with what is no model folder, with wrong options, and with models that do not fit; recipes; files."""
    found: list[Case] = []
    for verb in VERBS:
        rest = " ".join(f"'{word}'" if " " in word else word for word in NEEDS.get(verb, []))
        for folder in ("gone", "text.txt", "empty", "no-weights", "no-tokenizer"):
            found.append((2, f"{verb} {folder} {rest}", b"a\n"))
        found += [(3, f"{verb} {folder} {rest}", b"a\n") for folder in ("flipped", "pickle")]
        found += [
            (2, f"{verb} {folder} {rest} {wrong}", b"a\n")
            for folder, wrong in (
                ("translator", "--nonsense"),
                ("translator", "--device toaster"),
                ("translator", "--threads 0"),
                ("translator", "--parts gone.py"),
            )
        ]
        found += [(2, f"{verb} {kind} {rest}", b"a\n") for kind in UNFIT.get(verb, [])]
        found.append((2, verb, b""))
    found += [(UNKNOWN.get(name, 3), f"translate {name}", b"a\n") for name, _, _ in DAMAGES]
    found += [(code, f"train {name}.toml --out run-{name}", b"") for name, (_, _, code) in RECIPES.items()]
    found += [(2, f"plan {name}.toml", b"") for name in ("unknown-key", "no-text", "bpx", "table", "steps", "mangled")]
    found += [(code, command, stdin) for code, command, stdin in OTHERS]
    return found


OTHERS: list[Case] = [
    (2, "trane dates", b""),
    (2, "--nonsense", b""),
    (2, "train gone.toml", b""),
    (2, "train dats", b""),
    (2, "train not.toml", b""),
    (2, "train binary.toml", b""),
    (2, "train empty", b""),
    (2, "train dates --set nonsense", b""),
    (2, "train dates --set =", b""),
    (2, "train dates --set train.stepz=3", b""),
    (2, "train dates --set a.b.c=3", b""),
    (2, "train dates --parts part.py", b""),
    (2, "train dates --parts nothing.py --parts gone.py", b""),
    (2, "train dates --out text.txt", b""),
    (2, "train dates --out text.txt/run", b""),
    (2, "train dates --out language", b""),
    (2, "train dates dates", b""),
    (2, "init", b""),
    (2, "init gone.txt", b""),
    (2, "init none.txt", b""),
    (2, "init utf16.txt", b""),
    (2, "init page.xlsx", b""),
    (2, "init bad.jsonl", b""),
    (3, "init broken.gz", b""),
    (2, "init nul.txt", b""),
    (2, "convert", b""),
    (2, "convert translator", b""),
    (2, "convert gone new", b""),
    (2, "convert translator language", b""),
    (2, "convert translator new --to nonsense", b""),
    (3, "convert pickle new", b""),
    (3, "convert pickle new --allow-pickle", b""),
    (3, "convert flipped new", b""),
    (2, "convert hf:../x new", b""),
    (2, "translate hf:a/b/c", b""),
    (2, "translate translator", b"caf\xe9\n"),
    (2, "translate translator", "a".encode("utf-16")),
    (2, "translate translator", b"\x1f\x8b\x08"),
    (2, "translate translator --beam 0", b"a\n"),
    (2, "translate translator --beam x", b"a\n"),
    (2, "translate translator --n-best 0", b"a\n"),
    (2, "translate translator --beam 2 --n-best 5", b"a\n"),
    (2, "translate translator --temperature -1", b"a\n"),
    (2, "translate translator --max-tokens -1", b"a\n"),
    (2, "translate translator --top-p 7", b"a\n"),
    (2, "translate translator --length-penalty nan", b"a\n"),
    (2, "generate language a --top-k -1", b""),
    (2, "generate language a --min-p 3", b""),
    (2, "generate language a --max-tokens x", b""),
    (2, "generate language a --seed x", b""),
    (2, "fill masked nothing", b""),
    (2, "embed vectors --layer 99", b"a\n"),
    (2, "embed vectors --layer x", b"a\n"),
    (2, "score translator", b"no tab\n"),
    (2, "score language", b"caf\xe9\n"),
    (2, "classify labels", b"caf\xe9\n"),
    (2, "evaluate language --text gone.txt", b""),
    (2, "evaluate language --text none.txt", b""),
    (2, "evaluate language --text latin.txt", b""),
    (2, "evaluate translator --source text.txt", b""),
    (2, "evaluate translator --source text.txt --reference short.txt", b""),
    (2, "evaluate translator --source gone.txt --reference text.txt", b""),
    (2, "evaluate language --reference text.txt", b""),
    (2, "compare language", b""),
    (2, "compare language gone --text text.txt", b""),
    (2, "compare language translator --text text.txt", b""),
    (2, "show language", b""),
    (2, "show translator a --target b --out text.txt/page.html", b""),
    (2, "plan gone.toml", b""),
    (2, "plan dates --set model.width=7", b""),
    (2, "plan dates --device toaster", b""),
    (74, "generate language a --max-tokens 1 --out /proc/nothing.txt", b""),
]


def child(arguments: list[str], stdin: bytes, place: Path) -> None:
    """In a forked process: run a command with files as standard streams, and end with its exit code."""
    os.chdir(place)
    (place / "stdin").write_bytes(stdin)
    for number, (name, flags) in enumerate((("stdin", os.O_RDONLY), ("stdout", 577), ("stderr", 577))):
        os.dup2(os.open(place / name, flags, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in enumerate(("r", "w", "w")))
    code = 99
    try:
        code = cli.run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


# Every run of the tests tries one in three; `make storm` the others.
TRIED = [
    pytest.param(*case, marks=pytest.mark.storm if number % 3 else (), id=str(case[1])[:60])
    for number, case in enumerate(cases())
]


@pytest.mark.parametrize(("code", "command", "stdin"), TRIED)
def test_rubbish_ends_with_one_line(code: int, command: str, stdin: bytes, place: Path):
    process = os.fork()
    if not process:
        child(shlex.split(command), stdin, place)
    found = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    said = (place / "stderr").read_text()
    errors = [line for line in said.splitlines() if line.startswith("regard: error: ")]
    others = [line for line in said.splitlines() if not line.startswith(("note: ", "regard: error: ", "warning: "))]
    assert (found, len(errors), others) == (code, 1, []), said
    assert "internal error" not in said
    assert "Traceback" not in said


def test_there_are_200_kinds():
    assert len({command for _, command, _ in cases()}) >= 200
