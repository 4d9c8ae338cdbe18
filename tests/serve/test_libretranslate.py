"""LibreTranslate's own Python client, unchanged, against a live server; and its routes, error texts and documents."""

from __future__ import annotations

import http.client
import json
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from libretranslatepy import LibreTranslateAPI

from regard.api import LoadedModel
from regard.models.readouts import Label
from regard.serve.settings import Settings
from tests.laws.zoo import MODELS
from tests.small import WORDPIECE, small

from .conftest import KEY
from .live import Live, live

Models = dict[str, LoadedModel]
PAIR = {"source": "de", "target": "en"}


@pytest.fixture(scope="module")
def client(server: Live) -> LibreTranslateAPI:
    return LibreTranslateAPI(server.address)


def error(server: Live, body: dict[str, Any], path: str = "/translate") -> str:
    """The text of an error."""
    status, content, _ = server(path, body)
    assert status == 400
    found = json.loads(content)
    assert list(found) == ["error"]
    return str(found["error"])


def test_the_client_translates_and_lists_languages(client: LibreTranslateAPI, tiny: Models):
    assert client.translate("The cat sat", "de", "en") == tiny["de-en"].translate("The cat sat")
    found = {language["code"]: language for language in client.languages()}
    assert found["de"] == {"code": "de", "name": "German", "targets": ["en"]}
    assert found["source"]["targets"] == ["target"]  # a translator that names no languages
    assert found["en"]["targets"] == []


def test_the_client_sends_its_key_in_the_body(locked: Live):
    assert LibreTranslateAPI(locked.address, api_key=KEY).languages()
    assert LibreTranslateAPI(locked.address, api_key=KEY).translate("The cat", "de", "en")
    for key in (None, "wrong"):
        for call in (lambda api: api.languages(), lambda api: api.translate("x", "de", "en")):
            with pytest.raises(urllib.error.HTTPError) as refused:
                call(LibreTranslateAPI(locked.address, api_key=key))
            assert refused.value.code == 401
            assert json.loads(refused.value.read()) == {"error": "missing or wrong API key"}


def test_every_line_is_translated_as_the_command_line_would_and_line_breaks_survive(server: Live, tiny: Models):
    lines = ["The cat sat", "", "the dog", "A dog ran", ""]
    found = server.json("/translate", {"q": "\n".join(lines), **PAIR})
    assert found["translatedText"].split("\n") == tiny["de-en"].translate(lines)
    dos = server.json("/translate", {"q": "The cat\r\nthe dog\r\n", **PAIR})["translatedText"]
    assert dos == "\r\n".join([*tiny["de-en"].translate(["The cat", "the dog"]), ""])


def test_the_numbers_of_a_plain_line_stay_as_the_model_wrote_them(
    server: Live, tiny: Models, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regard.serve.translation.carry_marks", lambda *_: 1 / 0)
    text = "The 7 cats of 2026"
    assert server.json("/translate", {"q": text, **PAIR})["translatedText"] == tiny["de-en"].translate(text)


def test_a_list_is_answered_by_a_list(server: Live, tiny: Models):
    texts = ["The cat sat", "", "the dog"]
    assert server.json("/translate", {"q": texts, **PAIR}) == {"translatedText": tiny["de-en"].translate(texts)}


def test_only_a_line_longer_than_the_training_is_cut_into_sentences(server: Live, tiny: Models):
    short = "The cat sat. The dog ran."
    assert server.json("/translate", {"q": short, **PAIR})["translatedText"] == tiny["de-en"].translate(short)
    sentences = ["The cat sat.", "The dog ran in the park."]
    split = server.json("/translate", {"q": " ".join(sentences), **PAIR, "split": True})["translatedText"]
    assert split == " ".join(tiny["de-en"].translate(sentences))
    long = ["The cat sat on the mat.", "A dog ran in the park.", "The dog sat."]
    assert server.json("/translate", {"q": " ".join(long), **PAIR})["translatedText"] == " ".join(
        tiny["de-en"].translate(long)
    )


def test_html_keeps_its_markup(server: Live, tiny: Models):
    text = '<p class="a">The cat sat</p>\n<pre>the  dog</pre>'
    found = server.json("/translate", {"q": text, **PAIR, "format": "html"})["translatedText"]
    assert found.startswith('<p class="a">')
    assert f">{tiny['de-en'].translate('The cat sat')}</p>" in found


def test_alternatives_are_the_next_best(server: Live, tiny: Models):
    model = tiny["de-en"]
    alone = model.translations(["The cat sat"], replace(model.defaults(), n_best=3))[0]
    found = server.json("/translate", {"q": "The cat sat", **PAIR, "alternatives": 2})
    assert [found["translatedText"], *found["alternatives"]] == [one.text for one in alone]


def test_alignment_confidence_and_attention_come_on_request(server: Live, tiny: Models):
    asked = {"q": "The cat\nthe dog sat", **PAIR, "alignment": True, "confidence": True}
    found = server.json("/translate", asked)
    expected = tiny["de-en"].translations(["The cat", "the dog sat"], alignment=True)
    assert [[tuple(link) for link in line["links"]] for line in found["alignment"]] == [
        list(one[0].alignment or ()) for one in expected
    ]
    words = found["confidence"]
    assert [word["word"] for word in words] == found["translatedText"].split()
    assert all(found["translatedText"][word["start"] : word["end"]] == word["word"] for word in words)
    assert all(0 < word["probability"] <= 1 for word in words)
    shown = server.json("/translate", {"q": "The cat", **PAIR, "attention": True})["attention"]
    status, page, _ = server(shown)
    assert status == 200
    assert page.lstrip().lower().startswith(b"<!doctype html>")
    assert "single lines" in error(server, {"q": "a\nb", **PAIR, "attention": True})


def test_the_first_model_of_a_pair_wins_and_model_chooses(tiny: Models):
    pairs = {"de-en": ("de", "en"), "other": ("de", "en")}
    with live(tiny, Settings(port=0, grace_seconds=5.0), languages=pairs) as server:
        first, second = (tiny[name].translate("The cat sat") for name in pairs)
        assert first != second
        assert server.json("/translate", {"q": "The cat sat", **PAIR})["translatedText"] == first
        assert server.json("/translate", {"q": "The cat sat", **PAIR, "model": "other"})["translatedText"] == second
        assert server("/translate", {"q": "x", **PAIR, "model": "../../etc"})[0] == 404


def test_a_model_of_several_languages_translates_into_the_target():
    model = small(MODELS["transformer"], (WORDPIECE.with_added_words(["__fr__", "__it__"]),))
    with live({"many": model}, languages={"many": ("de", "fr")}) as server:
        for target in ("fr", "it"):
            asked = {"q": "The cat sat", "source": "de", "target": target, "alignment": True}
            found = server.json("/translate", asked)["translatedText"]
            assert found == model.translate("The cat sat", target_language=target)
        found = {one["code"]: one["targets"] for one in json.loads(server("/languages")[1])}
        assert found == {"de": ["fr", "it"], "fr": [], "it": []}
        assert error(server, {"q": "a", "source": "de", "target": "es"}) == "es is not supported"


def test_auto_takes_the_only_source_there_is_without_confidence(server: Live):
    found = server.json("/translate", {"q": "The cat", "source": "auto", "target": "en"})
    assert found["detectedLanguage"] == {"language": "de", "confidence": 0.0}


def test_errors_have_libretranslates_texts(server: Live, tiny: Models):
    assert error(server, {"source": "de", "target": "en"}) == "Invalid request: missing q parameter"
    assert error(server, {"q": "", **PAIR}) == "Invalid request: missing q parameter"
    assert error(server, {"q": "x", "target": "en"}) == "Invalid request: missing source parameter"
    assert error(server, {"q": "x", "source": "de"}) == "Invalid request: missing target parameter"
    assert error(server, {"q": "x", "source": "zz", "target": "en"}) == "zz is not supported"
    assert error(server, {"q": "x", "source": "de", "target": "zz"}) == "zz is not supported"
    assert error(server, {"q": "x", **PAIR, "format": "xml"}) == "xml format is not supported"
    assert error(server, {"q": "x", "source": "en", "target": "de"}) == (
        "German (de) is not available as a target language from English (en)"
    )
    assert error(server, {"q": "x", **PAIR, "alternatives": 8}) == (
        "Invalid request: alternatives parameter must be <= 7"
    )
    assert error(server, {"q": "x"}, "/detect") == "this server detects no languages; start it with --detect FOLDER"
    with live({"de-en": tiny["de-en"]}, Settings(port=0, max_characters=5_000, grace_seconds=5.0)) as short:
        pair = {"source": "source", "target": "target"}
        assert error(short, {"q": "x" * 9_000, **pair}) == ("Invalid request: request (9000) exceeds text limit (5000)")
        assert error(short, {"q": ["x"] * 300, **pair}) == "Invalid request: request (300) exceeds text limit (256)"


def test_a_form_is_as_good_as_json(server: Live, tiny: Models):
    form = urlencode({"q": "The cat sat\nthe dog", **PAIR, "alternatives": "1", "alignment": "true", "split": "0"})
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    status, content, _ = server("/translate", raw=form.encode(), **kind)
    assert status == 200
    found = json.loads(content)
    assert found["translatedText"].split("\n") == tiny["de-en"].translate(["The cat sat", "the dog"])
    assert isinstance(found["alternatives"][0], str)
    assert len(found["alignment"]) == 2
    bad = urlencode({"q": "x", **PAIR, "alternatives": "many"}).encode()
    assert json.loads(server("/translate", raw=bad, **kind)[1]) == {
        "error": "Invalid request: alternatives parameter is not a number"
    }


def upload(name: str, content: bytes, **fields: str) -> tuple[bytes, dict[str, str]]:
    """A multipart form with a file."""
    parts = [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}'.encode() for key, value in fields.items()]
    parts.append(f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + content)
    body = b"".join(b"--frontier\r\n" + part + b"\r\n" for part in parts) + b"--frontier--\r\n"
    return body, {"Content_Type": "multipart/form-data; boundary=frontier"}


def test_a_file_is_translated_and_can_be_fetched(server: Live, tiny: Models):
    body, kind = upload("note.txt", b"The cat sat\n\nthe dog\n", **PAIR)
    status, content, _ = server("/translate_file", raw=body, **kind)
    assert status == 200, content
    address = json.loads(content)["translatedFileUrl"]
    assert address.startswith(f"{server.address}/download_file/")
    status, text, headers = server(urlsplit(address).path)
    assert text.decode().split("\n") == tiny["de-en"].translate(["The cat sat", "", "the dog", ""])
    assert headers["Content-Disposition"].startswith("attachment")
    page, kind = upload("page.HTML", b"<p>The cat sat</p>", **PAIR)
    address = json.loads(server("/translate_file", raw=page, **kind)[1])["translatedFileUrl"]
    _, text, headers = server(urlsplit(address).path)
    assert text.decode() == f"<p>{tiny['de-en'].translate('The cat sat')}</p>"
    assert "sandbox" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("note.exe", b"x", "Invalid request: file format not supported"),
        ("note", b"x", "Invalid request: file format not supported"),
        ("note.txt", b"a\xff", "Invalid request: the file is not UTF-8 at byte 1"),
    ],
)
def test_a_file_that_cannot_be_translated_is_refused(server: Live, name: str, content: bytes, why: str):
    body, kind = upload(name, content, **PAIR)
    status, said, _ = server("/translate_file", raw=body, **kind)
    assert (status, json.loads(said)) == (400, {"error": why})
    assert server("/download_file/../../etc/passwd")[0] == 404


def test_a_front_end_learns_what_it_needs(server: Live, locked: Live):
    found = server.json("/frontend/settings")
    assert (found["keyRequired"], found["charLimit"], found["filesTranslation"]) == (False, 50_000, True)
    assert found["language"]["source"] == {"code": "de", "name": "German"}
    assert server.json("/health") == {"status": "ok"}
    assert locked("/frontend/settings")[0] == 401
    assert json.loads(locked(f"/frontend/settings?api_key={KEY}")[1])["keyRequired"] is True


@pytest.fixture(scope="module")
def detecting(tiny: Models) -> Iterator[Live]:
    classifier = small(replace(MODELS["bert"], readout=Label(("de", "fr", "en")), auxiliary=None))
    models = {"de-en": tiny["de-en"], "fr-en": tiny["other"]}
    pairs = {"de-en": ("de", "en"), "fr-en": ("fr", "en")}
    with live(models, Settings(port=0, grace_seconds=5.0), languages=pairs, detector=classifier) as one:
        yield one


def test_a_language_is_detected_by_a_classifier(detecting: Live):
    found = LibreTranslateAPI(detecting.address).detect("The cat sat")
    assert {one["language"] for one in found} <= {"de", "fr", "en"}
    assert [one["confidence"] for one in found] == sorted((one["confidence"] for one in found), reverse=True)
    assert 0 <= found[0]["confidence"] <= 100


def test_auto_translates_from_the_likeliest_language_that_is_served(detecting: Live, tiny: Models):
    detected = [one["language"] for one in detecting.json("/detect", {"q": "The cat sat"})]
    likeliest = next(code for code in detected if code in ("de", "fr"))
    found = detecting.json("/translate", {"q": "The cat sat", "source": "auto", "target": "en"})
    assert found["detectedLanguage"]["language"] == likeliest
    model = tiny["de-en" if likeliest == "de" else "other"]
    assert found["translatedText"] == model.translate("The cat sat")


def test_the_model_of_the_pair_translates(detecting: Live, tiny: Models):
    for source, name in (("de", "de-en"), ("fr", "other")):
        found = detecting.json("/translate", {"q": "The cat sat", "source": source, "target": "en"})
        assert found == {"translatedText": tiny[name].translate("The cat sat")}


def test_a_request_is_answered_while_another_one_is_being_sent(server: Live):
    slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    slow.putrequest("POST", "/translate")
    slow.putheader("Content-Length", "100")
    slow.endheaders()
    slow.send(b'{"q": ')
    assert server.json("/translate", {"q": "The cat", **PAIR})
    slow.close()
