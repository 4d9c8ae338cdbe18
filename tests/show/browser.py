"""A real browser for the tests of the page: it loads nothing but its file, and every console error fails the test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VIEWS = (
    "walk", "overview", "head", "matrix", "neuron", "generation", "positions", "buckets", "explanation", "ablation",
    "compare", "neighbours",
)  # fmt: skip
SIZE = {"width": 1280, "height": 900}
WITH_NAMES = {
    "button", "checkbox", "combobox", "textbox", "slider", "gridcell", "option", "treeitem", "image", "img", "link",
    "listbox", "grid", "tree", "dialog",
}  # fmt: skip

_SETTLED = """() => new Promise((done) => {
  let [last, same] = ["", 0];
  const check = () => {
    const now = document.body.innerText.length + location.hash + (document.querySelector("#status")?.textContent ?? "");
    same = now === last ? same + 1 : 0;
    last = now;
    if (same >= 3) done();
    else requestAnimationFrame(check);
  };
  requestAnimationFrame(check);
})"""


def started() -> Iterator[Any]:
    """The browser, until the tests end; without one the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed, so no page is opened.")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed, so no page is opened.")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Window:
    """One page in the browser."""

    def __init__(self, page: Any) -> None:
        self.page, self.errors = page, []
        page.set_default_timeout(20_000)
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("requestfailed", self._failed)

    def _failed(self, request: Any) -> None:
        """A request that failed; Chromium says "aborted" of some streams that were read to their end too."""
        if request.failure != "net::ERR_ABORTED":
            self.errors.append(f"requested {request.url}: {request.failure}")

    def go(self, address: str, **selected: Any) -> Window:
        """Open a page with a selection."""
        self.page.goto(address + (f"#{urlencode(selected)}" if selected else ""))
        return self.ready()

    def ready(self) -> Window:
        """Wait until the page is mounted and nothing on it changes."""
        self.page.wait_for_selector("html[data-ready]", state="attached")
        self.page.evaluate(_SETTLED)
        return self

    def select(self, **selected: Any) -> Window:
        """Change the selection by the address."""
        self.page.evaluate("(hash) => { location.hash = hash; }", urlencode(selected))
        self.page.wait_for_function("(view) => document.querySelector(`[data-view='${view}']`)", arg=selected["view"])
        return self.settled()

    def settled(self) -> Window:
        """Wait until nothing changes."""
        self.page.evaluate(_SETTLED)
        return self

    def press(self, *keys: str) -> Window:
        """Type keys one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
        return self.settled()

    def click(self, selector: str) -> Window:
        """Click something."""
        self.page.click(selector)
        return self.settled()

    @property
    def views(self) -> list[str]:
        """The views in the bar."""
        names: list[str] = self.page.eval_on_selector_all("#views button", "(all) => all.map((tab) => tab.id.slice(4))")
        return names

    @property
    def announced(self) -> str:
        """The last announcement to screen readers."""
        return str(self.page.text_content("#status"))

    @property
    def hash(self) -> str:
        """The selection in the address, which is written a few times a second at most."""
        self.page.wait_for_timeout(250)
        return str(self.page.evaluate("location.hash"))

    def data(self, selector: str, *names: str) -> list[list[Any]]:
        """The data-* attributes of every element found, as numbers where possible."""
        found: list[list[Any]] = self.page.eval_on_selector_all(
            selector, "(all, names) => all.map((one) => names.map((name) => one.dataset[name] ?? null))", list(names)
        )
        return [[_number(value) for value in row] for row in found]

    def hovered(self, selector: str, across: int = 12, down: int = 12) -> dict[tuple[int, int], float]:
        """Move over an element on a grid of points -> the tooltip value of each row and column."""
        self.page.locator(selector).scroll_into_view_if_needed()
        box = self.page.locator(selector).bounding_box()
        found: dict[tuple[int, int], float] = {}
        for j in range(down):
            for i in range(across):
                self.page.mouse.move(
                    box["x"] + (i + 0.5) * box["width"] / across, box["y"] + (j + 0.5) * box["height"] / down
                )
                for row, column, value in self.data("#value:not([hidden])", "row", "column", "value"):
                    found[row, column] = value
        return found

    def saved(self, kind: str, folder: Path) -> Path:
        """The file of the save menu."""
        self.page.click("#save summary")
        with self.page.expect_download() as download:
            self.page.click(f"#save-{kind}")
        path = folder / download.value.suggested_filename
        download.value.save_as(path)
        return path

    def elements(self) -> list[Any]:
        """The tags and attribute names of all elements, in order: no text may change them."""
        found: list[Any] = self.page.eval_on_selector_all(
            "*", "(all) => all.map((one) => [one.localName, one.getAttributeNames().sort().join()])"
        )
        return found

    def unnamed(self) -> list[str]:
        """The roles of controls and images without an accessible name."""
        session = self.page.context.new_cdp_session(self.page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        session.detach()
        return [
            node["role"]["value"]
            for node in nodes
            if not node["ignored"]
            and node["role"]["value"] in WITH_NAMES
            and not node.get("name", {}).get("value", "").strip()
        ]


@contextmanager
def opened(browser: Any, address: str = "", *, online: bool = False, options: dict[str, Any] | None = None, **selected):
    """A window without a network; an error in it fails the test."""
    context = browser.new_context(viewport=SIZE, offline=not online, accept_downloads=True, **(options or {}))
    if not online:
        context.route("**/*", lambda route: route.continue_() if _is_own(route.request.url) else route.abort())
    window = Window(context.new_page())
    try:
        yield window.go(address, **selected) if address else window
        assert window.errors == [], window.errors
    finally:
        context.close()


def _is_own(address: str) -> bool:
    return address.startswith(("file:", "blob:", "data:"))


def _number(value: str | None) -> Any:
    try:
        number = float(value or "")
    except ValueError:
        return value
    return int(number) if number.is_integer() and "." not in str(value) else number
