"""Mask filling: masks in texts, predictions for them, and the filled text."""

from __future__ import annotations

import pytest
import torch

from regard.data.tokenize.tokenizer import SpecialTokens, Tokenizer
from regard.data.tokenize.train import BPE, Byte, Character, Word, WordPiece
from regard.decode.fill import Fill, Masks, _parse_spans
from regard.errors import InputError
from regard.models import zoo
from tests.small import TEXTS, WORDPIECE, small

BERT = zoo.bert(16, 2, 2, max_positions=64)
PAIRS = BPE(290).train(TEXTS * 4)


def test_a_mask_is_filled_by_the_softmax_of_its_logits():
    model = small(BERT)
    ids = WORDPIECE.encode("the dog sat")
    ids[1] = WORDPIECE.mask
    with torch.no_grad():
        logits = model.network(torch.tensor([[WORDPIECE.bos, *ids, WORDPIECE.eos]]))[0, 2]
    probabilities = logits.softmax(-1)
    found = model.fill("the [MASK] sat", top=WORDPIECE.vocabulary)
    (choices,) = found.masks
    assert len(choices) == WORDPIECE.vocabulary - 5
    for choice in choices:
        assert choice.probability == pytest.approx(float(probabilities[choice.tokens[0]]), rel=1e-4)
        assert choice.text == WORDPIECE.decode(choice.tokens)
    assert [choice.probability for choice in choices] == sorted((c.probability for c in choices), reverse=True)


def test_several_masks_in_one_text_are_filled_independently():
    model = small(BERT)
    found = model.fill("[MASK] dog <mask> the mat", top=2)
    dog, mat = WORDPIECE.encode("dog"), WORDPIECE.encode("the mat")
    row = [WORDPIECE.bos, WORDPIECE.mask, *dog, WORDPIECE.mask, *mat, WORDPIECE.eos]
    with torch.no_grad():
        logits = model.network(torch.tensor([row]))[0]
    ordinary = list(range(5, WORDPIECE.vocabulary))
    for index, choices in zip((1, row.index(WORDPIECE.mask, 2)), found.masks, strict=True):
        best = logits[index, ordinary].argmax().item()
        assert choices[0].tokens == (ordinary[best],)


def test_texts_are_filled_alike_isolated_and_in_a_batch():
    model = small(BERT)
    texts = ["the [MASK] sat", "A [MASK] ran in the <mask> and played.", "[MASK]"]
    for text, found in zip(texts, model.fill(texts)):
        isolated = model.fill(text)
        assert found.text == isolated.text
        for one, other in zip(found.masks, isolated.masks, strict=True):
            assert [c.tokens for c in one] == [c.tokens for c in other]
            assert [c.probability for c in one] == pytest.approx([c.probability for c in other], rel=1e-4)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (WORDPIECE, "The [MASK] sat [UNK] [UNK] s [UNK] on the [MASK] ."),
        (PAIRS, "The <mask> ▁sat ▁ < / s > ▁ on ▁the <mask> ."),
        (Word(100).train(TEXTS), "The <mask> ▁sat <unk> <unk> <unk> ▁on ▁the <mask> ."),
        (Byte().train(TEXTS), "T h e ▁ <mask> ▁ s a t ▁ < / s > ▁ o n ▁ t h e ▁ <mask> ."),
    ],
    ids=["word piece", "bpe", "word", "byte"],
)
def test_only_masks_are_special_and_replace_the_space_of_their_word(tokenizer: Tokenizer, expected: str):
    masks = Masks.of(tokenizer, [tokenizer.mask])
    ids = masks.encode(*masks.split("The [MASK] sat </s> on the <mask>."))
    assert tokenizer.token_texts(ids) == expected.split()


@pytest.mark.parametrize(
    ("tokenizer", "before", "token", "after"),
    [
        (WORDPIECE, "The ", "cat", "The cat"),
        (WORDPIECE, "The p", "##l", "The pl"),
        (WORDPIECE, "The p ", "##l", "The pl"),
        (PAIRS, "The ", "▁the", "The the"),
        (PAIRS, "The", "▁the", "The the"),
        (PAIRS, "", "▁the", "the"),
        (PAIRS, "The p ", "lay", "The play"),
        (Character().train(TEXTS), "The ", "c", "The c"),
    ],
)
def test_a_space_precedes_a_token_that_starts_a_word(tokenizer: Tokenizer, before: str, token: str, after: str):
    ids = [number for number in range(tokenizer.vocabulary) if tokenizer.token_texts([number]) == [token]]
    assert Masks.of(tokenizer, [tokenizer.mask]).append(before, ids) == after


def test_the_mask_token_of_the_tokenizer_is_a_mask_too():
    tokenizer = Tokenizer.from_json(
        WORDPIECE.to_json().replace("[MASK]", "[blank]"), SpecialTokens(mask=WORDPIECE.mask)
    )
    masks = Masks.of(tokenizer, [tokenizer.mask])
    assert masks.encode(*masks.split("the [blank] [MASK]"))[1:] == [WORDPIECE.mask] * 2


def test_a_text_without_a_mask_is_refused_by_its_number():
    with pytest.raises(InputError, match=r"text 2 has no mask to fill. Write \[MASK\] where"):
        small(BERT).fill(["the [MASK]", "the dog"])
    with pytest.raises(InputError, match="text 1 has 67 tokens, this model reads 64"):
        small(BERT).fill("dog " * 64 + "[MASK]")
    with pytest.raises(InputError, match=r"made to generate. Try: regard generate"):
        small(zoo.gpt2(16, 1, 2)).fill("the [MASK]")


SPANS = WordPiece(80, sentinels=4).train(TEXTS * 4)


def test_masks_become_the_unused_sentinels():
    masks = Masks.of(SPANS, SPANS.sentinels)
    assert masks.split("a [MASK] b <extra_id_0> c <mask>") == (
        ["a ", " b ", " c ", ""], ["<extra_id_1>", "<extra_id_0>", "<extra_id_2>"],
    )  # fmt: skip
    ids = masks.encode(*masks.split("the [MASK] sat"))
    assert ids == [*SPANS.encode("the"), SPANS.sentinels[0], *SPANS.encode("sat")]
    with pytest.raises(InputError, match="occurs twice"):
        masks.split("<extra_id_1> and <extra_id_1>")
    with pytest.raises(InputError, match="more than 4"):
        masks.split("[MASK] " * 5)


def test_a_span_follows_its_sentinel():
    one, two, three, _ = SPANS.sentinels
    dog, cat = SPANS.encode("dog"), SPANS.encode("the cat")
    target = [one, *dog, two, *cat, three, SPANS.eos]
    values = [-0.5 * (index + 1) for index in range(len(target))]
    found = _parse_spans(SPANS, target, values)
    assert found[one].text == "dog"
    assert found[two].tokens == tuple(cat)
    scored = slice(1, 1 + len(dog) + 1)
    assert found[one].probability == pytest.approx(float(torch.tensor(values[scored]).sum().exp()))


def test_spans_are_generated_by_a_trained_model():
    """A few training steps teach the model one word per sentinel."""
    model = small(zoo.t5(32, 1, 2), (SPANS,))
    masks = Masks.of(SPANS, SPANS.sentinels)
    texts = ["the [MASK] sat on the [MASK].", "A [MASK] ran"]
    expected_words = [("dog", "mat"), ("cat",)]
    optimizer = torch.optim.Adam(model.network.parameters(), 3e-3)
    for _ in range(60):
        loss = torch.zeros(())
        for text, words in zip(texts, expected_words):
            target = [token for pair in zip(SPANS.sentinels, map(SPANS.encode, words)) for token in (pair[0], *pair[1])]
            target = [*target, SPANS.sentinels[len(words)], SPANS.eos]
            source = torch.tensor([[*masks.encode(*masks.split(text)), SPANS.eos]])
            inputs = {"ids": torch.tensor([[SPANS.bos, *target[:-1]]]), "source_ids": source}
            loss = loss + model.network.loss(inputs, torch.tensor([target]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = model.fill(texts, top=2)
    assert [filled.text for filled in found] == ["the dog sat on the mat.", "A cat ran"]
    for filled, words in zip(found, expected_words):
        assert [choices[0].text for choices in filled.masks] == list(words)
        assert all(0.5 < choices[0].probability <= 1 for choices in filled.masks)
    # The probability of a span is that of its tokens and of the sentinel after it.
    (target,) = model.fill([texts[1]], top=1)
    read = torch.tensor([[*masks.encode(*masks.split(texts[1])), SPANS.eos]])
    row = [SPANS.bos, SPANS.sentinels[0], *target.masks[0][0].tokens, SPANS.sentinels[1]]
    with torch.no_grad():
        logits = model.network(torch.tensor([row[:-1]]), source_ids=read)[0].log_softmax(-1)
    expected = sum(float(logits[index, row[index + 1]]) for index in range(1, len(row) - 1))
    assert target.masks[0][0].probability == pytest.approx(float(torch.tensor(expected).exp()), rel=1e-4)


def test_a_sentinel_that_is_not_generated_stays_empty():
    model = small(zoo.t5(16, 1, 2), (SPANS,), generation_config={"max_new_tokens": 1})
    found = model.fill("the [MASK] sat on [MASK] mat", top=1)
    assert found.masks[1] == [Fill((), "", 0.0)]
    assert found.text.endswith(" sat on mat")
