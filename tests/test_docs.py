"""The code and the commands in the documents, and the examples of `regard VERB --help`, run exactly as printed."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from pathlib import Path

import pytest

from regard.cli import app
from regard.data.corpora.dates import date_lines
from regard.models import zoo
from regard.store.convert import convert
from regard.training.settings import Training
from tests.printed import UNRUN, Block, blocks, run_page
from tests.small import TEXTS, save_model, small

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUICK = {"README.md"}  # every run of the tests runs it; `make storm` all pages
STEPS = {"music.md": 20}  # so many that the model writes notes
RUN = [
    pytest.param(path, id=path.name, marks=[] if path.name in QUICK else pytest.mark.storm)
    for path in DOCUMENTS
    if blocks(path)
]


def reader_files(folder: Path) -> None:
    """The files that readers of the documents bring themselves."""
    lines = date_lines("train", lines=230)
    parallel = {"data/train": lines[:200], "test": lines[200:220], "names": lines[220:]}
    texts = {f"{name}.de": "".join(f"{line.source}\n" for line in part) for name, part in parallel.items()}
    texts |= {f"{name}.en": "".join(f"{line.target}\n" for line in part) for name, part in parallel.items()}
    book = "It was the best of times, it was the worst of times.\n" * 60
    said = [f"{text} {number}" for number in range(30) for text in TEXTS]
    labels = ["good" if "dog" in text else "bad" for text in said]
    texts |= dict.fromkeys(("book.txt", "text.txt", "prompt.txt"), book)
    texts["input.txt"] = book * 320  # as long as tiny shakespeare
    texts |= {f"data/shakespeare/shakespeare-{part}.txt": book for part in ("train", "valid")}
    texts["sentences.txt"], texts["labels.txt"] = ("".join(f"{line}\n" for line in side) for side in (said, labels))
    texts["reviews.txt"] = texts["sentences.txt"]
    texts["films.tsv"] = texts["reviews.tsv"] = "".join(f"{text}\t{label}\n" for text, label in zip(said, labels))
    texts["pairs.csv"] = "de,en\n" + "".join(f'"{line.source}","{line.target}"\n' for line in lines)
    texts["reviews.csv"] = "id,review,stars\n" + "".join(f'{n},"{text}",{n % 5}\n' for n, text in enumerate(said))
    texts |= {f"books/{number}.txt": book for number in (1, 2)}
    texts["dates.txt"], texts["lines.py"] = texts["test.de"], "import json\nprint(json.dumps({}))\n"
    table = "sentence\tlabel\n" + "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(said))
    texts |= {"SST-2/train.tsv": table, "SST-2/dev.tsv": table, "deu.txt": texts["films.tsv"]}
    bars = [[67 - number % 3, 62, 59, 43 + number % 5] for number in range(64)]
    chorales = {"train": [bars] * 3, "valid": [bars], "test": [bars]}
    texts["data/jsb-chorales/jsb-chorales-16th.json"] = json.dumps(chorales)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with gzip.open(folder / "corpus.tsv.gz", "wt") as file:
        file.writelines(f"{line.source}\t{line.target}\n" for line in lines)
    (folder / "mine.py").write_text(blocks(ROOT / "docs" / "parts.md")[1].text)
    for name, description in {"bert": zoo.bert(16, 1, 2), "gpt2": zoo.gpt2(16, 1, 2)}.items():
        save_model(folder / name, small(description))
        convert(folder / name, folder / "models" / name, "huggingface")  # ~/models/gpt2


@pytest.mark.parametrize("path", RUN)
def test_every_block_of_a_page_runs_as_printed(path: Path, tmp_path: Path):
    reader_files(tmp_path)
    for name, recipe in re.findall(r"^```toml\n# (\S+\.toml)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(recipe)
    said = run_page(blocks(path), tmp_path, steps=STEPS.get(path.name, 2))
    assert "regard: error" not in said


HELP = {name: re.search(r"Example: (regard .*)", command.callback.__doc__ or "").group(1)  # type: ignore[union-attr]
        for command in app.registered_commands if command.callback for name in [command.callback.__name__]}  # fmt: skip
# What the examples need: each folder is made by the recipe of its name, or from the reader's own files.
MADE = {
    "runs/dates": "regard train dates",
    "runs/python": "regard train python",
    "runs/bert": "regard train bert",
    "runs/reviews": "regard init reviews.tsv > reviews.toml && regard train reviews.toml",
    "runs/de-en": "regard init data/train.de data/train.en > de-en.toml && regard train de-en.toml",
    "runs/transformer": "regard train dates --out runs/transformer",
    "runs/small": "regard train dates --set model.width=32 --out runs/small",
    "recipe.toml": "regard init data/train.de data/train.en > recipe.toml",
}


@pytest.mark.storm
@pytest.mark.parametrize("verb", HELP)
def test_the_example_of_every_help_runs_as_printed(verb: str, tmp_path: Path):
    reader_files(tmp_path)
    first = [command for name, command in MADE.items() if name in HELP[verb] and verb not in ("train", "init")]
    run_page([Block("sh", "\n".join([*first, HELP[verb]]))], tmp_path)


def test_a_failing_example_is_reported(tmp_path: Path):
    with pytest.raises(AssertionError, match=r"(?s)regard translate runs/none.*runs/none"):
        run_page([Block("sh", "true\nregard translate runs/none\n")], tmp_path)


def test_a_failing_block_of_python_is_reported(tmp_path: Path):
    with pytest.raises(AssertionError, match=r"(?s)ended with 1.*NameError"):
        run_page([Block("python", "import regard\n"), Block("python", "regard.load\nunknown\n")], tmp_path)


def test_only_lines_that_say_why_are_not_run():
    unrun = {
        path.name: [line for block in blocks(path) for line in block.lines if UNRUN.search(line)] for path in DOCUMENTS
    }
    for line in [line for lines in unrun.values() for line in lines]:
        assert UNRUN.search(line.partition(" # ")[2]), f"the reason is not a comment that readers see: {line}"
    assert sum(map(len, unrun.values())) <= 19, unrun


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_fence_names_a_language_that_is_run_or_read(path: Path):
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    assert {language for language, _ in fences} <= {"sh", "python", "toml", ""}
    for language, text in fences:
        if language == "toml":
            tomllib.loads(text)
        if language == "":  # output, not commands
            assert not re.search(r"^(\$ |regard |python )", text, re.MULTILINE)


def test_the_title_of_the_table_of_recall_is_the_one_that_is_printed(tmp_path: Path):
    page = ROOT / "docs" / "long.md"
    reader_files(tmp_path)
    said = run_page([Block("sh", "regard train reformer"), blocks(page)[-2]], tmp_path).splitlines()
    at = next(number for number, line in enumerate(said) if line.startswith("Recall of"))
    assert "\n".join(said[at : at + 2]) in page.read_text()
    assert said[at + 2].startswith("decoder.1.self  mean ")
    assert said[-1].startswith("decoder.1.self 0.")


def test_every_setting_of_a_run_is_documented():
    said = (ROOT / "docs" / "recipes.md").read_text()
    assert [name for name in Training.__dataclass_fields__ if f"`{name}`" not in said] == []


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "ARCHITECTURE.md"], ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_readme_says_first_how_to_get_the_small_torch_and_how_to_open_the_notebook():
    text = (ROOT / "README.md").read_text()
    before = text.partition("make demo")[0]
    assert "TORCH_INDEX=ADDRESS" in before
    assert "--index-url" in before
    assert "2.9 GB" in before
    assert "jupyter lab docs/tutorial.ipynb" in text
    assert re.search(r"minutes on a quiet machine with two\s+cores", text)
