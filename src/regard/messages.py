"""What can go wrong, once: this table makes the messages, the page docs/errors.md and the list of what tests provoke.

A fault ends the command with one line and an exit code; a warning is said, and the work goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import Any

from regard.errors import CannotResume, DamagedFile, DiskTrouble, InputError, RegardError, RunFailed


@dataclass(frozen=True)
class Row:
    """A line of the catalogue: when it is said, what it says, and what it tells a person to do."""

    when: str
    what: str
    remedy: str

    def text(self, **facts: Any) -> str:
        """The message, with the facts of the case."""
        return f"{self.what} {self.remedy}".strip().format(**facts)


@dataclass(frozen=True)
class Fault(Row):
    """Something that ends the command, with the exit code of its kind."""

    kind: type[RegardError] = InputError

    def __call__(self, **facts: Any) -> RegardError:
        """The error to raise."""
        return self.kind(self.text(**facts))


@dataclass(frozen=True)
class Notice(Row):
    """Something a person should know, while the work goes on."""

    def __call__(self, **facts: Any) -> str:
        """The line to say."""
        return f"warning: {self.text(**facts)}"


NO_FILE = Fault(
    "A file is not there",
    "no such file: {path}.",
    "Current directory is {here}.{hint}",
)
UNREADABLE = Fault(
    "A file cannot be read",
    "cannot read {path}: {why}.",
    "Name a readable file.",
)
EMPTY_TEXT = Fault(
    "A corpus is empty",
    "{path} has 0 lines.",
    "Name a file that holds text.",
)
NOTHING_USABLE = Fault(
    "Every text was left out",
    "{path} has 0 usable {texts} of {count:,}: {reasons}.",
    "{remedy}",
)
BAD_UTF8 = Fault(
    "A byte is not UTF-8",
    "{path} line {line:,}, byte {byte:,}: 0x{value:02X} is not UTF-8 (looks like {likely}).",
    "Convert: iconv -f {encoding} -t UTF-8 < {quoted} > utf8.txt. "
    'Or leave such lines out of training: text.bad_utf8 = "skip".',
)
UTF16 = Fault(
    "A file is UTF-16",
    "{path} looks like UTF-16 (BOM {mark}).",
    "Convert: iconv -f UTF-16 -t UTF-8 < {quoted} > utf8.txt.",
)
GZIP = Fault(
    "A gzip file has another name",
    "{path} is gzip (1F 8B).",
    "Rename it to end in .gz, or decompress it: gzip -dc < {quoted} > plain.txt.",
)
NOT_GZIP = Fault(
    "A file named .gz cannot be decompressed",
    "{path} cannot be decompressed: {why}.",
    "Copy it again, or name it without .gz if it is plain text.",
    DamagedFile,
)
NUL = Fault(
    "A line holds a NUL byte",
    "{path} line {line:,}: NUL byte. Lines affected: {count:,}.",
    "Remove it: tr -d '\\000' < {quoted} > clean.txt. Or have it stripped in training: text.control = \"strip\".",
)
GIANT_LINE = Fault(
    "A line is very long",
    "{path} line {line:,} is longer than {limit:,} bytes.",
    "Is it a file without line breaks? Split it into lines.",
)
UNEQUAL_LINES = Fault(
    "The files of a pair differ in length",
    "{source} has {sources:,} lines, {target} {targets:,}: they must match.{place}",
    "Line i of one is the translation of line i of the other; find the line that is missing or split.",
)
COLUMNS = Fault(
    "A line of a .tsv has not two columns",
    "{path} line {line:,} has {count:,} columns, separated by tabs; a pair has 2.",
    'Mend it, or say which columns to take: text.fields = ["1", "2"].',
)
NOT_JSON = Fault(
    "A line of a .jsonl is not what it should be",
    "{path} line {line:,}: {why}.",
    'Each line is an object with "text", or "source" and "target"; other names: text.fields = ["de", "en"].',
)
SHIFTED = Notice(
    "Pairs look shifted",
    "from line {line:,} on, the pairs of {path} look misaligned (correlation of lengths {before:.2f} before, "
    "{after:.2f} after; {shifted:.2f} with the target moved by {lag:+d}).",
    'Look at these lines before you train; text.alignment = "unchecked" says no more of it.',
)
OVERLAP = Notice(
    "Validation text is among the training text",
    "{count:,} of {lines:,} validation lines also occur in training; scores will flatter.",
    "Take them out of {path}.",
)
LEFT_OUT = Notice(
    "Some texts were left out",
    "{path}: {count:,} of {lines:,} left out: {reasons}.",
    "They are listed in {listed}.",
)
VOCABULARY_TOO_LARGE = Fault(
    "The vocabulary is too large for the text",
    "asked for {asked:,} tokens, the text supports {found:,} (text.tokenizer.size).",
    "Use size = {usable}.",
)
VOCABULARY_TOO_SMALL = Fault(
    "The vocabulary has no room",
    "asked for {asked:,} tokens, special ones and single characters need {least:,} (text.tokenizer.size).",
    "Use size = {least} or more.",
)
INDIVISIBLE = Fault(
    "The width cannot be dealt among the heads",
    "width {width} is not divisible by {heads} heads.",
    "Try width {lower} or {upper}.",
)
TOO_LONG = Fault(
    "A text is longer than the model reads",
    "{what} has {tokens:,} tokens, this model reads {longest:,}.",
    "Shorten it, or train a model that reads more (model.position).",
)
NOT_FINITE = Fault(
    "The loss is not a number",
    "loss is {loss:.4g} at step {step:,} (rate {rate:.2e}, gradient norm {norm:.3g}), batch {where}.",
    "Try train.rate = {lower:.1e}, or look at these lines.",
    RunFailed,
)
CUT = Notice(
    "Memory runs out for a step, which is then cut into more parts",
    "out of memory at step {step:,}; it was done again in {parts:,} parts, as all steps are from now on. The result is "
    "the same up to rounding and the draws of dropout.",
    "For the next run: train.accumulate = {parts}.",
)
LITTLE_MEMORY = Notice(
    'The smallest batch that train.batch_tokens = "fit" tries hardly fits',
    "batch_tokens = {tokens:,} needs most of the memory or more (train.batch_tokens).",
    "See what to change: regard plan RECIPE.",
)
OUT_OF_MEMORY = Fault(
    "Memory runs out, even for one sample",
    "out of memory at step {step:,}: not even one sample fits, the longest has {length:,} tokens.",
    "Try train.recompute = true, lower text.task.max_length or text.task.length, or take a smaller model.",
    RunFailed,
)
OUT_OF_MEMORY_TOGETHER = Fault(
    "Memory runs out in one of several processes",
    "out of memory at step {step:,}, and processes that learn together cannot cut a step anew.",
    'Go on with train.recompute = true, train.parallel = "shard" or more processes; a new run also with a higher '
    "train.accumulate.",
    RunFailed,
)
DISK_FULL = Fault(
    "A file cannot be written",
    "cannot write {path}: {why} ({room}).",
    "{remedy}",
    DiskTrouble,
)
CACHE_FULL = Fault(
    "The cache cannot be written",
    "cannot write the cache {path}: {why}.",
    "Free some space, or name another folder: REGARD_CACHE=/some/folder.",
    DiskTrouble,
)
NOT_WRITABLE = Fault(
    "The run's folder cannot be written",
    "{folder} is not writable: {why}.",
    "Choose --out or change permissions.",
)
IN_USE = Fault(
    "Another run has the folder",
    "{folder} is in use by {holder}.",
    "Stop it or choose another --out.",
)
DAMAGED_CHECKPOINT = Notice(
    "A checkpoint is damaged, an older one is not",
    "{fault}; resuming from step-{step} instead.",
    "",
)
NO_CHECKPOINT = Fault(
    "Every checkpoint is damaged",
    "no valid checkpoint in {folder} ({count} found, all damaged: {fault}).",
    "Restore one from a copy, or choose another --out.",
    CannotResume,
)
CHANGED_TEXT = Fault(
    "The text changed since the run was saved",
    "cannot resume: {path} changed since {folder} was last saved ({key}).",
    "Use the old text, or --new-data to go on with the new one from its beginning.",
    CannotResume,
)
CHANGED_SETTING = Fault(
    "A setting changed since the run was saved",
    "cannot resume: {key} was {old} when {folder} was last saved, now it is {new}.",
    "Put it back, or choose another --out.",
    CannotResume,
)
OTHER_MACHINE = Notice(
    "A run goes on with another torch, device, or number of threads or processes",
    "checkpoint made with {old}; now {new}.",
    "Results will be close but not bit-identical.",
)
PICKLE = Fault(
    "Weights are a pickle",
    "{path} is a pickle and could run code; regard will not open it.",
    "If you trust its maker: regard convert {folder} NEW --allow-pickle.",
    DamagedFile,
)
DAMAGED_WEIGHTS = Fault(
    "Weights are damaged",
    "{path} is damaged: {why}.",
    "Restore it from a copy.",
    DamagedFile,
)
CONFIG_AND_WEIGHTS = Fault(
    "Description and weights do not belong together",
    "{what} ({folder}).",
    "config.json and model.safetensors must come from the same run: copy both again.",
    DamagedFile,
)
UNKNOWN_ARCHITECTURE = Fault(
    "A folder holds a model of another kind",
    "model_type {found!r} is not supported ({folder}/config.json).",
    "regard reads its own folders and those of GPT-2, BERT, RoBERTa, DistilBERT, T5, Marian and Reformer.",
)
REMOTE_CODE = Fault(
    "A model brings its own code",
    "this model asks for its own Python code (auto_map in {folder}/config.json); regard never runs downloaded code.",
    "Name a folder of GPT-2, BERT, RoBERTa, DistilBERT, T5, Marian or Reformer.",
    DamagedFile,
)
OUTSIDE = Fault(
    "An index of weights names a file outside its folder",
    "{index} names {name!r}: outside the model folder; refused.",
    "Download the model again from a maker you trust.",
    DamagedFile,
)
BAD_TOKENIZER = Fault(
    "A tokenizer.json cannot be used",
    "tokenizer.json cannot be used: {why}.",
    "Copy or download it again, or have it saved with plainer rules.",
    DamagedFile,
)
FOREIGN_TOKENIZER = Fault(
    "Tokenizer and model do not belong together",
    "{path} has {found:,} tokens, the model knows {known:,}: they do not belong together.",
    "Copy both from the same run.",
    DamagedFile,
)

_PREFACE = """# What can go wrong

Every fault is one line, `regard: error: what (where). what to do.`, and an exit code: 1 the run failed, 2 bad input or
usage, 3 a damaged or hostile file, 4 cannot resume, 74 disk trouble, 130 and 143 signals. A traceback comes only with
`--debug`. A warning is said, and the work goes on. This page is made from `regard/messages.py`, as are the messages;
tests provoke each of them."""

ROWS: dict[str, Row] = {name: value for name, value in vars().items() if isinstance(value, Row)}


def document() -> str:
    """The page docs/errors.md."""
    lines = [*_PREFACE.splitlines(), "", "| when | message | exit code |", "|---|---|---|"]
    for row in ROWS.values():
        message = _shown(f"{row.what} {row.remedy}".strip()).replace("|", "\\|")
        code = row.kind.exit_code if isinstance(row, Fault) else "goes on"
        lines.append(f"| {row.when} | `{message}` | {code} |")
    return "\n".join(lines) + "\n"


def _shown(template: str) -> str:
    """A template for people: its fields in capitals."""
    parts = Formatter().parse(template)
    return "".join(text + (field.upper() if field else "") for text, field, _, _ in parts)


if __name__ == "__main__":
    print(document(), end="")
