"""The front page and what only it asks for: the models and what they can do, alternatives, attention views, runs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.data.tokenize.tokenizer import word_offsets
from regard.decode.alternatives import alternative_requests, completion_options
from regard.decode.classify import label_names, predicts_next_sentence
from regard.errors import InputError
from regard.models.model import Network
from regard.serve.attention import Views, json_object, json_reply, on_worker
from regard.serve.jobs import result_of
from regard.serve.refusal import Refusal, require_count
from regard.serve.runs import Cursor, film, film_steps, metrics_of, new_metrics, total_steps
from regard.show.ablation import attention_heads
from regard.show.payload import TracePage, model_summary

if TYPE_CHECKING:
    from regard.serve.models import ServedModel

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
          ".html": "text/html; charset=utf-8"}  # fmt: skip
_MAX_ALTERNATIVES, _LEAST_ALTERNATIVES = 8, 3
_UNLIKELY = 1e-3  # alternatives below it are left out, if enough are left


def router(served: Mapping[str, ServedModel], views: Views, *, max_characters: int = 5_000) -> APIRouter:
    """The front page, its static files, and its own requests under /page; `served` may change while it runs."""
    routes = APIRouter(include_in_schema=False)
    static = static_files()

    def model_of(name: Any) -> ServedModel:
        if not isinstance(name, str) or name not in served:
            raise Refusal(404, "this model is not served here", param="model", code="model_not_found")
        return served[name]

    @routes.get("/")
    async def front(request: Request) -> Response:
        return static_reply(request, static, "front.html")

    @routes.get("/static/{name}")
    async def file(request: Request, name: str) -> Response:
        return static_reply(request, static, name)

    @routes.get("/page/models")
    async def models() -> Response:
        return await json_reply([described(one) for one in served.values()])

    @routes.post("/page/alternatives")
    async def alternatives(request: Request) -> Response:
        body = await json_object(request)
        one, text = model_of(body.get("model")), text_field(body, "text", most=max_characters)
        answer, start = text_field(body, "answer", most=max_characters), body.get("start")
        if type(start) is not int or not 0 <= start < len(answer):
            raise Refusal(400, "start must be the place of a word in answer, in characters", param="start")
        return await json_reply(await alternatives_at(one, text, answer, start))

    @routes.post("/page/attention")
    async def attention(request: Request) -> Response:
        body = await json_object(request)
        one, text, target = model_of(body.get("model")), *texts_of(body, max_characters)
        view = views.add(one.workers, partial(trace_page, one), text, target)
        await views.prepare(view)
        return await json_reply({"id": view.id})

    @routes.post("/page/film")
    async def filmed(request: Request) -> Response:
        body = await json_object(request)
        one, text, target = model_of(body.get("model")), *texts_of(body, max_characters)
        if one.folder is None or metrics_of(one.folder) is None:
            raise InputError("this model is not a run, so it has no checkpoints.")
        view = views.add(one.workers, partial(film, one.model, one.folder), text, target)
        await views.prepare(view)
        return await json_reply({"id": view.id})

    @routes.get("/page/run")
    async def run(model: str = "", after: str = "") -> Response:
        folder = model_of(model).folder
        path = metrics_of(folder)
        if folder is None or path is None:
            raise Refusal(404, "this model is not a run", code="no_run")
        try:
            found = await asyncio.to_thread(new_metrics, path, Cursor.parse(after))
            checkpoints = await asyncio.to_thread(film_steps, folder)
        except OSError:
            raise Refusal(404, "the metrics of this run cannot be read now", code="no_run") from None
        return await json_reply({**found, "checkpoints": checkpoints, "steps": total_steps(folder)})

    return routes


def described(one: ServedModel) -> dict[str, Any]:
    """What the page needs to know about a model."""
    model, tokenizer = one.model, one.model.tokenizer
    defaults = model.defaults()
    return {
        "name": one.name,
        "summary": model_summary(model.network),
        "can": list(one.capabilities),
        "shape": model.shape,
        "languages": list(one.languages) if one.languages else None,
        "labels": list(label_names(model.network)),
        "pairs": predicts_next_sentence(model.description),
        "mask": "<extra_id_0>" if tokenizer.sentinels else "[MASK]",
        "attention": has_attention(model.network),
        "run": metrics_of(one.folder) is not None,
        "beam": defaults.beam,
        "max_tokens": defaults.max_tokens,
    }


def has_attention(network: Network) -> bool:
    """Whether there is a head to show."""
    return bool(attention_heads(network))


def trace_page(one: ServedModel, text: str, target: str | None) -> TracePage:
    """The attention of one model over a text and its target, or what it generates."""
    return one.model.look(text, target)


async def alternatives_at(one: ServedModel, text: str, answer: str, start: int) -> list[dict[str, Any]]:
    """Words in place of the one that begins at `start` of a translation or continuation, the likeliest first.

    A translation comes with each, completed and with the confidence of its words; a continuation is streamed later.
    """
    model, translates = one.model, one.can("translate")
    if not translates:
        one.require("generate", "generate")
    network, tokenizers, options = model.network, model.tokenizers, model.defaults()
    before, given = "", text + answer  # a continuation follows its prompt
    if translates:  # the white space around a line was not translated
        before, text, after = text[: len(text) - len(text.lstrip())], text.strip(), text[len(text.rstrip()) :]
        given = answer.removeprefix(before).removesuffix(after)
    start += -len(before) if translates else len(text)
    at = next((at for at, (first, end) in enumerate(word_offsets(given)) if first <= start < end), None)
    if at is None:
        raise Refusal(400, "there is no word at this place", param="start")
    search = partial(alternative_requests, network, tokenizers, text, given, at, options, count=_MAX_ALTERNATIVES)
    found = [
        other
        for number, other in enumerate(await on_worker(one.workers, search))
        if number < _LEAST_ALTERNATIVES or other.probability >= _UNLIKELY
    ]
    if not translates or not found:
        return [{"word": other.word, "probability": other.probability} for other in found]
    job = one.workers.generate([other.request for other in found], completion_options(options))
    completed = await result_of(job)
    texts = [other.answer(generated[0]).text for other, generated in zip(found, completed)]
    words = await on_worker(one.workers, lambda: [model.confidences(text, translation) for translation in texts])
    return [
        {
            "word": other.word,
            "probability": other.probability,
            "text": before + translation,
            "words": [
                {**asdict(word), "start": word.start + len(before), "end": word.end + len(before)} for word in some
            ],
        }
        for other, translation, some in zip(found, texts, words)
    ]


def texts_of(body: dict[str, Any], most: int) -> tuple[str, str | None]:
    """The text of a request, and its target if it has one."""
    target = None if body.get("target") in (None, "") else text_field(body, "target", most=most)
    return text_field(body, "text", most=most), target


def text_field(body: dict[str, Any], name: str, *, most: int) -> str:
    """A text of a request, of at most so many characters."""
    value = body.get(name)
    if not isinstance(value, str):
        raise Refusal(400, f"{name} must be a string", param=name, code="bad_parameter")
    require_count(name, len(value), most, "characters")
    return value


def static_files() -> dict[str, tuple[str, bytes]]:
    """The files of the front page and the modules of the attention page: their kind and content by name."""
    return {
        path.name: (_KINDS[PurePath(path.name).suffix], path.read_bytes())
        for package in ("regard.show", "regard.serve")
        for path in files(package).joinpath("static").iterdir()
        if PurePath(path.name).suffix in _KINDS
    }


def static_reply(request: Request, static: Mapping[str, tuple[str, bytes]], name: str) -> Response:
    """A static file, or that it has not changed since the browser got it."""
    if name not in static:
        raise Refusal(404, "there is nothing here", code="not_found")
    kind, content = static[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**_HEADERS, "Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
