"""Hostile texts in every reply that the front page shows: its elements stay those of harmless texts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from regard.models import zoo
from tests.show.browser import Window, opened, started
from tests.show.test_hostile import HOSTILE
from tests.small import small

from .live import Live, live

# White space as JavaScript knows it: between words, it stays in the harmless text.
_SPACE = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
TASKS = ("translate", "generate", "fill", "classify", "embed", "score")


def harmless(text: str) -> str:
    """A text with the same words, all of them made of one letter."""
    return "".join(character if character in _SPACE else "w" for character in text)


class Texts:
    """Texts in turn, so that every sink gets another."""

    def __init__(self, texts: list[str], at: int) -> None:
        self.texts, self.at = texts, at

    def __call__(self) -> str:
        self.at += 1
        return self.texts[self.at % len(self.texts)]

    def words(self) -> dict[str, Any]:
        """A text of two words, and where they are."""
        first, second = self(), self()
        text = f"{first} {second}"
        found = [(first, 0), (second, len(first) + 1)]
        confidence = [
            {"word": word, "start": start, "end": start + len(word), "probability": 0.5} for word, start in found
        ]
        return {"text": text, "words": confidence}


def replies(text: Texts) -> dict[str, Callable[[], Any]]:
    """What the server replies, with these texts wherever a text can be."""

    def listed(*values: Any) -> Any:
        return {"data": list(values)}

    def translated() -> Any:
        found = text.words()
        return {"translatedText": [found["text"]], "confidence": [found["words"]], "alternatives": [[text(), text()]]}

    def alternatives() -> Any:
        return [{"word": text(), "probability": p, **text.words()} for p in (0.5, 0.25)]

    def stream() -> Any:
        logprobs = [{"tokens": [some], "token_logprobs": [-0.5]} for some in (f" {text()}", f" {text()}")]
        chunks = [{"choices": [{"text": one["tokens"][0], "index": 0, "logprobs": one}]} for one in logprobs]
        return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def classified() -> Any:
        tagged = {"words": [[text(), text()], [text(), text()]]}
        return listed(
            {"label": text(), "probabilities": {f"a{text()}": 0.5, f"b{text()}": 0.25}}, tagged, {"number": 0.5}
        )

    candidates = lambda: [{"text": text(), "tokens": [], "probability": p} for p in (0.5, 0.25)]  # noqa: E731
    return {
        "translate": translated, "page/alternatives": alternatives, "v1/completions": stream, "v1/classify": classified,
        "v1/fill": lambda: listed({"text": text(), "masks": [candidates(), candidates()]}),
        "v1/embeddings": lambda: listed({"embedding": [1, 0.5]}, {"embedding": [0.5, 1]}, {"embedding": [0, 1]}),
        "v1/score": lambda: listed({"score": -2, "tokens": [{"token": text(), "logprob": -1}] * 2}),
    }  # fmt: skip


def described(text: Texts) -> list[dict[str, Any]]:
    model = {
        "summary": text(), "can": list(TASKS), "shape": "decoder", "languages": [text(), text()], "labels": [text()],
        "pairs": False, "mask": "[MASK]", "attention": True, "run": True, "beam": 1, "max_tokens": None,
    }  # fmt: skip
    return [{"name": f"{number} {text()}", **model} for number in range(2)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from started()


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live({"model": small(zoo.gpt2(16, 1, 2))}) as found:
        yield found


def elements(browser: Any, server: Live, texts: list[str], at: int) -> dict[str, Any]:
    """Tags and attributes of the page, as multisets, after each task, its menu and a refusal."""
    text, found = Texts(texts, at), {}
    made = replies(text)

    def fulfil(route: Any, value: Any, status: int = 200) -> None:
        route.fulfill(status=status, body=json.dumps(value), content_type="application/json")

    def reply(route: Any) -> None:
        path = route.request.url.removeprefix(f"{server.address}/").partition("?")[0]
        if path == "page/models":
            fulfil(route, described(text))
        elif path == "page/run" or refused:
            fulfil(route, {"error": text()}, 400)
        elif path == "v1/completions":
            route.fulfill(content_type="text/event-stream", body=made[path]())
        elif path in made:
            fulfil(route, made[path]())
        else:
            route.continue_()

    with opened(browser, online=True) as window:
        window.page.on("dialog", lambda dialog: window.errors.append(f"a dialog: {dialog.message}"))
        window.page.route("**/*", reply)
        refused = False
        window.go(f"{server.address}/")
        for task in TASKS:
            refused = False
            window.page.click(f"#tab-{task}")
            typed = "a\nb\nc" if task in ("embed", "classify") else "[MASK] b [MASK]" if task == "fill" else text()
            window.page.fill("#text", typed if typed.strip() else "x")
            window.page.click("#go")
            window.page.wait_for_selector('#answer[aria-busy="false"] > *')
            found[task] = multiset(window)
            if task in ("translate", "generate"):
                window.page.locator("#answer button.word").first.click()
                window.page.wait_for_selector('[role="menuitem"]')
                found[f"{task}: menu"] = multiset(window)
                window.page.locator('[role="menuitem"]').first.click()
                window.page.wait_for_selector('#answer[aria-busy="false"] > *')
                found[f"{task}: chosen"] = multiset(window)
            refused = True
            window.page.click("#go")
            window.page.wait_for_selector("#note.problem")
            found[f"{task}: refused"] = multiset(window)
        window.page.click("#see")
        window.page.wait_for_selector("#attention .problem")
        found["attention"] = multiset(window)
        window.errors[:] = [error for error in window.errors if "400 (Bad Request)" not in error]
    return found


def multiset(window: Window) -> Counter[tuple[str, str]]:
    return Counter((tag, attributes) for tag, attributes in window.elements())


def test_hostile_texts_change_no_element_of_the_front_page(browser: Any, server: Live):
    for at in (0, 40):
        expected = elements(browser, server, [harmless(text) for text in HOSTILE], at)
        assert elements(browser, server, HOSTILE, at) == expected
        assert len(expected) == 2 * len(TASKS) + 5


@pytest.mark.storm
@pytest.mark.parametrize("text", HOSTILE)
def test_each_hostile_text_changes_no_element_in_any_place(browser: Any, server: Live, text: str):
    if text.strip(_SPACE):
        assert elements(browser, server, [text], 0) == elements(browser, server, [harmless(text)], 0)
