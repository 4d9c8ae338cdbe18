"""Evaluation, against numbers that are worked out another way: line by line, from logits, by hand."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.api import LoadedModel
from regard.data.read.corpus import Corpus
from regard.data.tokenize.train import Byte, Character, Word, train_tokenizers
from regard.decode.options import Options
from regard.errors import InputError
from regard.evaluation import evaluate as module
from regard.evaluation.evaluate import Evaluation, evaluate, group_rows, length_rows, plot_by_length
from regard.layers.positions import Learned, Rotary
from regard.metrics import quality
from regard.models import zoo
from regard.models.model import Model
from regard.store.loading import Loaded

SOURCES = ["ab", "", "cab", "abcabc", "b a", "cc", "a", "bcbcbcb", "ca"]
REFERENCES = ["ba", "", "", "né!", "a b", "é", "a", "!!", "nana"]
PAIRS = Corpus(SOURCES, REFERENCES, ("pairs",), {"colour": ["red", "blue", "red"] * 3, "number": ["10", "1", "1"] * 3})
SHORT = Options(max_tokens=8)


def wrapped(description: Model, corpus: Corpus, kind: Byte | Character | Word) -> LoadedModel:
    """A network large enough in its parameters to say different things of different texts."""
    tokenizers = train_tokenizers(kind, corpus)
    torch.manual_seed(1)
    vocabularies = (tokenizers[1] or tokenizers[0]).vocabulary, tokenizers[0].vocabulary if tokenizers[1] else None
    network = description.build(*vocabularies)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return LoadedModel(Loaded(network.eval(), tokenizers, {}, {}))


@pytest.fixture(scope="module")
def translator() -> LoadedModel:
    return wrapped(zoo.transformer(16, 1, 2), PAIRS, Character(joint=False))


def language_model(position: Learned | Rotary, corpus: Corpus) -> LoadedModel:
    return wrapped(zoo.gpt2(16, 1, 2, position=position), corpus, Byte())


def summed(logits: Tensor, targets: list[int]) -> float:
    return float(F.cross_entropy(logits.double(), torch.tensor(targets), reduction="sum"))


def pair_loss(model: LoadedModel, source: str, reference: str) -> tuple[float, int]:
    """The loss of one pair alone, from its logits, and its tokens."""
    read = [*model.tokenizer.encode(source), model.tokenizer.eos]
    said = model.target_tokenizer.encode(reference)
    ids = torch.tensor([[model.target_tokenizer.bos, *said]])
    with torch.no_grad():
        logits = model.network(ids, source_ids=torch.tensor([read]))[0]
    return summed(logits, [*said, model.target_tokenizer.eos]), len(said) + 1


def test_loss_perplexity_and_bits_per_byte_are_those_of_each_pair_alone(translator):
    found = evaluate(translator, PAIRS, SHORT)
    filled = [(source, reference) for source, reference in zip(SOURCES, REFERENCES) if source and reference]
    losses, tokens = zip(*(pair_loss(translator, *pair) for pair in filled))
    assert found.tokens == sum(tokens)
    assert found.loss == pytest.approx(sum(losses) / sum(tokens), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    size = sum(len(reference.encode()) for _, reference in filled)
    assert found.bits_per_byte == pytest.approx(sum(losses) / math.log(2) / size, rel=1e-5)
    assert found.dropped == {"empty": 2}


def test_quality_is_that_of_every_line_translated_alone(translator):
    said = [translator.translate(source, options=SHORT) for source in SOURCES]
    references = [*said[:5], *REFERENCES[5:]]
    found = evaluate(translator, Corpus(SOURCES, references, ("pairs",)), SHORT)
    right = sum(one == other for one, other in zip(said, references))
    assert 5 <= right < 9
    assert found.quality.exact == pytest.approx(100 * right / 9)
    assert found.quality == quality(said, references)
    assert (found.sources, found.hypotheses, found.references) == (tuple(SOURCES), tuple(said), tuple(references))


def test_empty_lines_count_in_quality_but_not_in_loss(translator):
    found = evaluate(translator, Corpus(["", "", "ab"], ["", "b", "é"], ("pairs",)), SHORT)
    assert found.hypotheses[:2] == ("", "")
    assert found.quality.lines == sum(row.lines for row in found.by_length) == 3
    assert found.quality.exact == pytest.approx(100 / 3)
    assert found.tokens == 2
    assert found.dropped == {"empty": 2}


def test_a_reference_beyond_what_the_model_reads_has_quality_but_no_loss():
    corpus = Corpus(["ab", "c"], ["a", "abcabcabc"], ("pairs",))
    model = wrapped(zoo.transformer(16, 1, 2, position=Learned(6)), corpus, Character())
    found = evaluate(model, corpus)
    assert found.quality.lines == 2
    assert found.tokens == 2
    assert found.dropped == {"longer than 6 tokens": 1}


def test_neither_order_nor_batches_change_the_result(translator, monkeypatch):
    first = evaluate(translator, PAIRS, SHORT)
    monkeypatch.setattr(module, "_BATCH_TOKENS", 1)
    groups = {name: of_line[::-1] for name, of_line in PAIRS.groups.items()}
    second = evaluate(translator, Corpus(SOURCES[::-1], REFERENCES[::-1], ("pairs",), groups), SHORT)
    assert second.hypotheses == first.hypotheses[::-1]
    assert second.loss == pytest.approx(first.loss, rel=1e-5)
    assert (second.by_length, second.groups) == (first.by_length, first.groups)


def test_the_lines_of_every_group_and_of_all_lengths_sum_to_the_whole(translator):
    found = evaluate(translator, PAIRS, SHORT)
    for rows in (found.by_length, *found.groups.values()):
        assert sum(row.lines for row in rows) == len(SOURCES)
        exact = sum(row.exact * row.lines for row in rows) / len(SOURCES)
        assert exact == pytest.approx(found.quality.exact)
    assert {row.name: row.lines for row in found.groups["colour"]} == {"red": 6, "blue": 3}


def test_groups_that_are_numbers_come_in_order_and_others_worst_first():
    right = ["a", "b", "c", "d"]
    assert [row.name for row in group_rows(["10", "9", "1", "9"], right, right)] == ["1", "9", "10"]
    rows = group_rows(["good", "bad", "middling", "middling"], ["a", "x", "c", "x"], right)
    assert [(row.name, row.exact) for row in rows] == [("bad", 0), ("middling", 50), ("good", 100)]


def test_a_bucket_of_lengths_holds_exactly_what_its_name_says():
    lengths = [0, 3, 3, 3, 4, 9, 9, 12, 30, 31, 31, 77, 5, 2]
    texts = [str(length) for length in lengths]
    rows = length_rows(lengths, texts, texts)
    assert 4 <= len(rows) <= 6
    bounds = [[int(end) for end in row.name.split("-")] for row in rows]
    assert (bounds[0][0], bounds[-1][-1]) == (0, 77)
    assert all(before[-1] + 1 == after[0] for before, after in pairwise(bounds))
    for row, bound in zip(rows, bounds):
        assert row.lines == sum(bound[0] <= length <= bound[-1] for length in lengths) > 0
        assert row.exact == 100


def test_one_length_is_one_bucket():
    assert [(row.name, row.lines) for row in length_rows([4, 4], ["a", "b"], ["a", "c"])] == [("4", 2)]


DOCUMENTS = Corpus(["hello", "", "né", "one more text"], None, ("text",))


def test_a_language_model_is_measured_on_each_document_alone():
    model = language_model(Rotary(), DOCUMENTS)
    total, tokens = 0.0, 0
    for text in filter(None, DOCUMENTS.sources):
        ids = model.tokenizer.encode(text)
        with torch.no_grad():
            logits = model.network(torch.tensor([[model.tokenizer.bos, *ids]]))[0]
        total += summed(logits, [*ids, model.tokenizer.eos])
        tokens += len(ids) + 1
    found = evaluate(model, DOCUMENTS)
    assert (found.quality, found.by_length, found.groups, found.hypotheses) == (None, (), {}, ())
    assert (found.tokens, found.dropped) == (tokens, {"empty": 1})
    assert found.loss == pytest.approx(total / tokens, rel=1e-5)
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / (5 + 3 + 13), rel=1e-5)


def test_unknown_characters_cost_what_it_takes_to_spell_them():
    trained = Corpus(["the cat sat on the mat", "a cat and a hat"], None, ("text",))
    foreign = Corpus(["η γάτα", "a cat"], None, ("text",))
    model = wrapped(zoo.gpt2(16, 1, 2, position=Rotary()), trained, Character())
    known, found = evaluate(model, trained), evaluate(model, foreign)
    assert (known.unknown, known.warning, "unknown" in known.text()) == (0, "", False)
    assert found.unknown == 5 / 11
    size, spelled = sum(len(text.encode()) for text in foreign.sources), 8 * len("ηγάτα".encode())
    assert found.bits_per_byte == pytest.approx((found.loss * found.tokens / math.log(2) + spelled) / size, rel=1e-5)
    assert "45.5 % of the characters unknown" in found.text()
    assert "does not know 45.5 %" in found.warning
    assert found.to_json()["unknown"] == found.unknown


def test_a_word_that_is_unknown_costs_its_bytes_and_its_end():
    trained = Corpus(["the cat sat on the mat", "a cat and a hat"], None, ("text",))
    model = wrapped(zoo.gpt2(16, 1, 2, position=Rotary()), trained, Word(30))
    found = evaluate(model, Corpus(["the dog"], None, ("text",)))
    spelled = 8 * (len(" dog") + 1)
    assert found.bits_per_byte == pytest.approx((found.loss * found.tokens / math.log(2) + spelled) / 7, rel=1e-5)
    assert found.unknown == 4 / 7


def test_unknown_characters_of_a_pair_that_is_left_out_cost_nothing(translator):
    both = evaluate(translator, Corpus(["ab", ""], ["é", "φφφ"], ("pairs",)), SHORT)
    assert both.bits_per_byte == evaluate(translator, Corpus(["ab"], ["é"], ("pairs",)), SHORT).bits_per_byte
    assert both.unknown == 0
    assert evaluate(translator, Corpus(["ab"], ["φ"], ("pairs",)), SHORT).unknown == 1


def test_progress_tells_of_every_text_once(translator):
    for model, corpus in ((translator, PAIRS), (language_model(Rotary(), DOCUMENTS), DOCUMENTS)):
        done: list[int] = []
        evaluate(model, corpus, SHORT, progress=done.append)
        assert sum(done) == pytest.approx(len(corpus))


def test_text_and_model_must_fit(translator):
    with pytest.raises(InputError, match="--source and --reference"):
        evaluate(translator, DOCUMENTS)
    with pytest.raises(InputError, match="--text"):
        evaluate(language_model(Rotary(), DOCUMENTS), PAIRS)


def test_the_summary_names_signatures_and_puts_bits_per_byte_beside_perplexity(translator):
    for found in (evaluate(translator, PAIRS, SHORT), evaluate(language_model(Rotary(), DOCUMENTS), DOCUMENTS)):
        text = found.text()
        (line,) = [line for line in text.splitlines() if "perplexity" in line]
        assert f"{found.bits_per_byte:.4f} bits per byte" in line
        assert "empty" in text
        if found.quality:
            assert found.quality.bleu_signature in text
            assert found.quality.chrf_signature in text
            assert "source length in tokens" in text


def test_json_holds_the_numbers_and_none_of_the_text(translator):
    found = evaluate(translator, PAIRS, SHORT)
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["loss"] == found.loss
    assert plain["quality"]["chrf"] == found.quality.chrf
    assert plain["groups"]["colour"][0]["name"] in ("red", "blue")
    assert not plain.keys() & {"sources", "hypotheses", "references"}


def test_the_plot_is_a_png(translator, tmp_path: Path):
    plot_by_length(evaluate(translator, PAIRS, SHORT), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    empty = Evaluation(loss=1, perplexity=1, bits_per_byte=1, tokens=1, dropped={})
    with pytest.raises(InputError, match="no translations"):
        plot_by_length(empty, tmp_path / "none.png")
