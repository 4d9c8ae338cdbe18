"""Tier D: data in, honest report out."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

from tests.storm.rows import MEGABYTE, Case, Outcome, Row, command, tests

ODD = [
    *"aAé早 01\t\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff\u0301\u200d\U0010ffff",
    "\r\n",
    "\n",
    "\n\n",
    "word ",
    "</s>",
]

# Reads a text of a recipe in a process of its own; -> pairs; megabytes beyond those of the imports, processor seconds.
READ = """
import re, sys, time
from regard.config.recipe import read_recipe
from regard.data.read.cache import default_cache
from regard.data.tasks.translation import Translation
from regard.data.tokenize.train import train_tokenizers
from regard.errors import RegardError
def peak():  # in kilobytes, of this program alone: ru_maxrss would include that of the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
recipe = read_recipe(sys.argv[1])
before = peak()
try:
    cache = default_cache()
    corpus = recipe.text.read("train", cache)
    tokenizers = train_tokenizers(recipe.text.tokenizer, corpus, cache)
    task = recipe.text.task or Translation()
    print(len(task.samples(corpus, tokenizers, cache)))
except RegardError as error:
    print("error:", error)
print((peak() - before) // 1024, time.process_time())
"""
RECIPE = '[model]\nname = "{model}"\nwidth = 16\ndepth = 1\nheads = 2\n[text]\ntrain = "{path}"\ntokenizer = "byte"\n' \
    '{task}\n[train]\nsteps = 1\n'  # fmt: skip
BY_LINE = 'documents = "line"\ntask = { kind = "language_model", length = 64 }'
SHORT_PAIRS = 'task = { kind = "translation", max_length = 8 }'

# Reports on lines with planted duplicates; -> duplicates, overlaps, seconds of the processor, megabytes.
PLANTED = """
import re, sys, time
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, read_pairs
from regard.data.read.report import report_on
from regard.data.tasks.translation import Translation
from regard.data.tokenize.train import Word, train_tokenizers
from pathlib import Path
def peak():  # in kilobytes, of this program alone: ru_maxrss would include that of the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
lines, folder = int(sys.argv[1]), Path(sys.argv[2])
cache = Cache(folder / "cache")
train = read_pairs(folder / "train.a", folder / "train.b", cache=cache)
valid = read_pairs(folder / "valid.a", folder / "valid.b", cache=cache)
tokenizers = train_tokenizers(Word(size=500), train, cache)
samples = Translation().samples(train, tokenizers, cache)
began = time.process_time()
report = report_on(train, samples, {"valid": valid}, cache)
took = time.process_time() - began
print(report.duplicates, report.overlaps[0].same, took, peak() // 1024)
"""


def odd_text(chance: random.Random) -> str:
    """A text of characters at which other programs break lines."""
    return "".join(chance.choice(ODD) for _ in range(chance.choice([0, 1, 3, 20, 200])))


def line_truth(count: int, seed: int, folder: Path) -> Outcome:
    """Files with every kind of line break: as many lines as `wc` counts, and pair i is line i of both."""
    from regard.data.read.corpus import read_lines
    from regard.errors import RegardError

    chance, cases, path = random.Random(seed), Case(), folder / "text"
    for number in range(count):
        content = odd_text(chance).encode()
        path.write_bytes(content)
        expected = content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
        try:
            lines = read_lines(path)
        except RegardError as error:
            cases.add(f"file {number}", str(error))
            continue
        plain = content.decode().removeprefix("\ufeff")
        crlf = plain.count("\r\n") == plain.count("\n") > 0
        wanted = (plain.replace("\r\n", "\n") if crlf else plain).removesuffix("\n").split("\n") if expected else []
        good = len(lines) == expected and lines == wanted
        cases.add(f"file {number}", "" if good else f"{content[:80]!r}: {len(lines)} lines, wc says {expected}")
    if count >= 50:
        counted = int(subprocess.run(["wc", "-l", str(path)], capture_output=True, text=True).stdout.split()[0])
        assert counted == path.read_bytes().count(b"\n")
    return cases.outcome()


def bad_utf8(count: int, seed: int, folder: Path) -> Outcome:
    """A byte that is not UTF-8 at a random place: file, line, byte and value are named."""
    from regard.data.read.corpus import read_lines
    from regard.errors import RegardError

    chance, cases = random.Random(seed), Case()
    lines = [f"line {number} of the text, of ordinary letters" for number in range(200)]
    for number in range(count):
        row, value = chance.randrange(200), chance.choice([0x80, 0xBF, 0xC0, 0xE9, 0xF8, 0xFE, 0xFF])
        column = chance.randrange(len(lines[row]) + 1)
        parts = [line.encode() for line in lines]
        parts[row] = parts[row][:column] + bytes([value]) + parts[row][column:]
        path = folder / "text.txt"
        path.write_bytes(b"\n".join(parts))
        try:
            read_lines(path)
            said = "it was read"
        except RegardError as error:
            said = str(error)
        wanted = f"{path} line {row + 1:,}, byte {column + 1:,}: 0x{value:02X} is not UTF-8"
        cases.add(f"case {number}", "" if wanted in said else f"{said[:200]}, not {wanted}")
    return cases.outcome()


def measured(folder: Path, path: Path) -> tuple[str, int, float]:
    """Read a text in a process of its own; -> what it said, megabytes, seconds of the processor."""
    recipe, pairs = folder / "recipe.toml", path.suffix == ".tsv"
    model, task = ("transformer", SHORT_PAIRS) if pairs else ("gpt2", BY_LINE)
    recipe.write_text(RECIPE.format(model=model, path=path, task=task))
    done = command("-c", READ, recipe, timeout=900, REGARD_CACHE=str(folder / "cache"))
    if done.code:
        return f"exit {done.code}: {done.err[-300:]}", 0, done.seconds
    said, used = done.out.strip().rsplit("\n", 1)
    megabytes, seconds = used.split()
    return said, int(megabytes), float(seconds)


def write_repeated(path: Path, unit: bytes, times: int) -> None:
    """A file of so many equal units."""
    many = MEGABYTE // len(unit)
    with open(path, "wb") as file:
        for _ in range(times // many):
            file.write(unit * many)
        file.write(unit * (times % many))


def giants(count: int, _seed: int, folder: Path) -> Outcome:
    """A giant line, as many lines as asked for, empty ones and none, and lines that are all too long."""
    from tests.storm.scale import read, write_recipe

    cases, largest = Case(), 0
    length, pairs, slowest = min(1 << 30, 100 * count), count // 10, 0.0
    too_long = f"{pairs:,} longer than 8 tokens"
    texts = {
        "giant": (b"a", length, "line 1 is longer than 1,000,000 bytes. Is it a file without line breaks? Split"),
        "empty": (b"\n", count, f"0 usable documents of {count:,}: {count:,} empty. Name a file"),
        "one": (b"a line of text\n", 1, "1"),
        "nothing": (b"a", 0, "has 0 lines. Name a file"),
        "long.tsv": (b"a line of words\ta line of words\n", pairs, f"0 usable lines of {pairs:,}: {too_long}. Raise"),
    }
    for name, (unit, times, expected) in texts.items():
        path = folder / name
        write_repeated(path, unit, times)
        said, megabytes, seconds = measured(folder, path)
        largest, slowest = max(largest, megabytes), max(slowest, seconds)
        good = expected in said and said.startswith("error: ") == (name != "one")
        good = good and megabytes <= 300 and seconds < 60
        cases.add(name, "" if good else f"{said[:200]}, {megabytes} MB, {seconds:.0f} s")
        path.unlink()
    first = read(write_recipe(folder, count), folder / "cache")
    note = (f"{first.pairs:,} pairs in {first.seconds:.0f} s with {first.megabytes} MB, {first.with_report} MB "
            f"with the report; the others {largest} MB and {slowest:.0f} s of the processor")  # fmt: skip
    cases.add("many pairs", "" if first.pairs == count and first.with_report <= 300 else note)
    return Outcome(count if cases.good == cases.total else 0, count, cases.outcome(note).note)


def duplicates(count: int, seed: int, folder: Path) -> Outcome:
    """Planted duplicates and overlaps with the validation text: all are counted, within a minute and a gigabyte."""
    chance = random.Random(seed)
    words = [f"w{number}" for number in range(400)]
    rows = [f"{number} " + " ".join(chance.choices(words, k=6)) for number in range(count)]
    planted, leaked = count // 100, min(500, count // 100)
    rows += [rows[chance.randrange(count)] for _ in range(planted)]
    held = [rows[number] for number in chance.sample(range(count), leaked)] + [
        f"new {number}" for number in range(leaked)
    ]
    for name, lines in (("train", rows), ("valid", held)):
        (folder / f"{name}.a").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{name}.b").write_text("".join(f"{line} translated\n" for line in lines))
    done = command("-c", PLANTED, count, folder, timeout=1200)
    if done.code:
        return Outcome(0, count, done.err[-300:])
    found, overlap, seconds, megabytes = done.out.split()
    note = f"{found} of {planted} duplicates, {overlap} of {leaked} overlaps, {float(seconds):.0f} s, {megabytes} MB"
    good = int(found) == planted and int(overlap) == leaked and float(seconds) <= 60 and int(megabytes) <= 1024
    return Outcome(count if good else 0, count, note)


def round_trips(count: int, seed: int, _folder: Path) -> Outcome:
    """Texts of any characters survive every lossless tokenizer, and offsets of the others cover them."""
    from tests.data.test_tokenizer import LOSSLESS, TRAINED

    chance, cases = random.Random(seed), Case()
    for number in range(count):
        text = any_text(chance)
        wrong = [name for name in LOSSLESS if TRAINED[name].decode(TRAINED[name].encode(text)) != text]
        cases.add(f"text {number}", "" if not wrong else f"{wrong[0]}: {text[:80]!r}")
    return cases.outcome(f"{len(LOSSLESS)} tokenizers")


def any_text(chance: random.Random) -> str:
    """A text of odd and of arbitrary characters, without surrogates."""

    def character() -> Any:
        if chance.random() < 0.5:
            return chance.choice(ODD)
        point = chance.randrange(0x110000 - 0x800)
        return chr(point if point < 0xD800 else point + 0x800)

    return "".join(character() for _ in range(chance.choice([1, 5, 30, 200])))


def same_as_transformers(count: int, seed: int, _folder: Path) -> Outcome:
    """From text, with every published kind, head and tokenizer form: what transformers makes of it."""
    from tests.storm.pipelines import compare

    good, total = compare(count, seed)
    return Outcome(count if good == total else 0, count, f"{good} of {total} comparisons equal")


ROWS = [
    Row("D1", "files with every kind of line break", 10_000, 0.5, line_truth, 50),
    Row("D2", "pairs of files that are shifted or unequal", 1, 1, tests(
        "tests/data/test_report.py", "tests/data/test_corpus.py", "-k", "shift or different_length or pairs_are")),
    Row("D3", "bytes that are not UTF-8", 1_000, 0.5, bad_utf8, 20),
    Row("D4", "lines: a giant one, as many pairs, empty ones, none", 10_000_000, 10, giants, 100_000),
    Row("D5", "every line that is left out is counted by its reason", 1, 0.3, tests(
        "tests/data/test_report.py", "-k", "add_up")),
    Row("D6", "lines with planted duplicates and overlaps", 1_000_000, 3, duplicates, 10_000),
    Row("D7", "round trips through tokenizers", 10_000, 1, round_trips, 100),
    Row("D8", "lines through every published kind, head and tokenizer form, as transformers does", 200, 12,
        same_as_transformers, 5),
]  # fmt: skip
