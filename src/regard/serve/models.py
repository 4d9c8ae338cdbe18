"""The models that a server serves: each with its name, worker and languages; loaded in the background from folders."""

from __future__ import annotations

import re
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babel import Locale

from regard.api import LoadedModel
from regard.data.read.corpus import pair_paths
from regard.decode.inputs import capabilities
from regard.decode.language import LanguageDetector
from regard.errors import InputError
from regard.serve.pool import Threads, WorkerPool
from regard.serve.refusal import Refusal, shown
from regard.serve.settings import LANGUAGE_CODE, Pair
from regard.serve.worker import Worker

UNNAMED: Pair = ("source", "target")
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_LANGUAGE = re.compile(r"^language:[ \t]*(?:\[(?P<flow>[^\]\n]*)\]|(?P<block>(?:\r?\n[ \t]*- .*)+))", re.MULTILINE)


@dataclass(frozen=True)
class ServedModel:
    """A model with its workers."""

    name: str
    model: LoadedModel
    workers: WorkerPool
    folder: Path | None
    languages: Pair | None
    created: int

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The commands that fit the model, first the one it was trained for."""
        return capabilities(self.model.description, self.model.tokenizer)

    @property
    def pair(self) -> Pair:
        """Its languages; a translator that names none has "source" and "target"."""
        return self.languages or UNNAMED

    def can(self, verb: str) -> bool:
        """Whether the model was trained for a command."""
        return verb in self.capabilities

    def require(self, verb: str, what: str) -> None:
        """Refuse a request that the model was not trained for."""
        if not self.can(verb):
            message = f"model {shown(self.name)} does not {what}; it can {', '.join(self.capabilities)}"
            raise Refusal(400, message, param="model", code="wrong_model")


@dataclass(frozen=True)
class ServedDetector:
    """The detector of languages with the worker of its classifier."""

    detector: LanguageDetector
    worker: Worker


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
        self.ready = self.stopping = False
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

    def load(self) -> None:
        """Load the folders and start the workers; nothing is done twice."""
        with self.lock:
            for name, model in self.given.items():
                if name not in self.loaded:
                    served = self._served(name, model)
                    served.workers.start()
                    self.loaded[name] = served
            if self.given_detector is not None and self.detector is None:
                self.detector = self._served_detector(self.given_detector)
                self.detector.worker.start()
            self.ready = True

    def stop(self, grace: float) -> bool:
        """Stop all workers after they finished what is in flight; -> whether they did."""
        self.stopping = True
        ends = time.monotonic() + grace
        workers: list[WorkerPool | Worker] = [served.workers for served in self.loaded.values()]
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
        workers = WorkerPool(loaded, workers=self.workers, max_waiting=self.max_waiting, threads=self.threads)
        return ServedModel(name, loaded, workers, folder, pair, int(time.time()))

    def _served_detector(self, detector: LoadedModel | Path | str) -> ServedDetector:
        model = self.read(Path(detector)) if isinstance(detector, Path | str) else detector
        return ServedDetector(LanguageDetector(model), self.threads.worker(model, self.max_waiting))


def _load(folder: Path) -> LoadedModel:
    from regard.api import load

    return load(folder, engine="torch")


def folder_languages(folder: Path) -> Pair | None:
    """The languages of a translator, from its recipe or its model card; None if they name none."""
    return _recipe_languages(folder / "recipe.toml") or _card_languages(folder / "README.md")


def _recipe_languages(path: Path) -> Pair | None:
    """The languages in the names of the training files, as in train = "data/train.{de,en}" or fields = ["de", "en"]."""
    try:
        text: Any = tomllib.loads(path.read_text("utf-8")).get("text")
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(text, dict):
        return None
    named = text.get("train")
    files = named if isinstance(named, list) else [named]
    names = [file.get("path") if isinstance(file, dict) else file for file in files]
    pairs = [pair_paths(name) for name in names if isinstance(name, str)]
    found = {_codes([_last_suffix(path) for path in pair]) for pair in pairs if pair}
    if isinstance(text.get("fields"), list):
        found.add(_codes(text["fields"]))
    found -= {None}
    return found.pop() if len(found) == 1 else None


def _last_suffix(path: Path) -> str:
    """The ending of train.de, also in train.de.gz and train.de.txt."""
    suffixes = [suffix[1:] for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if is_language(suffix)), "")


def _card_languages(path: Path) -> Pair | None:
    """The two languages in the front matter of a model card (README.md)."""
    try:
        text = path.read_text("utf-8")[: 1 << 16]
    except (OSError, ValueError):
        return None
    front = _FRONT_MATTER.match(text)
    found = None if front is None else _LANGUAGE.search(front[1])
    if found is None:
        return None
    named = found["flow"].split(",") if found["flow"] is not None else re.findall(r"- (.*)", found["block"])
    return _codes([code.strip().strip("\"'") for code in named])


def _codes(names: list[Any]) -> Pair | None:
    codes = [name for name in names if isinstance(name, str) and is_language(name)]
    return (codes[0], codes[1]) if len(codes) == len(names) == 2 and codes[0] != codes[1] else None


def is_language(code: str) -> bool:
    """Whether a code is that of a language."""
    known = Locale("en").languages
    return LANGUAGE_CODE.fullmatch(code) is not None and (
        code.replace("-", "_") in known or re.split("[-_]", code)[0] in known
    )


def language_name(code: str) -> str:
    """The English name of a language; of an unknown code, the code itself."""
    known = Locale("en").languages
    return str(known.get(code.replace("-", "_")) or known.get(re.split("[-_]", code)[0]) or code.capitalize())
