"""Schema of descriptions: frozen dataclasses to and from the tables that JSON and TOML can write.

A field's annotation names the classes it may hold; `{kind = "reduced_rank", rank = 8}` is resolved among those and the
classes that the caller passes as `also`. There is no registry: a file names no class that its reader does not offer.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

from regard.errors import InputError, suggest

T = TypeVar("T")

_LINE = 100  # characters; longer lists of a TOML table are written over several lines


class UnknownKind(InputError):
    """A table whose `kind` names none of the classes that its field offers."""


def kind_of(cls: type) -> str:
    """The name of a class in files: its ClassVar `kind`, or in snake case: `RMSNorm` -> `rms_norm`."""
    kind = vars(cls).get("kind")
    if isinstance(kind, str):
        return kind
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()


def to_dict(value: Any, *, brief: bool = False) -> Any:
    """A tree of descriptions -> a tree of dicts, lists and scalars, each description with its `kind`.

    A brief tree leaves out what equals its default and writes other Nones as "none", for TOML has no null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
        stated = {field.name: item for field, item in values.items() if not brief or item != _default(field)}
        return {"kind": kind_of(type(value)), **{name: to_dict(item, brief=brief) for name, item in stated.items()}}
    if isinstance(value, (list, tuple)):
        return [to_dict(item, brief=brief) for item in value]
    if isinstance(value, Mapping):
        return {key: to_dict(item, brief=brief) for key, item in value.items()}
    return "none" if brief and value is None else value


def _default(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, or the marker `MISSING`."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def classes_of(value: Any) -> tuple[type, ...]:
    """The classes of all descriptions in a tree, each once."""
    found: dict[type, None] = {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found[type(value)] = None
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (list, tuple)):
        for item in value:
            found |= dict.fromkeys(classes_of(item))
    return tuple(found)


def to_toml(tables: Mapping[str, Any]) -> str:
    """Tables of plain values as TOML: one [table] each, tables inside them inline."""
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; a ValueError for whatever is none, however deep or long it is."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has thousands of digits") from None


def toml_value(value: Any, indent: str = "") -> str:
    """A plain value as TOML writes it inline; long lists of tables get a line per item."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(item, indent)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        items = [toml_value(item, indent + "  ") for item in value]
        if sum(map(len, items)) <= _LINE or not isinstance(value[0], (Mapping, list, tuple)):
            return "[" + ", ".join(items) + "]"
        return "[\n" + "".join(f"{indent}  {item},\n" for item in items) + f"{indent}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON writes strings, numbers and booleans as TOML does, except DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def from_dict(annotation: Any, value: Any, *, where: str, also: Sequence[type] = ()) -> Any:
    """The opposite of `to_dict`: read `value` as what `annotation` allows; `where` is its key in error messages.

    `also` are classes of the caller's own: every union of descriptions offers them besides its own classes.
    """
    if annotation is Any:
        return value
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _from_union(typing.get_args(annotation), value, where, also)
    if origin is Literal:
        return _from_literal(typing.get_args(annotation), value, where)
    if origin in (tuple, list):
        return _from_sequence(annotation, value, where, also)
    if origin is dict:
        return dict(value)
    if dataclasses.is_dataclass(annotation):
        return _from_table([annotation], value, where, also, closed=True)
    return _from_scalar(annotation, value, where)


def call_from_dict(
    function: Callable[..., T], arguments: Mapping[str, Any], *, where: str, also: Sequence[type] = ()
) -> T:
    """Call a function with arguments read by its own annotations; unknown or missing names are errors."""
    parameters = inspect.signature(function).parameters
    hints = _hints(function)
    for name in arguments:
        if name not in parameters:
            raise InputError(f'unknown key "{name}" ({where}). {suggest(name, parameters)}')
    given = {
        name: from_dict(hints.get(name, Any), value, where=f"{where}.{name}", also=also)
        for name, value in arguments.items()
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
        first = str(error).partition(" ")[0]  # "heads must be 1 or more, got 0."
        raise InputError(located(str(error), f"{where}.{first}" if first in parameters else where)) from None


def located(message: str, where: str) -> str:
    """Put the key behind what went wrong: "what (where). what to do."; a message may have the key already."""
    if where in message:
        return message
    key = where.rpartition(": ")[2]
    if f"({key}" in message:
        return message.replace(f"({key}", f"({where}", 1)
    end = re.search(r"\.(?=\s|$)", message)
    what, remedy = (message, ".") if end is None else (message[: end.start()], message[end.start() :])
    return f"{what} ({where}){remedy}"


def finite(value: Any) -> Any:
    """A value for JSON, which has no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError:  # of a class of the caller's own that is defined inside a function
        return dict.fromkeys(inspect.signature(function).parameters, Any)


def _from_union(options: tuple[Any, ...], value: Any, where: str, also: Sequence[type]) -> Any:
    if type(None) in options and (value is None or (value == "none" and str not in options)):
        return None
    wanted = [option for option in options if option is not type(None)]
    described = [option for option in options if dataclasses.is_dataclass(option)]
    if described and (isinstance(value, (Mapping, str)) or described == wanted):
        literals = [option for option in options if typing.get_origin(option) is Literal]
        if isinstance(value, str) and (str in options or any(value in typing.get_args(o) for o in literals)):
            return value
        return _from_table(described, value, where, also)
    failures = []
    for option in wanted:
        try:
            return from_dict(option, value, where=where, also=also)
        except InputError as error:
            failures.append(error)
    if len(wanted) == 1 or isinstance(value, (list, tuple)):
        raise failures[-1]  # of several ways to read a list, the last is the one for lists
    raise InputError(f"expected {_any_of(map(_expected, wanted))}, got {_as_toml(value)} ({where}).")


def _from_literal(allowed: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in allowed:
        return value
    hint = suggest(str(value), [str(option) for option in allowed])
    raise InputError(f"{_as_toml(value)} is not a choice ({where}). {hint}")


def _from_sequence(annotation: Any, value: Any, where: str, also: Sequence[type]) -> Any:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"expected a list, got {_as_toml(value)} ({where}). Write it in square brackets.")
    inner = typing.get_args(annotation)
    fixed = len(inner) > 1 and Ellipsis not in inner
    if fixed and len(value) != len(inner):
        raise InputError(f"expected {len(inner)} values, got {len(value)} ({where}). Give {len(inner)}.")
    kinds = inner if fixed else (inner[0],) * len(value)
    items = [
        from_dict(kind, item, where=f"{where}[{i}]", also=also) for i, (kind, item) in enumerate(zip(kinds, value))
    ]
    return tuple(items) if typing.get_origin(annotation) is tuple else items


def _from_table(options: list[Any], value: Any, where: str, also: Sequence[type], *, closed: bool = False) -> Any:
    """A dataclass from a table; `kind` chooses among several, and a bare string is a kind with all its defaults.

    A class of the field wins over one of `also` with the same kind; a closed field offers nothing of `also`.
    """
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        like = f'a table like {{ kind = "{kind_of(options[0])}" }}' if len(options) > 1 else "a table"
        raise InputError(f"expected {like}, got {_as_toml(value)} ({where}). {_kinds(options)}".strip())
    value = dict(value)
    kind = value.pop("kind", None)
    if kind is None:
        # Keys that only one of the choices has tell which it is.
        fitting = [option for option in options if value.keys() <= {f.name for f in dataclasses.fields(option)}]
        if len(options) == 1 or (value and len(fitting) == 1):
            return call_from_dict((fitting or options)[0], value, where=where, also=also)
        raise InputError(f"a kind is missing ({where}). {_kinds(options)}")
    own = [] if closed else [cls for cls in also if cls not in options]
    taken = any(kind_of(option) == kind for option in options)
    for mine in own:
        ours = mine.__module__.startswith("regard.")
        if taken and not ours and kind_of(mine) == kind and _fits(mine, options):
            raise InputError(
                f'"{kind}" is a kind of regard\'s own ({where}). Give {mine.__name__} another: '
                f'kind: ClassVar[str] = "my_{kind}".'
            )
    for option in (*options, *own):
        if kind_of(option) == kind:
            if lacking := sorted(_shared(options) - {*dir(option)}):
                raise InputError(f"{option.__name__} does not fit here ({where}): it has no {', '.join(lacking)}.")
            return call_from_dict(option, value, where=where, also=also)
    offered = [*options, *(cls for cls in own if _fits(cls, options))]
    hint = f"{suggest(str(kind), map(kind_of, offered))} A class of your own: parts=[...] or --parts FILE.py."
    raise UnknownKind(f'unknown kind "{kind}" ({where}). {hint}')


def _fits(cls: type, options: list[Any]) -> bool:
    """Whether a class of the caller's own can stand in a field with these classes."""
    return _shared(options) <= {*dir(cls)}


def _shared(options: list[Any]) -> set[str]:
    """The names that all classes of a field have, and that a class of the caller's own needs as well."""
    names = set.intersection(*({*dir(option)} for option in options)) - {"facts", "kind"}
    return {name for name in names if not name.startswith("_")}


def require_parts(parts: Sequence[type]) -> tuple[type, ...]:
    """The classes of the caller's own; refuses what is no dataclass, and two of the same kind."""
    if isinstance(parts, (str, type)) or not all(isinstance(part, type) for part in parts):
        raise InputError("parts takes a list of classes, as in parts=[Mine] (parts).")
    for number, part in enumerate(parts):
        if not dataclasses.is_dataclass(part):
            raise InputError(f"{part.__name__} is no dataclass (parts). Write @dataclass(frozen=True) above it.")
        for other in parts[:number]:
            if other is not part and kind_of(other) == kind_of(part):
                raise InputError(f'{other.__name__} and {part.__name__} are both of kind "{kind_of(part)}" (parts).')
    return tuple(parts)


def _from_scalar(annotation: Any, value: Any, where: str) -> Any:
    if annotation is float and type(value) is int:
        return float(value)
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"expected a number, got nan ({where}).")
    if annotation is int and type(value) is float and value.is_integer():
        return int(value)
    if isinstance(annotation, type) and (type(value) is annotation):
        return value
    raise InputError(f"expected {_expected(annotation)}, got {_as_toml(value)} ({where}).")


def _expected(annotation: Any) -> str:
    """What an annotation allows, in plain English."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return _any_of(map(_as_toml, typing.get_args(annotation)))
    if origin in (tuple, list):
        return "a list"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(annotation, "a table")


def _kinds(options: list[Any]) -> str:
    """The kinds to choose from, where there are several."""
    return f"Write kind = {_any_of(_as_toml(kind_of(option)) for option in options)}." if len(options) > 1 else ""


def _any_of(names: Iterable[str]) -> str:
    """a, b, c -> "a, b or c"."""
    *before, last = names
    return f"{', '.join(before)} or {last}" if before else last


def _as_toml(value: Any) -> str:
    """A value as a recipe writes it, cut to 60 characters."""
    text = toml_value(value) if isinstance(value, str | int | float | list | tuple | Mapping) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
