"""The page in a real browser: every view opens, shows the model's numbers, and works by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.api import LoadedModel, side_by_side
from regard.data.tasks.masked_lm import ordinary_tokens
from regard.layers.contract import Ablation
from regard.models import zoo
from regard.show.embeddings import position_tables
from regard.show.html import page
from regard.show.payload import page_payload
from regard.show.trace import AttentionTrace
from regard.show.walk import walk
from tests.laws.zoo import MODELS
from tests.small import small

from .browser import Window, opened

pytestmark = pytest.mark.usefixtures("browser")  # without a browser no page is made

TEXT = "The dogs played in the parks."
TARGET = "the cat ran in a park"
CLOSE = {"rel": 1.5e-3, "abs": 1e-5}  # half precision
ALL_VIEWS = [
    "walk", "overview", "head", "matrix", "neuron", "generation", "positions", "explanation", "ablation", "neighbours",
]  # fmt: skip


@dataclass(frozen=True)
class Page:
    """A model, its trace, and the address of its page."""

    model: LoadedModel
    trace: AttentionTrace
    address: str

    @property
    def probabilities(self) -> Tensor:
        """T x N: the probability of each token in each row."""
        example = self.trace.example
        with torch.inference_mode():
            return self.model.network.readout(self.model.network.hidden_states(**example.collector.inputs))[0].softmax(
                -1
            )


def page_of(folder: Path, name: str, trace: AttentionTrace, model: LoadedModel) -> Page:
    path = folder / f"{name.split(',')[0]}.html"
    trace.save(path)
    return Page(model, trace, path.as_uri())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """A page of each kind of model."""
    folder = tmp_path_factory.mktemp("pages")
    arguments: dict[str, dict[str, Any]] = {
        "bahdanau": {"target": TARGET},
        "transformer": {"beam": 3},
        "bert": {},
        "gpt2": {"length": 4},
        "reformer, several rounds": {},
        "seq2seq": {"target": TARGET},
    }
    made = {}
    for name, options in arguments.items():
        model = small(MODELS[name], generation_config={"max_length": 7})
        made[name.split(",")[0]] = page_of(folder, name, model.look(TEXT, **options), model)
    return made


@pytest.fixture
def window(browser: Any) -> Iterator[Window]:
    with opened(browser) as made:
        yield made


VIEWS_OF = {
    "bahdanau": [name for name in ALL_VIEWS if name != "positions"],
    "transformer": ALL_VIEWS,
    "bert": ALL_VIEWS,
    "gpt2": ALL_VIEWS,
    "reformer": [*ALL_VIEWS[:7], "buckets", *ALL_VIEWS[7:]],
    "seq2seq": ["walk", "generation", "neighbours"],
}


@pytest.mark.parametrize("name", VIEWS_OF)
def test_every_view_opens_by_its_button_and_has_accessible_names(pages: dict[str, Page], window: Window, name: str):
    window.go(pages[name].address)
    assert window.views == VIEWS_OF[name]
    for view in VIEWS_OF[name]:
        window.click(f"#tab-{view}")
        assert window.page.locator(f"[data-view='{view}'] *").count() > 5
        assert window.page.get_attribute(f"#tab-{view}", "aria-current") == "page"
        note = window.page.text_content("#note")
        assert "could not be shown" not in note
        assert ("has no attention" in note) == (name == "seq2seq")
        assert window.unnamed() == []
    window.press("?")
    assert window.page.locator("dialog[open] dt").count() >= len(VIEWS_OF[name])


@pytest.mark.parametrize("name", ["bahdanau", "transformer", "bert", "gpt2", "reformer"])
def test_the_overview_shows_the_entropies(pages: dict[str, Page], window: Window, name: str):
    page = pages[name]
    window.go(page.address, view="overview")
    window.page.locator(".thumb").last.scroll_into_view_if_needed()  # thumbnails are painted when they scroll into view
    window.page.wait_for_selector(".thumb:last-child canvas[data-painted]")
    window.page.locator(".thumb").first.scroll_into_view_if_needed()
    window.page.wait_for_function(
        "() => [...document.querySelectorAll('.thumb canvas')].every((one) => one.dataset.painted)"
    )
    found = {(layer, head): value for layer, head, value in window.data(".thumb", "layer", "head", "value")}
    entropy = {(layer, h): float(value) for layer, heads in page.trace.entropy.items() for h, value in enumerate(heads)}
    assert found == pytest.approx(entropy, abs=1e-6)
    shares = page.trace.weights[next(iter(page.trace.weights))][0].double()
    shares = shares / shares.sum(-1, keepdim=True)
    bits = float(-(shares * shares.clamp_min(1e-30).log2()).sum(-1).mean())
    assert found[next(iter(page.trace.weights)), 0] == pytest.approx(bits, abs=1e-4)
    window.click("#sort-distance")
    values = [value for (value,) in window.data(".thumb", "value")]
    assert values == sorted(values)
    assert values == pytest.approx(sorted(float(x) for heads in page.trace.distance.values() for x in heads), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "layer", "head"),
    [
        ("bahdanau", "decoder.0.cross", 0), ("transformer", "decoder.1.cross", 2), ("transformer", "decoder.0.self", 1),
        ("bert", "encoder.1.self", 1), ("gpt2", "decoder.0.self", 2), ("reformer", "decoder.1.self", 0),
    ],
)  # fmt: skip
def test_the_matrix_shows_the_weights_under_the_pointer(
    pages: dict[str, Page], window: Window, name: str, layer: str, head: int
):
    weights = pages[name].trace.weights[layer][head]
    window.go(pages[name].address, view="matrix", layer=layer, head=head)
    found = window.hovered("#map", 9, 9)
    assert len(found) >= 20
    assert found == {(r, c): pytest.approx(float(weights[r, c]), **CLOSE) for r, c in found}
    row, column = max(found, key=found.get)
    window.select(view="matrix", layer=layer, head=head, row=row, column=column)
    listed = window.data("#row-weights li", "column", "value")
    order = weights[row].argsort(descending=True, stable=True).tolist()
    assert listed[0][0] == order[0]
    assert dict(listed) == {c: pytest.approx(float(weights[row, c]), **CLOSE) for c, _ in listed}


def test_the_matrix_is_darker_where_the_weight_is_greater(pages: dict[str, Page], window: Window):
    window.go(pages["transformer"].address, view="matrix", layer="encoder.0.self", head=0)
    weights = pages["transformer"].trace.weights["encoder.0.self"][0]
    window.page.locator("#map").scroll_into_view_if_needed()
    box = window.page.locator("#map").bounding_box()
    inks: dict[tuple[int, int], int] = {}
    for step in range(400):
        x, y = (step % 20 + 0.5) / 20, (step // 20 + 0.5) / 20
        window.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        for row, column in window.data("#value:not([hidden])", "row", "column"):
            ink = window.page.evaluate(
                "([x, y]) => { const map = document.querySelector('#map'); const all = map.getContext('2d')"
                ".getImageData(x * map.width - 4, y * map.height - 4, 9, 9).data; const inks = new Map();"
                "for (let at = 0; at < all.length; at += 4) { const ink = all[at] + all[at + 1] + all[at + 2];"
                "inks.set(ink, (inks.get(ink) ?? 0) + 1); } return [...inks].sort((a, b) => b[1] - a[1])[0][0]; }",
                [x, y],
            )
            inks[row, column] = ink
        if len(inks) >= 12:
            break
    darkest = min(inks, key=inks.get)
    lightest = max(inks, key=inks.get)
    assert inks[darkest] < inks[lightest]
    assert weights[darkest] > weights[lightest]


@pytest.mark.parametrize("name", ["bahdanau", "transformer", "bert", "gpt2", "reformer"])
def test_merged_words_are_those_of_by_word(pages: dict[str, Page], window: Window, name: str):
    trace = pages[name].trace
    layer = list(trace.weights)[-1]
    words = trace.by_word(layer)[0]
    assert words.shape < trace.weights[layer][0].shape
    window.go(pages[name].address, view="matrix", layer=layer, head=0).click("#words")
    assert "words=yes" in window.hash
    found = window.hovered("#map", 9, 9)
    assert len(found) >= 15
    assert found == {(r, c): pytest.approx(float(words[r, c]), rel=2e-3, abs=1e-4) for r, c in found}


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ("mean", lambda trace: trace.weights["encoder.1.self"].mean(0)),
        ("maximum", lambda trace: trace.weights["encoder.1.self"].amax(0)),
        ("rollout", lambda trace: trace.rollout("encoder")),
        ("norm", lambda trace: trace.norm_weighted("encoder.1.self")[0]),
    ],
)
def test_summaries_are_those_of_python(pages: dict[str, Page], window: Window, summary: str, expected: Any):
    weights = expected(pages["bert"].trace)
    window.go(pages["bert"].address, view="matrix", layer="encoder.1.self", summary=summary)
    found = window.hovered("#map", 8, 8)
    assert len(found) >= 15
    assert found == {(r, c): pytest.approx(float(weights[r, c]), rel=2e-3, abs=1e-4) for r, c in found}


def test_the_head_view_shows_the_weights_of_keys(pages: dict[str, Page], window: Window):
    weights = pages["transformer"].trace.weights["decoder.0.cross"]
    window.go(pages["transformer"].address, view="head", layer="decoder.0.cross")
    window.click('.unit[data-side="row"][data-unit="2"]')
    mean = window.data('.unit[data-side="column"]', "unit", "weight")
    assert dict(mean) == {c: pytest.approx(float(weights[:, 2, c].mean()), **CLOSE) for c in range(weights.shape[2])}
    first = window.data('.unit[data-side="column"][data-unit="0"] rect[data-head]', "head", "value")
    assert dict(first) == {h: pytest.approx(float(weights[h, 2, 0]), **CLOSE) for h in range(3)}
    window.click("#chip-1")
    assert "heads=0.2" in window.hash
    mean = window.data('.unit[data-side="column"]', "unit", "weight")
    two = weights[[0, 2], 2].mean(0)
    assert dict(mean) == {c: pytest.approx(float(two[c]), **CLOSE) for c in range(len(two))}


@pytest.mark.parametrize(
    ("name", "layer", "head", "row"),
    [
        ("bahdanau", "decoder.0.cross", 0, 3), ("transformer", "decoder.1.cross", 1, 2),
        ("bert", "encoder.0.self", 2, 4), ("gpt2", "decoder.1.self", 0, 5), ("reformer", "decoder.0.self", 1, 6),
    ],
)  # fmt: skip
def test_a_weight_is_computed_from_its_vectors(
    pages: dict[str, Page], window: Window, name: str, layer: str, head: int, row: int
):
    weights = pages[name].trace.weights[layer][head, row]
    column = int(weights.argmax())
    window.go(pages[name].address, view="neuron", layer=layer, head=head, row=row, column=column)
    keys = window.data("tr[data-key]", "key", "weight", "recorded")
    assert len(keys) == len(weights)
    for key, computed, recorded in keys:
        assert recorded == pytest.approx(float(weights[key]), **CLOSE)
        assert computed == pytest.approx(float(weights[key]), rel=0.02, abs=2e-3)
    [(weight, recorded)] = window.data('[data-step="weight"] output', "value", "recorded")
    assert weight == pytest.approx(float(weights[column]), rel=0.02, abs=2e-3)
    assert recorded == pytest.approx(float(weights[column]), **CLOSE)


@pytest.mark.parametrize(
    ("name", "layer", "head", "row"),
    [("bahdanau", "decoder.0.cross", 0, 3), ("transformer", "decoder.1.cross", 1, 2), ("bert", "encoder.0.self", 2, 4)],
)
def test_the_walk_shows_the_tensors_of_the_model(
    pages: dict[str, Page], window: Window, name: str, layer: str, head: int, row: int
):
    example = pages[name].trace.example
    tokenizer = example.tokenizers[0 if example.network.shape == "encoder" else 1]
    found = walk(example.network, tokenizer, example.collector.inputs, example.target_ids)
    window.go(pages[name].address, view="walk", layer=layer, head=head, row=row)

    def drawn(step: str, part: str) -> list[float]:
        [(text,)] = window.data(f'[data-step="{step}"] [data-part="{part}"]', "values")
        return [float(value) for value in str(text).split()]

    embedded = next(one for one in found.embeddings if one.side == ("source" if name == "bert" else "decoder_input"))
    output = found.outputs[layer][head, row].tolist()
    assert drawn("embedding", "read") == pytest.approx(embedded.read[row].tolist(), **CLOSE)
    assert drawn("sum", "output") == pytest.approx(output, **CLOSE)
    assert drawn("sum", "sum") == pytest.approx(output, rel=0.02, abs=5e-3)
    last = len(found.states) - 1
    assert drawn("layers", f"layer-{last}") == pytest.approx(found.states[last, row].tolist(), **CLOSE)
    shown = [value for (value,) in window.data('[data-step="prediction"] .bar', "value")]
    assert shown == pytest.approx(found.logits[row].softmax(-1)[: len(shown)].tolist(), rel=1e-3, abs=1e-6)


def test_sampling_follows_temperature_and_top_k(pages: dict[str, Page], window: Window):
    window.go(pages["gpt2"].address, view="walk", row=2)
    before = [value for (value,) in window.data('[data-step="prediction"] .bar', "value")]
    window.page.get_by_label("temperature").fill("0.5")
    colder = [value for (value,) in window.data('[data-step="prediction"] .bar', "value")]
    assert colder[0] > before[0]
    window.page.get_by_label("top-k").fill("1")
    assert window.data('[data-step="prediction"] .bar', "value") == [[1]]
    window.page.get_by_role("button", name="Sample").click()
    assert window.page.text_content(".drawn") == window.page.text_content('[data-step="prediction"] .bar .name')


@pytest.mark.parametrize("name", ["bahdanau", "transformer", "gpt2", "reformer", "seq2seq"])
def test_candidates_are_the_most_probable_tokens(pages: dict[str, Page], window: Window, name: str):
    page, example = pages[name], pages[name].trace.example
    probabilities = page.probabilities
    following = example.target_ids if example.source_ids else example.target_ids[1:]
    window.go(page.address, view="generation")
    for step in (0, 2, len(following) - 1):
        window.select(view="generation", step=step)
        best = probabilities[step].topk(10).values
        found = window.data(".candidates .bar", "value", "marked")
        assert [value for value, _ in found[:10]] == pytest.approx(best.tolist(), rel=1e-4, abs=1e-6)
        [(chosen,)] = window.data(".sum output", "value")
        assert chosen == pytest.approx(float(probabilities[step, following[step]]), rel=1e-4, abs=1e-7)
        assert [value for value, marked in found if marked] == pytest.approx([chosen])
        for columns in window.page.eval_on_selector_all(
            ".attended:not([hidden])", "(all) => all.map((one) => one.dataset.columns)"
        ):
            layers = [
                name for name in page.trace.weights if page.trace.axes(name)[1] == columns and name.startswith("dec")
            ]
            mean = torch.cat([page.trace.weights[layer][:, step] for layer in layers]).mean(0)
            shown = window.data(f'.attended[data-columns="{columns}"] [data-token]', "token", "value")
            assert dict(shown) == {at: pytest.approx(float(value), **CLOSE) for at, value in enumerate(mean)}


def test_a_masked_model_has_candidates_at_all_tokens(pages: dict[str, Page], window: Window):
    window.go(pages["bert"].address, view="generation", step=3)
    best = pages["bert"].probabilities[3].topk(10).values
    assert [value for (value,) in window.data(".candidates .bar", "value")][:10] == pytest.approx(
        best.tolist(), rel=1e-4
    )


def test_the_beam_search_tree_is_drawn(pages: dict[str, Page], window: Window):
    trace = pages["transformer"].trace
    window.go(pages["transformer"].address, view="generation")
    nodes = window.data(".tree [data-node]", "node", "step", "parent", "value")
    expected = [[at, node["step"], node["parent"], node["score"]] for at, node in enumerate(trace.example.beams)]
    assert len(nodes) == len(expected) > 10
    for found, wanted in zip(nodes, expected):
        assert found[:3] == wanted[:3]
        assert found[3] == pytest.approx(wanted[3])
    best = window.page.eval_on_selector_all(".node.best text", "(all) => all.map((one) => one.textContent)")
    assert best == trace.target_tokens[: len(best)]
    assert len(best) >= len(trace.target_tokens) - 1


@pytest.mark.parametrize("name", ["transformer", "bert", "gpt2", "reformer"])
def test_position_tables_are_shown(pages: dict[str, Page], window: Window, name: str):
    page, example = pages[name], pages[name].trace.example
    tables = position_tables(page.model.network, len(example.source_ids) + len(example.target_ids))
    window.go(page.address, view="positions")
    assert len(window.data("canvas.table", "table")) == len(tables) > 0
    for at, entry in enumerate(tables):
        found = window.hovered(f'canvas[data-table="{at}"]', 6, 6)
        assert len(found) >= 16
        assert found == {(r, c): pytest.approx(float(entry["table"][r, c]), rel=1e-3, abs=1e-4) for r, c in found}
        if entry["kind"] == "table":
            [(similarity,)] = window.data(f'.position[data-table="{at}"] [data-values]', "values")
            rows = F.normalize(entry["table"], dim=-1)
            cosines = [float((rows[: len(rows) - d] * rows[d:]).sum(-1).mean()) for d in range(len(rows))]
            assert [float(part) for part in similarity.split()] == pytest.approx(cosines, abs=2e-3)


def test_buckets_are_those_of_the_model(pages: dict[str, Page], window: Window):
    page = pages["reformer"]
    layer, head = next(iter(page.trace.buckets)), 1
    buckets, weights = page.trace.buckets[layer][head], page.trace.weights[layer][head]
    row = len(buckets) - 2
    window.go(page.address, view="buckets", layer=layer, head=head, row=row)
    for round in range(buckets.shape[1]):
        boxes = window.page.eval_on_selector_all(
            f'[data-round="{round}"] [data-bucket]',
            "(all) => all.map((box) => [Number(box.dataset.bucket),"
            " [...box.querySelectorAll('[data-token]')].map((one) => Number(one.dataset.token))])",
        )
        for bucket, tokens in boxes:
            assert tokens == (buckets[:, round] == bucket).nonzero().flatten().tolist()
        assert sum(len(tokens) for _, tokens in boxes) == len(buckets)
    partners = {
        key: (rounds, weight)
        for key, rounds, weight in window.data(".partners tr[data-key]", "key", "rounds", "weight")
    }
    same = (buckets == buckets[row]).sum(-1)
    expected = [s for s in range(row) if same[s] or weights[row, s] > 0]
    assert sorted(partners) == expected
    for s, (rounds, weight) in partners.items():
        assert rounds == int(same[s])
        assert weight == pytest.approx(float(weights[row, s]), **CLOSE)
    found = window.hovered("canvas.square", 6, 6)
    assert found == {(r, c): int((buckets[r] == buckets[c]).sum()) if c <= r else 0 for r, c in found}


@pytest.mark.parametrize("name", ["bahdanau", "transformer", "gpt2"])
def test_losses_with_a_head_switched_off_are_those_of_the_ablated_model(
    pages: dict[str, Page], window: Window, name: str
):
    page, example = pages[name], pages[name].trace.example
    network = page.model.network
    targets = torch.tensor(example.target_ids if example.source_ids else example.target_ids[1:])

    def loss(**off: Any) -> float:
        with torch.inference_mode():
            logits = network.readout(network.hidden_states(**example.collector.inputs, **off))[0, : len(targets)]
        return float(F.cross_entropy(logits, targets))

    window.go(page.address, view="ablation")
    assert window.data("p output[data-loss]", "loss")[0] == [pytest.approx(loss(), rel=1e-4)]
    cells = window.data("[role=gridcell]", "layer", "head", "loss", "value")
    assert len(cells) == sum(len(heads) for heads in page.trace.weights.values())
    for layer, head, shown, change in cells[::2]:
        changed = loss(ablation=Ablation({layer: (head,)}))
        assert shown == pytest.approx(changed, rel=1e-4)
        assert change == pytest.approx(changed - loss(), abs=1e-4)


@pytest.mark.parametrize("name", ["transformer", "gpt2", "seq2seq"])
def test_the_nearest_neighbours_are_nearest_by_cosine(pages: dict[str, Page], window: Window, name: str):
    page, example = pages[name], pages[name].trace.example
    side, ids = ("source", example.source_ids) if example.source_ids else ("decoder_input", example.input_ids)
    network = page.model.network
    table = F.normalize((network.source_embed if side == "source" else network.embed).table.weight.detach(), dim=-1)
    window.go(page.address, view="neighbours", side=side, token=2)
    values = [value for (value,) in window.data(".neighbours .bar", "value")]
    cosines = table @ table[ids[2]]
    cosines[ids[2]] = -2
    words = ordinary_tokens(page.model.tokenizer)
    best = sorted((round(float(value), 6) for at, value in enumerate(cosines) if words[at]), reverse=True)[:8]
    assert values == pytest.approx(best, abs=1e-5)


@pytest.fixture(scope="module")
def compared(pages: dict[str, Page], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[AttentionTrace], str, str]:
    """Two models side by side, and three checkpoints."""
    first = pages["transformer"].model
    second = small(MODELS["rotary"], generation_config={"max_length": 7})
    traces = [first.look(TEXT, TARGET), second.look(TEXT, TARGET), first.look(TEXT, TARGET)]
    folder = tmp_path_factory.mktemp("compared")
    side_by_side(*traces[:2], labels=["one", "two"]).save(folder / "two.html")
    side_by_side(*traces, labels=["step 1", "step 2", "step 3"], slider=True).save(folder / "time.html")
    return traces, (folder / "two.html").as_uri(), (folder / "time.html").as_uri()


def test_two_models_are_compared(compared: tuple[list[AttentionTrace], str, str], window: Window):
    (first, second, _), address, _ = compared
    layer = "decoder.1.cross"
    window.go(address, view="compare", layer=layer, head=1)
    assert window.views == [*ALL_VIEWS[:-1], "compare", "neighbours"]
    left, right = first.weights[layer][1], second.weights[layer][1]
    for name, weights in {"left": left, "right": right, "difference": right - left}.items():
        found = window.hovered(f'canvas[data-map="{name}"]', 7, 7)
        assert len(found) >= 15
        assert found == {(r, c): pytest.approx(float(weights[r, c]), rel=2e-3, abs=6e-4) for r, c in found}
    assert window.data("output[data-moved]", "moved")[0][0] == pytest.approx(
        float((right - left).abs().sum(-1).mean() / 2), abs=1e-3
    )
    assert [value for (value,) in window.data("output[data-entropy]", "entropy")] == pytest.approx(
        [float(one.entropy[layer][1]) for one in (first, second)], abs=1e-5
    )
    assert window.unnamed() == []


def test_a_slider_steps_through_checkpoints(
    compared: tuple[list[AttentionTrace], str, str], window: Window, tmp_path: Path
):
    traces, _, address = compared
    layer = "decoder.0.cross"
    window.go(address, view="compare", trace=0, layer=layer, head=0)
    for at, trace in enumerate(traces):
        found = window.hovered('canvas[data-map="checkpoint"]', 5, 5)
        assert found == {(r, c): pytest.approx(float(trace.weights[layer][0, r, c]), **CLOSE) for r, c in found}
        assert window.page.text_content(".player .count") == f"step {at + 1}"
        window.click(".player [aria-label='Next']")
    shown = window.page.locator('canvas[data-map="checkpoint"]').bounding_box()
    assert png_size(window.saved("png", tmp_path)) == (round(2 * shown["width"]), round(2 * shown["height"]))
    [(line,)] = window.data("#over-training [data-values]", "values")
    assert [float(value) for value in line.split()] == pytest.approx(
        [float(trace.entropy[layer][0]) for trace in traces]
    )
    assert window.unnamed() == []


def png_size(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[16:24]
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")


@pytest.mark.parametrize("view", [*ALL_VIEWS, "buckets"])
def test_numbers_are_saved_for_numpy_and_drawings_are_drawings(
    pages: dict[str, Page], window: Window, view: str, tmp_path: Path
):
    page, layer = pages["reformer"], "decoder.1.self"
    window.go(page.address, view=view, layer=layer, head=1, row=3, column=1)
    for kind in ("png", "svg", "npz"):
        path = window.saved(kind, tmp_path)
        if kind == "png":
            assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        elif kind == "svg":
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        else:
            arrays = dict(np.load(path, allow_pickle=False))
            weights = page.trace.weights[layer][1].numpy()
            if view == "matrix":
                np.testing.assert_allclose(arrays["weights"], weights, rtol=1e-3, atol=1e-6)
                assert arrays["rows"].tolist() == page.trace.target_tokens
            elif view == "head":
                heads = sorted(name for name in arrays if name.startswith("head-"))
                np.testing.assert_allclose(arrays[heads[1]], weights, rtol=1e-3, atol=1e-6)
            elif view == "neuron":
                np.testing.assert_allclose(arrays["recorded"], weights[3], rtol=1e-3, atol=1e-6)
                assert arrays["keys"].tolist() == page.trace.target_tokens
            elif view == "overview":
                np.testing.assert_allclose(arrays[f"{layer}.entropy"], page.trace.entropy[layer], rtol=1e-5)
            elif view == "buckets":
                np.testing.assert_array_equal(arrays["buckets"], page.trace.buckets["decoder.1.self"][1])
            else:
                assert arrays


def test_a_saved_matrix_is_sharp_and_has_its_numbers(pages: dict[str, Page], window: Window, tmp_path: Path):
    layer = "decoder.0.cross"
    window.go(pages["transformer"].address, view="matrix", layer=layer, head=1)
    shown = window.page.locator("#map").bounding_box()
    assert png_size(window.saved("png", tmp_path)) == (2 * shown["width"], 2 * shown["height"])
    texts = [node.text for node in ElementTree.parse(window.saved("svg", tmp_path)).iter() if node.tag.endswith("text")]
    weights = pages["transformer"].trace.weights[layer][1].flatten().tolist()
    assert {f"{weight:.2f}".removeprefix("0") for weight in weights if weight >= 0.006} <= set(texts)


def test_the_page_works_inside_a_notebook_and_offers_no_link_there(pages: dict[str, Page], browser: Any):
    with opened(browser) as window:
        window.page.set_content(pages["transformer"].trace._repr_html_())
        frame = window.page.frame_locator("iframe")
        for view in VIEWS_OF["transformer"]:
            frame.locator(f"#tab-{view}").click()
            frame.locator(f"[data-view='{view}'] *").first.wait_for(state="attached")
        assert frame.locator("#save-png").count() == 1
        assert frame.locator("#save-link").count() == 0


def test_an_address_that_is_typed_wins_over_one_written_since(pages: dict[str, Page], window: Window):
    window.go(pages["transformer"].address, view="head")
    window.page.evaluate(
        "() => dispatchEvent(new HashChangeEvent('hashchange', {newURL: `${location.href.split('#')[0]}#view=matrix`}))"
    )
    window.page.wait_for_selector("[data-view='matrix']", timeout=3_000)


def test_a_link_restores_the_view(pages: dict[str, Page], browser: Any):
    with opened(browser, pages["transformer"].address) as window:
        window.click("#tab-matrix").press("]", "]", ".", "w")
        window.page.focus("#map")
        window.press("ArrowDown", "ArrowDown", "ArrowRight", "+", "+")
        window.page.wait_for_function("() => location.hash.includes('zoom')")
        address, listed = window.page.url, window.data("#row-weights li", "row", "column", "value")
        under = window.hovered("#map", 3, 3)
        assert {"view", "layer", "head", "row", "column", "words"} <= {
            part.split("=")[0] for part in address.split("#")[1].split("&")
        }
    with opened(browser, address) as again:
        assert again.page.url == address
        assert again.data("#row-weights li", "row", "column", "value") == listed
        assert again.hovered("#map", 3, 3) == under


KEYS = {
    "walk": "i", "overview": "o", "head": "h", "matrix": "m", "neuron": "n", "generation": "g", "positions": "p",
    "buckets": "b", "ablation": "x", "neighbours": "e", "compare": "c",
}  # fmt: skip


def tabbed_into_view(window: Window) -> list[str]:
    """Press Tab from the top of the page to the first element of the view; return the ids on the way."""
    window.page.evaluate("() => { document.activeElement.blur(); window.scrollTo(0, 0); }")
    window.page.keyboard.press("Escape")
    passed = []
    for _ in range(80):
        window.page.keyboard.press("Tab")
        focused = window.page.evaluate(
            "() => { const [one, of] = [document.activeElement, getComputedStyle(document.activeElement)];"
            " const inside = one.ownerSVGElement && getComputedStyle(one.firstElementChild).stroke !== 'none';"
            " return [Boolean(one.closest('#view')), one.id || one.getAttribute('class'),"
            " of.outlineStyle !== 'none' || of.boxShadow !== 'none' || inside]; }"
        )
        assert focused[2], f"the focus is invisible at {focused[1]}"
        if focused[0]:
            return passed
        passed.append(focused[1])
    raise AssertionError(f"Tab never reached the view: {passed}")


@pytest.mark.parametrize("view", KEYS)
def test_every_view_works_by_keyboard(
    pages: dict[str, Page], compared: tuple[list[AttentionTrace], str, str], window: Window, view: str
):
    window.go(compared[1] if view == "compare" else pages["reformer"].address)
    window.press(KEYS[view])
    assert window.page.locator(f"[data-view='{view}']").count() == 1
    passed = tabbed_into_view(window)
    assert {"tab-overview", "layer", "head"} <= set(passed)
    announced = {window.announced}
    for _ in range(12):  # the first element may be a button without arrow keys
        for key in ("ArrowRight", "ArrowDown"):
            window.press(key)
            announced.add(window.announced)
        if len(announced) > 2:
            return
        window.page.keyboard.press("Tab")
    raise AssertionError(f"arrow keys announce nothing in {view}: {announced}")


def test_buttons_of_the_shell_work_by_keyboard(pages: dict[str, Page], window: Window):
    window.go(pages["transformer"].address)
    window.page.focus("#tab-matrix")
    window.press("Enter")
    assert window.page.locator("[data-view='matrix']").count() == 1
    before = window.hash
    window.press("]")
    assert window.hash != before
    window.page.focus("#save summary")
    window.press("Enter")
    assert window.page.is_visible("#save-npz")
    window.press("?")
    assert window.page.is_visible("dialog[open]")
    window.press("Escape")
    assert not window.page.is_visible("dialog[open]")


def luminance(window: Window, of: str) -> float:
    painted = window.page.evaluate(
        "(of) => { const one = document.createElement('canvas').getContext('2d');"
        " one.fillStyle = getComputedStyle(document.body)[of]; one.fillRect(0, 0, 1, 1);"
        " return [...one.getImageData(0, 0, 1, 1).data]; }",
        of,
    )
    parts = [value / 255 for value in painted[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_dark_where_the_system_is(pages: dict[str, Page], browser: Any, scheme: str):
    with opened(browser, pages["bert"].address, options={"color_scheme": scheme}) as window:
        paper, ink = (luminance(window, of) for of in ("backgroundColor", "color"))
        assert (paper < ink) == (scheme == "dark")
        assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 7
        for view in window.views:
            window.click(f"#tab-{view}")
        other = {"light": "dark", "dark": "light"}[scheme]
        window.page.select_option("#theme", other)
        assert (luminance(window.settled(), "backgroundColor") < 0.5) == (other == "dark")


@pytest.mark.parametrize("width", [700, 420])
@pytest.mark.parametrize("name", ["transformer", "reformer", "seq2seq"])
def test_a_narrow_page_does_not_scroll_sideways_and_its_text_keeps_its_size(
    pages: dict[str, Page], browser: Any, name: str, width: int
):
    with opened(browser) as window:
        window.page.set_viewport_size({"width": width, "height": 800})
        window.go(pages[name].address)
        for view in window.views:
            window.click(f"#tab-{view}")
            wide = window.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 1, view
            scales = window.page.eval_on_selector_all(
                ".root svg[viewBox]",
                "(all) => all.map((one) => one.getBoundingClientRect().width / one.viewBox.baseVal.width)",
            )
            assert all(scale > 0.9 for scale in scales), view


def test_print_shows_all_scrolled_content(pages: dict[str, Page], window: Window):
    window.go(pages["reformer"].address)
    for view in window.views:
        window.click(f"#tab-{view}")
        window.page.emulate_media(media="print")
        window.page.wait_for_function(  # the browser may take a moment to change its medium
            "[...document.querySelectorAll('.scroll, .strip, .lines')]"
            ".every((one) => getComputedStyle(one).overflowY === 'visible')"
        )
        window.page.emulate_media(media="screen")


def test_uniform_attention_is_drawn(browser: Any, tmp_path: Path):
    model = small(zoo.bert(width=24, depth=1, heads=3, inner=40, max_positions=128))
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if "query_key_value" in name:
                parameter.zero_()  # every key scores the same
    page = page_of(tmp_path, "spread", model.look(" ".join(["the cat sat on a mat"] * 8)), model)
    with opened(browser, page.address, view="head", layer="encoder.0.self") as window:
        inked = window.page.eval_on_selector(
            ".lines canvas",
            "(one) => one.getContext('2d').getImageData(0, 0, one.width, one.height).data"
            ".filter((value, at) => at % 4 === 3 && value > 60).length",
        )
        assert inked > 500


def test_curves_stay_inside_their_plot(pages: dict[str, Page], window: Window):
    for name in ("gpt2", "transformer"):
        window.go(pages[name].address, view="positions")
        curves = window.page.eval_on_selector_all(
            ".plot .curve",
            "(all) => all.map((one) => { const [plot, curve] = [one.ownerSVGElement, one].map((node) =>"
            " node.getBoundingClientRect()); return [plot.top, plot.bottom - 30, curve.top, curve.bottom]; })",
        )
        assert curves
        for top, bottom, curve_top, curve_bottom in curves:
            assert top <= curve_top <= curve_bottom <= bottom


def test_a_long_list_of_changed_predictions_is_cut(browser: Any, pages: dict[str, Page], tmp_path: Path):
    payload, blobs = page_payload([("", pages["gpt2"].trace)])
    payload["traces"][0]["ablation"]["heads"][0]["changed"] = [[0, "a", "b"]] * 5_000
    path = tmp_path / "changed.html"
    path.write_text(page(payload, blobs), "utf-8")
    with opened(browser, path.as_uri(), view="ablation", layer="decoder.0.self", head=0) as window:
        assert window.page.locator(".changed tbody tr").count() == 100
        assert "and 4,900 more" in window.page.text_content("[data-view='ablation']")


def test_labels_of_wide_characters_are_cut(browser: Any, pages: dict[str, Page], tmp_path: Path):
    payload, blobs = page_payload([("", pages["seq2seq"].trace)])
    words = [character * 40 for character in ("▁", "漢", "n")]
    payload["traces"][0]["neighbours"]["source"][0] = [[word, 0.5] for word in words]
    path = tmp_path / "wide.html"
    path.write_text(page(payload, blobs), "utf-8")
    with opened(browser, path.as_uri(), view="neighbours") as window:
        left = window.page.eval_on_selector(".bars", "(one) => one.getBoundingClientRect().left")
        names = window.page.eval_on_selector_all(
            ".bars .name", "(all) => all.map((one) => [one.getBoundingClientRect().left, one.textContent.length])"
        )
        assert all(start >= left for start, _ in names)
        assert [count for _, count in names] == [7, 7, 14]


@pytest.mark.slow
def test_sixteen_thousand_tokens_open_as_tiles_and_top_keys(browser: Any, tmp_path: Path):
    description = zoo.reformer(width=8, depth=1, heads=1, inner=8, attention=("lsh",), rounds=1, dropout=0.0)
    model = small(description)
    text = " ".join(["the cat sat on a mat and a dog ran in the park"] * 1400)
    tokens = model.tokenizer.encode(text)
    trace = model.look(model.tokenizer.decode(tokens[:16_383]))
    page = page_of(tmp_path, "long", trace, model)
    [layer] = trace.layers
    assert len(trace.target_tokens) >= 16_000
    assert trace.layers[layer].weights is None
    tiles, row = trace.layers[layer].tiles[0], 9_000
    exact = trace.rows(layer, 0, row, row + 1)[0]
    with opened(browser, page.address, view="matrix", layer=layer, row=row) as window:
        listed = window.data("#row-weights li", "column", "value")
        assert listed[0][1] == pytest.approx(float(exact.max()), **CLOSE)
        assert dict(listed) == {c: pytest.approx(float(exact[c]), **CLOSE) for c, _ in listed}
        found = window.hovered("#map", 6, 6)
        assert len(found) >= 10
        size, length = tiles.shape[0], len(trace.target_tokens)
        for (r, c), value in found.items():
            tile = float(tiles[r * size // length, c * size // length])
            weight = float(trace.rows(layer, 0, r, r + 1)[0, c])
            assert value == pytest.approx(tile, **CLOSE) or value == pytest.approx(weight, **CLOSE)
            assert value >= weight * 0.999 - 1e-5
        for view in window.views:
            window.click(f"#tab-{view}")
            assert "could not be shown" not in window.page.text_content("#note")
