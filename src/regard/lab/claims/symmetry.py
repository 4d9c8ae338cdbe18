"""Why heads differ: identical initial heads get identical gradients and stay identical; noise breaks the symmetry.

The output of attention is the sum over h of softmax(q_h k_h / sqrt(d)) v_h W_h. If all heads have the same weights,
the derivatives of the loss are the same for all of them, so no step of any optimizer can tell them apart. Nothing in
the loss asks heads to differ: random initial weights do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.lab.claim import CONFIRMED, NOT_DECIDED, REFUTED, Claim, Numbers, Trial, Verdict, by_label
from regard.lab.learning import build, learn, score
from regard.lab.tasks import BYTES, language_model, read_text
from regard.layers.positions import Learned
from regard.models import zoo
from regard.models.model import Network


@dataclass(frozen=True)
class Settings:
    """Sizes of task and model."""

    width: int = 48
    heads: int = 4
    length: int = 32
    rows: int = 16  # per step
    steps: int = 1200


NOISE = {"identical": 0.0, "identical and noise of 1%": 0.01, "drawn at random": None}
_MOMENTS = (0, 0.1, 0.5, 1.0)  # of the training, when heads are compared


def heads_of(network: Network, heads: int) -> Tensor:
    """-> H, parameters: all weights that belong to each head: its rows of W^Q, W^K, W^V and its columns of W^O."""
    parts = []
    for name, weight in network.named_parameters():
        if "query_key_value" in name:
            parts += [part.reshape(heads, -1) for part in weight.chunk(3)]
        elif name.endswith("self.sublayer.out.weight"):
            parts.append(weight.unflatten(1, (heads, -1)).transpose(0, 1).reshape(heads, -1))
    return torch.cat(parts, dim=1)


@torch.no_grad()
def start(network: Network, heads: int, noise: float | None, seed: int) -> None:
    """Copy the first head's weights into all heads, and add noise; None leaves them as they were drawn."""
    if noise is None:
        return
    generator = torch.Generator().manual_seed(seed)
    for name, weight in network.named_parameters():
        parts = weight.chunk(3) if "query_key_value" in name else ()
        columns = (weight,) if name.endswith("self.sublayer.out.weight") else ()
        views = [part.unflatten(0, (heads, -1)) for part in parts]
        views += [part.unflatten(1, (heads, -1)).transpose(0, 1) for part in columns]
        for view in views:
            view.copy_(view[:1].clone().expand_as(view))
            view.add_(noise * view.std() * torch.randn(view.shape, generator=generator))


def distance(network: Network, heads: int) -> float:
    """How far heads are apart, relative to their size: 0 if identical, about 1.4 if independent."""
    weights = heads_of(network, heads).detach()
    return float((weights[1:] - weights[:1]).norm(dim=1).mean() / weights.norm(dim=1).mean())


def measure(trial: Trial[Settings]) -> Mapping[str, float]:
    """The distance between heads during training, and the accuracy after it."""
    chosen, steps = trial.settings, trial.scaled("steps")
    model = zoo.gpt2(chosen.width, 1, chosen.heads, dropout=0.0, position=Learned(chosen.length), tied=False)
    network = build(model, BYTES.vocabulary, trial.seed).double()  # in which rounding hardly tells heads apart
    start(network, chosen.heads, NOISE[trial.arm], trial.seed)
    moments = {round(share * steps): share for share in _MOMENTS}
    found = {f"distance at {0:.0%} of the steps": distance(network, chosen.heads)}

    def after(step: int, _: float) -> None:
        if step in moments:
            found[f"distance at {moments[step]:.0%} of the steps"] = distance(network, chosen.heads)

    rows = language_model(read_text(trial.text, "train", 500_000), chosen.length)
    learn(network, rows, trial, steps=steps, batch=chosen.rows, after=after)
    held_out = language_model(read_text(trial.text, "valid", 10_000), chosen.length)
    return {**found, "loss": score(network, held_out).loss}


def verdict(numbers: Numbers) -> Verdict:
    """See the rule."""
    last = "distance at 100% of the steps"
    same, noisy = numbers.values("identical", last), numbers.values("identical and noise of 1%", last)
    if all(value < 1e-3 for value in same) and all(value > 0.04 for value in noisy):
        return CONFIRMED
    return REFUTED if all(value > 0.04 for value in same) else NOT_DECIDED


CLAIM = Claim(
    name="symmetry",
    question="How does training ensure that the heads learn different subspaces: does anything but their random "
    "initial weights tell them apart?",
    source="notes on multi-head attention (an open question there); Vaswani 2017, section 3.2.2",
    method="A language model of bytes with one layer of attention. All heads start as copies of the first one; or as "
    "copies with noise of 1%; or drawn independently. Equal steps, no dropout, float64, nothing is tuned.",
    rule="Relative distance between the weights of heads after training. Confirmed if in every seed identical heads "
    "are within 0.001 of each other, and those with noise, which start 0.014 apart, end further than 0.04 apart. "
    "Refuted if identical heads end further than 0.04 apart in every seed.",
    caveats="Task, precision and thresholds were settled after pilots with seeds 1 to 3. In float32, rounding alone "
    "breaks the symmetry slowly (a distance of about 0.002 after 400 steps). Dropout on attention weights would break "
    "it at once.",
    minutes=3,
    fewest=1,
    arms=tuple(NOISE),
    settings=Settings(),
    measure=measure,
    verdict=verdict,
    picture=by_label("Relative distance between heads", "distance at", log=True),
    needs_text=20_000,
)
