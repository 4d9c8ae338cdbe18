"""A window over long documents, against its definition: every token said alone, from the tokens it may see."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regard.data.read.corpus import Corpus
from regard.data.tokenize.train import Byte
from regard.errors import InputError
from regard.evaluation import sliding_window as module
from regard.evaluation.evaluate import evaluate
from regard.evaluation.sliding_window import Segments, SlidingWindow, document_losses, reading_mode
from regard.layers.positions import Learned, Rotary
from regard.models import zoo
from regard.store.loading import TRAINED_LENGTH
from tests.small import small

BYTES = Byte().train([])
CORPUS = Corpus(["a rather long document, forty bytes or so", "", "né", "x", "seven b", "eight by"], None, ("text",))


def reader(position: Learned | Rotary):
    return small(zoo.gpt2(16, 1, 2, position=position), (BYTES,))


def defined(model, text: str, length: int, stride: int) -> list[float]:
    """The loss of each token: the window that says it first begins at a multiple of the stride."""
    row = [BYTES.bos, *BYTES.encode(text), BYTES.eos]
    losses = []
    for place in range(len(row) - 1):
        start = 0
        while start + length <= place:
            start += stride
        seen = row[start : place + 1]
        assert place < length or len(seen) > length - stride
        with torch.no_grad():
            logits = model.network(torch.tensor([seen]))[0, -1].double().log_softmax(-1)
        losses.append(-float(logits[row[place + 1]]))
    return losses


@pytest.mark.parametrize(("window", "stride"), [(8, 4), (8, 1), (8, 8), (8, 3), (5, 2), (1, 1), (64, 7)])
def test_every_token_is_said_once_with_what_the_window_shows(window: int, stride: int):
    model = reader(Rotary())
    found = evaluate(model, CORPUS, window=window, stride=stride)
    losses = [defined(model, text, window, stride) for text in CORPUS.sources if text]
    total, tokens = sum(map(sum, losses)), sum(map(len, losses))
    assert (found.tokens, found.dropped) == (tokens, {"empty": 1})
    assert found.loss == pytest.approx(total / tokens, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(total / tokens), rel=1e-4)
    size = sum(len(text.encode()) for text in CORPUS.sources)
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / size, rel=1e-5)


def test_a_window_is_what_the_model_reads_and_moves_on_by_half():
    model = reader(Learned(10))
    assert SlidingWindow.of(model) == SlidingWindow(10, 5)
    assert SlidingWindow.of(reader(Rotary())) == SlidingWindow(512, 256)
    taught = reader(Rotary())
    taught.config[TRAINED_LENGTH] = 20
    assert SlidingWindow.of(taught) == SlidingWindow(20, 10)
    assert SlidingWindow.of(taught, 40) == SlidingWindow(40, 20)
    expected = [sum(defined(model, text, 10, 5)) if text else 0.0 for text in CORPUS.sources]
    losses, tokens = document_losses(model, CORPUS)
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)
    assert tokens == evaluate(model, CORPUS).tokens


def test_batches_do_not_change_a_loss(monkeypatch):
    model = reader(Learned(6))
    together, _ = document_losses(model, CORPUS)
    monkeypatch.setattr(module, "_BATCH_TOKENS", 1)
    np.testing.assert_allclose(document_losses(model, CORPUS)[0], together, rtol=1e-5)


def test_a_smaller_stride_shows_more_and_costs_no_token():
    model = reader(Learned(8))
    found = [evaluate(model, CORPUS, stride=stride) for stride in (1, 4, 8)]
    assert len({one.tokens for one in found}) == 1
    assert len({round(one.loss, 6) for one in found}) == 3


def test_what_cannot_be_a_window_is_refused():
    model = reader(Learned(8))
    with pytest.raises(InputError, match=r"window of 9 tokens is not possible \(--window\). This model reads 1 to 8"):
        evaluate(model, CORPUS, window=9)
    with pytest.raises(InputError, match=r"stride of 9 tokens is not possible \(--stride\). Use 1 to 8"):
        evaluate(model, CORPUS, stride=9)
    with pytest.raises(InputError, match="Leave out --window and --stride"):
        evaluate(small(zoo.transformer(16, 1, 2)), Corpus(["a"], ["b"], ("pairs",)), stride=2)


def test_a_text_without_a_word_is_refused():
    with pytest.raises(InputError, match="0 usable documents of 2"):
        evaluate(reader(Rotary()), Corpus(["", ""], None, ("text",)))


def test_progress_tells_of_every_document_once():
    done: list[float] = []
    evaluate(reader(Learned(6)), CORPUS, progress=done.append)
    assert sum(done) == pytest.approx(len(CORPUS))


ENDLESS = {"sha-rnn": zoo.sha_rnn(16, 2, window=7), "lstm": zoo.lstm_lm(16, 2)}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("piece", [1, 4, 256])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_model_that_remembers_reads_every_document_once(monkeypatch, name: str, piece: int, rows: int):
    model = small(ENDLESS[name], (BYTES,))
    monkeypatch.setattr(module, "_BATCH_TOKENS", rows * piece)
    monkeypatch.setattr(module, "reading_mode", lambda model: Segments(piece))
    done: list[float] = []
    losses, tokens = document_losses(model, CORPUS)
    expected = [sum(defined(model, text, 100, 1)) if text else 0.0 for text in CORPUS.sources]
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)
    monkeypatch.undo()
    found = evaluate(model, CORPUS, progress=done.append)
    assert found.loss * found.tokens == pytest.approx(sum(expected), rel=1e-5)
    assert (found.tokens, sum(done)) == (tokens, pytest.approx(len(CORPUS)))


def test_a_window_that_is_asked_for_is_used_whatever_the_model():
    model = small(ENDLESS["lstm"], (BYTES,))
    assert reading_mode(model) == Segments()
    found = evaluate(model, CORPUS, window=8, stride=4)
    total = sum(sum(defined(model, text, 8, 4)) for text in CORPUS.sources if text)
    assert found.loss * found.tokens == pytest.approx(total, rel=1e-5)
    assert found.loss != pytest.approx(evaluate(model, CORPUS).loss, rel=1e-4)
