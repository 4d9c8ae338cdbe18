"""The house keeps its own rules."""

from __future__ import annotations

import ast
from pathlib import Path

import regard

SOURCE = Path(regard.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def test_no_file_is_longer_than_600_lines():
    assert {str(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 600} == {}


def test_no_file_is_a_drawer_for_everything():
    assert not {path.name for path in FILES} & {"common.py", "utils.py", "helpers.py", "misc.py"}


def test_nothing_unpickles_evaluates_or_starts_a_shell():
    banned = {"eval", "exec", "pickle.load", "pickle.loads", "torch.load", "yaml.load", "os.system"}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                # The one way to read a pickle builds nothing but tensors.
                tensors_only = "weights_only=True" in [ast.unparse(keyword) for keyword in node.keywords]
                name = ast.unparse(node.func)
                assert name not in banned or (name == "torch.load" and tensors_only), (path, node.lineno)
                names = {keyword.arg for keyword in node.keywords}
                assert not names & {"shell", "allow_pickle", "trust_remote_code"}, (path, node.lineno)


def test_only_one_file_may_talk_to_other_processes():
    users = [path for path in FILES if "torch.distributed" in path.read_text()]
    assert [path.relative_to(SOURCE).as_posix() for path in users] in ([], ["training/distributed.py"])
