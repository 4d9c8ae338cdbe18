"""LibreTranslate-compatible routes: translate, languages, detect, files, health and front-end settings."""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.serve.attention import json_reply
from regard.serve.body import Fields, Upload, read_fields, validate
from regard.serve.guard import AUTHORIZED, is_key, missing_key
from regard.serve.jobs import result_of
from regard.serve.metrics import Metrics
from regard.serve.models import Models, ServedModel
from regard.serve.openapi import form_body, responses
from regard.serve.page import trace_page
from regard.serve.refusal import Refusal, require_range
from regard.serve.schemas import (
    DetectedLanguage,
    DetectRequest,
    FrontendSettings,
    Health,
    Language,
    PlainError,
    TranslateFileForm,
    TranslateFileReply,
    TranslateReply,
    TranslateRequest,
)
from regard.serve.settings import Settings
from regard.serve.translation import Kind, Translated, Wanted, translate_texts
from regard.store.languages import language_name

if TYPE_CHECKING:
    from regard.serve.attention import Views

KEY_IN_BODY = ("/translate", "/detect", "/languages", "/translate_file", "/frontend/settings", "/download_file/")
_ERRORS = responses(PlainError, 400, 401, 404, 408, 413, 415, 421, 429, 500, 503)
_FILES: dict[str, tuple[Kind, str]] = {
    "txt": ("text", "text/plain; charset=utf-8"),
    "md": ("markdown", "text/markdown; charset=utf-8"),
    "srt": ("subtitles", "application/x-subrip; charset=utf-8"),
    "vtt": ("subtitles", "text/vtt; charset=utf-8"),
    "html": ("html", "text/html; charset=utf-8"),
    "htm": ("html", "text/html; charset=utf-8"),
}
_AUTO = "auto"
_ECHOED = re.compile(r"[A-Za-z0-9_-]{1,20}")
_DOWNLOAD = {"200": {"content": {"text/plain": {}, "text/html": {}}, "description": "The file."}}

Json = dict[str, Any]


def router(models: Models, settings: Settings, metrics: Metrics, views: Views) -> APIRouter:
    """LibreTranslate's routes."""
    routes = APIRouter(tags=["LibreTranslate"], responses=_ERRORS)
    files: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    @routes.post(
        "/translate", response_model=TranslateReply, response_model_exclude_none=True,
        openapi_extra=form_body(TranslateRequest),
    )  # fmt: skip
    async def translate(request: Request) -> Response:
        """Translate a text, or several; every line is translated as `regard translate` would."""
        fields, from_form = await _fields(request, settings)
        asked = _checked(fields, from_form, settings)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        served, detected = await _choose(models, asked.source, asked.target, asked.model, texts)
        wanted = Wanted(
            asked.format or "text", asked.alternatives or 0, asked.alignment, asked.confidence, asked.split,
            asked.beam,
        )  # fmt: skip
        _check_wanted(asked, wanted)
        found = await translate_texts(served, texts, wanted, settings)
        _count(metrics, served, found)
        reply: Json = {"translatedText": [one.text for one in found]}
        if wanted.alternatives:
            reply["alternatives"] = [one.alternatives for one in found]
        if asked.source == _AUTO:
            reply["detectedLanguage"] = [detected] * len(texts)
        if wanted.alignment:
            reply["alignment"] = [[asdict(link) for link in one.alignment or ()] for one in found]
        if wanted.confidence:
            reply["confidence"] = [[asdict(word) for word in one.confidence or ()] for one in found]
        if asked.attention:
            reply["attention"] = [_view(request, views, served, one) for one in found]
        whole = reply if isinstance(asked.q, list) else {name: one[0] for name, one in reply.items()}
        return await json_reply(whole, sum(len(one.text) for one in found) * (1 + wanted.alternatives))

    @routes.post("/detect", response_model=list[DetectedLanguage], openapi_extra=form_body(DetectRequest))
    async def detect(request: Request) -> Response:
        """The language of a text, the likeliest first."""
        fields, from_form = await _fields(request, settings)
        _require_fields(fields, "q")
        asked = validate(DetectRequest, fields, from_form=from_form)
        _require_text(asked.q, settings)
        return await json_reply([*(await _detected(models, [asked.q]))[0]])

    @routes.get("/languages", response_model=list[Language])
    async def languages(request: Request) -> Response:
        """The languages that are served, and what each can be translated into."""
        await _authorise(request, settings)
        return await json_reply(_languages(models))

    @routes.post(
        "/translate_file", response_model=TranslateFileReply, openapi_extra=form_body(TranslateFileForm, files=True)
    )
    async def translate_file(request: Request) -> Response:
        """Translate a .txt, .md, .html, .srt or .vtt file; the reply tells where the translated file is."""
        fields, _ = await _fields(request, settings)
        _require_fields(fields, "file", "source", "target")
        upload = fields["file"]
        ending = upload.name.rpartition(".")[2].lower() if isinstance(upload, Upload) else ""
        if ending not in _FILES:
            raise Refusal(400, "Invalid request: file format not supported")
        texts = {name: value for name, value in fields.items() if isinstance(value, str)}
        asked = validate(TranslateFileForm, {**texts, "file": ""}, from_form=True)
        try:
            text = upload.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Refusal(400, f"Invalid request: the file is not UTF-8 at byte {error.start}") from None
        served, _ = await _choose(models, asked.source, asked.target, asked.model, [text[: settings.max_characters]])
        kind, media_type = _FILES[ending]
        found = await translate_texts(served, [text], Wanted(kind), settings)
        _count(metrics, served, found)
        name = f"{secrets.token_urlsafe(16)}.{ending}"
        files[name] = media_type, found[0].text.encode()
        while len(files) > settings.max_files:
            files.popitem(last=False)
        return await json_reply({"translatedFileUrl": f"{str(request.base_url).rstrip('/')}/download_file/{name}"})

    @routes.get("/download_file/{name}", response_class=Response, responses=_DOWNLOAD)  # type: ignore[arg-type]
    async def download_file(request: Request, name: str) -> Response:
        """A translated file; the newest few are kept."""
        await _authorise(request, settings)
        if name not in files:
            raise Refusal(404, "this file is not kept here; translate it again")
        media_type, content = files[name]
        disposition = f'attachment; filename="translation.{name.rpartition(".")[2]}"'
        headers = {"Content-Disposition": disposition, "Content-Security-Policy": "sandbox; default-src 'none'",
                   "Cache-Control": "no-store"}  # fmt: skip
        return Response(content, media_type=media_type, headers=headers)

    @routes.get("/health", response_model=Health)
    async def health() -> Response:
        """Whether the models are loaded; needs no key."""
        return await json_reply({"status": "ok"}, 0)

    @routes.get("/frontend/settings", response_model=FrontendSettings)
    async def frontend_settings(request: Request) -> Response:
        """What LibreTranslate's front ends ask for."""
        await _authorise(request, settings)
        first = [one.pair for one in models.translators] or [("source", "target")]
        named = [{"code": code, "name": language_name(code)} for code in first[0]]
        return await json_reply({
            "apiKeys": settings.api_key is not None, "charLimit": settings.max_characters,
            "filesTranslation": bool(models.translators), "frontendTimeout": 500,
            "keyRequired": settings.api_key is not None, "language": {"source": named[0], "target": named[1]},
            "suggestions": False, "supportedFilesFormat": [f".{ending}" for ending in _FILES],
        })  # fmt: skip

    return routes


async def _fields(request: Request, settings: Settings) -> tuple[Fields, bool]:
    """The fields of a request that has shown the API key."""
    authorized = request.scope[AUTHORIZED]
    try:
        fields, from_form = await read_fields(request)
    except Refusal:
        if authorized:
            raise
        raise missing_key() from None
    given = fields.get("api_key") or request.query_params.get("api_key")
    if not authorized and not is_key(given, settings.api_key or ""):
        raise missing_key()
    return fields, from_form


async def _authorise(request: Request, settings: Settings) -> None:
    """Refuse a request without the API key; LibreTranslate's own client sends it in the body of a GET."""
    if not request.scope[AUTHORIZED] and not is_key(request.query_params.get("api_key"), settings.api_key or ""):
        if not await request.body():
            raise missing_key()
        await _fields(request, settings)


def _require_fields(fields: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if fields.get(name) in (None, "", []):
            raise Refusal(400, f"Invalid request: missing {name} parameter")


def _require_text(text: str, settings: Settings) -> None:
    if len(text) > settings.max_characters:
        raise _over_limit(len(text), settings.max_characters)


def _over_limit(size: int, limit: int) -> Refusal:
    return Refusal(400, f"Invalid request: request ({size}) exceeds text limit ({limit})")


def _checked(fields: Fields, from_form: bool, settings: Settings) -> TranslateRequest:
    """A request to translate, with LibreTranslate's own messages."""
    _require_fields(fields, "q", "source", "target")
    given = fields.get("format")
    if isinstance(given, str) and given not in ("text", "html"):
        if given:
            raise Refusal(400, f"{_echo(given)} format is not supported")
        fields = {name: value for name, value in fields.items() if name != "format"}
    number = fields.get("alternatives")
    if from_form and number is not None and not (number.isascii() and number.isdecimal() and len(number) < 9):
        raise Refusal(400, "Invalid request: alternatives parameter is not a number")
    asked = validate(TranslateRequest, fields, from_form=from_form)
    if (asked.alternatives or 0) >= settings.max_choices:
        raise Refusal(400, f"Invalid request: alternatives parameter must be <= {settings.max_choices - 1}")
    require_range("beam", asked.beam, 1, settings.max_choices)
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    if len(texts) > settings.max_items:
        raise _over_limit(len(texts), settings.max_items)
    for text in texts:
        _require_text(text, settings)
    return asked


def _check_wanted(asked: TranslateRequest, wanted: Wanted) -> None:
    """Refuse what this model or this format cannot give."""
    if wanted.confidence and wanted.kind == "html":
        raise Refusal(400, "confidence is for format text; leave it out")
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    if asked.attention and (wanted.kind == "html" or wanted.split or any("\n" in text for text in texts)):
        raise Refusal(400, "attention is for single lines of format text; leave it out")
    if asked.attention and not all(text.strip() for text in texts):
        raise Refusal(400, "attention is for a text with at least one word; leave it out")


def _echo(code: str) -> str:
    """A code that a request gave, if it looks like one."""
    return code if _ECHOED.fullmatch(code) else "this"


async def _choose(
    models: Models, source: str, target: str, name: str | None, texts: list[str]
) -> tuple[ServedModel, Json]:  # fmt: skip
    """The model that translates, and the language that was detected: the first model of the pair, or the one named."""
    able = models.translators
    if name is not None:
        chosen = models.find(name)
        chosen.require("translate", "translate")
        able = [chosen]
    known = {code for one in able for code in (one.pair[0], *one.targets)}
    for code in (source, target):
        if code not in known and not (code == _AUTO and code is source):
            raise Refusal(400, f"{_echo(code)} is not supported")
    fitting = [one for one in able if target in one.targets]
    detected: Json = {"language": source, "confidence": 100.0}
    if source == _AUTO:
        detected = await _detect_source(models, fitting, texts)
    for one in fitting:
        if one.pair[0] == detected["language"]:
            return one.translating_into(target), detected
    raise Refusal(400, f"{language_name(target)} ({target}) is not available as a target language from "
                       f"{language_name(detected['language'])} ({detected['language']})")  # fmt: skip


async def _detect_source(models: Models, fitting: list[ServedModel], texts: list[str]) -> Json:
    """The likeliest language that can be translated; if there is only one and no detector, that, without confidence."""
    codes = list(dict.fromkeys(one.pair[0] for one in fitting))
    if models.detector is None:
        if len(codes) == 1:
            return {"language": codes[0], "confidence": 0.0}
        raise Refusal(400, "auto is not supported: this server detects no languages; see --detect")
    for found in (await _detected(models, ["\n".join(texts)[:5_000]]))[0]:
        if found["language"] in codes:
            return found
    raise Refusal(400, "auto is not supported: the text is in none of the languages served")


async def _detected(models: Models, texts: list[str]) -> list[list[Json]]:
    detector = models.detector
    if detector is None:
        raise Refusal(400, "this server detects no languages; start it with --detect FOLDER")
    found = await result_of(detector.worker.run(lambda _, some: detector.detector.detect(some), texts, key="detect"))
    return [[{"language": code, "confidence": float(number)} for code, number in one] for one in found]


def _languages(models: Models) -> list[Json]:
    """All languages of the translators, each with its targets."""
    targets: dict[str, list[str]] = {}
    for one in models.translators:
        known = targets.setdefault(one.pair[0], [])
        known += [target for target in one.targets if target not in known]
    for one in models.translators:
        for target in one.targets:
            targets.setdefault(target, [])
    return [{"code": code, "name": language_name(code), "targets": some} for code, some in targets.items()]


def _view(request: Request, views: Views, served: ServedModel, one: Translated) -> str:
    """The address of a page with the attention of one translation; it is traced when it is opened."""
    view = views.add(served.workers, partial(trace_page, served), one.sources[0], one.text)
    return f"{request.scope.get('root_path', '')}/attention/{view.id}/"


def _count(metrics: Metrics, served: ServedModel, found: list[Translated]) -> None:
    for one in found:
        metrics.count_tokens(served.name, *one.tokens)
