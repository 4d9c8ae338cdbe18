"""Attention pages by id, made by their model's worker: the page, exact weights, another text, heads switched off."""

from __future__ import annotations

import base64
import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from fastapi import APIRouter, Request
from fastapi.responses import Response
from torch import Tensor

from regard.errors import InputError
from regard.progress import QUIET, Progress
from regard.serve.body import parse_json
from regard.serve.jobs import compute, result_of
from regard.serve.refusal import Refusal
from regard.show.ablation import ablate, attention_heads
from regard.show.collect import max_pool
from regard.show.html import json_text, page
from regard.show.payload import TracePage, page_payload
from regard.show.trace import AttentionTrace

if TYPE_CHECKING:
    from regard.serve.pool import WorkerPool
    from regard.serve.worker import Worker

T = TypeVar("T")

_MAX_TILES = 1024  # per side
_REMEMBERED = 64  # views that can be made again
_HELD = 4  # views whose weights stay in memory
_LIVE = "."  # the page asks below its own address, whatever stands before it
NO_STORE = {"Cache-Control": "no-store"}
_FRAMED = {"Content-Security-Policy": "frame-ancestors 'self'", **NO_STORE}  # the front page shows it in a frame

MakePage = Callable[[str, str | None], TracePage]
"""A text, and perhaps its target -> the page that shows them."""


@dataclass(frozen=True, eq=False)
class MadePage:
    """A page in memory: its traces, its JSON object and its tensors."""

    shown: TracePage
    payload: dict[str, Any]
    blobs: list[bytes]


@dataclass(eq=False)
class View:
    """One attention page under a secret id; only its worker's thread changes it."""

    worker: Worker
    make: MakePage
    text: str
    target: str | None = None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    revision: int = 0
    made: MadePage | None = None

    def show(self, text: str, target: str | None, shown: TracePage, progress: Progress = QUIET) -> MadePage:
        """Show this page from now on; requests from pages of an older text are refused."""
        payload, blobs = page_payload(shown.traces, slider=shown.slider, live=_LIVE, progress=progress)
        self.text, self.target, self.revision = text, target, self.revision + 1
        self.made = MadePage(shown, {**payload, "revision": self.revision}, blobs)
        return self.made

    def trace_text(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Trace another text."""
        text, target = request.get("text"), request.get("target") or None
        if not isinstance(text, str) or not (target is None or isinstance(target, str)):
            raise InputError("text and target must be strings.")
        made = self.show(text, target, self.make(text, target))
        return {"page": made.payload, "blobs": [base64.b64encode(blob).decode() for blob in made.blobs]}

    def weights(self, made: MadePage, request: Mapping[str, str]) -> Tensor:
        """A part of a head's attention matrix, max-pooled to at most `size` tiles per side."""
        trace = self.requested_trace(made, request)
        name = request.get("layer", "")
        if name not in trace.layers:
            raise InputError(f"there is no such layer. Known: {', '.join(trace.layers)}.")
        shape = trace.layers[name].shape
        head, size = _number(request, "head", shape.heads), max(1, _number(request, "size", _MAX_TILES + 1))
        (first, last), columns = _span(request, "rows", shape.queries), _span(request, "columns", shape.keys)
        step = -(-(last - first) // size)
        found = [
            max_pool(trace.rows(name, head, at, min(at + step, last))[:, slice(*columns)], 1, size)
            for at in range(first, last, max(1, step))
        ]
        return torch.cat(found) if found else torch.zeros(0, 0)

    def ablate(self, made: MadePage, request: Mapping[str, Any]) -> dict[str, Any]:
        """Switch heads off."""
        heads = request.get("heads")
        if not isinstance(heads, list) or not all(_is_head(head) for head in heads):
            raise InputError('heads must be a list of layers and numbers, like [["decoder.0.self", 2]].')
        example = self.requested_trace(made, request).example
        assert example is not None, "a served trace has an example"
        known = attention_heads(example.network)
        if not all(0 <= head < known.get(layer, 0) for layer, head in heads):
            raise InputError("this model has no such head. Name one that it has.")
        off, inputs = [(name, number) for name, number in heads], example.collector.inputs
        return ablate(example.network, example.tokenizers, inputs, example.target_ids, off, options=example.options)

    def requested_trace(self, made: MadePage, request: Mapping[str, Any]) -> AttentionTrace:
        """The trace that a request is about, if its page is the one shown now."""
        if str(request.get("revision", self.revision)) != str(self.revision):
            raise InputError("another window has loaded another text. Reload this page.")
        return made.shown.traces[_number(request, "trace", len(made.shown.traces))][1]


class Views:
    """Attention pages by id, the newest few; one that is no longer in memory is made again when it is asked for."""

    def __init__(self, *, remembered: int = _REMEMBERED, held: int = _HELD) -> None:
        self.remembered, self.held, self.lock = remembered, held, Lock()
        self.views: OrderedDict[str, View] = OrderedDict()  # the least recently used first

    def add(self, workers: WorkerPool, make: MakePage, text: str, target: str | None = None) -> View:
        """A view of a text, which one of the workers traces when its page is asked for."""
        view = View(workers.pin(), make, text, target)
        with self.lock:
            self.views[view.id] = view
            while len(self.views) > self.remembered:
                self.views.popitem(last=False)
        return view

    def find(self, id: str) -> View:
        """The view with this id."""
        with self.lock:
            if id not in self.views:
                raise Refusal(404, "this view is no longer kept; open it again from the front page", code="no_view")
            self.views.move_to_end(id)
            return self.views[id]

    def made(self, view: View) -> MadePage:
        """The page of a view, traced again if it was dropped; called in the thread of its worker."""
        made = view.made
        if made is None:
            made = view.show(view.text, view.target, view.make(view.text, view.target))
        self.drop(view)
        return made

    def drop(self, newest: View) -> None:
        """Drop the weights of all views but the newest few."""
        with self.lock:
            others = [view for view in self.views.values() if view.made is not None and view is not newest]
            for view in others[: max(0, len(others) + 1 - self.held)]:
                view.made = None

    async def run(self, view: View, work: Callable[[MadePage], T]) -> T:
        """Work on the page of a view, in the thread of its worker."""
        return await on_worker(view.worker, lambda: work(self.made(view)))

    async def prepare(self, view: View) -> None:
        """Trace the text of a view; an error takes the view away again."""
        try:
            await self.run(view, lambda made: None)
        except BaseException:
            with self.lock:
                self.views.pop(view.id, None)
            raise


async def on_worker(worker: Worker | WorkerPool, work: Callable[[], T]) -> T:
    """Do some work in a worker's thread, between its decoding steps."""

    def outside_inference_mode() -> T:
        # A checkpoint that is loaded in inference mode has no gradients, which a page shows.
        with torch.inference_mode(False), torch.no_grad():
            return work()

    return (await result_of(worker.run(lambda model, items: [item() for item in items], [outside_inference_mode])))[0]


async def json_reply(value: Any, size: float = math.inf) -> Response:
    """A value as JSON of about so many characters; numbers that JSON cannot write are null."""
    text = await compute(lambda: json_text(value), size)
    return Response(text, media_type="application/json", headers=NO_STORE)


async def json_object(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    content = await request.body()
    return await compute(lambda: parse_json(content), len(content))


def router(views: Views) -> APIRouter:
    """The routes of the attention pages; whoever knows a view's id may use it."""
    routes = APIRouter(prefix="/attention/{id}", include_in_schema=False)

    @routes.get("/")
    async def show(id: str) -> Response:
        text = await views.run(views.find(id), lambda made: page(made.payload, made.blobs))
        return Response(text, media_type="text/html; charset=utf-8", headers=_FRAMED)

    @routes.get("/weights")
    async def weights(id: str, request: Request) -> Response:
        view, query = views.find(id), dict(request.query_params)
        found = await views.run(view, lambda made: view.weights(made, query).half().contiguous())
        shape = {"X-Shape": ",".join(map(str, found.shape))}
        return Response(found.numpy().tobytes(), media_type="application/octet-stream", headers={**NO_STORE, **shape})

    @routes.post("/trace")
    async def trace(id: str, request: Request) -> Response:
        view, body = views.find(id), await json_object(request)

        def traced() -> dict[str, Any]:
            found = view.trace_text(body)
            views.drop(view)
            return found

        return await json_reply(await on_worker(view.worker, traced))

    @routes.post("/ablate")
    async def ablate(id: str, request: Request) -> Response:
        view, body = views.find(id), await json_object(request)
        return await json_reply(await views.run(view, lambda made: view.ablate(made, body)))

    return routes


def _number(request: Mapping[str, Any], name: str, below: int) -> int:
    try:
        number = int(request.get(name, 0))
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < below:
        raise InputError(f"{name} must be a number below {below:,}.")
    return number


def _span(request: Mapping[str, str], name: str, length: int) -> tuple[int, int]:
    try:
        first, last = map(int, request.get(name, "").split(":"))
    except ValueError:
        first, last = 0, -1
    if not 0 <= first <= last <= length:
        raise InputError(f"{name} must be two numbers up to {length:,}, like 0:{length}.")
    return first, last


def _is_head(head: Any) -> bool:
    return isinstance(head, list) and [type(part) for part in head] == [str, int]
