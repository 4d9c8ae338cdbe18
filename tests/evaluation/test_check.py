"""Checking a loaded model: the laws hold on sound models, and a planted mistake breaks its law."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.api import LoadedModel, load
from regard.cli import run
from regard.data.tokenize.train import Byte, Character
from regard.decode import generate
from regard.errors import InputError
from regard.evaluation import check as module
from regard.evaluation import laws
from regard.evaluation.check import LawResult, check, random_probe, round_trip
from regard.evaluation.laws import LAWS, Probe, search_in_batch
from regard.layers import attention
from regard.layers.cache import Cache, Layout
from regard.layers.contract import Context, select
from regard.layers.embedding import CharacterCNN
from regard.layers.lsh.attention import Chunks, RankWindow
from regard.layers.positions import Learned, RelativeBias
from regard.layers.record import Record
from regard.models import model as models
from regard.models import readouts, zoo
from regard.models.model import Model
from regard.models.readouts import VocabularyReadout
from regard.store.folder import unique_parameters, write_description, write_weights
from tests.evaluation.test_evaluate import DOCUMENTS, PAIRS, wrapped
from tests.small import save_model
from tests.small import small as with_one_vocabulary
from tests.store.test_elmo import options
from tests.store.test_elmo import write as write_published

Patch = pytest.MonkeyPatch
TRANSLATOR = zoo.transformer(16, 1, 2)
LANGUAGE_MODEL = zoo.gpt2(16, 1, 2)


def small(description: Model) -> LoadedModel:
    if description.encoder is None:
        return wrapped(description, DOCUMENTS, Byte())
    return wrapped(description, PAIRS, Character(joint=False))


def found(model: LoadedModel, texts: list[str] | None = None) -> dict[str, LawResult]:
    return {finding.law: finding for finding in check(model, texts)}


def broken(model: LoadedModel) -> set[str]:
    return {law for law, finding in found(model, ["ab", "a cab"]).items() if finding.verdict == "BROKEN"}


@pytest.mark.parametrize(
    "description",
    [TRANSLATOR, LANGUAGE_MODEL, zoo.gpt2(16, 1, 2, position=Learned(5)), zoo.gpt2(16, 1, 2, position=RelativeBias())],
)
def test_every_law_holds_or_is_skipped_for_a_reason(description: Model):
    by_law = found(small(description))
    assert by_law.keys() > {law.name for law in LAWS}
    skipped = {law for law, finding in by_law.items() if finding.verdict == "skipped"}
    assert skipped == {law.name for law in LAWS if law.lacks(description)}
    assert not {finding.verdict for finding in by_law.values()} - {"holds", "skipped", "noted"}


FAMILIES = {
    "bahdanau": zoo.bahdanau(16), "bert": zoo.bert(width=16, depth=1, heads=2), "convs2s": zoo.convs2s(16, 1),
    "elmo": zoo.elmo(width=16, inner=16, embed=CharacterCNN(filters=((1, 4), (2, 8)), highways=1)),
    "lstm_lm": zoo.lstm_lm(16, 1), "luong": zoo.luong(16, 1),
    "seq2seq": zoo.seq2seq(16, 1), "sha_rnn": zoo.sha_rnn(16, 1), "t5": zoo.t5(width=16, depth=1, heads=2),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_the_verb_checks_every_family_on_the_users_lines(name: str, tmp_path: Path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text("ab\n\ncab, unknown words\n")
    option = "--source" if FAMILIES[name].shape == "encoder-decoder" else "--text"
    path = save_model(tmp_path / "model", with_one_vocabulary(FAMILIES[name]))
    assert run(["check", str(path), option, str(lines)]) == 0
    assert "BROKEN" not in capsys.readouterr().out


def test_lsh_recall_is_noted_per_layer():
    by_law = found(small(zoo.reformer(16, 2, 2, attention=("lsh",), pattern=RankWindow(8), buckets=8)))
    lines = [finding for law, finding in by_law.items() if law.startswith("LSH recall of ")]
    assert [finding.law.split()[-1] for finding in lines] == ["decoder.0.self", "decoder.1.self"]
    assert all(finding.verdict == "noted" and "[2]: " in finding.detail for finding in lines)
    assert not {finding.verdict for finding in by_law.values()} - {"holds", "skipped", "noted"}


def test_published_chunks_drift_and_are_told_how_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = small(zoo.reformer(16, 1, 2, attention=("lsh",), pattern=Chunks(8), buckets=8))
    write_description(tmp_path, model.network, (model.tokenizer, None), task="", generation_config={})
    write_weights(tmp_path, unique_parameters(model.network))
    assert run(["check", str(tmp_path)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    verdicts = {line[9:].partition("  ")[0]: line.split()[0] for line in lines}
    assert verdicts["the future does not change the past"] == "drifts"
    assert verdicts["recording changes nothing"] == "holds"
    assert "drift as published chunks do" in last
    future = next(line for line in lines if "the future does not change the past" in line)
    assert float(future.partition("largest difference ")[2].split()[0]) > 1e-3


def test_a_law_that_chunks_have_no_part_in_is_broken_with_them_too(monkeypatch: Patch):
    model = small(zoo.reformer(16, 1, 2, attention=("lsh",), pattern=Chunks(8), buckets=8))
    numbers = replace(LAWS[0], error=lambda probe: 1.0)
    monkeypatch.setattr(module, "LAWS", (numbers,))
    assert broken(model) == {numbers.name}


def test_a_model_without_a_decoder_skips_what_needs_one():
    model = replace(TRANSLATOR, decoder=None)
    assert {law.name for law in LAWS if law.lacks(model) is None} == {
        "every weight is a finite number",
        "padding on the right changes nothing",
        "padding on the left changes nothing",
        "a sentence gets the same answer alone and in any batch",
        "recording changes nothing",
        "attention weights sum to one over visible keys",
        "what is shown is what was used",
        "gradients are those of the loss",
        "packed documents do not see each other",
    }
    by_law = found(small(model))
    assert "BROKEN" not in {finding.verdict for finding in by_law.values()}
    assert by_law["the future does not change the past"].detail == "(it has no decoder)"


def blind(patch: Patch, **ignored: None) -> None:
    """Self-attention that does not mind something of its context."""
    visible = attention.SelfAttentionLayer.mask
    patch.setattr(
        attention.SelfAttentionLayer,
        "mask",
        lambda self, queries, keys, context, *rest: visible(self, queries, keys, replace(context, **ignored), *rest),
    )


def the_future_is_seen(patch: Patch) -> None:
    patch.setattr(attention.SelfAttentionLayer, "mask", lambda *arguments: (None, False))


def padding_of_the_source_is_seen(patch: Patch) -> None:
    blind(patch, padding=None)


def documents_are_not_told_apart(patch: Patch) -> None:
    blind(patch, document=None)


def padding_is_counted(patch: Patch) -> None:
    read = models.Network.decode

    def decode(self, ids, context, memory=None):
        states, memory = read(self, ids, context, memory)
        return states * (1 + ids.shape[1] / 100), memory

    patch.setattr(models.Network, "decode", decode)


def padding_on_the_left_stays_there(patch: Patch) -> None:
    patch.setattr(models, "move_padding_right", lambda ids, padding: (ids, padding, None))


def memory_forgets_its_first_slot(patch: Patch) -> None:
    write = attention.write_memory

    def forgetful(*given: object) -> Cache:
        return write(*given).map(lambda tensor: tensor.index_fill(1, torch.tensor([0]), 0))

    patch.setattr(attention, "write_memory", forgetful)


def all_rows_stand_where_the_first_does(patch: Patch) -> None:
    slots = Context.slots

    def same(self, length, device):
        found = slots(self, length, device)
        return found[:1].expand_as(found) if found.dim() == 2 else found

    patch.setattr(Context, "slots", same)


def rows_are_not_reordered(patch: Patch) -> None:
    patch.setattr(laws, "select", lambda memory, rows, *rest: select(memory, rows.sort().values, *rest))
    reordered = Layout.reordered
    patch.setattr(Layout, "reordered", lambda self, parents: reordered(self, parents.sort().values))


def neighbours_matter(patch: Patch) -> None:
    forward = VocabularyReadout.forward
    patch.setattr(
        VocabularyReadout, "forward", lambda self, x, *more: forward(self, x + 0.1 * x.mean(dim=0, keepdim=True), *more)
    )


def sources_in_a_batch_lose_their_padding(patch: Patch) -> None:
    read = generate.encode_sources

    def careless(network, sources, ablation=None):
        longest = max(map(len, sources))
        return read(network, [(*source, *[0] * (longest - len(source))) for source in sources], ablation)

    patch.setattr(generate, "encode_sources", careless)


def looking_takes_another_way(patch: Patch) -> None:
    attend = attention.attend

    def other(score, q, k, v, mask, context, *, causal=False, **more):
        if not context.recording:
            return attend(score, q, k, v, mask, context, causal=causal, **more)
        return attend(score, q, k, v * (1 + 1e-6), mask, context, causal=causal, **more)

    patch.setattr(attention, "attend", other)


def weights_are_shown_too_small(patch: Patch) -> None:
    soft = attention.masked_softmax
    patch.setattr(attention, "masked_softmax", lambda energy, mask: 0.99 * soft(energy, mask))


def weights_are_shown_too_sharp(patch: Patch) -> None:
    soft = attention.masked_softmax
    patch.setattr(attention, "masked_softmax", lambda energy, mask: soft(2 * energy, mask))


def a_gradient_is_detached(patch: Patch) -> None:
    forward = VocabularyReadout.prepare
    patch.setattr(VocabularyReadout, "prepare", lambda self, states: 0.5 * forward(self, states.detach() + states))


def the_loss_has_other_gradients(patch: Patch) -> None:
    backward = readouts.ChunkedCrossEntropy.backward
    larger = staticmethod(lambda ctx, *given: backward(ctx, *(1.1 * g for g in given)))
    patch.setattr(readouts.ChunkedCrossEntropy, "backward", larger)


def weights_are_shown_where_nothing_is_seen(patch: Patch) -> None:
    patch.setattr(attention, "masked_softmax", lambda energy, mask: energy.softmax(-1))


def only_the_last_step_is_recorded(patch: Patch) -> None:
    patch.setattr(Record, "write", lambda self, name, weights: self.rows.update({name: [weights]}))


def nothing_seen_is_not_a_number(patch: Patch) -> None:
    def kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool, scale: float) -> Tensor:
        energy = q @ k.mT * scale
        if is_causal:
            mask = torch.ones(energy.shape[-2:], dtype=torch.bool).tril()
        hidden = None if mask is None else ~mask if mask.dtype == torch.bool else mask == -torch.inf
        return (energy if hidden is None else energy.masked_fill(hidden, -torch.inf)).softmax(-1) @ v

    patch.setattr(F, "scaled_dot_product_attention", kernel)


def weights_are_saved_in_half_the_digits(patch: Patch) -> None:
    write = module.write_weights
    halved = lambda tensors: {name: tensor.bfloat16().float() for name, tensor in tensors.items()}  # noqa: E731
    patch.setattr(module, "write_weights", lambda folder, tensors: write(folder, halved(tensors)))


@pytest.mark.parametrize(
    ("breaks", "description", "law"),
    [
        (the_future_is_seen, LANGUAGE_MODEL, "the future does not change the past"),
        (the_future_is_seen, TRANSLATOR, "the future does not change the past"),
        (memory_forgets_its_first_slot, LANGUAGE_MODEL, "decoding step by step equals one forward pass"),
        (memory_forgets_its_first_slot, TRANSLATOR, "decoding step by step equals one forward pass"),
        (all_rows_stand_where_the_first_does, LANGUAGE_MODEL, "prompts of unequal length continue as if alone"),
        (padding_is_counted, LANGUAGE_MODEL, "padding on the right changes nothing"),
        (padding_of_the_source_is_seen, TRANSLATOR, "padding of the source changes nothing"),
        (padding_on_the_left_stays_there, LANGUAGE_MODEL, "padding on the left changes nothing"),
        (neighbours_matter, LANGUAGE_MODEL, "a sentence gets the same answer alone and in any batch"),
        (sources_in_a_batch_lose_their_padding, TRANSLATOR, "a search finds the same alone and in any batch"),
        (rows_are_not_reordered, LANGUAGE_MODEL, "rows of memory can be repeated, reordered, dropped"),
        (looking_takes_another_way, TRANSLATOR, "recording changes nothing"),
        (weights_are_shown_too_small, LANGUAGE_MODEL, "attention weights sum to one over visible keys"),
        (weights_are_shown_where_nothing_is_seen, TRANSLATOR, "attention weights sum to one over visible keys"),
        (weights_are_shown_too_sharp, LANGUAGE_MODEL, "what is shown is what was used"),
        (a_gradient_is_detached, LANGUAGE_MODEL, "gradients are those of the loss"),
        (a_gradient_is_detached, TRANSLATOR, "gradients are those of the loss"),
        (the_loss_has_other_gradients, LANGUAGE_MODEL, "gradients are those of the loss"),
        (only_the_last_step_is_recorded, LANGUAGE_MODEL, "decoding step by step records what one forward pass does"),
        (nothing_seen_is_not_a_number, TRANSLATOR, "a source without tokens changes no other row"),
        (documents_are_not_told_apart, LANGUAGE_MODEL, "packed documents do not see each other"),
        (weights_are_saved_in_half_the_digits, LANGUAGE_MODEL, "saving and loading changes nothing"),
    ],
)
def test_a_broken_part_breaks_its_law(
    breaks: Callable[[Patch], None], description: Model, law: str, monkeypatch: Patch
):
    monkeypatch.setattr(module, "_MAX_LENGTH", 16)
    model = small(description)
    breaks(monkeypatch)
    assert law in broken(model)


def test_a_weight_that_is_not_a_number_breaks_the_laws_and_is_named():
    model = small(LANGUAGE_MODEL)
    model.network.embed.table.weight.data[7] = torch.nan
    first = check(model)[0]
    assert (first.law, first.verdict, first.error) == ("every weight is a finite number", "BROKEN", 16)


def test_a_tie_that_rounding_decides_is_no_difference(monkeypatch: Patch):
    model = small(LANGUAGE_MODEL)
    forward = VocabularyReadout.forward

    def rounded(self, x):
        """Two tokens above all others and exactly as good, but for a last digit that depends on the batch."""
        logits = forward(self, x)
        logits[..., 20:22] = 50.0
        logits[..., 20 + len(x) % 2] += 50 * torch.finfo(x.dtype).eps
        return logits

    monkeypatch.setattr(VocabularyReadout, "forward", rounded)
    with torch.inference_mode():
        probe = random_probe(model, 0)
        assert laws._disagreements(probe.network, replace_rows(probe)) > 0
        assert search_in_batch(replace_rows(probe)) == 0


def replace_rows(probe: Probe) -> Probe:
    """Two rows, so that their number is even together and odd alone."""
    return replace(probe, inputs={name: tensor[:2] for name, tensor in probe.inputs.items()})


def test_a_tokenizer_that_loses_something_is_noted_and_breaks_nothing():
    model = small(TRANSLATOR)
    assert round_trip(model.tokenizer, ["ab", "xyz"]).detail == "1 of 2 texts; not 'xyz'"
    assert round_trip(model.tokenizer, ["ab"]).detail == "1 of 1 texts"
    assert round_trip(model.tokenizer, ["xyz"]).verdict == "noted"


def test_a_model_that_reads_almost_nothing_and_a_text_without_lines_are_refused():
    with pytest.raises(InputError, match="reads 3 tokens"):
        check(small(zoo.gpt2(16, 1, 2, position=Learned(3))))
    with pytest.raises(InputError, match="no line holds a text"):
        check(small(LANGUAGE_MODEL), ["", " "])


def folder(path: Path, model: LoadedModel) -> Path:
    other = None if model.target_tokenizer is model.tokenizer else model.target_tokenizer
    path.mkdir()
    write_description(path, model.network, (model.tokenizer, other), task="", generation_config={})
    write_weights(path, unique_parameters(model.network))
    return path


def test_the_verb_prints_a_line_a_law_and_ends_well(tmp_path: Path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text("ab\n\ncab\n")
    assert run(["check", str(folder(tmp_path / "model", small(TRANSLATOR))), "--source", str(lines)]) == 0
    said = capsys.readouterr()
    *laws_said, summary = said.out.splitlines()
    assert said.err == ""
    assert len(laws_said) == len(LAWS) + 2
    assert laws_said[1].startswith("holds    decoding step by step equals one forward pass")
    assert laws_said[1].endswith("(allowed 1e-04)")
    assert summary == "All 17 laws hold that apply (1 skipped)."


def test_the_verb_fails_in_one_line_that_names_what_is_broken(tmp_path: Path, monkeypatch: Patch, capsys):
    path = folder(tmp_path / "model", small(LANGUAGE_MODEL))
    documents_are_not_told_apart(monkeypatch)
    assert run(["check", str(path), "--json"]) == 1
    said = capsys.readouterr()
    rows = {row["law"]: row for row in map(json.loads, said.out.splitlines())}
    assert rows["packed documents do not see each other"]["verdict"] == "BROKEN"
    assert rows["packed documents do not see each other"]["error"] > rows["recording changes nothing"]["allowed"] == 0
    assert said.err.count("\n") == 1
    assert f"laws is broken ({path}). Do not rely on this model: " in said.err


def test_the_verb_refuses_the_wrong_kind_of_text(tmp_path: Path, capsys):
    path = folder(tmp_path / "model", small(LANGUAGE_MODEL))
    assert run(["check", str(path), "--source", "x"]) == 2
    assert "Give --text." in capsys.readouterr().err


def test_help_needs_no_torch_and_gives_an_example():
    program = "import sys; sys.modules['torch'] = None; from regard.cli import run; sys.exit(run(['check', '--help']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, "Example: regard check" in done.stdout) == (0, True), done.stderr


def test_a_model_that_reads_characters_keeps_the_laws(tmp_path: Path):
    write_published(tmp_path, options())  # no vocabulary: it reads any word
    results = {result.law: result.verdict for result in check(load(tmp_path, device="cpu"))}
    assert "BROKEN" not in results.values()
    assert results["gradients are those of the loss"] == "holds"


def test_a_row_that_stays_zero_is_no_wrong_gradient():
    embed = CharacterCNN(filters=((1, 4), (2, 4)), highways=1, characters=12)
    model = wrapped(zoo.elmo(width=8, inner=8, embed=embed, clip=None), DOCUMENTS, Character())
    assert all(result.holds for result in check(model))
