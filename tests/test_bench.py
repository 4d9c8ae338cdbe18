"""The benchmark is fair: both work in turns on the same, and are the same model."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import __main__ as command_line
from bench import harness, results
from bench.text import Bitext, read_bitext
from regard.data.read.corpus import embedded_corpus
from regard.decode.options import Options
from regard.errors import InputError, RunFailed
from regard.layers.join import PreNorm
from regard.layers.recurrent import GRU, LSTM
from regard.layers.scores import Additive, General
from regard.models import zoo
from regard.training.optimizers import Constant
from regard.training.settings import Training

SMALL = zoo.transformer(32, 2, 4, inner=64, decoder_depth=1, dropout=0.0)


def peer_of(row):
    """Skip what needs a peer that is not here."""
    name = {"train": "transformers", "decode": "transformers", "recurrent": "joeynmt.model"}[row]
    remedy = command_line.REMEDIES[name.partition(".")[0]]
    pytest.importorskip(name, reason=f"needs the peer: {remedy}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A few hundred dates in files named as those of Multi30k."""
    path, dates = tmp_path_factory.mktemp("dates"), embedded_corpus("dates", "valid")
    for name, part in (("train", slice(0, 400)), ("test_2016_flickr", slice(400, 420))):
        for suffix, side in (("de", dates.sources), ("en", dates.targets)):
            (path / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in side[part]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def text(folder) -> Bitext:
    """Those dates, read."""
    return read_bitext(folder, 400)


def test_contestants_warm_up_and_then_take_turns():
    worked = []

    def working(name, speed):
        return lambda: worked.append(name) or speed

    result = harness.compare("letters", {"a": working("a", 6.0), "b": working("b", 3.0)}, 3)
    assert "".join(worked) == "ab" + "ab" + "ba" + "ab"
    assert result.speeds == {"a": (6.0, 6.0, 6.0), "b": (3.0, 3.0, 3.0)}
    with pytest.raises(InputError, match="rounds"):
        harness.compare("nothing", {}, 0)


def test_a_ratio_is_the_median_of_rounds_and_not_of_speeds():
    result = harness.Result("noisy", {"us": (10.0, 40.0, 90.0), "peer": (10.0, 20.0, 100.0)})
    assert result.ratio("us", "peer") == harness.Spread(0.95, 1.0, 1.5)
    assert result.speed("peer") == harness.Spread(15.0, 20.0, 60.0)
    assert harness.Spread.of([7.0]) == harness.Spread(7.0, 7.0, 7.0)
    assert "| peer | 20.0 | 15.0 to 60.0 | 1.00 | 0.95 to 1.50 | slow |" in harness.table(
        result, "m/s", {"peer": "slow"}
    )


def test_a_section_replaces_its_own_and_no_other():
    text = results.replace_section("", results.section("Training, dates", "old", {"seed": "1"}))
    text = results.replace_section(text, results.section("Decoding, dates", "kept", {}))
    text = results.replace_section(text, results.section("Training, dates", "new", {"seed": "2"}))
    assert text.startswith("# Results")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Training, dates",
        "## Decoding, dates",
    ]
    assert "new\n\n* seed: 2\n" in text
    assert "kept" in text
    assert "old" not in text


def test_a_command_is_kept_without_where_its_folders_are():
    words = ["decode", "--data", "/somewhere/multi30k", "--model=/elsewhere/run", "--rounds", "9"]
    assert command_line.command(words) == "`python -m bench decode --data multi30k --model run --rounds 9`"


def test_marian_says_what_our_network_says(text):
    pytest.importorskip("transformers")
    from bench.marian import as_marian

    torch.manual_seed(0)
    network = SMALL.build(text.tokenizer.vocabulary).eval()
    with torch.no_grad():
        for weight in network.parameters():  # biases and norms begin as 0 and 1, which would hide a mistake
            weight.add_(0.1 * torch.randn_like(weight))
    model = as_marian(network, text.tokenizer, positions=32).eval()
    source, target = torch.randint(5, text.tokenizer.vocabulary, (2, 3, 9))
    padding = torch.arange(9) < torch.tensor([9, 6, 1])[:, None]
    with torch.inference_mode():
        ours = network(target, source_ids=source, source_padding=padding)
        theirs = model(input_ids=source, attention_mask=padding.long(), decoder_input_ids=target).logits
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("other", [zoo.transformer(32, 1, 4, join=PreNorm()), zoo.gpt2(32, 1, 4)])
def test_a_model_that_marian_is_not_is_refused(text, other):
    pytest.importorskip("transformers")
    from bench.marian import as_marian

    with pytest.raises(InputError, match="no equal"):
        as_marian(other.build(text.tokenizer.vocabulary), text.tokenizer)


def test_both_training_loops_take_the_same_steps(text):
    pytest.importorskip("transformers")
    from bench.marian import as_marian
    from bench.train import PlainLoop, learner

    trainer = learner(text, SMALL, Training(batch_tokens=512, schedule=Constant(), learning_rate=1e-3, seed=3))
    peer = PlainLoop(as_marian(trainer.network, text.tokenizer, positions=256), trainer)
    for _ in range(4):
        ours, (loss, tokens) = trainer.advance(), peer.advance()
        assert ours.tokens == tokens
        assert ours.loss == pytest.approx(loss, rel=1e-4)


def test_both_searches_find_the_same(text):
    pytest.importorskip("transformers")
    from bench.decode import learn, measure

    model = learn(text, SMALL, Training(steps=60, batch_tokens=512, schedule=Constant(20), learning_rate=3e-3, seed=3))
    options = Options(beam=5, length_penalty=0.0, max_tokens=40)
    found = measure(text, model, options, rounds=1, sentences=20, sizes=[8])
    assert found.same >= 19  # a tie may be broken otherwise
    assert found.bleu["regard"] == pytest.approx(found.bleu["transformers"], abs=1.0)
    assert len(set(model.translate(list(text.test.sources), options=options))) > 1


@pytest.mark.parametrize(
    ("cell", "score", "names"), [(LSTM(), General(), ("lstm", "luong")), (GRU(), Additive(), ("gru", "bahdanau"))]
)
def test_joey_says_what_our_network_says(text, cell, score, names):
    """Both of its attentions ask after the cell; with initial states of zeros they are ours, weight by weight."""
    peer_of("recurrent")
    from bench.recurrent import JoeyLoop, as_joey, settings_of
    from bench.train import learner

    description = zoo.luong(16, 2, cell=cell, score=score, direction="bidirectional", dropout=0.0)
    trainer = learner(text, description, Training(batch_tokens=512, seed=3, label_smoothing=0.0))
    with torch.no_grad():
        for name, weight in trainer.network.named_parameters():
            weight.mul_(0.0 if "initial_state" in name or "readout.lm_head.bias" in name else 3.0)
    peer = JoeyLoop(as_joey(settings_of(*names, 16, 2, 0.0), text.tokenizer, 0.0), trainer)
    fill_joey(peer.model, trainer.network)
    losses = []
    for indices in trainer.batches.pool(0, 0)[:3]:
        batch = trainer.samples.batch(indices)
        given = peer.given(batch)
        assert sorted(given.trg_input.tolist()) == sorted(batch.inputs["ids"].tolist())
        assert sorted(given.src.tolist()) == sorted(batch.inputs["source_ids"].tolist())
        with torch.no_grad():
            ours = trainer.network.loss(batch.inputs, batch.targets) / batch.tokens
            losses.append((ours.item(), peer.loss(batch).item()))
    assert len({round(ours, 3) for ours, _ in losses}) == 3
    for ours, theirs in losses:
        assert ours == pytest.approx(theirs, rel=1e-5)


def fill_joey(model, network):
    """Our weights in Joey NMT's model."""
    encoder, decoder = network.encoder.layers[0]["recurrent"], network.decoder.layers[0]["cross"]
    encoder, decoder = encoder.sublayer, decoder.sublayer
    with torch.no_grad():
        model.src_embed.lut.weight.copy_(network.source_embed.table.weight)
        model.trg_embed.lut.weight.copy_(network.embed.table.weight)
        model.decoder.output_layer.weight.copy_(network.readout.lm_head.weight)
        for number, directions in enumerate(encoder.layers):
            for direction, ending in zip(directions, ("", "_reverse")):
                for name, weight in direction.rnn.named_parameters():
                    getattr(model.encoder.rnn, name.replace("l0", f"l{number}{ending}")).copy_(weight)
        for number, step in enumerate(decoder.cells):
            fed = [step.inputs.weight] if number else [decoder.token_projection.weight, step.inputs.weight]
            getattr(model.decoder.rnn, f"weight_ih_l{number}").copy_(torch.cat(fed, dim=1))
            getattr(model.decoder.rnn, f"weight_hh_l{number}").copy_(step.hidden.weight)
            bias = decoder.biases[number - 1] if number else decoder.token_projection.bias
            getattr(model.decoder.rnn, f"bias_ih_l{number}").copy_(bias)
            getattr(model.decoder.rnn, f"bias_hh_l{number}").copy_(
                torch.zeros_like(bias) if step.hidden.bias is None else step.hidden.bias
            )
        answer, state = decoder.out.weight.chunk(2, dim=1)
        model.decoder.att_vector_layer.weight.copy_(torch.cat([state, answer], dim=1))
        model.decoder.att_vector_layer.bias.copy_(decoder.out.bias)
        model.decoder.bridge_layer.weight.zero_()
        attention, theirs = decoder.attention.score, model.decoder.attention
        theirs.key_layer.weight.copy_(getattr(attention, "matrix", getattr(attention, "key_matrix", None))[0].T)
        if hasattr(attention, "vector"):
            theirs.query_layer.weight.copy_(attention.query_matrix[0].T)
            theirs.energy_layer.weight.copy_(attention.vector[0].T)


def test_the_two_of_a_pair_are_alike_in_size():
    peer_of("recurrent")
    from bench.recurrent import as_joey, pairs

    words = SimpleNamespace(vocabulary=8000, pad=0, begin=1, end=2, unknown=3)
    for pair in pairs(256, 2, 0.1):
        ours, theirs = pair.ours.build(words.vocabulary), as_joey(pair.theirs, words, 0.1)
        sizes = [sum(weight.numel() for weight in model.parameters()) for model in (ours, theirs)]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_who_does_not_learn_is_not_measured():
    peer_of("recurrent")
    from bench.recurrent import course

    assert course("ours", [4.0, 3.0, 9.0, 2.0, 1.0], 2) == (3.5, 1.5)
    with pytest.raises(RunFailed, match="theirs did not fall"):
        course("theirs", [3.0, 2.0, 3.0], 1)


def test_a_missing_peer_is_one_line(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("joeynmt.", "bench.recurrent"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("bench.recurrent", raising=False)
    monkeypatch.setitem(sys.modules, "joeynmt", None)
    assert command_line.main(["recurrent", "--threads", "1"]) == InputError.exit_code
    said = capsys.readouterr().err
    assert said == "the peer is not installed (joeynmt). Run `pip install --no-deps -r bench/joey.txt`.\n"
    assert (Path(command_line.__file__).parent / "joey.txt").is_file()


@pytest.mark.parametrize("row", ["train", "recurrent", "decode"])
def test_a_row_is_printed_and_kept_only_when_asked(row, folder, tmp_path, monkeypatch, capsys):
    peer_of(row)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "RESULTS.md")
    words = [row, "--data", str(folder), "--rounds", "1", "--threads", "1", "--batch-tokens", "256"]
    words += ["--width", "16", "--depth", "1", "--vocabulary", "400"]
    words += ["--steps", "4"] if row == "recurrent" else ["--steps", "2", "--inner", "32"]
    words += ["--sentences", "3", "--batch-sizes", "2,3", "--max-tokens", "4"] if row == "decode" else []
    assert command_line.main(words) == 0
    printed = capsys.readouterr().out
    assert f"| {'Joey NMT' if row == 'recurrent' else 'transformers'} |" in printed
    assert str(folder) not in printed
    assert not results.RESULTS.exists()
    assert command_line.main([*words, "--write"]) == 0
    assert "* seed: 1" in results.RESULTS.read_text()
    assert command_line.main([*words[:3], "--rounds", "0"]) == InputError.exit_code


def test_the_defaults_of_a_row_are_its_own():
    parse = command_line.arguments().parse_args
    chosen = {row: parse([row]) for row in ("decode", "continuous", "serve")}
    assert {row: one.threads for row, one in chosen.items()} == {"decode": None, "continuous": 1, "serve": None}
    assert {row: one.rounds for row, one in chosen.items()} == {"decode": 9, "continuous": 5, "serve": 5}


def test_the_core_brings_no_package_that_only_an_extra_needs() -> None:
    from bench.install import PROJECT, closure

    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    core, served = closure(project["dependencies"], extras), closure(["regard[serve]"], extras)
    assert {"torch", "numpy", "tokenizers", "rich", "markdown-it-py"} <= core
    assert not core & {"pyarrow", "matplotlib", "ctranslate2", "h5py", "fastapi", "onnx", "babel", "sentencepiece"}
    assert {"fastapi", "pydantic"} <= served


def test_an_unknown_extra_is_refused_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench import install

    monkeypatch.setattr(install, "Environment", None)
    monkeypatch.setattr("sys.argv", ["install", "--seconds", "--only", "serv"])
    with pytest.raises(SystemExit):
        install.main()
    assert "no such extra: serv. There are serve" in capsys.readouterr().err


def test_the_seconds_of_torch_the_core_and_each_extra_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench import install

    class Fake:
        def __init__(self, folder: Path) -> None:
            self.folder, self.here = folder.parent, {"pip"}

        def pip(self, verb: str, *arguments: str) -> str:
            if verb == "wheel":
                (self.folder / "regard-0.1.0-py3-none-any.whl").touch()
            else:
                self.here -= {*arguments}
            return ""

        def packages(self) -> set[str]:
            return set(self.here)

        def install(self, package: str) -> tuple[float, float]:
            assert "mido" not in self.here  # an extra is taken out before the next one
            self.here.add("mido" if package.endswith("[music]") else package)
            return 2.0, 1.0

    monkeypatch.setattr(install, "Environment", Fake)
    install.print_seconds(["music", "serve"], "torch")
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows == [f"| {name} | 2.0 | 1.0 |" for name in ("torch", "core, beside torch", "music", "serve")]
