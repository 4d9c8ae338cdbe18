"""Model folders: saving and loading changes nothing; damaged and hostile files are refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard.data.read.corpus import Corpus
from regard.data.tokenize.train import Character, train_tokenizers
from regard.errors import DamagedFile, InputError, RunFailed
from regard.layers.contract import Context, Memory, Sublayer
from regard.models import zoo
from regard.models.model import Network
from regard.store.convert import convert
from regard.store.folder import read_description, read_folder, unique_parameters, write_description, write_weights
from tests.laws.zoo import MODELS
from tests.parity import zoo as published_zoo
from tests.parity.folders import perturbed, save_theirs

TEXT = Corpus(["abc def ghi", "jkl mno"], ["pqr stu", "vwx yz."], ("text",))


def write(folder: Path, name: str = "transformer", *, joint: bool = True) -> None:
    description = MODELS[name]
    corpus = TEXT if description.encoder else Corpus(TEXT.sources, None, ("text",))
    tokenizers = train_tokenizers(Character(joint=joint), corpus)
    torch.manual_seed(5)
    if tokenizers[1] is None:
        network = description.build(tokenizers[0].vocabulary)
    else:
        network = description.build(tokenizers[1].vocabulary, tokenizers[0].vocabulary)
    task = "translate" if network.encoder else "generate"
    write_description(folder, network, tokenizers, task=task, generation_config={"num_beams": 3})
    write_weights(folder, unique_parameters(network))
    (folder / "manifest.json").unlink()  # it would refuse all that is damaged below; tests/store/test_manifest.py


@pytest.mark.parametrize("name", MODELS)
def test_saving_and_loading_changes_nothing(name: str, tmp_path: Path):
    write(tmp_path, name)
    loaded = read_folder(tmp_path, torch.device("cpu"))
    torch.manual_seed(5)
    again = MODELS[name].build(loaded.network.vocabulary)
    expected = dict(again.named_parameters())
    found = dict(loaded.network.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)
    assert loaded.network.description == MODELS[name]


def test_separate_vocabularies_stay_separate(tmp_path: Path):
    write(tmp_path, joint=False)
    model = regard.load(tmp_path)
    assert model.tokenizer.vocabulary != model.target_tokenizer.vocabulary
    assert isinstance(model.translate("abc"), str)


@pytest.mark.parametrize(
    "change",
    [
        {"bos": 2**63}, {"pad": -1}, {"single": [[10**6, 0], [-1, 0]], "pair": [[-1, 0], [-2, 0]]},
        {"single": [[-1, 0]], "pair": [[-1, 0]]}, {"single": [[-1, 5]], "pair": [[-1, 0], [-2, 0]]},
    ],
)  # fmt: skip
def test_special_tokens_outside_the_vocabulary_are_refused(tmp_path: Path, change: dict[str, object]):
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    special_tokens = {"kind": "special_tokens", "bos": 1, "eos": 2, "pad": 0}
    (tmp_path / "config.json").write_text(json.dumps({**config, "special_tokens": [special_tokens, None]}))
    assert regard.load(tmp_path).tokenizer.bos == 1
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "special_tokens": [{**special_tokens, **change}, None]})
    )
    with pytest.raises(DamagedFile, match="tokens that the model does not have"):
        regard.load(tmp_path)


def test_files_have_the_keys_and_permissions_that_others_expect(tmp_path: Path):
    before = os.umask(0o022)
    try:
        write(tmp_path)
    finally:
        os.umask(before)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "regard"
    assert {"architectures", "dtype", "tie_word_embeddings"} <= config.keys()
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o644, path
    content = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"].keys() == {"format", "sha256"}
    assert header["__metadata__"]["format"] == "pt"


def test_the_checksum_is_computed_with_zeros_in_its_place(tmp_path: Path):
    write(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        digest = file.metadata()["sha256"].encode()
    assert hashlib.sha256(content.replace(digest, b"0" * 64)).hexdigest().encode() == digest
    assert int.from_bytes(content[:8], "little") % 8 == 0


def test_weights_without_a_checksum_are_read(tmp_path: Path):
    write(tmp_path)
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors")
    assert regard.load(tmp_path).translate("abc") is not None


def test_any_flipped_or_missing_byte_of_the_weights_is_refused(tmp_path: Path):
    write(tmp_path)
    path, chance = tmp_path / "model.safetensors", random.Random(2)
    intact = path.read_bytes()
    header = 8 + int.from_bytes(intact[:8], "little")
    digest = intact.index(b'"sha256"')
    positions = [*range(8), *range(digest, digest + 30), digest + 74, *(chance.randrange(header) for _ in range(40)),
              *(chance.randrange(header, len(intact)) for _ in range(20))]  # fmt: skip
    for number, at in enumerate(positions):
        flipped = bytes([intact[at] ^ 1 << chance.randrange(8)]) + intact[at + 1 :]
        path.write_bytes(intact[:at] + (flipped if number % 5 else b""))
        with pytest.raises(DamagedFile) as caught:
            regard.load(tmp_path)
        assert "\n" not in str(caught.value)
    path.write_bytes(intact)
    regard.load(tmp_path)


def damaged(folder: Path, change: Callable[[Path], object]) -> str:
    write(folder)
    change(folder)
    with pytest.raises((DamagedFile, InputError)) as caught:
        regard.load(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == (3 if isinstance(caught.value, DamagedFile) else 2)
    return str(caught.value)


def edit_config(**changes):
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["model"].update(changes)
        (folder / "config.json").write_text(json.dumps(config))

    return change


def test_a_truncated_file_of_weights_is_refused(tmp_path: Path):
    def cut(folder: Path) -> None:
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])

    assert "damaged" in damaged(tmp_path, cut)


def test_a_config_that_does_not_fit_the_weights_is_refused_before_anything_is_allocated(tmp_path: Path):
    assert "in config.json" in damaged(tmp_path, edit_config(width=999_996))


def test_missing_and_unknown_tensors_are_named(tmp_path: Path):
    def drop(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors["embed.table.weight"]
        save_file(tensors, folder / "model.safetensors")

    def add(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file({**tensors, "extra": torch.zeros(1)}, folder / "model.safetensors")

    assert "lacks embed.table.weight" in damaged(tmp_path, drop)
    assert "holds extra" in damaged(tmp_path, add)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a": NaN', b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_not_an_object_is_refused(tmp_path: Path, content: bytes):
    assert "config.json" in damaged(tmp_path, lambda folder: (folder / "config.json").write_bytes(content))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_broken_tokenizer_is_refused(tmp_path: Path, content: bytes):
    assert "tokenizer" in damaged(tmp_path, lambda folder: (folder / "tokenizer.json").write_bytes(content))


def test_unknown_kinds_and_keys_are_refused(tmp_path: Path):
    assert "config.json" in damaged(tmp_path, edit_config(embed={"kind": "os.system"}))
    assert "config.json" in damaged(tmp_path, edit_config(surprise=1))


@pytest.mark.parametrize("content", ['{"num_beams": "x"}', '{"num_beams": 2.5}', '{"length_penalty": "a"}', "[]"])
def test_a_broken_generation_config_is_refused(tmp_path: Path, content: str):
    message = damaged(tmp_path, lambda folder: (folder / "generation_config.json").write_text(content))
    assert "generation_config.json" in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"eos_token_id": [[]]}', "eos_token_id"),
        ('{"max_new_tokens": 1000000000}', "max_new_tokens must be 0 to 131,072, got 1,000,000,000"),
        ('{"max_length": 1e9}', "max_length must be 0 to 131,072, got 1,000,000,000"),
        ('{"suppress_tokens": "x"}', "suppress_tokens"),
    ],
)
def test_hostile_settings_of_decoding_are_refused_by_name(tmp_path: Path, content: str, said: str):
    assert said in damaged(tmp_path, lambda folder: (folder / "generation_config.json").write_text(content))


def test_a_config_of_many_layers_is_refused_before_they_are_built(tmp_path: Path):
    def deepen(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["model"]["decoder"]["layers"] *= 20_000
        (folder / "config.json").write_text(json.dumps(config))

    assert re.search(r"config\.json says \d\d,\d{3} layers, the weights hold \d+ tensors", damaged(tmp_path, deepen))


def test_an_initialization_that_cannot_be_drawn_is_refused(tmp_path: Path):
    write(tmp_path, "convs2s")
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"]["embed"]["init_std"] = -1.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match=r"config\.json cannot be used"):
        read_folder(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize("ours", [True, False])
def test_a_model_that_does_not_fit_in_memory_is_refused_before_anything_is_allocated(tmp_path: Path, ours: bool):
    """The weights are a sparse file of about 100 GB, which takes no space on disk."""
    vocabulary = 1_000_000_000
    write(tmp_path, "gpt2") if ours else save_theirs(perturbed(published_zoo.ALL["gpt2"]()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    key, table = ("vocabulary", "embed.table.weight") if ours else ("vocab_size", "transformer.wte.weight")
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**config, key: vocabulary}))
    header, end = {}, 0
    for name, tensor in tensors.items():
        shape = [vocabulary, tensor.shape[1]] if name == table else list(tensor.shape)
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    written = json.dumps(header).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        file.truncate(8 + len(written) + end)
    with pytest.raises(RunFailed, match=rf"does not fit in memory: its [\d,]+ parameters take {2 * end / 1e9:.0f}"):
        read_folder(tmp_path, torch.device("cpu"))


def test_a_config_that_describes_no_model_is_refused(tmp_path: Path):
    assert "config.json" in damaged(tmp_path, edit_config(width=0))


def test_a_pickle_is_refused_by_name(tmp_path: Path):
    def swap(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    assert "is a pickle" in damaged(tmp_path, swap)


def test_a_missing_folder_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match="no such model folder"):
        regard.load(tmp_path / "nowhere")


@dataclass(frozen=True)
class Mean:
    """A part of one's own, as in docs/parts.md: each token gets the mean of all tokens before it."""

    name: ClassVar[str] = "mean"

    def build(self, width: int, source_width: int | None = None) -> Sublayer:
        return MeanLayer()


class MeanLayer(Sublayer):
    def forward(self, x: torch.Tensor, context: Context, memory: Memory = None) -> tuple[torch.Tensor, Memory]:
        before, count = (0, 0) if memory is None else memory
        total = x.cumsum(dim=1) + (0 if memory is None else before[:, None])
        counts = count + torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        counts = counts.expand(x.shape[0], -1)
        return total / counts[..., None], (total[:, -1], counts[:, -1:])


def write_mean(folder: Path) -> Network:
    """A folder with a language model whose attention is replaced by `Mean`."""
    description = zoo.gpt2(16, 1, 2)
    assert description.decoder is not None
    layer: Any = (Mean(), description.decoder.layers[0][1])
    description = replace(description, decoder=replace(description.decoder, layers=(layer,)))
    tokenizers = train_tokenizers(Character(), Corpus(TEXT.sources, None, ("text",)))
    network = description.build(tokenizers[0].vocabulary).eval()
    folder.mkdir(exist_ok=True)
    write_description(folder, network, tokenizers, task="generate", generation_config={})
    write_weights(folder, unique_parameters(network))
    return network


def test_a_part_of_ones_own_is_saved_and_loaded(tmp_path: Path):
    network = write_mean(tmp_path / "a")
    loaded = read_folder(tmp_path / "a", torch.device("cpu"), parts=[Mean])
    assert loaded.network.description == network.description
    assert read_description(tmp_path / "a", parts=[Mean])[0] == network.description
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(loaded.network(ids), network(ids))
    convert(tmp_path / "a", tmp_path / "b", "regard", parts=[Mean])
    assert read_folder(tmp_path / "b", torch.device("cpu"), parts=[Mean]).network.description == network.description


def test_a_folder_names_no_code_so_parts_of_ones_own_must_be_passed(tmp_path: Path):
    write_mean(tmp_path)
    for read in (lambda: read_folder(tmp_path, torch.device("cpu")), lambda: read_description(tmp_path)):
        with pytest.raises(InputError, match=r'unknown kind "mean" .*config.json.*parts=\[') as caught:
            read()
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match='unknown kind "mean"'):
        read_folder(tmp_path, torch.device("cpu"), parts=[MeanLayer])


def test_a_part_of_ones_own_has_no_published_form(tmp_path: Path):
    write_mean(tmp_path / "a")
    with pytest.raises(InputError, match="decoder = mean"):
        convert(tmp_path / "a", tmp_path / "b", "huggingface", parts=[Mean])


# Downloads of hf:org/model from the Hugging Face hub: only plain files.

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOAD = """
import sys, regard
from regard.errors import InputError
try:
    print(regard.load(sys.argv[1], device="cpu").network.vocabulary)
except InputError as error:
    print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs."""

    folder: Path
    requested: list[str]

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def respond(self) -> None:
        path = urlsplit(self.path).path
        names = sorted(file.name for file in self.folder.iterdir())
        if path.startswith("/api/models/org/tiny/revision/"):
            siblings = [{"rfilename": name} for name in names]
            self.send({"id": "org/tiny", "sha": COMMIT, "siblings": siblings})
        elif path.startswith("/api/models/org/tiny/tree/"):
            self.send([{"type": "file", "path": name, "size": (self.folder / name).stat().st_size, "oid": "0" * 40}
                       for name in names])  # fmt: skip
        elif path.startswith("/org/tiny/resolve/") and path.rpartition("/")[2] in names:
            self.requested.append(path.rpartition("/")[2])
            self.send((self.folder / path.rpartition("/")[2]).read_bytes())
        else:
            self.send({"error": "Repository not found"}, 404)

    def send(self, content: object, status: int = 200) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header(
            "Content-Type", "application/octet-stream" if isinstance(content, bytes) else "application/json"
        )
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_model_on_the_hub_is_downloaded_and_loaded(tmp_path: Path):
    Hub.folder, Hub.requested = save_theirs(perturbed(published_zoo.ALL["gpt2"]()), tmp_path / "m"), []
    for name in ("pytorch_model.bin", "modeling.py", "training_args.bin"):
        (Hub.folder / name).write_bytes(b"harm")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "kept"),
                "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}  # fmt: skip

    def load(name: str) -> str:
        command = [sys.executable, "-c", LOAD, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **endpoint})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    try:
        assert load("hf:org/tiny") == "40"
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(Hub.requested)
        assert not any(name.endswith((".bin", ".py")) for name in Hub.requested)
        message = load("hf:org/other")
        assert message.startswith("cannot download hf:org/other")
        assert "\n" not in message
    finally:
        server.shutdown()


@pytest.mark.parametrize("name", ["hf:", "hf:../x", "hf:a/b/c", "hf:a b", "hf:a/b@../x", "hf:http://x/y"])
def test_malformed_names_are_refused_before_any_connection(name: str):
    with pytest.raises(InputError, match="not a name on the hub"):
        regard.load(name)
