"""A converted language model continues and scores texts as torch does; what CTranslate2 has no words for is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regard.api import LoadedModel, load
from regard.cli import run
from regard.decode.options import Options
from regard.engines.folder import find_converted, place_of, read_proof
from regard.engines.language_model import LanguageModel
from regard.errors import InputError, Note
from regard.layers.attention import SelfAttention
from regard.layers.feedforward import FeedForward
from regard.layers.join import PostNorm, PreNorm, RMSNorm
from regard.layers.patterns import Causal, Window
from regard.layers.positions import ALiBi, Concatenated, RelativeBias, Rotary, Sinusoid
from regard.layers.reversible import Reversible
from regard.layers.scores import Dot
from regard.models.model import Model
from regard.models.zoo import gpt2, lstm_lm, reformer
from regard.store.convert import convert as convert_folder
from tests.engines.test_engines import STARTED, convert, no_torch
from tests.small import TEXTS, save_model, small

DEFAULTS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
PROMPTS = ["the cat", "A dog ran in", "", "the park and the mat and the", "the dog"]


def tiny(**settings: Any) -> Model:
    return gpt2(16, 2, 4, inner=24, dropout=0.0, **settings)


def attending(model: Model, **changes: Any) -> Model:
    """The model with other self-attention."""
    assert model.decoder is not None
    layers = tuple(
        tuple(replace(part, **changes) if isinstance(part, SelfAttention) else part for part in layer)
        for layer in model.decoder.layers
    )
    return replace(model, decoder=replace(model.decoder, layers=layers))


MODELS = {
    "learned": tiny(),
    "sinusoids": tiny(position=Sinusoid()),
    "no_positions": tiny(position=None),
    "rotary": tiny(position=Rotary()),
    "alibi": tiny(position=ALiBi()),
    "alibi_of_six_heads": gpt2(24, 1, 6, inner=24, dropout=0.0, position=ALiBi()),
    "post_norm": tiny(join=PostNorm(), tied=False),
    "unscaled": tiny(score=Dot(scaled=False)),
    "shared_keys": attending(tiny(position=Rotary()), key_heads=2, key_width=6),
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[LoadedModel, LanguageModel]:
    folder = tmp_path_factory.mktemp("engines") / "model"
    save_model(folder, small(MODELS[request.param], generation_config=DEFAULTS))
    return load(folder, engine="torch"), LanguageModel(convert(folder), no_torch)


OPTIONS = {
    "greedy": Options(max_tokens=12),
    "beams": Options(beam=3, n_best=2, max_tokens=6),
    "no_penalty": Options(beam=3, length_penalty=0.0, max_tokens=6),
    "nothing": Options(max_tokens=0),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_continuations_are_those_of_torch(pair: tuple[LoadedModel, LanguageModel], options: Options):
    model, engine = pair
    for ours, theirs in zip(model.continuations(PROMPTS, options), engine.continuations(PROMPTS, options), strict=True):
        assert [one.text for one in theirs] == [one.text for one in ours]
        assert [one.tokens for one in theirs] == [one.tokens for one in ours]
        assert [one.ended for one in theirs] == [one.ended for one in ours]
        assert [one.score for one in theirs] == pytest.approx([one.score for one in ours], abs=1e-3)


def test_scores_are_those_of_torch(pair: tuple[LoadedModel, LanguageModel]):
    model, engine = pair
    for ours, theirs in zip(model.scores([*TEXTS, ""]), engine.scores([*TEXTS, ""]), strict=True):
        assert [name for name, _ in theirs.tokens] == [name for name, _ in ours.tokens]
        assert [value for _, value in theirs.tokens] == pytest.approx([value for _, value in ours.tokens], abs=1e-3)
        assert theirs.total == pytest.approx(ours.total, abs=1e-2)


def tiny_reformer() -> Model:
    """All of its layers hash."""
    model = reformer(16, 2, 2)
    assert model.decoder is not None
    return replace(model, decoder=replace(model.decoder, layers=model.decoder.layers[1:2]))


REFUSED = {
    "window": tiny(pattern=Window(4)),
    "concatenated": tiny(position=Concatenated(4)),
    "recurrent": lstm_lm(16),
    "relative_bias": tiny(position=RelativeBias()),
    "reversible": tiny(join=Reversible()),
    "lsh_attention": tiny_reformer(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_has_no_words_for_is_refused_by_name(name: str, tmp_path: Path):
    source = save_model(tmp_path / "model", small(REFUSED[name]))
    with pytest.raises(InputError, match=rf"CTranslate2 cannot run .*{name}"):
        convert(source)
    assert not place_of(source, "float32").exists()


def test_a_refusal_names_the_format_that_can_hold_the_model(tmp_path: Path):
    source = save_model(tmp_path / "model", small(reformer(16, 1, 2)))
    with pytest.raises(InputError) as refused:
        convert(source)
    published = True
    try:
        convert_folder(source, tmp_path / "published", "huggingface")
    except InputError:
        published = False
    assert ("--to huggingface" in str(refused.value)) == published


def llama() -> Model:
    """The parts of Llama: rotary positions, keys for several heads, RMS norms, a gated feed-forward, no biases."""
    plain = tiny(position=Rotary(), join=PreNorm(RMSNorm()), tied=False)
    assert plain.decoder is not None
    attention = SelfAttention(4, Causal(), position=Rotary(), biased=False, key_heads=2)
    layer = attention, FeedForward(24, "silu", gated=True, biased=False)
    return replace(plain, decoder=replace(plain.decoder, layers=(layer, layer)))


@pytest.mark.parametrize("description", [MODELS["learned"], llama()], ids=["gpt2", "llama"])
def test_a_published_language_model_is_converted(description: Model, tmp_path: Path):
    ours = save_model(tmp_path / "ours", small(description, generation_config=DEFAULTS))
    convert_folder(ours, tmp_path / "published", "huggingface")
    model, engine = load(tmp_path / "published"), LanguageModel(convert(tmp_path / "published"), no_torch)
    options = Options(max_tokens=10)
    assert engine.continuations(PROMPTS[:2], options)[0][0].text == model.continuations(PROMPTS[:2], options)[0][0].text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", small(MODELS["learned"], generation_config=DEFAULTS))


def test_the_proof_counts_equal_continuations(folder: Path):
    proof = read_proof(convert(folder))
    assert proof is not None
    assert (proof.lines, proof.equal_lines, proof.options["beam"]) == (len(TEXTS), len(TEXTS), 1)
    rounded = read_proof(convert(folder, precision="int8"))
    assert rounded is not None
    assert 0 <= rounded.share <= 1


def test_sampling_is_left_to_torch_by_name(folder: Path):
    convert(folder)
    options = Options(temperature=1.0, max_tokens=5, seed=3)
    with pytest.warns(Note, match="does not honour temperature, so torch generates"):
        found = load(folder).continuations(PROMPTS, options)
    assert found == load(folder, engine="torch").continuations(PROMPTS, options)
    with pytest.warns(Note, match="does not honour temperature, so torch generates"):
        assert load(folder, engine="ctranslate2").continuations(PROMPTS, options) == found


def test_a_command_that_the_engine_lacks_is_torchs(folder: Path):
    convert(folder)
    assert find_converted(folder, "auto", "embed") is None
    with pytest.raises(InputError, match="is not converted to CTranslate2 to embed"):
        find_converted(folder, "ctranslate2", "embed")
    assert (load(folder).embed(TEXTS) == load(folder, engine="torch").embed(TEXTS)).all()


def test_a_text_beyond_the_written_positions_is_left_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.engines.spec.MAX_POSITIONS", 64)
    folder = save_model(tmp_path / "model", small(MODELS["sinusoids"], generation_config=DEFAULTS))
    convert(folder)
    with pytest.warns(Note, match="more than 64 tokens"):
        found = load(folder).continuations(["cat " * 60], Options(max_tokens=10))
    assert found == load(folder, engine="torch").continuations(["cat " * 60], Options(max_tokens=10))


@pytest.mark.parametrize("command", ["generate", "score"])
def test_a_converted_language_model_runs_without_torch(folder: Path, command: str):
    place = convert(folder)
    words = [command, str(place)] + (
        ["the cat", "--temperature", "0", "--max-tokens", "5"] if command == "generate" else []
    )
    done = subprocess.run(
        [sys.executable, "-c", STARTED, *words], input="the cat sat\n", capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines() == ["False"]
    model = load(folder, engine="torch")
    if command == "generate":
        expected = model.continuations(["the cat"], Options(max_tokens=5))[0][0].text
        assert done.stdout == f"{expected}\n"
    else:
        assert float(done.stdout) == pytest.approx(model.score(["the cat sat"])[0], abs=1e-3)


def test_streaming_is_refused_where_the_engine_is_named(folder: Path, capsys: Any):
    convert(folder)
    assert run(["generate", str(folder), "the", "--stream", "--engine", "ctranslate2"]) == 2
    assert "does not stream" in capsys.readouterr().err
