"""The table of guards is that of the source: each text occurs once, and each test exists."""

from __future__ import annotations

import ast

import pytest

from tests.mutate import GUARDS, ROOT, Guard, occurrences


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_is_in_its_file_once_and_its_test_exists(guard: Guard):
    assert occurrences(guard) == 1
    assert guard.replacement != guard.text
    file, _, name = guard.test.partition("::")
    tests = [node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert name in tests


def test_there_are_many_guards_and_each_has_a_name_of_its_own():
    assert len(GUARDS) >= 25
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)


def test_a_mutated_file_is_still_python():
    for guard in GUARDS:
        source = (ROOT / "src" / "regard" / guard.file).read_text()
        ast.parse(source.replace(guard.text, guard.replacement))
