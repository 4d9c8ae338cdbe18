"""Refused requests: a status, one line that never repeats the input, and the error shapes of both interfaces."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from regard.errors import InputError
from regard.serve.worker import QueueFull, Stopping

_log = logging.getLogger("regard.serve")
RETRY_AFTER = 3  # seconds
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error",
          503: "service_unavailable"}  # fmt: skip
_NO_STORE = "no-store"


class Refusal(Exception):
    """A request that is refused, with the status and the line that its client gets."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {"cache-control": _NO_STORE, **(headers or {})}
        if status in (429, 503):
            self.headers["retry-after"] = str(RETRY_AFTER)

    def body(self, path: str) -> bytes:
        """The reply's JSON: OpenAI's shape under /v1, LibreTranslate's elsewhere."""
        error: Any = self.message
        if is_openai(path):
            kind = _TYPES.get(self.status, "invalid_request_error")
            error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


def is_openai(path: str) -> bool:
    """Whether a path belongs to the OpenAI-compatible interface."""
    return path == "/v1" or path.startswith("/v1/")


def refusal_of(error: BaseException) -> Refusal:
    """The refusal that an exception becomes; of one that is no fault of the client it tells an id only."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, QueueFull):
        return Refusal(429, f"{error.waiting} requests waiting, limit {error.limit}", code="busy")
    if isinstance(error, Stopping):
        return Refusal(503, "server is stopping", code="stopping")
    if isinstance(error, InputError):  # ours, about counts and kinds, never the text itself
        return Refusal(400, " ".join(str(error).split())[:500])
    number = secrets.token_hex(4)
    _log.error("internal error, id %s", number, exc_info=error)
    return Refusal(500, f"internal error, id {number}; see server log", code="internal_error")


def shown(name: str, most: int = 64) -> str:
    """A short name that a request gave, quoted for a message."""
    return repr(name if len(name) <= most else f"{name[:most]}...")


def require_range(name: str, value: float | None, least: float, most: float) -> None:
    """Refuse a number outside its limits; None was not given."""
    if value is not None and not least <= value <= most:
        message = f"{name} must be {least:,} to {most:,}, got {_number(value)}"
        raise Refusal(400, message, param=name, code="out_of_range")


def require_count(name: str, count: int, most: int, what: str) -> None:
    """Refuse more of something than the limit."""
    if count > most:
        raise Refusal(400, f"{name} holds {count:,} {what}, limit {most:,}", param=name, code="too_many")


def _number(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}..."
