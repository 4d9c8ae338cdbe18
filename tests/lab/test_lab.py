"""The lab: a claim is listed, run, resumed, judged by its rule and shown; bad input is one line."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.cli import run as command
from regard.errors import DamagedFile, InputError, RunFailed
from regard.lab import catalogue, everything, experiment
from regard.lab.claim import Numbers, Picture, Series, by_lead
from regard.lab.claims import book
from regard.lab.learning import score
from regard.lab.page import report, table
from regard.lab.picture import draw
from regard.lab.tasks import BYTES, read_text
from regard.layers.lsh.masks import RankWindow
from regard.layers.positions import Axial
from regard.models import zoo
from regard.training.lock import folder_lock
from tests.show import browser as browsing

ONE_MINUTE = {
    "symmetry": ["steps=10"],
    "scale": ["repeats=2"],
    "saturation": ["queries=50"],
    "axis": [],
    "reversible": ["length=256", "width=32"],
}
OWN = '''
"""A claim of one's own: two is more than one."""

from dataclasses import dataclass
from pathlib import Path

from regard.lab.claim import Claim, by_arm, by_lead


@dataclass(frozen=True)
class Settings:
    steps: int = 4


def measure(trial):
    with Path("measured.txt").open("a") as file:
        file.write(f"{trial.arm} {trial.seed}\\n")
    import time
    time.sleep(0.3 * (trial.seed > 1))
    return {"value": trial.scaled("steps") * (1 + (trial.arm == "two"))}


CLAIM = Claim(
    name="mine", question="Is two more than one?", source="arithmetic", method="Both are counted.",
    rule="Confirmed if two leads by one in every seed.", caveats="None.", minutes=2, fewest=1, arms=("one", "two"),
    settings=Settings(), measure=measure, verdict=lambda numbers: by_lead(numbers.lead("two", "one", "value"), 1),
    picture=by_arm("Value", "value"),
)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a claim, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path / "mine.py"


def test_the_list_has_every_claim_with_question_source_and_minutes(capsys: pytest.CaptureFixture[str]):
    assert command(["lab", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len({row["name"] for row in rows}) == 26
    for row in rows:
        assert row["question"].endswith("?")
        assert row["source"]
        assert 1 <= row["fewest"] <= row["minutes"] <= 20
        assert {"verdict"} < set(row)
    assert {row["name"] for row in rows if row["fewest"] == 1} >= set(ONE_MINUTE)


def test_the_list_imports_no_torch():
    code = "import sys, regard.cli as c; c.run(['lab']); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_all_quick_sizes_together_fit_into_forty_five_minutes_of_two_cores():
    assert sum(catalogue.facts(name)["fewest"] for name in catalogue.NAMES) <= 2 * 45


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_claim_states_its_rule_before_and_says_what_is_equal(name: str):
    claim = catalogue.find(name)
    assert claim.name == name
    assert "onfirmed if" in claim.rule
    assert "efuted if" in claim.rule
    assert claim.caveats
    assert catalogue.facts(name)["minutes"] == claim.minutes


@pytest.mark.parametrize("name", ONE_MINUTE)
def test_a_claim_of_one_minute_writes_a_finding_a_picture_and_a_page(name: str, tmp_path: Path):
    words = [word for setting in ONE_MINUTE[name] for word in ("--set", setting)]
    assert command(["lab", name, "--minutes", "1", "--seeds", "1", "--out", str(tmp_path / "out"), *words]) == 0
    found = json.loads((tmp_path / "out" / "finding.json").read_text())
    assert {"verdict", "numbers", "rule", "seeds", "command"} <= set(found)
    assert found["seeds"] == [1]
    assert found["command"].startswith(f"regard lab {name} --minutes 1")
    assert (tmp_path / "out" / "picture.svg").read_text().startswith("<svg")
    page = (tmp_path / "out" / "page.html").read_text()
    assert found["verdict"] in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vanish"], 'no claim is called "vanish" (regard lab). Did you mean "vanishing"?'),
        (["heads", "--minutes", "0.5"], "heads takes --minutes 2 or more, got 0.5. Use --minutes 2."),
        (["heads", "--minutes", "nan"], "heads takes --minutes 2 or more"),
        (["heads", "--seeds", "0"], "a claim needs 1 seed or more, got 0 (--seeds)."),
        (["heads", "--first-seed", "0"], "seeds are 1 to 1,048,575, got 0 to 2 (--first-seed)."),
        (["all", "--first-seed", "1048575"], "seeds are 1 to 1,048,575, got 1048575 to 1048577 (--first-seed)."),
        (["--first-seed", "11"], "--first-seed needs a claim."),
        (["all", "--minutes", "-1"], "claims need more than 0 minutes, got -1 (--minutes)."),
        (["heads", "--set", "widht=3"], 'heads has no setting "widht" (--set). Did you mean "width"?'),
        (["heads", "--set", "width"], '"width" is not of the form key=value (--set). Example: --set width='),
        (["heads", "--set", "width=no"], "--set.width"),
        (["heads", "--set", "width=" + "[" * 10_000], "--set.width"),
        (["heads", "--set", "width=" + "9" * 5000], "--set.width"),
        (["heads", "--set", "width=0"], "width must be above 0, got 0 (--set width)."),
        (
            ["heads", "--text", "short.txt"],
            "short.txt has 5 bytes, too few for heads (--text). Give it 50,000 or more.",
        ),
        (["heads", "--text", "none.txt"], "no such file: none.txt (--text)."),
        (["axis", "--text", "short.txt"], "axis makes its own data and reads no text (--text)."),
        (["none.py"], "no such file: none.py (regard lab)."),
        (["bad.py"], "bad.py defines no CLAIM (regard lab)."),
        (["--minutes", "3"], "--minutes needs a claim."),
        (["all", "--set", "width=3"], "--set is for one claim."),
        (["--table"], "holds no findings (--table)."),
        (["--report", "lab.html"], "holds no findings (--report)."),
        (["--report", "nowhere/lab.html"], "there is no folder nowhere to write into (--report)."),
        (["--table", "--json"], "--json prints the list of claims."),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "bad.py").write_text("x = 1\n")
    assert command(["lab", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_claim_of_ones_own_is_one_file(own: Path, capsys: pytest.CaptureFixture[str]):
    assert command(["lab", "./mine.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "confirmed"
    assert found["numbers"]["two"]["value"] == {"mean": 8.0, "spread": 0.0, "values": [8.0, 8.0, 8.0]}
    assert (own.parent / "runs/lab/mine/page.html").exists()


def test_minutes_scale_steps_unless_they_are_set(own: Path):
    half = regard.lab.run(str(own), minutes=1, show=False)
    assert half.numbers["one"]["value"]["mean"] == 2
    assert regard.lab.run(str(own), minutes=1, settings=["steps=4"], show=False).numbers["one"]["value"]["mean"] == 4


def test_a_killed_run_resumes_where_it_was(own: Path):
    words = [sys.executable, "-m", "regard", "lab", "mine.py", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(Path(regard.__file__).parents[1])}
    child = subprocess.Popen(words, cwd=own.parent, env=environment, stdout=subprocess.DEVNULL)
    stored = own.parent / "out" / "trials.json"
    end = time.monotonic() + 60
    while not (stored.exists() and "one 2" in stored.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (own.parent / "out" / "finding.json").exists()
    assert regard.lab.run("mine.py", out="out", show=False).verdict == "confirmed"
    measured = (own.parent / "measured.txt").read_text().splitlines()
    assert measured.count("one 1") == measured.count("two 1") == measured.count("one 2") == 1
    assert len(set(measured)) == 6


def test_two_runs_of_a_claim_never_share_a_folder(own: Path):
    with folder_lock(own.parent / "out"), pytest.raises(InputError, match="is in use by"):
        regard.lab.run("mine.py", out="out", show=False)


def test_other_settings_and_a_changed_claim_are_measured_anew(own: Path):
    regard.lab.run(str(own), show=False, seeds=1)
    regard.lab.run("mine.py", show=False, seeds=1)
    assert len(Path("measured.txt").read_text().splitlines()) == 2
    regard.lab.run("mine.py", show=False, seeds=1, settings=["steps=9"])
    assert len(Path("measured.txt").read_text().splitlines()) == 4
    own.write_text(OWN + "# changed\n")
    regard.lab.run("mine.py", show=False, seeds=1)
    assert len(Path("measured.txt").read_text().splitlines()) == 6


def test_other_seeds_are_named_and_none_is_measured_twice(own: Path):
    regard.lab.run(str(own), show=False, seeds=2)
    found = regard.lab.run("mine.py", show=False, seeds=2, first_seed=2)
    assert found.seeds == [2, 3]
    assert found.command == "regard lab mine.py --minutes 2 --seeds 2 --first-seed 2"
    assert (own.parent / "measured.txt").read_text().splitlines().count("one 2") == 1
    stored = json.loads((own.parent / "runs/lab/mine/trials.json").read_text())
    (group,) = stored.values()
    assert set(group["seconds"]) == set(group["trials"])


def test_a_damaged_file_of_trials_is_refused(own: Path):
    (own.parent / "out").mkdir()
    (own.parent / "out" / "trials.json").write_text('{"a": 3}')
    with pytest.raises(DamagedFile, match="holds no trials"):
        regard.lab.run("mine.py", out="out", show=False)


def test_all_claims_run_in_processes_of_their_own_and_one_failure_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(everything, "NAMES", ("axis", "saturation", "scale"))
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "trials.json").write_text("{broken")
    said: list[str] = []
    with pytest.raises(
        RunFailed, match=r"1 of 3 claims failed: scale\. The first: scale: regard: error: .*trials.json"
    ):
        everything.run_all(tmp_path, seeds=1, first_seed=11, say=said.append)
    assert sorted(line.split(":")[0] for line in said) == ["axis", "saturation", "scale"]
    for name in ("axis", "saturation"):
        found = experiment.read_finding(tmp_path / name)
        assert found is not None
        assert (found.seeds, found.verdict) == ([11], "confirmed")


def test_the_rule_by_lead_has_three_verdicts():
    assert by_lead([0.3, 0.2], 0.2) == "confirmed"
    assert by_lead([0.3, 0.1], 0.2) == "not decided at this size"
    assert by_lead([0.0, -0.1], 0.2) == "refuted"


def test_a_number_that_is_not_finite_is_null_and_decides_nothing(own: Path):
    own.write_text(OWN.replace('{"value": trial', '{"value": float("nan") * trial'))
    found = regard.lab.run("mine.py", show=False)
    assert found.verdict == "not decided at this size"
    assert found.to_json()["numbers"]["one"]["value"]["mean"] is None


def test_pictures_draw_every_scale():
    for values in ([[1e-9, 1e-3], [5.0]], [[-1.0], [2.0]], [[float("nan")], [0.0]]):
        for log in (False, True):
            assert (
                draw(Picture("t", ("a", "b"), (Series("x", values), Series("y", values)), log=log)).count("<svg") == 1
            )


def test_the_table_of_findings_is_markdown(own: Path):
    found = regard.lab.run(str(own), show=False)
    lines = table([found]).splitlines()
    assert lines[2] == (
        "| `mine` | Is two more than one? | **confirmed** | value: one 4 ± 0; two 8 ± 0 | full | 1–3 | 0.0 |"
    )
    half = regard.lab.run(str(own), minutes=1, first_seed=11, show=False)
    assert "| 0.5 of full | 11–13 |" in table([half], [catalogue.facts("axis")])
    assert table([half], [catalogue.facts("axis")]).endswith("| not run | – | – | – | – |")


STORED = Path(__file__).parents[2] / "docs" / "lab"


def test_findings_that_exist_become_a_report(tmp_path: Path):
    assert command(["lab", "--report", str(tmp_path / "lab.html"), "--out", str(STORED)]) == 0
    page = (tmp_path / "lab.html").read_text()
    for folder in STORED.iterdir():
        assert f'id="{folder.name}"' in page


def test_the_table_of_the_documents_is_that_of_their_findings(capsys: pytest.CaptureFixture[str]):
    assert command(["lab", "--table", "--out", str(STORED)]) == 0
    unlinked = re.sub(r"\[(`\w+`)\]\([^)]*\)", r"\1", (STORED.parent / "lab.md").read_text())
    assert capsys.readouterr().out.strip() in unlinked


@pytest.mark.parametrize("group", catalogue.GROUPS)
def test_every_section_of_the_documents_has_the_rule_and_the_verdict_of_its_finding(group: str):
    text = (STORED.parent / f"lab-{group}.md").read_text()
    for name, section in zip(catalogue.GROUPS[group], text.split("\n## ")[1:]):
        words = " ".join(section.split())
        claim, found = catalogue.find(name), experiment.read_finding(STORED / name)
        assert section.startswith(name)
        assert f"*Rule, stated before.* {claim.rule}" in words
        assert f"({claim.minutes:g} minutes of one core; `--minutes {claim.fewest:g}` is the quick size)" in words
        assert f"*Caveats.* {claim.caveats}" in words
        assert ("*Verdict.* Not run." if found is None else f"*Verdict.* **{found.verdict}**") in words
        assert (f"(lab/{name}/picture.svg)" in section) == (found is not None)
        if found is not None:
            assert found.facts["question"] == claim.question
            assert found.rule == claim.rule


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from browsing.started()


def test_the_report_opens_in_a_browser_and_a_notebook_shows_a_finding(own: Path, browser: Any):
    found = regard.lab.run("mine.py", show=False)
    assert "lab-card" in found._repr_html_()
    (own.parent / "lab.html").write_text(report([found, found], "regard lab all"))
    page = browser.new_page()
    errors: list[str] = []
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.goto((own.parent / "lab.html").as_uri())
    assert page.locator(".lab-card svg.finding").count() == 2
    assert page.locator(".verdict.confirmed").count() == 4
    assert errors == []
    page.close()


def test_the_bits_of_a_book_are_the_loss_of_the_model_whatever_the_window():
    torch.manual_seed(1)
    text = read_text(None, "test", 511)
    network = zoo.reformer(16, 2, 2, pattern=RankWindow(8), buckets=8, position=Axial((16, 32)), dropout=0.0).build(
        BYTES.vocabulary
    )
    for length in (512, 64):
        rows = book.windows(text, length)
        found = book.bits(network.eval(), rows)
        assert len(found) == 512
        assert float(found.mean()) == pytest.approx(score(network, rows).loss / math.log(2), rel=1e-4)


def test_numbers_are_paired_by_seed():
    numbers = Numbers({"a": {"x": [1.0, 2.0]}, "b": {"x": [0.5, 3.0]}})
    assert numbers.lead("a", "b", "x") == [0.5, -1.0]
    with pytest.raises(InputError, match="no claim is called"):
        experiment.request("nothing", None, None, (), None)


def test_settings_are_a_list():
    with pytest.raises(InputError, match=r'settings takes a list: settings=\["width=3"\]'):
        regard.lab.run("heads", settings="width=3")
