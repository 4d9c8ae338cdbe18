"""The app: all routes of the server behind its guard; `create_app` is the public door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from regard.serve import attention, libretranslate, openai, page, schemas
from regard.serve.attention import Views
from regard.serve.guard import Guard
from regard.serve.metrics import CONTENT_TYPE, Metrics
from regard.serve.models import Models, ServedModel, log_failure, nothing
from regard.serve.openapi import docs_page, openapi_of, responses
from regard.serve.refusal import Refusal, refusal_of
from regard.serve.settings import Pair, Settings

if TYPE_CHECKING:
    from regard.api import LoadedModel

_BODIES = (
    schemas.CompletionRequest, schemas.EmbeddingRequest, schemas.ScoreRequest, schemas.FillRequest,
    schemas.ClassifyRequest, schemas.TranslateRequest, schemas.DetectRequest, schemas.TranslateFileForm,
)  # fmt: skip
_STATUSES = {404: "there is nothing here", 405: "this method is not allowed here"}


def create_app(
    models: Mapping[str, LoadedModel | ServedModel | Path | str],
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    *,
    languages: Mapping[str, Pair] | None = None,
    detector: LoadedModel | Path | str | None = None,
    read: Callable[[Path], LoadedModel] | None = None,
    views: Views | None = None,
) -> FastAPI:
    """An ASGI app that serves these models by name; folders are loaded when it starts, by `read`.

    `languages` are the languages of translators by name, `detector` is a classifier of languages, `views` are attention
    pages to begin with.
    """
    served = Models(
        models, languages=languages, detector=detector, max_waiting=settings.max_waiting, workers=settings.workers,
        read=read,
    )  # fmt: skip
    metrics, views = Metrics(served), Views() if views is None else views
    app = FastAPI(title="regard", lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None,
                  redirect_slashes=False)  # fmt: skip
    app.state.models, app.state.settings, app.state.views, app.state.metrics = served, settings, views, metrics
    app.state.on_ready, app.state.on_failure, app.state.finished = nothing, log_failure, True
    app.include_router(openai.router(served, settings, metrics))
    app.include_router(libretranslate.router(served, settings, metrics, views))
    app.include_router(page.router(served, views, max_characters=settings.max_characters))
    app.include_router(attention.router(views))
    app.include_router(_own_routes(app, metrics))
    app.openapi = lambda: openapi_of(app, _BODIES)  # type: ignore[method-assign]
    for kind in (HTTPException, RequestValidationError, Refusal):
        app.add_exception_handler(kind, _refused)
    app.add_middleware(
        Guard, models=served, settings=settings, metrics=metrics, key_in_body=libretranslate.KEY_IN_BODY
    )  # fmt: skip
    if settings.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


def _own_routes(app: FastAPI, metrics: Metrics) -> APIRouter:
    """The schema, the page that shows it, and the metrics."""
    errors = responses(schemas.PlainError, 400, 401, 408, 413, 421, 500, 503)
    routes = APIRouter(tags=["server"], responses=errors)
    plain = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @routes.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return JSONResponse(app.openapi())

    @routes.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(await asyncio.to_thread(lambda: docs_page(app.openapi())))

    @routes.get("/metrics", response_class=Response, responses=plain)  # type: ignore[arg-type]
    async def metrics_text() -> Response:
        """Requests, seconds, tokens and queues, as Prometheus text."""
        tasks = len(asyncio.all_tasks())
        return Response(await asyncio.to_thread(metrics.text, tasks), media_type=CONTENT_TYPE)

    return routes


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the models in a thread of their own, and stop their workers at the end."""
    models, settings, loop = app.state.models, app.state.settings, asyncio.get_running_loop()
    models.start_loading(
        lambda: loop.call_soon_threadsafe(app.state.on_ready),
        lambda error: loop.call_soon_threadsafe(app.state.on_failure, error),
    )
    yield
    app.state.finished = models.ready and await asyncio.to_thread(models.stop, settings.grace_seconds)


async def _refused(request: Request, error: Exception) -> Response:
    """A refusal in the shape of its route; of the framework's own errors only the status is kept."""
    if isinstance(error, RequestValidationError):
        refusal = Refusal(400, "a parameter of the address is not valid")
    elif isinstance(error, HTTPException):
        headers: dict[str, Any] = dict(error.headers or {})
        refusal = Refusal(error.status_code, _STATUSES.get(error.status_code, "bad request"), headers=headers)
    else:
        refusal = refusal_of(error)
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return Response(refusal.body(path), refusal.status, headers=refusal.headers, media_type="application/json")
