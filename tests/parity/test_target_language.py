"""From text to answer: a multilingual translator that is told its target language answers as transformers does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

import regard
from regard.errors import InputError, Note
from tests.parity.folders import perturbed
from tests.parity.pipelines import CLASSES, XLM_FILES, Write, form, lines, m2m100_files, write_json
from tests.store.test_tokenizers import LINES, write_marian

CODES = [">>fra<<", ">>deu_Latn<<"]
Ask = Callable[[Any, str, str], tuple[str, dict[str, int]]]
"""A tokenizer, a text and the token of a language -> the text to encode, and what `generate` is given besides."""


def marian_files(folder: Path) -> None:
    write_marian(folder)
    ids = json.loads((folder / "vocab.json").read_text())
    write_json(folder / "vocab.json", {**ids, **{code: len(ids) + index for index, code in enumerate(CODES)}})


def nllb_files(folder: Path) -> None:
    """NLLB's BPE; its class adds the codes of languages."""
    letters = sorted({letter for line in LINES[:5] for letter in line.replace(" ", "▁")})
    pieces = ["▁t", "he", "▁the", "er", "ir"]
    vocabulary = {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters, *pieces])}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("e", "r"), ("i", "r")]
    t.NllbTokenizer(vocab=vocabulary, merges=merges, src_lang="deu_Latn").save_pretrained(folder)


def forced(tokenizer: Any, text: str, token: str) -> tuple[str, dict[str, int]]:
    return text, {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)}


def started(tokenizer: Any, text: str, token: str) -> tuple[str, dict[str, int]]:
    return text, {"decoder_start_token_id": tokenizer.convert_tokens_to_ids(token)}


def before(_: Any, text: str, token: str) -> tuple[str, dict[str, int]]:
    return f"{token} {text}", {}


@dataclass(frozen=True)
class Kind:
    """A kind of multilingual model: its files, and how transformers is told the language."""

    model_type: str
    write: Write
    ask: Ask
    languages: dict[str, str]  # as a user names them, and their tokens
    start: str | None = None  # the language with which the decoder starts

    def folder(self, folder: Path) -> Path:
        write_json(folder / "config.json", {"model_type": self.model_type})
        self.write(folder)
        tokenizer = t.AutoTokenizer.from_pretrained(folder)
        size = 1 + max(tokenizer.get_vocab().values())
        prefix, settings = CLASSES[self.model_type]
        if self.model_type == "m2m_100" and (folder / "vocab.json").exists():
            size = len(json.loads((folder / "vocab.json").read_text())) + len(tokenizer.lang_code_to_id)
        if self.model_type == "marian":
            pad = tokenizer.pad_token_id
            size = len(json.loads((folder / "vocab.json").read_text()))
            settings = {**settings, "decoder_start_token_id": pad, "pad_token_id": pad, "bad_words_ids": [[pad]]}
        if self.start is not None:
            settings = {**settings, "decoder_start_token_id": tokenizer.convert_tokens_to_ids(self.start)}
        torch.manual_seed(1)
        of_class = getattr(t, f"{prefix}{'MTModel' if prefix == 'Marian' else 'ForConditionalGeneration'}")
        perturbed(of_class(getattr(t, f"{prefix}Config")(vocab_size=size, **settings)), by=0.35).save_pretrained(folder)
        return folder


MBART = {"fr": "fr_XX", "de_DE": "de_DE"}
KINDS = {
    "M2M100": Kind("m2m_100", form(m2m100_files, tokenizer_class="M2M100Tokenizer", src_lang="de"), forced,
                   {"fr": "__fr__", "zh": "__zh__"}),
    "NLLB": Kind("m2m_100", nllb_files, forced,
                 {"fr": "fra_Latn", "zho_Hant": "zho_Hant", "zh-Hans": "zho_Hans"}),
    "mBART-50": Kind("mbart", form(XLM_FILES, tokenizer_class="MBart50Tokenizer", src_lang="ro_RO"), forced, MBART),
    "mBART": Kind("mbart", form(XLM_FILES, tokenizer_class="MBartTokenizer", src_lang="ro_RO"), started, MBART,
                  "en_XX"),
    "Marian": Kind("marian", marian_files, before, {"fr": CODES[0], "de": CODES[1], "deu_Latn": CODES[1]}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> None:
    t.logging.set_verbosity_error()
    t.logging.disable_progress_bar()


@pytest.mark.parametrize("name", KINDS)
def test_the_answer_in_each_language_is_that_of_transformers(name: str, tmp_path: Path):
    kind = KINDS[name]
    folder = kind.folder(tmp_path)
    model, texts = regard.load(folder, device="cpu"), [text.strip() for text in lines(5)]
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    theirs = t.AutoModelForSeq2SeqLM.from_pretrained(folder)
    answers = {}
    for language, token in kind.languages.items():
        told = model.translating_into(language)
        for beam in (1, 3):
            options = replace(told.defaults(), max_tokens=12, beam=beam)
            found = [several[0].tokens for several in told.translations(texts, options)]
            for text, tokens in zip(texts, found):
                given, more = kind.ask(tokenizer, text, token)
                made = theirs.generate(**tokenizer(given, return_tensors="pt"), **more, max_new_tokens=12,
                                       num_beams=beam)  # fmt: skip
                expected = made[0, 1:].tolist()
                ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
                assert list(tokens) == [one for one in expected if one not in ends]
            best = model.translate(texts, options=options, target_language=language)
            assert best == told.target_tokenizer.decode_batch(found)
            answers[token] = found
    assert len({str(found) for found in answers.values()}) == len(answers), "the languages change nothing"


def test_a_language_that_the_model_lacks_is_refused_with_the_nearest(tmp_path: Path):
    model = regard.load(KINDS["NLLB"].folder(tmp_path), device="cpu")
    with pytest.raises(InputError, match=r'not translate into "frz" \(--target-language\)\. The nearest.*fra_Latn'):
        model.translate("a", target_language="frz")
    with pytest.raises(InputError, match=r"zh may be zho_Hans, zho_Hant"):
        model.translate("a", target_language="zh")
    with pytest.warns(Note, match="none is named"):
        model.translate("a")
