"""Training beside all peers, each in a process and an environment of its own, in turns on the same batches."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from bench.harness import Result, compare, table
from bench.learners import LEARNERS, answer
from bench.peers import HERE, python_of
from bench.text import read_bitext
from bench.train import advancing, learner
from regard.data.read.corpus import Corpus, embedded_corpus
from regard.data.tasks.language_model import LanguageModel
from regard.data.tokenize.tokenizer import Tokenizer
from regard.data.tokenize.train import Byte, train_tokenizers
from regard.errors import InputError, RunFailed
from regard.evaluation.contestant import Contestant, Pass, _products_per_second
from regard.models import zoo
from regard.training.optimizers import Constant
from regard.training.settings import Training
from regard.training.step import Trainer

ENVIRONMENT = {"nn.Transformer": None, "plain": None, "Joey NMT": "joeynmt"}
"""The environment of a peer, where it is not named after it; None: ours, for what is only torch."""
_CONTEXT = 256  # tokens of a row of a language model


class Peer(Contestant):
    """The process of a contestant, with any Python and any script."""

    def __init__(self, words: Sequence[str], threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1000"}
        self.process = subprocess.Popen(words, env=environment, text=True, cwd=HERE.parent, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def train(self, steps: int) -> Pass:
        """Take so many steps."""
        return Pass(**self.ask(task="train", steps=steps))


@dataclass(frozen=True)
class Case:
    """What is trained: an encoder-decoder, or a language model of some size."""

    title: str
    width: int
    depth: int
    heads: int
    rows: int = 0  # of a batch of a language model; 0: an encoder-decoder
    vocabulary: int | None = None
    dropout: float = 0.0

    def trainer(self, data: Path | None, seed: int) -> tuple[Trainer, Tokenizer]:
        """Ours, before its first step, and the tokenizer of its text."""
        settings = Training(schedule=Constant(), learning_rate=3e-4, seed=seed)
        if not self.rows:
            text = read_bitext(data, self.vocabulary)
            description = zoo.transformer(
                self.width, self.depth, self.heads, inner=4 * self.width, dropout=self.dropout
            )
            return learner(text, description, settings), text.tokenizer
        sources = embedded_corpus("python", "train").sources
        corpus = Corpus(["".join(sources)], None, ("python",))
        tokenizer = train_tokenizers(Byte(), corpus)[0]
        settings = replace(settings, batch_tokens=self.rows * _CONTEXT, label_smoothing=0.0)
        torch.manual_seed(seed)
        network = zoo.gpt2(self.width, self.depth, self.heads, dropout=self.dropout).build(self.vocabulary)
        samples = LanguageModel(_CONTEXT).samples(corpus, (tokenizer, None))
        return Trainer(network, samples, settings, torch.device("cpu")), tokenizer

    def given(self, trainer: Trainer, tokenizer: Tokenizer, steps: int) -> dict[str, Any]:
        """Sizes and batches, for the peers."""
        batches, cursor = [], trainer.cursor
        for _ in range(steps):
            indices, cursor = trainer.batches.next_step(cursor)
            batch, tokens = trainer.samples.batch(indices), int(trainer.samples.lengths[indices].sum())
            source = {"source": batch.inputs["source_ids"]} if "source_ids" in batch.inputs else {}
            batches.append({**source, "ids": batch.inputs["ids"], "targets": batch.targets, "tokens": tokens})
        sizes = {name: getattr(self, name) for name in ("width", "depth", "heads", "dropout")}
        sizes |= {name: getattr(tokenizer, name) for name in ("pad", "bos", "eos", "unk")}
        settings = trainer.settings
        sizes |= {"inner": 4 * self.width, "vocabulary": trainer.network.vocabulary,
                  "smoothing": settings.label_smoothing, "learning_rate": settings.learning_rate}  # fmt: skip
        return {"sizes": sizes, "batches": batches}


CASES = {
    "encoder-decoder": Case("Training an encoder-decoder", 256, 3, 4, vocabulary=None, dropout=0.1),
    "gpt": Case("Training a GPT of 10.7 M", 384, 6, 6, rows=8, vocabulary=259),
    "gpt2": Case("Training GPT-2 124 M", 768, 12, 12, rows=2, vocabulary=50_257),
}


@dataclass(frozen=True)
class Found:
    """The table, and facts about the run."""

    table: str
    facts: dict[str, str]


def measure(case: Case, data: Path | None, only: Sequence[str], *, threads: int, rounds: int, steps: int,
            seed: int) -> Found:  # fmt: skip
    """Tokens per second of all that have an environment, padding not counted."""
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trainer, tokenizer = case.trainer(data, seed)
        (folder / "ours").write_bytes(pickle.dumps((case, data, seed)))
        torch.save(case.given(trainer, tokenizer, (rounds + 1) * steps), folder / "peers")
        limit = _products_per_second()
        starts = {"regard": [sys.executable, "-m", "bench.training", str(folder / "ours"), str(threads)]}
        for name, kinds in LEARNERS.items():
            if kinds[bool(case.rows)] is None or (only and name not in only):
                continue
            try:
                environment = ENVIRONMENT.get(name, name)
                python = sys.executable if environment is None else str(python_of(environment))
            except InputError as error:
                absent[name] = str(error)
                continue
            starts[name] = [
                python,
                "-W",
                "ignore",
                str(HERE / "learners.py"),
                name,
                str(folder / "peers"),
                str(threads),
            ]
        contestants = {name: Peer(words, threads) for name, words in starts.items()}
        for contestant in contestants.values():
            stack.callback(contestant.end)
        facts = {name: contestant.ask(task="facts") for name, contestant in contestants.items()}
        result, passes = _in_turns(contestants, rounds, steps)
    remarks = {name: f"{facts[name]['parameters'] / 1e6:.2f} M parameters, {_remark(passes[name], steps)}"
               for name in passes}  # fmt: skip
    flops = _flops_per_token(case, trainer)
    share = result.speed("regard").median * flops / limit
    said = {
        "limit": f"{limit / 1e9:,.0f} GFLOP/s in large float32 products; regard's products reach {share:.0%} of it",
        "training": f"AdamW (fused), gradients clipped at 1.0, dropout {case.dropout}, label smoothing "
        f"{trainer.settings.label_smoothing}; {rounds} rounds of {steps} steps, all on the same batches",
        **({"not measured": "; ".join(f"{name} ({why})" for name, why in absent.items())} if absent else {}),
    }
    return Found(table(result, "tokens/s", remarks), said)


def _in_turns(contestants: dict[str, Peer], rounds: int, steps: int) -> tuple[Result, dict[str, list[Pass]]]:
    passes: dict[str, list[Pass]] = {name: [] for name in contestants}

    def block(name: str) -> Callable[[], float]:
        def work() -> float:
            passes[name].append(contestants[name].train(steps))
            return passes[name][-1].tokens / passes[name][-1].seconds

        return work

    result = compare("training", {name: block(name) for name in contestants}, rounds)
    read = {name: [one.tokens for one in some] for name, some in passes.items()}
    if any(other != read["regard"] for other in read.values()):
        raise RunFailed("they did not read the same batches, so their speeds do not compare.")
    return result, passes


def _remark(passes: Sequence[Pass], steps: int) -> str:
    cpu = median(one.cpu_seconds for one in passes[1:]) / steps
    first, last = (mean(map(float, one.answers)) for one in (passes[0], passes[-1]))
    if last >= first:
        raise RunFailed(f"the loss did not fall ({first:.3f} to {last:.3f}). Take more steps (--steps).")
    return f"{cpu:.2f} s of processor time per step, {passes[-1].peak_memory / 2**20:,.0f} MiB, " \
           f"loss {first:.2f} to {last:.2f}"  # fmt: skip


def _flops_per_token(case: Case, trainer: Trainer) -> float:
    """Operations of the products with weights, forward and backward, per token of either side."""
    network = trainer.network
    readout = network.vocabulary * case.width
    decoder = sum(one.numel() for one in network.decoder.parameters() if one.dim() > 1) + readout
    if case.rows:
        return 6.0 * decoder
    encoder = sum(one.numel() for one in network.encoder.parameters() if one.dim() > 1)
    return 3.0 * (encoder + decoder)  # half of the tokens are the source's


def main(file: str, threads: str) -> None:
    """Ours, in a process of its own."""
    torch.set_num_threads(int(threads))
    case, data, seed = pickle.loads(Path(file).read_bytes())
    trainer, _ = case.trainer(data, seed)
    count = sum(weight.numel() for weight in trainer.network.parameters())
    answer(advancing(trainer), {"parameters": count, "torch": torch.__version__})


if __name__ == "__main__":
    main(*sys.argv[1:])
