"""The front page in a real browser against a live server: every task, alternatives, attention, a stream, a run."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.api import LoadedModel
from regard.data.tokenize.train import Word
from regard.layers.positions import Rotary
from regard.models import zoo
from regard.models.readouts import Label, Tags
from regard.serve.page import static_files
from regard.serve.settings import Settings
from regard.show.ablation import ablate
from tests.laws.zoo import MODELS
from tests.show.browser import Window, opened, started
from tests.small import TEXTS, WORDPIECE, small
from tests.training.runs import CommandProcess, write_recipe

from .live import Live, live

TEXT = "The cat sat on the mat."
LABELS = ("good", "bad", "neither")
ENDLESS = 20_000  # tokens


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from started()


@pytest.fixture(scope="module")
def models() -> dict[str, LoadedModel]:
    described = {
        "translator": MODELS["pre-norm"],
        "writer": zoo.gpt2(width=16, depth=1, heads=2, inner=16, position=Rotary(), dropout=0.0),
        "slow": zoo.gpt2(width=16, depth=32, heads=2, inner=16, position=Rotary(), dropout=0.0),
        "filler": MODELS["bert"],
        "labels": replace(MODELS["bert"], readout=Label(LABELS), auxiliary=None),
        "tags": replace(MODELS["bert"], readout=Tags(("NOUN", "VERB")), auxiliary=None),
    }
    spaced = Word().train(TEXTS * 4)
    tokenizers = dict.fromkeys(("translator", "writer", "slow"), (spaced,))
    # They write only words, each with a space before it, and never end early.
    others = [[token] for token in range(spaced.vocabulary) if not spaced.decode([token]).startswith(" ")]
    options = {"max_length": 12, "bad_words_ids": others}
    return {
        name: small(model, tokenizers.get(name, (WORDPIECE,)), generation_config=options if name in tokenizers else {})
        for name, model in described.items()
    }


@pytest.fixture(scope="module")
def server(models: dict[str, LoadedModel]) -> Iterator[Live]:
    with live(models) as found:
        yield found


def front(window: Window, server: Live, model: str, task: str | None = None) -> Window:
    """The front page with a model and a task."""
    window.go(f"{server.address}/", model=model, **({"task": task} if task else {}))
    assert window.page.locator("#model option").all_inner_texts() == list(server.app.state.models)
    return window


def ask(window: Window, text: str, *, waiting: bool = True) -> Window:
    """Type a text and send it."""
    window.page.fill("#text", text)
    window.page.click("#go")
    if waiting:
        window.page.wait_for_selector('#answer[aria-busy="false"] > *')
    return window


def words(window: Window) -> list[tuple[str, float]]:
    texts = window.page.locator("#answer .word").all_inner_texts()
    return [(text, value) for text, (value,) in zip(texts, window.data("#answer .word", "probability"))]


def test_a_text_is_translated_with_words_shaded_by_confidence(server: Live, models: dict[str, Any], browser: Any):
    with opened(browser, online=True) as window:
        ask(front(window, server, "translator"), f"{TEXT}\n\nthe dog sat")
        texts = models["translator"].translate([TEXT, "the dog sat"])
        body = {"q": TEXT, "source": "source", "target": "target", "model": "translator", "confidence": True}
        expected = server.json("/translate", body)["confidence"]
        lines = [line.inner_text().strip() for line in window.page.locator("#answer p.words").all()]
        assert [line.split() for line in lines] == [texts[0].split(), [], texts[1].split()]
        assert words(window)[: len(expected)] == [(one["word"], pytest.approx(one["probability"])) for one in expected]
        shades = window.page.eval_on_selector_all(
            "#answer .word", "(all) => all.map((one) => parseFloat(one.style.getPropertyValue('--doubt')))"
        )
        by_probability = sorted(zip([p for _, p in words(window)], shades))
        assert [shade for _, shade in by_probability] == sorted(shades, reverse=True)
        window.page.hover("#answer .word")
        assert "probability" in window.page.inner_text("#value")
        assert texts[1].split()[0] in window.announced
        for line in (0, 1):
            window.page.locator("#answer p.words:has(.word)").nth(line).locator(".word").first.focus()
            window.page.click("#see")
            window.page.frame_locator("#frame").locator("#tab-ablation").wait_for()
            assert f"of “{[TEXT, 'the dog sat'][line]}”" in window.page.inner_text("#attention .head")
            window.page.click("#attention .head button")


def test_all_labels_of_an_axis_are_written_alike(server: Live, browser: Any):
    script = """async () => {
        const {linePlot} = await import("./static/plot.js");
        const plot = linePlot({title: "", x: [0, 1], lines: [{name: "", values: [0, 0.002]}], across: "", up: ""});
        return [...plot.querySelectorAll(".tick")].map((one) => one.textContent);
    }"""
    with opened(browser, online=True) as window:
        front(window, server, next(iter(server.app.state.models)))
        assert window.page.evaluate(script)[:5] == ["0", "0.0005", "0.001", "0.0015", "0.002"]


def test_a_clicked_word_has_alternatives_and_one_is_chosen(server: Live, models: dict[str, Any], browser: Any):
    with opened(browser, online=True) as window:
        ask(front(window, server, "translator"), TEXT)
        before = words(window)
        expected = models["translator"].alternatives(TEXT, models["translator"].translate(TEXT), 1, count=8)
        window.page.locator("#answer .word").nth(1).click()
        window.page.wait_for_selector('[role="menuitem"]')
        listed = window.page.locator('[role="menuitem"] bdi').all_inner_texts()
        assert listed == [one.word or "∅" for one in expected]
        values = [value for (value,) in window.data('[role="menuitem"]', "probability")]
        assert values == [pytest.approx(one.probability, rel=1e-3) for one in expected]
        window.press("ArrowDown")
        assert window.page.evaluate("() => document.activeElement.textContent").startswith(listed[1])
        window.press("Enter")
        after = words(window)
        assert [word for word, _ in after] == expected[1].text.split()
        assert after[0] == (before[0][0], pytest.approx(before[0][1], rel=1e-3))
        assert all(0 < probability <= 1 for _, probability in after)
        window.page.locator("#answer .word").first.click()
        window.page.wait_for_selector('[role="menuitem"]')
        window.press("Escape")
        assert window.page.locator('[role="menu"]').count() == 0
        assert window.page.evaluate("() => document.activeElement.className") == "word"


def test_attention_is_seen_and_a_head_switched_off(server: Live, models: dict[str, Any], browser: Any):
    model = models["translator"]
    with opened(browser, online=True) as window:
        ask(front(window, server, "translator"), TEXT)
        window.page.click("#see")
        frame = window.page.frame_locator("#frame")
        frame.locator("#tab-ablation").click()
        layer, head = "decoder.0.cross", 1
        frame.locator(f'tr[data-layer="{layer}"][data-head="{head}"] input').check()
        found = frame.locator("#ablation-result output")
        found.wait_for()
        example = model.look(TEXT, model.translate(TEXT)).example
        expected = ablate(
            model.network, example.tokenizers, example.collector.inputs, example.target_ids, [(layer, head)],
            options=example.options,
        )  # fmt: skip
        assert float(found.get_attribute("data-loss")) == pytest.approx(expected["loss"], rel=1e-4)
        assert frame.locator("#ablation-output").inner_text().split() == expected["output"].split()
        assert window.page.get_attribute("#attention a", "href").startswith("attention/")


def test_a_continuation_is_streamed_and_stopped(server: Live, browser: Any):
    worker = server.app.state.models["slow"].workers
    with opened(browser, online=True) as window:
        front(window, server, "slow")
        window.page.click("#options summary")
        window.page.fill('[name="max_tokens"]', "4000")
        ask(window, TEXT, waiting=False)
        window.page.wait_for_selector("#answer .word >> nth=9")  # words come while it generates
        assert window.page.get_attribute("#answer", "aria-busy") == "true"
        place = window.page.locator("#stop").bounding_box()
        window.page.wait_for_selector("#answer .word >> nth=60")  # several lines
        assert window.page.locator("#stop").bounding_box() == place, "the growing answer moves the button"
        window.page.click("#stop")
        window.page.wait_for_selector('#answer[aria-busy="false"]')
        assert window.page.inner_text("#note") == "stopped"
        ends = time.monotonic() + 20
        while worker.running:
            assert time.monotonic() < ends, "the model goes on"
            time.sleep(0.01)
        steps = worker.steps
        count = len(words(window))
        assert window.settled().page.locator("#answer .word").count() == count
        assert worker.steps == steps < 4000
        assert window.page.inner_text("#answer .prompt") == TEXT


def test_a_continuation_goes_on_from_a_chosen_alternative(server: Live, models: dict[str, Any], browser: Any):
    with opened(browser, online=True) as window:
        front(window, server, "writer")
        window.page.click("#options summary")
        for name, value in {"max_tokens": "12", "temperature": "0"}.items():
            window.page.fill(f'[name="{name}"]', value)
        ask(window, "The cat")
        text = window.page.inner_text("#answer .generated")
        assert window.page.inner_text("#note") == ""
        assert "The cat" + text == models["writer"].generate("The cat", max_tokens=12, temperature=0.0)
        before = [word for word, _ in words(window)]
        window.page.locator("#answer .word").nth(1).click()
        window.page.wait_for_selector('[role="menuitem"] >> nth=1')
        item = window.page.locator('[role="menuitem"]').nth(1)
        chosen = item.locator("bdi").inner_text()
        item.click()
        window.page.wait_for_selector('#answer[aria-busy="false"] .word >> nth=2')
        after = [word for word, _ in words(window)]
        assert window.page.inner_text("#note") == ""
        assert after[0] == before[0]
        assert after[1].startswith(chosen)
        assert len(after) > 2


def test_masks_are_filled_and_another_candidate_chosen(server: Live, models: dict[str, Any], browser: Any):
    text = "The [MASK] sat on the [MASK]."
    with opened(browser, online=True) as window:
        front(window, server, "filler", "fill")
        window.page.click("#insert")
        assert window.page.input_value("#text") == "[MASK]"
        ask(window, text)
        expected = models["filler"].fill(text, top=5)
        assert [value for (value,) in window.data("#answer .share", "value")] == [
            pytest.approx(one.probability, rel=1e-3) for mask in expected.masks for one in mask
        ]
        assert window.page.locator("#answer .boxed").all_inner_texts() == [mask[0].text for mask in expected.masks]
        window.page.locator("#answer .share").nth(2).click()
        assert window.page.locator("#answer .boxed").first.inner_text() == expected.masks[0][2].text


def test_texts_are_classified_tagged_and_scored(server: Live, models: dict[str, Any], browser: Any):
    with opened(browser, online=True) as window:
        ask(front(window, server, "labels", "classify"), f"{TEXT}\nthe dog sat")
        found = dict(zip(window.page.locator("#answer .share bdi").all_inner_texts()[:3],
                         [value for (value,) in window.data("#answer .share", "value")]))  # fmt: skip
        [expected, _] = models["labels"].classify([TEXT, "the dog sat"])
        assert found == {label: pytest.approx(p, rel=1e-3) for label, p in expected.probabilities.items()}
        assert window.page.locator("#answer .marked bdi").first.inner_text() == expected.label
        window.page.select_option("#model", label="tags")
        ask(window, TEXT)
        tagged = models["tags"].classify([TEXT])[0]
        assert window.page.locator("#answer .tagged small").all_inner_texts() == list(tagged.tags)
        window.page.select_option("#model", label="translator")
        window.page.click("#tab-score")
        window.page.fill("#second", "the dog ran")
        ask(window, TEXT)
        [score] = models["translator"].scores([TEXT], ["the dog ran"])
        assert window.data("#answer output", "value")[0][0] == pytest.approx(score.total, rel=1e-4)
        assert len(words(window)) == len(score.tokens)


def test_lines_are_embedded_and_compared(server: Live, models: dict[str, Any], browser: Any):
    lines = [TEXT, "the dog sat", "A dog ran"]
    with opened(browser, online=True) as window:
        ask(front(window, server, "filler", "embed"), "\n".join(lines))
        vectors = torch.nn.functional.normalize(torch.as_tensor(models["filler"].embed(lines)), dim=-1)
        found = [value for (value,) in window.data("#answer td[data-value]", "value")]
        assert found == pytest.approx((vectors @ vectors.T).flatten().tolist(), abs=1e-4)


def test_the_page_works_by_keyboard_and_its_controls_have_names(server: Live, browser: Any):
    with opened(browser, online=True) as window:
        front(window, server, "translator")
        window.page.focus("#text")
        window.page.keyboard.type("the cat")
        window.page.keyboard.press("Control+Enter")
        window.page.wait_for_selector('#answer[aria-busy="false"] .word')
        assert window.unnamed() == []
        for name in ("writer", "filler", "labels"):
            window.page.select_option("#model", label=name)
            for tab in window.page.locator("#views button").all():
                tab.click()
                assert window.unnamed() == []
        window.page.fill("#text", " ")
        window.page.click("#go")
        assert window.page.inner_text("#note") == "Type a text first."


def test_a_refused_text_is_told_in_a_line(server: Live, browser: Any):
    with opened(browser, online=True) as window:
        ask(front(window, server, "filler", "fill"), "the dog " * 300 + "[MASK]", waiting=False)
        window.page.wait_for_selector("#note.problem")
        assert "tokens" in window.page.inner_text("#note")
        window.errors.clear()  # the browser logs the refusal
        ask(window, "The [MASK] sat")
        assert window.page.inner_text("#note") == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_on_a_phone(server: Live, browser: Any, scheme: str):
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme}
    context = browser.new_context(**phone)
    window = Window(context.new_page())
    try:
        for model, text in (("translator", TEXT), ("labels", TEXT), ("filler", "The [MASK] sat")):
            ask(front(window, server, model), text)
            assert window.page.evaluate("() => document.documentElement.scrollWidth") <= 390
        assert window.errors == []
    finally:
        context.close()


def test_a_run_is_watched_while_it_trains(tmp_path: Path, browser: Any):
    recipe, folder = write_recipe(tmp_path), tmp_path / "run"
    training = CommandProcess(
        ["train", str(recipe), "--out", str(folder), "--set", f"train.steps={ENDLESS}", "--set", "train.keep=5"]
    )
    try:
        ends = time.monotonic() + 60
        while not (folder / "checkpoints" / "step-21").exists():
            assert time.monotonic() < ends
            assert training.poll() is None
            time.sleep(0.05)
        with live({"reverse": folder}) as server, opened(browser, online=True) as window:
            polled: list[Any] = []
            window.page.on("response", lambda one: "/page/run" in one.url and polled.append(one))
            front(window, server, "reverse")
            window.page.wait_for_selector("#run[data-training]")
            first = window.data("#run", "step")[0][0]
            window.page.wait_for_function(
                "(first) => Number(document.querySelector('#run').dataset.step) > first + 5", arg=first
            )
            steps = [[line["step"] for line in one.json()["lines"]] for one in polled[:2]]
            assert steps[0][0] == 1
            assert steps[1][0] >= steps[0][-1] > 1, "only new lines are sent again"
            curves = [name for (name,) in window.data("#run figure", "curve")]
            assert curves == ["loss", "valid_bleu", "learning_rate"]
            drawn = window.data('figure[data-curve="loss"] .curve', "line", "values")
            assert [name for name, _ in drawn] == ["training", "validation"]
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            losses = [line["loss"] for line in lines if "loss" in line]
            assert [float(value) for value in drawn[0][1].split()[:3]] == pytest.approx(losses[:3])
            assert f"of {ENDLESS:,}" in window.page.inner_text("#run-state")
            training.send_signal(signal.SIGINT)
            assert training.wait(60)
            window.page.fill("#text", "abc")
            window.page.click("#film")
            frame = window.page.frame_locator("#frame")
            frame.locator(".player").first.wait_for()
            assert frame.locator("#bar .count").inner_text().startswith("step ")
    finally:
        training.kill()


def test_a_server_with_a_key_asks_for_it(models: dict[str, LoadedModel], browser: Any):
    settings = Settings(port=0, api_key="open sesame", grace_seconds=5.0)
    with live({"translator": models["translator"]}, settings) as server:
        assert server("/")[0] == 401
        options = {"http_credentials": {"username": "", "password": "open sesame"}}
        with opened(browser, online=True, options=options) as window:
            ask(front(window, server, "translator"), TEXT)
            window.page.click("#see")
            window.page.frame_locator("#frame").locator("#views").wait_for()
            # A key that is no longer accepted is asked for again, and sent from then on.
            sent = []

            def refuse_first(route: Any) -> None:
                sent.append(route.request.headers.get("authorization"))
                if len(sent) == 1:
                    route.fulfill(status=401, json={"error": "missing or wrong API key"})
                else:
                    route.continue_()

            window.page.route("**/translate", refuse_first)
            ask(window, "the dog", waiting=False)
            window.page.fill("#key", "open sesame")
            window.page.press("#key", "Enter")
            window.page.wait_for_selector('#answer[aria-busy="false"] .word')
            assert sent[1] == "Bearer open sesame"
            assert window.page.evaluate("() => sessionStorage.getItem('regard-api-key')") == "open sesame"
            window.errors.clear()  # the browser logs the refusal


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_inline_script(server: Live):
    status, content, headers = server("/")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert b"://" not in content
    assert b"<style" not in content
    for name, (_, text) in static_files().items():
        assert b"style=" not in text.replace(b"class=", b""), name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../page.py",
        "%2e%2e%2fpage.py",
        "..%2fpage.py",
        "page.py",
        "front.js/",
        "/etc/passwd",
        "%00",
        "nowhere.js",
    ],
)
def test_only_static_files_are_static(server: Live, name: str):
    status, content, _ = server(f"/static/{name}")
    assert status in (404, 307) or (name == "front.js/" and status == 404)
    assert b"import" not in content


def test_a_static_file_that_has_not_changed_is_not_sent_again(server: Live):
    status, content, headers = server("/static/front.js")
    assert (status, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    assert b"import" in content
    again = server("/static/front.js", If_None_Match=headers["ETag"])
    assert again[:2] == (304, b"")


@pytest.mark.parametrize(
    "word",
    ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "setHTML"],
)
def test_no_script_of_the_front_page_makes_markup_or_code_of_a_text(word: str):
    for name, (_, content) in static_files().items():
        assert word not in content.decode(), name


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/page/alternatives", {"model": "nowhere", "text": "a", "answer": "b", "start": 0}),
        ("/page/alternatives", {"model": "translator", "text": 3, "answer": "b", "start": 0}),
        ("/page/alternatives", {"model": "translator", "text": "a", "answer": "b", "start": -1}),
        ("/page/alternatives", {"model": "translator", "text": "a", "answer": "b", "start": True}),
        ("/page/alternatives", {"model": "translator", "text": "a", "answer": "b c", "start": 1}),
        ("/page/alternatives", {"model": ["translator"], "text": "a", "answer": "b", "start": 0}),
        ("/page/alternatives", {"model": "labels", "text": "a", "answer": "b", "start": 0}),
        ("/page/attention", {"model": "translator"}),
        ("/page/attention", {"model": "translator", "text": "a", "target": 3}),
        ("/page/attention", {"model": "translator", "text": "a" * 100_000}),
        ("/page/attention", {"model": "labels", "text": "a", "target": "b"}),
        ("/page/film", {"model": "translator", "text": "a"}),
    ],
)
def test_what_the_page_never_asks_is_refused_in_a_line(server: Live, path: str, body: dict[str, Any]):
    status, content, _ = server(path, body)
    assert status in (400, 404)
    [(name, why)] = json.loads(content).items()
    assert name == "error"
    assert "\n" not in why


def test_a_model_that_is_no_run_has_no_curves(server: Live):
    assert server("/page/run?model=translator")[0] == 404
    assert server("/page/run?model=nowhere")[0] == 404
    assert server("/page/run")[0] == 404
