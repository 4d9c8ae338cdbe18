"""Time per token by length: recurrence computes one position after the other, attention all at once.

An RNN needs n steps of O(d^2) that wait for each other; self-attention needs one step of O(n d^2 + n^2 d). When
decoding, attention too goes token by token, and reads n keys per token, while an RNN reads one state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import build
from regard.lab.tasks import draw
from regard.layers.contract import Context, Memory
from regard.layers.embedding import Embed
from regard.layers.join import PreNorm
from regard.layers.positions import Rotary
from regard.layers.recurrent import LSTM, Recurrent
from regard.models import zoo
from regard.models.model import Model, Network, Stack
from regard.models.readouts import Vocabulary


@dataclass(frozen=True)
class Settings:
    """Lengths, the width of the models, and how often each is timed."""

    width: int = 256
    depth: int = 1
    lengths: tuple[int, ...] = (32, 128, 512)
    repeats: int = 30


def lstm(settings: Settings) -> Model:
    """LSTM layers, whose 8 d^2 weights each are two thirds of a Transformer layer's."""
    stack = Stack(settings.depth * ((Recurrent(LSTM()),),), PreNorm())
    return Model(settings.width, embed=Embed(), decoder=stack, readout=Vocabulary())


MODELS: dict[str, Callable[[Settings], Model]] = {
    "LSTM": lstm,
    "attention": lambda settings: zoo.gpt2(settings.width, settings.depth, 4, dropout=0.0, position=Rotary()),
}


def training_time(network: Network, texts: int, length: int, seed: int) -> float:
    """Processor seconds per token of a forward and backward pass over some texts of this length."""
    ids = draw(seed, texts, length + 1, below=50)
    begun = time.process_time()
    network.loss({"ids": ids[:, :-1]}, ids[:, 1:]).backward()
    return (time.process_time() - begun) / (texts * length)


@torch.inference_mode()
def decoding_time(network: Network, length: int, seed: int, tokens: int = 8) -> float:
    """Processor seconds per token of decoding, after a text of this length."""
    ids, memory = draw(seed, 1, length + tokens, below=50), None
    context = Context(remember=True)
    _, memory = network.decode(ids[:, :length], context, memory)
    begun = time.process_time()
    for at in range(length, length + tokens):
        memory = _step(network, ids[:, at : at + 1], replace(context, start=at), memory)
    return (time.process_time() - begun) / tokens


def _step(network: Network, ids: torch.Tensor, context: Context, memory: Memory) -> Memory:
    states, memory = network.decode(ids, context, memory)
    network.readout(states)
    return memory


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """Microseconds per token, medians over repeats."""
    chosen, found = trial.settings, {}
    network = build(MODELS[trial.arm](chosen), 50, trial.seed)
    for length in chosen.lengths:
        texts = max(chosen.lengths) // length  # the same number of tokens at every length
        training_time(network, texts, length, trial.seed)  # the first one is slower
        times = [training_time(network, texts, length, trial.seed) for _ in range(trial.scaled("repeats"))]
        found[f"training, length {length}"] = 1e6 * statistics.median(times)
    for length in chosen.lengths:
        decoding_time(network, length, trial.seed)
        times = [decoding_time(network, length, trial.seed) for _ in range(trial.scaled("repeats"))]
        found[f"decoding, length {length}"] = 1e6 * statistics.median(times)
    return found


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    cost = {arm: growth(numbers, arm, "training") for arm in numbers.arms}
    ratio = [lstm / attends for lstm, attends in zip(cost["LSTM"], cost["attention"])]
    if all(one > 1.5 for one in ratio) and all(one < 1.5 for one in growth(numbers, "LSTM", "decoding")):
        return CONFIRMED
    return REFUTED if all(one < 1.25 for one in ratio) else NOT_DECIDED


def growth(numbers: Numbers, arm: str, what: str) -> list[float]:
    """By seed: the time per token at the longest length, relative to the shortest."""
    short, *_, long = (name for name in numbers.arms[arm] if name.startswith(what))
    return [late / early for early, late in zip(numbers.values(arm, short), numbers.values(arm, long))]


CLAIM = Claim(
    name="parallel",
    question="Does an LSTM pay for reading one token after another, which attention does not when it trains?",
    source="Vaswani 2017, section 4 and table 1; notes on the lack of parallelizability",
    method="One layer of the same width. Processor time per token of a forward and backward pass over 512 tokens: as "
    "16 texts of 32, 4 of 128, or one of 512, so that the work is the same and only the number of steps that wait "
    "for each other grows; and of decoding one more token after a text. One thread, medians over repeats.",
    rule="Growth = time per token at the longest length / at the shortest. Confirmed if in every seed the LSTM's "
    "growth in training is more than 1.5 times that of attention, and its growth in decoding is below 1.5. Refuted if "
    "it is less than 1.25 times that of attention in every seed.",
    caveats="Measure and rule were settled after pilots: as plain time per token, the LSTM was the faster one on one "
    "core. On one core nothing runs in parallel: an LSTM loses only the reuse of its weights within a step, and it "
    "may still be the faster one per token. On a GPU, which one step of one text hardly fills, it loses far more. "
    "Seeds repeat the timing.",
    minutes=2,
    fewest=1,
    arms=tuple(MODELS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Microseconds per token", "", log=True),
)
