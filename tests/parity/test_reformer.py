"""Parity of the Reformer with transformers, with the same random rotations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers as t
from torch import Tensor

from regard.api import load
from regard.decode.generate import Request, generate_tokens
from regard.decode.options import Options
from regard.errors import InputError, Note
from regard.layers.cache import Layout
from regard.layers.contract import Context
from regard.layers.lsh.masks import Chunks, RankWindow
from regard.layers.positions import Axial, Learned
from regard.layers.record import Record
from regard.layers.reversible import Reversible
from regard.models import zoo
from regard.models.readouts import Mean, Tags, Vector, Vocabulary
from regard.store.huggingface.folder import write_huggingface
from tests.parity.folders import close, ours, perturbed, save_theirs
from tests.parity.test_writing import trained
from tests.store.published import edit, refusal
from tests.store.test_tokenizers import write_sentencepiece

SMALL = {
    "vocab_size": 40, "hidden_size": 24, "attention_head_size": 8, "num_attention_heads": 3,
    "attn_layers": ["local", "lsh", "lsh"], "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [8, 16],
    "feed_forward_size": 36, "is_decoder": True, "max_position_embeddings": 128, "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 4, "num_buckets": 4, "num_hashes": 2, "hash_seed": 1, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
ENCODER = {"is_decoder": False}
DECODERS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "lsh": {"attn_layers": ["lsh"]},
    "local": {"attn_layers": ["local", "local"]},
    "longer chunks of buckets": {"lsh_attn_chunk_length": 8},
    "chunks that do not divide each other": {"local_attn_chunk_length": 6},
    "as many buckets as fit": {"num_buckets": None},
    "so many buckets that they are factored": {"num_buckets": None, "lsh_attn_chunk_length": 1,
                                               "local_attn_chunk_length": 2, "max_position_embeddings": 48},
    "factored buckets": {"num_buckets": [2, 4]},
    "one round": {"num_hashes": 1},
    "plain positions": {"axial_pos_embds": False},
    "no neighbouring chunks": {"local_num_chunks_before": 0, "lsh_num_chunks_before": 0},
    "two chunks before": {"local_num_chunks_before": 2, "lsh_num_chunks_before": 2},
    "more chunks before than there are": {"local_num_chunks_before": 4, "lsh_num_chunks_before": 5, "num_hashes": 1},
    "odd": {"attention_head_size": 5, "hidden_act": "gelu", "num_hashes": 3, "layer_norm_eps": 1e-3, "hash_seed": 7},
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "mixed": ENCODER,
    "chunks after": {**ENCODER, "local_num_chunks_after": 1, "lsh_num_chunks_after": 1},
    "more chunks around than there are": {**ENCODER, "local_num_chunks_before": 3, "local_num_chunks_after": 2,
                                          "lsh_num_chunks_before": 3, "lsh_num_chunks_after": 4, "num_hashes": 1},
    "chunks that do not divide each other": {**ENCODER, "local_attn_chunk_length": 6},
    "plain positions": {**ENCODER, "axial_pos_embds": False},
}  # fmt: skip
LENGTHS = [1, 3, 4, 5, 8, 11, 24, 37]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    t.logging.set_verbosity_error()
    with torch.no_grad():
        yield


def made(kind: str, **settings: Any) -> Any:
    """A model of theirs without the bias of the language model head."""
    model = perturbed(getattr(t, f"Reformer{kind}")(t.ReformerConfig(**{**SMALL, **settings})))
    if hasattr(model, "lm_head"):
        model.lm_head.bias.zero_()
    return model


@contextmanager
def exactly(model: Any) -> Iterator[Any]:
    """Their model in double precision: a token that attends only to itself has a score of -1e5, which floats round.

    Their rotations are still drawn in single precision. They also keep the first number of buckets they compute.
    """
    draw, buckets = torch.randn, [(part, part.num_buckets) for part in model.modules() if hasattr(part, "num_buckets")]
    try:
        torch.randn = lambda shape, device=None, dtype=None: draw(shape, device=device).to(dtype)
        yield model.double()
    finally:
        torch.randn = draw
        model.float()
        for part, count in buckets:
            part.num_buckets = count


def texts(length: int, rows: int = 2) -> Tensor:
    return torch.randint(5, 33, (rows, length), generator=torch.Generator().manual_seed(length))


def until_end(output: Tensor, end: int = 39) -> list[int]:
    tokens = output.tolist()
    return tokens[: tokens.index(end)] if end in tokens else tokens


@pytest.mark.parametrize("name", DECODERS)
def test_language_models(name: str, tmp_path: Path):
    model = made("ModelWithLMHead", **DECODERS[name])
    network = ours(save_theirs(model, tmp_path)).network
    for length in LENGTHS:
        with exactly(model) as theirs:
            expected = theirs(texts(length)).logits
        close(network(texts(length)), expected)


@pytest.mark.parametrize("name", ENCODERS)
def test_masked_language_models(name: str, tmp_path: Path):
    model = made("ForMaskedLM", **ENCODERS[name])
    network = ours(save_theirs(model, tmp_path)).network
    for length in LENGTHS:
        with exactly(model) as theirs:
            expected = theirs(texts(length)).logits
        close(network(texts(length)), expected)


@pytest.mark.parametrize(("kind", "settings"), [("ModelWithLMHead", {}), ("ForMaskedLM", ENCODER)])
@pytest.mark.parametrize("length", [4, 11, 24])
def test_padded_batches(kind: str, settings: dict[str, Any], length: int, tmp_path: Path):
    model = made(kind, **settings)
    network = ours(save_theirs(model, tmp_path)).network
    padding = torch.arange(length) < torch.tensor([[length], [length - 3], [2]])
    ids = texts(length, 3).masked_fill(~padding, 0)
    with exactly(model) as theirs:
        expected = theirs(ids, attention_mask=padding.long()).logits
    close(network(ids, padding=padding), expected, padding)


def test_within_one_chunk_attention_is_full_and_equal_to_1e_6(tmp_path: Path):
    model = made("ModelWithLMHead", lsh_attn_chunk_length=32, local_attn_chunk_length=32)
    network = ours(save_theirs(model, tmp_path)).network
    for length in (1, 2, 17, 32):
        expected = model(texts(length)).logits
        assert (network(texts(length)) - expected).abs().max() <= 1e-6 * expected.abs().max()


@pytest.mark.parametrize("settings", [{}, {"num_buckets": [2, 4]}, {"num_buckets": None}])
def test_tokens_fall_into_the_same_buckets(settings: dict[str, Any], tmp_path: Path):
    model = made("ModelWithLMHead", **settings)
    network = ours(save_theirs(model, tmp_path)).network
    found: list[Tensor] = []
    for layer in model.reformer.encoder.layers[1:]:
        layer.attention.self_attention.register_forward_hook(
            lambda module, inputs, output: found.append(output.buckets)
        )
    record = Record()
    network.hidden_states(texts(24), record=record)
    with exactly(model) as theirs:
        theirs(texts(24))
    for number, buckets in enumerate(found, start=1):
        (own,) = record.buckets[f"decoder.{number}.self"]
        attention = network.description.decoder.layers[number][0]
        count = math.prod(attention.pattern.bucket_counts(attention.buckets, 24))
        assert len(own.unique()) > count // 2
        assert torch.equal(own.transpose(2, 3) + count * torch.arange(2)[:, None], buckets)


def test_hidden_states_and_question_answering(tmp_path: Path):
    bare = made("Model", **ENCODER)
    network = ours(save_theirs(bare, tmp_path / "bare")).network
    with exactly(bare) as theirs:
        expected = theirs(texts(24)).last_hidden_state
    close(network.encode(texts(24)), expected)
    assert network.description.readout == Vector(Mean(), None, normalised=False)
    model = made("ForQuestionAnswering", **ENCODER)
    network = ours(save_theirs(model, tmp_path / "spans")).network
    assert isinstance(network.description.readout, Tags)
    with exactly(model) as theirs:
        output = theirs(texts(24))
    close(network(texts(24)), torch.stack([output.start_logits, output.end_logits], -1))


ALL = [("ModelWithLMHead", one) for one in DECODERS.values()] + [("ForMaskedLM", one) for one in ENCODERS.values()]
ALL += [("Model", ENCODER), ("Model", {}), ("ForQuestionAnswering", ENCODER), ("ModelWithLMHead", {"hash_seed": None})]


@pytest.mark.parametrize(("kind", "settings"), ALL)
def test_reading_and_writing_changes_nothing(kind: str, settings: dict[str, Any], tmp_path: Path):
    model = made(kind, **settings)
    loaded = ours(save_theirs(model, tmp_path / "old"))
    write_huggingface(tmp_path / "new", loaded)
    again = type(model).from_pretrained(tmp_path / "new").eval()
    expected, found = model.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("old", "new"))
    both = before.keys() & after.keys() - {"bos_token_id"}
    assert {key: after[key] for key in both} == {key: before[key] for key in both}
    assert ours(tmp_path / "new").network.description == loaded.network.description


@pytest.mark.parametrize("name", ["mixed", "lsh", "chunks that do not divide each other"])
def test_greedy_search_gives_the_same_tokens(name: str, tmp_path: Path):
    model = made("ModelWithLMHead", **DECODERS[name])
    loaded = ours(save_theirs(model, tmp_path))
    for length in (1, 6, 15):
        ids = texts(length)
        found = [one[0].tokens for one in generate_tokens(
            loaded.network, [Request(tuple(row), None, 14) for row in ids.tolist()], Options(beam=1), eos=39
        )]  # fmt: skip
        for row, ours_found in zip(ids, found):
            with exactly(model) as theirs:
                output = theirs.generate(
                    row[None], use_cache=False, do_sample=False, max_new_tokens=14, eos_token_id=39
                )
            assert list(ours_found) == until_end(output[0, length:])


def test_the_number_of_buckets_follows_the_length_while_generating(tmp_path: Path):
    model = made("ModelWithLMHead", **DECODERS["as many buckets as fit"])
    loaded = ours(save_theirs(model, tmp_path))
    for length in (1, 6, 15):
        ids = texts(length)
        for row in ids:
            ((found, *_),) = generate_tokens(
                loaded.network, [Request(tuple(row.tolist()), None, 14)], Options(beam=1), eos=39
            )
            for _ in range(14):  # their own loop keeps the buckets of the first text
                with exactly(model) as theirs:
                    row = torch.cat([row, theirs(row[None]).logits[0, -1:].argmax(-1)])
            assert list(found.tokens) == until_end(row[length:])


@pytest.mark.parametrize("name", ["mixed", "chunks that do not divide each other"])
def test_decoding_step_by_step_equals_a_full_pass(name: str, tmp_path: Path):
    network = ours(save_theirs(made("ModelWithLMHead", **DECODERS[name]), tmp_path)).network
    ids, lengths = texts(24), torch.tensor([5, 9])
    context = Context(padding=torch.arange(9) < lengths[:, None], remember=True, record=Record())
    states, memory = network.decode(ids[:, :9], context)
    close(states, network.hidden_states(ids[:, :9], padding=context.padding), context.padding)
    layout = Layout.of_prompts(context.padding)
    for step in range(6):
        record, whole, layout = Record(), Record(), layout.advanced(lengths + step)
        context = Context(start=9 + step, layout=layout, remember=True, record=record)
        following = ids.gather(1, lengths[:, None] + step)
        states, memory = network.decode(following, context, memory)
        padding = torch.arange(10 + step) < lengths[:, None] + step + 1
        again = network.hidden_states(ids[:, : 10 + step], padding=padding, record=whole)
        close(states[:, 0], again[torch.arange(2), lengths + step])
        for layer in record.rows:
            close(record.matrix(layer)[:, :, 0], whole.matrix(layer)[torch.arange(2), :, lengths + step])


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("ModelWithLMHead", {"attn_layers": ["local", "lsh", "full"]}, 'attn_layers = "full"'),
        ("ModelWithLMHead", {"is_decoder": False}, "is_decoder = false"),
        ("ForMaskedLM", {"is_decoder": True}, "is_decoder = true"),
        ("ModelWithLMHead", {"num_hidden_layers": 4}, "num_hidden_layers = 4"),
        ("ModelWithLMHead", {"share_parameters": True}, "share_parameters = true"),
        ("ModelWithLMHead", {"axial_pos_shape": [4, 4, 8]}, "axial_pos_shape must be two numbers"),
        ("ModelWithLMHead", {"axial_pos_embds_dim": [8, 8]}, "axial widths"),
        ("ModelWithLMHead", {"num_buckets": 3}, "buckets must be even"),
        ("ModelWithLMHead", {"num_buckets": [4, 0]}, "num_buckets must be 1 to"),
        ("ModelWithLMHead", {"lsh_attn_chunk_length": 0}, "lsh_attn_chunk_length must be 1 to"),
        ("ModelWithLMHead", {"axial_pos_shape": [8, 8]}, "shapes differ"),
        ("ModelWithLMHead", {"attn_layers": ["lsh", "lsh", "lsh"]}, "the weights lack"),
        ("ForSequenceClassification", ENCODER, "ReformerForSequenceClassification"),
    ],
)
def test_unsupported_settings_are_refused_by_name(kind: str, changes: dict[str, Any], expected: str, tmp_path: Path):
    save_theirs(made(kind, **(ENCODER if "For" in kind else {})), tmp_path)
    edit(tmp_path / "config.json", **changes)
    assert expected in refusal(tmp_path)


def ours_of(**settings: Any) -> Any:
    """A model of ours that the published format can hold."""
    defaults = {
        "width": 24, "depth": 2, "heads": 3, "inner": 36, "attention": ("lsh",), "pattern": Chunks(4), "buckets": 4,
        "position": Axial((8, 8)), "join": Reversible(output="concatenated"), "tied": False,
        "local": None,
    }  # fmt: skip
    return zoo.reformer(**{**defaults, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position": Learned(64)},
        {"shape": "encoder", "activation": "gelu"},
        {"buckets": (2, 4)},
        {"attention": ("local", "lsh")},
    ],
)
def test_our_models_have_the_same_outputs_in_transformers(settings: dict[str, Any], tmp_path: Path):
    model = ours_of(**settings)
    one = replace(model, readout=Vocabulary(tied=False))
    kept = len(settings.get("attention", "1"))  # so that there is one seed
    stack = replace(one.decoder or one.encoder, layers=(one.decoder or one.encoder).layers[:kept])
    one = replace(one, **{"decoder" if one.decoder else "encoder": stack})
    loaded = trained(one)
    write_huggingface(tmp_path, loaded)
    kind = json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    with exactly(getattr(t, kind).from_pretrained(tmp_path).eval()) as theirs:
        expected = theirs(texts(24)).logits
    close(loaded.network(texts(24)), expected)


def test_without_a_seed_each_layer_draws_its_own_rotations(tmp_path: Path):
    loaded = trained(ours_of())
    write_huggingface(tmp_path, loaded)
    assert json.loads((tmp_path / "config.json").read_text())["hash_seed"] is None
    assert torch.equal(ours(tmp_path).network(texts(24)), loaded.network(texts(24)))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"pattern": RankWindow(4)}, 'pattern = "rank_window"'),
        ({"join": Reversible()}, "join.output"),
        ({"tied": True}, "readout.tied"),
        ({"attention": ("full",)}, 'pattern = "full"'),
    ],
)
def test_a_model_without_an_equivalent_is_refused_by_name(settings: dict[str, Any], part: str, tmp_path: Path):
    with pytest.raises(InputError, match="no published form") as caught:
        write_huggingface(tmp_path / "new", trained(ours_of(**settings)))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_bias_of_the_language_model_head_is_ignored_as_in_transformers(tmp_path: Path):
    model = made("ModelWithLMHead")
    torch.nn.init.normal_(model.lm_head.bias)
    with pytest.warns(Note, match="bias of its language model head is ignored"):
        loaded = ours(save_theirs(model, tmp_path / "old"))
    with exactly(model) as theirs:
        expected = theirs(texts(24)).logits
    close(loaded.network(texts(24)), expected)


OLD = {  # as the config.json of the first published Reformer has it
    "attention_probs_dropout_prob": 0.1, "intermediate_size": 3072, "num_chunks_after": 0, "num_chunks_before": 1,
    "output_past": True, "sinusoidal_pos_embds": False, "type_vocab_size": 2, "model_type": None, "hash_seed": None,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 100}},
}  # fmt: skip


def test_an_old_folder_with_a_bpe_spiece_model_generates(tmp_path: Path):
    model = made("ModelWithLMHead", vocab_size=320, eos_token_id=2)
    save_theirs(model, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    edit(tmp_path / "config.json", **OLD)
    write_sentencepiece(tmp_path / "spiece.model", 320, model_type="bpe", character_coverage=0.98)
    loaded = load(tmp_path, device="cpu")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    ids = pieces.encode("The early bird")
    assert loaded.tokenizer.encode("The early bird") == ids
    seeds = [part.seed for layer in loaded.description.decoder.layers for part in layer if hasattr(part, "seed")]
    assert len(set(seeds)) == len(seeds) == 2
    text = loaded.generate("The early bird", max_tokens=6, temperature=0.0)
    for _ in range(6):
        ids.append(int(loaded.network(torch.tensor([ids]))[0, -1].argmax()))
    assert text.startswith(pieces.decode(ids[: ids.index(2)] if 2 in ids else ids))


def test_a_folder_without_a_tokenizer_uses_token_ids(tmp_path: Path):
    save_theirs(made("ModelWithLMHead"), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    with pytest.warns(Note, match="has no tokenizer"):
        loaded = load(tmp_path, device="cpu")
    text = loaded.generate("7 5 39", max_tokens=4, temperature=0.0)
    assert text.startswith("7 5 39 ")
