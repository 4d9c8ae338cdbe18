"""The command line: `python -m bench ROW`, from the project's folder; `--help` lists rows and options."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from functools import partial
from pathlib import Path

import torch

import regard
from bench.text import Bitext
from regard.api import LoadedModel
from regard.decode.options import Options
from regard.engines.folder import ENGINES, Engine
from regard.errors import InputError, RegardError
from regard.models import zoo
from regard.models.model import Model, Network
from regard.training.optimizers import Constant, Cosine
from regard.training.settings import Training

_JOEY = "pip install --no-deps -r bench/joey.txt"
REMEDIES = {
    "transformers": "pip install -e '.[bench]'",
    **dict.fromkeys(("reformer_pytorch", "local_attention"), "pip install --no-deps -r bench/reformer.txt"),
    **dict.fromkeys(("bertviz", "IPython"), "pip install --no-deps -r bench/bertviz.txt"),
    "playwright": "pip install playwright",
    "ctranslate2": "pip install -e '.[engines]'",
    **dict.fromkeys(("fastapi", "uvicorn", "prometheus_client", "babel"), "pip install -e '.[serve]'"),
    **dict.fromkeys(("joeynmt", "importlib_metadata", "zipp", "sentencepiece", "subword_nmt"), _JOEY),
}
"""A missing package, and the command that installs it."""


def main(words: list[str]) -> int:
    """Run a row; -> the exit code."""
    chosen = arguments().parse_args(words)
    try:
        threads = chosen.threads or os.cpu_count() or 1
        torch.set_num_threads(threads)
        title, table, facts = chosen.run(chosen)
        report(title, table, {"command": command(words), **facts}, chosen, threads)
    except RegardError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in REMEDIES:
            raise
        print(f"the peer is not installed ({missing}). Run `{REMEDIES[missing]}`.", file=sys.stderr)
        return InputError.exit_code
    return 0


def train_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Training: title, table, facts."""
    from bench import train
    from bench.harness import table
    from bench.text import read_bitext

    text = read_bitext(chosen.data, chosen.vocabulary)
    settings = Training(batch_tokens=chosen.batch_tokens, schedule=Constant(), learning_rate=3e-4, seed=chosen.seed)
    description = described(chosen)
    result = train.measure(text, description, settings, rounds=chosen.rounds, steps=chosen.steps)
    facts = {
        "model": in_words(description.build(text.tokenizer.vocabulary)),
        "training": f"at most {settings.batch_tokens:,} padded tokens of both sides per step, label smoothing "
        f"{settings.label_smoothing}, AdamW, gradients clipped at {settings.clip}; {chosen.rounds} rounds of "
        f"{chosen.steps} steps each, on the same batches",
    }
    return f"Training, {text.name}", table(result, "tokens/s"), facts


def training_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Training beside all peers: title, table, facts."""
    from bench import training
    from bench.peers import versions

    case, threads = training.CASES[chosen.case], chosen.threads or os.cpu_count() or 1
    found = training.measure(case, chosen.data, chosen.only, threads=threads, rounds=chosen.rounds, steps=chosen.steps,
                             seed=chosen.seed)  # fmt: skip
    return f"{case.title}, all peers", found.table, {**found.facts, "environments": versions()}


def peers_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """The environments of the peers: title, table, facts."""
    from bench.peers import PEERS, install

    lines = [f"| {name} | {install(name)} |" for name in chosen.only or PEERS]
    return "Environments of the peers", "\n".join(["| peer | |", "|---|---|", *lines]), {}


def recurrent_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Training with recurrence: title, tables, facts."""
    from bench import recurrent
    from bench.harness import table
    from bench.text import read_bitext

    text = read_bitext(chosen.data, chosen.vocabulary)
    settings = Training(batch_tokens=chosen.batch_tokens, schedule=Constant(), learning_rate=1e-3, seed=chosen.seed)
    pairs = recurrent.pairs(chosen.width, chosen.depth, chosen.dropout)
    tables = []
    for pair in pairs:
        found = recurrent.measure(text, pair, settings, rounds=chosen.rounds, steps=chosen.steps)
        tables.append(f"`{pair.name}`:\n\n{table(found.result, 'tokens/s', found.remarks)}")
    facts = {
        "model": f"width {chosen.width}, {chosen.depth}+{chosen.depth} layers, a bidirectional encoder with "
        f"half the width per direction, dropout {chosen.dropout}, vocabulary {text.tokenizer.vocabulary:,}, "
        "nothing tied",
        **{pair.name: pair.note for pair in pairs},
        "training": f"at most {settings.batch_tokens:,} padded tokens of both sides per step, AdamW (fused in both), "
        f"gradients clipped at {settings.clip}; {chosen.rounds} rounds of {chosen.steps} steps, on the same batches",
        "loss": f"mean of the first {chosen.steps} steps and of the last, label smoothing {settings.label_smoothing} "
        "as each defines it: theirs is a divergence, so it is lower by the entropy of the smoothed targets",
    }
    return f"Training with recurrence, {text.name}", "\n\n".join(tables), facts


def decode_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Decoding: title, table, facts."""
    from bench import decode
    from bench.harness import table
    from bench.text import read_bitext

    model = None if chosen.model is None else regard.load(chosen.model, device="cpu", engine="torch")
    text = read_bitext(chosen.data, chosen.vocabulary, None if model is None else model.tokenizer)
    if model is None:
        schedule = Cosine(warmup=max(1, chosen.steps // 4))
        settings = Training(
            steps=chosen.steps,
            batch_tokens=chosen.batch_tokens,
            schedule=schedule,
            learning_rate=1e-3,
            seed=chosen.seed,
        )
        model = decode.learn(text, described(chosen), settings)
    origin = f"trained for {chosen.steps} steps" if chosen.model is None else f"from {chosen.model.resolve().name}"
    options = Options(beam=chosen.beam, length_penalty=chosen.length_penalty, max_tokens=chosen.max_tokens)
    found = decode.measure(
        text,
        model,
        options,
        rounds=chosen.rounds,
        sentences=chosen.sentences,
        sizes=chosen.batch_sizes,
        early=chosen.early,
    )
    count = min(chosen.sentences, len(text.test))
    facts = {
        "model": f"{in_words(model.network)}; {origin}",
        "search": f"beam {options.beam}, length penalty {options.length_penalty} as each defines it (they agree at 0), "
        f"at most {options.max_tokens} tokens; early_stopping={chosen.early} and batches of {found.size} for "
        f"transformers, the fastest of {', '.join(map(str, chosen.batch_sizes))}; both sort by length",
        "translations": f"{found.same:,} of {count:,} identical; {chosen.rounds} rounds of {count:,} sentences",
    }
    remarks = {name: f"BLEU {score:.2f}" for name, score in found.bleu.items()}
    early = ", early stopping" if chosen.early else ""
    return f"Decoding, {text.name}{early}", table(found.result, "sentences/s", remarks), facts


def engines_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Engines: title, tables, facts."""
    from bench import engines
    from bench.text import read_bitext

    model = regard.load(chosen.model, device="cpu", engine="torch")
    text = read_bitext(chosen.data, None, model.tokenizer)
    threads, test = chosen.threads or os.cpu_count() or 1, text.test
    found = engines.measure(
        chosen.model, test.sources[: chosen.sentences], (test.targets or ())[: chosen.sentences], threads=threads,
        rounds=chosen.rounds, beam=chosen.beam, alone=chosen.alone,
    )  # fmt: skip
    facts = {"model": f"{in_words(model.network)}; from {chosen.model.resolve().name}", **found.facts}
    return f"Engines, {text.name}, threads: {threads}", found.tables, facts


def generate_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Generating with a GPT of random weights: title, table, facts."""
    import tempfile

    from bench import inference

    threads = chosen.threads or os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="regard-") as temporary:
        ours, theirs = inference.gpt(Path(temporary), chosen.seed)
        starts = inference.contestants(ours, {"language model": theirs}, threads)
        found = inference.measure(
            starts, "generate", inference.prompts(chosen.prompts), chosen.rounds, one_by_one=True,
            max_tokens=chosen.max_tokens,
        )  # fmt: skip
    facts = {
        "model": "GPT of 10.7 M random weights: width 384, 6 layers, 6 heads, bytes",
        "search": f"greedy, {chosen.prompts} prompts, one at a time, at most {chosen.max_tokens} tokens each; "
        f"{chosen.rounds} rounds",
    }
    return f"Generating, one prompt at a time, threads: {threads}", found, facts


def embed_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Embedding: title, table, facts."""
    from bench import inference

    threads = chosen.threads or os.cpu_count() or 1
    lines = chosen.text.read_text().splitlines()[: chosen.texts]
    theirs = {"sentence-transformers": chosen.model, "encoder": chosen.model}
    found = inference.measure(inference.contestants(chosen.model, theirs, threads), "embed", lines, chosen.rounds)
    facts = {
        "model": f"{chosen.model.resolve().name}, a folder of sentence-transformers",
        "texts": f"{len(lines):,}, {sum(len(line.split()) for line in lines) / len(lines):.1f} words on average; "
        f"{chosen.rounds} rounds",
    }
    return f"Embedding, threads: {threads}", found, facts


def translator(chosen: argparse.Namespace, engine: Engine = "torch") -> tuple[LoadedModel, Bitext]:
    """The model of `--model`, or one trained for `--steps`, and the text."""
    from bench import decode
    from bench.text import read_bitext

    model = None if chosen.model is None else regard.load(chosen.model, device="cpu", engine=engine)
    text = read_bitext(chosen.data, chosen.vocabulary, None if model is None else model.tokenizer)
    if model is None:
        schedule = Cosine(warmup=max(1, chosen.steps // 4))
        settings = Training(
            steps=chosen.steps, batch_tokens=chosen.batch_tokens, schedule=schedule, learning_rate=1e-3,
            seed=chosen.seed,
        )  # fmt: skip
        model = decode.learn(text, described(chosen), settings)
    model.generation_config.update(max_new_tokens=chosen.max_tokens)
    return model, text


def continuous_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Continuous batching: title, tables, facts."""
    from bench import continuous
    from bench.harness import table

    model, text = translator(chosen)
    texts, tables = list(text.test.sources[: chosen.sentences]), []
    facts = {
        "model": in_words(model.network),
        "measured": f"processor time, {chosen.rounds} rounds of {len(texts):,} sentences; a request that ends is "
        "followed by a new one",
    }
    for beam in chosen.beams:
        found = continuous.measure(model, texts, beam=beam, clients=chosen.clients, rounds=chosen.rounds)
        ratio = found.result.ratio(f"{chosen.clients} in flight", "offline")
        tables.append(f"beam {beam}:\n\n{table(found.result, 'sentences/s')}")
        facts[f"beam {beam}"] = (
            f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) of offline decoding; {found.different:,} "
            "answers differ"
        )
    return f"Continuous batching, {text.name}", "\n\n".join(tables), facts


def serve_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Serving: title, table, facts."""
    from bench import serve
    from bench.harness import table

    model, text = translator(chosen, chosen.engine)
    model.generation_config.update(num_beams=chosen.beam)
    texts = list(text.test.sources[: chosen.sentences])
    found = serve.measure(model, texts, clients=chosen.clients, rounds=chosen.rounds, alone=chosen.alone)
    facts = {
        "model": in_words(model.network),
        "search": f"beam {chosen.beam}, at most {chosen.max_tokens} tokens, engine: {chosen.engine}",
        "measured": f"{chosen.rounds} rounds of {len(texts):,} sentences; each client has one request of one sentence "
        "at a time, in a process of its own",
        **serve.facts(found, chosen.clients),
    }
    return f"Serving, {text.name}", table(found.throughput, "sentences/s"), facts


def long_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """Long texts: title, tables, facts."""
    from bench import long
    from bench.reformers import Case

    whose = long.contestants(chosen.who)
    chosen.peers = long.peers(whose)
    shape = {name: getattr(chosen, name) for name in ("width", "depth", "heads", "window", "rounds", "seed")}
    base = Case("", 0, **shape, threads=chosen.threads or os.cpu_count() or 1)
    limits = long.Limits(60 * chosen.minutes, int(chosen.gib * long.GIB))
    found = long.measure_all(
        base, whose, chosen.lengths, chosen.depths, chosen.depth_length, chosen.repeat, limits, long.Kept(chosen.keep)
    )
    if chosen.plot is not None:
        long.plot(found.steps, whose, chosen.plot)
    return f"Long texts, {long.rounds(base)}", found.tables(whose), long.facts(base, chosen.repeat, limits)


def page_row(chosen: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
    """The attention page: title, table, facts."""
    from bench import bertviz

    cases = [bertviz.Case(chosen.layers, chosen.heads, tokens, chosen.seed) for tokens in chosen.tokens]
    table, frames = bertviz.measure(cases, chosen.long, chosen.rounds, chosen.limit, chosen.libraries)
    facts = {
        "measured": f"in one Chromium, in turns, medians of {chosen.rounds} rounds: from the navigation to the end of "
        "the first frame with the view in it; from a mouse move to the end of the frame that responds to it, median "
        f"of {bertviz.HOVERS}. The file of regard is all of it; BertViz also loads d3, jQuery and RequireJS, here from "
        "a folder",
        "panning": f"one head of {chosen.long:,} tokens, dragged and zoomed {2 * bertviz.PANS} times: "
        f"{statistics.median(frames):.0f} frames per second (regard)",
    }
    return "The attention page", table, facts


def report(title: str, table: str, facts: dict[str, str], chosen: argparse.Namespace, threads: int) -> None:
    """Print the row, and keep it if asked to."""
    from bench.results import RESULTS, replace_section, section, surroundings

    new = section(title, table, {**facts, **surroundings(threads, chosen.seed, chosen.peers)})
    print(new)
    if chosen.write:
        RESULTS.write_text(replace_section(RESULTS.read_text() if RESULTS.exists() else "", new))


def described(chosen: argparse.Namespace) -> Model:
    """The model of the options' sizes."""
    return zoo.transformer(chosen.width, chosen.depth, chosen.heads, inner=chosen.inner, dropout=chosen.dropout)


def in_words(network: Network) -> str:
    """A network's sizes."""
    from bench.marian import sizes

    ours = network.description
    heads, inner = sizes(ours)
    assert ours.encoder is not None
    assert ours.decoder is not None
    return (
        f"width {ours.width}, {len(ours.encoder.layers)}+{len(ours.decoder.layers)} layers, {heads} heads, "
        f"feed-forward {inner}, dropout {ours.encoder.dropout}, vocabulary {network.vocabulary:,} tied three ways"
    )


def command(words: list[str]) -> str:
    """The command as typed, with only the last name of each folder."""
    folder = re.compile(r"(--data|--model|--keep|--plot|--libraries|--text)[ =](\S+)")
    return (
        f"`python -m bench {folder.sub(lambda found: f'{found[1]} {Path(found[2]).resolve().name}', ' '.join(words))}`"
    )


def arguments() -> argparse.ArgumentParser:
    """The options of all rows and of each."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Us and a peer, in turns, on the same text.")
    rows = parser.add_subparsers(dest="row", required=True)
    transformer = partial(sizes, depth=3, heads=4, inner=1024)  # each row its own: `set_defaults` changes them
    train = rows.add_parser(
        "train", parents=[transformer()], help="tokens/s against a plain loop around transformers' Marian"
    )
    train.set_defaults(run=train_row, peers=("transformers",))
    train.add_argument("--steps", type=int, default=10, help="of each block")
    training = rows.add_parser("training", help="tokens/s against all peers, each in an environment of its own")
    training.set_defaults(run=training_row, peers=())
    training.add_argument("case", choices=("encoder-decoder", "gpt", "gpt2"))
    training.add_argument(
        "--data", type=Path, help="folder with train.{de,en} and test_2016_flickr.{de,en}; else dates"
    )
    for name, default in {"steps": 5, "rounds": 5, "seed": 1}.items():
        training.add_argument(f"--{name}", type=int, default=default)
    peers = rows.add_parser("peers", help="install each peer into an environment of its own")
    peers.set_defaults(run=peers_row, peers=(), seed=0)
    for row in (training, peers):
        row.add_argument("--only", action="append", default=[], help="only this peer; can be repeated")
        row.add_argument("--threads", type=int)
        row.add_argument("--write", action="store_true", help="keep the row in bench/RESULTS.md")
    recurrent = rows.add_parser(
        "recurrent", parents=[sizes(depth=2)], help="tokens/s against Joey NMT, with recurrence and attention"
    )
    recurrent.set_defaults(run=recurrent_row, peers=("joeynmt",))
    recurrent.add_argument("--steps", type=int, default=10, help="of each block")
    decode = rows.add_parser("decode", parents=[transformer()], help="sentences/s against transformers' generate")
    decode.set_defaults(run=decode_row, peers=("transformers",))
    decode.add_argument("--model", type=Path, help="run folder of a transformer; without it one is trained")
    decode.add_argument("--steps", type=int, default=300, help="of that training")
    decode.add_argument("--sentences", type=int, default=1000, help="of each block")
    decode.add_argument("--beam", type=int, default=5)
    decode.add_argument("--length-penalty", type=float, default=0.0, help="both define it alike at 0 only")
    decode.add_argument("--max-tokens", type=int, default=128, help="of a translation")
    decode.add_argument("--early", action="store_true", help="the peer stops at as many hypotheses as beams")
    decode.add_argument("--batch-sizes", type=size_list, default=[16, 32, 64, 128], help="tried for the peer: 32,64")
    engines = rows.add_parser("engines", help="sentences/s of engines against CTranslate2's own translate_batch")
    engines.set_defaults(run=engines_row, peers=("ctranslate2",))
    engines.add_argument("--model", type=Path, required=True, help="run folder, converted in float32 and in int8")
    engines.add_argument("--data", type=Path, help="folder with train.{de,en} and test_2016_flickr.{de,en}; else dates")
    for name, default in {"sentences": 1000, "alone": 50, "beam": 5, "rounds": 5, "seed": 1}.items():
        engines.add_argument(f"--{name}", type=int, default=default)
    engines.add_argument("--threads", type=int, help="of each (default: all cores)")
    engines.add_argument("--write", action="store_true", help="keep the row in bench/RESULTS.md")
    generate = rows.add_parser("generate", help="tokens/s of a GPT of 10.7 M random weights, one prompt at a time")
    generate.set_defaults(run=generate_row, peers=("ctranslate2", "transformers"))
    embed = rows.add_parser("embed", help="texts/s against sentence-transformers, transformers and CTranslate2")
    embed.set_defaults(run=embed_row, peers=("ctranslate2", "transformers"))
    embed.add_argument("--model", type=Path, required=True, help="folder of sentence-transformers, converted in "
                       "float32 and in int8")  # fmt: skip
    embed.add_argument("--text", type=Path, required=True, help="file with one text per line")
    embed.add_argument("--texts", type=int, default=1500, help="of each block")
    for name, default in {"prompts": 4, "max-tokens": 128}.items():
        generate.add_argument(f"--{name}", type=int, default=default)
    for row in (generate, embed):
        for name, default in {"rounds": 5, "seed": 1}.items():
            row.add_argument(f"--{name}", type=int, default=default)
        row.add_argument("--threads", type=int, help="of each (default: all cores)")
        row.add_argument("--write", action="store_true", help="keep the row in bench/RESULTS.md")
    serve = rows.add_parser(
        "serve", parents=[transformer()], help="sentences/s of many clients against offline decoding"
    )
    serve.set_defaults(run=serve_row, peers=(), rounds=5)
    serve.add_argument("--model", type=Path, help="run folder of a transformer; without it one is trained")
    serve.add_argument("--steps", type=int, default=300, help="of that training")
    serve.add_argument("--sentences", type=int, default=500, help="of each block")
    serve.add_argument("--clients", type=int, default=32)
    serve.add_argument("--engine", choices=ENGINES, default="torch", help="of offline decoding and of the server")
    serve.add_argument("--alone", type=int, default=20, help="lone requests and streams")
    serve.add_argument("--beam", type=int, default=5)
    serve.add_argument("--max-tokens", type=int, default=128, help="of a translation")
    batching = rows.add_parser(
        "continuous",
        parents=[transformer()],
        help="sentences/s of requests in flight against offline decoding, one thread",
    )
    batching.set_defaults(run=continuous_row, peers=(), rounds=5, threads=1)
    batching.add_argument("--model", type=Path, help="run folder of a transformer; without it one is trained")
    batching.add_argument("--steps", type=int, default=300, help="of that training")
    batching.add_argument("--sentences", type=int, default=300, help="of each block")
    batching.add_argument("--clients", type=int, default=32, help="requests in flight")
    batching.add_argument("--beams", type=size_list, default=[5, 1], help="beam sizes, each measured: 5,1")
    batching.add_argument("--max-tokens", type=int, default=128, help="of a translation")
    add_long(rows.add_parser("long", help="time and memory of a step by length, against full attention and Reformers"))
    add_page(rows.add_parser("page", help="opening and pointing at the attention page, against BertViz's head view"))
    return parser


def add_page(row: argparse.ArgumentParser) -> None:
    """The options of the row on the attention page."""
    row.set_defaults(run=page_row, peers=("bertviz", "playwright"))
    row.add_argument("--libraries", type=Path, default=Path(), help="folder of npm's d3, jquery and requirejs")
    row.add_argument("--layers", type=int, default=12)
    row.add_argument("--heads", type=int, default=12)
    row.add_argument("--tokens", type=size_list, default=[128, 512], help="128,512")
    row.add_argument("--long", type=int, default=4096, help="tokens of the head that is panned")
    row.add_argument("--rounds", type=int, default=5, help="how often all are opened")
    row.add_argument("--limit", type=float, default=120.0, help="seconds that a page may take")
    row.add_argument("--seed", type=int, default=1)
    row.add_argument("--threads", type=int)
    row.add_argument("--write", action="store_true", help="keep the row in bench/RESULTS.md")


def add_long(row: argparse.ArgumentParser) -> None:
    """The options of the row on long texts."""
    row.set_defaults(run=long_row)
    row.add_argument("--lengths", type=size_list, default=[4**power for power in range(5, 11)], help="1024,4096")
    row.add_argument("--depths", type=size_list, default=[3, 6, 12], help="of the table by depth, at --depth-length")
    row.add_argument("--depth-length", type=int, default=16_384, help="tokens of the table by depth")
    row.add_argument("--who", action="append", help="only this model; can be repeated")
    row.add_argument("--repeat", type=int, default=3, help="how often all work; medians are shown")
    for name, default in {"width": 256, "depth": 6, "heads": 4, "window": 64, "rounds": 2}.items():
        row.add_argument(f"--{name}", type=int, default=default)
    row.add_argument("--minutes", type=float, default=10.0, help="time limit of a measurement, except for our own")
    row.add_argument("--gib", type=float, default=20.0, help="memory limit of a measurement")
    row.add_argument("--keep", type=Path, help="file of measurements; an interrupted run resumes")
    row.add_argument("--plot", type=Path, help="write time and memory by length as a picture")
    row.add_argument("--threads", type=int, help="of all (default: all cores)")
    row.add_argument("--seed", type=int, default=1)
    row.add_argument("--write", action="store_true", help="keep the row in bench/RESULTS.md")


def sizes(**defaults: int) -> argparse.ArgumentParser:
    """The options of a row whose model has these sizes besides its width."""
    both = argparse.ArgumentParser(add_help=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    both.add_argument("--data", type=Path, help="folder with train.{de,en} and test_2016_flickr.{de,en}; else dates")
    both.add_argument("--rounds", type=int, default=9, help="how often both work")
    both.add_argument("--threads", type=int, help="of both (default: all cores)")
    both.add_argument("--seed", type=int, default=1)
    both.add_argument("--write", action="store_true", help="keep the row in bench/RESULTS.md")
    for name, default in {"width": 256, **defaults, "batch-tokens": 4096}.items():
        both.add_argument(f"--{name}", type=int, default=default)
    both.add_argument("--dropout", type=float, default=0.1)
    both.add_argument("--vocabulary", type=int, help="size of the joint BPE (default: 8,000; dates 3,000)")
    return both


def size_list(text: str) -> list[int]:
    """32,64 -> [32, 64]."""
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
