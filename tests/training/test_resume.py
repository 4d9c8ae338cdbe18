"""A part of the matrix of resumes: eight combinations of families and of states that training carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storm import resume

CASES = {f"{case.name}, {case.accumulate}": case for case in resume.combinations()}
QUICK = ["luong, scheduled sampling, 4", "transformer, BPE-dropout, 1", "sha_rnn, lamb, 4", "gpt2, muon, 1",
         "reformer, averages, 4", "bert, bfloat16, 1", "t5, float32, 4", "elmo, averages, 1"]  # fmt: skip


def test_the_matrix_has_192_cases_or_more():
    assert resume.CASES >= 192
    assert {case.family for case in CASES.values()} == set(resume.FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_run_stopped_at_three_moments_ends_as_the_unbroken_one(name: str, tmp_path: Path):
    assert dict(resume.resumed(CASES[name], tmp_path / "case")) == dict.fromkeys(resume.MOMENTS, "")
