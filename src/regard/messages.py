"""The catalogue of error messages: errors, the page docs/errors.md and the tests all come from this table.

A fault ends the command with one line and an exit code; a warning is printed, and the work continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import Any

from regard.errors import CannotResume, DamagedFile, DiskTrouble, InputError, RegardError, RunFailed


@dataclass(frozen=True)
class Row:
    """A row of the catalogue: when it applies, the message, and what to do."""

    when: str
    what: str
    remedy: str

    def text(self, **facts: Any) -> str:
        """The message, with its fields filled in."""
        return f"{self.what} {self.remedy}".strip().format(**facts)


@dataclass(frozen=True)
class Fault(Row):
    """An error that ends the command, with the exit code of its class."""

    kind: type[RegardError] = InputError

    def __call__(self, **facts: Any) -> RegardError:
        return self.kind(self.text(**facts))


@dataclass(frozen=True)
class Notice(Row):
    """A warning; the work continues."""

    def __call__(self, **facts: Any) -> str:
        return f"warning: {self.text(**facts)}"


# A row: when it applies, what to say, what to do, and the class of the error.
# fmt: off
NO_FILE = Fault("A file does not exist", "no such file: {path}.", "Current directory is {here}.{hint}")
UNREADABLE = Fault("A file cannot be read", "cannot read {path}: {why}.", "Name a readable file.")
EMPTY_TEXT = Fault("A corpus is empty", "{path} has 0 lines.", "Name a file that holds text.")
NOTHING_USABLE = Fault("Every text was left out", "{path} has 0 usable {texts} of {count:,}: {reasons}.", "{remedy}")
BAD_UTF8 = Fault("A byte is not UTF-8",
    "{path} line {line:,}, byte {byte:,}: 0x{value:02X} is not UTF-8 (looks like {likely}).",
    "Convert: iconv -f {encoding} -t UTF-8 < {quoted} > utf8.txt. "
    'Or skip such lines in training: text.bad_utf8 = "skip".')
UTF16 = Fault("A file is UTF-16 or UTF-32",
    "{path} looks like {encoding} (BOM {mark}).",
    "Convert: iconv -f {encoding} -t UTF-8 < {quoted} > utf8.txt.")
GZIP = Fault("A gzip file has another name",
    "{path} is gzip (1F 8B).",
    "Rename it to end in .gz, or decompress it: gzip -dc < {quoted} > plain.txt.")
NOT_GZIP = Fault("A file named .gz cannot be decompressed",
    "{path} cannot be decompressed: {why}.",
    "Copy it again, or name it without .gz if it is plain text.", DamagedFile)
NUL = Fault("A line holds a NUL byte",
    "{path} line {line:,}: NUL byte. Lines affected: {count:,}.",
    "Remove it: tr -d '\\000' < {quoted} > clean.txt. Or strip it in training: text.control = \"strip\". "
    "If every line has one, the file is UTF-16: iconv -f UTF-16LE -t UTF-8 < {quoted} > utf8.txt.")
GIANT_LINE = Fault("A line is very long",
    "{path} line {line:,} is longer than {limit:,} bytes.",
    "Is it a file without line breaks? Split it into lines.")
UNEQUAL_LINES = Fault("The files of a pair differ in length",
    "{source} has {sources:,} lines, {target} {targets:,}: they must match.{hint}",
    "Line i of one is the translation of line i of the other; find the line that is missing or split.")
DOCUMENT = Fault("A file is a spreadsheet, a PDF, an archive or the like",
    "{path} is {what}, not text.", "{do}.")
COLUMNS = Fault("A line of a .tsv or .csv does not have the columns of a pair",
    "{path} line {line:,} has {count:,} columns, {wanted}.",
    "Correct it, or choose columns: text.fields = {example}.")
NOT_CSV = Fault("A line of a .csv is malformed",
    "{path} line {line:,}: {why}.", "Correct it, or save the table as CSV again.")
HEADER = Notice("The first line of a .tsv or .csv names its columns",
    "{path} line 1 is taken for a header ({names}) and skipped.",
    "If it is text: text.fields = {example}.")
HEADER_READ = Notice("Columns are chosen by number, but the first line names them",
    "{path} line 1 looks like a header ({names}) and is read as text, because text.fields holds numbers.",
    "If it is a header, name the columns, as in text.fields = {example}.")
NOT_JSON = Fault("A line of a .jsonl is malformed",
    "{path} line {line:,}: {why}.",
    'Each line is an object with "text", or "source" and "target"; other names: text.fields = ["de", "en"].')
SHIFTED = Notice("Pairs look shifted",
    "from line {line:,} on, the pairs of {path} look misaligned (correlation of lengths {before:.2f} before, "
    "{after:.2f} after; {shifted:.2f} with the target moved by {lag:+d}).",
    'Look at these lines before you train; text.alignment = "unchecked" turns this check off.')
OVERLAP = Notice("Validation or test text overlaps the training text",
    "{count:,} of {lines:,} {what} lines also occur in training; scores will be too good.",
    "Remove them from {path}.")
OVERLAP_SOURCE = Notice("Sources of validation or test pairs occur in training, with other targets",
    "{count:,} of {lines:,} {what} lines have a source that also occurs in training, with another target; "
    "scores may be too good.",
    "Remove them from {path}, or from the training text.")
OVERLAP_LINES = Notice("Lines of validation or test documents occur in training",
    "{count:,} of {lines:,} long {what} lines also occur in training; scores will be too good.",
    "Remove them from {path}, or from the training text.")
LEFT_OUT = Notice("Some texts were left out",
    "{path}: {count:,} of {lines:,} left out: {reasons}.", "They are listed in {listed}.")
VOCABULARY_TOO_LARGE = Fault("The vocabulary is too large for the text",
    "asked for {asked:,} tokens, the text supports {found:,} (text.tokenizer.size).",
    "Use size = {usable}.")
VOCABULARY_TOO_SMALL = Fault("The vocabulary has no room",
    "asked for {asked:,} tokens, special ones and single characters need {least:,} (text.tokenizer.size).",
    "Use size = {least} or more.")
INDIVISIBLE = Fault("The width is not divisible by the number of heads",
    "width {width} is not divisible by {heads} heads.",
    "Try width {lower} or {upper}.")
TOO_LONG = Fault("A text is longer than the model can read",
    "{what} has {tokens:,} tokens, this model reads {longest:,}.",
    "Shorten it, or train a model with more positions (model.position).")
IMPOSSIBLE = Fault("No text meets its constraints",
    "{what} is impossible: {why}.",
    "Change --must, --must-not, --glossary or --regex, or raise --beam or --max-tokens.")
NOT_FINITE = Fault("The loss is not a number",
    "loss is {loss:.4g} at step {step:,} (learning rate {learning_rate:.2e}, gradient norm {norm:.3g}), batch {where}.",
    "Try train.learning_rate = {lower:.1e}, or look at these lines.", RunFailed)
CUT = Notice("Memory runs out in a step, which is then split into micro-batches",
    "out of memory at step {step:,}; repeated in {parts:,} micro-batches (gradient accumulation), like all steps "
    "from now on. The result is the same up to rounding and dropout.",
    "For the next run: train.accumulate = {parts}.")
LITTLE_MEMORY = Notice('The smallest batch that train.batch_tokens = "fit" tries barely fits',
    "batch_tokens = {tokens:,} needs most of the memory or more (train.batch_tokens).",
    "See what to change: regard plan RECIPE.")
TOO_LARGE = Fault("A model is too large to be trained in memory",
    "training does not fit in memory: {parameters:,} parameters need {needed} for weights, gradients and optimizer, "
    "{free} are available ({place}).", "{remedy}", RunFailed)
OUT_OF_MEMORY = Fault("Memory runs out, even for one sample",
    "out of memory at step {step:,}: not even one sample fits, the longest has {length:,} tokens.",
    "Try train.gradient_checkpointing = true, lower text.task.max_length or text.task.length, or take a smaller model.",
    RunFailed)
OUT_OF_MEMORY_TOGETHER = Fault("Memory runs out in one of several processes",
    "out of memory at step {step:,}, and distributed training cannot split a step again.",
    'Resume with train.gradient_checkpointing = true, train.parallel = "shard" or more processes; a new run can also '
    "use a higher train.accumulate.", RunFailed)
DISK_FULL = Fault("A file cannot be written", "cannot write {path}: {why}{where}.", "{remedy}", DiskTrouble)
CACHE_FULL = Fault("The cache cannot be written",
    "cannot write the cache {path}: {why}.",
    "{remedy} another folder: REGARD_CACHE=/some/folder.", DiskTrouble)
NOT_WRITABLE = Fault("The run's folder cannot be written",
    "{folder} is not writable: {why}.", "Choose another folder or change its permissions.")
IN_USE = Fault("Another run uses the folder", "{folder} is in use by {holder}.", "Stop it or choose another folder.")
DAMAGED_CHECKPOINT = Notice("A checkpoint is damaged, an older one is not",
    "{fault}; resuming from step-{step} instead.", "")
NO_CHECKPOINT = Fault("Every checkpoint is damaged",
    "no valid checkpoint in {folder} ({count} found, all damaged: {fault}).",
    "Restore one from a copy, or choose another folder.", CannotResume)
CHANGED_TEXT = Fault("The text changed since the run was saved",
    "cannot resume: {path} changed since {folder} was last saved ({key}).",
    "Use the old text, or --new-data (new_data=True) to resume with the new one from its beginning.", CannotResume)
CHANGED_SETTING = Fault("A setting changed since the run was saved",
    "cannot resume: {key} was {old} when {folder} was last saved, now it is {new}.",
    "Put it back, or choose another folder.", CannotResume)
OTHER_MACHINE = Notice("A run resumes with another torch, device, or number of threads or processes",
    "checkpoint made with {old}; now {new}.",
    "Results will be close but not bit-identical.")
PICKLE = Fault("Weights are a pickle",
    "{path} is a pickle and could run code; regard will not open it.",
    "If you trust its maker: regard convert {folder} NEW --allow-pickle.", DamagedFile)
DAMAGED_WEIGHTS = Fault("Weights are damaged", "{path} is damaged: {why}.", "Restore it from a copy.", DamagedFile)
DOES_NOT_FIT = Fault("A model does not fit in memory",
    "{folder} does not fit in memory: its {parameters:,} parameters take {needed:.1f} GB to load, {free:.1f} GB are "
    "available ({place}).",
    "Stop other programs, use a machine with more memory, or a smaller model.", RunFailed)
CHANGED_FILE = Fault("A file of a model folder is not the one that was saved",
    "{path} is not the file that was saved: its SHA-256 is not that in {manifest}.",
    "Copy the folder again, or delete manifest.json if you changed the file yourself.", DamagedFile)
CONFIG_AND_WEIGHTS = Fault("Description and weights do not belong together",
    "{what} ({folder}).",
    "config.json and model.safetensors must come from the same run: copy both again.", DamagedFile)
OTHER_LABELS = Fault("config.json names fewer or more labels than the weights have",
    "config.json describes {named} labels (id2label), the weights have {found} ({folder}).",
    "Give id2label the {found} names that the model was trained with, in their order.", DamagedFile)
UNKNOWN_ARCHITECTURE = Fault("A folder holds an unsupported model",
    "model_type {found!r} is not supported ({folder}/config.json).",
    "regard reads its own folders and those of GPT-2, BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA, "
    "ALBERT, T5, mT5, Marian, BART, mBART, M2M100 (NLLB), Reformer, Llama, Mistral, Qwen2 and ModernBERT.")
REMOTE_CODE = Fault("A model brings its own code",
    "this model asks for its own Python code (auto_map in {folder}/config.json); regard never runs downloaded code.",
    "Name a folder of GPT-2, BERT, RoBERTa, DistilBERT, T5, Marian or Reformer.", DamagedFile)
OUTSIDE = Fault("An index of weights names a file outside its folder",
    "{index} names {name!r}: outside the model folder; refused.",
    "Download the model again from a maker you trust.", DamagedFile)
BAD_TOKENIZER = Fault("A tokenizer.json cannot be used",
    "tokenizer.json cannot be used: {why}.",
    "Copy or download it again, or save it with simpler rules.", DamagedFile)
FOREIGN_TOKENIZER = Fault("Tokenizer and model do not belong together",
    "{path} has {found:,} tokens, the model has {known:,}: they do not belong together.",
    "Copy both from the same run.", DamagedFile)
# fmt: on

_PREFACE = """# Error messages

Every error is one line, `regard: error: what (where). what to do.`, and an exit code: 1 the run failed, 2 bad input or
usage, 3 a damaged or hostile file, 4 cannot resume, 74 disk trouble, 130 and 143 signals. A traceback comes only with
`--debug`. After a warning the work continues. This page is generated from `regard/messages.py`; a test provokes every
message."""

ROWS: dict[str, Row] = {name: value for name, value in vars().items() if isinstance(value, Row)}


def document() -> str:
    """The page docs/errors.md."""
    lines = [*_PREFACE.splitlines(), "", "| when | message | exit code |", "|---|---|---|"]
    for row in ROWS.values():
        message = _shown(f"{row.what} {row.remedy}".strip()).replace("|", "\\|")
        code = row.kind.exit_code if isinstance(row, Fault) else "warning"
        lines.append(f"| {row.when} | `{message}` | {code} |")
    return "\n".join(lines) + "\n"


def _shown(template: str) -> str:
    """A template with its fields in capitals."""
    parts = Formatter().parse(template)
    return "".join(text + (field.upper() if field else "") for text, field, _, _ in parts)


if __name__ == "__main__":
    print(document(), end="")
