"""LoRA: which linear maps get an adapter, what is trained, saved, resumed and merged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.config.recipe import read_recipe
from regard.errors import CannotResume, DamagedFile, InputError
from regard.evaluation.plan import plan
from regard.layers.linear import Linear, linear
from regard.layers.lora import LoRA, adapted_maps, add_adapters, changing_parameters, linear_maps
from regard.models import zoo
from regard.store.convert import convert
from tests.layers.test_linear import needs_onednn
from tests.small import TEXTS, save_model, small

RECIPE = """
[model]
init = "{base}"
[text]
train = "{text}"
valid = 0.2
fields = ["text", "label"]
[train]
steps = 6
batch_tokens = 100
learning_rate = 0.05
schedule = "constant"
save_every = 3
valid_every = 3
{optimizer}
lora = {{ rank = 4, match = "*.self.*", alpha = 6, dropout = 0.2 }}
"""
FAMILIES = {
    "transformer": zoo.transformer(width=16, depth=2, heads=2),
    "bert": zoo.bert(width=16, depth=2, heads=2),
    "gpt2": zoo.gpt2(width=16, depth=2, heads=2),
    "t5": zoo.t5(width=16, depth=2, heads=2),
    "reformer": zoo.reformer(width=16, depth=2, heads=2),
    "bahdanau": zoo.bahdanau(width=16),
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    save_model(tmp_path / "base", small(FAMILIES["bert"]))
    lines = [f"{text} {number}\t{'good' if 'dog' in text else 'bad'}" for number in range(6) for text in TEXTS]
    (tmp_path / "text.tsv").write_text("\n".join(["text\tlabel", *lines, ""]))
    return write(tmp_path)


def write(folder: Path, optimizer: str = "") -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(base=folder / "base", text=folder / "text.tsv", optimizer=optimizer))
    return path


def trained(recipe: Path, out: str, *settings: str) -> regard.api.LoadedModel:
    return regard.train(recipe, recipe.parent / out, settings=settings, progress=False, device="cpu")


def weights(model: regard.api.LoadedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in model.network.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_starts_as_its_base_and_trains_only_its_adapters(family: str):
    network = small(FAMILIES[family]).network.train()
    ids = torch.arange(5, 13).view(2, 4)
    inputs = {"ids": ids} if network.shape != "encoder-decoder" else {"ids": ids, "source_ids": ids}
    torch.manual_seed(1)
    before = network.loss(inputs, ids)
    kept = {name: one.detach().clone() for name, one in network.named_parameters()}
    add_adapters(network, LoRA(rank=2))
    assert adapted_maps(network).keys() == linear_maps(network).keys()
    torch.manual_seed(1)
    after = network.loss(inputs, ids)
    torch.testing.assert_close(after, before)
    after.backward()
    assert all(parameter.grad is None for name, parameter in network.named_parameters() if name in kept)
    adapters = [one for name, one in changing_parameters(network).items() if name.endswith(".B")]
    assert adapters
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in adapters)


def test_a_merged_adapter_gives_the_answers_of_the_unmerged_network():
    network = small(FAMILIES["gpt2"]).network.eval()
    add_adapters(network, LoRA(rank=2, alpha=3))
    for adapter in adapted_maps(network).values():
        torch.nn.init.normal_(adapter.B)
    ids = torch.arange(5, 13).view(2, 4)
    merged = small(FAMILIES["gpt2"]).network.eval()
    with torch.no_grad():
        for name, adapter in adapted_maps(network).items():
            merged.get_submodule(name).weight += 1.5 * adapter.B @ adapter.A
        torch.testing.assert_close(merged(ids), network(ids), rtol=1e-5, atol=1e-5)


@needs_onednn
def test_an_adapter_acts_beside_packed_weights(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.layers.linear.ONEDNN", True)
    monkeypatch.setattr("regard.layers.linear._SMALL_PACKED", 1)
    network, x = torch.nn.Sequential(linear(128, 128)).eval(), torch.randn(3, 128)
    (one,) = network
    with torch.no_grad():
        plain = network(x)
        assert isinstance(one, Linear)
        assert one._packed is not None
        add_adapters(network, LoRA(rank=2, alpha=3))
        adapter = adapted_maps(network)["0"]
        torch.nn.init.normal_(adapter.B)
        added = 1.5 * adapter.B @ adapter.A
        torch.testing.assert_close(network(x), plain + x @ added.T, rtol=1e-5, atol=1e-4)
        adapter.B.zero_()
        one.weight.add_(added)  # folded in: packed anew
        torch.testing.assert_close(network(x), plain + x @ added.T, rtol=1e-5, atol=1e-4)


def test_a_match_without_a_linear_map_names_some_that_exist():
    network = small(FAMILIES["bert"]).network
    with pytest.raises(InputError, match=r'matches "\*\.slef\.\*" \(train\.lora\.match\).*encoder\.'):
        add_adapters(network, LoRA(match="*.slef.*"))
    cells = small(FAMILIES["bahdanau"]).network
    with pytest.raises(InputError, match=r"no linear map"):
        add_adapters(cells, LoRA(match="*.cells.*"))


def test_an_adapter_is_small_and_named_and_changes_no_file_of_its_base(recipe: Path):
    before = (recipe.parent / "base/model.safetensors").read_bytes()
    model = trained(recipe, "run")
    run = recipe.parent / "run"
    assert (recipe.parent / "base/model.safetensors").read_bytes() == before
    assert not (run / "model.safetensors").exists()
    assert (run / "adapter_model.safetensors").stat().st_size < len(before)
    assert model.adapters[0].name == str(run)
    assert f"LoRA of rank 4 on {len(model.adapters[0].modules)}" in (run / "README.md").read_text()
    model.look("the dog").save(recipe.parent / "page.html")
    assert f"with the adapter {run} (LoRA of rank 4" in (recipe.parent / "page.html").read_text()
    assert [str(law) for law in regard.check(model) if law.verdict == "BROKEN"] == []
    convert(run, recipe.parent / "merged", "regard")
    merged = regard.load(recipe.parent / "merged", device="cpu")
    assert merged.adapters == ()
    named = regard.load(recipe.parent / "base", adapters=[run], device="cpu")
    for other in (merged, named):
        assert all(torch.equal(one, other) for one, other in zip(weights(model).values(), weights(other).values()))
    assert regard.load(run, step=6, device="cpu").classify(TEXTS) == model.classify(TEXTS)


@pytest.mark.parametrize(
    "optimizer",
    [
        "",
        *(
            pytest.param(f"optimizer = {other}", marks=pytest.mark.slow)
            for other in ('"muon"', '"adafactor"', '"lamb"\nema = 0.9')
        ),
    ],
)
def test_a_run_resumes_bit_identically(recipe: Path, optimizer: str):
    write(recipe.parent, optimizer)
    unbroken = weights(trained(recipe, "unbroken"))
    trained(recipe, "broken", "train.steps=3")
    resumed = weights(trained(recipe, "broken"))
    assert all(torch.equal(unbroken[name], resumed[name]) for name in unbroken)


def test_a_run_does_not_resume_on_another_base(recipe: Path):
    trained(recipe, "run", "train.steps=3")
    shutil.rmtree(recipe.parent / "base")
    other = small(FAMILIES["bert"])
    with torch.no_grad():
        next(other.network.parameters()).add_(1)
    save_model(recipe.parent / "base", other)
    with pytest.raises(CannotResume, match=r"model\.init"):
        trained(recipe, "run")
    with pytest.raises(DamagedFile, match="not the one that"):
        regard.load(recipe.parent / "run")


def test_plan_counts_what_is_trained(recipe: Path):
    found = plan(read_recipe(recipe, ["train.steps=2"]), torch.device("cpu"))
    assert 0 < found.trained < sum(found.parameters.values()) / 2
    assert f"trained     {found.trained:,}" in found.text()


REFUSED = {
    "model.words=['dog']": r"model\.words",
    "train.parallel=shard": r"train\.parallel",
    "train.lora.rank=0": r"rank must be 1 or more",
    "train.lora.dropout=1.0": r"train\.lora\.dropout",
    "train.groups=[{match='readout.*',lr_scale=0}]": r"lr_scale is 0",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_settings_that_do_not_fit_are_refused_by_name(recipe: Path, setting: str):
    with pytest.raises(InputError, match=REFUSED[setting]):
        trained(recipe, "run", setting)


def test_an_adapter_needs_a_pretrained_model(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text('[text]\ncorpus = "dates"\n[train]\nlora = { rank = 2 }\n')
    with pytest.raises(InputError, match=r"model\.init"):
        trained(tmp_path / "recipe.toml", "run")
