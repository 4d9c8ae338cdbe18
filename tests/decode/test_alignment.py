"""Word alignment: links by hand, cross-attention weights, the choice of heads, unknown word replacement."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from regard.data.read.corpus import Corpus
from regard.data.tasks.translation import Translation
from regard.data.tokenize.encode import Template
from regard.data.tokenize.tokenizer import FIRST_TEXT, Tokenizer
from regard.data.tokenize.train import Byte, Character, Word, WordPiece
from regard.decode.alignment import (
    Aligner,
    alignment_error_rate,
    candidate_heads,
    choose_heads,
    cross_attention_heads,
    cross_attention_weights,
    extract_links,
    mutual_information,
    read_moses,
    write_moses,
)
from regard.decode.generate import GeneratedText, translate
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.join import PreNorm
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.model import Network
from regard.show.trace import trace
from tests.laws.zoo import BEGIN, END, TRANSLATORS, build

# Links, by hand.


def weights(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_each_target_word_is_linked_to_what_it_attends_to_most():
    attention = weights([0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.2, 0.3, 0.5])
    assert extract_links(attention, [0, 1, 2], [0, 1, 2]) == [(0, 1), (1, 0), (2, 2)]
    assert extract_links(attention, [0, 1, 2], [0, 0, 0]) == [(0, 0), (0, 1), (0, 2)]


def test_the_tokens_of_a_word_count_together_on_both_sides():
    attention = weights([0.4, 0.3, 0.3, 0.0], [0.4, 0.1, 0.1, 0.4])
    assert extract_links(attention[:1], [0], [0, 1, 1, 2]) == [(1, 0)]
    assert extract_links(attention, [0, 0], [0, 1, 2, 3]) == [(0, 0)]
    assert extract_links(attention, [0, 0], [0, 1, 1, 1]) == [(1, 0)]


def test_tokens_in_no_word_do_not_count():
    attention = weights([0.9, 0.1, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0])
    assert extract_links(attention, [0, -1, 1], [-1, 0, 1]) == [(0, 0)]


def test_nothing_is_linked_to_nothing():
    assert extract_links(torch.zeros(0, 3), [], [0, 1, 2]) == []
    assert extract_links(torch.zeros(2, 0), [0, 1], []) == []
    assert extract_links(torch.zeros(2, 2), [0, 1], [0, 1]) == []
    assert extract_links(torch.full((2, 2), torch.nan), [0, 1], [0, 1]) == []
    assert extract_links(torch.ones(2, 2), [-1, -1], [0, 1]) == []


def test_links_are_written_and_read_in_the_format_of_moses():
    assert write_moses([(0, 0), (1, 2)]) == "0-0 1-2"
    assert read_moses(" 1-2 0-0\n") == [(0, 0), (1, 2)]
    assert read_moses("") == []
    with pytest.raises(InputError, match=r"'0-0 1:2' is no alignment\. Write pairs"):
        read_moses("0-0 1:2")


# Cross-attention weights.

LETTERS = Character().train(["abcdefghij "])
PAIRS = [([5, 9, 7, 8], [11, 12, 13]), ([5], [14]), ([6, 7, 8, 9, 10, 11, 12], [15, 5, 6, 7, 8, 9])]
SPECIAL = Template(((FIRST_TEXT, 0), (END, 0)), (), 0), BEGIN


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_pair_has_the_same_weights_isolated_and_in_a_batch(name: str):
    network = build(name)
    heads = cross_attention_heads(network)
    assert bool(heads) == ("seq2seq" not in name)
    together = dict(cross_attention_weights(network, SPECIAL, PAIRS, heads)) if heads else {}
    assert len(together) == (len(PAIRS) if heads else 0)
    for index, found in together.items():
        source, target = PAIRS[index]
        assert found.shape == (len(heads), len(target), len(source))
        [(_, isolated)] = cross_attention_weights(network, SPECIAL, [PAIRS[index]], heads)
        torch.testing.assert_close(found, isolated, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["transformer", "reversible", "bahdanau", "luong", "convs2s"])
def test_a_row_belongs_to_the_query_that_predicts_its_token(name: str):
    torch.manual_seed(1)
    network = TRANSLATORS[name].build(LETTERS.vocabulary).eval()
    heads = cross_attention_heads(network)
    seen = trace(network, (LETTERS, LETTERS), "abc de", "fgh")
    pair = LETTERS.encode("abc de"), LETTERS.encode("fgh")
    [(_, found)] = cross_attention_weights(network, (Template.of(LETTERS, "source"), LETTERS.bos), [pair], heads)
    shown = torch.cat(seen.cross_attentions, dim=1)[0]
    torch.testing.assert_close(found, shown[:, :3, :-1])


def test_only_the_requested_heads_are_returned():
    network = build("transformer")
    [(_, all_heads)] = cross_attention_weights(network, SPECIAL, PAIRS[:1], cross_attention_heads(network))
    [(_, some)] = cross_attention_weights(network, SPECIAL, PAIRS[:1], [(1, 2), (0, 0)])
    assert torch.equal(some, all_heads[[5, 0]])


def test_a_model_without_encoder_has_no_cross_attention_heads():
    assert cross_attention_heads(build("gpt2")) == []


# The choice of heads.


def test_the_candidates_are_single_heads_layers_and_all_heads():
    assert candidate_heads([(0, 0), (0, 1), (1, 0)]) == [
        [(0, 0)], [(0, 1)], [(1, 0)], [(0, 0), (0, 1)], [(0, 0), (0, 1), (1, 0)]
    ]  # fmt: skip
    assert candidate_heads([(0, 0)]) == [[(0, 0)]]
    assert candidate_heads([]) == [[]]


def test_the_error_rate_is_that_of_all_pairs_together():
    gold = [[(0, 0), (1, 1)], [(0, 0)]]
    assert alignment_error_rate(gold, gold) == 0
    assert alignment_error_rate([[(0, 1), (1, 0)], [(1, 0)]], gold) == 1
    assert alignment_error_rate([[(0, 0)], [(0, 0)]], gold) == pytest.approx(1 - 4 / 5)
    assert alignment_error_rate([[], []], [[], []]) == 1


def test_right_links_have_high_mutual_information():
    draw = random.Random(3)
    rows = [[draw.randrange(5) for _ in range(4)] for _ in range(60)]
    units = {index: (row, [10 - word for word in reversed(row)]) for index, row in enumerate(rows)}
    right = {index: [(3 - j, j) for j in range(4)] for index in units}
    wrong = {index: [(j, j) for j in range(4)] for index in units}
    assert mutual_information(right, units) > 1.2  # log 5 is all there is to know
    assert abs(mutual_information(wrong, units)) < 0.2


def test_targets_that_do_not_occur_in_training_add_no_information():
    units = {index: (["x"], [index]) for index in range(10)}
    assert mutual_information({index: [(0, 0)] for index in units}, units) == 0
    assert mutual_information({}, units) == 0


# A language of twelve words and random names, whose translation moves the first word to the end.


def sentence(draw: random.Random) -> tuple[str, str, list[tuple[int, int]]]:
    count = draw.randint(2, 5)
    words = [f"{draw.choice('bdgk')}{draw.choice('aou')}" for _ in range(count)]
    if draw.random() < 0.6:
        words[draw.randrange(count)] = "X" + "".join(draw.choices("abcdefghi", k=6))
    target = [word if word.startswith("X") else word[::-1] for word in (*words[1:], words[0])]
    links = sorted([(0, count - 1), *((index, index - 1) for index in range(1, count))])
    return " ".join(words), " ".join(target), links


@pytest.fixture(scope="module")
def trained() -> tuple[Network, Tokenizer]:
    """A recurrent translator with attention, trained on the language; names are unknown words."""
    draw = random.Random(1)
    sources, targets, _ = zip(*(sentence(draw) for _ in range(1200)))
    tokenizer = Word(size=5 + 4 * 12).train([*sources, *targets])
    samples = Translation().samples(Corpus(sources, targets, ("names",)), (tokenizer, None))
    torch.manual_seed(0)
    network = zoo.luong(32, 1, dropout=0.0, direction="bidirectional", input_feeding=False).build(tokenizer.vocabulary)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(200):
        batch = samples.batch([draw.randrange(len(samples)) for _ in range(64)])
        optimizer.zero_grad()
        (network.loss(batch.inputs, batch.targets) / batch.tokens).backward()
        optimizer.step()
    return network.eval(), tokenizer


def test_names_outside_the_vocabulary_are_copied_by_attention(trained: tuple[Network, Tokenizer]):
    network, tokenizer = trained
    draw = random.Random(2)
    sources, targets, gold = map(list, zip(*(sentence(draw) for _ in range(100))))
    aligner = Aligner(network, (tokenizer, tokenizer), cross_attention_heads(network))
    assert alignment_error_rate(aligner.align(sources, targets), gold) < 0.15
    found = translate(network, (tokenizer, tokenizer), sources, Options(beam=3, n_best=2))
    annotated = aligner.annotate(sources, found, alignment=True, replace_unknown=True)
    named = [index for index, target in enumerate(targets) if "X" in target]
    assert not any("X" in found[index][0].text for index in named)
    assert sum(annotated[index][0].text == targets[index] for index in named) > 0.75 * len(named)
    for index, answers in enumerate(annotated):
        for was, answer in zip(found[index], answers):
            assert answer.tokens == was.tokens
            assert answer.alignment is not None
            assert {j for _, j in answer.alignment} == set(range(len(answer.text.split())))
            if tokenizer.unk not in was.tokens:
                assert answer.text == was.text
    only = aligner.annotate(sources, found, alignment=False, replace_unknown=True)
    assert [[answer.text for answer in row] for row in only] == [[answer.text for answer in row] for row in annotated]
    assert only[0][0].alignment is None


def one_aligning_head(tokenizer: Tokenizer) -> Network:
    """A Transformer that uses positions only; its last head attends to the next position, the others are random."""
    torch.manual_seed(3)
    network = zoo.transformer(32, 2, 2, join=PreNorm(), position=Learned(16)).build(tokenizer.vocabulary).eval()
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if ".out." in name or ".down." in name or "table" in name:
                parameter.zero_()
            if "position" in name:
                parameter.copy_(torch.eye(16, 32))
        last = "decoder.layers.1.cross.sublayer"
        parameters[f"{last}.query.weight"][16:] = 5 * torch.eye(16, 32)
        parameters[f"{last}.key_value.weight"][16:32] = 5 * torch.eye(16, 32).roll(1, dims=1)
    return network


def test_the_best_head_is_found_with_and_without_gold_alignments():
    draw = random.Random(5)
    sources, targets, gold = map(list, zip(*(sentence(draw) for _ in range(120))))
    targets = [target.rpartition(" ")[0] for target in targets]
    gold = [links[1:] for links in gold]
    tokenizer = Word().train([*sources, *targets])
    network = one_aligning_head(tokenizer)
    both = tokenizer, tokenizer
    rates = {
        tuple(heads): alignment_error_rate(Aligner(network, both, heads).align(sources, targets), gold)
        for heads in candidate_heads(cross_attention_heads(network))
    }
    assert rates[((1, 1),)] == 0
    assert min(rates[((0, 0),)], rates[((0, 1),)], rates[((1, 0),)]) > 0.4
    assert choose_heads(network, both, sources, targets, gold) == [(1, 1)]
    assert choose_heads(network, both, sources, targets) == [(1, 1)]


# Unknown words, by hand.


def replaced(tokenizer: Tokenizer, source: str, target: list[int], attended: dict[int, int], start: int = 0) -> str:
    """The text of target tokens after the unknown ones are replaced by the source tokens that they attend to."""
    read = tokenizer.encode_with_offsets(source)
    rows = torch.full((len(target), len(read.ids)), 0.01)
    for index, token in attended.items():
        rows[index, token] = 1.0
    aligner = Aligner(zoo.luong(8, 1).build(tokenizer.vocabulary), (tokenizer, tokenizer), [(0, 0)])
    return tokenizer.decode_with_offsets(target, aligner.replacements(source, read, target, rows, start))[0]


def test_a_replaced_word_gets_the_space_it_needs():
    tokenizer = Word().train(["he came", "er kam", "he (ja)", "er, ja"])
    unknown = tokenizer.unk
    target = tokenizer.encode("he came")
    assert replaced(tokenizer, "Ünsal kam", [unknown, target[1]], {0: 0}) == "Ünsal came"
    assert replaced(tokenizer, "Ünsal kam", [target[0], unknown], {1: 0}) == "he Ünsal"
    assert replaced(tokenizer, "er Ünsal", [target[0], unknown], {1: 1}) == "he Ünsal"
    assert replaced(tokenizer, "er Ünsal", [unknown, target[1]], {0: 1}) == "Ünsal came"
    assert replaced(tokenizer, "er Ünsal", [unknown, unknown], {0: 1, 1: 0}) == "Ünsal er"
    assert replaced(tokenizer, "er,Ünsal", [target[0], unknown], {1: 2}) == "he Ünsal"
    bracket = tokenizer.encode("he (")
    assert replaced(tokenizer, "er (Ünsal", [*bracket, unknown], {2: 2}) == "he (Ünsal"


def test_unknown_words_of_a_prefix_are_not_replaced():
    tokenizer = Word().train(["er kam he came"])
    assert replaced(tokenizer, "er Ünsal", [tokenizer.unk, tokenizer.unk], {0: 1, 1: 1}, start=1) == "Ünsal"


def test_word_pieces_and_characters_are_replaced_by_whole_units():
    pieces = WordPiece(size=16).train(["ab abc abc cab bc"] * 3)
    read = pieces.encode_with_offsets("abc cbac ab")
    within = read.units.index(read.units[-2])
    assert read.units.count(read.units[within]) > 1
    target = pieces.encode("ab")
    assert replaced(pieces, "abc cbac ab", [*target, pieces.unk], {len(target): within + 1}) == "ab cbac"
    characters = Character().train(["abc"])
    assert replaced(characters, "abé", [5, characters.unk, 6], {1: 2}) == "aéb"


def test_a_tokenizer_that_knows_every_byte_has_nothing_to_replace():
    tokenizer = Byte().train([])
    torch.manual_seed(4)
    network = zoo.transformer(16, 1, 2).build(tokenizer.vocabulary).eval()
    aligner = Aligner(network, (tokenizer, tokenizer), cross_attention_heads(network))
    answer = GeneratedText("né", 0.0, 0.0, tuple(tokenizer.encode("né")), True)
    assert aligner.annotate(["é"], [[answer]], alignment=False, replace_unknown=True) == [[answer]]


# Translations and given pairs.


def test_translations_are_aligned_by_words_whatever_their_tokens():
    torch.manual_seed(4)
    network = zoo.transformer(16, 2, 2).build(LETTERS.vocabulary).eval()
    aligner = Aligner(network, (LETTERS, LETTERS), cross_attention_heads(network))
    texts = ["abc de", "", "j", "a b c d"]
    options = Options(temperature=1.5, n_best=3, max_tokens=12, stop=("e",))
    found = translate(network, (LETTERS, LETTERS), texts, options, prefixes=["a b", "", "c", ""])
    explained = aligner.annotate(texts, found, prefixes=["a b", "", "c", ""], stop=options.stop)
    for text, answers in zip(texts, explained):
        for answer in answers:
            assert answer.alignment is not None
            assert {j for _, j in answer.alignment} == (set(range(len(answer.text.split()))) if text else set())
            assert all(i < len(text.split()) for i, _ in answer.alignment)


def test_given_pairs_are_aligned_like_translations_of_the_same_text():
    torch.manual_seed(4)
    network = zoo.transformer(16, 2, 2).build(LETTERS.vocabulary).eval()
    aligner = Aligner(network, (LETTERS, LETTERS), [(1, 0)])
    sources, targets = ["abc de", "j", "", "a b c d"], ["fgh i", "a b", "c", ""]
    answers = [[GeneratedText(target, 0.0, 0.0, tuple(LETTERS.encode(target)), True)] for target in targets]
    explained = aligner.annotate(sources, answers)
    assert [list(row[0].alignment or ()) for row in explained] == aligner.align(sources, targets)
    assert aligner.align([], []) == []


def test_a_pair_that_does_not_fit_into_the_model_is_refused_by_its_number():
    network = zoo.transformer(16, 1, 2, position=Learned(8)).build(LETTERS.vocabulary).eval()
    aligner = Aligner(network, (LETTERS, LETTERS), [(0, 0)])
    with pytest.raises(InputError, match="pair 2 has 9 tokens, this model reads 8"):
        aligner.align(["a", "abcdefgh"], ["a", "a"])
    assert choose_heads(network, (LETTERS, LETTERS), ["abcdefgh"], ["a"]) == [(0, 0), (0, 1)]
