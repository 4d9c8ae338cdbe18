"""A whole book in one window: a Reformer reads far more at once than the windows on which it was trained.

Its attention reads a bounded number of keys per token, so length costs time, not memory (Kitaev 2020, section 5). But
a position that never occurred in training has a vector that was never trained. With random positions, a training
window starts anywhere in the book's length, so every position is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.read.corpus import Corpus
from regard.data.samples import Samples
from regard.data.tasks.language_model import LanguageModel
from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import build, learn
from regard.lab.tasks import BYTES, read_text
from regard.layers.lsh.masks import RankWindow
from regard.layers.positions import Axial
from regard.models import zoo
from regard.models.model import Network


@dataclass(frozen=True)
class Settings:
    """The length of the book as a table of axial positions, the training window, and the sizes of the model."""

    axes: tuple[int, int] = (128, 192)
    window: int = 256
    width: int = 64
    depth: int = 2
    rows: int = 8  # per step
    steps: int = 500

    @property
    def book(self) -> int:
        """Tokens that are read at once."""
        return self.axes[0] * self.axes[1]


RANDOM = {"random positions": True, "positions from 0": False}
QUARTERS = 4


def windows(text: str, length: int, random_positions: int = 0) -> Samples:
    """A text as windows of this length."""
    task = LanguageModel(length, random_positions=random_positions)
    return task.samples(Corpus([text], None, ("text",)), (BYTES, None))


@torch.inference_mode()
def bits(network: Network, rows: Samples) -> Tensor:
    """The bits of every byte, given those before it in its window."""
    found = []
    for number in range(len(rows)):
        batch = rows.batch([number])
        logits = network.readout(network.hidden_states(batch.inputs["ids"]))
        found.append(F.cross_entropy(logits[0], batch.targets[0], reduction="none") / math.log(2))
    return torch.cat(found)


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """Bits per byte by quarter of the book: in one window, in windows of the training length, and the difference."""
    chosen, steps = trial.settings, trial.scaled("steps")
    model = zoo.reformer(chosen.width, chosen.depth, 4, pattern=RankWindow(32), buckets=32, position=Axial(chosen.axes),
                         dropout=0.0)  # fmt: skip
    network = build(model, BYTES.vocabulary, trial.seed)
    reach = chosen.book if RANDOM[trial.arm] else 0
    learn(network, windows(read_text(trial.text, "train", 2_000_000), chosen.window, reach), trial, steps=steps,
          batch=chosen.rows)  # fmt: skip
    text = read_text(trial.text, "test", chosen.book - 1)
    whole, cut = (bits(network, windows(text, length)) for length in (chosen.book, chosen.window))
    parts = list(zip(whole.chunk(QUARTERS), cut.chunk(QUARTERS)))
    found = {f"in one window, quarter {number}": float(one.mean()) for number, (one, _) in enumerate(parts, 1)}
    found |= {f"in short windows, quarter {number}": float(two.mean()) for number, (_, two) in enumerate(parts, 1)}
    return found | {f"behind, quarter {n}": float(one.mean() - two.mean()) for n, (one, two) in enumerate(parts, 1)}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    behind = numbers.values("random positions", f"behind, quarter {QUARTERS}")
    if all(one < 0.05 for one in behind):
        return CONFIRMED
    return REFUTED if all(one > 0.2 for one in behind) else NOT_DECIDED


CLAIM = Claim(
    name="book",
    question="Does a Reformer that was trained on short windows read a whole book in one window as well at its end "
    "as in short windows?",
    source="Kitaev 2020, section 5 (a whole text in memory); notes on the Reformer",
    method="A language model of bytes with local and LSH attention, on the source code of Python's library, trained "
    "on windows of 256 bytes, which start at random positions of the book, or all at 0. Equal steps and learning rate "
    "(tuned for neither). Then 24,576 bytes of held-out files are read in one window, and again in windows of 256.",
    rule="Behind = bits per byte in one window - in short windows, in the last quarter of the book. Confirmed if with "
    "random positions it is less than 0.05 in every seed; refuted if more than 0.2 in every seed. The model with "
    "positions from 0 is reported, not judged.",
    caveats="A small book, so that minutes suffice, and a small model. Its local window is as short as in training, "
    "so only LSH attention could use the longer context: not being behind is not being ahead.",
    minutes=6,
    fewest=4,
    arms=tuple(RANDOM),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Bits per byte in one window, less those in short windows", "behind,"),
    needs_text=300_000,
)
