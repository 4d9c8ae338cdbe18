"""/openapi.json and /docs: the schema of every route, and a page of our own that shows it without scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from regard.serve.body import FORM, JSON, MULTIPART
from regard.show.html import document
from regard.version import __version__

_REF = "#/components/schemas/{model}"
_WHY = {
    400: "Bad request.", 401: "Missing or wrong API key.", 404: "Not served here.", 408: "The request came too slowly.",
    413: "The body is too large.", 415: "The body has another media type.", 421: "The Host is not allowed.",
    429: "Too many requests wait.", 500: "Internal error; the server's log has its id.",
    503: "Loading, or stopping.",
}  # fmt: skip
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:13px/1.4 ui-monospace,monospace}pre{background:#8881;padding:.6rem;overflow:auto}"
    "summary{cursor:pointer;padding:.3rem 0}table{border-collapse:collapse}td,th{padding:.15rem .8rem .15rem 0;"
    "text-align:left;vertical-align:top}:root{color-scheme:light dark}"
)

Json = dict[str, Any]


def responses(model: type[BaseModel], *statuses: int) -> dict[int | str, Json]:
    """The error replies of some routes."""
    retry = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return {
        status: {"model": model, "description": _WHY[status], **({"headers": retry} if status in (429, 503) else {})}
        for status in statuses
    }


def json_body(model: type[BaseModel]) -> Json:
    """A body of this schema, which the route itself reads and checks."""
    return {"requestBody": {"required": True, "content": {JSON: {"schema": _reference(model)}}}}


def form_body(model: type[BaseModel], *, files: bool = False) -> Json:
    """The same for a body that may also be a form, or that holds a file."""
    kinds: Sequence[str] = (MULTIPART,) if files else (JSON, FORM)
    return {"requestBody": {"required": True, "content": {kind: {"schema": _reference(model)} for kind in kinds}}}


def _reference(model: type[BaseModel]) -> Json:
    return {"$ref": _REF.format(model=model.__name__)}


def openapi_of(app: FastAPI, requests: Sequence[type[BaseModel]]) -> Json:
    """The OpenAPI schema of an app; `requests` are the bodies that routes read themselves."""
    if app.openapi_schema is None:
        found = get_openapi(
            title="regard", version=__version__, routes=app.routes,
            description="Attention models over HTTP: OpenAI-compatible and LibreTranslate-compatible routes.",
        )  # fmt: skip
        _, definitions = models_json_schema([(model, "validation") for model in requests], ref_template=_REF)
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in definitions.get("$defs", {}).items():
            schemas.setdefault(name, schema)
        for path in found["paths"].values():  # we answer 400 in our own shape instead
            for operation in path.values():
                operation["responses"].pop("422", None)
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        app.openapi_schema = found
    return app.openapi_schema


def docs_page(schema: Json) -> str:
    """The schema as one page of HTML."""
    parts = [
        f"<h1>{escape(schema['info']['title'])} {escape(schema['info']['version'])}</h1>",
        f"<p>{escape(schema['info'].get('description', ''))} The schema: <a href=openapi.json>openapi.json</a>.</p>",
    ]
    for path, operations in schema["paths"].items():
        parts += [_operation(path, method, one) for method, one in operations.items()]
    parts.append("<h2>Schemas</h2>")
    for name, model in sorted(schema["components"]["schemas"].items()):
        body = escape(json.dumps(model, indent=2, ensure_ascii=False))
        about = escape(model.get("description", ""))
        parts.append(f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> {about}</summary>"
                     f"{_fields(model)}<pre>{body}</pre></details>")  # fmt: skip
    return document(f"{schema['info']['title']}: HTTP interface", _STYLE, "".join(parts))


def _operation(path: str, method: str, operation: Json) -> str:
    about = escape(operation.get("description") or operation.get("summary", ""))
    bodies = operation.get("requestBody", {}).get("content", {})
    asked = "".join(f"<li>{escape(kind)}: {_link(one.get('schema', {}))}" for kind, one in bodies.items())
    rows = []
    for status, reply in operation["responses"].items():
        kinds = ", ".join(f"{escape(kind)} {_link(one.get('schema', {}))}" for kind, one in
                          reply.get("content", {}).items())  # fmt: skip
        rows.append(f"<tr><td>{escape(status)}<td>{escape(reply.get('description', ''))}<td>{kinds}")
    takes = f"<p>Takes:<ul>{asked}</ul>" if asked else ""
    return (f"<details><summary><code>{escape(method.upper())} {escape(path)}</code> {about}</summary>{takes}"
            f"<table>{''.join(rows)}</table></details>")  # fmt: skip


def _link(schema: Json) -> str:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return f"<a href='#{escape(name)}'>{escape(name)}</a>" if name else escape(str(schema.get("type", "")))


def _fields(model: Json) -> str:
    rows = [
        f"<tr><td><code>{escape(name)}</code><td>{escape(str(field.get('description', '')))}"
        for name, field in model.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""
