"""Parts of the caller's own: a Model value is trained, saved, loaded, checked, shown and resumed with them."""

from __future__ import annotations

import os
import signal
import tomllib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.config.recipe import read_parts, read_recipe
from regard.errors import CannotResume, InputError
from regard.layers.contract import Sublayer
from regard.layers.positions import AttentionPosition, AttentionPositionLayer
from regard.layers.scores import Dot, ScoreFunction
from regard.models import zoo
from regard.models.model import Model
from regard.schema import UnknownKind, from_dict, to_dict
from tests import own_parts
from tests.own_parts import Backwards, Cosine, Even, Fading, Flat, Lengths, Mean, Ramp, Sharp
from tests.training.runs import PROCESSES, kill_at
from tests.training.runs import regard as command

FILE = Path(own_parts.__file__)
SMALL = {"width": 16, "depth": 2, "heads": 2}
GPT2 = zoo.gpt2(**SMALL, dropout=0.2)


def changed(model: Model, **changes: object) -> Model:
    """The model with its first self-attention changed."""
    (attention, feed_forward), *rest = model.decoder.layers
    layers = ((replace(attention, **changes), feed_forward), *rest)
    return replace(model, decoder=replace(model.decoder, layers=layers))


def with_mean() -> Model:
    (attention, feed_forward), _ = GPT2.decoder.layers
    return replace(GPT2, decoder=replace(GPT2.decoder, layers=((Mean(), feed_forward), (attention, feed_forward))))


OWN = {
    "sublayer": (with_mean(), Mean),
    "score": (changed(GPT2, score=Cosine()), Cosine),
    "score with a choice": (changed(GPT2, score=Cosine(Flat())), Cosine),
    "embedding position": (zoo.gpt2(**SMALL, position=Ramp(0.02)), Ramp),
    "stack position": (zoo.gpt2(**SMALL, position=Fading()), Fading),
    "pattern": (changed(GPT2, pattern=Even()), Even),
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i} of a short text, {i * i}\n" for i in range(20)))
    return path


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint and of the model."""
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    paths = [*newest.glob("*.safetensors"), folder / "model.safetensors"]
    return {f"{path.name}:{name}": tensor for path in paths for name, tensor in load_file(path).items()}


def identical(one: Path, other: Path) -> bool:
    first, second = tensors(one), tensors(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", OWN)
def test_own_parts_are_trained_saved_loaded_checked_and_shown(name: str, text: Path, tmp_path: Path):
    model, part = OWN[name]
    out = tmp_path / "run"
    trained = regard.train(model, text=text, parts=[part], out=out, steps=5)
    assert trained.description == model
    loaded = regard.load(out, parts=[part])
    assert loaded.description == model
    assert loaded.generate("line", max_tokens=5, seed=1) == trained.generate("line", max_tokens=5, seed=1)
    assert all(result.holds for result in regard.check(loaded))
    loaded.look("line 3 of").save(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert regard.load(out, parts=[part], step=5).description == model


def test_settings_that_are_not_given_are_those_of_regard_init(text: Path, tmp_path: Path):
    regard.train(with_mean(), text=text, out=tmp_path / "run", steps=2, settings=["train.seed=3"])
    from regard.config.init import recipe_for

    expected, found = tomllib.loads(recipe_for([text])), tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())
    assert found["text"] == expected["text"]
    assert found["train"] == expected["train"] | {"steps": 2, "seed": 3, "learning_rate": 1e-3}
    assert found["model"]["decoder"]["layers"][0][0] == {"kind": "mean"}


def test_a_recipe_of_a_model_value_is_read_again(text: Path, tmp_path: Path):
    regard.train(with_mean(), text=text, parts=[Mean], out=tmp_path / "run", steps=2)
    assert read_recipe(tmp_path / "run" / "recipe.toml", parts=[Mean]).model == with_mean()
    again = regard.train(tmp_path / "run" / "recipe.toml", parts=[Mean], out=tmp_path / "again")
    assert again.description == with_mean()
    assert identical(tmp_path / "run", tmp_path / "again")


def test_a_run_of_a_model_value_resumes_bit_identically(text: Path, tmp_path: Path):
    settings = ["train.save_every=2", "train.schedule.kind=constant"]
    train = partial(regard.train, with_mean(), text=text, parts=[Mean], settings=settings)
    train(out=tmp_path / "whole", steps=7)
    for steps in (3, 7, 7):
        train(out=tmp_path / "parts", steps=steps)
    assert identical(tmp_path / "whole", tmp_path / "parts")
    regard.train(tmp_path / "parts" / "recipe.toml", tmp_path / "parts", parts=[Mean], steps=9)
    train(out=tmp_path / "whole", steps=9)
    assert identical(tmp_path / "whole", tmp_path / "parts")
    with pytest.raises(CannotResume, match=r"model\.decoder"):
        regard.train(GPT2, text=text, out=tmp_path / "parts", steps=9)


def train_and_die(text: Path, out: Path) -> None:
    kill_at("inside optimizer.safetensors", 2)
    regard.train(with_mean(), text=text, parts=[Mean], out=out, steps=7, settings=["train.save_every=2"])


def test_a_killed_run_of_a_model_value_resumes_with_the_same_call(text: Path, tmp_path: Path):
    process = PROCESSES.Process(target=train_and_die, args=(text, tmp_path / "run"))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    for out in ("run", "whole"):
        regard.train(with_mean(), text=text, parts=[Mean], out=tmp_path / out, steps=7, settings=["train.save_every=2"])
    assert identical(tmp_path / "run", tmp_path / "whole")


def test_the_command_line_takes_a_file_with_parts(text: Path, tmp_path: Path):
    run, again = tmp_path / "run", tmp_path / "again"
    regard.train(with_mean(), text=text, parts=[Mean], out=run, steps=3)
    recipe = run / "recipe.toml"
    code, _, err = command("train", recipe, "--out", again, "--parts", FILE)
    assert (code, err) == (0, "")
    code, out, err = command("check", again, "--parts", FILE)
    assert (code, err) == (0, ""), out
    page = tmp_path / "page.html"
    code, _, err = command("show", again, "line 3", "--out", page, "--parts", FILE)
    assert (code, page.exists()) == (0, True), err
    # What reads the recipe beside the model needs the parts too: here it finds the text that was held out.
    code, _, err = command("evaluate", again, "--parts", FILE)
    assert (code, "No test text" in err) == (0, True), err
    code, _, err = command("convert", again, tmp_path / "copy", "--to", "regard", "--parts", FILE)
    assert (code, (tmp_path / "copy" / "config.json").exists()) == (0, True), err
    for arguments in (("train", recipe, "--out", tmp_path / "new"), ("check", again), ("score", again)):
        code, _, err = command(*arguments)
        assert code == 2
        assert err.count("\n") == 1
        assert 'unknown kind "mean"' in err
        assert "--parts FILE.py" in err
    code, _, err = command("train", recipe, "--out", tmp_path / "new", "--parts", tmp_path / "nowhere.py")
    assert (code, err.count("\n")) == (2, 1)


def test_a_folder_with_own_parts_needs_them(text: Path, tmp_path: Path):
    regard.train(with_mean(), text=text, out=tmp_path / "run", steps=2)
    with pytest.raises(UnknownKind, match=r'unknown kind "mean" .*parts=\[\.\.\.\] or --parts FILE\.py\.') as caught:
        regard.load(tmp_path / "run")
    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownKind, match="--parts"):
        regard.train(tmp_path / "run" / "recipe.toml", tmp_path / "again")


def test_a_task_of_ones_own_is_trained_and_resumed(text: Path, tmp_path: Path):
    settings = ["text.task=backwards", "train.schedule.kind=constant"]
    train = partial(regard.train, GPT2, text=text, parts=[Backwards], settings=settings)
    train(out=tmp_path / "whole", steps=4)
    for steps in (2, 4):
        train(out=tmp_path / "parts", steps=steps)
    assert identical(tmp_path / "whole", tmp_path / "parts")
    forwards = regard.train(GPT2, text=text, out=tmp_path / "forwards", steps=4)
    backwards = regard.load(tmp_path / "parts")  # a task is no part of a model
    assert not torch.equal(forwards.network.embed.table.weight, backwards.network.embed.table.weight)
    recipe = read_recipe(tmp_path / "parts" / "recipe.toml", ["text.task={kind='backwards', length=30}"], [Backwards])
    assert recipe.text.task == Backwards(30)
    with pytest.raises(InputError, match='unknown kind "backwards"'):
        regard.train(GPT2, text=text, out=tmp_path / "none", settings=["text.task=backwards"])


def test_a_task_of_ones_own_may_classify(tmp_path: Path):
    path = tmp_path / "labels.tsv"
    path.write_text("".join(f"{'word ' * (1 + i % 3)}\t{'ab'[i % 2]}\n" for i in range(20)))
    model = regard.train(
        zoo.bert(**SMALL), text=path, parts=[Lengths], out=tmp_path / "run", steps=3, settings=["text.task=lengths"]
    )
    assert model.classify(["word"])[0].label in ("long", "short")


def test_an_own_score_can_be_named_in_a_recipe(text: Path, tmp_path: Path):
    settings = [f"text.train='{text}'", "text.tokenizer=character", "model.score={kind='my_cosine', sharpness='flat'}"]
    path = tmp_path / "recipe.toml"
    path.write_text('[model]\nname = "gpt2"\nwidth = 16\ndepth = 1\nheads = 2\n[text]\n[train]\nsteps = 2\n')
    model = regard.train(path, tmp_path / "run", settings=settings, parts=[Cosine])
    assert model.description.decoder.layers[0][0].score == Cosine(Flat())
    with pytest.raises(UnknownKind, match='"my_cosine"'):
        read_recipe(path, settings)


MODELS = {name: getattr(zoo, name) for name in zoo.__all__}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_zoo_is_trained_on_twenty_lines(name: str, text: Path, tmp_path: Path):
    arguments = {"width": 16, "depth": 1, "heads": 2}
    known = MODELS[name].__code__.co_varnames
    model = MODELS[name](**{key: value for key, value in arguments.items() if key in known})
    other = tmp_path / "text.reversed"
    other.write_text("".join(f"{line[::-1]}\n" for line in text.read_text().splitlines()))
    regard.train(model, text=(text, other) if model.shape == "encoder-decoder" else text, out=tmp_path / "run", steps=2)
    assert from_dict(Model, tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["model"], where="") == model


@pytest.mark.parametrize("words", ["a\n", "hello world\n", "ab " * 5000])
def test_any_text_is_enough_to_train_on(words: str, tmp_path: Path):
    (tmp_path / "text.txt").write_text(words)
    regard.train(GPT2, text=tmp_path / "text.txt", out=tmp_path / "run", steps=2)


def test_rows_are_no_longer_than_the_positions_of_a_model(text: Path, tmp_path: Path):
    for name, model in (("gpt2", zoo.gpt2(**SMALL)), ("bert", zoo.bert(**SMALL, max_positions=32))):
        if name == "gpt2":
            model = replace(model, embed=replace(model.embed, position=replace(model.embed.position, max_positions=16)))
        trained = regard.train(model, text=text, out=tmp_path / name, steps=2)
        assert trained.config["trained_length"] <= trained.network.max_positions


def test_few_different_targets_are_translated_by_an_encoder_decoder(tmp_path: Path):
    path = tmp_path / "labels.tsv"
    path.write_text("".join(f"text {i}\t{'ab'[i % 2]}\n" for i in range(20)))
    assert (
        regard.train(zoo.transformer(**SMALL), text=path, out=tmp_path / "a", steps=2).translate("text 3") is not None
    )
    assert regard.train(GPT2, text=path, out=tmp_path / "b", steps=2).classify(["text 3"])[0].label in "ab"


@dataclass(frozen=True)
class OwnDot:
    """A class whose kind is regard's own."""

    kind: ClassVar[str] = "dot"

    def build(self, query_width, key_width, heads=1):
        return Dot().build(query_width, key_width, heads)


@dataclass(frozen=True)
class Broken:
    """A part that cannot be built."""

    name: ClassVar[str] = "broken"

    def build(self, width, source_width=None) -> Sublayer:
        raise LookupError("no such layer\nand a second line")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (changed(GPT2, score=OwnDot()), r'"dot" is a kind of regard\'s own .* Give OwnDot another: kind: ClassVar'),
        (changed(GPT2, score=Mean()), r"make no model: .*build\(\)"),
        (
            replace(GPT2, decoder=replace(GPT2.decoder, layers=((Broken(),),))),
            r"make no model: no such layer \(.*model",
        ),
        (changed(GPT2, score=Cosine([1.0])), r"model\.decoder\.layers\[0\]\[0\]\.score\.sharpness"),
    ],
)
def test_parts_that_do_not_work_are_refused_with_one_line(model: Model, message: str, text: Path, tmp_path: Path):
    with pytest.raises(InputError, match=message) as caught:
        regard.train(model, text=text, out=tmp_path / "run", steps=2)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_model_needs_a_text_and_a_recipe_none(text: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"needs a text .*\(text=\)"):
        regard.train(GPT2, tmp_path / "run")
    with pytest.raises(InputError, match=r"names its own text"):
        regard.train("dates", tmp_path / "run", text=text)
    with pytest.raises(InputError, match="no such file"):
        regard.train(GPT2, tmp_path / "run", text=tmp_path / "nowhere.txt")
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(InputError, match="holds only blank lines"):
        regard.train(GPT2, tmp_path / "run", text=tmp_path / "blank.txt")
    with pytest.raises(InputError, match="is trained on pairs"):
        regard.train(zoo.transformer(**SMALL), tmp_path / "run", text=text)


def test_a_slot_offers_the_callers_classes_besides_its_own():
    table = to_dict(OWN["score"][0])
    assert from_dict(Model, table, where="", also=[Cosine]) == OWN["score"][0]
    assert from_dict(Sharp | Flat, "sharp", where="x") == Sharp()
    assert from_dict(Sharp | Flat | None, {"kind": "mean"}, where="x", also=[Mean]) == Mean()
    assert from_dict(tuple[Sharp | Flat, ...], ["flat", "mean"], where="x", also=[Mean]) == (Flat(), Mean())
    with pytest.raises(UnknownKind, match='unknown kind "mean"'):
        from_dict(Sharp, {"kind": "mean"}, where="x", also=[Mean])  # a slot of one class is no union
    with pytest.raises(InputError, match='unknown key "scal"'):
        from_dict(Sharp | Flat, {"kind": "sharp", "scal": 1}, where="x", also=[Mean])


def test_parts_are_the_dataclasses_of_a_file(tmp_path: Path):
    found = {part.__name__ for part in read_parts(FILE)}
    assert found == {"Mean", "Sharp", "Flat", "Cosine", "Ramp", "Fading", "Even", "Backwards", "Lengths"}
    for source, message in (
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("x = 1\n", "defines no dataclass"),
    ):
        path = tmp_path / "mine.py"
        path.write_text(source)
        with pytest.raises(InputError, match=message) as caught:
            read_parts(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no such file"):
        read_parts(tmp_path / "nowhere.py")
    (tmp_path / "mine.txt").write_text("x = 1\n")
    with pytest.raises(InputError, match="not a Python file"):
        read_parts(tmp_path / "mine.txt")


def test_a_folder_never_runs_code(text: Path, tmp_path: Path):
    """Neither a recipe nor a config can name a file of parts."""
    regard.train(with_mean(), text=text, out=tmp_path / "run", steps=2)
    (tmp_path / "run" / "parts.py").write_text("import os\nos._exit(7)\n")
    before = os.getpid()
    with pytest.raises(UnknownKind):
        regard.load(tmp_path / "run")
    assert os.getpid() == before


@dataclass(frozen=True)
class Distance:
    def build(self, query_width, key_width, heads=1):
        return DistanceScore()


class DistanceScore(ScoreFunction):
    def compare(self, q, k):
        return -torch.cdist(q, k)


@dataclass(frozen=True)
class Shift(AttentionPosition):
    def build(self, key_width):
        return ShiftLayer()


class ShiftLayer(AttentionPositionLayer):
    def forward(self, x, positions):
        positions = positions[:, None] if positions.dim() == 2 else positions
        return x + positions.to(x.dtype)[..., None].sin()


@pytest.mark.parametrize("change", [{"score": Distance()}, {"position": Shift()}], ids=["score", "position"])
def test_what_an_own_part_does_not_tell_is_not_shown(change: dict[str, object], text: Path, tmp_path: Path):
    model = regard.train(zoo.gpt2(16, 1, 2, **change), text=text, out=tmp_path / "run", steps=2)
    assert all(result.holds for result in regard.check(model))
    model.look("line 3").save(tmp_path / "page.html")


@pytest.mark.parametrize(
    ("parts", "message"),
    [("mine.py", "takes a list of classes"), (Mean, "takes a list of classes"), ([Mean()], "takes a list of classes"),
     ([str], "str is no dataclass"), ([Mean, replace(Mean()).__class__, type("Mean", (Mean,), {})], "both of kind")],
)  # fmt: skip
def test_rubbish_as_parts_is_refused(parts: object, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        regard.load(tmp_path, parts=parts)


def test_a_part_in_the_wrong_field_is_refused():
    with pytest.raises(InputError, match=r"Mean does not fit here \(--set model.position=mean\): it has no attaches"):
        read_recipe("dates", ["model.position=mean"], [Mean])
    with pytest.raises(InputError, match=r"Mean does not fit here \(--set text.task=mean\)"):
        read_recipe("dates", ["text.task=mean"], [Mean])


def test_a_class_whose_kind_is_regards_own_is_refused_on_the_command_line(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Dot:\n"
        "    def build(self, query_width, key_width, heads=1):\n        raise LookupError\n"
    )
    said = r"\"dot\" is a kind of regard's own \(.*model\.score.*\)\. Give Dot another"
    with pytest.raises(InputError, match=said):
        read_recipe("dates", ["model.score=dot"], parts=read_parts(tmp_path / "mine.py"))
