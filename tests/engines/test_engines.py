"""A converted model answers as torch does, says what it cannot do, and starts without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.api import LoadedModel, load
from regard.cli import run
from regard.decode.options import Options
from regard.engines.convert import convert_to_ctranslate2
from regard.engines.folder import Precision, find_converted, place_of, read_proof
from regard.engines.prove import Sample
from regard.engines.search import _farther, _Found, refused
from regard.engines.translator import Translator
from regard.errors import DamagedFile, InputError, Note
from regard.layers.feedforward import FeedForward
from regard.layers.join import LayerNorm, PostNorm, PreNorm, RMSNorm
from regard.layers.positions import ALiBi, Learned, RelativeBias, Rotary
from regard.layers.reversible import Reversible
from regard.layers.scores import Additive, Dot
from regard.models.model import Model
from regard.models.zoo import bahdanau, t5, transformer
from regard.store.convert import convert as convert_folder
from regard.store.convert import read_source
from regard.store.folder import unique_parameters, write_weights
from regard.store.loading import TRAINED_LENGTH
from tests.small import TEXTS, WORDPIECE, save_model, small

DEFAULTS = {"num_beams": 3, "length_penalty": 0.6, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LINES = [*TEXTS, "", "dog", "the park and the mat " * 4]


def tiny(**settings: Any) -> Model:
    return transformer(16, 2, 2, inner=24, dropout=0.0, **settings)


def gated(model: Model) -> Model:
    """The model with SwiGLU feed-forward networks."""

    def changed(stack: Any) -> Any:
        layers = tuple(
            tuple(
                replace(part, gated=True, activation="silu") if isinstance(part, FeedForward) else part
                for part in layer
            )
            for layer in stack.layers
        )
        return replace(stack, layers=layers)

    return replace(model, encoder=changed(model.encoder), decoder=changed(model.decoder))


def convert(folder: Path, target: Path | None = None, precision: Precision = "float32") -> Path:
    target = target or place_of(folder, precision)
    convert_to_ctranslate2(read_source(folder), folder, target, precision, Sample.of(TEXTS))
    return target


def no_torch() -> Any:
    raise AssertionError("torch was not to be used")


MODELS = {
    "post_norm": tiny(),
    "pre_norm": tiny(join=PreNorm()),
    "untied": tiny(tied=False, shared=False),
    "learned": tiny(position=Learned(64)),
    "rotary": tiny(position=Rotary()),
    "rms_norm": tiny(join=PreNorm(RMSNorm())),
    "other_epsilon": tiny(join=PostNorm(LayerNorm(0.1))),
    "gelu": tiny(activation="gelu"),
    "gelu_tanh": tiny(activation="gelu_tanh"),
    "swiglu": gated(tiny()),
    "factor": tiny(score=Dot(factor=0.5)),
    "unequal_depth": tiny(decoder_depth=1),
    "no_positions": tiny(position=None),
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Translator]:
    folder = tmp_path_factory.mktemp("engines") / "model"
    save_model(folder, small(MODELS[request.param], generation_config=DEFAULTS))
    return load(folder, engine="torch"), Translator(convert(folder), no_torch)


OPTIONS = {
    "defaults": Options(beam=3),
    "greedy": Options(),
    "no_penalty": Options(beam=3, length_penalty=0.0),
    "favours_short": Options(beam=3, length_penalty=-0.5),
    "by_length": Options(beam=3, normalization="length", length_penalty=1.0),
    "n_best": Options(beam=4, n_best=3),
    "limited": Options(beam=3, max_tokens=5),
    "one_token": Options(beam=2, max_tokens=1),
    "early_stopping": Options(beam=3, early_stopping=True),
    "hugging_face": Options(beam=3, early_stopping=False, normalization="length", length_penalty=1.0),
    "nothing": Options(beam=2, max_tokens=0),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_engine_gives_the_texts_and_scores_of_torch(pair: tuple[LoadedModel, Translator], options: Options):
    model, engine = pair
    for ours, theirs in zip(model.translations(LINES, options), engine.translations(LINES, options), strict=True):
        assert [one.text for one in theirs] == [one.text for one in ours]
        assert [one.tokens for one in theirs] == [one.tokens for one in ours]
        assert [one.ended for one in theirs] == [one.ended for one in ours]
        assert [one.score for one in theirs] == pytest.approx([one.score for one in ours], abs=1e-3)


T5 = {
    "t5": t5(16, 2, 2, inner=24, dropout=0.0),
    "t5_1.0": t5(16, 2, 2, version="1.0", inner=24, key_width=12, dropout=0.0, position=RelativeBias(8, 16)),
}


@pytest.mark.parametrize("name", T5)
def test_t5_is_converted_with_its_position_biases(name: str, tmp_path: Path):
    folder = save_model(tmp_path / "model", small(T5[name], generation_config=DEFAULTS))
    model, engine = load(folder, engine="torch"), Translator(convert(folder), no_torch)
    engine.patience = None  # the exact search
    for options in (OPTIONS["defaults"], OPTIONS["greedy"], OPTIONS["by_length"], OPTIONS["n_best"]):
        for ours, theirs in zip(model.translations(LINES, options), engine.translations(LINES, options), strict=True):
            assert [one.text for one in theirs] == [one.text for one in ours]


def test_a_published_t5_is_converted(tmp_path: Path):
    convert_folder(
        save_model(tmp_path / "ours", small(T5["t5"], generation_config=DEFAULTS)), tmp_path / "t5", "huggingface"
    )
    model, engine = load(tmp_path / "t5", engine="torch"), Translator(convert(tmp_path / "t5"), no_torch)
    assert [one[0].text for one in engine.translations(LINES, Options())] == model.translate(LINES, beam=1)


def test_scores_of_pairs_are_those_of_torch(pair: tuple[LoadedModel, Translator]):
    model, engine = pair
    for ours, theirs in zip(model.scores(LINES, LINES[::-1]), engine.scores(LINES, LINES[::-1]), strict=True):
        assert [name for name, _ in theirs.tokens] == [name for name, _ in ours.tokens]
        assert [value for _, value in theirs.tokens] == pytest.approx([value for _, value in ours.tokens], abs=1e-3)


def test_a_sentence_that_is_not_proven_is_searched_farther(monkeypatch: pytest.MonkeyPatch, folder: Path):
    model, engine = load(folder, engine="torch"), Translator(convert(folder), no_torch)
    engine.patience = None
    horizons = []
    start = Translator._start

    def noted(self: Translator, requests: Any, horizon: int, search: dict[str, Any]) -> list[Any]:
        horizons.append(horizon)
        return start(self, requests, horizon, search)

    monkeypatch.setattr("regard.engines.search._first_horizon", lambda source, limit: 2)
    monkeypatch.setattr(Translator, "_start", noted)
    for penalty in (0.6, 1.0, 2.0):  # which favours what ends late
        options = Options(beam=4, length_penalty=penalty)
        assert [one[0].text for one in engine.translations(LINES, options)] == model.translate(LINES, options=options)
    assert len(set(horizons)) > 1


def test_a_sentence_cut_short_by_the_limit_of_another_is_searched_once_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    engine, searched = Translator(convert(folder), no_torch, defaults_from=folder), Counter[Any]()
    start = engine._start

    def counted(requests: Any, horizon: int, search: Any) -> Any:
        searched.update(request.source for request in requests)
        return start(requests, horizon, search)

    monkeypatch.setattr(engine, "_start", counted)
    options, lines = Options(beam=1), [" ".join(["dog"] * count) for count in range(1, 6)]
    found = engine.translations(lines, options)
    assert {*searched.values()} == {1, 2}
    assert [one[0].text for one in found] == load(folder, device="cpu", engine="torch").translate(
        lines, options=options
    )


def test_only_a_bound_below_the_best_scores_ends_a_search():
    options, limit = Options(beam=2, length_penalty=1.0, early_stopping="never"), 20
    best = -3.0 / options.penalty(4.0)  # three tokens and the end token
    ended = [((5, 6, 7), -3.0, True), ((5, 6), -9.0, True)]

    def found(change: float, horizon: int = 8, hypotheses: Any = ended) -> _Found:
        highest = best * options.penalty(float(limit)) + change
        return _Found([*hypotheses, (tuple(range(horizon)), highest, False)], horizon)

    assert _farther(found(-0.1), limit, options) is None
    assert _farther(found(0.1), limit, options) == 16
    assert _farther(found(-0.1), limit, replace(options, n_best=2)) == 20
    assert _farther(found(-0.1, hypotheses=ended[:1]), limit, replace(options, n_best=2)) == 16
    assert _farther(_Found(ended, 8), 12, options) == 12
    assert _farther(found(0.1, horizon=20), limit, options) is None
    soon, far = replace(options, early_stopping="soon"), 100
    assert _farther(found(0.1), far, soon) is None  # it would have to reach 20 tokens, and the search looks at 13
    assert _farther(found(0.1), far, options) is not None


def test_the_least_patience_that_finds_the_best_hypotheses_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    proof = read_proof(convert(folder))
    assert proof is not None
    assert proof.patience == 1.0
    rule = Translator.search

    def impatient(self: Translator, requests: Any, options: Options, progress: Any) -> Any:
        found = rule(self, requests, options, progress)
        return found if self.patience != 1.0 else [[replace(one[0], text="!")] for one in found]

    monkeypatch.setattr(Translator, "search", impatient)
    proof = read_proof(convert(folder))
    assert proof is not None
    assert proof.patience == 1.2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", small(MODELS["pre_norm"], generation_config=DEFAULTS))


REFUSED = {
    "ALiBi's biases in an encoder": tiny(position=ALiBi()),
    "reversible": tiny(join=Reversible()),
    "additive": tiny(score=Additive()),
    "recurrent": bahdanau(16),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_has_no_words_for_is_refused_by_name(name: str, tmp_path: Path):
    source = save_model(tmp_path / "model", small(REFUSED[name]))
    with pytest.raises(InputError, match=rf"CTranslate2 cannot run .*{name}.*--engine torch"):
        convert(source)
    assert not place_of(source, "float32").exists()


def test_a_line_longer_than_those_of_the_training_is_cut_as_in_torch(tmp_path: Path):
    model = small(MODELS["pre_norm"], generation_config=DEFAULTS, config={TRAINED_LENGTH: 12})
    folder = save_model(tmp_path / "model", model)
    convert(folder)
    with pytest.warns(Note, match="is cut at sentences and clauses"):
        found = load(folder, engine="ctranslate2").translate(["dog", "the park, and the mat. " * 4])
    with pytest.warns(Note, match="is cut at sentences and clauses"):
        assert found == load(folder, engine="torch").translate(["dog", "the park, and the mat. " * 4])


def test_a_rule_of_stopping_that_needs_all_hypotheses_is_left_to_torch(folder: Path):
    convert(folder)
    model = load(folder)
    with pytest.warns(Note, match="does not honour early_stopping, so torch translates"):
        model.translations(TEXTS, Options(beam=3, n_best=2, early_stopping=False))


@pytest.mark.parametrize(("token", "left"), [("__fr__", True), (">>fra<<", False)])
def test_the_target_language_is_honoured_or_left_to_torch(tmp_path: Path, token: str, left: bool):
    words = WORDPIECE.with_added_words([token])
    folder = save_model(tmp_path / "model", small(MODELS["pre_norm"], (words,), generation_config=DEFAULTS))
    convert(folder)
    expected = load(folder, engine="torch").translate(TEXTS, target_language="fr")
    model = load(folder, engine="ctranslate2")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", Note)
        assert model.translate(TEXTS, target_language="fr") == expected
    assert any("does not honour forced_bos" in str(one.message) for one in said) is left
    assert load(folder, engine="torch").translate(TEXTS) != expected


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("coverage_penalty", Options(beam=2, coverage_penalty=0.2)),
        ("temperature", Options(temperature=1.0)),
        ("no_repeat_ngram", Options(no_repeat_ngram=2)),
        ("min_tokens", Options(min_tokens=2)),
        ("stop", Options(stop=("cat",))),
    ],
)
def test_an_option_it_cannot_honour_is_left_to_torch_with_a_note(folder: Path, name: str, options: Options):
    convert(folder)
    model = load(folder)
    assert model.engine is not None
    assert refused(options) == name
    with pytest.warns(Note, match=f"does not honour {name}, so torch translates"):
        found = model.translations(TEXTS, options)
    assert found == load(folder, engine="torch").translations(TEXTS, options)
    with pytest.warns(Note, match=f"does not honour {name}, so torch translates"):
        assert load(folder, engine="ctranslate2").translations(TEXTS, options) == found


@pytest.mark.parametrize("asked", [{"prefixes": ["the"]}, {"alignment": True}, {"replace_unknown": True}])
def test_prefixes_and_alignments_are_left_to_torch(folder: Path, asked: dict[str, Any]):
    convert(folder)
    with pytest.warns(Note, match="so torch translates"):
        found = load(folder).translations(TEXTS[:1], **asked)
    assert found == load(folder, engine="torch").translations(TEXTS[:1], **asked)


def test_a_text_beyond_the_written_positions_is_left_to_torch(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.engines.spec.MAX_POSITIONS", 128)
    convert(folder)
    long = "cat " * 130
    with pytest.warns(Note, match="more than 128 tokens"):
        found = load(folder).translate(long, beam=1)
    assert found == load(folder, engine="torch").translate(long, beam=1)


def test_auto_uses_a_converted_model_only_while_its_proof_fits(folder: Path):
    assert load(folder).engine is None  # it never converts unasked
    place = convert(folder)
    assert find_converted(folder, "auto") == place
    assert load(folder).engine is not None
    model = load(folder, engine="torch")
    assert model.engine is None
    with torch.no_grad():
        model.network.embed.table.weight.add_(0.1)
    write_weights(folder, unique_parameters(model.network))
    with pytest.warns(Note, match="was converted from other weights; torch is used"):
        assert find_converted(folder, "auto") is None
    with pytest.raises(InputError, match=r"converted from other weights \(--engine ctranslate2\). Convert it"):
        find_converted(folder, "ctranslate2")
    convert(folder)
    assert find_converted(folder, "auto") == place


def test_a_proof_of_another_version_does_not_fit(folder: Path):
    place = convert(folder)
    path = place / "proof.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["version"], "0.1"))
    with pytest.warns(Note, match=r"proven with CTranslate2 0.1"):
        assert find_converted(folder, "auto") is None


def test_an_engine_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match=r"is not converted to CTranslate2 .* regard convert"):
        find_converted(folder, "ctranslate2")
    with pytest.raises(InputError, match="no engine is called"):
        find_converted(folder, "onnx")  # type: ignore[arg-type]
    monkeypatch.setattr("regard.engines.folder.engine_version", lambda runtime: None)
    with pytest.raises(InputError, match=r"not installed .* pip install 'regard\[engines\]'"):
        find_converted(folder, "ctranslate2")


def test_the_proof_names_weights_engine_and_share(folder: Path):
    proof = read_proof(convert(folder, precision="int8"))
    assert proof is not None
    assert (proof.engine, proof.precision, proof.lines) == ("ctranslate2", "int8", len(TEXTS))
    assert proof.options["beam"] == 3
    assert 0 <= proof.share <= 1
    assert proof.weights in (folder / "manifest.json").read_text()


def test_rounding_the_weights_leaves_the_network_as_it_was(folder: Path):
    loaded = read_source(folder)
    before = {name: tensor.clone() for name, tensor in unique_parameters(loaded.network).items()}
    convert_to_ctranslate2(loaded, folder, place_of(folder, "int8"), "int8", Sample.of(TEXTS))
    assert all(torch.equal(tensor, before[name]) for name, tensor in unique_parameters(loaded.network).items())


def test_auto_says_so_where_weights_are_rounded(folder: Path):
    place = convert(folder, precision="int8")
    with pytest.warns(Note, match=r"of 4 lines as torch does"):
        assert find_converted(folder, "auto") == place
    assert find_converted(folder, "ctranslate2") == place
    convert(folder)
    assert find_converted(folder, "auto") == place_of(folder, "float32")


def test_an_engine_that_answers_otherwise_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.engines.spec._ACTIVATIONS", {"relu": "SWISH"})
    with pytest.raises(Exception, match="of 4 lines as torch does"):
        convert(folder)
    assert not place_of(folder, "float32").exists()


def test_a_damaged_converted_model_is_refused(folder: Path):
    place = convert(folder)
    content = bytearray((place / "model.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (place / "model.bin").write_bytes(content)
    with pytest.raises(DamagedFile):
        Translator(place, no_torch)


def test_the_options_that_people_edit_in_the_model_folder_hold(folder: Path):
    convert(folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**DEFAULTS, "num_beams": 2}))
    with pytest.warns(Note, match="differs from what was saved"):
        model = load(folder)
    assert model.engine is not None
    assert model.engine.defaults().beam == 2


def test_a_source_vocabulary_of_its_own_is_converted(tmp_path: Path):
    other = WORDPIECE.__class__(WORDPIECE._tokenizer)
    model = small(MODELS["untied"], (other, WORDPIECE), generation_config=DEFAULTS)
    folder = save_model(tmp_path / "model", model)
    engine = Translator(convert(folder), no_torch)
    assert [one[0].text for one in engine.translations(LINES)] == load(folder, engine="torch").translate(LINES)


def test_a_published_model_is_converted_too(tmp_path: Path):
    ours = save_model(tmp_path / "ours", small(MODELS["post_norm"], generation_config=DEFAULTS))
    convert_folder(ours, tmp_path / "published", "huggingface")
    model = load(tmp_path / "published", engine="torch")
    engine = Translator(convert(tmp_path / "published"), lambda: model)
    options = Options(beam=3, length_penalty=1.0, normalization="length")
    assert [one[0].text for one in engine.translations(LINES, options)] == model.translate(LINES, options=options)
    assert engine.defaults() == model.defaults()


def test_convert_says_the_count_and_writes_where_it_is_found(folder: Path, tmp_path: Path, capsys: Any):
    sample = tmp_path / "sample.txt"
    sample.write_text("\n".join(TEXTS))
    assert run(["convert", str(folder), "--to", "ctranslate2", "--sample", str(sample)]) == 0
    assert "4 of 4 lines as torch answers them" in capsys.readouterr().err
    assert find_converted(folder, "auto") == place_of(folder, "float32")
    assert run(["convert", str(folder), "--to", "ctranslate2", "--precision", "int4"]) == 2
    assert "Use float32 or int8" in capsys.readouterr().err
    assert run(["convert", str(folder), str(sample.parent / "new"), "--precision", "int8"]) == 2
    assert "--precision is for --to ctranslate2" in capsys.readouterr().err
    assert run(["convert", str(folder)]) == 2
    assert "the new folder is missing" in capsys.readouterr().err


STARTED = """import sys
from regard.cli import run
code = run(sys.argv[1:])
print("torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("chosen", ["auto", "ctranslate2"])
@pytest.mark.parametrize("alone", [False, True], ids=["beside its model", "alone"])
def test_a_converted_model_translates_without_torch(folder: Path, chosen: str, alone: bool):
    place, expected = convert(folder), load(folder, engine="torch").translate(TEXTS)
    if alone:
        place = Path(shutil.move(place, folder.parent / "alone"))
        shutil.rmtree(folder)
    command = [sys.executable, "-c", STARTED, "translate", str(place if alone else folder), "--engine", chosen]
    done = subprocess.run(command, input="\n".join(TEXTS), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected
    assert done.stderr.splitlines() == ["False"]


def test_a_converted_model_alone_cannot_fall_back(folder: Path):
    place = str(shutil.move(convert(folder), folder.parent / "alone"))
    with pytest.raises(InputError, match=r"does not honour min_tokens, and .* holds no weights for torch"):
        Translator(Path(place), None).translations(TEXTS, Options(min_tokens=2))


def test_torch_translates_where_it_is_asked_for(folder: Path):
    convert(folder)
    command = [sys.executable, "-c", STARTED, "translate", str(folder), "--engine", "torch"]
    done = subprocess.run(command, input=TEXTS[0], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == ["True"]
