"""Descriptions as data: frozen dataclasses to and from what JSON and TOML can write.

A slot's annotation names the classes it may hold; `{kind = "reduced_rank", rank = 8}` is resolved among those and
nothing else, so there is no registry and a file can never name a class that the slot does not offer.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union

from regard.errors import InputError, suggest

T = TypeVar("T")


def kind_of(cls: type) -> str:
    """ReducedRank -> reduced_rank, RMSNorm -> rms_norm: the name a file uses for a class."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()


def to_dict(value: Any) -> Any:
    """A tree of descriptions -> a tree of dicts, lists and scalars, each description with its `kind`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": kind_of(type(value)), **fields}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_dict(item) for key, item in value.items()}
    return value


def to_toml(tables: Mapping[str, Any]) -> str:
    """Tables of plain values as TOML: one [table] each, tables inside them inline."""
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """A plain value as TOML writes it inline."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON writes strings, numbers and booleans as TOML does, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def from_dict(annotation: Any, value: Any, *, where: str) -> Any:
    """The opposite of `to_plain`: read `value` as what `annotation` allows; `where` names the place in errors."""
    if annotation is Any:
        return value
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _from_union(typing.get_args(annotation), value, where)
    if origin is Literal:
        return _from_literal(typing.get_args(annotation), value, where)
    if origin in (tuple, list):
        return _from_sequence(annotation, value, where)
    if origin is dict:
        return dict(value)
    if dataclasses.is_dataclass(annotation):
        return _from_table([annotation], value, where)
    return _from_scalar(annotation, value, where)


def call_from_dict(function: Callable[..., T], arguments: Mapping[str, Any], *, where: str) -> T:
    """Call a function with arguments read by its own annotations; unknown or missing names are errors."""
    parameters = inspect.signature(function).parameters
    hints = _hints(function)
    for name in arguments:
        if name not in parameters:
            raise InputError(f'unknown key "{name}" ({where}). {suggest(name, parameters)}')
    given = {
        name: from_dict(hints.get(name, Any), value, where=f"{where}.{name}") for name, value in arguments.items()
    }
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD and name not in given
    ]
    if missing:
        raise InputError(f'missing key "{missing[0]}" ({where}). Add {missing[0]} = ... there.')
    try:
        return function(**given)
    except InputError as error:
        raise InputError(located(str(error), where)) from None


def located(message: str, where: str) -> str:
    """An error with its place behind what went wrong: "what (where). what to do.", also if it names the key alone."""
    if where in message:
        return message
    key = where.rpartition(": ")[2]
    if f"({key}" in message:
        return message.replace(f"({key}", f"({where}", 1)
    end = re.search(r"\.(?=\s|$)", message)
    what, remedy = (message, ".") if end is None else (message[: end.start()], message[end.start() :])
    return f"{what} ({where}){remedy}"


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function)


def _from_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if type(None) in options and (value is None or (value == "none" and str not in options)):
        return None
    wanted = [option for option in options if option is not type(None)]
    described = [option for option in options if dataclasses.is_dataclass(option)]
    if described and (isinstance(value, (Mapping, str)) or described == wanted):
        literals = [option for option in options if typing.get_origin(option) is Literal]
        if isinstance(value, str) and (str in options or any(value in typing.get_args(o) for o in literals)):
            return value
        return _from_table(described, value, where)
    failures = []
    for option in wanted:
        try:
            return from_dict(option, value, where=where)
        except InputError as error:
            failures.append(error)
    if len(wanted) == 1 or isinstance(value, (list, tuple)):
        raise failures[-1]  # of several ways to read a list, the last is the one for lists
    raise InputError(f"expected {_any_of(map(_expected, wanted))}, got {_shown(value)} ({where}).")


def _from_literal(allowed: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in allowed:
        return value
    hint = suggest(str(value), [str(option) for option in allowed])
    raise InputError(f"{_shown(value)} is not a choice ({where}). {hint}")


def _from_sequence(annotation: Any, value: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"expected a list, got {_shown(value)} ({where}). Write it in square brackets.")
    inner = typing.get_args(annotation)
    if _fixed(inner) and len(value) != len(inner):
        raise InputError(f"expected {len(inner)} values, got {len(value)} ({where}). Give {len(inner)}.")
    kinds = inner if len(inner) == len(value) and Ellipsis not in inner else (inner[0],) * len(value)
    items = [from_dict(kind, item, where=f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value))]
    return tuple(items) if typing.get_origin(annotation) is tuple else items


def _fixed(inner: tuple[Any, ...]) -> bool:
    """Whether a tuple has so many places and no other number."""
    return len(inner) > 1 and Ellipsis not in inner


def _from_table(options: list[Any], value: Any, where: str) -> Any:
    """A dataclass from a table; `kind` chooses among several, and a bare string is a kind with nothing else said."""
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        like = f'a table like {{ kind = "{kind_of(options[0])}" }}' if len(options) > 1 else "a table"
        raise InputError(f"expected {like}, got {_shown(value)} ({where}). {_kinds(options)}".strip())
    value = dict(value)
    kind = value.pop("kind", None)
    if kind is None:
        # Keys that only one of the choices has say which it is.
        fitting = [option for option in options if value.keys() <= {f.name for f in dataclasses.fields(option)}]
        if len(options) == 1 or (value and len(fitting) == 1):
            return call_from_dict((fitting or options)[0], value, where=where)
        raise InputError(f"a kind is missing ({where}). {_kinds(options)}")
    for option in options:
        if kind_of(option) == kind:
            return call_from_dict(option, value, where=where)
    raise InputError(f'unknown kind "{kind}" ({where}). {suggest(str(kind), map(kind_of, options))}')


def _from_scalar(annotation: Any, value: Any, where: str) -> Any:
    if annotation is float and type(value) is int:
        return float(value)
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"expected a number, got nan ({where}).")
    if annotation is int and type(value) is float and value.is_integer():
        return int(value)
    if isinstance(annotation, type) and (type(value) is annotation):
        return value
    raise InputError(f"expected {_expected(annotation)}, got {_shown(value)} ({where}).")


def _expected(annotation: Any) -> str:
    """What an annotation allows, in words."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return _any_of(map(_shown, typing.get_args(annotation)))
    if origin in (tuple, list):
        return "a list"
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return words.get(annotation, "a table")


def _kinds(options: list[Any]) -> str:
    """What to write where one of several tables is wanted."""
    return f"Say kind = {_any_of(_shown(kind_of(option)) for option in options)}." if len(options) > 1 else ""


def _any_of(words: Iterable[str]) -> str:
    """a, b, c -> "a, b or c"."""
    *before, last = words
    return f"{', '.join(before)} or {last}" if before else last


def _shown(value: Any) -> str:
    """A value as it would be written in a recipe."""
    text = toml_value(value) if isinstance(value, str | int | float | list | tuple | Mapping) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
