"""The critic: one head of attention and an LSTM (SHA-RNN, Merity 2019) against a Transformer, in equal time.

SHA-RNN has an LSTM and a Boom layer per layer, and one head of attention in all. All models are trained on the same
bytes for equal processor time; recurrent models carry their memory from one segment to the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from regard.data.read.corpus import Corpus
from regard.data.samples import Samples
from regard.data.tasks.language_model import LanguageModel, TruncatedBPTT
from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_arm
from regard.lab.learning import build, learn, score
from regard.lab.tasks import BYTES, read_text
from regard.layers.positions import Rotary
from regard.models import zoo
from regard.models.model import Model
from regard.training.optimizers import AdamW, Lamb, Optimizer


@dataclass(frozen=True)
class Settings:
    """Sizes of the models, and processor seconds of each training."""

    width: int = 64
    depth: int = 3
    seconds: int = 24
    learning_rate: float = 0.005


def sha_rnn(settings: Settings, attention: str | tuple[int, ...]) -> Model:
    """SHA-RNN with attention in some layers."""
    return zoo.sha_rnn(settings.width, settings.depth, attention=attention, window=256, dropout=0.0)  # type: ignore[arg-type]


def transformer(settings: Settings) -> Model:
    """A Transformer with as many parameters as SHA-RNN with one head, by the width of its feed-forward."""
    wanted = size(sha_rnn(settings, "before_last"))

    def sized(inner: int) -> Model:
        return zoo.gpt2(settings.width, settings.depth, 4, inner=inner, position=Rotary(), dropout=0.0)

    return sized(min(range(settings.width, 12 * settings.width, 8), key=lambda inner: abs(size(sized(inner)) - wanted)))


def size(model: Model) -> int:
    """The parameters of a model of bytes."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in model.build(BYTES.vocabulary).parameters())


MODELS: dict[str, Callable[[Settings], Model]] = {
    "LSTM, no head": lambda settings: sha_rnn(settings, ()),
    "LSTM, one head": lambda settings: sha_rnn(settings, "before_last"),
    "LSTM, one head, LAMB": lambda settings: sha_rnn(settings, "before_last"),
    "LSTM, a head per layer": lambda settings: sha_rnn(settings, "all"),
    "Transformer": transformer,
}


def samples(model: Model, text: str, streams: int) -> Samples:
    """Streams with carried memory for models that have one, else windows."""
    task = TruncatedBPTT(128, streams) if model.constant_memory else LanguageModel(256)
    return task.samples(Corpus([text], None, ("text",)), (BYTES, None))


def affordable_steps(model: Model, rows: Samples, trial: Trial[Settings], optimizer: Optimizer) -> int:
    """How many steps fit into the processor time, measured on a throw-away network."""
    network, times = build(model, BYTES.vocabulary, 0), [time.process_time()]
    learn(network, rows, trial, steps=8, batch=8, share=0.0, optimizer=optimizer,
          after=lambda step, loss: times.append(time.process_time()))  # fmt: skip
    seconds = (times[-1] - times[3]) / 5  # the first ones are slower, and their memory is not yet full
    return max(10, round(trial.scaled("seconds") / seconds))


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """Bits per byte of held-out text."""
    chosen = trial.settings
    model = MODELS[trial.arm](chosen)
    optimizer: Optimizer = Lamb() if trial.arm.endswith("LAMB") else AdamW(weight_decay=0.05)
    rows = samples(model, read_text(trial.text, "train", 2_000_000), 16)
    steps = affordable_steps(model, rows, trial, optimizer)
    network = build(model, BYTES.vocabulary, trial.seed)
    learn(network, rows, trial, steps=steps, batch=8, optimizer=optimizer, learning_rate=chosen.learning_rate)
    held_out = samples(model, read_text(trial.text, "test", 12_000), 1)
    bits = score(network, held_out).loss / math.log(2)
    return {"parameters": float(size(model)), "steps": float(steps), "bits per byte": bits}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    behind = numbers.lead("LSTM, one head", "Transformer", "bits per byte")
    heads = numbers.lead("LSTM, one head", "LSTM, a head per layer", "bits per byte")
    if all(one < 0.03 for one in (*behind, *heads)):
        return CONFIRMED
    return REFUTED if all(one > 0.03 for one in behind) or all(one > 0.03 for one in heads) else NOT_DECIDED


CLAIM = Claim(
    name="critic",
    question="In equal time, is an LSTM with one head of attention as good as one with a head in every layer, and as "
    "a Transformer?",
    source="Merity 2019 (SHA-RNN, 'Stop thinking with your head'); notes ('transformers are overrated')",
    method="Language models of bytes on the source code of Python's library: 2,048 bytes per step, as many steps as "
    "fit into equal processor time on one thread. The Transformer's feed-forward gives it the parameters of the LSTM "
    "with one head. One learning rate for all; AdamW, and LAMB for one more. Bits per byte on held-out files: LSTMs "
    "read them whole, the Transformer in windows of 256.",
    rule="Confirmed if in every seed the LSTM with one head is less than 0.03 bits per byte behind both; refuted if "
    "it is more than 0.03 bits behind one of them in every seed.",
    caveats="Minutes on one core, models far smaller than the paper's. The learning rate was tuned for none of them, "
    "and LAMB's differs in kind. A sliding window would help the Transformer a little.",
    minutes=7,
    fewest=4,
    arms=tuple(MODELS),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_arm("Bits per byte", "bits per byte"),
    needs_text=100_000,
)
