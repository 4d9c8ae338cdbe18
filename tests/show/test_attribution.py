"""Attribution: gradient times input, leaving tokens out, their rank correlation, and the view that shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.models import zoo
from regard.models.readouts import Label, Mean, Number, Tags
from regard.show import attribution as module
from regard.show.attribution import Attribution, attribution, prediction_scores, rank_correlation
from regard.show.payload import page_payload
from regard.show.trace import AttentionTrace
from tests.laws.zoo import MODELS
from tests.small import small

from .browser import opened

TEXT = "The dogs played in the parks."
BERT = zoo.bert(16, 2, 2, max_positions=64)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "transformer": (MODELS["transformer"], {"target": "the cat ran"}),
    "bahdanau": (MODELS["bahdanau"], {"target": "the cat ran"}),
    "luong": (MODELS["luong"], {"target": "the cat ran"}),
    "gpt2": (MODELS["gpt2"], {"length": 3}),
    "bert": (MODELS["bert"], {}),
    "classifier": (replace(BERT, readout=Label(("good", "bad"), Mean())), {}),
    "regression": (replace(BERT, readout=Number()), {}),
    "tags": (replace(BERT, readout=Tags(("noun", "verb", "other"))), {}),
    "reformer": (MODELS["reformer, several rounds"], {"length": 2}),
    "reversible": (zoo.reformer(16, 2, 2, attention=("full",)), {"length": 2}),
}


def traced(kind: str, text: str = TEXT) -> AttentionTrace:
    model, options = KINDS[kind]
    return small(model, generation_config={"max_length": 7}).look(text, **options)


def attributed(trace: AttentionTrace) -> Attribution:
    example = trace.example
    assert example is not None
    found = attribution(example.network, example.tokenizers, example.collector.inputs, example.target_ids)
    assert found is not None
    return found


def score(trace: AttentionTrace, found: Attribution, number: int, inputs: dict[str, Any]) -> float:
    """The log-probability (or the number) of one prediction, by its text."""
    example = trace.example
    with torch.no_grad():
        scores = prediction_scores(example.network, inputs, torch.tensor([[found.rows[number]]]))[0, 0]
        before = prediction_scores(example.network, example.collector.inputs, torch.tensor([[found.rows[number]]]))[
            0, 0
        ]
    chosen = int((before - found.scores[number]).abs().argmin())
    return float(scores[chosen])


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_a_token_out_is_the_change_of_the_score_with_another_token_in_its_place(kind: str):
    trace = traced(kind)
    found, example = attributed(trace), trace.example
    side = "source_ids" if "source_ids" in example.collector.inputs else "ids"
    ids, number = example.collector.inputs[side], len(found.rows) - 1
    assert found.gradient.shape == found.left_out.shape == (len(found.rows), ids.shape[1])
    tokenizer = example.tokenizers[0 if example.network.shape != "decoder" else 1]
    (instead,) = [token for token in range(tokenizer.vocabulary) if tokenizer.token_texts([token]) == [found.instead]]
    for token in (0, 3):
        changed = ids.clone()
        changed[:, token] = instead
        after = score(trace, found, number, {**example.collector.inputs, side: changed})
        expected = abs(float(found.scores[number]) - after)
        assert float(found.left_out[number, token]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "reformer"])  # whose buckets move
def test_gradient_times_input_is_the_change_of_the_score_with_the_size_of_a_tokens_vector(kind: str):
    trace = traced(kind)
    trace.example.network.double()
    found, example = attributed(trace), trace.example
    network, number, step = example.network, len(found.rows) - 1, 1e-5
    embed = network.source_embed if "source_ids" in example.collector.inputs else network.embed
    for token in (0, 2):

        def moved(by: float, token: int = token) -> float:
            def scale(_module: Any, _given: Any, output: Tensor) -> Tensor:
                output = output.clone()
                output[:, token] *= 1 + by
                return output

            hook = embed.register_forward_hook(scale)
            try:
                with torch.no_grad():
                    at = torch.tensor([[found.rows[number]]])
                    scores = prediction_scores_exact(network, example.collector.inputs, at)
            finally:
                hook.remove()
            return float(scores[int((scores - found.scores[number]).abs().argmin())])

        slope = abs(moved(step) - moved(-step)) / (2 * step)
        assert float(found.gradient[number, token]) == pytest.approx(slope, rel=2e-2, abs=2e-4)


def prediction_scores_exact(network: Any, inputs: Any, at: Tensor) -> Tensor:
    """The scores in double precision, without the rounding to float32."""
    readout, states = network.description.readout, network.hidden_states(**inputs)
    logits = network.readout(states[:, at[0, 0]] if readout.tokenwise else states)[0]
    if readout.outputs == "numbers":
        return logits
    return logits.log_softmax(-1)


def test_a_causal_model_depends_on_no_later_token():
    found = attributed(traced("gpt2"))
    for number, row in enumerate(found.rows):
        assert float(found.left_out[number, row + 1 :].abs().sum()) == pytest.approx(0, abs=1e-4)
        assert float(found.gradient[number, row + 1 :].abs().sum()) == 0
        assert float(found.gradient[number, : row + 1].sum()) > 0


def test_it_works_without_gradients_and_in_inference_mode():
    trace = traced("bert")
    expected = attributed(trace)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(attributed(trace).gradient, expected.gradient)


def test_a_masked_word_is_explained_and_a_mask_stands_for_what_is_left_out():
    trace = traced("bert", "The dogs [MASK] in the parks.")
    found = attributed(trace)
    assert [trace.source_tokens[row] for row in found.rows] == ["[MASK]"]
    assert found.instead == "[MASK]"
    assert float(found.left_out[0, found.rows[0]]) == 0


def test_equal_values_share_their_mean_rank():
    assert float(rank_correlation(torch.tensor([[1.0, 2, 3]]), torch.tensor([[10.0, 20, 30]]))) == pytest.approx(1)
    assert float(rank_correlation(torch.tensor([[1.0, 2, 3]]), torch.tensor([[3.0, 2, 1]]))) == pytest.approx(-1)
    assert float(rank_correlation(torch.tensor([[1.0, 2, 2, 3]]), torch.tensor([[1.0, 2, 3, 4]]))) == pytest.approx(
        0.9487, abs=1e-4
    )
    assert float(rank_correlation(torch.ones(1, 4), torch.tensor([[1.0, 2, 3, 4]]))) == 0


def test_a_long_text_is_named_as_left_out(monkeypatch: pytest.MonkeyPatch):
    trace = traced("bert")
    monkeypatch.setattr("regard.show.payload.MAX_ATTRIBUTED", 5)
    monkeypatch.setattr(module, "MAX_TOKENS", 5)
    left_out = dict(page_payload(trace.traces)[0]["traces"][0]["left_out"])
    assert left_out == {"Explanation": f"{len(trace.source_tokens)} tokens; 5 at most"}


def expected_attention(trace: AttentionTrace, found: Attribution) -> Tensor:
    """PS: the mean attention of all heads whose queries make the predictions."""
    cross = [name for name in trace.weights if name.endswith("cross")]
    weights = torch.cat([trace.weights[name] for name in cross or trace.weights]).double().mean(0)
    return weights[list(found.rows)] if found.shares is None else found.shares.double()[None] @ weights


@pytest.mark.parametrize("kind", ["transformer", "bahdanau", "gpt2", "bert", "classifier"])
def test_the_view_shows_the_tensors_and_their_rank_correlation(kind: str, browser: Any, tmp_path: Path):
    trace = traced(kind)
    found = attributed(trace)
    trace.save(tmp_path / "page.html")
    attention = expected_attention(trace, found)
    number = len(found.rows) - 1
    seen = found.rows[number] + 1 if kind == "gpt2" else attention.shape[1]
    measures = {"attention": attention, "gradient": found.gradient.double(), "left": found.left_out.double()}
    with opened(browser, (tmp_path / "page.html").as_uri(), view="explanation", step=number) as window:
        for name, values in measures.items():
            shown = [value for (value,) in window.data(f'[data-measure="{name}"]', "value")]
            np.testing.assert_allclose(shown, values[number, :seen].numpy(), rtol=1e-3, atol=1e-6)
        correlations = dict(window.data("output[data-pair]", "pair", "value"))
        for pair, value in correlations.items():
            one, two = (measures[name][number : number + 1, :seen] for name in pair.split("-"))
            if pair.startswith("attention"):  # which the page has in half precision, so that ranks may differ
                one = one.half().double()
            assert value == pytest.approx(float(rank_correlation(one, two)), abs=0.06 if "attention" in pair else 1e-6)
        assert window.page.locator(".strip .token").count() == len(found.rows)
        if len(found.rows) > 1:
            window.click('.strip [data-token="0"]')
            assert "step=0" in window.hash
        window.press("ArrowDown")
        arrays = np.load(window.saved("npz", tmp_path))
        np.testing.assert_allclose(arrays["left_out"], found.left_out.numpy(), rtol=1e-6)
        np.testing.assert_allclose(arrays["attention"], attention.numpy(), rtol=1e-3, atol=1e-6)


def test_the_attention_of_the_chosen_head_can_be_compared(browser: Any, tmp_path: Path):
    trace = traced("transformer")
    trace.save(tmp_path / "page.html")
    selected = {"view": "explanation", "layer": "decoder.1.cross", "head": 2, "attend": "head", "step": 1}
    with opened(browser, (tmp_path / "page.html").as_uri(), **selected) as window:
        shown = [value for (value,) in window.data('[data-measure="attention"]', "value")]
    np.testing.assert_allclose(shown, trace.weights["decoder.1.cross"][2, 1].numpy(), rtol=1e-3, atol=1e-6)
