"""Reference pages that the code writes: commands from `--help`, docstrings of Python, keys of a recipe."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer.main
from click import Context

import regard
from regard.api import LoadedModel
from regard.cli import app
from regard.config.recipe import Decode, FineTuning, Text
from regard.decode.options import Options
from regard.decode.text_generator import TextGenerator
from regard.evaluation.laws import LAWS
from regard.models import zoo
from regard.schema import kind_of, toml_value
from regard.training.settings import Training

_COMMENT = re.compile(r"^    (\w+): .*?  # (.+)$", re.MULTILINE)
_LAWS = """
A law is a property that every model must have, whatever its parts. Each is one function, which measures by how much a
model breaks it: its proof is a test. `regard check MODEL` runs them on a trained model, and `tests/laws` on every model
of the zoo. A number above the tolerance is a bug of ours, or of a part of yours.
""".strip()
_RECIPE = """
A recipe is a TOML file with these tables; [Recipes](../recipes.md) explains them. A kind that has settings of its own
is written as a table: `schedule = { kind = "cosine", warmup = 100 }`. On the command line `--set train.steps=2000` sets
any key.
""".strip()
_OPTIONS = """
What the argument `options` holds, as in `model.translate(text, options=Options(beam=8, length_penalty=1.0))` with
`from regard.decode.options import Options`. The command line has most of them too: `--beam 8`.
""".strip()
_NEEDS = {
    "nothing": "every model", "decoder": "models with a decoder", "tokens": "models that generate tokens",
    "source": "models that read a source", "one text": "models that read one text",
}  # fmt: skip
_LONG = 96  # characters of a line of code
_ANNOTATION = re.compile(r": '([^']*)'")
_FUNCTION = re.compile(r"<function .*? at 0x[0-9a-f]+>")
_TOKEN = re.compile(r"(?<!`)<\w+>")  # in prose, as <extra_id_0>
_ARGUMENT = re.compile(r", (?=\*|\w+:)")
_TABLES = {"text": Text, "train": Training, "decode": Decode}


def pages() -> dict[str, str]:
    """The Markdown of each generated page, by its name in the book."""
    return {
        "reference/commands.md": commands(),
        "reference/python.md": python(),
        "reference/recipe.md": recipe(),
        "reference/laws.md": laws(),
    }


def commands() -> str:
    """`regard VERB --help` of every verb."""
    group: Any = typer.main.get_command(app)
    parts = ["# Command line", "", "What `regard VERB --help` prints."]
    for name, command in sorted(group.commands.items()):
        context = Context(command, info_name=f"regard {name}", terminal_width=84, max_content_width=84)
        parts += ["", f"## regard {name}", "", "```text", plain(command.get_help(context)), "```"]
    return "\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Help without trailing blanks."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def python() -> str:
    """Signature and docstring of every public name."""
    parts = ["# Python", "", "Every public name of `regard`, and the methods of a loaded model."]
    for name in regard.__all__:
        value = getattr(regard, name)
        if callable(value) and not inspect.isclass(value):
            parts += entry(f"regard.{name}", value)
    parts += ["", "## A loaded model", "", inspect.getdoc(LoadedModel) or ""]
    for name, value in sorted(members().items()):
        parts += entry(f"model.{name}", value, level="###")
    parts += ["", "## Decoding options", "", _OPTIONS, "", *table(Options)]
    parts += ["", "## The zoo", "", "Every model of the lineage is a function that returns a description."]
    for name in sorted(vars(zoo)):
        value = getattr(zoo, name)
        if inspect.isfunction(value):
            parts += entry(f"regard.zoo.{name}", value, level="###")
    parts += ["", "## Errors", ""]
    errors = [value for name in regard.__all__ if inspect.isclass(value := getattr(regard, name))]
    parts += [f"- `regard.{one.__name__}`: {(inspect.getdoc(one) or '').splitlines()[0]}" for one in errors]
    return "\n".join(parts) + "\n"


def members() -> dict[str, Any]:
    """The public methods and properties of a loaded model; where both classes have one, the base explains it."""
    found = {**vars(LoadedModel), **{name: value for name, value in vars(TextGenerator).items() if name != "aligner"}}
    return {
        name: value
        for name, value in found.items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }


def entry(name: str, value: Any, level: str = "##") -> Iterator[str]:
    """One function, method or property."""
    function: Callable[..., Any] | None = value.fget if isinstance(value, property) else value
    if function is None:
        return
    yield from ("", f"{level} {name}", "")
    if not isinstance(value, property):
        yield from ("```python", signature(name, function), "```", "")
    yield _TOKEN.sub(r"`\g<0>`", inspect.getdoc(function) or "")


def signature(name: str, function: Callable[..., Any]) -> str:
    """A call with its arguments, types and defaults; a long one has a line per argument."""
    found = inspect.signature(function)
    keys = [key for key in found.parameters if key != "self"]
    shown = str(found.replace(parameters=[found.parameters[key] for key in keys], return_annotation=found.empty))
    line = name + _FUNCTION.sub("...", _ANNOTATION.sub(r": \1", shown))
    if len(line) <= _LONG:
        return line
    cuts = [f"    {part}," for part in _ARGUMENT.split(line[len(name) + 1 : -1])]
    return "\n".join([f"{name}(", *cuts, ")"])


def recipe() -> str:
    """Every key of a recipe: its type, its default, and the comment beside it."""
    parts = ["# Recipe keys", "", _RECIPE]
    models = ", ".join(f"`{name}`" for name in sorted(vars(zoo)) if inspect.isfunction(getattr(zoo, name)))
    parts += ["", "## [model]", "", f"`name`: one of {models}, with the arguments of that function"]
    parts += ["([Python](python.md)). Or `init`, the folder of a pretrained model, with these keys:", ""]
    parts += table(FineTuning)
    for name, cls in _TABLES.items():
        parts += ["", f"## [{name}]", "", (inspect.getdoc(cls) or "").replace("[", "`[").replace("]", "]`"), ""]
        parts += table(cls)
    return "\n".join(parts) + "\n"


def table(cls: type) -> list[str]:
    """The fields of a dataclass as a Markdown table."""
    comments = dict(_COMMENT.findall(inspect.getsource(cls)))
    hints = get_type_hints(cls)
    rows = ["| key | takes | default | |", "|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        cells = (f"`{field.name}`", takes(hints[field.name]), written(default), comments.get(field.name, ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def takes(annotation: Any) -> str:
    """What a key of this type can be set to, in the words of TOML."""
    if get_origin(annotation) in (Union, types.UnionType):
        options = [one for one in get_args(annotation) if one is not type(None)]
        kinds = len(options) > 1 and all(map(dataclasses.is_dataclass, options))
        return ", ".join(f"`{toml_value(kind_of(one))}`" if kinds else takes(one) for one in options)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{toml_value(value)}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "a list"
    if dataclasses.is_dataclass(annotation):
        return "a table"
    return {int: "an integer", float: "a number", str: "text", bool: "`true`, `false`"}.get(annotation, "")


def written(default: Any) -> str:
    """A default as a recipe writes it."""
    if default is dataclasses.MISSING or default is None or default == ():
        return ""
    return f"`{toml_value(kind_of(type(default)) if dataclasses.is_dataclass(default) else default)}`"


def laws() -> str:
    """Every law: what it says, how it is tested, and the code of the test."""
    parts = ["# The laws", "", _LAWS]
    for law in LAWS:
        function = getattr(law.error, "func", law.error)
        allowed = f"at most {law.allowed:g}" if law.allowed else "none"
        parts += ["", f"## {law.name}", "", inspect.getdoc(function) or "", ""]
        parts += [f"For {_NEEDS[law.needs]}; {law.measures}: {allowed}.", ""]
        parts += ["```python", inspect.getsource(function).rstrip(), "```"]
    return "\n".join(parts) + "\n"
