"""The attention page beside BertViz's head view, in one real browser, of the same weights."""

from __future__ import annotations

import shutil
import statistics
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import InputError
from regard.show.trace import AttentionTrace

LIBRARIES = {  # what BertViz loads from elsewhere: part of the address -> npm package, file in it
    "/d3/": ("d3-5.7.0.tgz", "package/dist/d3.min.js"),
    "/jquery/": ("jquery-2.1.0.tgz", "package/dist/jquery.min.js"),
    "/require.js/": ("requirejs-2.3.6.tgz", "package/require.js"),
}
FETCH = "npm pack d3@5.7.0 jquery@2.1.0 requirejs@2.3.6"
HOVERS, PANS = 30, 60

# When the first frame with the view in it has been painted, counted from the navigation; and for each move of the mouse
# to another token the time from the event to the end of the frame that answers it.
_WATCH = """
const painted = (f) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = f;
  channel.port2.postMessage(0);
});
window.answers = [];
const answered = ({timeStamp}) => painted(() => window.answers.push(performance.now() - timeStamp));
window.addEventListener("pointerover", answered, true);
const look = () => {
  if (document.querySelector(SELECTOR)) painted(() => { window.drawn = performance.now(); });
  else requestAnimationFrame(look);
};
look();
"""
_FRAMES = """() => { window.frames_seen = [];
const tick = (now) => { window.frames_seen.push(now); requestAnimationFrame(tick); }; requestAnimationFrame(tick); }"""


@dataclass(frozen=True)
class Case:
    """Layers, heads and tokens of random attention."""

    layers: int
    heads: int
    tokens: int
    seed: int = 1

    def weights(self) -> list[Tensor]:
        """Per layer 1HTT: each query attends to few keys."""
        noise = torch.Generator().manual_seed(self.seed)
        shape = (1, self.heads, self.tokens, self.tokens)
        return [(3 * torch.randn(shape, generator=noise)).softmax(-1) for _ in range(self.layers)]

    def words(self) -> list[str]:
        """The token texts."""
        return [f"token{index}" for index in range(self.tokens)]

    def __str__(self) -> str:
        return f"{self.layers} x {self.heads} heads, {self.tokens:,} tokens"


@dataclass(frozen=True)
class Contestant:
    """How a page is made, what shows that it is drawn, and its tokens."""

    make: Callable[[Case], str]
    drawn: str
    tokens: str
    address: str = ""


@dataclass
class Measured:
    """Medians over rounds, in milliseconds; bytes."""

    size: int
    opened: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)


def ours(case: Case) -> str:
    """Our page."""
    weights = {f"encoder.{layer}.self": heads[0] for layer, heads in enumerate(case.weights())}
    return AttentionTrace(case.words(), [], weights).html()


def theirs(case: Case) -> str:
    """BertViz's page, as it returns it for a file."""
    from bertviz.head_view import head_view

    made: str = head_view(case.weights(), case.words(), html_action="return").data
    return f"<!DOCTYPE html><meta charset=utf-8>{made}"


CONTESTANTS: Mapping[str, Contestant] = {
    "regard, heads": Contestant(
        ours, "#head-drawing .unit", '.unit[data-side="row"]', "#view=head&layer=encoder.0.self"
    ),
    "bertviz": Contestant(theirs, "#attention line", "#left > g:last-child > g"),
}
OVERVIEW = Contestant(ours, ".thumb canvas[data-painted]", ".thumb")


@contextmanager
def browsing(libraries: Path) -> Iterator[Any]:
    """A browser that finds what BertViz loads in a folder, and nothing else anywhere."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise InputError("chromium is not installed. Install it: apt-get install chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        files = {part: library(libraries, *where) for part, where in LIBRARIES.items()}

        def answer(route: Any) -> None:
            body = next((text for part, text in files.items() if part in route.request.url), None)
            if route.request.url.startswith("file:"):
                route.continue_()
            elif body is None:
                route.abort()
            else:
                route.fulfill(body=body, content_type="text/javascript")

        context.route("**/*", answer)
        yield context
        browser.close()


def library(folder: Path, package: str, name: str) -> bytes:
    """A file of an npm package."""
    if not (folder / package).exists():
        raise InputError(f"{package} is not there (--libraries {folder}). Run there: {FETCH}.")
    with tarfile.open(folder / package) as archive:
        found = archive.extractfile(name)
        assert found is not None
        return found.read()


def measure(cases: Sequence[Case], long: int, rounds: int, limit: float, libraries: Path) -> tuple[str, list[float]]:
    """-> the table of all cases, and our frames per second while one head of a long text is panned."""
    lines = ["| | file | first view drawn | hover answered |", "|---|---|---|---|"]
    with browsing(libraries) as context, tempfile.TemporaryDirectory() as folder:
        for case in cases:
            contestants = {**CONTESTANTS, "regard, overview": OVERVIEW}
            found: dict[str, Measured | None] = {}
            for name, one in contestants.items():
                path = Path(folder) / f"{name}-{case.tokens}.html"
                path.write_text(one.make(case))
                found[name] = Measured(path.stat().st_size)
            for number in range(rounds):
                for name in list(contestants)[:: -1 if number % 2 else 1]:
                    kept = found[name]
                    if kept is not None and not once(context, Path(folder), name, case, contestants[name], kept, limit):
                        found[name] = None
            lines += [row(f"{name}: {case}", one, limit) for name, one in found.items()]
        frames = [panned(context, Path(folder), long) for _ in range(rounds)]
    return "\n".join(lines), frames


def once(
    context: Any, folder: Path, name: str, case: Case, contestant: Contestant, kept: Measured, limit: float
) -> bool:
    """Open a page and move over its tokens; False when it is not drawn in time."""
    page = context.new_page()
    page.add_init_script(f"const SELECTOR = {contestant.drawn!r};{_WATCH}")
    try:
        page.goto(
            (folder / f"{name}-{case.tokens}.html").as_uri() + contestant.address,
            timeout=1000 * limit,
            wait_until="commit",
        )
        page.wait_for_function("() => window.drawn", timeout=1000 * limit)
        kept.opened.append(page.evaluate("window.drawn"))
        kept.answered.append(statistics.median(hovered(page, contestant.tokens)))
    except Exception as error:
        if "Timeout" not in type(error).__name__ and "crash" not in str(error).lower():
            raise
        return False
    finally:
        page.close()
    return True


def hovered(page: Any, tokens: str) -> list[float]:
    """Milliseconds from a mouse move to the end of the frame that responds to it."""
    boxes = [box for one in page.query_selector_all(tokens)[: HOVERS + 1] if (box := one.bounding_box())]
    boxes = [box for box in boxes if box["y"] + box["height"] < 880]
    answers = []
    for number in range(HOVERS):
        box = boxes[number % len(boxes)]
        page.evaluate("window.answers = []")
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_function("() => window.answers.length")
        answers.append(float(page.evaluate("window.answers[0]")))
    return answers


def panned(context: Any, folder: Path, tokens: int) -> float:
    """Frames per second while our matrix of one head is dragged and zoomed."""
    path = folder / f"long-{tokens}.html"
    if not path.exists():
        path.write_text(ours(Case(1, 1, tokens)))
    page = context.new_page()
    page.goto(path.as_uri() + "#view=matrix&zoom=4&x=100&y=100")
    page.wait_for_selector("#map[aria-label]")
    box = page.locator("#map").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + min(box["height"], 700) / 2
    page.mouse.move(x, y)
    page.evaluate(_FRAMES)
    page.mouse.down()
    for number in range(PANS):
        page.mouse.move(x - 4 * number, y - 3 * number)
    page.mouse.up()
    for number in range(PANS):
        page.mouse.wheel(0, -20 if number % 20 < 10 else 20)
    times: list[float] = page.evaluate("window.frames_seen")
    page.close()
    return 1000 * (len(times) - 1) / (times[-1] - times[0])


def row(name: str, found: Measured | None, limit: float) -> str:
    """A line of the table."""
    if found is None:
        return f"| {name} | | not within {limit:.0f} s | |"
    opened, answered = statistics.median(found.opened), statistics.median(found.answered)
    return f"| {name} | {found.size / 1e6:.1f} MB | {opened:,.0f} ms | {answered:.0f} ms |"
