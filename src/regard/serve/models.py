"""The models that a server serves: each with its name, worker and languages; loaded in the background from folders."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from regard.api import LoadedModel
from regard.decode.inputs import capabilities
from regard.decode.language import LanguageDetector
from regard.decode.search import joinable_options
from regard.decode.target_language import target_languages
from regard.errors import InputError
from regard.serve.pool import Threads, WorkerPool, search_apart, search_here
from regard.serve.refusal import Refusal, shown
from regard.serve.settings import Pair
from regard.serve.worker import Searching, Worker
from regard.store.languages import folder_languages

if TYPE_CHECKING:
    from regard.decode.continuous import Partial
    from regard.decode.generate import GeneratedText, Request
    from regard.decode.options import Options
    from regard.serve.worker import Job

_log = logging.getLogger("regard.serve")

UNNAMED: Pair = ("source", "target")
TORCH = "torch"


@dataclass(frozen=True)
class ServedModel:
    """A model with its workers; those of its converted engine, if it has one, search what that can honour."""

    name: str
    model: LoadedModel
    workers: WorkerPool
    folder: Path | None
    languages: Pair | None
    created: int
    engine_workers: WorkerPool | None = None

    @property
    def pools(self) -> dict[str, WorkerPool]:
        """The workers by the engine in which they search; the first is the one of a plain request."""
        torch = {TORCH: self.workers}
        if self.engine_workers is None or self.model.engine is None:
            return torch
        converted = self.model.engine.converted
        return {f"{converted.runtime}-{converted.precision}": self.engine_workers, **torch}

    def generate(
        self, requests: Sequence[Request], options: Options, *,
        on_token: Callable[[int, Partial], None] | None = None, top_logprobs: int | None = None,
    ) -> Job[list[list[GeneratedText]]]:  # fmt: skip
        """Generate for each request: in the converted engine, if it honours all that is asked, else in torch."""
        engine = self.model.engine
        asked_for_steps = on_token is not None or top_logprobs is not None
        if self.engine_workers is None or engine is None or asked_for_steps or engine.unable(requests, options):
            return self.workers.generate(requests, options, on_token=on_token, top_logprobs=top_logprobs)
        options = joinable_options(options)
        search = partial(_search_in_engine, options=replace(options, max_tokens=None))
        return self.engine_workers.run(search, requests, tokens=sum(one.length for one in requests), key=options)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The commands that fit the model, first the one it was trained for."""
        return capabilities(self.model.description, self.model.tokenizer)

    @property
    def pair(self) -> Pair:
        """Its languages; a translator that names none has "source" and "target"."""
        return self.languages or UNNAMED

    @property
    def targets(self) -> tuple[str, ...]:
        """The languages that it translates into; its own first."""
        return tuple(dict.fromkeys((self.pair[1], *target_languages(self.model.tokenizers))))

    def translating_into(self, target: str) -> ServedModel:
        """The same model, told to translate into one of its targets."""
        if target not in target_languages(self.model.tokenizers):
            return self
        return replace(self, model=self.model.translating_into(target))

    def can(self, verb: str) -> bool:
        """Whether the model was trained for a command."""
        return verb in self.capabilities

    def require(self, verb: str, what: str) -> None:
        """Refuse a request that the model was not trained for."""
        if not self.can(verb):
            message = f"model {shown(self.name)} does not {what}; it can {', '.join(self.capabilities)}"
            raise Refusal(400, message, param="model", code="wrong_model")


def _search_in_engine(model: LoadedModel, requests: list[Request], *, options: Options) -> list[list[GeneratedText]]:
    assert model.engine is not None
    return model.engine.search(requests, options)


@dataclass(frozen=True)
class ServedDetector:
    """The detector of languages with the worker of its classifier."""

    detector: LanguageDetector
    worker: Worker


def nothing() -> None:
    """What follows when all models are loaded, unless the command says more."""


def log_failure(error: BaseException) -> None:
    """Log that a model cannot be loaded."""
    _log.error("a model cannot be loaded", exc_info=error)


class Models(Mapping[str, ServedModel]):
    """The served models by name; those given as folders are loaded by `load`, outside of the event loop."""

    def __init__(
        self,
        models: Mapping[str, LoadedModel | ServedModel | Path | str],
        *,
        languages: Mapping[str, Pair] | None = None,
        detector: LoadedModel | Path | str | None = None,
        max_waiting: int = 64,
        workers: int | None = None,
        read: Callable[[Path], LoadedModel] | None = None,
    ) -> None:
        self.given, self.languages = dict(models), dict(languages or {})
        self.max_waiting, self.workers, self.threads = max_waiting, workers, Threads()
        self.read, self.given_detector = read or _load, detector
        self.detector: ServedDetector | None = None
        self.loaded: dict[str, ServedModel] = {}
        self.ready = self.loading = self.stopping = False
        self.lock = threading.Lock()
        if not models:
            raise InputError("no model is named (models). Name at least one.")
        for name in self.languages:
            if name not in self.given:
                raise InputError(f"there is no model {name} (--languages). Served: {', '.join(self.given)}.")

    def __getitem__(self, name: str) -> ServedModel:
        return self.loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.loaded)

    def __len__(self) -> int:
        return len(self.loaded)

    @property
    def in_memory(self) -> bool:
        """Whether no folder has to be loaded."""
        return not any(isinstance(model, Path | str) for model in (*self.given.values(), self.given_detector))

    def start_loading(
        self, done: Callable[[], object] = nothing, failed: Callable[[BaseException], object] = log_failure
    ) -> None:
        """Load in a thread of its own, or at once if no folder has to be; `failed` gets the error."""
        self.loading = True

        def load() -> None:
            try:
                self.load()
            except BaseException as error:
                failed(error)
            else:
                done()

        if self.in_memory:
            load()
        else:
            threading.Thread(target=load, name="loading", daemon=True).start()

    def load(self) -> None:
        """Load the folders and start the workers; nothing is done twice."""
        with self.lock:
            for name, model in self.given.items():
                if name not in self.loaded:
                    served = self._served(name, model)
                    for pool in served.pools.values():
                        pool.start()
                    self.loaded[name] = served
            if self.given_detector is not None and self.detector is None:
                self.detector = self._served_detector(self.given_detector)
                self.detector.worker.start()
            self.ready = True

    def stop(self, grace: float) -> bool:
        """Stop all workers after they finished what is in flight; -> whether they did."""
        self.stopping = True
        ends = time.monotonic() + grace
        workers: list[WorkerPool | Worker] = [pool for served in self.loaded.values() for pool in served.pools.values()]
        workers += [] if self.detector is None else [self.detector.worker]
        stopped = [worker.stop(max(0.0, ends - time.monotonic())) for worker in workers]
        return all(stopped)

    def find(self, name: str) -> ServedModel:
        """The model of this name; the name of a model never becomes a path."""
        if name not in self.loaded:
            message = f"model {shown(name)} is not served here; available: {', '.join(self.loaded)}"
            raise Refusal(404, message, param="model", code="model_not_found")
        return self.loaded[name]

    @property
    def translators(self) -> list[ServedModel]:
        """The models that translate, in the order in which they were named."""
        return [served for served in self.loaded.values() if served.can("translate")]

    def _served(self, name: str, model: LoadedModel | ServedModel | Path | str) -> ServedModel:
        if isinstance(model, ServedModel):
            return model
        folder = Path(model) if isinstance(model, Path | str) else None
        loaded = self.read(folder) if folder is not None else model
        assert isinstance(loaded, LoadedModel)
        pair = self.languages.get(name) or (None if folder is None else folder_languages(folder))
        writes = loaded.engine is not None and loaded.engine.shape != "encoder"
        workers = self._pool(loaded, search_apart)
        engine = self._pool(loaded, search_here) if writes else None  # it decodes in the engine
        return ServedModel(name, loaded, workers, folder, pair, int(time.time()), engine)

    def _pool(self, model: LoadedModel, search: Callable[[LoadedModel], Searching | None]) -> WorkerPool:
        return WorkerPool(
            model, workers=self.workers, max_waiting=self.max_waiting, threads=self.threads, search=search
        )  # fmt: skip

    def _served_detector(self, detector: LoadedModel | Path | str) -> ServedDetector:
        model = self.read(Path(detector)) if isinstance(detector, Path | str) else detector
        return ServedDetector(LanguageDetector(model), self.threads.worker(model, self.max_waiting))


def _load(folder: Path) -> LoadedModel:
    from regard.api import load

    return load(folder)
