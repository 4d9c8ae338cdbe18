"""Gaps in texts: where they are, what is said for them, and how it is put in."""

from __future__ import annotations

import pytest
import torch

from regard.data.tokenize.tokenizer import Roles, Tokenizer
from regard.data.tokenize.train import BPE, Byte, Character, Word, WordPiece
from regard.decode.fill import Choice, Gaps, _spans
from regard.errors import InputError
from regard.models import zoo
from tests.small import TEXTS, WORDS, small

BERT = zoo.bert(16, 2, 2, max_positions=64)
PAIRS = BPE(290).train(TEXTS * 4)


def test_a_mask_is_filled_with_what_the_logits_say():
    model = small(BERT)
    ids = WORDS.encode("the dog sat")
    ids[1] = WORDS.mask
    with torch.no_grad():
        logits = model.network(torch.tensor([[WORDS.begin, *ids, WORDS.end]]))[0, 2]
    probabilities = logits.softmax(-1)
    found = model.fill("the [MASK] sat", top=WORDS.vocabulary)
    (choices,) = found.masks
    assert len(choices) == WORDS.vocabulary - 5
    for choice in choices:
        assert choice.probability == pytest.approx(float(probabilities[choice.tokens[0]]), rel=1e-4)
        assert choice.text == WORDS.decode(choice.tokens)
    assert [choice.probability for choice in choices] == sorted((c.probability for c in choices), reverse=True)


def test_several_masks_in_one_text_are_filled_at_once_and_each_on_its_own():
    model = small(BERT)
    found = model.fill("[MASK] dog <mask> the mat", top=2)
    row = [WORDS.begin, WORDS.mask, *WORDS.encode("dog"), WORDS.mask, *WORDS.encode("the mat"), WORDS.end]
    with torch.no_grad():
        logits = model.network(torch.tensor([row]))[0]
    ordinary = list(range(5, WORDS.vocabulary))
    for place, choices in zip((1, row.index(WORDS.mask, 2)), found.masks, strict=True):
        best = logits[place, ordinary].argmax().item()
        assert choices[0].tokens == (ordinary[best],)


def test_texts_are_filled_alike_alone_and_together():
    model = small(BERT)
    texts = ["the [MASK] sat", "A [MASK] ran in the <mask> and played.", "[MASK]"]
    for text, found in zip(texts, model.fill(texts)):
        alone = model.fill(text)
        assert found.text == alone.text
        for one, other in zip(found.masks, alone.masks, strict=True):
            assert [c.tokens for c in one] == [c.tokens for c in other]
            assert [c.probability for c in one] == pytest.approx([c.probability for c in other], rel=1e-4)


@pytest.mark.parametrize(
    ("tokenizer", "cut"),
    [
        (WORDS, "The <mask> sat <unk> <unk> s <unk> on the <mask> ."),
        (PAIRS, "The <mask> ▁sat ▁ < / s > ▁ on ▁the <mask> ."),
        (Word(100).train(TEXTS), "The <mask> ▁sat <unk> <unk> <unk> ▁on ▁the <mask> ."),
        (Byte().train(TEXTS), "T h e ▁ <mask> ▁ s a t ▁ < / s > ▁ o n ▁ t h e ▁ <mask> ."),
    ],
    ids=["word piece", "bpe", "word", "byte"],
)
def test_only_masks_are_special_and_take_the_space_that_their_word_would(tokenizer: Tokenizer, cut: str):
    gaps = Gaps.of(tokenizer, [tokenizer.mask])
    ids = gaps.encode(*gaps.cut("The [MASK] sat </s> on the <mask>."))
    assert tokenizer.token_texts(ids) == cut.split()


@pytest.mark.parametrize(
    ("tokenizer", "before", "token", "after"),
    [
        (WORDS, "The ", "cat", "The cat"),
        (WORDS, "The p", "##l", "The pl"),
        (WORDS, "The p ", "##l", "The pl"),
        (PAIRS, "The ", "▁the", "The the"),
        (PAIRS, "The", "▁the", "The the"),
        (PAIRS, "", "▁the", "the"),
        (PAIRS, "The p ", "lay", "The play"),
        (Character().train(TEXTS), "The ", "c", "The c"),
    ],
)
def test_a_token_knows_whether_a_space_stands_before_it(tokenizer: Tokenizer, before: str, token: str, after: str):
    ids = [number for number in range(tokenizer.vocabulary) if tokenizer.token_texts([number]) == [token]]
    assert Gaps.of(tokenizer, [tokenizer.mask]).put(before, ids) == after


def test_a_mask_is_written_as_the_tokenizer_has_it_too():
    tokenizer = Tokenizer.from_json(WORDS.to_json().replace("<mask>", "[gap]"), Roles(mask=WORDS.mask))
    gaps = Gaps.of(tokenizer, [tokenizer.mask])
    assert gaps.encode(*gaps.cut("the [gap] [MASK]"))[1:] == [WORDS.mask] * 2


def test_a_text_without_a_gap_is_refused_by_its_number():
    with pytest.raises(InputError, match=r"text 2 has no gap to fill. Write <mask> or \[MASK\]"):
        small(BERT).fill(["the [MASK]", "the dog"])
    with pytest.raises(InputError, match="text 1 has 67 tokens, this model reads 64"):
        small(BERT).fill("dog " * 64 + "[MASK]")
    with pytest.raises(InputError, match=r"made to generate. Try: regard generate"):
        small(zoo.gpt2(16, 1, 2)).fill("the [MASK]")


SPANS = WordPiece(80, sentinels=4).train(TEXTS * 4)


def test_gaps_are_named_by_sentinels_and_masks_take_those_that_are_left():
    gaps = Gaps.of(SPANS, SPANS.sentinels)
    assert gaps.cut("a [MASK] b <extra_id_0> c <mask>") == (
        ["a ", " b ", " c ", ""], ["<extra_id_1>", "<extra_id_0>", "<extra_id_2>"],
    )  # fmt: skip
    ids = gaps.encode(*gaps.cut("the [MASK] sat"))
    assert ids == [*SPANS.encode("the"), SPANS.sentinels[0], *SPANS.encode("sat")]
    with pytest.raises(InputError, match="named twice"):
        gaps.cut("<extra_id_1> and <extra_id_1>")
    with pytest.raises(InputError, match="more than 4"):
        gaps.cut("[MASK] " * 5)


def test_a_span_is_what_stands_behind_its_sentinel():
    one, two, three, _ = SPANS.sentinels
    dog, cat = SPANS.encode("dog"), SPANS.encode("the cat")
    said = [one, *dog, two, *cat, three, SPANS.end]
    values = [-0.5 * (place + 1) for place in range(len(said))]
    found = _spans(SPANS, said, values)
    assert found[one].text == "dog"
    assert found[two].tokens == tuple(cat)
    spoken = slice(1, 1 + len(dog) + 1)
    assert found[one].probability == pytest.approx(float(torch.tensor(values[spoken]).sum().exp()))


def test_spans_are_said_by_a_model_that_has_learnt_to():
    """A model made to copy: it is taught, in a few steps, to say one word for a gap."""
    model = small(zoo.t5(32, 1, 2), (SPANS,))
    gaps = Gaps.of(SPANS, SPANS.sentinels)
    texts = ["the [MASK] sat on the [MASK].", "A [MASK] ran"]
    answers = [("dog", "mat"), ("cat",)]
    optimizer = torch.optim.Adam(model.network.parameters(), 3e-3)
    for _ in range(60):
        loss = torch.zeros(())
        for text, words in zip(texts, answers):
            said = [token for pair in zip(SPANS.sentinels, map(SPANS.encode, words)) for token in (pair[0], *pair[1])]
            said = [*said, SPANS.sentinels[len(words)], SPANS.end]
            source = torch.tensor([[*gaps.encode(*gaps.cut(text)), SPANS.end]])
            inputs = {"ids": torch.tensor([[SPANS.begin, *said[:-1]]]), "source_ids": source}
            loss = loss + model.network.loss(inputs, torch.tensor([said]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = model.fill(texts, top=2)
    assert [filled.text for filled in found] == ["the dog sat on the mat.", "A cat ran"]
    for filled, words in zip(found, answers):
        assert [choices[0].text for choices in filled.masks] == list(words)
        assert all(0.5 < choices[0].probability <= 1 for choices in filled.masks)
    # Spans are as likely as the tokens of the whole answer are together.
    (said,) = model.fill([texts[1]], top=1)
    read = torch.tensor([[*gaps.encode(*gaps.cut(texts[1])), SPANS.end]])
    row = [SPANS.begin, SPANS.sentinels[0], *said.masks[0][0].tokens, SPANS.sentinels[1]]
    with torch.no_grad():
        logits = model.network(torch.tensor([row[:-1]]), source_ids=read)[0].log_softmax(-1)
    expected = sum(float(logits[place, row[place + 1]]) for place in range(1, len(row) - 1))
    assert said.masks[0][0].probability == pytest.approx(float(torch.tensor(expected).exp()), rel=1e-4)


def test_a_gap_that_was_not_spoken_of_stays_empty():
    model = small(zoo.t5(16, 1, 2), (SPANS,), generation={"max_new_tokens": 1})
    found = model.fill("the [MASK] sat on [MASK] mat", top=1)
    assert found.masks[1] == [Choice((), "", 0.0)]
    assert found.text.endswith(" sat on mat")
