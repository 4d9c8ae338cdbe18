"""The words of the field: whoever searches for one lands on the code that does it and on the page that explains it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
FILES = sorted(SOURCE.rglob("*.py"))

# phrase: the file that does it, the page that explains it
PHRASES = {
    "kv cache": ("layers/attention.py", "glossary.md"),
    "gradient checkpointing": ("layers/join.py", "recipes.md"),
    "backward pass": ("layers/reversible.py", "long.md"),
    "early stopping": ("training/loop.py", "recipes.md"),
    "gradient accumulation": ("training/step.py", "recipes.md"),
    "forget gate": ("layers/recurrent.py", "glossary.md"),
    "context vector": ("layers/attention_decoder.py", "recurrent.md"),
    "contrastive": ("data/tasks/contrastive.py", "pretraining.md"),
    "masked language model": ("data/tasks/masked_lm.py", "pretraining.md"),
    "span corruption": ("data/tasks/span_corruption.py", "pretraining.md"),
    "scheduled sampling": ("training/scheduled_sampling.py", "recurrent.md"),
    "sliding window": ("evaluation/sliding_window.py", "reading.md"),
    "learning rate": ("training/optimizers.py", "recipes.md"),
    "nucleus sampling": ("decode/options.py", "glossary.md"),
}

# private dialect: phrase, and what to write instead
DIALECT = {
    r"\bbit by bit\b": "bit-identically",
    r"\b(on|for) the way (back|there)\b": "in the backward (forward) pass",
    r"\bwho meets whom\b": "which keys a query attends to",
    r"\bnobody says otherwise\b": "by default",
    r"\b(nats|tokens|steps|bits|bytes|lines) an? (token|second|step|epoch|byte|line)\b": "per",
    r"\ba (line|law|model|family|layer|row|part) a (line|law|model|family|layer|row|part)\b": "per",
}


def spaced(path: Path) -> str:
    """The text of a file in lower case, with line breaks as spaces."""
    return re.sub(r"[\s#]+", " ", path.read_text(encoding="utf-8")).lower()


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_of_the_field_lands_on_its_code_and_on_its_page(phrase: str):
    code, page = PHRASES[phrase]
    assert phrase in spaced(SOURCE / code)
    assert phrase in spaced(DOCS / page)


@pytest.mark.parametrize("path", [*FILES, *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_no_private_dialect_is_spoken(path: Path):
    text = spaced(path)
    assert {better: found.group() for phrase, better in DIALECT.items() if (found := re.search(phrase, text))} == {}


def docstrings(path: Path) -> list[str]:
    """Every docstring of a file, and every string that documents a name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.append(node.value.value)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_docstring_holds_a_bare_identifier_as_if_it_were_a_word(path: Path):
    for text in docstrings(path):
        prose = re.sub(r"`[^`]*`|\"[^\"]*\"|'[^']*'|https?://\S+|\([^()]*=[^()]*\)|\S*[/.=]\S*|--[\w-]+", " ", text)
        found = re.findall(r"(?<!\w)[a-z]+_[a-z_]+(?![\w(])", prose)
        # A paper's letters are no identifiers.
        assert [name for name in found if not re.fullmatch("([a-z]|alpha)_[a-z]+", name)] == [], text


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is(path: Path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    if path.name != "version.py":
        assert len(text.split()) >= 3, "a module begins with a sentence that holds the noun one would search for"
        assert "TODO" not in text
