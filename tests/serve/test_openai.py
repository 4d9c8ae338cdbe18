"""The official `openai` client, unchanged, against a live server: completions, streams, embeddings, errors."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest

from regard.api import LoadedModel
from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.continuous import Partial
from regard.decode.options import Options
from regard.decode.stream import certain_text
from regard.serve.settings import Settings
from regard.serve.stream import Progress

from .conftest import KEY
from .live import Live, live

Models = dict[str, LoadedModel]


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="unused", max_retries=0) as found:
        yield found


def workers_of(server: Live, name: str) -> Any:
    """The workers of a served model."""
    return server.app.state.models[name].workers


def greedy(model: LoadedModel, prompt: str, tokens: int, **options: Any) -> str:
    """The continuation that the model gives alone."""
    asked = Options(max_tokens=tokens, **options).with_tokens_of(model.defaults())
    return model.continuations([prompt], asked)[0][0].text.removeprefix(prompt)


def test_a_completion_is_that_of_decoding_alone(client: openai.OpenAI, tiny: Models):
    found = client.completions.create(model="writer", prompt="The cat", max_tokens=9, temperature=0)
    assert found.choices[0].text == greedy(tiny["writer"], "The cat", 9)
    assert found.object == "text_completion"
    assert found.id.startswith("cmpl-")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (2, 9)
    assert found.choices[0].finish_reason == "length"


def test_a_sample_is_that_of_the_command_line_with_the_same_seed(client: openai.OpenAI, tiny: Models):
    found = client.completions.create(
        model="writer", prompt="The cat", max_tokens=12, temperature=0.9, top_p=0.8, seed=7
    )
    alone = tiny["writer"].generate("The cat", max_tokens=12, temperature=0.9, top_p=0.8, seed=7)
    assert found.choices[0].text == alone.removeprefix("The cat")


def test_samples_differ_unless_they_share_a_seed(client: openai.OpenAI):
    asked: dict[str, Any] = {"model": "writer", "prompt": "The cat", "max_tokens": 16}
    assert len({client.completions.create(**asked).choices[0].text for _ in range(4)}) > 1
    assert len({client.completions.create(**asked, seed=3).choices[0].text for _ in range(3)}) == 1


def test_several_prompts_have_n_choices_each_in_order(client: openai.OpenAI, tiny: Models):
    prompts = ["The cat", "A dog ran"]
    found = client.completions.create(model="writer", prompt=prompts, n=2, max_tokens=4, temperature=0)
    texts = [greedy(tiny["writer"], prompt, 4) for prompt in prompts]
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in found.choices] == [texts[0], texts[0], texts[1], texts[1]]


def test_token_ids_are_prompts_too(client: openai.OpenAI, tiny: Models):
    ids = tiny["writer"].tokenizer.encode("The cat")
    asked: dict[str, Any] = {"model": "writer", "max_tokens": 6, "temperature": 0}
    expected = greedy(tiny["writer"], "The cat", 6)
    assert client.completions.create(prompt=ids, **asked).choices[0].text == expected
    both = client.completions.create(prompt=[ids, ids], **asked)
    assert [choice.text for choice in both.choices] == [expected, expected]


def test_best_of_returns_the_likeliest_samples(client: openai.OpenAI):
    asked: dict[str, Any] = {"model": "writer", "prompt": "The", "max_tokens": 8, "seed": 5, "logprobs": 0}
    samples = client.completions.create(n=6, **asked).choices
    best = client.completions.create(n=2, best_of=6, **asked).choices
    means = {choice.text: sum(values := choice.logprobs.token_logprobs) / len(values) for choice in samples}
    assert [choice.text for choice in best] == sorted(means, key=lambda text: -means[text])[:2]


def test_a_prompt_for_a_translator_is_its_source(client: openai.OpenAI, tiny: Models):
    found = client.completions.create(model="de-en", prompt=["The cat sat", "the dog"], n=2)
    model = tiny["de-en"]
    options = replace(model.defaults(), n_best=2)
    alone = [text.text for texts in model.translations(["The cat sat", "the dog"], options) for text in texts]
    assert [choice.text for choice in found.choices] == alone


def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI):
    asked: dict[str, Any] = {"model": "writer", "prompt": ["The cat", "A dog"], "max_tokens": 14, "seed": 1, "n": 2}
    whole = [choice.text for choice in client.completions.create(**asked).choices]
    texts, ended = [""] * 4, [None] * 4
    usage = None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert ended[choice.index] is None
            texts[choice.index] += choice.text
            ended[choice.index] = choice.finish_reason
    assert texts == whole
    assert set(ended) <= {"stop", "length"}
    assert usage is not None
    assert usage.completion_tokens == 4 * 14


def test_a_stream_sends_tokens_before_the_last_one_is_known(server: Live):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"model": "endless", "prompt": "The", "max_tokens": 3_000, "stream": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body))
    reply = connection.getresponse()
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    steps = workers_of(server, "endless").steps
    first = reply.readline()
    assert json.loads(first.removeprefix(b"data: "))["choices"][0]["finish_reason"] is None
    assert workers_of(server, "endless").steps < steps + 2_000
    connection.close()


def test_a_translation_is_streamed_as_it_is_decoded(server: Live, tiny: Models):
    eos = tiny["de-en"].target_tokenizer.eos
    body = {"model": "de-en", "prompt": "The cat", "max_tokens": 1_500, "stream": True, "temperature": 0, "beam": 1}
    connection, worker = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60), workers_of(server, "de-en")
    steps = worker.steps
    connection.request("POST", "/v1/completions", json.dumps({**body, "logit_bias": {str(eos): -100}}))
    reply = connection.getresponse()
    for _ in range(3):
        while not (line := reply.readline()).startswith(b"data: "):
            assert line
        assert json.loads(line.removeprefix(b"data: "))["choices"][0]["finish_reason"] is None
        assert worker.steps < steps + 1_500
    connection.close()


def test_the_tokens_of_a_stream_are_those_of_the_whole(client: openai.OpenAI):
    asked: dict[str, Any] = {"model": "endless", "prompt": "The cat é", "max_tokens": 300, "seed": 3, "logprobs": 2}
    whole = client.completions.create(**asked, temperature=1.5).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, temperature=1.5, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [one for chunk in chunks for one in getattr(chunk.logprobs, name)] == getattr(whole.logprobs, name), name


def test_a_stream_reads_its_text_once_not_once_per_token(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    decode = Tokenizer.decode_with_offsets

    def counted(self: Tokenizer, ids: Any, *given: Any) -> Any:
        read.append(len(ids))
        return decode(self, ids, *given)

    monkeypatch.setattr(Tokenizer, "decode_with_offsets", counted)
    asked: dict[str, Any] = {"model": "endless", "prompt": "The cat", "max_tokens": 400, "temperature": 0}
    list(client.completions.create(**asked, logprobs=2, stream=True))
    assert len(read) > 3  # else all tokens came at once
    assert sum(read) < 400 + 2 + 20 * len(read)


def test_tokens_that_nobody_reads_are_told_once():
    async def run() -> None:
        progress, told = Progress(), []
        progress.loop = SimpleNamespace(call_soon_threadsafe=told.append)  # type: ignore[assignment]
        for count in range(1, 5):
            progress.on_token(0, Partial((1,) * count, None))
        progress.on_token(1, Partial((7,), None))
        assert len(told) == 1
        assert {row: partial.tokens for row, partial in progress.take().items()} == {0: (1,) * 4, 1: (7,)}
        progress.on_token(0, Partial((1,) * 5, None))
        assert len(told) == 2

    asyncio.run(run())


def test_a_stop_string_ends_a_text_and_is_never_streamed(client: openai.OpenAI, tiny: Models):
    whole = greedy(tiny["writer"], "The cat", 24)
    stop = whole[6:9]
    asked: dict[str, Any] = {"model": "writer", "prompt": "The cat", "max_tokens": 24, "temperature": 0}
    found = client.completions.create(**asked, stop=stop)
    assert found.choices[0].text == whole[: whole.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    chunks = [chunk.choices[0].text for chunk in client.completions.create(**asked, stop=[stop], stream=True)]
    assert "".join(chunks) == whole[: whole.index(stop)]


def test_text_that_the_next_token_may_change_is_held_back():
    assert certain_text("one two", ()) == "one two"
    assert certain_text("half a character \ufffd", ()) == "half a character "
    assert certain_text("so far EN", ("END", "x")) == "so far "
    assert certain_text("so far E", ("END", "ER")) == "so far "
    assert certain_text("so far END and more", ("END",)) == "so far "
    assert certain_text("END", ("END",)) == ""
    assert certain_text("no END", ("NDX",)) == "no E"


def test_logprobs_name_every_token_and_the_best_few_in_its_place(client: openai.OpenAI):
    found = client.completions.create(model="writer", prompt="The cat", max_tokens=5, temperature=0, logprobs=3)
    logprobs = found.choices[0].logprobs
    assert "".join(logprobs.tokens) == found.choices[0].text
    assert [found.choices[0].text[offset:].startswith(token) for offset, token in
            zip(logprobs.text_offset, logprobs.tokens)] == [True] * 5  # fmt: skip
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert len(top) in (3, 4)
        assert top[token] == pytest.approx(value)
        assert max(top.values()) == pytest.approx(value)  # greedy


def test_an_echoed_prompt_is_scored_without_generating(client: openai.OpenAI, tiny: Models):
    text = "The cat sat on the mat."
    found = client.completions.create(model="writer", prompt=text, max_tokens=0, echo=True, logprobs=0)
    scored = tiny["writer"].scores([text])[0]
    assert found.choices[0].text == text
    assert "".join(found.choices[0].logprobs.tokens) == text
    values = [value for _, value in scored.tokens][:-1]  # without the end token
    assert found.choices[0].logprobs.token_logprobs == pytest.approx(values, abs=1e-4)
    assert found.usage.completion_tokens == 0


def test_an_echoed_prompt_and_its_completion_have_one_list_of_tokens(client: openai.OpenAI):
    asked: dict[str, Any] = {"model": "writer", "prompt": "The cat", "max_tokens": 3, "temperature": 0, "logprobs": 1}
    whole = client.completions.create(**asked, echo=True).choices[0]
    added = client.completions.create(**asked).choices[0]
    assert whole.text == "The cat" + added.text
    assert whole.logprobs.tokens == ["The", " cat", *added.logprobs.tokens]
    assert whole.logprobs.text_offset[2:] == [7 + offset for offset in added.logprobs.text_offset]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, echo=True, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.logprobs.tokens] == whole.logprobs.tokens


def test_a_bias_decides_and_penalties_forbid_repetition(client: openai.OpenAI, tiny: Models):
    token = tiny["writer"].tokenizer.encode("cat")[-1]
    asked: dict[str, Any] = {"model": "writer", "prompt": "The", "max_tokens": 6, "temperature": 0}
    chosen = client.completions.create(**asked, logit_bias={str(token): 100}).choices[0].text
    assert chosen == tiny["writer"].tokenizer.decode([token] * 6)
    barred = client.completions.create(**asked, logit_bias={str(token): 100}, presence_penalty=2, frequency_penalty=2)
    assert barred.choices[0].text == chosen  # 100 outweighs 2 + 6 x 2
    logprobs = client.completions.create(**{**asked, "max_tokens": 30}, frequency_penalty=2, logprobs=0).choices[0]
    plain = client.completions.create(**{**asked, "max_tokens": 30}, logprobs=0).choices[0]
    assert len(set(logprobs.logprobs.tokens)) > len(set(plain.logprobs.tokens))


def test_a_gap_before_a_suffix_is_filled(client: openai.OpenAI, tiny: Models):
    found = client.completions.create(model="filler", prompt="The ", suffix=" sat on the mat.", n=2)
    expected = tiny["filler"].fill("The [MASK] sat on the mat.", top=2).masks[0]
    assert [choice.text for choice in found.choices] == [fill.text for fill in expected]
    spans = client.completions.create(model="spans", prompt="The ", suffix=" sat on the mat.")
    assert spans.choices[0].text == tiny["spans"].fill("The <extra_id_0> sat on the mat.", top=1).masks[0][0].text


def test_embeddings_are_those_of_the_model(client: openai.OpenAI, tiny: Models):
    texts = ["The cat sat", "A dog"]
    expected = tiny["filler"].embed(texts)
    found = client.embeddings.create(model="filler", input=texts)  # the client asks for base64
    assert np.allclose([one.embedding for one in found.data], expected, atol=1e-5)
    floats = client.embeddings.create(model="filler", input="The cat sat", encoding_format="float", dimensions=3)
    assert floats.data[0].embedding == pytest.approx(expected[0][:3].tolist(), abs=1e-5)


def test_base64_is_little_endian_floats(server: Live, tiny: Models):
    body = {"model": "filler", "input": "The cat", "encoding_format": "base64"}
    raw = base64.b64decode(server.json("/v1/embeddings", body)["data"][0]["embedding"])
    values = struct.unpack(f"<{len(raw) // 4}f", raw)
    assert values == pytest.approx(tiny["filler"].embed(["The cat"])[0].tolist(), abs=1e-5)


def test_the_models_are_listed_with_what_they_can_do(client: openai.OpenAI, tiny: Models):
    assert [model.id for model in client.models.list()] == list(tiny)
    card = client.models.retrieve("de-en").model_dump()
    assert (card["capabilities"][0], card["languages"]) == ("translate", ["de", "en"])


def test_texts_are_scored_filled_and_classified(server: Live, tiny: Models):
    scored = server.json("/v1/score", {"model": "writer", "input": ["The cat"]})["data"][0]
    assert scored["score"] == pytest.approx(tiny["writer"].score(["The cat"])[0], abs=1e-4)
    pair = server.json("/v1/score", {"model": "de-en", "input": "The cat", "target": "the dog"})["data"][0]
    assert pair["score"] == pytest.approx(tiny["de-en"].score(["The cat"], ["the dog"])[0], abs=1e-4)
    filled = server.json("/v1/fill", {"model": "filler", "input": "The [MASK] sat", "top": 2})["data"][0]
    assert filled["text"] == tiny["filler"].fill("The [MASK] sat").text
    assert len(filled["masks"][0]) == 2
    label = server.json("/v1/classify", {"model": "labels", "input": ["The cat", "dog"]})["data"][1]
    assert label["label"] == tiny["labels"].classify(["dog"])[0].label  # type: ignore[union-attr]
    assert sum(label["probabilities"].values()) == pytest.approx(1.0)


REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"n": 5_000_000}, "n", "n must be 1 to 8, got 5000000"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"best_of": 9}, "best_of", "best_of must be 1 to 8, got 9"),
    ({"n": 3, "best_of": 2}, "best_of", "at least n"),
    ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    ({"max_tokens": 10**9}, "max_tokens", "max_tokens must be 0 to 4,096, got 1000000000"),
    ({"max_tokens": 300}, "max_tokens", "prompt 3 + max_tokens 300 = 303 tokens, limit 64"),
    ({"temperature": 1e308}, "temperature", "less than or equal to 100"),
    ({"temperature": "hot"}, "temperature", "valid number"),
    ({"top_p": -1}, "top_p", "greater than or equal to 0"),
    ({"logprobs": 99}, "logprobs", "logprobs must be 0 to 20, got 99"),
    ({"stop": ["x"] * 17}, "stop", "stop holds 17 texts, limit 16"),
    ({"stop": "x" * 1000}, "stop", "1 to 200 characters"),
    ({"stop": ""}, "stop", "1 to 200 characters"),
    ({"seed": 2**64}, "seed", "less than or equal"),
    ({"logit_bias": {"999999": 1}}, "logit_bias", "outside of 0 to"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "logit_bias must be -100.0 to 100.0, got 101"),
    ({"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
    ({"prompt": []}, "prompt", "empty list"),
    ({"prompt": [99999]}, "prompt", "outside of 0 to"),
    ({"prompt": ["x"] * 300}, "prompt", "prompt holds 300 texts, limit 256"),
    ({"prompt": ["x"] * 256, "n": 8}, "texts x choices", "must be 1 to 512, got 2048"),
    ({"prompt": "x" * 50_001}, "prompt", "50,001 characters, limit 50,000"),
    ({"prompt": "a\ud83d"}, "prompt", "unpaired surrogate (U+D83D) at position 1"),
    ({"beam": 2, "temperature": 1}, "beam", "for a search"),
    ({"temperature": 0, "top_k": 3}, "top_k", "for sampling"),
    ({"suffix": "x"}, "model", "does not fill gaps"),
    ({"stream": True, "best_of": 2}, "best_of", "known only at the end"),
    ({"model": "de-en", "echo": True}, "echo", "for language models"),
    ({"model": "labels"}, "model", "does not complete text; it can classify, embed"),
    ({"functions": []}, "functions", "is not known here"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "for a stream"),
]


@pytest.mark.parametrize(("asked", "param", "why"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_parameter_that_cannot_be_honoured_is_refused_by_name(
    server: Live, asked: dict[str, Any], param: str, why: str
):
    status, content, _ = server("/v1/completions", {"model": "writer", "prompt": "The cat", **asked})
    error = json.loads(content)["error"]
    assert (status, error["param"]) == (400, param), error
    assert why in error["message"]
    assert error["type"] == "invalid_request_error"


def test_errors_are_those_that_the_client_knows(client: openai.OpenAI, locked: Live):
    with pytest.raises(openai.NotFoundError, match="model 'gpt-9' is not served here; available: de-en") as unknown:
        client.completions.create(model="gpt-9", prompt="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="writer", prompt="x", n=99)
    assert bad.value.param == "n"
    wrong = openai.OpenAI(base_url=f"{locked.address}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="missing or wrong API key"):
        wrong.models.list()
    right = openai.OpenAI(base_url=f"{locked.address}/v1", api_key=KEY, max_retries=0)
    assert len(list(right.models.list())) == 7


def test_a_full_queue_is_429_with_retry_after(tiny: Models):
    with live({"writer": tiny["writer"]}, Settings(port=0, max_waiting=2, grace_seconds=5.0)) as server:
        worker, release = server.app.state.models["writer"].workers, threading.Event()

        def wait(_: LoadedModel, items: list[int]) -> list[bool]:
            return [release.wait(60) for _ in items]

        jobs = [worker.run(wait, [0])]
        while worker.waiting:
            time.sleep(0.001)
        jobs += [worker.run(wait, [0]), worker.run(wait, [0])]
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="unused", max_retries=0)
        with pytest.raises(openai.RateLimitError, match="2 requests waiting, limit 2") as refused:
            client.completions.create(model="writer", prompt="The")
        assert refused.value.response.headers["retry-after"] == "3"
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="writer", prompt="The", stream=True)
        assert server("/translate", {"q": "x", "source": "source", "target": "target"})[0] == 400  # no translator
        release.set()
        assert [job.future.result(60) for job in jobs] == [[True]] * 3
        assert client.completions.create(model="writer", prompt="The", max_tokens=1).choices


def test_a_model_that_fails_answers_500_with_an_id_and_serves_on(tiny: Models, monkeypatch: pytest.MonkeyPatch):
    with live({"writer": tiny["writer"]}, Settings(port=0, grace_seconds=5.0)) as server:
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="unused", max_retries=0)

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a secret: /home/somebody/model")

        monkeypatch.setattr(server.app.state.models["writer"].model, "embed", broken)
        with pytest.raises(openai.InternalServerError, match=r"internal error, id [0-9a-f]+; see server log") as error:
            client.embeddings.create(model="writer", input="x")
        assert "secret" not in str(error.value)
        assert client.completions.create(model="writer", prompt="The", max_tokens=1).choices
