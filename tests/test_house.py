"""The house keeps its own rules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def test_no_file_is_longer_than_600_lines():
    assert {str(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 600} == {}


def test_no_file_is_a_drawer_for_everything():
    assert not {path.name for path in FILES} & {"common.py", "utils.py", "helpers.py", "misc.py"}


BANNED = {
    "eval", "exec", "compile", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "joblib.load",
    "shelve.open", "torch.load", "torch.jit.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "os.system",
    "os.popen", "subprocess.getoutput",
}  # fmt: skip
BANNED_KEYWORDS = {"shell", "allow_pickle", "trust_remote_code"}


def violations(source: str) -> list[int]:
    """The lines of calls that could run code from a file, unpack one anywhere, or start a shell."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        name = ast.unparse(node.func)
        # The one way to read a pickle builds nothing but tensors.
        tensors_only = name == "torch.load" and keywords.get("weights_only") == "True"
        unpacks = name.endswith(("extractall", "unpack_archive")) and "filter" not in keywords
        if (name in BANNED and not tensors_only) or unpacks or BANNED_KEYWORDS & keywords.keys():
            found.append(node.lineno)
    return found


def test_nothing_unpickles_evaluates_unpacks_or_starts_a_shell():
    assert {str(path): lines for path in FILES if (lines := violations(path.read_text()))} == {}


@pytest.mark.parametrize(
    "line",
    ["pickle.loads(x)", "torch.load(x)", "torch.load(x, weights_only=False)", "yaml.load(x)", "eval(x)", "exec(x)",
     "np.load(x, allow_pickle=True)", "tarfile.open(x).extractall(y)", "subprocess.run(x, shell=True)", "os.system(x)",
     "AutoModel.from_pretrained(x, trust_remote_code=True)", "shutil.unpack_archive(x)"],
)  # fmt: skip
def test_a_call_that_runs_code_is_found(line: str):
    assert violations(f"import os\n{line}\n") == [2]


def test_only_one_file_may_talk_to_other_processes():
    users = [path for path in FILES if "torch.distributed" in path.read_text()]
    assert [path.relative_to(SOURCE).as_posix() for path in users] in ([], ["training/distributed.py"])
