"""Measure documents: tags carried over by attention, and translations that are killed and resumed.

python -m bench.documents dates MODEL                      tags around the fields of 1,000 dates
python -m bench.documents pairs MODEL TRAIN TEST de en     nested tags in 1,000 sentences, beside cutting at tags
python -m bench.documents killed MODEL FILE OUT            kill `regard translate --file` ten times on the way
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import regard
from regard.data.corpora import dates
from regard.data.documents import read_document
from regard.data.documents.segments import protect
from regard.decode.document import JOURNAL, translate_sentences
from regard.metrics import quality

_TAG = re.compile(r"<(/?)(\w+)>")
_SENTENCES = 1_000
_KILLS = 10


def translate(model: regard.api.LoadedModel, sources: list[str]) -> list[str]:
    """Translate sentences with tags as `translate_document` does."""
    segments = [protect(read_document(f"<p>{source}</p>", "html").segments[0]) for source in sources]
    wrapped = [source.index(segment.write(str)) for source, segment in zip(sources, segments)]
    found = translate_sentences(segments, lambda texts, _: model.translate(texts), model.unit_weights())
    return [
        source[:start] + one.write(str) + source[start + len(segment.write(str)) :]
        for source, segment, one, start in zip(sources, segments, found, wrapped)
    ]


def well_formed(source: str, target: str) -> bool:
    """Whether tags nest, and every tag and placeholder appears exactly once."""
    opened: list[str] = []
    for closes, name in _TAG.findall(target):
        if closes and (not opened or opened.pop() != name):
            return False
        opened += [] if closes else [name]
    things = re.compile(r"</?\w+>|\{\{\w+\}\}")
    return not opened and Counter(things.findall(source)) == Counter(things.findall(target))


def inside(text: str, name: str) -> str:
    """The text between a pair of tags, without other tags and placeholders."""
    found = re.search(rf"<{name}>(.*?)</{name}>", text)
    return re.sub(r"</?\w+>|\{\{\w+\}\}", "", found[1]).strip(" .,-") if found else ""


def measure_dates(model: regard.api.LoadedModel) -> None:
    """Tags around day, month and year of generated dates, a pair around the date, a placeholder before it."""
    random, rows = Random(1), []
    days = dates._days("test")
    while len(rows) < _SENTENCES:
        language = dates._choose(random, dates.LANGUAGES)
        form, day = dates._choose(random, dates._formats(language)), dates._choose(random, days)
        if dates._shape(form.write(day)) in dates._ambiguous_shapes():
            continue
        tagged = {name: f"<{name[0].lower()}>%({name})s</{name[0].lower()}>" for name in form.words if name[0] in "dMy"}
        template = form.template
        for name, new in tagged.items():
            template = template.replace(f"%({name})s", new)
        values = {name: words[dates._FIELD_VALUES[name[0]](day)] for name, words in form.words.items()}
        rows.append((f"{{{{x}}}} <b>{template % values}</b>", day.isoformat()))
    found = translate(model, [source for source, _ in rows])
    right, total = Counter[str](), Counter[str]()
    exact = 0
    for (source, target), one in zip(rows, found):
        plain = re.sub(r"</?\w+>|\{\{x\}\}", "", one).strip()
        exact += plain == target
        for name, text in zip("ymd", target.split("-")):
            if f"<{name}>" in source and plain == target:
                total[name] += 1
                right[name] += inside(one, name) == text
    print(f"well-formed, each once: {sum(map(well_formed, (s for s, _ in rows), found)) / len(rows):.1%}")
    print(f"dates right: {exact / len(rows):.1%}; of their fields placed right: "
          f"{right.total() / total.total():.1%} of {total.total():,} {dict(right)}")  # fmt: skip
    print("\n".join(found[:3]))


def tagged(line: str, random: Random) -> str:
    """A sentence with a pair of tags around some words, one inside it, and a placeholder."""
    words = line.split()
    start = random.randrange(len(words))
    end = random.randrange(start, min(len(words), start + 4)) + 1
    inner = random.randrange(start, end)
    words[inner] = f"<i>{words[inner]}</i>"
    words[start] = f"<b>{words[start]}"
    words[end - 1] = f"{words[end - 1]}</b>"
    words.insert(random.choice([0, start, end, len(words)]), "{{x}}")
    return " ".join(words)


def cut_at_tags(model: regard.api.LoadedModel, sources: list[str]) -> list[str]:
    """The usual method: cut at tags and placeholders, translate the pieces."""
    pieces = [re.split(r"(</?\w+>|\{\{\w+\}\})", source) for source in sources]
    texts = [piece.strip() for some in pieces for piece in some[::2] if re.search(r"\w", piece)]
    answers = iter(model.translate(texts))
    return [
        " ".join(next(answers) if i % 2 == 0 and re.search(r"\w", one) else one.strip() for i, one in enumerate(some))
        for some in pieces
    ]


class IBM1:
    """IBM model 1 (Brown 1993): t(target | source) by expectation maximization."""

    def __init__(self, pairs: list[tuple[list[str], list[str]]], rounds: int = 4) -> None:
        self.table: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
        for _ in range(rounds):
            counts, totals = defaultdict[tuple[str, str], float](float), defaultdict[str, float](float)
            for source, target in pairs:
                for word in target:
                    values = [self.table[other, word] for other in source]
                    whole = sum(values)
                    for other, value in zip(source, values):
                        counts[other, word] += value / whole
                        totals[other] += value / whole
            self.table = defaultdict(float, {key: value / totals[key[0]] for key, value in counts.items()})

    def links(self, source: list[str], target: list[str]) -> set[tuple[int, int]]:
        """The best source word of each target word."""
        best = (max((self.table[other, word], -i) for i, other in enumerate(source)) for word in target)
        return {(-place, j) for j, (value, place) in enumerate(best) if value > 0.01}


def words_of(text: str) -> list[str]:
    """Small words without signs."""
    return re.findall(r"\w+", text.lower())


def measure_pairs(model: regard.api.LoadedModel, train: str, test: str, one: str, other: str) -> None:
    """Tags and placeholders in sentences; right is what the intersection of two IBM models says (silver)."""
    read = [Path(f"{name}.{side}").read_text().splitlines() for name in (train, test) for side in (one, other)]
    pairs = [(words_of(a), words_of(b)) for a, b in zip(read[0], read[1])]
    pairs = [(a, b) for a, b in pairs if a and b]
    forward, backward = IBM1(pairs), IBM1([(b, a) for a, b in pairs])
    random = Random(1)
    lines, references = read[2][:_SENTENCES], read[3][:_SENTENCES]
    sources = [tagged(line, random) for line in lines]
    found, plain, cut = translate(model, sources), model.translate(lines), cut_at_tags(model, sources)
    right, total = Counter[str](), Counter[str]()
    for source, one_found in zip(sources, found):
        bare = [re.sub(r"</?\w+>|\{\{x\}\}", " ", text) for text in (source, one_found)]
        here, there = map(words_of, bare)
        links = forward.links(here, there) & {(i, j) for j, i in backward.links(there, here)}
        for name in "bi":
            first = len(words_of(re.sub(r"\{\{x\}\}|</?\w+>", " ", source.split(f"<{name}>")[0])))
            span = range(first, first + len(words_of(inside(source, name))))
            wanted = {j for i, j in links if i in span}
            if not wanted or any(i not in span and min(wanted) <= j <= max(wanted) for i, j in links):
                continue
            start = len(words_of(re.sub(r"\{\{x\}\}|</?\w+>", " ", one_found.split(f"<{name}>")[0])))
            got = set(range(start, start + len(words_of(inside(one_found, name)))))
            linked = {j for _, j in links}
            total[name] += 1
            right[name] += got & linked == wanted
    print(f"well-formed, each once: {sum(map(well_formed, sources, found)) / len(sources):.1%}")
    print(
        f"placed right (silver): {right.total() / total.total():.1%} of {total.total():,} {dict(right)} {dict(total)}"
    )
    strip = [re.sub(r"\s+", " ", re.sub(r"</?\w+>|\{\{x\}\}", " ", text)).strip() for text in found]
    joined = [re.sub(r"\s+", " ", re.sub(r"</?\w+>|\{\{x\}\}", " ", text)).strip() for text in cut]
    for name, texts in (("without tags", plain), ("by attention", strip), ("cut at tags", joined)):
        print(f"BLEU {name}: {quality(texts, references).bleu:.2f}")
    print("\n".join(f"{a}\n  {b}\n  {c}" for a, b, c in zip(sources[:3], found, cut)))


def measure_killed(model: str, file: str, out: str) -> None:
    """Translate a file unbroken, and again killed ten times on the way; both results must be the same bytes."""
    target, whole = Path(out), Path(tempfile.mkdtemp()) / Path(out).name
    command = [sys.executable, "-m", "regard", "translate", model, "--file", file, "--threads", "1", "--out"]
    began = time.perf_counter()
    subprocess.run([*command, str(whole)], check=True)
    seconds = time.perf_counter() - began
    print(f"unbroken: {seconds:.1f} s, {Path(file).stat().st_size:,} bytes")
    target.unlink(missing_ok=True)
    journal, kills = target.with_name(target.name + JOURNAL), 0
    while not target.exists():
        process = subprocess.Popen([*command, str(target)])
        while kills < _KILLS and process.poll() is None and not journal.exists():
            time.sleep(0.01)
        if kills < _KILLS and process.poll() is None:
            time.sleep(Random(kills).random() * seconds / _KILLS)
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    print(f"killed {kills} times: {'identical' if target.read_bytes() == whole.read_bytes() else 'DIFFERENT'}")


if __name__ == "__main__":
    what, name, *rest = sys.argv[1:]
    if what == "killed":
        measure_killed(name, *rest)
    else:
        loaded = regard.load(name, device="cpu", engine="torch")
        measure_dates(loaded) if what == "dates" else measure_pairs(loaded, *rest)
