"""Damaged and hostile files: whatever is done to one, it is read, or refused in one line and at once."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docx
import pyarrow
import pyarrow.parquet
import transformers
import zstandard
from sentencepiece import sentencepiece_model_pb2

from regard.data.corpora.chorales import midi_of
from regard.store.convert import convert
from tests.parity import zoo
from tests.parity.folders import perturbed, save_theirs
from tests.small import save_model, small
from tests.store import test_adapters, test_elmo, test_sentence_transformers, test_tokenizers
from tests.store.published import shard
from tests.storm.children import Child, forked, import_all
from tests.storm.rows import Case, Outcome

SECONDS, MEGABYTES = 10, 300
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 1e-300, 1e308, -1e308, float("nan"), float("inf"), 2**31, 2**63, 2**64,
    10**30, "", "a", "</s>", "\0", "\ud800", "../../etc/passwd", "/dev/zero", "a" * 100_000, [], {}, [[]], [0], [-1],
    {"a": 1}, [1e9, 1e9], ["x"] * 1000, "gelu", "(a+)+$", "<pad>", "Ā" * 300,
]  # fmt: skip
Change = Callable[[bytes, random.Random], bytes]


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


def of_settings(content: bytes, chance: random.Random) -> bytes:
    """The values of a TOML file exchanged for hostile ones, or for one another's."""
    lines = content.decode().split("\n")
    for _ in range(chance.choice([1, 1, 2, 4])):
        places = [number for number, line in enumerate(lines) if "=" in line]
        at, other = chance.choice(places), chance.choice(places)
        key, _, _ = lines[at].partition("=")
        value = chance.choice(HOSTILE)
        written = json.dumps(value) if value is not None and chance.random() < 0.8 else lines[other].partition("=")[2]
        lines[at] = f"{key}= {written}"
    return "\n".join(lines).encode()


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


@dataclass(frozen=True)
class Sample:
    """A folder with files to damage, and the command that reads it; {folder} stands for the damaged copy."""

    folder: Path
    command: tuple[str, ...]
    codes: tuple[int, ...] = (0, 2, 3)


RECIPE = """# A small model.
[model]
name = "gpt2"
width = 16
depth = 1
heads = 2
dropout = 0.1
position = { kind = "learned", max_positions = 64 }

[text]
train = "FILE"
tokenizer = { kind = "word", size = 100 }
task = { kind = "language_model", length = 16 }

[train]
steps = 1
batch_tokens = 64
learning_rate = 1e-3
schedule = { kind = "cosine", warmup = 1 }
"""
TEXT = "".join(f"word{number % 7} and word{number % 11}, said {number}\n" for number in range(40))
CHORALE = json.dumps([[[72, 67, 64, 48]] * 4 + [[71, 67, 62, 43]] * 4, [[60, -1, 52, 48]] * 8])
MUSIC = "| 172 267 364 448 172 267 364 448 | 171 267 362 443"
_ROWS = [json.dumps({"text": line}) for line in TEXT.splitlines()]
CORPORA = {
    "text.txt": TEXT.encode(),
    "rows.tsv": "".join(f"{line}\t{line[::-1]}\n" for line in TEXT.splitlines()).encode(),
    "rows.csv": ("source,target\n" + "".join(f'"{line}",{line[:4]}\n' for line in TEXT.splitlines())).encode(),
    "rows.jsonl": "\n".join(_ROWS).encode(),
    "chorales.json": CHORALE.encode(),
    "music.mid": b"",
    "text.txt.gz": gzip.compress(TEXT.encode(), mtime=0),
    "text.txt.zst": zstandard.compress(TEXT.encode()),
    "table.parquet": b"",
}
PAGE = "<html><body><h1>Early <b>birds</b></h1><p>They <a href='x'>catch</a> it &amp; go.</p></body></html>"
SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\nThe <i>early</i> bird.\n\n2\n00:00:03,000 --> 00:00:04,000\nHello.\n"
MARKDOWN = "# Early *birds*\n\n- one `x`\n- [two](y)\n\n| a | b |\n|---|---|\n| c | d |\n"
DOCUMENTS = {
    "page.html": PAGE.encode(), "page.md": MARKDOWN.encode(), "film.srt": SUBTITLES.encode(), "letter.docx": b"",
}  # fmt: skip


def parquet_of(lines: list[str]) -> bytes:
    """A table with a column of texts."""
    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": lines}), written)
    return written.getvalue()


def docx_of(lines: list[str]) -> bytes:
    """A Word document with a paragraph per line."""
    document, written = docx.Document(), io.BytesIO()
    for line in lines:
        document.add_paragraph(line).add_run(" bold").bold = True
    document.save(written)
    return written.getvalue()


def published(root: Path) -> None:
    """Folders in the formats of others."""
    wide = {"vocab_size": 800}
    models = {
        "gpt2": zoo.gpt2(), "bert": zoo.bert("ForMaskedLM"), "t5": zoo.t5(), "marian": zoo.marian(),
        "sentences": zoo.bert("Model"), "labels": zoo.bert("ForSequenceClassification"),
        "old bert": zoo.bert("ForMaskedLM", **wide), "old gpt2": zoo.gpt2(**wide), "old t5": zoo.t5(**wide),
        "old marian": zoo.marian(**wide), "sharded": zoo.gpt2(),
    }  # fmt: skip
    for name, make in models.items():
        save_theirs(perturbed(make()), root / name)
        if name.startswith("old"):
            words_like(root / name, name.removeprefix("old "))
    shard(root / "sharded")
    test_sentence_transformers.sentence_folder(root / "sentences")
    convert(root / "gpt2", root / "own", "regard")
    (root / "own" / "manifest.json").unlink()  # else it refuses every change at once
    said = test_elmo.options()
    (root / "elmo").mkdir()
    test_elmo.write(root / "elmo", said, test_elmo.tensors(said))


def prepared(root: Path) -> dict[str, Sample]:
    """All folders by name."""
    from regard.models import zoo as ours
    from tests.training.runs import regard

    published(root)
    verbs = {"labels": "classify", "sentences": "embed", "elmo": "embed"}
    verbs |= dict.fromkeys(("t5", "old t5", "marian", "old marian"), "translate")
    found = {path.name: Sample(path, (verbs.get(path.name, "score"), "{folder}")) for path in sorted(root.iterdir())}
    save_model(root / "manifest", small(ours.gpt2(16, 1, 2)))
    found["manifest"] = Sample(root / "manifest", ("score", "{folder}"))
    recipe = root / "recipe"
    recipe.mkdir()
    table = parquet_of(TEXT.splitlines())
    for name, content in {**CORPORA, "music.mid": midi_of(MUSIC), "table.parquet": table}.items():
        (recipe / name).write_bytes(content)
        (recipe / f"{name}.toml").write_text(RECIPE.replace("FILE", name))
    trained = ("train", "{folder}/text.txt.toml", "--out", "{folder}/new", "--set", "text.folder={folder}")
    one_step, refusals = ("--set", "train.steps=1", "--set", "train.valid_every=9"), (0, 1, 2, 3, 4)
    found["recipe"] = Sample(recipe, (*trained, *one_step), refusals)
    for name in CORPORA:
        read = ("train", "{folder}/" + f"{name}.toml", *trained[2:], *one_step)
        # One side of a table, so that a language model can read it.
        read += {"rows.jsonl": ("--set", 'text.fields=["text"]'), "rows.csv": ("--set", 'text.fields=["source"]'),
                 "rows.tsv": ("--set", 'text.fields=["1"]'), "table.parquet": ("--set", 'text.fields=["text"]'),
                 }.get(name, ())  # fmt: skip
        found[name] = Sample(recipe, read, refusals)
    adapter = test_adapters.adapter(root / "adapter", base_model_name_or_path=str(root / "manifest"))
    found["adapter"] = Sample(adapter, ("score", "{folder}"))
    translator = save_model(root / "translator", small(ours.transformer(16, 1, 2), generation_config={"max_length": 5}))
    documents = root / "documents"
    documents.mkdir()
    for name, content in {**DOCUMENTS, "letter.docx": docx_of(TEXT.splitlines()[:5])}.items():
        (documents / name).write_bytes(content)
        read = ("translate", str(translator), "--file", "{folder}/" + name, "--out", "{folder}/out" + Path(name).suffix)
        found[name] = Sample(documents, read)
    run = Path(shutil.copytree(recipe, root / "run"))
    command = [part.replace("{folder}", str(run)) for part in trained]
    assert regard(*command, "--set", "train.steps=2", "--set", "train.save_every=1")[0] == 0
    found["run"] = Sample(run, (*trained, "--set", "train.steps=3", "--set", "train.save_every=1"), refusals)
    return found


FILES: list[tuple[str, str, Change]] = [
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
    ("elmo", "weights.hdf5", of_bytes), ("manifest", "manifest.json", of_json), ("manifest", "manifest.json", of_bytes),
    ("recipe", "text.txt.toml", of_lines), ("recipe", "text.txt.toml", of_bytes),
    ("recipe", "text.txt.toml", of_settings),
    ("run", "new/checkpoints/step-2/manifest.json", of_json), ("run", "new/checkpoints/step-2/state.json", of_bytes),
    ("run", "new/checkpoints/step-2/model.safetensors", of_bytes), ("run", "new/config.json", of_json),
    *((name, name, of_bytes) for name in CORPORA),
    ("rows.tsv", "rows.tsv", of_lines), ("rows.csv", "rows.csv", of_lines), ("rows.jsonl", "rows.jsonl", of_lines),
    ("chorales.json", "chorales.json", of_json),
    ("adapter", "adapter_config.json", of_json), ("adapter", "adapter_config.json", of_bytes),
    ("adapter", "adapter_model.safetensors", of_header), ("adapter", "adapter_model.safetensors", of_bytes),
    *((name, name, of_bytes) for name in DOCUMENTS), *((name, name, of_lines) for name in ("page.md", "film.srt")),
]  # fmt: skip


def fault(child: Child, usual: int, codes: tuple[int, ...]) -> str:
    """What is wrong with how a case ended."""
    errors = [line for line in child.said.splitlines() if "error:" in line]
    if child.code < 0:
        return f"signal {-child.code}"
    if child.code not in codes:
        return f"exit {child.code}: {child.said[-300:]!r}"
    if len(errors) != (child.code != 0) or "Traceback" in child.said or "panicked" in child.said:
        return f"said {len(child.said.splitlines())} lines: {child.said[-300:]!r}"
    if "internal error" in child.said:
        return child.said[-300:]
    return f"{child.megabytes - usual} MB more" if child.megabytes - usual > MEGABYTES else ""


def storm(count: int, seed: int, folder: Path, only: str = "") -> Outcome:
    """Try about `count` damaged files of all kinds."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    transformers.utils.logging.disable_progress_bar()
    import_all()
    samples, cases = prepared(folder / "whole"), Case()
    place = folder / "place"
    place.mkdir()
    usual = {name: needed(sample, folder, place) for name, sample in samples.items()}
    chosen = [row for row in FILES if only in f"{row[0]}/{row[1]} {row[2].__name__}"]
    for name, file, change in chosen:
        sample, ends, slowest = samples[name], Counter[int](), 0.0
        whole = (sample.folder / file).read_bytes()
        chance = random.Random(f"{seed} {name} {file} {change.__name__}")
        for number in range(-(-count // len(chosen))):
            damaged = Path(shutil.copytree(sample.folder, folder / "damaged"))
            (damaged / file).write_bytes(change(whole, chance))
            child = tried(sample, damaged, place)
            found = fault(child, usual[name], sample.codes)
            if found:
                shutil.copyfile(damaged / file, folder / f"{name}-{number}-{Path(file).name}")
            cases.add(f"{name}/{file} {change.__name__} case {number}", found)
            ends[child.code], slowest = ends[child.code] + 1, max(slowest, child.processor_seconds)
            shutil.rmtree(damaged)
        ended = ", ".join(f"{many} x {code}" for code, many in sorted(ends.items()))
        print(f"{name}/{file} {change.__name__}: exit {ended}; slowest {slowest:.1f} s", flush=True)
    return cases.outcome(f"{len(chosen)} kinds of damage")


def tried(sample: Sample, folder: Path, place: Path) -> Child:
    """Run the command of a sample on a folder."""
    arguments = [part.replace("{folder}", str(folder)) for part in sample.command]
    return forked(arguments, place, stdin=b"the early bird\tb\nhello\tx\n", seconds=SECONDS)


def needed(sample: Sample, folder: Path, place: Path) -> int:
    """The megabytes that a folder needs before it is damaged; it must be read, or refusing would show nothing."""
    copied = Path(shutil.copytree(sample.folder, folder / "damaged"))
    child = tried(sample, copied, place)
    shutil.rmtree(copied)
    refused = sample.command[1].endswith(".mid.toml")  # a format that is refused, whatever it holds
    assert child.code == (2 if refused else 0), f"{sample.command}: exit {child.code}: {child.said}"
    return child.megabytes
