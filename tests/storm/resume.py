"""Resuming, as a matrix: every family and every state that training carries, stopped at three moments.

In the middle of an epoch, at its edge, and during the last step; the run must end as an unbroken one does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from tests.training.runs import digests, regard, terminate_at

_SMALL = "width = 16\ndepth = 1\nheads = 2\ninner = 24\n"
_RECURRENT = "width = 16\ndepth = 1\n"
_CHARACTER_CNN = 'embed = { kind = "character_cnn", filters = [[1, 8], [2, 8]], characters = 8 }\n'
_PAIRS = 'train = "train.{a,b}"\nvalid = "valid.{a,b}"\ntokenizer = "character"\n'
_PLAIN = 'train = "train.txt"\nvalid = "valid.txt"\ndocuments = "line"\n'
_CHARACTERS = _PLAIN + 'tokenizer = { kind = "character", sentinels = 16 }\n'
_NEXT = _CHARACTERS + 'task = { kind = "language_model", length = 24 }\n'
_SEGMENTS = _PLAIN.replace('"line"', '"file"') + 'tokenizer = "byte"\n'
_CARRIED = _SEGMENTS + 'task = { kind = "truncated_bptt", length = 16, streams = 8 }\n'

FAMILIES = {
    "seq2seq": (_RECURRENT, _PAIRS),
    "bahdanau": (_RECURRENT, _PAIRS),
    "luong": (_RECURRENT, _PAIRS),
    "convs2s": (_RECURRENT, _PAIRS),
    "transformer": (_SMALL, _PAIRS),
    "gpt2": (_SMALL, _NEXT),
    "bert": (_SMALL + "max_positions = 40\n", _CHARACTERS + 'task = { kind = "masked_lm", length = 24 }\n'),
    "t5": (_SMALL, _CHARACTERS + 'task = { kind = "span_corruption", length = 24 }\n'),
    "elmo": (
        f'width = 16\ninner = 24\nclip = "none"\n{_CHARACTER_CNN}',
        _PLAIN + 'tokenizer = "word"\ntask = { kind = "bidirectional_lm", length = 24 }\n',
    ),
    "lstm_lm": (_RECURRENT, _CARRIED),
    "sha_rnn": (_RECURRENT + "window = 30\n", _CARRIED),
    "reformer": (
        f'{_SMALL}buckets = 4\nrounds = 2\nattention = ["lsh"]\npattern = {{ kind = "rank_window", length = 4 }}\n'
        'position = { kind = "axial", shape = [16, 16] }\n',
        _NEXT,
    ),
}
ENCODER_DECODERS = ("seq2seq", "bahdanau", "luong", "convs2s", "transformer", "t5")


@dataclass(frozen=True)
class Combination:
    """A family, the micro-batches of a step, and settings whose state a checkpoint must carry."""

    name: str
    family: str
    accumulate: int
    train: str = ""
    text: str = ""


def combinations() -> Iterator[Combination]:
    """All combinations; each is stopped at three moments."""
    for family, accumulate in product(FAMILIES, (1, 4)):
        yield Combination(f"{family}, float32", family, accumulate, 'precision = "float32"\n')
        yield Combination(f"{family}, bfloat16", family, accumulate, 'precision = "bfloat16"\n')
        yield Combination(f"{family}, averages", family, accumulate, "ema = 0.9\naverage = 2\n")
    sampling = 'scheduled_sampling = { kind = "linear", steps = 8, max_probability = 0.6 }\n'
    for family, accumulate in product(ENCODER_DECODERS[:-1], (1, 4)):
        yield Combination(f"{family}, scheduled sampling", family, accumulate, sampling)
    for kind, family, accumulate in product(("muon", "lamb", "adafactor"), ("gpt2", "sha_rnn"), (1, 4)):
        yield Combination(f"{family}, {kind}", family, accumulate, f'optimizer = "{kind}"\nema = 0.9\n')
    bpe = 'tokenizer = { kind = "bpe", size = 300 }\nbpe_dropout = 0.3\n'
    for accumulate in (1, 4):
        yield Combination("transformer, BPE-dropout", "transformer", accumulate, text=bpe)
        yield Combination("gpt2, gradient checkpointing", "gpt2", accumulate, "gradient_checkpointing = true\n")


MOMENTS = ("mid-epoch", "epoch edge", "last step")
CASES = 3 * len(list(combinations()))
_STEPS = 14


def write_texts(folder: Path) -> None:
    """Words with a repeating order of letters, alone and in pairs."""
    words = [("abcdefgh" * 3)[start : start + 3 + start % 5 + length] for start in range(8) for length in range(1, 8)]
    lines = [f"{one} {other}" for one, other in zip(words, words[1:] + words[:1])]
    for name, part in (("train", lines), ("valid", lines[::9])):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in part))
        (folder / f"{name}.a").write_text("".join(f"{line}\n" for line in part))
        (folder / f"{name}.b").write_text("".join(f"{line[::-1]}\n" for line in part))


def write_recipe(folder: Path, case: Combination) -> Path:
    """The recipe of a combination; its texts are in the folder."""
    model, text = FAMILIES[case.family]
    if case.text:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("tokenizer")) + case.text
    path, tokens = folder / "recipe.toml", 40 if case.family == "elmo" else 256  # words, and characters
    path.write_text(
        f'[model]\nname = "{case.family}"\ndropout = 0.2\n{model}\n[text]\nfolder = "{folder}"\n{text}\n'
        f"[train]\nsteps = {_STEPS}\nbatch_tokens = {tokens}\naccumulate = {case.accumulate}\nlearning_rate = 1e-2\n"
        f'schedule = {{ kind = "inverse_square_root", warmup = 3 }}\nsave_every = 4\nvalid_every = 6\nvalid_lines = 2\n'
        f"log_every = 1\n{case.train}"
    )
    return path


def first_edge(folder: Path) -> int:
    """The step with which the first epoch ends."""
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        if values.get("epoch", 0) > 0:
            return int(values["step"])
    raise AssertionError("the run has no second epoch")


def resumed(case: Combination, folder: Path) -> Iterator[tuple[str, str]]:
    """The three moments of a combination, each with what went wrong."""
    folder.mkdir()
    write_texts(folder)
    recipe = write_recipe(folder, case)
    code, _, err = regard("train", recipe, "--out", folder / "unbroken")
    if code:
        yield from ((moment, f"the unbroken run ended with {code}: {err[-200:]}") for moment in MOMENTS)
        return
    expected, edge = digests(folder / "unbroken"), first_edge(folder / "unbroken")
    middle = edge + 2 if edge + 2 < _STEPS else edge // 2
    for moment, step in zip(MOMENTS, (middle, edge, _STEPS)):
        out = folder / moment
        stopped, _, err = regard("train", recipe, "--out", out, driver=partial(terminate_at, step - 1))
        code, said, err = (stopped, "", err) if stopped != 143 else regard("train", recipe, "--out", out)
        if stopped != 143 or code:
            yield moment, f"ended with {stopped}, then {code}: {err[-200:]}"
        elif step < _STEPS and f"resuming at step {step} " not in said:
            yield moment, f"did not resume at step {step}"
        else:
            found = digests(out)
            wrong = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
            yield moment, f"{len(wrong)} differ, such as {wrong[0]}" if wrong else ""
