"""A page that is stopped or too long shows what is ready, in order, and names what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from regard.decode.options import Options
from regard.errors import InputError
from regard.models import zoo
from regard.show import collect, payload
from regard.show.collect import Stopped
from regard.show.generation import beam_tree
from regard.show.payload import page_payload
from regard.show.trace import AttentionTrace
from tests.laws.zoo import MODELS
from tests.small import WORDPIECE, small

TEXT = "The dogs played in the parks."


def stop_after(calls: int) -> Callable[[float], None]:
    """A progress that stops at this call."""
    left = [calls]

    def progress(done: float) -> None:
        left[0] -= 1
        if done >= 0 > left[0]:
            raise Stopped

    return progress


def lazy(monkeypatch: pytest.MonkeyPatch) -> AttentionTrace:
    """A trace whose weights do not fit, so that they are collected when the page is made."""
    monkeypatch.setattr(collect, "_BUDGET", 200)
    return small(zoo.transformer(16, 2, 2)).look(TEXT, "the cat ran")


def test_a_stopped_page_has_the_layers_that_were_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    trace = lazy(monkeypatch)
    order = list(trace.weights)
    left_out = trace.save(tmp_path / "page.html", progress=stop_after(5))  # a call per block: two per layer
    assert list(trace.layers) == order[:2]
    assert left_out["4 of 6 layers"] == left_out["Ablation"] == left_out["Generation"] == "stopped before it was ready"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_stopped_before_anything_is_ready_makes_no_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with pytest.raises(Stopped):
        lazy(monkeypatch).save(tmp_path / "page.html", progress=stop_after(0))
    assert not (tmp_path / "page.html").exists()


def test_views_are_made_in_order_until_it_is_stopped():
    trace = small(MODELS["bert"]).look(TEXT)
    found = [page_payload(trace.traces, progress=stop_after(calls))[0]["traces"][0] for calls in (0, 1, 3)]
    names = "positions", "generation", "neighbours", "attribution", "ablation"
    assert [[name for name in names if one[name]] for one in found] == [
        [], ["positions", "generation"], ["positions", "generation", "neighbours"],
    ]  # fmt: skip
    assert [what for what, _ in found[1]["left_out"]] == ["Nearest neighbours", "Explanation", "Ablation"]


def test_a_page_names_the_views_that_a_long_text_drops(monkeypatch: pytest.MonkeyPatch):
    trace = small(MODELS["bert"]).look(TEXT)
    assert page_payload(trace.traces)[0]["traces"][0]["left_out"] == []
    tokens = len(trace.source_tokens)
    monkeypatch.setattr(payload, "_MAX_TOKENS", tokens - 1)
    monkeypatch.setattr(payload, "_MAX_ABLATION_TOKENS", 1)
    monkeypatch.setattr(collect, "_BUDGET", 100)
    monkeypatch.setattr(collect, "_VECTORS", 1)
    left_out = dict(page_payload(trace.traces)[0]["traces"][0]["left_out"])
    assert set(left_out) == {"Neuron", "Generation", "Nearest neighbours", "Ablation", "mean, rollout and whole words"}
    assert left_out["Generation"] == f"{tokens} tokens; {tokens - 1} at most"


@pytest.mark.parametrize("name", ["transformer", "gpt2", "bahdanau"])
def test_a_stopped_search_gives_the_best_beam_so_far(name: str):
    model = small(MODELS[name])
    options = Options(beam=3, max_tokens=9)
    tree, best = beam_tree(model.network, (WORDPIECE, WORDPIECE), TEXT, options, progress=stop_after(3))
    assert len(best.tokens) == 4
    assert not best.ended
    marked = [node for node in tree if node["best"]]
    assert [node["text"] for node in marked] == WORDPIECE.token_texts(best.tokens)
    assert marked[-1]["score"] == max(node["score"] for node in tree if node["step"] == 3 and node["kept"])
    seen = model.look(TEXT, beam=3, progress=stop_after(3), **({"length": 9} if name == "gpt2" else {}))
    assert seen.target_tokens[-5:-1] == WORDPIECE.token_texts(best.tokens) or name == "gpt2"


@pytest.mark.parametrize("text", ["", "  ", "\n"])
@pytest.mark.parametrize("name", ["transformer", "gpt2", "bert"])
def test_an_empty_text_is_refused(name: str, text: str):
    with pytest.raises(InputError, match="empty"):
        small(MODELS[name]).look(text)


def test_tokens_of_the_prompt_and_of_the_model_are_told_apart():
    seen = small(MODELS["gpt2"]).look(TEXT, length=3)
    found = page_payload(seen.traces)[0]["traces"][0]
    origins = [step["origin"] for step in found["generation"]]
    assert found["prompt"] == len(seen.target_tokens) - 3
    assert origins == ["given"] * (found["prompt"] - 1) + 3 * ["chosen"] + ["predicted"]
    given = page_payload(small(MODELS["transformer"]).look(TEXT, "a cat").traces)[0]["traces"][0]
    assert {step["origin"] for step in given["generation"]} == {"given"}
    masked = page_payload(small(MODELS["bert"]).look("The [MASK] ran.").traces)[0]["traces"][0]
    assert [step["origin"] for step in masked["generation"]] == ["predicted"]
    assert masked["sides"]["source"]["tokens"][:3:2] == ["[CLS]", "[MASK]"]
