"""OpenAI-compatible routes: completions, embeddings and models; and score, fill and classify in the same manner."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from regard.decode.classify import LabelPrediction, Prediction, TagPrediction
from regard.decode.fill import FilledText, fill_masks, fill_spans
from regard.decode.generate import QUIET, GeneratedText, TokenLogprobs
from regard.decode.generate import Request as Wanted
from regard.decode.inputs import input_length
from regard.decode.score import TextScore, forced_logprobs
from regard.serve.attention import json_reply
from regard.serve.body import read_json
from regard.serve.completions import (
    Piece,
    Plan,
    check_filling,
    chosen_texts,
    completion_text,
    generated_pieces,
    logprobs_of,
    make_plan,
    prompt_pieces,
    require_text,
)
from regard.serve.jobs import compute, on_items, result_of
from regard.serve.metrics import Metrics
from regard.serve.models import Models, ServedModel
from regard.serve.openapi import json_body, responses
from regard.serve.refusal import Refusal, require_count, require_range
from regard.serve.schemas import (
    ClassifyReply,
    ClassifyRequest,
    CompletionReply,
    CompletionRequest,
    EmbeddingReply,
    EmbeddingRequest,
    FillReply,
    FillRequest,
    ModelCard,
    ModelList,
    OpenAIError,
    ScoreReply,
    ScoreRequest,
)
from regard.serve.settings import Settings
from regard.serve.stream import EventStream, Found, Progress, Streams, choice, events

if TYPE_CHECKING:
    from regard.api import LoadedModel

Json = dict[str, Any]

_ERRORS = responses(OpenAIError, 400, 401, 404, 408, 413, 415, 421, 429, 500, 503)
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"],
          "description": "A server-sent event: a CompletionReply as JSON, or [DONE]."}  # fmt: skip
_STREAM: dict[int | str, Json] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
_TOP = 5  # candidates per mask


def router(models: Models, settings: Settings, metrics: Metrics) -> APIRouter:
    """The routes under /v1."""
    streams = Streams()
    routes = APIRouter(prefix="/v1", tags=["OpenAI"], responses=_ERRORS)

    @routes.post(
        "/completions", response_model=CompletionReply, responses=_STREAM, openapi_extra=json_body(CompletionRequest)
    )
    async def completions(request: Request) -> Response:
        """Continue texts, or translate sources with an encoder-decoder; with `stream`, as server-sent events."""
        asked = await read_json(request, CompletionRequest)
        served = models.find(asked.model)
        if asked.suffix is not None:
            return await _fill_gap(served, asked, settings, metrics)
        size = len(await request.body())
        plan = await compute(lambda: make_plan(served, asked, settings), size)
        if asked.stream:
            return await _stream(plan, asked, metrics, streams)
        echoed = await _echoed(plan)
        found: Found = []
        if plan.generates:
            job = served.generate(plan.requests, plan.options, top_logprobs=plan.top)
            found = await result_of(job)
        size += sum(len(text.text) for row in found for text in row)
        size *= 1 + (plan.top or 0)
        choices = await compute(lambda: _completion(plan, found, echoed), size)
        _count(plan, found, metrics)
        return await json_reply({**_frame(served), "choices": choices, "usage": _usage(plan, found)}, size)

    @routes.post("/embeddings", response_model=EmbeddingReply, openapi_extra=json_body(EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        """One vector per text."""
        asked = await read_json(request, EmbeddingRequest)
        served, texts = models.find(asked.model), _texts("input", asked.input, settings)
        served.require("embed", "embed")
        width = served.model.description.embedding_width
        require_range("dimensions", asked.dimensions, 1, width)
        tokens = await _count_tokens(served, texts)
        vectors = await on_items(served, _embed, texts, tokens=tokens, key="embed")
        encoded = await asyncio.to_thread(_encoded, vectors, asked)
        metrics.count_tokens(served.name, tokens)
        data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(encoded)]
        return await json_reply(_list_reply(served, data, tokens))

    @routes.post("/score", response_model=ScoreReply, openapi_extra=json_body(ScoreRequest))
    async def score(request: Request) -> Response:
        """The log-probability of texts, or of targets given their sources."""
        asked = await read_json(request, ScoreRequest)
        served, texts = models.find(asked.model), _texts("input", asked.input, settings)
        served.require("score", "score text")
        targets = None if asked.target is None else _texts("target", asked.target, settings)
        paired = served.model.shape == "encoder-decoder"
        if paired != (targets is not None) or (targets is not None and len(targets) != len(texts)):
            fits = "as many targets as inputs" if paired else "no target"
            raise Refusal(400, f"this model scores inputs with {fits}", param="target")
        tokens = await _count_tokens(served, texts, targets)
        pairs = [*zip(texts, targets or [""] * len(texts))]
        found = await on_items(served, _score_pairs if paired else _score, pairs, tokens=tokens, key="score")
        metrics.count_tokens(served.name, tokens)
        return await json_reply(_list_reply(served, [*map(_score_object, range(len(found)), found)], tokens))

    @routes.post("/fill", response_model=FillReply, openapi_extra=json_body(FillRequest))
    async def fill(request: Request) -> Response:
        """Candidates for the masks of texts."""
        asked = await read_json(request, FillRequest)
        served, texts = models.find(asked.model), _texts("input", asked.input, settings)
        served.require("fill", "fill masks")
        require_range("top", asked.top, 1, settings.max_choices)
        tokens, top = await _count_tokens(served, texts), asked.top or _TOP

        def filled(model: LoadedModel, some: list[str]) -> list[FilledText]:
            return model.fill(some, top=top, progress=QUIET)

        found = await on_items(served, filled, texts, tokens=tokens)
        metrics.count_tokens(served.name, tokens)
        return await json_reply(_list_reply(served, [*map(_fill_object, range(len(found)), found)], tokens))

    @routes.post("/classify", response_model=ClassifyReply, openapi_extra=json_body(ClassifyRequest))
    async def classify(request: Request) -> Response:
        """A label, a number or tags for texts or pairs of texts."""
        asked = await read_json(request, ClassifyRequest)
        served = models.find(asked.model)
        served.require("classify", "classify")
        given: Sequence[Any] = [asked.input] if isinstance(asked.input, str) else asked.input
        items = [one if isinstance(one, str) else (one[0], one[1]) for one in given]
        _texts("input", [part for one in items for part in ([one] if isinstance(one, str) else one)], settings)
        tokens = await asyncio.to_thread(_pair_lengths, served, items)
        found = await on_items(served, _classify, items, tokens=tokens)
        metrics.count_tokens(served.name, tokens)
        return await json_reply(_list_reply(served, [*map(_class_object, range(len(found)), found)], tokens))

    @routes.get("/models", response_model=ModelList)
    async def list_models() -> Response:
        """The models that are served here."""
        return await json_reply({"object": "list", "data": [_card(one) for one in models.values()]})

    @routes.get("/models/{id}", response_model=ModelCard)
    async def model_card(id: str) -> Response:
        """One of the models that are served here."""
        return await json_reply(_card(models.find(id)))

    return routes


async def _stream(plan: Plan, asked: CompletionRequest, metrics: Metrics, streams: Streams) -> Response:
    """The reply to a streamed request; what is wrong with it is told before the stream begins."""
    echoed, progress, frame, job = await _echoed(plan), Progress(), _frame(plan.served), None
    if plan.generates:
        on_token = progress.on_token if plan.streams else None
        job = plan.served.generate(plan.requests, plan.options, on_token=on_token, top_logprobs=plan.top)
    wants_usage = asked.stream_options is not None and asked.stream_options.include_usage
    said = events(
        plan, job, progress, streams, frame=lambda choices: {**frame, "choices": choices}, echoed=echoed,
        usage=(lambda found: _usage(plan, found)) if wants_usage else None,
        done=lambda found: _count(plan, found, metrics),
    )  # fmt: skip
    return EventStream(said, job, streams)


async def _echoed(plan: Plan) -> list[tuple[str, list[Piece]]]:
    """The prompts that are repeated, each with its tokens and their log-probabilities, if asked."""
    if not plan.echo:
        return []
    if plan.top is None:
        return [(prompt.text, []) for prompt in plan.prompts]
    top = plan.top
    wanted = [replace(one, max_tokens=0) for one in plan.requests[:: plan.rows]]

    def scored(model: LoadedModel, some: list[Wanted]) -> list[TokenLogprobs]:
        return forced_logprobs(model.network, some, top)

    found = await on_items(plan.served, scored, wanted, tokens=plan.tokens, key=("prompts", top))
    return await asyncio.to_thread(
        lambda: [(p.text, prompt_pieces(plan, p, values)) for p, values in zip(plan.prompts, found)]
    )


def _completion(plan: Plan, found: Found, echoed: Sequence[tuple[str, list[Piece]]]) -> list[Json]:
    """All choices of a request."""
    nothing = GeneratedText("", 0.0, 0.0, (), False)
    by_prompt = chosen_texts(plan, found) if found else [[nothing] * plan.choices for _ in plan.prompts]
    choices: list[Json] = []
    for index, (prompt, texts) in enumerate(zip(plan.prompts, by_prompt)):
        before, pieces = echoed[index] if echoed else ("", [])
        for number, text in enumerate(texts, index * plan.choices):
            added = completion_text(plan, prompt, text.text) if found else ""
            own = list(pieces)
            if text.logprobs is not None:
                own += generated_pieces(plan, prompt, text.logprobs, end=len(added), offset=len(before))
            ended = "stop" if text.ended else "length"
            choices.append(choice(number, before + added, logprobs_of(plan, own), ended))
    return choices


async def _fill_gap(served: ServedModel, asked: CompletionRequest, settings: Settings, metrics: Metrics) -> Response:
    """Infilling: the gap between prompt and suffix is filled as a mask is."""
    text, n = check_filling(served, asked, settings), asked.n or 1
    tokens = await _count_tokens(served, [text], name="prompt")

    def filled(model: LoadedModel, some: list[str]) -> list[FilledText]:
        if model.shape == "encoder":
            return fill_masks(model.network, model.tokenizer, some, top=n)
        options = model.defaults()
        options = options if asked.max_tokens is None else replace(options, max_tokens=asked.max_tokens + 1)
        return fill_spans(model.network, model.tokenizers, some, options, top=n)

    fills = (await on_items(served, filled, [text], tokens=tokens))[0].masks[0]
    fills = [*fills, *fills[:1] * n][:n]
    choices = [choice(index, fill.text, None, "stop") for index, fill in enumerate(fills)]
    generated = sum(len(fill.tokens) for fill in fills)
    metrics.count_tokens(served.name, tokens, generated)
    usage = {"prompt_tokens": tokens, "completion_tokens": generated, "total_tokens": tokens + generated}
    return await json_reply({**_frame(served), "choices": choices, "usage": usage})


def _frame(served: ServedModel) -> Json:
    return {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()),
            "model": served.name}  # fmt: skip


def _usage(plan: Plan, found: Found) -> Json:
    generated = sum(len(text.tokens) for row in found for text in row)
    return {"prompt_tokens": plan.tokens, "completion_tokens": generated, "total_tokens": plan.tokens + generated}


def _count(plan: Plan, found: Found, metrics: Metrics) -> None:
    metrics.count_tokens(plan.served.name, plan.tokens, sum(len(text.tokens) for row in found for text in row))


def _texts(name: str, given: str | list[str], settings: Settings) -> list[str]:
    """The texts of a request, checked."""
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise Refusal(400, f"{name} is an empty list; give at least one text", param=name)
    require_count(name, len(texts), settings.max_items, "texts")
    for text in texts:
        require_text(name, text, settings)
    return texts


async def _count_tokens(
    served: ServedModel, texts: list[str], targets: list[str] | None = None, *, name: str = "input"
) -> int:
    """The tokens of texts; one with more than the model reads is refused."""
    model = served.model

    def count() -> int:
        lengths = [input_length(model.network, model.tokenizer, [ids]) for ids in model.tokenizer.encode_batch(texts)]
        _require_lengths(served, lengths, name)
        after = [len(ids) + 1 for ids in model.target_tokenizer.encode_batch(targets or [])]
        _require_lengths(served, after, "target")
        return sum(lengths) + sum(after)

    return await compute(count, sum(map(len, [*texts, *(targets or [])])))


def _pair_lengths(served: ServedModel, items: Sequence[str | tuple[str, str]]) -> int:
    model = served.model
    rows = [model.tokenizer.encode_batch([one] if isinstance(one, str) else [*one]) for one in items]
    lengths = [input_length(model.network, model.tokenizer, row) for row in rows]
    _require_lengths(served, lengths, "input")
    return sum(lengths)


def _require_lengths(served: ServedModel, lengths: Sequence[int], name: str) -> None:
    most = served.model.network.max_positions
    for index, length in enumerate(lengths, 1):
        if most is not None and length > most:
            message = f"{name} {index:,} has {length:,} tokens, limit {most:,}"
            raise Refusal(400, message, param=name, code="context_length_exceeded")


def _embed(model: LoadedModel, texts: list[str]) -> list[Any]:
    return [*model.embed(texts, progress=QUIET)]


def _encoded(vectors: Sequence[Any], asked: EmbeddingRequest) -> list[Any]:
    """Vectors as lists of numbers, or as base64 of little-endian floats."""
    cut = [np.asarray(vector, dtype="<f4")[: asked.dimensions] for vector in vectors]
    if asked.encoding_format == "base64":
        return [base64.b64encode(vector.tobytes()).decode() for vector in cut]
    return [vector.tolist() for vector in cut]


def _score(model: LoadedModel, pairs: list[tuple[str, str]]) -> list[TextScore]:
    return model.scores([text for text, _ in pairs], progress=QUIET)


def _score_pairs(model: LoadedModel, pairs: list[tuple[str, str]]) -> list[TextScore]:
    return model.scores([text for text, _ in pairs], [target for _, target in pairs], progress=QUIET)


def _classify(model: LoadedModel, items: list[Any]) -> list[Prediction]:
    return model.classify(items, progress=QUIET)


def _list_reply(served: ServedModel, data: list[Json], tokens: int) -> Json:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": served.name, "usage": usage}


def _score_object(index: int, found: TextScore) -> Json:
    tokens = [{"token": token, "logprob": max(value, -9999.0)} for token, value in found.tokens]
    return {"object": "score", "index": index, "score": max(found.total, -1e9), "tokens": tokens}


def _fill_object(index: int, found: FilledText) -> Json:
    masks = [
        [{"text": fill.text, "tokens": list(fill.tokens), "probability": fill.probability} for fill in some]
        for some in found.masks
    ]
    return {"object": "fill", "index": index, "text": found.text, "masks": masks}


def _class_object(index: int, found: Prediction) -> Json:
    whole: Json = {"object": "classification", "index": index}
    if isinstance(found, LabelPrediction):
        return {**whole, "label": found.label, "probabilities": found.probabilities}
    if isinstance(found, TagPrediction):
        return {**whole, "words": [list(pair) for pair in found.words]}
    return {**whole, "number": found.number}


def _card(served: ServedModel) -> Json:
    pair = served.pair if served.can("translate") else None
    return {
        "id": served.name, "object": "model", "created": served.created, "owned_by": "regard",
        "capabilities": list(served.capabilities), "languages": None if pair is None else list(pair),
        "engine": next(iter(served.pools)),
    }  # fmt: skip
