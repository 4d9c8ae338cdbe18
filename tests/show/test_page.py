"""What a newcomer sees of the page: whole thumbnails, words of the field, the prompt, a film, and a phone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.api import LoadedModel, side_by_side
from regard.data.tokenize.train import BPE
from regard.models import zoo
from regard.models.readouts import Label
from regard.show import payload
from tests.laws.zoo import MODELS
from tests.small import small

from .browser import Window, opened

pytestmark = pytest.mark.usefixtures("browser")

LONG_TARGET = "the cat ran in a park and the dogs played in the parks with a cat and a dog"


def sharp() -> LoadedModel:
    """A model with scores so large that most weights are 0 in half precision."""
    model = small(MODELS["bert"])
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if "query_key_value" in name:
                parameter.mul_(6)
    return model


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    model, generator = small(zoo.transformer(16, 2, 4)), small(MODELS["gpt2"])
    steps = [small(zoo.transformer(16, 2, 4)).look("The dogs played.", "the cat ran") for _ in range(3)]
    pages = {
        "tall": model.look("cat", LONG_TARGET),
        "prompt": generator.look("The dogs played in", length=3),
        "label": small(replace(MODELS["bert"], readout=Label(("good", "bad")), auxiliary=None)).look("The cat sat."),
        "sharp": sharp().look("The cat sat on the mat."),
        "film": side_by_side(*steps, labels=["step 1", "step 2", "step 3"], slider=True),
    }
    for name, page in pages.items():
        page.save(folder / f"{name}.html")
    return {name: (folder / f"{name}.html").as_uri() for name in pages}


@pytest.fixture
def window(browser: Any) -> Any:
    with opened(browser) as made:
        yield made


def boxes(window: Window, selector: str) -> list[list[float]]:
    found: list[list[float]] = window.page.eval_on_selector_all(
        selector,
        "(all) => all.map((one) => one.getBoundingClientRect()).map((b) => [b.left, b.top, b.right, b.bottom])",
    )
    return found


def test_a_thumbnail_shows_all_rows_of_a_target_longer_than_its_source(address: dict[str, str], window: Window):
    window.go(address["tall"], view="overview")
    window.page.locator(".thumb").last.scroll_into_view_if_needed()
    window.page.wait_for_selector(".thumb:last-child canvas[data-painted]")
    window.settled()
    for canvas, frame in zip(boxes(window, ".thumb canvas"), boxes(window, ".thumb .frame"), strict=True):
        assert canvas == pytest.approx(frame, abs=1)


@pytest.mark.parametrize("width", [1280, 1920])
def test_the_overview_uses_the_width_it_has(address: dict[str, str], browser: Any, width: int):
    with opened(browser) as window:
        window.page.set_viewport_size({"width": width, "height": 900})
        window.go(address["tall"], view="overview")
        assert max(right for _, _, right, _ in boxes(window, ".thumb")) > 0.9 * width


def test_labels_are_words_of_the_field_with_tips(address: dict[str, str], window: Window):
    window.go(address["tall"], view="overview", layer="decoder.0.cross", head=0)
    layers = window.page.eval_on_selector_all("#layer option", "(all) => all.map((one) => one.textContent)")
    assert layers == [f"{what}, layer {n}" for what, n in [
        ("encoder self-attention", 0), ("encoder self-attention", 1), ("decoder self-attention", 0),
        ("cross-attention", 0), ("decoder self-attention", 1), ("cross-attention", 1),
    ]]  # fmt: skip
    assert "decoder.0.cross" in window.page.get_attribute("#layer", "title")
    assert window.page.text_content("#head option:checked") == "head 0"
    assert "bits of entropy: low = focused" in window.page.text_content("[data-view=overview] .tools")
    assert "low = focused" in window.page.get_attribute("#sort-entropy", "title")
    assert window.page.text_content(".line:has(#alignment) .side") == "word alignment"
    assert "source word 0 (cat)" in window.page.get_attribute("#alignment span", "title")
    silent = "#bar select:not([title]), #bar button:not([title]), .line .side:not([title]), .tools button:not([title])"
    assert window.page.locator(silent).count() == 0


def test_a_film_opens_on_its_last_checkpoint_with_the_slider_in_sight(address: dict[str, str], browser: Any):
    for width, height in ((1280, 900), (390, 844)):
        with opened(browser) as window:
            window.page.set_viewport_size({"width": width, "height": height})
            window.go(address["film"])
            for view in ("compare", "overview"):
                window.select(view=view)
                assert window.page.text_content(".player .count") == "step 3"
                [(_, top, _, bottom)] = boxes(window, "#bar .player")
                assert 0 <= top < bottom <= height
            window.click(".player [aria-label='First']")
            assert "step 1" in window.page.text_content("#about")
            window.page.wait_for_timeout(250)
            assert "trace=0" in window.hash  # the first checkpoint has an address of its own


def test_arrow_keys_move_in_the_matrix_right_after_it_opens(address: dict[str, str], window: Window):
    window.go(address["tall"], view="overview").click("#tab-matrix")
    window.press("ArrowDown", "ArrowDown", "ArrowRight")
    assert "row=1" in window.hash
    assert "column=1" in window.hash
    assert "to" in window.announced


def test_a_prompt_is_marked_as_prompt(address: dict[str, str], window: Window):
    window.go(address["prompt"], view="generation")
    assert window.page.text_content("#texts .side") == "prompt"
    assert window.page.text_content("#texts .seam") == "generated"
    marked = window.page.locator("#texts .token.prompt").count()
    assert marked == window.page.locator("#texts .token").count() - 3
    assert "chosen" in window.page.text_content(".candidates")  # it starts at the first generated token
    window.select(view="generation", step=0)
    assert "in the prompt" in window.page.text_content(".candidates")
    assert "chosen" not in window.page.text_content(".candidates")


def test_a_classifier_shows_its_label(address: dict[str, str], window: Window):
    window.go(address["label"])
    shown = window.page.text_content("#prediction") or ""
    assert window.page.text_content("#prediction strong").split()[0] in ("good", "bad")
    assert {"good", "bad"} <= set(shown.split())


def test_a_phone_folds_the_controls_and_hints_at_wide_tables(address: dict[str, str], browser: Any):
    with opened(browser) as window:
        window.page.set_viewport_size({"width": 390, "height": 844})
        window.go(address["tall"])
        for view in window.views:
            window.page.evaluate("(name) => document.querySelector(`#tab-${name}`).click()", view)
            window.settled()
            assert window.page.evaluate("document.documentElement.scrollWidth") <= 390, view
            assert not window.page.is_visible("#layer")
        assert "head" in window.page.text_content("#fold summary")
        window.click("#fold summary")
        assert window.page.is_visible("#layer")
        window.page.evaluate("document.querySelector('#tab-ablation').click()")
        window.settled()
        hint = window.page.locator(".scroll-hint").first
        assert hint.is_visible()
        window.page.evaluate("document.querySelector('.scroll').scrollLeft = 1e6")
        hint.wait_for(state="hidden")


def test_left_out_views_are_named_on_the_page(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(payload, "_MAX_TOKENS", 3)
    small(MODELS["bert"]).look("The dogs played in the parks.").save(tmp_path / "page.html")
    with opened(browser, (tmp_path / "page.html").as_uri()) as window:
        assert "generation" not in window.views
        said = window.page.text_content("#left-out")
        assert said.startswith("Not on this page: Generation (")
        assert "3 at most); Nearest neighbours (" in said


def test_a_walk_that_is_left_out_is_named(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(payload, "MAX_WALKED", 3)
    monkeypatch.setattr(payload, "walk", lambda *_: None)
    small(MODELS["bert"]).look("The dogs played in the parks.").save(tmp_path / "page.html")
    with opened(browser, (tmp_path / "page.html").as_uri()) as window:
        said = window.page.text_content("#left-out")
        assert said.startswith("Not on this page: Begin here (")
        assert said.endswith("run regard show with a part of the text.")


def test_the_walk_of_a_classifier_ends_with_its_label(address: dict[str, str], window: Window):
    window.go(address["label"], view="walk")
    assert window.page.text_content(".steps > li:last-child h3") == "The label"
    (best, *others) = [value for (value,) in window.data('[data-step="label"] .bar', "value")]
    assert best == max(best, *others)
    assert best + sum(others) == pytest.approx(1)
    assert window.page.text_content('[data-step="label"] strong') in window.page.text_content("#prediction")


def test_the_walk_says_where_the_sum_is_normalised(address: dict[str, str], window: Window):
    said = [
        window.go(address[name], view="walk").page.text_content('[data-step="embedding"]') for name in ("label", "tall")
    ]
    assert ["is normalised" in one for one in said] == [True, False]  # BERT's layer norm after the embedding


def test_all_views_of_a_laptop_are_on_one_line(address: dict[str, str], window: Window):
    window.page.set_viewport_size({"width": 1100, "height": 700})
    window.go(address["tall"])
    assert len(window.views) == 10
    assert len({top for _, top, *_ in boxes(window, "#views button")}) == 1


def test_heads_count_from_zero_in_the_ablation_too(address: dict[str, str], window: Window):
    window.go(address["label"], view="ablation")
    assert window.page.eval_on_selector_all(".grid > text", "(all) => all.map((one) => one.textContent)")[0] == "0"
    rows = window.page.eval_on_selector_all(
        ".sortable tbody tr", "(all) => all.map((one) => [one.dataset.head, one.children[1].textContent])"
    )
    assert rows
    assert all(number == shown for number, shown in rows)


def test_names_beside_vectors_are_not_cut(address: dict[str, str], window: Window):
    window.go(address["tall"], view="walk")
    for left, _, right, _ in boxes(window, ".signed .name"):
        assert left >= min(box[0] for box in boxes(window, ".signed"))
        assert right > left


def test_a_weight_that_is_too_small_for_float16_is_not_called_masked(address: dict[str, str], window: Window):
    window.go(address["sharp"], view="neuron", layer="encoder.0.self")
    said = window.page.eval_on_selector_all(".masked-key td:nth-child(3)", "(all) => all.map((one) => one.textContent)")
    assert said
    assert set(said) == {"≈ 0"}  # an encoder masks nothing here


def test_nearest_neighbours_are_text_and_not_bytes():
    model = small(zoo.gpt2(16, 1, 2), (BPE(264).train(["the cat sat on the mat", "die Größe", "ça va"]),))
    seen = model.look("die Größe")
    found = payload.page_payload(seen.traces)[0]["traces"][0]["neighbours"]["decoder_input"]
    texts = [text for near in found for text, _ in near]
    assert len(texts) > 20
    assert not [text for text in texts if "\\x" in text]
