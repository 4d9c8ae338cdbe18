"""Damaged and hostile folders: whatever is done to a file, the model is read, or refused in one line and at once."""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, str(Path(__file__).parent.parent))
import transformers
from sentencepiece import sentencepiece_model_pb2

from regard.cli import run
from regard.store.convert import convert
from tests.parity import zoo
from tests.parity.folders import perturbed, save_theirs
from tests.store import test_elmo, test_sentence_transformers, test_tokenizers
from tests.store.published import shard

SECONDS, MEGABYTES = 10, 300
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 1e-300, 1e308, -1e308, float("nan"), float("inf"), 2**31, 2**63, 2**64,
    10**30, "", "a", "</s>", "\0", "\ud800", "../../etc/passwd", "/dev/zero", "a" * 100_000, [], {}, [[]], [0], [-1],
    {"a": 1}, [1e9, 1e9], ["x"] * 1000, "gelu", "(a+)+$", "<pad>", "Ā" * 300,
]  # fmt: skip
Ablation = Callable[[bytes, random.Random], bytes]


def of_bytes(content: bytes, chance: random.Random) -> bytes:
    """Bytes set, put in, taken out, repeated; or the end cut off."""
    made = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5, 30])):
        place = chance.randrange(len(made) + 1) if chance.random() < 0.5 else chance.randrange(min(len(made), 400) + 1)
        length = chance.choice([1, 1, 2, 8, 100])
        piece = bytes(made[place : place + length])
        given = chance.choice([
            bytes(chance.randrange(256) for _ in range(length)), b"\0" * length, b"\xff" * length, b"", piece * 3,
            chance.choice([b"{", b"[", b'"', b"-1", b"1e999", b"\n", b"\xed\xa0\x80", b"9" * 25, b"[" * 5000]),
        ])  # fmt: skip
        made[place : place + chance.choice([0, length])] = given
    return bytes(made[: chance.randrange(len(made) + 1)] if chance.random() < 0.15 else made)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree, of long lists some."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    keys = list(keys)[:40]
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def of_json(content: bytes, chance: random.Random) -> bytes:
    """Values exchanged for hostile or for one another's, keys renamed, taken out, or repeated in the text."""
    tree = json.loads(content)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        places = _places(tree)
        if not places:
            break
        (held, key), (other, name) = chance.choice(places), chance.choice(places)
        how = chance.random()
        if how < 0.6:
            held[key] = copy.deepcopy(chance.choice(HOSTILE))
        elif how < 0.75:
            held[key] = copy.deepcopy(other[name])
        elif how < 0.9 or not isinstance(held, dict):
            del held[key]
        else:
            held[chance.choice(["", "x", "auto_map", "\0", str(name)])] = held.pop(key)
    text = json.dumps(tree)
    return (text[:-1] + "," + text[1:] if chance.random() < 0.05 and len(text) > 2 else text).encode()


def of_header(content: bytes, chance: random.Random) -> bytes:
    """The header of a safetensors file changed, and its length said rightly, or wrongly."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = of_json(content[8:end], chance)
    length = len(header) if chance.random() < 0.9 else chance.choice([0, 1, 2**32, 2**63, 2**64 - 1, len(content)])
    return length.to_bytes(8, "little") + header + content[end:]


def of_pieces(content: bytes, chance: random.Random) -> bytes:
    """The pieces of a SentencePiece file, what they are worth and what is said of them, changed."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(content)
    for _ in range(chance.choice([1, 1, 3, 20])):
        piece = chance.choice(proto.pieces)
        how = chance.randrange(7)
        if how == 0:
            piece.piece = chance.choice(["", "a", "▁", "\0", "</s>", "<unk>", "x" * 100_000, proto.pieces[0].piece])
        elif how == 1:
            piece.score = chance.choice([float("nan"), float("inf"), -1e38, 0.0, 1e9])
        elif how == 2:
            piece.type = chance.randrange(1, 7)
        elif how == 3:
            proto.trainer_spec.unk_id = chance.choice([-1, 0, 5, 10**6, 2**31 - 1])
        elif how == 4:
            proto.normalizer_spec.precompiled_charsmap = of_bytes(proto.normalizer_spec.precompiled_charsmap, chance)
        elif how == 5:
            proto.trainer_spec.model_type = chance.randrange(1, 5)
        else:
            del proto.pieces[chance.randrange(len(proto.pieces)) :]
        if not proto.pieces:
            break
    return bytes(proto.SerializeToString())


def of_lines(content: bytes, chance: random.Random) -> bytes:
    """Lines repeated, exchanged, emptied, joined."""
    lines = content.split(b"\n")
    for _ in range(chance.choice([1, 2, 10])):
        place = chance.randrange(len(lines))
        given = [b"", b"a", b"[PAD]", lines[0], b"a b", b"a b c", b"\xff\xfe", b" " * 9, b"x" * 100_000]
        lines[place] = chance.choice([*given, chance.choice(lines)])
        if chance.random() < 0.2:
            del lines[place:]
            lines.append(b"")
    return b"\n".join(lines)


def words_like(folder: Path, kind: str) -> None:
    """A folder's tokenizer in the older files of its kind."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    if kind == "bert":
        test_tokenizers.write_wordpiece(folder)
    elif kind == "gpt2":
        test_tokenizers.write_byte_level_bpe(folder, ["<|endoftext|>"])
    elif kind == "t5":
        test_tokenizers.write_sentencepiece(folder / "spiece.model", 220, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    else:
        test_tokenizers.write_marian(folder)


def prepared(root: Path) -> dict[str, tuple[Path, str]]:
    """Folders by name, each with the verb that uses it."""
    wide = {"vocab_size": 800}
    small = {
        "gpt2": zoo.gpt2(), "bert": zoo.bert("ForMaskedLM"), "t5": zoo.t5(), "marian": zoo.marian(),
        "sentences": zoo.bert("Model"), "labels": zoo.bert("ForSequenceClassification"),
        "old bert": zoo.bert("ForMaskedLM", **wide), "old gpt2": zoo.gpt2(**wide), "old t5": zoo.t5(**wide),
        "old marian": zoo.marian(**wide), "sharded": zoo.gpt2(),
    }  # fmt: skip
    for name, make in small.items():
        save_theirs(perturbed(make()), root / name)
        if name.startswith("old"):
            words_like(root / name, name.removeprefix("old "))
    shard(root / "sharded")
    test_sentence_transformers.sentence_folder(root / "sentences")
    convert(root / "gpt2", root / "own", "regard")
    said = test_elmo.options()
    (root / "elmo").mkdir()
    test_elmo.write(root / "elmo", said, test_elmo.tensors(said))
    verbs = {"labels": "classify", "sentences": "embed", "elmo": "embed"}
    verbs |= dict.fromkeys(("t5", "old t5", "marian", "old marian"), "translate")
    return {path.name: (path, verbs.get(path.name, "score")) for path in sorted(root.iterdir())}


FILES: list[tuple[str, str, Ablation]] = [
    ("gpt2", "model.safetensors", of_header), ("t5", "model.safetensors", of_header),
    ("own", "model.safetensors", of_header), ("gpt2", "model.safetensors", of_bytes),
    ("sharded", "model.safetensors.index.json", of_json), ("sharded", "model.safetensors.index.json", of_bytes),
    *((name, "config.json", of_json) for name in ("gpt2", "bert", "t5", "marian", "labels", "own")),
    ("gpt2", "config.json", of_bytes), ("marian", "generation_config.json", of_json),
    ("gpt2", "generation_config.json", of_json), ("gpt2", "tokenizer.json", of_json),
    ("own", "tokenizer.json", of_json), ("gpt2", "tokenizer.json", of_bytes),
    ("bert", "tokenizer_config.json", of_json), ("old bert", "vocab.txt", of_lines),
    ("old bert", "vocab.txt", of_bytes), ("old gpt2", "merges.txt", of_lines),
    ("old gpt2", "merges.txt", of_bytes), ("old gpt2", "vocab.json", of_json), ("old t5", "spiece.model", of_pieces),
    ("old t5", "spiece.model", of_bytes), ("old marian", "source.spm", of_pieces),
    ("old marian", "vocab.json", of_json), ("sentences", "modules.json", of_json),
    ("sentences", "1_Pooling/config.json", of_json), ("elmo", "options.json", of_json),
]  # fmt: skip


def tried(arguments: list[str], said: Path) -> tuple[int, float, int]:
    """-> how a child that runs these arguments ended, after how many seconds, with how many megabytes."""
    begun, child = time.monotonic(), os.fork()
    if child == 0:
        for number, path, how in ((0, "text.txt", os.O_RDONLY), (1, "/dev/null", os.O_WRONLY), (2, said, os.O_RDWR)):
            os.dup2(os.open(said.parent / path, how | (os.O_CREAT if number == 2 else 0)), number)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(SECONDS)
        code = 70
        try:
            code = run(arguments)
        finally:
            os._exit(code)  # whatever was raised, what is around the fork belongs to the parent
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - begun, used.ru_maxrss >> 10


def needed(folders: dict[str, tuple[Path, str]], said: Path) -> dict[str, int]:
    """The megabytes that each folder needs before it is damaged; all are read, or refusing would show nothing."""
    found = {}
    for name, (folder, verb) in folders.items():
        said.write_bytes(b"")
        code, _, found[name] = tried([verb, str(folder)], said)
        assert code == 0, f"{name}: exit {code}: {said.read_text()}"
    return found


def fault(code: int, megabytes: int, said: str) -> str:
    """What is wrong with how a case ended; nothing, one hopes."""
    errors = [line for line in said.splitlines() if "error:" in line]
    if code < 0:
        return f"signal {-code}"
    if code not in (0, 2, 3):
        return f"exit {code}"
    if len(errors) != (code != 0) or "Traceback" in said or "panicked" in said:
        return f"said {len(said.splitlines())} lines"
    return f"{megabytes} MB more" if megabytes > MEGABYTES else ""


def main(cases: int, seed: int, only: str) -> bool:
    """Try every kind of damage; -> whether all went well."""
    transformers.utils.logging.disable_progress_bar()
    good = total = 0
    with tempfile.TemporaryDirectory() as place:
        folders = prepared(Path(place) / "whole")
        (Path(place) / "text.txt").write_text("the early bird\tb\nhello\tx\n")
        usual = needed(folders, Path(place) / "said")
        for name, file, change in FILES:
            if only not in f"{name}/{file}":
                continue
            folder, verb = folders[name]
            whole, ends, slowest = (folder / file).read_bytes(), Counter[int](), 0.0
            chance = random.Random(f"{seed} {name} {file} {change.__name__}")
            for number in range(cases):
                damaged = Path(place) / "damaged"
                shutil.copytree(folder, damaged)
                (damaged / file).write_bytes(change(whole, chance))
                said = Path(place) / "said"
                said.write_bytes(b"")
                code, seconds, megabytes = tried([verb, str(damaged)], said)
                found = fault(code, megabytes - usual[name], said.read_text(errors="replace"))
                if found:
                    print(f"  {name}/{file} {change.__name__} case {number}: {found}: {said.read_text()[-600:]!r}")
                    shutil.copyfile(
                        damaged / file, Path(tempfile.gettempdir()) / f"fuzz-{name}-{number}-{Path(file).name}"
                    )
                ends[code], slowest = ends[code] + 1, max(slowest, seconds)
                good, total = good + (not found), total + 1
                shutil.rmtree(damaged)
            ended = ", ".join(f"{count} x {code}" for code, count in sorted(ends.items()))
            print(f"{name}/{file} {change.__name__}: exit {ended}; slowest {slowest:.1f} s", flush=True)
    print(f"{good} of {total} damaged files were read or refused (seed {seed}, {platform.machine()})")
    return good == total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40, help="of each kind of damage")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="folders and files that hold this in their name")
    given = parser.parse_args()
    sys.exit(not main(given.cases, given.seed, given.only))
