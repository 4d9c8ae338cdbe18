"""The report: what it says of a run, and that text in it stays text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.evaluation.charts import ticks
from regard.evaluation.compare import sample_lines
from regard.evaluation.evaluate import Evaluation, group_rows, length_rows
from regard.evaluation.report import write_report
from regard.metrics import quality
from regard.show.html import heatmap
from regard.show.trace import AttentionTrace
from tests.show.test_html import HARMLESS, HOSTILE, Elements

LINES = len(HOSTILE)


def evaluation_of(sources: list[str], hypotheses: list[str], references: list[str], groups: list[str]) -> Evaluation:
    return Evaluation(
        loss=0.5, perplexity=1.65, bits_per_byte=0.7213, tokens=123, dropped={"empty": 3},
        quality=quality(hypotheses, references),
        by_length=length_rows(list(range(len(sources))), hypotheses, references),
        groups={"language": group_rows(groups, hypotheses, references)},
        sources=tuple(sources), hypotheses=tuple(hypotheses), references=tuple(references),
    )  # fmt: skip


PLAIN = evaluation_of(["one", "two", "three"], ["1", "23", "3"], ["1", "2", "3"], ["en", "de", "en"])
LANGUAGE_MODEL = Evaluation(loss=1.0, perplexity=2.718, bits_per_byte=1.4427, tokens=9, dropped={})


def seen_of(tokens: list[str]) -> AttentionTrace:
    torch.manual_seed(0)
    return AttentionTrace(tokens, tokens, {"decoder.0.cross": torch.randn(2, len(tokens), len(tokens)).softmax(-1)})


def written(folder: Path, evaluation: Evaluation = PLAIN, *, metrics: Path | None = None, samples: int = 12) -> str:
    path = folder / "report.html"
    write_report(path, title="A run", evaluation=evaluation, metrics=metrics, traces=[], samples=samples)
    return path.read_text(encoding="utf-8")


def metrics_file(folder: Path, lines: list[str]) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def curve(text: str, kind: str) -> list[tuple[float, float]]:
    (points,) = re.findall(f'<polyline class="{kind}" points="([^"]*)"', text)
    return [(float(x), float(y)) for x, y in (point.split(",") for point in points.split())]


def test_hostile_text_makes_the_same_elements_as_harmless_text(tmp_path: Path):
    metrics = metrics_file(tmp_path, ['{"step": 1, "loss": 2}\n', '{"step": 2, "loss": 1}\n'])
    found = []
    for texts in (HOSTILE, HARMLESS):
        said = [text if place % 2 else f"{text}!" for place, text in enumerate(texts)]
        evaluation = evaluation_of(texts, said, texts, [*texts[:5], *texts[:5]])
        looks = [(text, seen_of(texts)) for text in texts]
        path = tmp_path / "report.html"
        title = " ".join(texts)
        write_report(path, title=title, evaluation=evaluation, metrics=metrics, traces=looks, note=title)
        found.append(Elements(path.read_text(encoding="utf-8")))
    assert found[0].found == found[1].found
    assert found[0].policy.startswith("default-src 'none';")
    assert not {"script", "link", "img", "iframe", "form", "a"} & {tag for tag, _ in found[0].found}
    assert not [names for _, names in found[0].found if "style" in names]


def test_the_headline_has_bits_per_byte_beside_perplexity(tmp_path: Path):
    numbers = dict(re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", written(tmp_path)))
    assert numbers["exact match, %"] == "66.67"
    assert (numbers["perplexity"], numbers["bits per byte"]) == ("1.650", "0.721")
    assert PLAIN.quality.bleu_signature in written(tmp_path)
    assert "no loss for 3 lines: empty" in written(tmp_path)


def test_a_language_model_has_no_tables_and_no_samples(tmp_path: Path):
    text = written(tmp_path, LANGUAGE_MODEL)
    assert "<dd>2.718</dd>" in text
    assert "<table" not in text
    assert "Samples" not in text


def test_a_masked_language_model_has_no_bits_per_byte(tmp_path: Path):
    text = written(tmp_path, replace(LANGUAGE_MODEL, bits_per_byte=None))
    assert "perplexity" in text
    assert "bits per byte" not in text


def test_the_worst_group_comes_first_with_bars_as_long_as_its_numbers(tmp_path: Path):
    section = written(tmp_path).split("By language")[1].split("<h2>")[0]
    rows = re.findall(r"<bdi>(\w+)</bdi></td><td>(\d+)</td><td>([\d.]+)", section)
    assert rows == [("de", "1", "0.0"), ("en", "2", "100.0")]
    assert re.findall(r'class="exact" width="([\d.]+)"', section) == ["0.0", "100.0"]
    chrf = [f"{row.chrf:.1f}" for row in PLAIN.groups["language"]]
    assert 0 < float(chrf[0]) < 100
    assert re.findall(r'class="chrf" y="6" width="([\d.]+)"', section) == chrf


def test_many_groups_stand_in_two_tables_and_numbered_ones_in_order(tmp_path: Path):
    for names, note in (([f"g{place}" for place in range(101, 126)], True), ([str(n) for n in range(101, 126)], False)):
        evaluation = evaluation_of(names, names, names, names)
        section = written(tmp_path, evaluation).split("By language")[1].split("<h2>")[0]
        assert re.findall(r"<td><bdi>(\w+)</bdi>", section) == names
        assert section.count("<table>") == 2
        assert ("worst first" in section) == note


@pytest.mark.parametrize(("samples", "wrong", "right"), [(12, 1, 2), (2, 1, 1), (1, 1, 0), (0, 0, 0)])
def test_samples_are_marked_right_or_wrong(tmp_path: Path, samples: int, wrong: int, right: int):
    text = written(tmp_path, samples=samples)
    assert (text.count("✗"), text.count("✓")) == (wrong, right)
    assert text.count("should be <bdi>2</bdi>") == wrong


def test_text_that_only_looks_alike_is_wrong(tmp_path: Path):
    text = written(tmp_path, evaluation_of(["a"], ["\0"], ["␀"], ["en"]))
    assert (text.count("✗"), text.count("✓")) == (1, 0)


def test_the_curve_falls_as_the_loss_does(tmp_path: Path):
    metrics = metrics_file(
        tmp_path,
        [json.dumps({"step": step, "loss": 4 / step, "learning_rate": 0.1, "new": [1]}) + "\n" for step in (1, 2, 4)]
        + ['{"step": 2, "valid_loss": 3.0}\n', '{"step": 4, "valid_loss": 1.0, "valid_exact": 7}\n'],
    )
    text = written(tmp_path, metrics=metrics)
    across, down = zip(*curve(text, "minor"))
    assert across == tuple(sorted(across))
    top, middle, low = down
    assert top < middle < low
    # 4, 2 and 1 in equal units above zero.
    assert (middle - top) == pytest.approx(2 * (low - middle), abs=0.2)
    assert len(curve(text, "major")) == 2
    assert "Exact match" not in text


def test_steps_are_sorted_the_last_of_each_counts_and_lines_that_are_no_numbers_do_not(tmp_path: Path):
    good = ['{"step": 2, "loss": 9}\n', '{"step": 1, "loss": 3}\n', '{"step": 2, "loss": 2}\n']
    bad = ['{"step": 3, "loss": NaN}\n', '{"step": 3, "loss": "x"}\n', '{"step": true, "loss": 1}\n', "[1]\n", "\n"]
    bad += ['{"step": 4, "loss": 1' + "0" * 400 + "}\n", '{"loss": 1}\n', '{"step": 5, "lo']
    expected = curve(written(tmp_path, metrics=metrics_file(tmp_path, good[1:])), "minor")
    assert curve(written(tmp_path, metrics=metrics_file(tmp_path, good + bad)), "minor") == expected


def test_a_long_run_is_thinned_out(tmp_path: Path):
    lines = [f'{{"step": {step}, "loss": 1.0}}\n' for step in range(1, 5002)]
    assert 400 < len(curve(written(tmp_path, metrics=metrics_file(tmp_path, lines)), "minor")) <= 500


@pytest.mark.parametrize("lines", [None, [], ['{"step": 1, "loss": 3}\n']])
def test_without_two_points_there_is_no_curve(tmp_path: Path, lines: list[str] | None):
    metrics = tmp_path / "missing.jsonl" if lines is None else metrics_file(tmp_path, lines)
    assert "<polyline" not in written(tmp_path, metrics=metrics)
    assert "<polyline" not in written(tmp_path)


def test_each_look_is_an_alignment_under_its_caption(tmp_path: Path):
    seen = seen_of(["a", "b"])
    looks = [("first", seen), ("second", seen), ("deaf", AttentionTrace(["a"], ["b"], {}))]
    path = tmp_path / "report.html"
    write_report(path, title="A run", evaluation=PLAIN, metrics=None, traces=looks)
    text = path.read_text(encoding="utf-8")
    for caption in ("first", "second"):
        assert heatmap(["a", "b"], ["a", "b"], seen.alignment(), title=caption) in text
    assert "deaf" not in text


def test_a_short_a_middling_and_a_long_line_are_looked_at():
    lines = ["x" * (length % 8 + 1) for length in range(40)]
    assert [len(lines[place]) for place in sample_lines(lines)] == [3, 6, 8]
    assert sample_lines(["a", "a"]) == [0]
    assert sample_lines([]) == []


@pytest.mark.parametrize(
    ("highest", "expected"), [(1200, [0, 500, 1000, 1500]), (97, [0, 25, 50, 75, 100]), (0, [0, 0.25, 0.5, 0.75, 1])]
)
def test_an_axis_has_round_numbers_up_to_the_highest(highest: float, expected: list[float]):
    assert ticks(highest) == pytest.approx(expected)
