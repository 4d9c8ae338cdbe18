"""Packages for Argos Translate: their layout, their tokens, and what is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch

from regard.data.tokenize.train import BPE, SentencePiece
from regard.engines.argos import Package, sentencepiece_model, write_argos
from regard.engines.convert import Sample
from regard.errors import InputError
from regard.models.zoo import transformer
from regard.store.loading import Loaded

pytest.importorskip("ctranslate2")
sentencepiece = pytest.importorskip("sentencepiece")
TEXTS = ["the dog runs to the house", "a dog and a cat see the house", "the cat  runs, and the dog sees it"] * 3


def model(kind: SentencePiece | BPE) -> Loaded:
    tokenizer = kind.train(TEXTS)
    torch.manual_seed(1)
    network = transformer(16, 1, 2).build(tokenizer.vocabulary).eval()
    return Loaded(network, (tokenizer, None), {"model_type": "regard", "task": "translation"}, {})


def test_sentencepiece_itself_cuts_texts_as_our_tokenizer_does(tmp_path: Path) -> None:
    tokenizer = SentencePiece(25).train(TEXTS)
    (tmp_path / "model").write_bytes(sentencepiece_model(tokenizer))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "model"))
    for text in (*TEXTS, "  two  spaces ", "unheard: ж!", ""):
        assert theirs.encode(text) == tokenizer.encode(text)
    assert theirs.decode(theirs.encode("the dog")) == tokenizer.decode(tokenizer.encode("the dog")) == "the dog"


def test_a_package_has_the_layout_that_argos_translate_reads(tmp_path: Path) -> None:
    path = tmp_path / "de-en.argosmodel"
    equal, lines = write_argos(model(SentencePiece(25)), path, Package.of("de-en"), "float32", Sample.of(TEXTS))
    assert equal == lines
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        metadata = json.loads(archive.read("translate-de_en-1_0/metadata.json"))
    assert {"metadata.json", "README.md", "sentencepiece.model", "model/model.bin", "model/config.json"} <= names
    assert (metadata["from_code"], metadata["to_code"]) == ("de", "en")


@pytest.mark.storm
def test_a_package_answers_inside_argos_translate(tmp_path: Path) -> None:
    reader = pytest.importorskip("argostranslate.package", reason="argostranslate is not installed")
    translation = pytest.importorskip("argostranslate.translate")
    import ctranslate2

    path = tmp_path / "de-en.argosmodel"
    write_argos(model(SentencePiece(25)), path, Package.of("de-en"), "float32", Sample.of(TEXTS))
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    package = reader.Package(tmp_path / "translate-de_en-1_0")

    class Whole:  # its own splitter is downloaded
        def split_sentences(self, text: str) -> list[str]:
            return [text]

    engine = ctranslate2.Translator(str(package.package_path / "model"))
    for text in TEXTS[:3]:
        found = translation.apply_packaged_translation(package, text, engine, Whole(), 1)[0].value
        pieces = package.tokenizer.encode(text)
        direct = engine.translate_batch([pieces], beam_size=4, length_penalty=0.2)[0].hypotheses[0]
        assert found.strip() == package.tokenizer.decode(direct).strip()


def test_a_tokenizer_of_another_kind_is_refused_with_the_setting_to_use() -> None:
    with pytest.raises(InputError, match=r"text\.tokenizer = \{ kind = .sentencepiece"):
        sentencepiece_model(BPE(270).train(TEXTS))


@pytest.mark.parametrize("languages", ["de", "de-", "D-e", "../x-en"])
def test_languages_are_two_codes(languages: str) -> None:
    with pytest.raises(InputError, match="--languages de-en"):
        Package.of(languages)
