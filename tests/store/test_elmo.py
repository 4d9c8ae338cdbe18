"""ELMo's published format, compared with the published computation in numpy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import regard
from regard.data.tokenize.characters import text_characters
from regard.errors import DamagedFile, InputError, RegardError
from regard.models import zoo
from regard.models.model import Model, Network
from regard.store.elmo import read_elmo, write_elmo
from regard.store.loading import load_parameters
from tests.small import small

Array = NDArray[Any]
TEXTS = [["Deep", "größte", "words", "x" * 60, "."], [], ["One", "word"]]
CHARACTERS = 50


def options(**changes: Any) -> dict[str, Any]:
    """The published options, but small; `lstm__dim=3` changes an inner one."""
    found: dict[str, Any] = {
        "lstm": {
            "use_skip_connections": True, "projection_dim": 5, "cell_clip": 3, "proj_clip": 3, "dim": 8, "n_layers": 2,
        },
        "char_cnn": {
            "activation": "relu", "filters": [[1, 3], [2, 4], [3, 6]], "n_highway": 2, "embedding": {"dim": 4},
            "n_characters": 262, "max_characters_per_token": CHARACTERS,
        },
        "n_tokens_vocab": 793471,
        "dropout": 0.1,
    }  # fmt: skip
    for name, value in changes.items():
        *path, last = name.split("__")
        table = found
        for key in path:
            table = table[key]
        table[last] = value
    return found


def tensors(settings: dict[str, Any]) -> dict[str, Array]:
    """Random weights by their published names; projections are large enough to be clipped."""
    draw = np.random.default_rng(7)
    cnn, lstm = settings["char_cnn"], settings["lstm"]
    inner, half, cell = cnn["embedding"]["dim"], lstm["projection_dim"], lstm["dim"]
    total = sum(count for _, count in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, inner)}
    for number, (filter_width, count) in enumerate(cnn["filters"]):
        shapes |= {f"CNN/W_cnn_{number}": (1, filter_width, inner, count), f"CNN/b_cnn_{number}": (count,)}
    for number in range(cnn.get("n_highway") or 0):
        shapes |= {f"CNN_high_{number}/{kind}": (total, total) for kind in ("W_carry", "W_transform")}
        shapes |= {f"CNN_high_{number}/{kind}": (total,) for kind in ("b_carry", "b_transform")}
    if total != half:
        shapes |= {"CNN_proj/W_proj": (total, half), "CNN_proj/b_proj": (half,)}
    for direction in range(2):
        for layer in range(lstm.get("n_layers", 1)):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{name}/W_0": (2 * half, 4 * cell), f"{name}/B": (4 * cell,)}
            if cell > half:
                shapes[f"{name}/W_P_0"] = cell, half
    std = {name: 3.0 if name.endswith("W_P_0") else 0.4 for name in shapes}
    return {name: draw.normal(0, std[name], shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder: Path, settings: dict[str, Any], weights: dict[str, Array] | None = None, prefix: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{prefix}options.json").write_text(json.dumps(settings))
    with h5py.File(folder / f"{prefix}weights.hdf5", "w") as file:
        for name, array in (tensors(settings) if weights is None else weights).items():
            file.create_dataset(name, array.shape, dtype="float32", data=array)


def loaded(folder: Path) -> Network:
    model, found = read_elmo(folder)
    network = model.build(1)
    assert found.keys() == dict(network.named_parameters()).keys()
    load_parameters(network, found)
    return network.eval()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def clip(x: Array, bound: float | None) -> Array:
    return x if bound is None else np.clip(x, -bound, bound)


def word_characters(word: str) -> list[int]:
    """The published character ids: bytes, 258 and 259 around a word, 260 for padding; all plus one."""
    inside = {"<S>": [256], "</S>": [257]}.get(word, list(word.encode()[: CHARACTERS - 2]))
    ids = [258, *inside, 259]
    return [number + 1 for number in ids + (CHARACTERS - len(ids)) * [260]]


def published_layers(
    words: list[str], settings: dict[str, Any], weights: dict[str, Array], state: dict[str, Any] | None = None
) -> tuple[list[Array], float]:
    """The states of each layer for one text, T 2P, and the largest number before clipping; `state` is carried on."""
    cnn, lstm = settings["char_cnn"], settings["lstm"]
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    table = np.concatenate([np.zeros((1, w["char_embed"].shape[1])), w["char_embed"]])
    activation = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[cnn["activation"]]
    rows = []
    for word in ["<S>", *words, "</S>"]:
        characters, features = table[word_characters(word)], []
        for number, (filter_width, _) in enumerate(cnn["filters"]):
            kernel, bias = w[f"CNN/W_cnn_{number}"][0], w[f"CNN/b_cnn_{number}"]
            windows = [characters[start : start + filter_width] for start in range(CHARACTERS - filter_width + 1)]
            features.append(activation(np.max([np.einsum("ce,cef->f", x, kernel) for x in windows], axis=0) + bias))
        x = np.concatenate(features)
        for number in range(cnn.get("n_highway") or 0):
            high = {
                name: w[f"CNN_high_{number}/{name}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform")
            }
            carry = sigmoid(x @ high["W_carry"] + high["b_carry"])
            x = carry * np.maximum(x @ high["W_transform"] + high["b_transform"], 0) + (1 - carry) * x
        rows.append(x @ w["CNN_proj/W_proj"] + w["CNN_proj/b_proj"] if "CNN_proj/W_proj" in w else x)
    tokens = np.stack(rows)
    layers, most = [np.concatenate([tokens, tokens], axis=1)], 0.0
    below = [tokens, tokens[::-1]]
    for layer in range(lstm.get("n_layers", 1)):
        for direction in range(2):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            m, c = (state or {}).get(name, (np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"])))
            out = []
            for x in below[direction]:
                i, j, f, o = np.split(np.concatenate([x, m]) @ w[f"{name}/W_0"] + w[f"{name}/B"], 4)
                c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
                most = max(most, np.abs(c).max())
                c = clip(c, lstm.get("cell_clip"))
                m = sigmoid(o) * np.tanh(c)
                if f"{name}/W_P_0" in w:
                    m = m @ w[f"{name}/W_P_0"]
                    most = max(most, np.abs(m).max())
                    m = clip(m, lstm.get("proj_clip"))
                out.append(m + x if layer and lstm.get("use_skip_connections") else m)
            if state is not None:
                state[name] = m, c
            below[direction] = np.stack(out)
        layers.append(np.concatenate([below[0], below[1][::-1]], axis=1))
    return layers, most


KINDS: dict[str, dict[str, Any]] = {
    "published": {},
    "clipped hard": {"lstm__cell_clip": 0.5, "lstm__proj_clip": 0.25},
    "only the cell clipped": {"lstm__proj_clip": None},
    "not clipped": {"lstm__cell_clip": None, "lstm__proj_clip": None},
    "no skip, three layers": {"lstm__use_skip_connections": False, "lstm__n_layers": 3},
    "tanh, one highway": {"char_cnn__activation": "tanh", "char_cnn__n_highway": 1},
    "nothing projected": {"lstm__projection_dim": 13, "lstm__dim": 13, "char_cnn__n_highway": None},
    "options of training": {"char_cnn__n_characters": 261},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_matches_the_published_computation(kind: str, tmp_path: Path):
    settings = options(**KINDS[kind])
    write(tmp_path, settings)
    network, weights = loaded(tmp_path).double(), tensors(settings)
    characters, real = text_characters(TEXTS)
    all_layers: list[torch.Tensor] = []
    with torch.no_grad():
        ids, padding = torch.from_numpy(characters).long(), torch.from_numpy(real)
        network.hidden_states(ids, padding=padding, all_layers=all_layers)
    assert len(all_layers) == settings["lstm"]["n_layers"] + 1
    clipped = 0.0
    for row, words in enumerate(TEXTS):
        expected, most = published_layers(words, settings, weights)
        clipped = max(clipped, most)
        for ours, theirs in zip(all_layers, expected):
            np.testing.assert_allclose(ours[row, : len(words) + 2].numpy(), theirs, atol=1e-10, rtol=1e-10)
    if kind in ("published", "clipped hard"):
        assert clipped > settings["lstm"]["cell_clip"]


def test_the_layer_mix_starts_as_the_mean(tmp_path: Path):
    write(tmp_path, options())
    network = loaded(tmp_path)
    characters, real = text_characters(TEXTS)
    ids, padding = torch.from_numpy(characters).long(), torch.from_numpy(real)
    all_layers: list[torch.Tensor] = []
    with torch.no_grad():
        states = network.hidden_states(ids, padding=padding, all_layers=all_layers)
        vectors = network(ids, padding=padding)
    torch.testing.assert_close(states, torch.stack(all_layers).mean(0))
    torch.testing.assert_close(vectors[0], states[0].mean(0))


def test_padding_and_other_texts_of_the_batch_change_nothing(tmp_path: Path):
    write(tmp_path, options())
    network = loaded(tmp_path)
    characters, real = text_characters(TEXTS)
    ids, padding = torch.from_numpy(characters).long(), torch.from_numpy(real)
    with torch.no_grad():
        together = network.encode(ids, padding)
        on_the_left = network.encode(ids.roll(3, 1)[2:], padding.roll(3, 1)[2:])
        for row, words in enumerate(TEXTS):
            isolated = network.encode(ids[row : row + 1, : len(words) + 2])
            torch.testing.assert_close(together[row, : len(words) + 2], isolated[0])
    torch.testing.assert_close(on_the_left[0, 3:], together[2, :4])


@pytest.mark.parametrize("kind", KINDS)
def test_reading_writing_and_reading_changes_nothing(kind: str, tmp_path: Path):
    settings = options(**KINDS[kind])
    write(tmp_path / "a", settings)
    model, found = read_elmo(tmp_path / "a")
    (tmp_path / "b").mkdir()
    write_elmo(tmp_path / "b", model, found)
    files = sorted(path.name for path in (tmp_path / "b").iterdir())
    assert files == ["manifest.json", "options.json", "weights.hdf5"]
    again, same = read_elmo(tmp_path / "b")
    assert again == model
    assert same.keys() == found.keys()
    assert all(same[name].equal(found[name]) for name in found)
    weights = tensors(settings)
    with h5py.File(tmp_path / "b" / "weights.hdf5") as file:
        assert all((file[name][...] == array).all() for name, array in weights.items())


def test_a_trained_model_is_written_with_the_same_outputs(tmp_path: Path):
    write(tmp_path / "a", options())
    network = loaded(tmp_path / "a")
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "cell.bias" in name:
                parameter.normal_()
    write_elmo(tmp_path / "a", network.description, dict(network.named_parameters()))
    again = loaded(tmp_path / "a")
    ids = torch.from_numpy(text_characters(TEXTS[:1])[0])
    with torch.no_grad():
        torch.testing.assert_close(again.encode(ids), network.encode(ids))


def test_files_may_have_the_names_they_were_published_under(tmp_path: Path):
    write(tmp_path, options(), prefix="elmo_2x8_5_13cnn_2xhighway_")
    model, _ = read_elmo(tmp_path)
    assert model.width == 10
    write(tmp_path, options(), prefix="elmo_other_")
    with pytest.raises(InputError, match=r"holds 2 files called \*_options.json"):
        read_elmo(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"no such model folder: .*nowhere"):
        read_elmo(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no such file: .*options.json"):
        read_elmo(tmp_path)
    (tmp_path / "options.json").write_text(json.dumps(options()))
    with pytest.raises(InputError, match=r"no such file: .*weights.hdf5"):
        read_elmo(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lstm__n_layers": 10**12}, "n_layers is 1000000000000"),
        ({"lstm__n_layers": "2"}, "expected a whole number"),
        ({"lstm__dim": 4}, "lstm.dim 4 is below projection_dim 5"),
        ({"lstm__projection_dim": -5}, "below projection_dim -5"),
        ({"lstm__peephole": True}, 'unknown key "peephole"'),
        ({"lstm__cell_clip": -3}, "cell_clip must be above 0"),
        ({"char_cnn__activation": "gelu"}, '"gelu" is not a choice'),
        ({"char_cnn__filters": []}, "filters is empty"),
        ({"char_cnn__filters": [[1, 3, 5]]}, "expected 2 values, got 3"),
        ({"char_cnn__filters": [[60, 3]]}, "3 filters of width 60 over 50 characters"),
        ({"char_cnn__n_highway": 10**9}, "n_highway is 1000000000"),
        ({"char_cnn__embedding": None}, "expected a table"),
        ({"attention": {}}, 'unknown key "attention"'),
        ({"lstm__dim": 10**15}, r"has .* of \(10, 32\), not \(10, 4000000000000000\)"),
        ({"char_cnn__n_characters": 10**15}, "has char_embed of"),
    ],
)
def test_invalid_options_are_refused(changes: dict[str, Any], expected: str, tmp_path: Path):
    write(tmp_path, options())
    (tmp_path / "options.json").write_text(json.dumps(options(**changes)))
    with pytest.raises(DamagedFile, match=expected) as error:
        read_elmo(tmp_path)
    assert "\n" not in str(error.value)


def _replaced(file: h5py.File, name: str, **how: Any) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, **{"shape": shape, "dtype": "float32", **how})


CELL = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"
DAMAGES: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "missing": (lambda file: file.__delitem__(f"{CELL}/B"), f"lacks {CELL}/B"),
    "missing group": (lambda file: file.__delitem__("CNN"), "lacks CNN "),
    "unknown": (lambda file: file.create_dataset("CNN/more", data=np.zeros(3)), "holds CNN/more"),
    "unknown group": (lambda file: file.create_group("Softmax"), "holds Softmax"),
    "other shape": (lambda file: _replaced(file, "char_embed", shape=(261, 5)), r"char_embed of \(261, 5\)"),
    "group for array": (
        lambda file: (file.__delitem__("char_embed"), file.create_group("char_embed")),
        "holds no array at char_embed",
    ),
    "array for group": (
        lambda file: (file.__delitem__("CNN_proj"), file.create_dataset("CNN_proj", data=np.zeros(2))),
        "holds no group at CNN_proj",
    ),
    "whole numbers": (lambda file: _replaced(file, "char_embed", dtype="int32"), "of int32, not of floats"),
    "words": (lambda file: _replaced(file, "char_embed", dtype=h5py.string_dtype()), "not of floats"),
    "compressed": (
        lambda file: _replaced(file, "char_embed", compression="gzip", data=np.zeros((261, 4))),
        "not hold char_embed itself",
    ),
    "never written": (lambda file: _replaced(file, "char_embed"), "not hold char_embed itself"),
    "in another file": (
        lambda file: _replaced(file, "char_embed", external=[("secret.raw", 0, 261 * 16)]),
        "not hold char_embed itself",
    ),
    "a link out": (
        lambda file: (
            file.__delitem__("char_embed"),
            file.__setitem__("char_embed", h5py.ExternalLink("other.hdf5", "x")),
        ),
        "links to elsewhere at char_embed",
    ),
    "a link to itself": (
        lambda file: (file.__delitem__("CNN"), file.__setitem__("CNN", h5py.SoftLink("/CNN"))),
        "links to elsewhere at CNN",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_do_not_match_the_options_are_refused(damage: str, tmp_path: Path):
    write(tmp_path, options())
    (tmp_path / "secret.raw").write_bytes(bytes(261 * 16))
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other.create_dataset("x", data=np.zeros((261, 4), dtype=np.float32))
    with h5py.File(tmp_path / "weights.hdf5", "r+") as file:
        DAMAGES[damage][0](file)
    with pytest.raises(DamagedFile, match=DAMAGES[damage][1]) as error:
        read_elmo(tmp_path)
    assert "\n" not in str(error.value)
    assert "weights.hdf5" in str(error.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(value: float, tmp_path: Path):
    write(tmp_path, options())
    with h5py.File(tmp_path / "weights.hdf5", "r+") as file:
        file["CNN/b_cnn_0"][0] = value
    with pytest.raises(DamagedFile, match="CNN/b_cnn_0 holds a value that is not finite"):
        read_elmo(tmp_path)


def test_a_file_that_is_not_hdf5_is_damaged(tmp_path: Path):
    write(tmp_path, options())
    intact = (tmp_path / "weights.hdf5").read_bytes()
    for content in (b"", b"PK\x03\x04 not this", intact[: len(intact) // 2], intact[:2000]):
        (tmp_path / "weights.hdf5").write_bytes(content)
        with pytest.raises(DamagedFile, match=r"weights.hdf5 is damaged: .+\. Restore it from a copy"):
            read_elmo(tmp_path)


def test_flipped_bytes_are_refused_or_only_change_numbers(tmp_path: Path):
    write(tmp_path, options())
    intact = (tmp_path / "weights.hdf5").read_bytes()
    draw = np.random.default_rng(11)
    for at in draw.integers(0, len(intact), 60):
        broken = bytearray(intact)
        broken[at] ^= int(draw.integers(1, 256))
        (tmp_path / "weights.hdf5").write_bytes(bytes(broken))
        try:
            _, found = read_elmo(tmp_path)
        except RegardError as error:
            assert "\n" not in str(error)  # noqa: PT017 (either answer is right)
        else:
            assert found["embed.table.weight"].shape == (262, 4)


def test_a_model_that_the_format_cannot_hold_is_refused(tmp_path: Path):
    write(tmp_path, options())
    model, found = read_elmo(tmp_path)
    plain = Model(model.width, model.embed, encoder=None, decoder=model.encoder)
    with pytest.raises(InputError, match="not one encoder"):
        write_elmo(tmp_path, plain, found)
    found["embed.projection.bias"] = found["embed.projection.bias"] / 0
    with pytest.raises(InputError, match="CNN_proj/b_proj holds a value that is not finite"):
        write_elmo(tmp_path, model, found)


def test_a_published_folder_embeds_any_word(tmp_path: Path):
    settings = options()
    weights = tensors(settings)
    write(tmp_path, settings, weights)
    model = regard.load(tmp_path)
    texts = [" ".join(words) for words in TEXTS if words]
    for text, (tokens, vectors) in zip(texts, model.embed(texts, layer=2, tokens=True)):
        expected = published_layers(text.split(), settings, weights)[0][2]
        assert tokens == ["<s>", *text.split(), "</s>"]
        assert len(tokens) == len(vectors)
        assert np.abs(vectors - expected).max() < 1e-4
    assert np.abs(model.embed(texts)[0] - model.embed(texts[:1])[0]).max() < 1e-5
    seen = model.look(texts[1])
    assert seen.source_words[1:-1] == texts[1].split()
    assert "One" in seen.html()
    with pytest.raises(InputError, match="it was made to embed"):
        model.fill("One [MASK]")


def test_the_state_is_carried_from_text_to_text_as_published(tmp_path: Path):
    settings = options()
    weights = tensors(settings)
    write(tmp_path, settings, weights)
    model, texts, state = regard.load(tmp_path), ["One word", "größte words .", "One word"], dict[str, Any]()
    apart = model.embed(texts, layer=2, tokens=True)
    for text, (_, vectors) in zip(texts, model.embed(texts, layer=2, tokens=True, stateful=True)):
        assert np.abs(vectors - published_layers(text.split(), settings, weights, state)[0][2]).max() < 1e-4
    pooled = model.embed(texts, stateful=True)
    assert np.abs(pooled[0] - model.embed(texts)[0]).max() < 1e-5
    assert np.abs(pooled[2] - model.embed(texts)[2]).max() > 1e-3
    assert np.abs(apart[0][1] - apart[2][1]).max() < 1e-5


def test_a_model_without_a_recurrent_state_carries_none():
    for description in (zoo.bert(width=16, depth=1, heads=2), zoo.gpt2(16, 1, 2), zoo.transformer(16, 1, 2)):
        with pytest.raises(InputError, match="recurrent encoder"):
            small(description).embed(["the cat"], stateful=True)
    model = small(zoo.lstm_lm(16, 1))
    first, second = model.embed(["the cat", "the cat"], stateful=True)
    assert np.abs(first - second).max() > 1e-4
