"""Comparisons, against numbers that are worked out another way: by sacreBLEU, by one model alone, by hand."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from regard.api import LoadedModel, load
from regard.data.read.corpus import Corpus
from regard.data.tokenize.train import Byte, Character
from regard.errors import InputError, RunFailed
from regard.evaluation.compare import (
    AttentionSample,
    Comparison,
    Contender,
    attention_samples,
    compare,
    distinct_names,
    plot_comparison,
)
from regard.evaluation.evaluate import evaluate
from regard.evaluation.isolated import Job, measure_isolated
from regard.evaluation.report import write_comparison
from regard.evaluation.significance import BootstrapScore, Row, counted, metrics, paired
from regard.evaluation.sliding_window import document_losses
from regard.layers.positions import Learned, Rotary
from regard.metrics import quality
from regard.models import zoo
from regard.models.model import Model
from regard.show.trace import AttentionTrace
from regard.store.folder import unique_parameters, write_description, write_weights
from tests.cli.test_cli import without_torch
from tests.evaluation.test_evaluate import wrapped
from tests.evaluation.test_report import seen_of
from tests.show.test_html import HARMLESS, HOSTILE, Elements
from tests.small import save_model, small
from tests.training.runs import regard

WORDS = ["the", "a", "dog", "cat", "runs", "over", "green", "fields", "and", "two", "more", "follow", "it", "home"]


def noisy(references: list[str], rate: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < rate else word for word in r.split()) for r in references]


@pytest.fixture(scope="module")
def answers() -> list[list[str]]:
    """References, and the answers of three models, the last the worst."""
    draw = random.Random(1)
    references = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(150)]
    return [references, *(noisy(references, rate, seed) for seed, rate in enumerate((0.1, 0.13, 0.4)))]


def test_scores_and_intervals_are_those_of_sacrebleu(answers: list[list[str]]):
    references, *said = answers
    systems = [(str(place), lines) for place, lines in enumerate(said)]
    _, theirs = PairedTest(systems, {"bleu": BLEU(), "chrf": CHRF()}, [references], test_type="bs")()
    ours = metrics(references)
    for name, title in (("bleu", "BLEU"), ("chrf", "chrF2")):
        found = paired([ours[name].count(lines) for lines in said], ours[name].score)
        for estimate, result in zip(found, theirs[title], strict=True):
            assert estimate.value == pytest.approx(result.score, abs=1e-9)
            assert estimate.margin == pytest.approx(result.ci, rel=1e-4)
        assert [estimate.p is None for estimate in found] == [True, False, False]
        assert found[2].p == pytest.approx(1 / 1001)
        assert ours[name].signature in str(quality(said[0], references))


def test_a_p_value_is_that_of_a_two_sided_test():
    line = np.arange(400)
    first, second = line < 230, (line < 200) | (line >= 355)  # one wins 30 lines, the other 45
    counts = [np.stack([hits, np.ones(400)], axis=1) for hits in (first, second)]
    apart = second.astype(float) - first
    z = abs(apart.mean()) / (apart.std() / math.sqrt(400))
    expected = math.erfc(z / math.sqrt(2))
    assert 0.07 < expected < 0.1
    found = paired(counts, lambda sums: 100 * sums[0] / sums[1])[1]
    assert found.p == pytest.approx(expected, abs=0.025)


def test_equal_answers_are_no_difference_and_one_line_is_no_evidence(answers: list[list[str]]):
    references, said, *_ = answers
    for metric in metrics(references).values():
        assert paired([metric.count(said)] * 2, metric.score)[1].p == 1
    for metric in metrics(references[:1]).values():
        assert [(one.margin, one.p) for one in paired([metric.count(said[:1])] * 2, metric.score)] == [(None, None)] * 2


def test_the_row_of_some_lines_is_their_quality(answers: list[list[str]]):
    references, said, *_ = answers
    places = np.array([3, 30, 31, 77, 120])
    row = counted(said, metrics(references)).row("some", places)
    expected = quality([said[place] for place in places], [references[place] for place in places])
    assert (row.name, row.lines) == ("some", 5)
    assert (row.exact, row.bleu, row.chrf) == pytest.approx((expected.exact, expected.bleu, expected.chrf))


def folders(root: Path, *names: str) -> list[Path]:
    for name in names:
        (root / name).mkdir(parents=True)
    return [root / name for name in names]


def test_names_are_as_long_as_it_takes_to_tell_them_apart(tmp_path: Path):
    found = folders(tmp_path, "a/x/run", "a/y/run", "b/y/run", "other", "odd\x1b\n")
    assert distinct_names(found) == ["x/run", "a/y/run", "b/y/run", "other", "odd��"]


def test_what_cannot_be_compared_is_refused(tmp_path: Path):
    one, two = folders(tmp_path, "one", "two")
    (tmp_path / "link").symlink_to(one)
    for given, said in (
        ([one], "two or more"),
        ([one, two, one], "one is named twice"),
        ([one, tmp_path / "link"], "link is named twice"),
        ([one, tmp_path / "three"], "no such model folder"),
    ):
        with pytest.raises(InputError, match=said):
            distinct_names(given)


def saved(folder: Path, model: LoadedModel) -> Path:
    folder.mkdir(parents=True)
    target = None if model.target_tokenizer is model.tokenizer else model.target_tokenizer
    write_description(folder, model.network, (model.tokenizer, target), task="any", generation_config={})
    write_weights(folder, unique_parameters(model.network))
    return folder


SOURCES = ["a bc", "c", "b a c a", "ab ab", "c b a", "bb", "a a a a a", "cab b", "b c", "abc"]
GROUPS = {"dates": ["10", "2"] * 5, "colour": ["red", "blue", "red", "red", "red"] * 2}


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Corpus]:
    """Two models with tokenizers of their own, and a corpus of which the first gets the first six lines right."""
    root = tmp_path_factory.mktemp("translators")
    plain = Corpus(SOURCES, SOURCES, ("pairs",))
    first = wrapped(zoo.transformer(16, 1, 2), plain, Character())
    paths = [saved(root / "first", first), saved(root / "<b>", wrapped(zoo.transformer(8, 1, 1), plain, Byte()))]
    (paths[0] / "metrics.jsonl").write_text(
        "".join(f'{{"step": {step}, "tokens_per_second": {speed}}}\n' for step, speed in ((1, 10), (2, 700), (3, 600)))
        + '{"step": 3, "valid_loss": 1.0}\n{"step'
    )
    said = first.translate(SOURCES)
    assert len(set(said)) > 2
    return paths, Corpus(SOURCES, [*said[:6], *("right is other",) * 4], ("pairs",), GROUPS)


@pytest.fixture(scope="module")
def comparison(translators: tuple[list[Path], Corpus]) -> Comparison:
    paths, corpus = translators
    done: list[int] = []
    found = compare(paths, corpus, unit="words", device="cpu", threads=1, progress=done.append)
    assert sum(done) == 2 * len(SOURCES)
    return found


def test_every_model_says_what_it_says_alone(comparison: Comparison, translators: tuple[list[Path], Corpus]):
    paths, corpus = translators
    for model, path in zip(comparison.models, paths, strict=True):
        alone = load(path, device="cpu")
        assert list(model.translations) == alone.translate(SOURCES)
        expected = quality(model.translations, corpus.targets or [])
        scores = model.scores["exact"].value, model.scores["bleu"].value, model.scores["chrf"].value
        assert scores == pytest.approx((expected.exact, expected.bleu, expected.chrf))
        assert model.parameters == sum(weight.numel() for weight in alone.network.parameters())
        assert model.memory > 0
        assert model.speed > 0
    assert comparison.models[0].scores["exact"].value == 60
    assert [model.training_speed for model in comparison.models] == [600, None]
    assert (comparison.device, comparison.threads, comparison.metric) == ("cpu", 1, "exact")


def test_all_models_share_the_buckets_of_length_and_group(comparison: Comparison):
    lengths = [len(source.split()) for source in SOURCES]
    for model in comparison.models:
        assert list(model.rows) == ["source length in words", "dates", "colour"]
        for row in model.rows["source length in words"]:
            low, high = int(row.name.split("-")[0]), int(row.name.split("-")[-1])
            assert row.lines == sum(low <= length <= high for length in lengths)
        assert [row.name for row in model.rows["dates"]] == ["2", "10"]
        assert [row.lines for row in model.rows["colour"]] == [2, 8]
    assert list(comparison.axes) == ["source length in words", "dates"]
    assert comparison.values("dates") == [(60, 60), (0, 0)]
    assert comparison.differing
    assert all(len({model.translations[place] for model in comparison.models}) > 1 for place in comparison.differing)


def test_the_table_has_every_model_and_says_how_sure_it_is(comparison: Comparison):
    scores, costs, lengths, dates = comparison.text().split("\n\n")[1:5]
    first, second = scores.splitlines()[1:]
    assert first.split()[:3] == ["first", "60.00", f"±{comparison.models[0].scores['exact'].margin:.2f}"]
    assert f"{comparison.models[1].scores['exact'].p:.3f}" in second
    assert costs.splitlines()[1].split()[2] == "600"
    assert costs.splitlines()[2].split()[2] == "-"
    assert lengths.startswith("exact match, % by source length in words")
    rows = [line.split() for line in dates.splitlines()[1:]]
    assert rows == [["2", "5", "60.00", "0.00"], ["10", "5", "60.00", "0.00"]]
    assert all(signature in comparison.text() for signature in comparison.signatures.values())


def test_json_holds_all_numbers_and_only_the_lines_that_differ(comparison: Comparison):
    plain = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert not plain.keys() & {"sources", "references"}
    assert plain["models"][0]["scores"]["exact"]["value"] == 60
    assert plain["models"][1]["rows"]["dates"][1]["lines"] == 5
    assert "translations" not in plain["models"][0]
    line = plain["differing"][0]
    assert line["source"] == SOURCES[line["line"] - 1]
    assert set(line["translations"]) == {"first", "<b>"}


def test_a_name_of_a_metric_or_unit_must_be_known(translators: tuple[list[Path], Corpus]):
    with pytest.raises(InputError, match=r'"blue" is not known \(--metric\)\. Did you mean "bleu"'):
        compare(*translators, metric="blue")
    with pytest.raises(InputError, match="--unit"):
        compare(*translators, unit="miles")


DOCUMENTS = Corpus(["hello", "", "né, and so on", "one more text", "to be or not"], None, ("text",))


def reader(description: Model) -> LoadedModel:
    return wrapped(description, DOCUMENTS, Byte())


@pytest.mark.parametrize("position", [Rotary(), Learned(7)])
def test_the_losses_of_documents_add_up_to_that_of_the_text(position: Rotary | Learned):
    model = reader(zoo.gpt2(16, 1, 2, position=position))
    losses, tokens = document_losses(model, DOCUMENTS)
    whole = evaluate(model, DOCUMENTS)
    assert tokens == whole.tokens
    assert losses.sum() / tokens == pytest.approx(whole.loss, rel=1e-5)
    assert losses[1] == 0
    if isinstance(position, Rotary):  # no document is cut
        alone = [-score for score in model.score([text for text in DOCUMENTS.sources if text])]
        assert losses[losses > 0].tolist() == pytest.approx(alone, rel=1e-5)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("readers")
    descriptions = zoo.gpt2(16, 1, 2, position=Rotary()), zoo.gpt2(8, 1, 2, position=Learned(7))
    return [saved(root / f"gpt{place}", reader(description)) for place, description in enumerate(descriptions)]


def test_language_models_are_compared_by_bits_per_byte(readers: list[Path], tmp_path: Path):
    found = compare(readers, DOCUMENTS, device="cpu", threads=1)
    for model, path in zip(found.models, readers, strict=True):
        alone = evaluate(load(path, device="cpu"), DOCUMENTS)
        for name in ("loss", "perplexity", "bits_per_byte"):
            assert model.scores[name].value == pytest.approx(getattr(alone, name), rel=1e-5)
    assert found.models[0].scores["bits_per_byte"].margin > 0
    assert 0 < found.models[1].scores["bits_per_byte"].p <= 1
    assert found.models[1].scores["loss"].p is None
    assert "reading bytes/s" in found.text()
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["differing"] == []
    with pytest.raises(InputError, match="no translations"):
        plot_comparison(found, tmp_path / "none.png")
    write_comparison(tmp_path / "page.html", found)
    assert f"{found.models[1].scores['bits_per_byte'].p:.3f}" in (tmp_path / "page.html").read_text()


def test_unknown_characters_cost_bits_in_a_comparison_too(readers: list[Path], tmp_path: Path):
    knows_little = wrapped(zoo.gpt2(16, 1, 2, position=Rotary()), Corpus(["hello"], None, ("text",)), Character())
    paths = [readers[0], saved(tmp_path / "little", knows_little)]
    found = compare(paths, DOCUMENTS, device="cpu", threads=1)
    alone = evaluate(load(paths[1], device="cpu"), DOCUMENTS)
    assert (found.models[0].unknown, found.models[1].unknown) == (0, alone.unknown)
    assert found.models[1].scores["bits_per_byte"].value == pytest.approx(alone.bits_per_byte, rel=1e-5)
    assert found.models[1].scores["loss"].value == pytest.approx(alone.loss, rel=1e-5)
    assert f"{100 * alone.unknown:.1f} %" in found.text()


def test_kinds_are_not_mixed_and_text_must_fit(translators: tuple[list[Path], Corpus], readers: list[Path]):
    paths, corpus = translators
    for given, text in (([paths[0], readers[0]], corpus), ([readers[0], paths[0]], DOCUMENTS)):
        with pytest.raises(InputError, match=r"first translates, gpt0 does not .* of one kind"):
            compare(given, text)
    with pytest.raises(InputError, match="--source and --reference"):
        compare(paths, DOCUMENTS)


def test_a_model_that_neither_translates_nor_generates_is_refused_with_what_to_do(tmp_path: Path):
    paths = [save_model(tmp_path / name, small(zoo.bert(16, 1, 2, max_positions=32))) for name in ("one", "other")]
    with pytest.raises(InputError, match=r"one was made to fill, .* Evaluate it alone: regard evaluate .*one\."):
        compare(paths, DOCUMENTS)


def test_what_goes_wrong_in_the_other_process_is_said_in_one_line(translators: tuple[list[Path], Corpus]):
    (path, _), _ = translators
    with pytest.raises(InputError, match=r"first: .*beam"):
        measure_isolated(Job(str(path), ("a",), True, beam=0, device="cpu", threads=1), lambda done: None)
    with pytest.raises(RunFailed, match=r"first ended: .*Error.* Try: regard evaluate") as raised:
        measure_isolated(Job(str(path), ("a",), True, device="cpu", threads=1.5), lambda done: None)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_looks_are_of_the_same_lines_with_every_model(comparison: Comparison):
    looks = attention_samples(comparison, device="cpu")
    assert 1 <= len(looks) <= 3
    for look in looks:
        assert dict(zip(comparison.sources, comparison.references))[look.source] == look.reference
        assert len(look.traces) == 2
        assert all(seen.cross_attentions for seen in look.traces)


def made(names: list[str], texts: list[str], *, several: int = 3) -> tuple[Comparison, list[AttentionSample]]:
    """A comparison by hand, with these names and texts wherever there are some."""
    groups = {"group": tuple(Row(text, 1, 50, 40, 60) for text in texts)}
    models = tuple(
        Contender(
            name=name, folder=name, parameters=10**6, training_speed=None, speed=12.5, memory=10**8, beam=place + 1,
            scores={metric: BootstrapScore(50, 2.5, 0.04 if place else None) for metric in ("exact", "bleu", "chrf")},
            rows={"source length in words": tuple(Row(f"{n}", 9, 90 - 9 * n, 50, 60) for n in range(4))} | groups,
            translations=tuple(text if place else f"{text}!" for text in texts),
        )
        for place, name in enumerate(names[:several])
    )  # fmt: skip
    found = Comparison(
        corpus=texts[0], texts=len(texts), models=models, device="cpu", threads=2, metric="exact",
        signatures={"bleu": texts[1]}, differing=(0, len(texts) - 1), sources=tuple(texts), references=tuple(texts),
    )  # fmt: skip
    deaf = AttentionTrace(texts, texts, {"encoder.0.self": seen_of(texts).weights["decoder.0.cross"]})
    return found, [AttentionSample(text, text, (*[seen_of(texts)] * (several - 1), deaf)) for text in texts[:2]]


@pytest.mark.parametrize("several", [2, 3, 6, 10])
def test_hostile_names_and_texts_make_the_same_elements_as_harmless_ones(tmp_path: Path, several: int):
    pages = []
    for texts in (HOSTILE, HARMLESS):
        found, looks = made(texts, texts, several=several)
        write_comparison(tmp_path / "page.html", found, looks, note=" ".join(texts))
        pages.append(Elements((tmp_path / "page.html").read_text(encoding="utf-8")))
    assert pages[0].found == pages[1].found
    assert pages[0].policy.startswith("default-src 'none';")
    assert not {"script", "link", "img", "iframe", "form", "a"} & {tag for tag, _ in pages[0].found}
    assert not [names for _, names in pages[0].found if "style" in names]


def test_the_page_shows_charts_samples_and_who_has_no_attention(tmp_path: Path):
    found, looks = made(["one", "two", "three"], HARMLESS)
    write_comparison(tmp_path / "page.html", found, looks)
    text = (tmp_path / "page.html").read_text()
    assert re.findall(r'<polyline class="(\w+)"', text) == ["m2", "m1", "m0"]
    assert text.count("no attention: the decoder reads only the encoder") == 2
    attention = text.split("<h2>Attention")[1].split("<h2>")[0]
    assert attention.count('<svg role="img"') == 4
    samples = text.split("<h2>Where they differ")[1].split("<h2>")[0]
    assert (samples.count("✗"), samples.count("✓")) == (2, 4)
    assert text.count('<span class="sure">p 0.040</span>') == 6


def test_the_plot_takes_any_name(tmp_path: Path):
    for several in (2, 10):
        found, _ = made(["_secret", "$x_", "模型", "long " * 40, *HARMLESS], HARMLESS, several=several)
        plot_comparison(found, f"{tmp_path}/{several}.png")
        assert (tmp_path / f"{several}.png").read_bytes().startswith(b"\x89PNG")
    models = tuple(replace(model, rows={"length": (Row("1", 2, 0, 0, 0),)}) for model in found.models)
    flat = replace(found, metric="bleu", models=models)
    plot_comparison(flat, tmp_path / "flat.png")
    write_comparison(f"{tmp_path}/flat.html", flat)
    assert "<polyline" not in (tmp_path / "flat.html").read_text()


def test_the_command_line_compares_and_refuses(translators: tuple[list[Path], Corpus], tmp_path: Path):
    paths, corpus = translators
    files = [tmp_path / "source", tmp_path / "reference"]
    for path, lines in zip(files, (corpus.sources, corpus.targets or [])):
        path.write_text("".join(f"{line}\n" for line in lines))
    pages = ["--plot", tmp_path / "p.png", "--report", tmp_path / "c.html"]
    given = ["--source", files[0], "--reference", files[1], "--threads", "1", "--metric", "chrf", "--unit=characters"]
    code, out, err = regard("compare", *paths, *given, *pages, "--json")
    assert (code, err.count("\n")) == (0, 2)
    plain = json.loads(out)
    assert (plain["metric"], plain["models"][0]["scores"]["exact"]["value"]) == ("chrf", 60)
    assert "source length in characters" in plain["models"][1]["rows"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "&lt;b&gt;" in (tmp_path / "c.html").read_text()
    for arguments, said in (
        ([paths[0]], "two or more"),
        ([*paths, paths[1]], "named twice"),
        ([paths[0], "nowhere"], "nowhere"),
        ([*paths, "--source", files[0]], "regard compare"),
        ([*paths], "has no recipe.toml"),
        ([*paths, *given, "--device", "abacus"], "--device"),
    ):
        code, out, err = regard("compare", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err


def test_help_needs_no_torch_and_gives_an_example():
    assert "Example: regard compare" in without_torch("compare", "--help")


def test_names_that_look_alike_are_numbered(tmp_path: Path):
    found = folders(tmp_path, "a\x01", "a\x02", "b")
    assert distinct_names(found) == ["a\N{REPLACEMENT CHARACTER} (1)", "a\N{REPLACEMENT CHARACTER} (2)", "b"]
