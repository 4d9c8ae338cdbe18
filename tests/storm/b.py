"""Tier B: hostile files and inputs never run code, crash, hang or reach elsewhere."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.storm.rows import Case, Outcome, Row, tests

T = TypeVar("T")

# Every verb that reads a model folder; {model}, {text} and {out} are filled in.
MODEL_VERBS: dict[str, tuple[str, ...]] = {
    "translate": ("translate", "{model}"),
    "generate": ("generate", "{model}", "a", "--max-tokens", "2"),
    "fill": ("fill", "{model}", "a [MASK]"),
    "embed": ("embed", "{model}"),
    "classify": ("classify", "{model}"),
    "score": ("score", "{model}"),
    "show": ("show", "{model}", "a", "--out", "{out}/page.html"),
    "evaluate": ("evaluate", "{model}", "--text", "{text}"),
    "compare": ("compare", "{model}", "{other}", "--text", "{text}"),
    "check": ("check", "{model}"),
    "serve": ("serve", "{model}", "--port", "0", "--grace", "0"),
    "convert": ("convert", "{model}", "{out}/new"),
    "convert to regard": ("convert", "{model}", "{out}/new", "--to", "regard"),
    "convert to ctranslate2": ("convert", "{model}", "{out}/new", "--to", "ctranslate2"),
    "convert to onnx": ("convert", "{model}", "{out}/new", "--to", "onnx"),
    "merge an adapter": ("convert", "{good}", "{out}/new", "--to", "regard", "--adapter", "{model}"),
    "convert a pickle": ("convert", "{model}", "{out}/new", "--to", "regard", "--allow-pickle"),
    "fine-tune": ("train", "{out}/fine.toml", "--out", "{out}/new"),
    "init": ("init", "{text}", "--model", "{model}", "--minutes", "1"),
}
# Every verb that reads a file of text or a recipe.
FILE_VERBS: dict[str, tuple[str, ...]] = {
    "train a recipe": ("train", "{text}", "--out", "{out}/new"),
    "plan": ("plan", "{text}"),
    "train on a text": ("train", "{out}/text.toml", "--out", "{out}/new"),
    "init": ("init", "{text}", "--minutes", "1"),
    "evaluate": ("evaluate", "{good}", "--text", "{text}"),
    "score": ("score", "{good}"),
}
BENCH = {"bench": ("bench", "{model}", "--minutes", "0.001")}  # it reads the model in processes of its own
PLACES = ("pytorch_model.bin", "model.safetensors", "adapter_model.bin", "the model", "beside")
PICKLES = 28
OFFERS = [
    *((where, verb) for where in PLACES for verb in MODEL_VERBS), ("pytorch_model.bin", "bench"),
    *(("text", verb) for verb in FILE_VERBS),
]  # fmt: skip
RECIPE = '[model]\nname = "gpt2"\nwidth = 16\ndepth = 1\nheads = 2\n[text]\ntrain = "{text}"\ntokenizer = "byte"\n' \
    '[train]\nsteps = 1\nbatch_tokens = 64\n'  # fmt: skip
FINE = '[model]\ninit = "{model}"\n[text]\ntrain = "{text}"\n[train]\nsteps = 1\nbatch_tokens = 64\n'


def fill(command: tuple[str, ...], **paths: object) -> list[str]:
    """The words of a command with its paths."""
    return [word.format(**paths) for word in command]


def small_folder(folder: Path) -> Path:
    """A published GPT-2 of random weights, which has no manifest."""
    import transformers

    from tests.parity import zoo
    from tests.parity.folders import perturbed, save_theirs

    transformers.utils.logging.disable_progress_bar()
    return save_theirs(perturbed(zoo.gpt2()()), folder)


class Place:
    """A folder for children, with a good model and a good text."""

    def __init__(self, folder: Path) -> None:
        from tests.storm.children import import_all

        import_all()
        self.folder, self.good = folder, small_folder(folder / "good")
        self.other = Path(shutil.copytree(self.good, folder / "other"))
        self.out, self.text = folder / "out", folder / "text.txt"
        self.text.write_text("the early bird\nhello\n" * 20)

    def recipes(self, model: object, text: object) -> None:
        """An empty folder for output, and recipes that name a model and a text."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        (self.out / "fine.toml").write_text(FINE.format(model=json.dumps(str(model))[1:-1], text=self.text))
        (self.out / "text.toml").write_text(RECIPE.format(text=json.dumps(str(text))[1:-1]))

    def run(self, command: tuple[str, ...], model: object, text: object = None, **options: Any) -> Any:
        """Run a verb in a child."""
        from tests.storm.children import forked

        text = self.text if text is None else text
        self.recipes(model, text)
        words = fill(command, model=model, text=text, out=self.out, good=self.good, other=self.other)
        return forked(words, self.folder, stop_after=2.0 if command[0] == "serve" else None, seconds=60, **options)


def hostile_pickles(count: int, seed: int, folder: Path) -> Outcome:
    """Every payload, in every place of a model folder and as a text, offered to every verb: no code runs."""
    from tests.storm.payloads import pickles

    place, sentinel, cases = Place(folder), folder / "sentinel", Case()
    payloads = pickles(sentinel)
    assert len(payloads) == PICKLES
    every = [(name, where, verb) for name in payloads for where, verb in OFFERS]
    random.Random(seed).shuffle(every)
    for name, where, verb in every[:count]:
        model = folder / "model"
        payload = planted(place.good, model, where, name)
        payload.write_bytes(payloads[name])
        if where == "text":
            child = place.run(FILE_VERBS[verb], model, payload, stdin=payloads[name])
        else:
            child = place.run((MODEL_VERBS | BENCH)[verb], payload if where == "the model" else model)
        cases.add(f"{name} as {where}, {verb}", "the code ran" if sentinel.exists() else misused(child, where, verb))
        shutil.rmtree(model)
        shutil.rmtree(sentinel, ignore_errors=True)
        sentinel.unlink(missing_ok=True)
    verbs = len(MODEL_VERBS) + len(BENCH) + len(FILE_VERBS)
    return cases.outcome(f"{len(payloads)} payloads, {verbs} verbs, {len(PLACES)} places")


def planted(good: Path, model: Path, where: str, name: str) -> Path:
    """A model folder with room for a payload; -> the file to write it to."""
    if where == "adapter_model.bin":
        model.mkdir()
        adapter = {"peft_type": "LORA", "base_model_name_or_path": str(good), "r": 2, "target_modules": ["c_attn"]}
        (model / "adapter_config.json").write_text(json.dumps(adapter))
        return model / where
    shutil.copytree(good, model)
    if where == "pytorch_model.bin":
        (model / "model.safetensors").unlink()
    return model / (where if where in PLACES[:2] else name)


def misused(child: Any, where: str, verb: str) -> str:
    """What is wrong with how a verb met a pickle: it must be refused in one line, where it is what is read."""
    events = [event for event in child.events if not allowed(event, verb)]
    if events or child.code < 0:
        return events[0] if events else f"signal {-child.code}"
    if "Traceback" in child.said or "internal error" in child.said:
        return str(child.said[-300:])
    if where in PLACES[:4] and child.code not in (2, 3):
        return f"exit {child.code}: {child.said[-200:]}"
    # Whoever trusts the maker of the weights is told how to read them.
    told = "--allow-pickle" in child.said or verb in ("convert a pickle", "merge an adapter")
    return "" if where != "pytorch_model.bin" or told else f"no remedy: {child.said[-200:]}"


def allowed(event: str, verb: str) -> bool:
    """Whether an event is no code, or ours: processes that read plain tensors or measure a model, and babel's data."""
    ours = "regard.store.unpickle" in event and verb == "convert a pickle"
    ours = ours or ("regard.evaluation.contestant" in event and verb == "bench")
    ours = ours or (event.startswith("pickle.find_class ('babel.") and verb.startswith("convert"))  # embedded lines
    return ours or not event.startswith(("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess"))


def size_bombs(_count: int, _seed: int, folder: Path) -> Outcome:
    """Files that claim or unpack to enormous sizes are refused in a second of processor time and 200 MB."""
    from tests.storm.children import fault, forked
    from tests.storm.payloads import config_bombs, file_bombs

    place, cases, slowest, largest = Place(folder), Case(), 0.0, 0
    usual = place.run(MODEL_VERBS["score"], place.good).megabytes
    bombs: list[tuple[str, Callable[[Path], object]]] = []
    for name, changes in config_bombs().items():
        bombs.append((name, lambda model, changes=changes: edit(model / "config.json", changes)))
    for name, (file, write) in file_bombs().items():
        bombs.append((name, lambda model, file=file, write=write: write(model / file)))
    for name, plant in bombs:
        model = Path(shutil.copytree(place.good, folder / "model"))
        if "pickle" in name:
            (model / "model.safetensors").unlink()
        plant(model)
        verb = "convert a pickle" if "pickle" in name else "score"
        child = forked(fill(MODEL_VERBS[verb], model=model, out=folder / "new"), folder, seconds=60)
        more = child.megabytes - usual
        slowest, largest = max(slowest, child.processor_seconds), max(largest, more)
        found = "" if verb != "score" else fault(child, (1, 2, 3))
        found = found or ("" if child.code else "it was read")
        found = found or ("" if more <= 200 else f"{more} MB more")
        # A pickle is unpacked by a process of its own, which imports torch first.
        limit = 20.0 if verb != "score" else 1.0
        found = found or ("" if child.processor_seconds <= limit else f"{child.processor_seconds:.1f} s")
        cases.add(name, found)
        shutil.rmtree(model)
    return cases.outcome(f"at most {slowest:.1f} s of the processor, {largest} MB more")


def edit(path: Path, changes: dict[str, Any]) -> None:
    """Change settings of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def some_of(every: list[T], count: int, seed: int) -> list[T]:
    """So many of all cases, of every kind some; all of them in their order, if there are no more."""
    return every if count >= len(every) else random.Random(seed).sample(every, count)


def traversal(count: int, seed: int, folder: Path) -> Outcome:
    """Names that point outside a folder, wherever a file or a request holds a name: nothing outside is opened."""
    place, cases = Place(folder), Case()
    secret = folder / "elsewhere" / "secret.safetensors"
    secret.parent.mkdir()
    shutil.copyfile(place.good / "model.safetensors", secret)
    model = folder / "model"
    every = [(name, where) for where in NAMED for name in pointing(secret, model, where)]
    for name, where in some_of(every, count, seed):
        shutil.copytree(place.good, model)
        (model / "link").symlink_to(secret.parent)
        (model / "link.safetensors").symlink_to(secret)
        verb, inside_is_fine = NAMED[where](model, name)
        child = place.run(MODEL_VERBS[verb], model, secret=secret)
        opened = [event for event in child.events if event.startswith("open")]
        fault = opened[0] if opened else "" if child.code or inside_is_fine else "it was read"
        if not fault and ("Traceback" in child.said or "internal error" in child.said or child.code < 0):
            fault = child.said[-300:] or f"signal {-child.code}"
        cases.add(f"{name!r} in {where}", fault)
        shutil.rmtree(model)
    if len(every) < count:
        for name in requested_names(secret, folder):
            cases.add(*name)
    return cases.outcome()


def pointing(secret: Path, model: Path, where: str) -> list[str]:
    """Names that point outside; a manifest may list a link, whose owner put it into the folder."""
    from tests.storm.payloads import outside

    return [name for name in outside(secret, model) if where != "manifest.json" or not name.startswith("link")]


def _weight_map(model: Path, name: str) -> tuple[str, bool]:
    (model / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return "score", False


def _pickle_map(model: Path, name: str) -> tuple[str, bool]:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    return "convert a pickle", False


def _manifest(model: Path, name: str) -> tuple[str, bool]:
    from regard.store.files import json_bytes

    (model / "manifest.json").write_bytes(json_bytes({"regard_files": {name: ["0" * 64]}}))
    # A name that stands for no file is the loader's concern.
    return "score", True


def _modules(model: Path, name: str) -> tuple[str, bool]:
    kinds = [("Transformer", ""), ("Pooling", name)]
    modules = [{"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for n, (kind, path) in enumerate(kinds)]  # fmt: skip
    (model / "modules.json").write_text(json.dumps(modules))
    return "embed", False


def _tokenizer(model: Path, name: str) -> tuple[str, bool]:
    edit(model / "tokenizer_config.json", {"tokenizer_file": name, "vocab_file": name, "merges_file": name})
    return "score", True


def _config(model: Path, name: str) -> tuple[str, bool]:
    edit(model / "config.json", {"_name_or_path": name})
    return "score", True


NAMED: dict[str, Callable[[Path, str], tuple[str, bool]]] = {
    "weight_map": _weight_map, "the index of pickles": _pickle_map, "manifest.json": _manifest,
    "modules.json": _modules, "tokenizer_config.json": _tokenizer, "config.json": _config,
}  # fmt: skip


def requested_names(secret: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Names in requests to a server: each with what went wrong."""
    from urllib.parse import quote

    from regard.models import zoo
    from tests.serve.live import live
    from tests.small import small
    from tests.storm.payloads import outside

    words = secret.read_bytes()[:64]
    with live({"model": small(zoo.gpt2(16, 1, 2))}) as server:
        for name in outside(secret, folder / "model"):
            for path in (f"/static/{name}", f"/download_file/{name}", f"/v1/models/{name}"):
                status, content, _ = server(quote(path, safe="/%\\:;"))
                yield f"GET {path!r}", "" if status < 500 and words not in content else f"status {status}"
            status, content, _ = server("/v1/completions", {"model": name, "prompt": "a"})
            yield f"model {name!r}", "" if 400 <= status < 500 and words not in content else f"status {status}"


def patterns(size: int) -> dict[str, str]:
    """Thirty texts of so many bytes that have kept tokenizers busy elsewhere."""
    units = {
        "one letter": "a", "combining marks": "\u0301", "zalgo": "e\u0301\u0327\u0489", "spaces": " ", "newlines": "\n",
        "tabs": "\t", "alternating scripts": "aяあ", "digits": "7", "punctuation": ".", "apostrophes": "'s",
        "quotes": '"', "emoji": "👩‍👩‍👧‍👦", "flags": "🇩🇪", "Thai": "ภาษาไทย", "Chinese": "早起三文",
        "Arabic ligatures": "ﷺ", "Hangul": "한",
        "jamo": "ᄒ", "capitals": "İ", "sharp s": "ß", "no-break spaces": "\u00a0", "zero width": "\u200b",
        "joiners": "a\u200d", "direction": "\u202e\u202c", "word and space": "a ", "space and mark": " \u0301",
        "special tokens": "</s>", "brackets": "[MASK]", "underlines": "▁", "NULs": "\0",
    }  # fmt: skip
    return {name: unit * max(1, size // len(unit.encode())) for name, unit in units.items()}


def pipelines() -> dict[str, Callable[[str], object]]:
    """Every tokenizer that we train or read, and the splitter of sentences."""
    import tempfile

    from regard.data.sentences import split_sentences
    from regard.store.huggingface.tokenizers import read_huggingface_tokenizers
    from tests.data.test_tokenizer import TRAINED
    from tests.store import test_tokenizers as written

    found: dict[str, Callable[[str], object]] = {name: one.encode for name, one in TRAINED.items()}
    t5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    writers: dict[str, tuple[str, Callable[[Path], object]]] = {
        "vocab.txt": ("bert", written.write_wordpiece),
        "merges.txt": ("gpt2", lambda path: written.write_byte_level_bpe(path, ["<|endoftext|>"])),
        "spiece.model": ("t5", lambda path: written.write_sentencepiece(path / "spiece.model", 220, **t5)),
        "source.spm": ("marian", written.write_marian),
        "spiece.model of BPE": (
            "reformer",
            lambda path: written.write_sentencepiece(path / "spiece.model", 320, model_type="bpe"),
        ),
    }
    with tempfile.TemporaryDirectory() as name:
        for kind, (model, write) in writers.items():
            folder = Path(name) / kind
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps({"model_type": model}))
            write(folder)
            found[kind] = read_huggingface_tokenizers(folder)[0].encode
    found["sentences"] = split_sentences
    return found


def growth(count: int, seed: int, _folder: Path) -> Outcome:
    """Processor time of 10 kB and of 1 MB: it grows with an exponent of at most 1.2, to at most 2 s."""
    cases, steepest, slowest = Case(), 0.0, 0.0
    every = [(name, one, text) for name, one in pipelines().items() for text in patterns(1)]
    short, long = patterns(10_000), patterns(1_000_000)
    for name, encode, text in some_of(every, count, seed):
        encode(short[text])
        # Below a millisecond, what does not depend on the text counts most.
        one, other = max(1e-3, best_of(3, encode, short[text])), best_of(2, encode, long[text])
        exponent = math.log(other / one) / math.log(100)
        steepest, slowest = max(steepest, exponent), max(slowest, other)
        cases.add(f"{name}: {text}", "" if exponent <= 1.2 and other <= 2 else f"{one:.4f} s, then {other:.2f} s")
    return cases.outcome(f"exponent at most {steepest:.2f}, slowest {slowest:.2f} s per MB")


def best_of(times: int, work: Callable[[str], object], text: str) -> float:
    """The least processor time of some attempts."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work(text)
        found.append(time.process_time() - began)
    return min(found)


ELSEWHERE = (
    "http://169.254.169.254/", "https://example.com/model", "file:///etc/passwd", "ftp://example.com/x",
    "\\\\host\\share",
    "//example.com/share", "s3://bucket/key", "git://example.com/x", "data:text/plain,x", "example.com:80", "hf:../x",
    "hf:http://example.com/x",
)  # fmt: skip
FIELDS = ("model", "prompt", "q", "source", "target", "input", "suffix", "user", "file")


def outbound(count: int, seed: int, folder: Path) -> Outcome:
    """Addresses in the place of models, texts and recipes, ordinary use of every verb, and a server: no connection."""
    place, cases = Place(folder), Case()
    every: list[tuple[str, tuple[str, ...], object, object]] = []
    for verb, command in MODEL_VERBS.items():
        every.append((f"{verb}, ordinary", command, place.good, None))
        every += [(f"{verb} {name}", command, name, None) for name in ELSEWHERE]
    for verb, command in FILE_VERBS.items():
        every.append((f"{verb}, ordinary", command, place.good, None))
        every += [(f"{verb} {name}", command, place.good, name) for name in ELSEWHERE]
    for name, command, model, text in some_of(every, count, seed):
        child = place.run(command, model, text)
        events = [event for event in child.events if event.startswith("socket")]
        named = [
            event for event in events if "ordinary" not in name or command[0] != "serve" or "127.0.0.1" not in event
        ]
        fault = named[0] if named else child.said[-300:] if "Traceback" in child.said or child.code < 0 else ""
        cases.add(name, fault)
    cases.add("a server", served_addresses(folder))
    return cases.outcome(f"{len(MODEL_VERBS) + len(FILE_VERBS)} verbs, {len(ELSEWHERE)} addresses")


def served_addresses(folder: Path) -> str:
    """A server in a child, asked for addresses in every field of every route; -> the first connection that it made."""
    report = folder / "server-events"
    report.write_bytes(b"")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            from tests.storm.children import watch

            watch(os.open(report, os.O_WRONLY), None)
            ask_everything()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    events = [line for line in report.read_text().splitlines() if line.startswith("socket")]
    return events[0] if events else "" if code == 0 else f"exit {code}"


def ask_everything() -> None:
    """Ask a server on every route that its schema names, with addresses in every field."""
    from regard.models import zoo
    from tests.serve.live import live
    from tests.small import small

    with live({"model": small(zoo.gpt2(16, 1, 2))}) as server:
        paths = server.json("/openapi.json")["paths"]
        for path, operations in paths.items():
            for address in ELSEWHERE:
                if "post" in operations:
                    server(path, {name: address for name in FIELDS if name != "model"} | {"model": address})
                    server(path, {"model": "model", "prompt": address, "input": address, "q": address})
                else:
                    server(path.replace("{id}", "x").replace("{name}", "x") + "?url=" + address.replace("\\", "%5c"))


def damaged_files(count: int, seed: int, folder: Path) -> Outcome:
    """Mutated files of every kind that is read."""
    from tests.storm.fuzz import storm

    return storm(count, seed, folder)


GUARD = "tests/serve/test_guard.py"
ROWS = [
    Row("B1", "pickles that run code, offered to every verb in every place", PICKLES * len(OFFERS), 25,
        hostile_pickles, 20),
    Row("B2", "calls that run code are banned from the source", 1, 0.1, tests("tests/test_house.py")),
    Row("B3", "mutated files of every kind that is read", 6_000, 40, damaged_files, 60),
    Row("B4", "bombs of size", 18, 1, size_bombs, 18),
    Row("B5", "names that point outside a folder", 200, 3, traversal, 10),
    Row("B6", "pathological texts in every tokenizer: growth of time", 420, 5, growth, 14),
    Row("B7", "hostile texts in every sink of the pages, in a browser", 1, 6, tests(
        "tests/serve/test_hostile_page.py", "tests/show/test_hostile.py")),
    Row("B8", "no connection to elsewhere: addresses in every verb, and a server",
        (len(MODEL_VERBS) + len(FILE_VERBS)) * (1 + len(ELSEWHERE)) + 1, 5, outbound, 10),
    Row("B9", "key, host, body and origin on every route", 1, 1, tests(
        GUARD, "tests/serve/test_attention.py", "-k", "route or key or host or body or secret or elsewhere")),
    Row("B10", "floors of the versions of dependencies", 1, 0.1, tests("tests/test_floors.py")),
]  # fmt: skip
