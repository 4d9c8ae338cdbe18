"""Attention trace: the weights of every layer and head, words, summaries, and any rows of a long text."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.api import LoadedModel
from regard.data.tokenize.tokenizer import SpecialTokens, Tokenizer
from regard.data.tokenize.train import BPE, Character, WordPiece
from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.lsh import banded
from regard.layers.lsh.masks import Chunks, RankWindow
from regard.layers.record import Record
from regard.models import zoo
from regard.show import collect as module
from regard.show.collect import BlockwiseRecord, Collector
from regard.show.summary import Side, side_of, top_keys
from regard.show.trace import AttentionTrace
from tests.laws import zoo as laws
from tests.layers.test_record import ATTENTION_MODELS, Largest, LazyRecord, inputs_for
from tests.small import TEXTS, WORDPIECE, small

TEXT = "The cat sat on the mat."
WEIGHTS = {
    "encoder.0.self": torch.rand(2, 3, 3),
    "decoder.0.cross": torch.rand(2, 4, 3),
    "decoder.1.self": torch.rand(2, 4, 4),
    "decoder.1.cross": torch.rand(2, 4, 3),
}


def given_trace(*alignment_heads: tuple[int, int]) -> AttentionTrace:
    return AttentionTrace(list("abc"), list("wxyz"), WEIGHTS, alignment_heads)


def translator(**more: object) -> LoadedModel:
    return small(zoo.transformer(16, 2, 2, **more), generation_config={"max_new_tokens": 8, "num_beams": 3})


def test_an_alignment_is_the_mean_of_the_alignment_heads():
    one, other = WEIGHTS["decoder.0.cross"], WEIGHTS["decoder.1.cross"]
    torch.testing.assert_close(given_trace((1, 0)).alignment(), other[0])
    torch.testing.assert_close(given_trace((0, 1), (1, 0), (1, 1)).alignment(), (one[1] + other[0] + other[1]) / 3)
    torch.testing.assert_close(given_trace().alignment(), (one.sum(0) + other.sum(0)) / 4)


def test_without_a_source_there_is_no_alignment():
    with pytest.raises(InputError, match="has no cross-attention"):
        AttentionTrace([], ["a"], {"decoder.0.self": torch.ones(1, 1, 1)}).alignment()


def test_given_weights_make_a_trace():
    found = given_trace()
    assert found.source_words == list("abc")
    assert list(found.sides) == ["source", "decoder_input", "target"]
    assert found.entropy["decoder.0.cross"].shape == (2,)
    assert torch.equal(found.rows("decoder.1.self", 1, 1, 3), WEIGHTS["decoder.1.self"][1, 1:3])
    assert torch.equal(found.maximum("cross"), torch.cat([WEIGHTS[f"decoder.{n}.cross"] for n in (0, 1)]).amax(0))
    with pytest.raises(InputError, match="the value norms"):
        found.norm_weighted("decoder.0.cross")


def test_an_encoder_only_trace_includes_special_tokens():
    model = small(zoo.bert(16, 2, 2, max_positions=32))
    found = model.look("the cat sat")
    row = [WORDPIECE.bos, *WORDPIECE.encode("the cat sat"), WORDPIECE.eos]
    assert (found.source_tokens, found.target_tokens) == (WORDPIECE.token_texts(row), [])
    assert found.source_words == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert (found.target_words, list(found.sides)) == ([], ["source"])
    assert [tuple(weights.shape) for weights in found.encoder_attentions] == [(1, 2, len(row), len(row))] * 2
    torch.testing.assert_close(found.encoder_attentions[0].sum(-1), torch.ones(1, 2, len(row)))
    assert (found.decoder_attentions, found.cross_attentions) == ((), ())
    with pytest.raises(InputError, match="has no cross-attention"):
        found.alignment()
    with pytest.raises(
        InputError, match=r'no layer of kind "cross" was traced. Traced layers: encoder.0.self, encoder.1.self'
    ):
        found.mean("cross")
    with pytest.raises(InputError, match="has no decoder"):
        model.look("the cat", "sat")
    with pytest.raises(InputError, match="only a language model"):
        model.look("the cat", length=2)


def test_a_prompt_is_traced_with_its_first_special_tokens():
    bare = Tokenizer.from_json(WORDPIECE.to_json(), SpecialTokens(single=((-1, 0),), pair=((-1, 0), (-2, 0))))
    texts = [small(zoo.gpt2(16, 1, 2), (one,)).look("the cat").target_tokens for one in (WORDPIECE, bare)]
    assert texts[0] == [*WORDPIECE.token_texts([WORDPIECE.bos]), *texts[1]]


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in ATTENTION_MODELS if name in laws.MODELS])
def test_tracing_in_blocks_gives_the_same_weights_and_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    network = laws.build(name)
    inputs = {key: value[:1] for key, value in inputs_for(network.description).items()}
    record = Record()
    states = network.hidden_states(**inputs, record=record)
    monkeypatch.setattr(module, "_BLOCK", 40)
    collector = Collector(network, inputs)
    full = BlockwiseRecord(shapes=collector.shapes, plans=collector.plans)
    assert torch.equal(network.hidden_states(**inputs, record=full), states)
    monkeypatch.setattr(module, "_BUDGET", 400)
    for layer, known in Collector(network, inputs).layers.items():
        matrix = record.matrix(layer)[0]
        torch.testing.assert_close(full.layers()[layer].weights, matrix, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(known.confidence, matrix.amax(-1).mean(-1))
        entropy = torch.special.entr(matrix / matrix.sum(-1, keepdim=True)).sum(-1) / math.log(2)
        torch.testing.assert_close(known.entropy, entropy.mean(-1), atol=1e-5, rtol=1e-5)
        assert (known.weights is None) == (known.tiles is not None) == (known.top is not None)
        if known.top is None:
            continue
        keys, most = known.top
        torch.testing.assert_close(most, matrix.topk(keys.shape[-1]).values, atol=1e-6, rtol=1e-5)
        taken = matrix.gather(-1, keys.long().clamp_min(0)) * (keys >= 0)
        torch.testing.assert_close(taken, most, atol=1e-6, rtol=1e-5)
        tiles = known.tiles.shape[-1]
        rows, columns = (torch.arange(size) * tiles // size for size in matrix.shape[1:])
        for row, column in ((0, 0), (tiles - 1, 0), (tiles // 2, tiles // 2)):
            part = matrix[:, rows == row][:, :, columns == column]
            torch.testing.assert_close(known.tiles[:, row, column], part.amax((1, 2)), atol=1e-6, rtol=1e-5)


def stepped(model: LoadedModel, found: AttentionTrace) -> Record:
    """The record of decoding the same target token by token."""
    record, network = Record(lambda name: name.startswith("decoder")), model.network
    inputs, memory = found.example.collector.inputs, None
    source = network.encode_source(inputs["source_ids"]) if "source_ids" in inputs else None
    for at in range(inputs["ids"].shape[1]):
        context = Context(source=source, start=at, remember=True, record=record)
        _, memory = network.decode(inputs["ids"][:, at : at + 1], context, memory)
    return record


@torch.no_grad()
@pytest.mark.parametrize("beam", [1, 4, None])
@pytest.mark.parametrize(
    "description", [zoo.transformer(16, 2, 2), zoo.luong(16, 2), zoo.bahdanau(16), zoo.convs2s(16, 2)]
)
def test_rows_follow_the_best_hypothesis(description: object, beam: int | None):
    model = small(description, generation_config={"max_new_tokens": 8, "num_beams": 3})
    found = model.look(TEXT, beam=beam)
    options = model.defaults()
    best = model.translations([TEXT], options if beam is None else options.__class__(beam=beam, max_tokens=8))[0][0]
    assert found.example.target_ids == [*best.tokens, WORDPIECE.eos]
    record = stepped(model, found)
    assert record.rows.keys() == {name for name in found.weights if name.startswith("decoder")}
    for name in record.rows:
        torch.testing.assert_close(found.weights[name], record.matrix(name)[0], atol=1e-5, rtol=1e-4)
    assert (found.example.beams is None) == (beam == 1)


def test_a_language_model_is_traced_with_its_target_and_its_continuation():
    model = small(zoo.gpt2(16, 2, 2))
    with_target, joined = model.look("the cat", " sat"), model.look("the cat sat")
    assert with_target.target_tokens == joined.target_tokens
    further = model.look("the cat", " sat", length=3)
    generated = model.generate("the cat sat", max_tokens=3, top_k=1)
    assert further.target_tokens[: len(joined.target_tokens)] == joined.target_tokens
    assert model.tokenizer.decode(further.example.target_ids) == generated
    assert further.weights["decoder.1.self"].shape[-1] == len(further.target_tokens) == len(joined.target_tokens) + 3
    torch.testing.assert_close(
        further.weights["decoder.1.self"][:, : len(joined.target_tokens), : len(joined.target_tokens)],
        joined.weights["decoder.1.self"],
    )


def test_layers_are_chosen_by_name_or_pattern():
    model = translator()
    assert list(model.look(TEXT, TEXT, "decoder.*.cross").weights) == ["decoder.0.cross", "decoder.1.cross"]
    assert list(model.look(TEXT, TEXT, ["encoder.1.self", "decoder.0.*"]).weights) == [
        "encoder.1.self", "decoder.0.self", "decoder.0.cross",
    ]  # fmt: skip
    with pytest.raises(
        InputError, match=r'named "decoder.7.cross" \(layers\). Known: encoder.0.self, .*decoder.1.cross'
    ):
        model.look(TEXT, TEXT, ["encoder.*", "decoder.7.cross"])
    assert dict(small(zoo.seq2seq(16, 1)).look(TEXT, TEXT).weights) == {}


def test_subwords_are_merged_and_special_tokens_are_words_of_their_own():
    model = translator()
    found = model.look("catsat played", "the park")
    sides = found.sides
    assert sides["source"].word_texts == found.source_words == ["catsat", "played", "[SEP]"]
    assert sides["target"].word_texts == found.target_words == ["the", "park", "[SEP]"]
    assert sides["decoder_input"].word_texts == ["[CLS]", "the", "park"]
    assert sides["decoder_input"].tokens == ["[CLS]", *found.target_tokens[:-1]]
    for side in sides.values():
        assert [token for first, stop in side.word_spans for token in range(first, stop)] == list(
            range(len(side.tokens))
        )
    (first, stop), *_ = sides["source"].word_spans
    assert stop - first > 1
    name = "decoder.1.cross"
    expected = found.weights[name][:, 0, first:stop].sum(-1)
    assert found.by_word(name).shape == (2, 3, 3)
    if sides["target"].word_spans[0] == (0, 1):
        torch.testing.assert_close(found.by_word(name)[:, 0, 0], expected)
    torch.testing.assert_close(found.by_word("decoder.0.self").sum(-1), torch.ones(2, 3))


def test_shifting_right_cuts_the_last_word():
    side = Side.of(["a", "b", "##c"], "a bc", [(0, 1), (2, 3), (3, 4)])
    assert side.word_spans == [(0, 1), (1, 3)]
    assert side.shifted_right("<s>").word_spans == [(0, 1), (1, 2), (2, 3)]
    assert side.shifted_right("<s>").word_texts == ["<s>", "a", "bc"]


@pytest.mark.parametrize("text", ["", "  ", "the cat", "</s> <s>", "\n\n a\tb", "東京 と 犬", "東京と犬", "é\u0301é x"])
def test_words_cover_the_tokens_of_any_text(text: str):
    for tokenizer in (WORDPIECE, BPE(280).train(TEXTS)):
        ids = [tokenizer.bos, *tokenizer.encode(text), tokenizer.eos]
        for side in (side_of(tokenizer, ids, text), side_of(tokenizer, ids)):
            assert [token for first, stop in side.word_spans for token in range(first, stop)] == list(range(len(ids)))
            assert len(side.word_texts) == len(side.word_spans)
            assert side.word_texts[0], side.word_texts[-1] == tuple(tokenizer.token_texts([ids[0], ids[-1]]))


@pytest.mark.parametrize("tokenizer", [Character().train([*TEXTS, " "]), BPE(280).train(TEXTS)])
def test_words_are_those_of_the_text_in_every_view(tokenizer: Tokenizer):
    model = small(zoo.transformer(16, 1, 2), (tokenizer,))
    text, target = "  the cat  sat on", "a dog ran "
    found = model.look(text, target)
    assert found.source_words == [*text.split(), "</s>"]
    assert found.target_words[: len(target.split())] == target.split()
    assert found.by_word("decoder.0.cross").shape[1:] == (len(found.target_words), len(found.source_words))
    assert {link.split("-")[1] for link in found.moses().split()} <= {"0", "1", "2"}
    torch.testing.assert_close(found.by_word("encoder.0.self").sum(-1), torch.ones(2, 5))


def test_a_token_of_spaces_belongs_to_the_next_word_or_else_to_the_last():
    side = Side.of(["▁", "a", "▁", "b", "▁", "</s>"], " a b ", [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 0)])
    assert (side.word_spans, side.word_texts) == ([(0, 2), (2, 5), (5, 6)], ["a", "b", "</s>"])
    assert Side.of(["<s>", "▁", "</s>"], " ", [(0, 0), (0, 1), (0, 0)]).word_spans == [(0, 1), (1, 2), (2, 3)]


def test_the_alignment_is_that_of_the_model():
    model = translator()
    for target in ("the dog ran in the park", "Né à Paris"):
        found = model.look(TEXT, target)
        expected = model.align([TEXT], [target])[0]
        assert found.moses() == " ".join(f"{one}-{other}" for one, other in expected)


def test_summaries_over_layers_and_heads():
    found = translator().look(TEXT, TEXT)
    cross = torch.cat([found.weights[f"decoder.{number}.cross"] for number in range(2)])
    torch.testing.assert_close(found.mean("cross"), cross.mean(0))
    torch.testing.assert_close(found.maximum("cross"), cross.amax(0))
    one, other = (found.weights[f"encoder.{number}.self"].mean(0) for number in range(2))
    eye = torch.eye(len(one))
    torch.testing.assert_close(found.rollout("encoder"), (other + eye) / 2 @ ((one + eye) / 2))
    torch.testing.assert_close(found.rollout("decoder").sum(-1), torch.ones(len(found.target_tokens)))
    with pytest.raises(InputError, match='"encoder" or "decoder"'):
        found.rollout("cross")


@torch.no_grad()
def test_value_norms_are_after_the_output_projection():
    model = translator()
    found, name = model.look(TEXT, TEXT), "encoder.0.self"
    given: list[Tensor] = []
    layer = model.network.encoder.get_submodule("layers.0.self.sublayer")
    hook = layer.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    model.look(TEXT, TEXT)
    hook.remove()
    values = layer.query_key_value(given[0])[0].chunk(3, dim=-1)[2]
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        through = values[:, part] @ layer.out.weight[:, part].T
        expected = found.weights[name][head] * through.norm(dim=-1)
        torch.testing.assert_close(found.norm_weighted(name)[head], expected)


def test_sentinels_are_traced_as_sentinels():
    spans = WordPiece(80, sentinels=3).train(TEXTS * 4)
    model = small(zoo.t5(16, 2, 2), (spans,), generation_config={"max_new_tokens": 4})
    found = model.look("the <extra_id_0> sat")
    assert found.source_tokens == found.source_words == ["the", "<extra_id_0>", "sat", "[SEP]"]
    row = torch.tensor([[*spans.encode("the"), spans.sentinels[0], *spans.encode("sat"), spans.eos]])
    best = model.network(torch.tensor([[spans.bos]]), source_ids=row)[0, -1].argmax()
    assert found.target_tokens[:1] == spans.token_texts([int(best)])
    given = model.look("the <extra_id_0> sat", "<extra_id_0> cat <extra_id_1>")
    assert given.target_tokens == ["<extra_id_0>", "cat", "<extra_id_1>", "[SEP]"]


def test_a_recurrent_decoder_stores_the_keys_of_its_source_once():
    record = LazyRecord()
    network = small(zoo.bahdanau(16)).network
    network.hidden_states(torch.tensor([[1, 5, 6]]), source_ids=torch.tensor([[7, 8, 2]]), record=record)
    parts = record.parts["decoder.0.cross"]
    assert len(parts) == 3
    assert len({part.score_inputs().key.data_ptr() for part in parts}) == 1


def test_lsh_layers_have_buckets():
    model = small(zoo.reformer(16, 2, 2, pattern=RankWindow(4), buckets=4, rounds=3, attention=("lsh", "local")))
    found = model.look(TEXT)
    assert {name: tuple(buckets.shape) for name, buckets in found.buckets.items()} == {
        "decoder.0.self": (2, len(found.target_tokens), 3)
    }
    assert set(found.buckets["decoder.0.self"].unique().tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize("description", [zoo.gpt2(16, 2, 2), zoo.reformer(16, 2, 2, pattern=RankWindow(4), buckets=4)])
def test_the_rows_of_a_long_text_are_computed_on_request(description: object, monkeypatch: pytest.MonkeyPatch):
    model, text = small(description), " ".join(TEXTS * 2)
    whole = model.look(text)
    monkeypatch.setattr(module, "_BUDGET", 1000)
    monkeypatch.setattr(module, "_BLOCK", 200)
    found = model.look(text)
    assert not isinstance(found.weights, dict)
    assert list(found.weights) == list(whole.weights)
    assert len(found.weights) == 2
    for name, weights in whole.weights.items():
        torch.testing.assert_close(found.weights[name], weights)
        for head in (1, 0):
            torch.testing.assert_close(found.rows(name, head, 3, 17), weights[head, 3:17])
        torch.testing.assert_close(found.entropy[name], whole.entropy[name])
        top = found.layers[name].top[1][0]
        torch.testing.assert_close(top, top_keys(weights[0], top.shape[-1])[1])
    assert found.rows(name, 0, 5, 5).shape == (0, len(found.target_tokens))
    monkeypatch.setattr(module, "_MAX_MATRIX", 1000)
    with pytest.raises(
        InputError, match=r"do not fit into memory \(decoder.0.self\). Compute some rows instead: trace.rows"
    ):
        found.weights["decoder.0.self"]
    with pytest.raises(InputError, match=r"head 2 of 'decoder.0.self' was not traced"):
        found.rows("decoder.0.self", 2, 0, 1)
    with pytest.raises(KeyError):
        found.weights["decoder.9.self"]


@pytest.mark.parametrize("attention", ["full", "local", "lsh"])
def test_memory_is_bounded_for_a_text_of_any_length(attention: str, monkeypatch: pytest.MonkeyPatch):
    length, block = 4096, 1 << 17
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module, "_BUDGET", 1_000_000)
    monkeypatch.setattr(module, "_VECTORS", 0)
    pattern = {"pattern": RankWindow(16), "buckets": 64}
    description = zoo.gpt2(8, 1, 1, position=None) if attention == "full" else zoo.reformer(
        8, 1, 1, attention=(attention,), position=None, **pattern
    )  # fmt: skip
    torch.manual_seed(0)
    network = description.build(30).eval()
    collector = Collector(network, {"ids": torch.randint(30, (1, length))})
    with Largest() as largest:
        (layer,) = collector.layers.values()
        rows = collector.rows("decoder.0.self", 0, 4000, 4032)
    assert largest.elements <= 2 * block
    assert layer.weights is None
    torch.testing.assert_close(rows.sum(-1), torch.ones(32))
    torch.testing.assert_close(rows.topk(layer.top[1].shape[-1]).values, layer.top[1][0, 4000:4032])


@pytest.mark.parametrize("pattern", [RankWindow(4), Chunks(4), Chunks(4, 1, 1)])
@pytest.mark.parametrize("attention", ["local", "lsh"])
def test_keys_that_are_listed_have_the_weights_of_whole_rows(attention: str, pattern: RankWindow | Chunks):
    torch.manual_seed(0)
    network = zoo.reformer(16, 1, 2, attention=(attention,), position=None, pattern=pattern, buckets=8, rounds=3)
    record = module.LazyRecord()
    Collector(network.build(30).eval(), {"ids": torch.randint(30, (1, 301))}).forward(record)
    (weights,) = record.weights
    assert weights.most_keys < weights.keys
    for head in range(2):
        rows, blocks = weights.head(head), weights.blocks(head)
        for queries in (slice(0, 300), slice(290, 301)):
            block = blocks(queries)
            found = torch.zeros(len(block.weights), weights.keys).scatter_add_(1, block.keys, block.weights)
            torch.testing.assert_close(found, rows(queries)[0])
            alone = [row[shares > 0] for row, shares in zip(block.keys, block.weights)]
            assert all(len(keys) == len(keys.unique()) for keys in alone)


def test_the_entropy_of_long_causal_attention_is_that_of_its_weights():
    torch.manual_seed(0)
    record = module.LazyRecord()
    Collector(zoo.gpt2(16, 1, 2).build(30).eval(), {"ids": torch.randint(30, (1, 50))}).forward(record)
    (weights,) = record.weights
    for queries in (slice(0, 3), slice(20, 50)):
        block = weights.blocks(1)(queries)
        torch.testing.assert_close(block.weights, weights.head(1)(queries)[0])
        torch.testing.assert_close(block.entropy, -(block.weights * block.weights.clamp_min(1e-30).log2()).sum(-1))


@pytest.mark.parametrize("attention", ["local", "lsh"])
def test_sizes_of_banded_attention_are_known_without_computing_it(attention: str, monkeypatch: pytest.MonkeyPatch):
    network = zoo.reformer(16, 1, 2, attention=(attention,), position=None, pattern=RankWindow(4), buckets=8)
    collector = Collector(network.build(30).eval(), {"ids": torch.randint(30, (1, 50))})
    monkeypatch.setattr(banded, "banded_attention", lambda *_: pytest.fail("computed"))
    assert {(shape.heads, shape.queries, shape.keys) for shape in collector.shapes.values()} == {(2, 50, 50)}


def test_a_rollout_needs_every_layer_of_its_stack():
    model = small(zoo.gpt2(16, 2, 2))
    assert model.look(TEXT).rollout("decoder").shape[0] > 1
    few = model.look(TEXT, layers="decoder.1.self")
    with pytest.raises(InputError, match=r"decoder\.0\.self too"):
        few.rollout("decoder")


def test_sizes_are_known_without_computing_attention(monkeypatch: pytest.MonkeyPatch):
    network = zoo.gpt2(16, 2, 2).build(30).eval()
    collector = Collector(network, {"ids": torch.randint(30, (1, 9))})
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *_, **__: pytest.fail("computed"))
    assert {(shape.heads, shape.queries, shape.keys) for shape in collector.shapes.values()} == {(2, 9, 9)}


def test_heads_that_are_computed_side_by_side_are_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_BLOCK", 500)
    monkeypatch.setattr(module, "_BUDGET", 1000)
    torch.manual_seed(0)
    network, ids, found = zoo.gpt2(16, 2, 4).build(30).eval(), torch.randint(30, (1, 90)), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(Collector(network, {"ids": ids}).layers)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*(layers.values() for layers in found)):
        assert one.weights is None
        for mine, theirs in ((one.tiles, other.tiles), *zip(one.top, other.top)):
            assert torch.allclose(mine.float(), theirs.float())
        assert torch.allclose(one.entropy, other.entropy)


def test_early_queries_of_causal_attention_share_larger_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_BLOCK", 200)
    network = zoo.gpt2(16, 1, 2).build(30).eval()
    collector = Collector(network, {"ids": torch.randint(30, (1, 100))})
    (name,) = collector.shapes
    firsts = [first for first, _ in collector.blocks(name, 0, 0, 100)]
    sizes = [stop - first for first, stop in zip(firsts, [*firsts[1:], 100])]
    assert sizes[0] == 14
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert min(sizes[:-1]) >= 1
