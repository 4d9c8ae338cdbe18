"""Confidence per word and alternatives for a word, against forced decoding and their definition: no cache, no batch."""

from __future__ import annotations

import math

import pytest
import torch

from regard.api import LoadedModel
from regard.data.tokenize.tokenizer import Tokenizer, word_offsets
from regard.data.tokenize.train import BPE, Byte, Character, Word
from regard.decode import alternatives as module
from regard.decode.alternatives import Alternative, alternative_requests, completion_options, word_confidences
from regard.decode.generate import generate_texts
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.positions import Learned
from regard.models import zoo
from tests.laws.zoo import LANGUAGE_MODELS, TRANSLATORS
from tests.small import TEXTS, WORDPIECE, small

SOURCE, TARGET = TEXTS[0], "the dog sat on the mat"
WORDS: Tokenizer = Word(40).train([TARGET, *(f"x {text}" for text in TEXTS)])
MODELS = {
    **{name: TRANSLATORS[name] for name in ("transformer", "luong", "bahdanau", "convs2s", "t5", "reversible")},
    **{name: LANGUAGE_MODELS[name] for name in ("gpt2", "lstm-lm", "sha-rnn", "reformer")},
}


def texts_for(model: LoadedModel) -> tuple[str, str]:
    """A source and its translation, or a prompt and the text that begins with it."""
    return ("the dog", TARGET) if model.shape == "decoder" else (SOURCE, TARGET)


def words_of(text: str) -> list[str]:
    return [text[start:end] for start, end in word_offsets(text)]


def next_values(model: LoadedModel, text: str, ids: list[int]) -> list[float]:
    """The log-probability of every next token after these tokens, from one isolated pass."""
    row, source = torch.tensor([[model.target_tokenizer.bos, *ids]]), None
    with torch.no_grad():
        if model.shape != "decoder":
            source_ids = [*model.tokenizer.encode(text), model.tokenizer.eos]
            source = model.network.encode_source(torch.tensor([source_ids]))
        states, _ = model.network.decode(row, Context(source=source))
        return model.network.readout(states[0, -1]).log_softmax(-1).tolist()


def defined_words(model: LoadedModel, text: str, prefix: list[int], at: int) -> dict[str, float]:
    """Every word that some first token begins, completed greedily, with the probability of its best tokens."""
    tokenizer, found = model.target_tokenizer, {}
    before = words_of(tokenizer.decode(prefix))
    for token, first in enumerate(next_values(model, text, prefix)):
        ids, total = [*prefix, token], first
        if token == tokenizer.eos or words_of(tokenizer.decode(ids))[:at] != before:
            continue
        for _ in range(32):
            values = next_values(model, text, ids)
            best = values.index(max(values))
            longer = words_of(tokenizer.decode([*ids, best]))
            if best == tokenizer.eos or longer[:at] != before or len(longer) > at + 1:
                words = words_of(tokenizer.decode(ids))
                if len(words) == at + 1:
                    found[words[at]] = max(found.get(words[at], 0.0), math.exp(total))
                break
            ids, total = [*ids, best], total + values[best]
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokenizer", [WORDS, WORDPIECE], ids=["words", "pieces"])
def test_the_best_words_are_those_of_the_definition(name: str, tokenizer: Tokenizer):
    model = small(MODELS[name], (tokenizer,))
    text, given = texts_for(model)
    prefix = tokenizer.encode(" ".join(given.split()[:2]))
    expected = defined_words(model, text, prefix, 2)
    found = model.alternatives(text, given, 2, count=len(expected), options=Options(max_tokens=4))
    assert {one.word: one.probability for one in found} == pytest.approx(expected, rel=1e-3)
    assert [one.probability for one in found] == sorted((one.probability for one in found), reverse=True)
    few = model.alternatives(text, given, 2, count=3, options=Options(max_tokens=4))
    assert [one.word for one in few] == sorted(expected, key=lambda word: -expected[word])[:3]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokenizer", [WORDS, WORDPIECE], ids=["words", "pieces"])
def test_the_prefix_and_the_word_are_honoured_at_every_word(name: str, tokenizer: Tokenizer):
    model = small(MODELS[name], (tokenizer,))
    text, given = texts_for(model)
    for at in range(len(given.split())):
        found = model.alternatives(text, given, at, options=Options(beam=2, max_tokens=5))
        assert len({one.word for one in found}) == len(found) > 1
        for one in found:
            assert words_of(one.text)[: at + 1] == [*given.split()[:at], one.word]


@pytest.mark.parametrize("name", MODELS)
def test_the_probability_of_a_word_is_that_of_forced_decoding(name: str):
    model = small(MODELS[name])
    text, given = texts_for(model)
    for one in model.alternatives(text, given, 3, options=Options(max_tokens=4)):
        start = [*given.split()[:3], one.word]
        longer = (" ".join(start),) if model.shape == "decoder" else (text, " ".join(start))
        scored = model.scores(*([part] for part in longer))[0].tokens
        prefix = len(WORDPIECE.encode(" ".join(start[:-1])))
        ids = WORDPIECE.encode(" ".join(start))
        assert one.probability == pytest.approx(
            math.exp(sum(value for _, value in scored[prefix : len(ids)])), rel=1e-3
        )


def test_confidence_is_the_geometric_mean_of_forced_decoding_and_keeps_the_numbers_of_words():
    model = small(zoo.transformer(16, 2, 2))
    given = TEXTS[3]
    found, scored = model.confidences(SOURCE, given), model.scores([SOURCE], [given])[0].tokens
    assert [one.word for one in found] == [given[one.start : one.end] for one in found] == given.split()
    encoded = WORDPIECE.encode_with_offsets(given)
    for one in found:
        values = [scored[index][1] for index, (start, _) in enumerate(encoded.offsets) if one.start <= start < one.end]
        assert values
        assert one.probability == pytest.approx(math.exp(sum(values) / len(values)), rel=1e-4)


def test_confidence_of_a_language_model_counts_the_words_of_the_prompt_too():
    model = small(zoo.gpt2(16, 2, 2, position=Learned(64)))
    found = model.confidences("the dog", TARGET)
    assert [one.word for one in found] == TARGET.split()
    assert found[0].probability == pytest.approx(math.exp(model.scores([TARGET])[0].tokens[0][1]), rel=1e-4)
    assert model.confidences("", "") == []


def test_confidence_from_tokens_is_that_of_their_text():
    tokenizer = BPE(300).train(TEXTS * 4)
    model = small(zoo.luong(16, 1), (tokenizer,))
    ids = tokenizer.encode(TARGET)
    values = [value for _, value in model.scores([SOURCE], [TARGET])[0].tokens[: len(ids)]]
    assert word_confidences(tokenizer, ids, values) == pytest.approx(model.confidences(SOURCE, TARGET))
    with pytest.raises(InputError, match="give one per token"):
        word_confidences(tokenizer, ids, values[1:])


def test_unspaced_text_has_a_word_per_character():
    tokenizer = Character().train(["今日は良い天気です。", *TEXTS])
    model = small(zoo.transformer(16, 1, 2), (tokenizer,))
    assert [one.word for one in model.confidences(SOURCE, "今日は")] == ["今", "日", "は"]
    for one in model.alternatives(SOURCE, "今日は", 1, options=Options(max_tokens=3)):
        assert one.text.startswith(f"今{one.word}")


def test_a_token_never_makes_the_word_before_longer():
    tokenizer = BPE(300).train(TEXTS * 4)
    model = small(zoo.transformer(16, 1, 2), (tokenizer,))
    table = model.network.readout.lm_head.weight
    with torch.no_grad():  # continuations without a space become the most likely tokens
        for token in range(tokenizer.vocabulary):
            table[token] *= 0.1 if tokenizer.decode([tokenizer.encode("a")[0], token]).startswith("a ") else 3.0
    for one in model.alternatives(SOURCE, TARGET, 2):
        assert one.text.startswith("the dog ")


def test_requests_can_be_run_by_anybody():
    model = small(zoo.transformer(16, 1, 2), (WORDS,))
    options = Options(beam=3, temperature=0.0, max_tokens=6)
    found = alternative_requests(model.network, model.tokenizers, SOURCE, TARGET, 1, options, count=4)
    generated = generate_texts(model.network, WORDS, [one.request for one in found], completion_options(options))
    answers = [one.answer(texts[0]) for one, texts in zip(found, generated)]
    assert answers == model.alternatives(SOURCE, TARGET, 1, 4, options=options)
    assert all(isinstance(one, Alternative) for one in answers)


def test_a_word_after_which_the_text_ends_ends_the_text():
    model = small(zoo.transformer(16, 1, 2), (WORDS,))
    table = model.network.readout.lm_head.weight
    with torch.no_grad():
        table[WORDS.eos] = table.mean(dim=0) * 0
        table *= 0.001
    readout = model.network.readout
    original, calls = readout.forward, []

    def ends_always(states, *rest):
        calls.append(1)
        values = original(states, *rest)
        values[..., WORDS.eos] += 10
        return values

    readout.forward = ends_always
    for one in model.alternatives(SOURCE, TARGET, 2):
        assert words_of(one.text) == ["the", "dog", one.word]
    assert calls
    requests = alternative_requests(model.network, model.tokenizers, SOURCE, TARGET, 2, Options())
    assert [one.request.max_tokens for one in requests] == [0] * 5


def test_suppressed_tokens_are_no_alternatives_and_do_not_continue_one():
    model = small(zoo.transformer(16, 1, 2))
    free = model.alternatives(SOURCE, TARGET, 2, options=Options(max_tokens=4))
    banned = tuple(WORDPIECE.encode(free[0].word))
    rest = model.alternatives(SOURCE, TARGET, 2, options=Options(max_tokens=4, suppress_tokens=banned))
    assert free[0].word not in [one.word for one in rest]

    def later_tokens(options: Options) -> list[int]:
        found = alternative_requests(model.network, model.tokenizers, SOURCE, TARGET, 2, options)
        return [token for one in found for token in one.request.prompt[4:]]

    assert (common := later_tokens(Options()))
    assert not {*common} & {*later_tokens(Options(suppress_tokens=tuple({*common})))}


def test_a_full_context_leaves_no_room_to_complete():
    model = small(zoo.gpt2(16, 1, 2, position=Learned(8)), (WORDS,))
    prompt = "the dog sat on the mat"
    for one in model.alternatives("the", prompt, 5):
        assert words_of(one.text)[:6] == [*prompt.split()[:5], one.word]


def test_endless_words_are_left_out(monkeypatch: pytest.MonkeyPatch):
    model = small(zoo.transformer(16, 1, 2), (Byte().train([]),))
    monkeypatch.setattr(module, "_TOKENS_PER_WORD", 4)
    for one in model.alternatives(SOURCE, TARGET, 2):
        assert words_of(one.text)[2] == one.word


def test_a_word_can_be_named_instead_of_numbered():
    model = small(zoo.transformer(16, 1, 2))
    text = "the cat, the dog."
    for word, number in (("the", 0), ("cat,", 1), ("cat", 1), ("dog", 3)):
        assert model.alternatives(SOURCE, text, word) == model.alternatives(SOURCE, text, number)
    for word in ("bird", "", "do", "cat dog"):
        with pytest.raises(InputError, match=rf'there is no word "{word}" in '):
            model.alternatives(SOURCE, text, word)


def test_what_cannot_be_answered_is_refused():
    model = small(zoo.transformer(16, 1, 2))
    for at in (-1, 6):
        with pytest.raises(InputError, match=rf"has 6 words, counted from 0; there is no word {at} "):
            model.alternatives(SOURCE, TARGET, at)
    with pytest.raises(InputError, match="count must be 1 or more"):
        model.alternatives(SOURCE, TARGET, 0, count=0)
    with pytest.raises(InputError, match="does not begin with its prompt"):
        small(zoo.gpt2(16, 1, 2)).alternatives("a cat", TARGET, 0)
    for ask in ("confidences", "alternatives"):
        with pytest.raises(InputError, match=f"does not decode, so it has no {ask}; it was made to fill"):
            getattr(small(zoo.bert(16, 1, 2)), ask)(SOURCE, TARGET, *([0] if ask == "alternatives" else []))
    with pytest.raises(InputError, match="the generated text has 101 tokens, this model reads 64"):
        small(zoo.gpt2(16, 1, 2, position=Learned(64))).confidences("the", "the " * 100)
