"""Running a claim: trials one after another, each stored as it comes, then the verdict, the picture and the page."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import platform
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.errors import DamagedFile, InputError, suggest
from regard.lab.catalogue import FINDING, FOLDER, find
from regard.lab.claim import HELD_OUT, NOT_DECIDED, Claim, Numbers, Trial
from regard.lab.page import card, finding_page
from regard.lab.picture import draw
from regard.progress import QUIET, Progress, progress
from regard.schema import finite, from_dict, parse_toml
from regard.store.files import json_bytes, read_json, sha256, write_file
from regard.training.lock import folder_lock
from regard.version import __version__

TRIALS = "trials.json"
PICTURE = "picture.svg"
PAGE = "page.html"


@dataclass(frozen=True)
class Finding:
    """The result of a claim: verdict, numbers, rule and picture; a notebook displays it."""

    facts: Mapping[str, Any]  # the object of finding.json
    picture: str  # SVG

    @property
    def verdict(self) -> str:
        """confirmed, refuted, or not decided at this size."""
        return str(self.facts["verdict"])

    @property
    def numbers(self) -> Mapping[str, Any]:
        """By arm and measure: mean, spread and the value of each seed."""
        numbers: Mapping[str, Any] = self.facts["numbers"]
        return numbers

    @property
    def rule(self) -> str:
        """The rule of the verdict, as it was stated before the run."""
        return str(self.facts["rule"])

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trials."""
        return list(self.facts["seeds"])

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        return str(self.facts["command"])

    def to_json(self) -> dict[str, Any]:
        """The object of finding.json."""
        return dict(self.facts)

    def save(self, path: str | Path) -> None:
        """Write the page of this finding: one file that loads nothing."""
        write_file(Path(path), finding_page(self.facts, self.picture).encode())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return card(self.facts, self.picture)

    def __repr__(self) -> str:
        return f"<Finding {self.facts['name']}: {self.verdict}>"


@dataclass(frozen=True)
class Request:
    """What the user asked for: the claim, its size, its seeds and settings, a text."""

    claim: Claim[Any]
    named: str  # the claim's name, or its file
    minutes: float
    seeds: tuple[int, ...]
    settings: Any
    changed: tuple[str, ...]  # the settings that the user chose, as key=value
    text: Path | None

    @property
    def command(self) -> str:
        """The command that repeats it."""
        words = ["regard", "lab", self.named, "--minutes", f"{self.minutes:g}", "--seeds", str(len(self.seeds))]
        words += ["--first-seed", str(self.seeds[0])] if self.seeds[0] != 1 else []
        words += [word for setting in self.changed for word in ("--set", setting)]
        return shlex.join([*words, *(["--text", str(self.text)] if self.text else [])])

    @property
    def fixed(self) -> tuple[str, ...]:
        """The names of the settings that the user chose."""
        return tuple(sorted(setting.partition("=")[0].strip() for setting in self.changed))

    @property
    def key(self) -> str:
        """A digest of all that a trial depends on, besides its arm and seed."""
        text = sha256(self.text.read_bytes()) if self.text else ""
        code = inspect.getsourcefile(self.claim.measure)
        source = sha256(Path(code).read_bytes()) if code else ""  # a changed claim starts anew
        facts = [self.claim.name, self.minutes, repr(self.settings), self.fixed, text, source, __version__]
        return sha256(json.dumps(facts).encode())[:16]

    def trial(self, arm: str, seed: int, advance: Progress) -> Trial[Any]:
        """One arm with one seed."""
        scale = self.minutes / self.claim.minutes
        return Trial(arm, seed, self.settings, scale, self.text, self.fixed, advance)


def request(
    name: str, minutes: float | None, seeds: int | None, settings: Sequence[str], text: str | Path | None,
    first_seed: int = 1,
) -> Request:  # fmt: skip
    """Check what the user asked for, before any work is done."""
    claim = find(name)
    minutes = claim.minutes if minutes is None else minutes
    if not claim.fewest <= minutes < math.inf:
        raise InputError(
            f"{claim.name} takes --minutes {claim.fewest:g} or more, got {minutes:g}. Use --minutes {claim.fewest:g}."
        )
    seeds = claim.seeds if seeds is None else seeds
    if seeds < 1:
        raise InputError(f"a claim needs 1 seed or more, got {seeds} (--seeds). Use --seeds {claim.seeds}.")
    if not 1 <= first_seed <= HELD_OUT - seeds:
        raise InputError(
            f"seeds are 1 to {HELD_OUT - 1:,}, got {first_seed} to {first_seed + seeds - 1} (--first-seed). "
            "Use another first seed, such as 11."
        )
    path = None if text is None else Path(text)
    if path is not None:
        _require_text(claim, path)
    chosen = _settings(claim, settings)
    return Request(claim, name, minutes, tuple(range(first_seed, first_seed + seeds)), chosen, tuple(settings), path)


def _require_text(claim: Claim[Any], path: Path) -> None:
    if not claim.needs_text:
        raise InputError(f"{claim.name} makes its own data and reads no text (--text). Leave it out.")
    if not path.is_file():
        raise InputError(f"no such file: {path} (--text). Name a text file.")
    size = path.stat().st_size
    if size < claim.needs_text:
        raise InputError(
            f"{path} has {size:,} bytes, too few for {claim.name} (--text). Give it {claim.needs_text:,} or more."
        )
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 (--text). Convert it first.") from None


def _settings(claim: Claim[Any], changed: Sequence[str]) -> Any:
    """The claim's settings with those that the user chose."""
    if isinstance(changed, str):
        raise InputError(f'settings takes a list: settings=["{changed}"] (settings).')
    known = {field.name: field.type for field in dataclasses.fields(claim.settings)}
    table: dict[str, Any] = {}
    for setting in changed:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if key not in known:
            raise InputError(f'{claim.name} has no setting "{key}" (--set). {suggest(key, known)}')
        if not equals:
            like = f"{key}={getattr(claim.settings, key)}"
            raise InputError(f'"{setting}" is not of the form key=value (--set). Example: --set {like}.')
        try:
            table[key] = parse_toml(f"value = {value}")["value"]
        except ValueError:
            table[key] = value
    whole = {field: getattr(claim.settings, field) for field in known} | table
    whole = {key: list(value) if isinstance(value, tuple) else value for key, value in whole.items()}
    for key, value in table.items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(one, int | float) and one <= 0 for one in numbers):
            raise InputError(f"{key} must be above 0, got {value} (--set {key}).")
    return from_dict(type(claim.settings), whole, where="--set")


def run(
    name: str,
    *,
    minutes: float | None = None,
    seeds: int | None = None,
    first_seed: int = 1,
    settings: Sequence[str] = (),
    text: str | Path | None = None,
    out: str | Path | None = None,
    show: bool = True,
) -> Finding:
    """Run a claim, or resume it: trials that are stored in the folder are not repeated; -> the finding.

    `minutes`: of one core, which scale the steps (by default the claim's full size); `seeds`: how many, counted from
    `first_seed`; `settings`: the claim's own, as ["width=64"]; `out`: the folder, by default runs/lab/NAME; `show`:
    progress. One thread computes, whatever the number of cores, so that one seed gives the same numbers on every
    machine of a kind.
    """
    wanted = request(name, minutes, seeds, settings, text, first_seed)
    folder = Path(out) if out is not None else FOLDER / wanted.claim.name
    with folder_lock(folder), _one_thread():
        measured, seconds = _trials(wanted, folder / TRIALS, show=show)
        finding = conclude(wanted, measured, seconds)
        write_file(folder / PICTURE, finding.picture.encode())
        finding.save(folder / PAGE)
        write_file(folder / FINDING, json_bytes(finite(finding.to_json())))
    return finding


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _trials(wanted: Request, path: Path, *, show: bool) -> tuple[Numbers, float]:
    """Measure every arm with every seed; each trial is stored as it comes. -> numbers, and processor seconds."""
    stored = read_trials(path)
    own = stored.setdefault(wanted.key, {"seconds": {}, "trials": {}})
    done, seconds = own["trials"], own["seconds"]
    claim, seeds = wanted.claim, wanted.seeds
    names = [(arm, seed) for seed in seeds for arm in claim.arms]
    with progress(len(names), claim.name) if show else _silent() as advance:
        for arm, seed in names:
            if f"{arm} {seed}" in done:
                advance(1)
                continue
            told = 0.0

            def tell(share: float) -> None:
                nonlocal told
                told += share
                advance(share)

            begun = time.process_time()  # which other programs on the machine do not lengthen
            found = claim.measure(wanted.trial(arm, seed, tell))
            done[f"{arm} {seed}"] = {name: float(value) for name, value in found.items()}
            seconds[f"{arm} {seed}"] = time.process_time() - begun
            write_file(path, json_bytes(finite(stored)))
            advance(max(0.0, 1 - told))
    trials = {arm: [done[f"{arm} {seed}"] for seed in seeds] for arm in claim.arms}
    taken = sum(seconds[f"{arm} {seed}"] for arm, seed in names)
    return Numbers({arm: _by_measure(found) for arm, found in trials.items()}), taken


@contextmanager
def _silent() -> Iterator[Progress]:
    yield QUIET


def _by_measure(trials: Sequence[Mapping[str, float | None]]) -> dict[str, list[float]]:
    """One value per seed for each measure; what was not finite is NaN."""
    values = {name: [trial.get(name) for trial in trials] for name in trials[0]}
    return {name: [math.nan if value is None else value for value in row] for name, row in values.items()}


def read_trials(path: Path) -> dict[str, Any]:
    """The stored trials by key; none if the file is missing."""
    if not path.exists():
        return {}
    stored = read_json(path)
    for group in stored.values():
        if not isinstance(group, dict) or not _is_group(group.get("trials"), group.get("seconds")):
            raise DamagedFile(f"{path} holds no trials of a claim. Delete it, or choose another folder with --out.")
    return stored


def _is_group(trials: object, seconds: object) -> bool:
    """Whether these are trials and the processor seconds of each."""
    return isinstance(trials, dict) and isinstance(seconds, dict) and trials.keys() == seconds.keys()


def conclude(wanted: Request, numbers: Numbers, seconds: float) -> Finding:
    """Judge the numbers by the rule."""
    claim = wanted.claim
    try:
        verdict = claim.verdict(numbers)
    except (ValueError, ZeroDivisionError):
        verdict = NOT_DECIDED
    facts = {
        "name": claim.name, "question": claim.question, "source": claim.source, "verdict": verdict,
        "rule": claim.rule, "method": claim.method, "caveats": claim.caveats, "numbers": numbers.to_json(),
        "seeds": list(wanted.seeds), "minutes": wanted.minutes, "full_minutes": claim.minutes,
        "settings": dataclasses.asdict(wanted.settings), "scale": wanted.minutes / claim.minutes,
        "text": str(wanted.text) if wanted.text else None, "seconds": round(seconds, 1), "command": wanted.command,
        "versions": {"regard": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }  # fmt: skip
    return Finding(finite(facts), draw(claim.picture(numbers)))


def read_finding(folder: Path) -> Finding | None:
    """The finding in a folder, or None."""
    if not (folder / FINDING).exists() or not (folder / PICTURE).exists():
        return None
    return Finding(read_json(folder / FINDING), (folder / PICTURE).read_text(encoding="utf-8"))
