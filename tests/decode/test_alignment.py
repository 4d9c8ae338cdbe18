"""Words that belong together: links by hand, the rows they come from, the heads that say it best, unknown words."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from regard.data.read.corpus import Corpus
from regard.data.tasks.translation import Translation
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import Byte, Character, Word, WordPiece
from regard.decode.alignment import (
    Aligner,
    attended,
    candidates,
    choose_heads,
    cross_heads,
    error_rate,
    links,
    moses,
    read_moses,
    telling,
)
from regard.decode.generate import Answer, translate
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
    looks = weights([0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.2, 0.3, 0.5])
    assert links(looks, [0, 1, 2], [0, 1, 2]) == [(0, 1), (1, 0), (2, 2)]
    assert links(looks, [0, 1, 2], [0, 0, 0]) == [(0, 0), (0, 1), (0, 2)]


def test_the_tokens_of_a_word_count_together_on_both_sides():
    looks = weights([0.4, 0.3, 0.3, 0.0], [0.4, 0.1, 0.1, 0.4])
    assert links(looks[:1], [0], [0, 1, 1, 2]) == [(1, 0)]
    assert links(looks, [0, 0], [0, 1, 2, 3]) == [(0, 0)]
    assert links(looks, [0, 0], [0, 1, 1, 1]) == [(1, 0)]


def test_tokens_in_no_word_do_not_count():
    looks = weights([0.9, 0.1, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0])
    assert links(looks, [0, -1, 1], [-1, 0, 1]) == [(0, 0)]


def test_nothing_is_linked_to_nothing():
    assert links(torch.zeros(0, 3), [], [0, 1, 2]) == []
    assert links(torch.zeros(2, 0), [0, 1], []) == []
    assert links(torch.zeros(2, 2), [0, 1], [0, 1]) == []
    assert links(torch.full((2, 2), torch.nan), [0, 1], [0, 1]) == []
    assert links(torch.ones(2, 2), [-1, -1], [0, 1]) == []


def test_links_are_written_as_moses_has_them_and_read_again():
    assert moses([(0, 0), (1, 2)]) == "0-0 1-2"
    assert read_moses(" 1-2 0-0\n") == [(0, 0), (1, 2)]
    assert read_moses("") == []
    with pytest.raises(InputError, match=r"'0-0 1:2' is no alignment\. Write pairs"):
        read_moses("0-0 1:2")


# Rows: what is looked at.

LETTERS = Character().train(["abcdefghij "])
PAIRS = [([5, 9, 7, 8, END], [11, 12, 13]), ([5, END], [14]), ([6, 7, 8, 9, 10, 11, 12, END], [15, 5, 6, 7, 8, 9])]


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_pair_is_looked_at_alike_alone_and_in_a_batch(name: str):
    network = build(name)
    heads = cross_heads(network)
    assert bool(heads) == ("seq2seq" not in name)
    together = dict(attended(network, BEGIN, PAIRS, heads)) if heads else {}
    assert len(together) == (len(PAIRS) if heads else 0)
    for place, found in together.items():
        source, said = PAIRS[place]
        assert found.shape == (len(heads), len(said), len(source) - 1)
        [(_, alone)] = attended(network, BEGIN, [PAIRS[place]], heads)
        torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["transformer", "reversible", "bahdanau", "luong"])
def test_a_row_is_the_one_that_says_its_token(name: str):
    torch.manual_seed(1)
    network = TRANSLATORS[name].build(LETTERS.vocabulary).eval()
    heads = cross_heads(network)
    seen = trace(network, (LETTERS, LETTERS), "abc de", "fgh")
    pair = (*LETTERS.encode("abc de"), LETTERS.end), LETTERS.encode("fgh")
    [(_, found)] = attended(network, LETTERS.begin, [pair], heads)
    shown = torch.cat(seen.cross_attentions, dim=1)[0]
    torch.testing.assert_close(found, shown[:, :3, :-1])


def test_only_the_heads_asked_for_are_given():
    network = build("transformer")
    [(_, every)] = attended(network, BEGIN, PAIRS[:1], cross_heads(network))
    [(_, some)] = attended(network, BEGIN, PAIRS[:1], [(1, 2), (0, 0)])
    assert torch.equal(some, every[[5, 0]])


def test_a_model_without_decoder_or_encoder_has_no_such_heads():
    assert cross_heads(build("gpt2")) == []


# Choosing.


def test_the_candidates_are_heads_and_layers_and_all_of_them():
    assert candidates([(0, 0), (0, 1), (1, 0)]) == [
        [(0, 0)], [(0, 1)], [(1, 0)], [(0, 0), (0, 1)], [(0, 0), (0, 1), (1, 0)]
    ]  # fmt: skip
    assert candidates([(0, 0)]) == [[(0, 0)]]
    assert candidates([]) == [[]]


def test_the_error_rate_is_that_of_all_pairs_together():
    gold = [[(0, 0), (1, 1)], [(0, 0)]]
    assert error_rate(gold, gold) == 0
    assert error_rate([[(0, 1), (1, 0)], [(1, 0)]], gold) == 1
    assert error_rate([[(0, 0)], [(0, 0)]], gold) == pytest.approx(1 - 4 / 5)
    assert error_rate([[], []], [[], []]) == 1


def test_links_tell_about_the_target_when_they_are_right():
    draw = random.Random(3)
    rows = [[draw.randrange(5) for _ in range(4)] for _ in range(60)]
    units = {place: (row, [10 - word for word in reversed(row)]) for place, row in enumerate(rows)}
    right = {place: [(3 - j, j) for j in range(4)] for place in units}
    wrong = {place: [(j, j) for j in range(4)] for place in units}
    assert telling(right, units) > 1.2  # log 5 is all there is to know
    assert abs(telling(wrong, units)) < 0.2


def test_what_was_never_said_before_tells_nothing():
    units = {place: (["x"], [place]) for place in range(10)}
    assert telling({place: [(0, 0)] for place in units}, units) == 0
    assert telling({}, units) == 0


# A language of twelve words and endless names, which says its first word last.


def sentence(draw: random.Random) -> tuple[str, str, list[tuple[int, int]]]:
    count = draw.randint(2, 5)
    words = [f"{draw.choice('bdgk')}{draw.choice('aou')}" for _ in range(count)]
    if draw.random() < 0.6:
        words[draw.randrange(count)] = "X" + "".join(draw.choices("abcdefghi", k=6))
    said = [word if word.startswith("X") else word[::-1] for word in (*words[1:], words[0])]
    return " ".join(words), " ".join(said), sorted([(0, count - 1), *((place, place - 1) for place in range(1, count))])


@pytest.fixture(scope="module")
def spoken() -> tuple[Network, Tokenizer]:
    """A recurrent translator with attention that has learnt the language, but for the names."""
    draw = random.Random(1)
    sources, targets, _ = zip(*(sentence(draw) for _ in range(1200)))
    tokenizer = Word(size=5 + 4 * 12).train([*sources, *targets])
    samples = Translation().samples(Corpus(sources, targets, ("names",)), (tokenizer, None))
    torch.manual_seed(0)
    network = zoo.luong(32, 1, dropout=0.0, reads="both", feeding=False).build(tokenizer.vocabulary)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(200):
        batch = samples.batch([draw.randrange(len(samples)) for _ in range(64)])
        optimizer.zero_grad()
        (network.loss(batch.inputs, batch.targets) / batch.tokens).backward()
        optimizer.step()
    return network.eval(), tokenizer


def test_names_that_no_vocabulary_holds_come_through_attention(spoken: tuple[Network, Tokenizer]):
    network, tokenizer = spoken
    draw = random.Random(2)
    sources, targets, gold = map(list, zip(*(sentence(draw) for _ in range(100))))
    aligner = Aligner(network, (tokenizer, tokenizer), cross_heads(network))
    assert error_rate(aligner.align(sources, targets), gold) < 0.15
    found = translate(network, (tokenizer, tokenizer), sources, Options(beam=3, n_best=2))
    mended = aligner.explain(sources, found, alignment=True, replace_unknown=True)
    named = [place for place, target in enumerate(targets) if "X" in target]
    assert not any("X" in found[place][0].text for place in named)
    assert sum(mended[place][0].text == targets[place] for place in named) > 0.75 * len(named)
    for place, answers in enumerate(mended):
        for was, answer in zip(found[place], answers):
            assert answer.tokens == was.tokens
            assert answer.alignment is not None
            assert {j for _, j in answer.alignment} == set(range(len(answer.text.split())))
            if tokenizer.unknown not in was.tokens:
                assert answer.text == was.text
    only = aligner.explain(sources, found, alignment=False, replace_unknown=True)
    assert [[answer.text for answer in row] for row in only] == [[answer.text for answer in row] for row in mended]
    assert only[0][0].alignment is None


def one_sees(tokenizer: Tokenizer) -> Network:
    """A Transformer that knows nothing but positions; its last head looks at the next one, the others anywhere."""
    torch.manual_seed(3)
    network = zoo.transformer(32, 2, 2, join=PreNorm(), position=Learned(16)).build(tokenizer.vocabulary).eval()
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if ".out." in name or ".down." in name or "table" in name:
                parameter.zero_()
            if "position" in name:
                parameter.copy_(torch.eye(16, 32))
        last = "decoder.wiring.layers.1.cross.sublayer"
        parameters[f"{last}.query.weight"][16:] = 5 * torch.eye(16, 32)
        parameters[f"{last}.key_value.weight"][16:32] = 5 * torch.eye(16, 32).roll(1, dims=1)
    return network


def test_the_best_head_is_found_with_known_alignments_and_without():
    draw = random.Random(5)
    sources, targets, gold = map(list, zip(*(sentence(draw) for _ in range(120))))
    targets = [target.rpartition(" ")[0] for target in targets]
    gold = [links[1:] for links in gold]
    tokenizer = Word().train([*sources, *targets])
    network = one_sees(tokenizer)
    both = tokenizer, tokenizer
    rates = {
        tuple(heads): error_rate(Aligner(network, both, heads).align(sources, targets), gold)
        for heads in candidates(cross_heads(network))
    }
    assert rates[((1, 1),)] == 0
    assert min(rates[((0, 0),)], rates[((0, 1),)], rates[((1, 0),)]) > 0.4
    assert choose_heads(network, both, sources, targets, gold) == [(1, 1)]
    assert choose_heads(network, both, sources, targets) == [(1, 1)]


# Unknown words, by hand.


def put(tokenizer: Tokenizer, source: str, said: list[int], looks: dict[int, int], start: int = 0) -> str:
    """The text of said tokens whose unknown ones attend to these source tokens."""
    read = tokenizer.encode_in_place(source)
    rows = torch.full((len(said), len(read.ids)), 0.01)
    for place, token in looks.items():
        rows[place, token] = 1.0
    aligner = Aligner(zoo.luong(8, 1).build(tokenizer.vocabulary), (tokenizer, tokenizer), [(0, 0)])
    return tokenizer.decode_in_place(said, aligner.instead(source, read, said, rows, start))[0]


def test_a_word_is_put_with_the_space_it_needs():
    tokenizer = Word().train(["he came", "er kam", "he (ja)", "er, ja"])
    unknown = tokenizer.unknown
    said = tokenizer.encode("he came")
    assert put(tokenizer, "Ünsal kam", [unknown, said[1]], {0: 0}) == "Ünsal came"
    assert put(tokenizer, "Ünsal kam", [said[0], unknown], {1: 0}) == "he Ünsal"
    assert put(tokenizer, "er Ünsal", [said[0], unknown], {1: 1}) == "he Ünsal"
    assert put(tokenizer, "er Ünsal", [unknown, said[1]], {0: 1}) == "Ünsal came"
    assert put(tokenizer, "er Ünsal", [unknown, unknown], {0: 1, 1: 0}) == "Ünsal er"
    assert put(tokenizer, "er,Ünsal", [said[0], unknown], {1: 2}) == "he Ünsal"
    bracket = tokenizer.encode("he (")
    assert put(tokenizer, "er (Ünsal", [*bracket, unknown], {2: 2}) == "he (Ünsal"


def test_a_prefix_is_left_as_it_is():
    tokenizer = Word().train(["er kam he came"])
    assert put(tokenizer, "er Ünsal", [tokenizer.unknown, tokenizer.unknown], {0: 1, 1: 1}, start=1) == "Ünsal"


def test_pieces_and_characters_are_put_as_they_stand():
    pieces = WordPiece(size=16).train(["ab abc abc cab bc"] * 3)
    read = pieces.encode_in_place("abc cbac ab")
    within = read.units.index(read.units[-2])
    assert read.units.count(read.units[within]) > 1
    said = pieces.encode("ab")
    assert put(pieces, "abc cbac ab", [*said, pieces.unknown], {len(said): within + 1}) == "ab cbac"
    characters = Character().train(["abc"])
    assert put(characters, "abé", [5, characters.unknown, 6], {1: 2}) == "aéb"


def test_a_tokenizer_that_knows_every_byte_has_nothing_to_replace():
    tokenizer = Byte().train([])
    torch.manual_seed(4)
    network = zoo.transformer(16, 1, 2).build(tokenizer.vocabulary).eval()
    aligner = Aligner(network, (tokenizer, tokenizer), cross_heads(network))
    answer = Answer("né", 0.0, 0.0, tuple(tokenizer.encode("né")), True)
    assert aligner.explain(["é"], [[answer]], alignment=False, replace_unknown=True) == [[answer]]


# Answers and given pairs.


def test_answers_are_aligned_in_their_own_words_whatever_their_tokens():
    torch.manual_seed(4)
    network = zoo.transformer(16, 2, 2).build(LETTERS.vocabulary).eval()
    aligner = Aligner(network, (LETTERS, LETTERS), cross_heads(network))
    texts = ["abc de", "", "j", "a b c d"]
    options = Options(temperature=1.5, n_best=3, max_tokens=12, stop=("e",))
    found = translate(network, (LETTERS, LETTERS), texts, options, prefixes=["a b", "", "c", ""])
    explained = aligner.explain(texts, found, prefixes=["a b", "", "c", ""], stop=options.stop)
    for text, answers in zip(texts, explained):
        for answer in answers:
            assert answer.alignment is not None
            assert {j for _, j in answer.alignment} == (set(range(len(answer.text.split()))) if text else set())
            assert all(i < len(text.split()) for i, _ in answer.alignment)


def test_given_pairs_are_aligned_like_answers_of_the_same_text():
    torch.manual_seed(4)
    network = zoo.transformer(16, 2, 2).build(LETTERS.vocabulary).eval()
    aligner = Aligner(network, (LETTERS, LETTERS), [(1, 0)])
    sources, targets = ["abc de", "j", "", "a b c d"], ["fgh i", "a b", "c", ""]
    answers = [[Answer(target, 0.0, 0.0, tuple(LETTERS.encode(target)), True)] for target in targets]
    explained = aligner.explain(sources, answers)
    assert [list(row[0].alignment or ()) for row in explained] == aligner.align(sources, targets)
    assert aligner.align([], []) == []


def test_a_pair_that_does_not_fit_into_the_model_is_refused_by_its_number():
    network = zoo.transformer(16, 1, 2, position=Learned(8)).build(LETTERS.vocabulary).eval()
    aligner = Aligner(network, (LETTERS, LETTERS), [(0, 0)])
    with pytest.raises(InputError, match="pair 2 has 9 tokens, this model reads 8"):
        aligner.align(["a", "abcdefgh"], ["a", "a"])
    assert choose_heads(network, (LETTERS, LETTERS), ["abcdefgh"], ["a"]) == [(0, 0), (0, 1)]
