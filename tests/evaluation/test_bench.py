"""`regard bench` measures what a model can do, shows a table, and gives advice that can be followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard import bench
from regard.cli import run
from regard.errors import InputError
from regard.evaluation.bench import Bench, Setting, Speed, Task, _advice
from regard.models.model import Model
from regard.models.zoo import bert, gpt2, transformer
from tests.small import TEXTS, save_model, small

TORCH_1, TORCH_2 = Setting("torch", "float32", 1), Setting("torch", "float32", 2)
FLOAT, INT8 = (Setting("ctranslate2", precision, 2) for precision in ("float32", "int8"))


def speed(task: Task, setting: Setting, rate: float, same: int = 10) -> Speed:
    seconds = tuple(10 / (rate * factor) for factor in (0.9, 1.0, 1.1))
    return Speed(task, setting, 10, 100, seconds, seconds, 0.25, 300 << 20, same)


def sentences(speeds: list[Speed], converted: dict[Any, Path | None]) -> str:
    return "\n".join(_advice(speeds, "runs/m", converted))


def test_advice_names_commands_and_how_much_they_give():
    task, greedy, alone = Task("translate", 5), Task("translate", 1), Task("translate", 5, one_by_one=True)
    rates = {TORCH_2: 10.0, TORCH_1: 10.0, FLOAT: 20.0, INT8: 50.0}
    speeds = [speed(task, setting, rate, 9 if setting == INT8 else 10) for setting, rate in rates.items()]
    speeds += [speed(greedy, setting, 3 * rate) for setting, rate in rates.items()]
    speeds += [speed(alone, setting, rate / 2) for setting, rate in rates.items()]
    found = sentences(speeds, {FLOAT: None, INT8: Path("runs/m/engines/ctranslate2-int8")})
    assert "--threads 1" in found
    assert (
        "float32 is 2.0 x as fast as torch (10 of 10 answers are those of torch): regard convert runs/m --to" in found
    )
    assert "int8 is 5.0 x as fast as torch (9 of 10" in found
    assert "regard translate runs/m/engines/ctranslate2-int8" in found
    assert "Greedy search is 3.0 x" in found
    assert "Many lines at once are 2.0 x" in found


def test_advice_names_the_conversion_to_the_engine_that_is_fast():
    graph = Setting("onnxruntime", "float32", 2)
    found = sentences([speed(Task("embed"), TORCH_2, 10.0), speed(Task("embed"), graph, 20.0)], {graph: None})
    assert "ONNX Runtime in float32 is 2.0 x as fast as torch" in found
    assert found.endswith("regard convert runs/m --to onnx.")


def test_advice_names_a_precision_of_torch_that_pays():
    task, int8 = Task("embed"), Setting("torch", "int8", 2)
    found = sentences([speed(task, TORCH_2, 10.0), speed(task, TORCH_1, 9.2), speed(task, int8, 15.0, 8)], {})
    assert found == (
        "torch in int8 is 1.5 x as fast (8 of 10 answers are those of torch in float32): --precision int8."
    )


def test_advice_is_silent_about_what_does_not_pay():
    task = Task("embed")
    found = sentences([speed(task, TORCH_2, 10.0), speed(task, TORCH_1, 9.2)], {})
    assert found == ""


def test_the_result_shows_itself_as_a_table():
    found = Bench("m", 1000, "10 lines", {2: 2e11}, (speed(Task("embed"), TORCH_2, 123.4),), ("Do this.",))
    heading, row = str(found).splitlines()[2:4]
    assert heading.startswith("task ")
    assert "embed, all lines at once" in row
    assert "torch float32, 2 threads" in row
    assert "25%" in row
    assert "10 of 10" in row
    assert "<th>task</th>" in found._repr_html_()
    assert "Do this." in found._repr_html_()


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_minutes_that_cannot_be_measured_for_are_refused(tmp_path: Path, minutes: float):
    with pytest.raises(InputError, match="--minutes"):
        bench(tmp_path, minutes=minutes)


def test_a_text_without_lines_is_refused(tmp_path: Path):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match="holds no line"):
        bench(tmp_path, text=tmp_path / "empty.txt")


def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["bench", str(tmp_path / "nowhere")]) == 2
    assert "no such model folder" in capsys.readouterr().err


def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["bench", str(tmp_path)]) != 0
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


MODELS: dict[str, Model] = {
    "translate": transformer(16, 1, 2, inner=24, dropout=0.0), "generate": gpt2(16, 1, 2), "embed": bert(16, 1, 2),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("verb", MODELS)
def test_every_kind_of_model_is_measured(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    save_model(tmp_path / "model", small(MODELS[verb]))
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS))
    assert run(["bench", str(tmp_path / "model"), "--minutes", "0.01", "--json", "--text",
                str(tmp_path / "lines.txt")]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    engines = {row["engine"] for row in found["speeds"]}
    assert engines == {"torch", "ctranslate2", *(["onnxruntime"] if verb == "embed" else [])}
    for row in found["speeds"]:
        assert row["task"].startswith(verb)
        low, middle, high = row["lines_per_second"]
        assert 0 < low <= middle <= high
        assert row["peak_memory"] > 10 << 20
        if row["precision"] == "float32":
            assert row["same_answers"] == row["lines"]
    assert not (tmp_path / "model" / "engines").exists()
