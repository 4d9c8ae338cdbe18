"""Bodies of requests: strict JSON and forms, validated against a schema; what is refused is never repeated."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from regard.serve.jobs import compute
from regard.serve.refusal import Refusal

M = TypeVar("M", bound=BaseModel)

FORM, MULTIPART, JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"
_MAX_FIELDS = 64
_MAX_DIGITS = 400  # of an integer; floats have at most 308
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_BAD = "bad_json"
_FALSE = {"0", "false", "no", "off", ""}


@dataclass(frozen=True)
class Upload:
    """A file of a form."""

    name: str
    content: bytes


Fields = dict[str, Any]


async def read_json(request: Request, model: type[M]) -> M:
    """The JSON body of a request, validated."""
    kind, content = _content_type(request), await request.body()
    if kind not in ("", JSON):
        raise Refusal(415, "send the body as application/json", code="unsupported_media_type")
    return await compute(lambda: validate(model, parse_json(content)), len(content))


async def read_fields(request: Request) -> tuple[Fields, bool]:
    """The fields of a JSON body or of a form, and whether they come from a form, where every value is a text."""
    kind, content = _content_type(request), await request.body()
    if kind == MULTIPART:
        return await asyncio.to_thread(_parse_multipart, request.headers, content), True
    if kind == FORM:
        return await compute(lambda: _parse_form(content), len(content)), True
    if kind not in ("", JSON):
        raise Refusal(415, "send the body as application/json or as a form", code="unsupported_media_type")
    return await compute(lambda: parse_json(content), len(content)), False


def parse_json(content: bytes) -> Fields:
    """A JSON object; NaN, duplicate keys, endless integers, deep nesting and unpaired surrogates are refused."""
    text = _utf8(content)
    try:
        found = json.loads(text, parse_constant=_refuse_constant, parse_int=_integer, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        why = error.msg[:1].lower() + error.msg[1:].removesuffix(" at").removesuffix(" starting at")
        raise Refusal(400, f"body is not JSON: {why} at byte {at}", code=_BAD) from None
    except RecursionError:
        raise Refusal(400, "body is not usable JSON: it is nested too deeply", code=_BAD) from None
    if not isinstance(found, dict):
        raise Refusal(400, "body must be a JSON object", code=_BAD)
    if "\\ud" in text.lower():
        for name, value in found.items():
            refuse_surrogates(name if _NAME.fullmatch(name) else "body", [name, value])
    return found


def validate(model: type[M], fields: Fields, *, from_form: bool = False) -> M:
    """Fields as a request of this schema; a form's texts may stand for numbers."""
    try:
        return model.model_validate(fields, strict=False if from_form else None)
    except ValidationError as error:
        raise _refusal(error, model) from None


def form_switch(value: Any) -> Any:
    """A switch of a form ("true", "1", "on") as a boolean."""
    return value.strip().lower() not in _FALSE if isinstance(value, str) else value


def refuse_surrogates(name: str, value: Any) -> None:
    """Refuse half of a surrogate pair anywhere in a value: it is no text."""
    if isinstance(value, str):
        half = _SURROGATE.search(value)
        if half is not None:
            what = f"an unpaired surrogate (U+{ord(half.group()):04X}) at position {half.start()}"
            raise Refusal(400, f"{name} holds {what}; send valid Unicode", param=name, code="bad_text")
    elif isinstance(value, dict):
        refuse_surrogates(name, [*value, *value.values()])
    elif isinstance(value, list):
        for one in value:
            refuse_surrogates(name, one)


def _content_type(request: Request) -> str:
    """The media type of the body; another charset than UTF-8, or a compressed body, is refused."""
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    charset = re.search(r"charset\s*=\s*[\"']?([^\s;\"']+)", rest, re.IGNORECASE)
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise Refusal(415, "send the body as UTF-8", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "send the body without Content-Encoding", code="unsupported_media_type")
    return kind.strip().lower()


def _utf8(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Refusal(400, f"body is not UTF-8 at byte {error.start}", code="bad_text") from None


def _parse_form(content: bytes) -> Fields:
    text = _utf8(content)
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except UnicodeDecodeError:
        raise Refusal(400, "a field of the form is not UTF-8", code="bad_text") from None
    except ValueError:
        raise Refusal(400, f"the form has more than {_MAX_FIELDS} fields", code="bad_form") from None
    return _unique(pairs)


def _parse_multipart(headers: Headers, content: bytes) -> Fields:
    """The fields and files of a multipart form."""

    async def whole() -> AsyncGenerator[bytes, None]:
        yield content

    async def parsed() -> list[tuple[str, Any]]:
        parser = MultiPartParser(headers, whole(), max_files=1, max_fields=_MAX_FIELDS, max_part_size=len(content))
        form = await parser.parse()
        try:
            return [
                (name, Upload(value.filename or "", await value.read()) if isinstance(value, UploadFile) else value)
                for name, value in form.multi_items()
            ]
        finally:
            await form.close()

    try:
        fields = _unique(asyncio.run(parsed()))  # the parser is asynchronous, but it only computes
    except (MultiPartException, FormParserError, ValueError, LookupError):
        raise Refusal(400, "the form cannot be read; send multipart/form-data with one file", code="bad_form") from None
    for name, value in fields.items():
        refuse_surrogates("form", [name, value if isinstance(value, str) else ""])
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise Refusal(400, f"body is not JSON: {name} is not a number there", code=_BAD)


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise Refusal(400, f"body is not usable JSON: an integer has {len(digits):,} digits", code=_BAD)
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> Fields:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refusal(400, "a name occurs twice in one object", code=_BAD)
    return found


def _refusal(error: ValidationError, model: type[BaseModel]) -> Refusal:
    """The first fault of a request, in one line without its input."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    fault = min(faults, key=lambda fault: (fault["type"] != "missing", fault["type"] == "extra_forbidden"))
    param = str(fault["loc"][0]) if fault["loc"] else None
    if fault["type"] == "extra_forbidden":
        known = ", ".join(sorted(model.model_fields))
        param = param if param is not None and _NAME.fullmatch(param) else None
        named = f"parameter {param!r}" if param else "a parameter of the request"
        return Refusal(400, f"{named} is not known here; known: {known}", param=param, code="unknown_parameter")
    if fault["type"] == "missing":
        return Refusal(400, f"missing parameter {param!r}", param=param, code="missing_parameter")
    what = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return Refusal(400, f"{param} {what}" if param else what, param=param, code="bad_parameter")
