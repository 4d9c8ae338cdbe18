"""The storm itself: rows have names of their own, figures scale with the minutes, and a short row is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli import app
from tests.storm import __main__ as storm
from tests.storm import b, d
from tests.storm.rows import Case, Outcome, Row, path_to_here

TIERS = {"A": 15, "B": 10, "C": 12, "D": 7}
RESULT = {"name": "A1", "what": "x", "figure": 20, "count": 20, "seed": 1, "good": 20, "total": 20, "note": "",
          "seconds": 60.0, "skipped": False}  # fmt: skip


def test_every_row_of_the_catalogue_is_there():
    for tier, count in TIERS.items():
        assert {f"{tier}{number}" for number in range(1, count + 1)} <= set(storm.ROWS)
    assert len(storm.ROWS) >= sum(TIERS.values()) + 12


def test_the_minutes_scale_every_figure_down_but_not_below_its_least():
    rows = [*storm.ROWS.values()]
    full, tenth = storm.counts(rows, None), storm.counts(rows, sum(row.minutes for row in rows) / 10)
    assert all(full[row.name] == row.figure for row in rows)
    assert all(min(row.figure, row.least) <= tenth[row.name] <= row.figure for row in rows)
    assert tenth["D1"] == 1000


@pytest.mark.parametrize(
    ("changes", "short", "shown"),
    [({}, False, "20 of 20"), ({"good": 19}, True, "19 of 20"), ({"total": 4, "good": 4}, True, "4 of 4"),
     ({"count": 4, "good": 4, "total": 4}, False, "4 of 4, figure 20"),
     ({"skipped": True, "total": 0}, False, "not run")],
)  # fmt: skip
def test_a_row_is_short_if_a_case_failed_or_was_not_tried(changes: dict[str, object], short: bool, shown: str):
    result = {**RESULT, **changes}
    assert (storm.short(result), storm.shown(result)) == (short, shown)
    assert ("Short of their figure: A1." in storm.table({"A1": result})) == short


def test_a_letter_names_its_tier():
    assert storm.chosen("A3b", "A")
    assert storm.chosen("A3b", "B1,A3b")
    assert not storm.chosen("A1", "A10,B")


def test_every_verb_is_offered_hostile_files():
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    offered = {command[0] for command in (b.MODEL_VERBS | b.BENCH | b.FILE_VERBS).values()}
    assert known - offered == {"lab"}  # which reads no file of its user's


def test_cases_are_counted_and_the_first_fault_is_noted():
    cases = Case()
    cases.add("one")
    cases.add("two", "it broke")
    assert cases.outcome("more") == Outcome(1, 2, "two: it broke; more")


@pytest.mark.parametrize("row", [row for row in d.ROWS if row.name in ("D1", "D3", "D7")], ids=lambda row: row.name)
def test_rows_of_data_hold_on_a_few_hundred_cases(row: Row, tmp_path: Path):
    found = row.run(300, 7, tmp_path)
    assert (found.good, found.total) == (300, 300), found.note


def test_planted_duplicates_are_found_in_a_process_of_its_own(tmp_path: Path):
    found = d.duplicates(3_000, 1, tmp_path)
    assert found.good == found.total, found.note


@pytest.mark.slow
def test_giant_and_empty_texts_are_refused_in_bounded_memory(tmp_path: Path):
    found = d.giants(100_000, 1, tmp_path)
    assert found.good == found.total, found.note


@pytest.mark.slow
def test_a_storm_resumes_at_the_row_that_has_no_result_yet(tmp_path: Path):
    command = [sys.executable, "-m", "tests.storm", "--only", "D3,B10", "--minutes", "0.01", "--out", str(tmp_path)]
    environment = {"PYTHONPATH": path_to_here(), "PATH": "/usr/bin:/bin"}
    first = subprocess.run(command, cwd=storm.ROOT, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "D3: 20 of 20, figure 1,000 (seed 1" in first.stdout
    results = json.loads((tmp_path / "results.json").read_text())
    assert results.keys() == {"D3", "B10"}
    assert "| D3 | bytes that are not UTF-8 | 20 of 20, figure 1,000 | 1 |" in (tmp_path / "storm.md").read_text()
    results["D3"]["good"] = 7
    (tmp_path / "results.json").write_text(json.dumps(results))
    again = subprocess.run(command, cwd=storm.ROOT, env=environment, capture_output=True, text=True)
    assert again.returncode == 1  # nothing was run again, and one row is short
    assert "D3: " not in again.stdout
