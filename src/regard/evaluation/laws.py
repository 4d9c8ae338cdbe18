"""A network and what it is given to read, and the ways of reading that the laws compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from regard.decode.generate import Request, answer, room
from regard.decode.options import Options
from regard.layers.contract import Context, Memory, Source, select
from regard.layers.record import Record
from regard.models.model import AnySublayer, Model, Network


@dataclass(frozen=True, eq=False)
class Probe:
    """A network and the arguments it is called with: ids and padding, and those of the source if it has one.

    Padding is on the right, and every slot holds some token: a law may ignore it and read whole rows.
    """

    network: Network
    inputs: Mapping[str, Tensor]
    end: int

    @property
    def ids(self) -> Tensor:
        """BT: what is read, or said when there is a source."""
        return self.inputs["ids"]

    @property
    def padding(self) -> Tensor:
        """BT, True where there is a token."""
        return self.inputs["padding"]

    @property
    def sides(self) -> tuple[str, ...]:
        """What the names of a side's inputs begin with."""
        return ("", "source_") if "source_ids" in self.inputs else ("",)

    def source(self) -> Source | None:
        """What the encoder says of the sources."""
        if "source_ids" not in self.inputs:
            return None
        return self.network.encode_source(self.inputs["source_ids"], self.inputs["source_padding"])

    def read(self, **changed: Tensor) -> Tensor:
        """-> BTN: the logits, with some inputs changed."""
        return answers(self.network, {**self.inputs, **changed})

    def states(self, record: Record | None = None) -> Tensor:
        """-> BTD: the last layer's states, while someone looks or nobody does."""
        arguments: dict[str, Any] = {**self.inputs, "record": record}
        return self.network.hidden_states(**arguments)

    def row(self, row: int) -> dict[str, Tensor]:
        """The ids of one row without its padding, by side."""
        lengths = {side: int(self.inputs[f"{side}padding"][row].sum()) for side in self.sides}
        return {f"{side}ids": self.inputs[f"{side}ids"][row : row + 1, :n] for side, n in lengths.items()}

    def other(self, ids: Tensor, side: str = "") -> Tensor:
        """The same shape, another token in every slot."""
        embed = self.network.source_embed if side else self.network.embed
        return (ids + 1) % embed.table.num_embeddings


def gap(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value expected; infinite where they cannot be compared."""
    if found.shape != expected.shape:
        return math.inf
    difference = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    return float(difference) if bool(difference.isfinite()) else math.inf


def answers(network: Network, inputs: Mapping[str, Tensor]) -> Tensor:
    """-> BTN: the logits; what is said of a text as a whole is said at each of its tokens."""
    found: Tensor = network(**inputs)
    if network.description.readout.tokenwise:
        return found
    return found[:, None].expand(-1, inputs["ids"].shape[1], -1)


def said(network: Network, states: Tensor) -> Tensor:
    """BTD -> BTN: the logits, or the states themselves where tokens have none."""
    found: Tensor = network.readout(states) if network.description.readout.tokenwise else states
    return found


def logits(network: Network, ids: Tensor, context: Context) -> Tensor:
    """BT -> BTN: what the decoder says of whole rows."""
    return said(network, network.decode(ids, context)[0])


def stepped(probe: Probe, step: int, record: Record | None = None) -> Tensor:
    """-> BTN: the logits of whole rows, read so many tokens at a time."""
    context = Context(source=probe.source(), remember=True, record=record)
    memory: Memory = None
    parts = []
    for start in range(0, probe.ids.shape[1], step):
        now = replace(context, start=start)
        states, memory = probe.network.decode(probe.ids[:, start : start + step], now, memory)
        parts.append(said(probe.network, states))
    return torch.cat(parts, dim=1)


TOLERANCE = 1e-4
LEAST = 4
"""The fewest tokens a row must have room for."""

_MORE = 5  # columns of padding that a law adds, where there is room
_SAID = 20  # tokens that a search may say


def stepping(probe: Probe) -> float:
    """Read at once, and one, three or seven tokens at a time."""
    whole = logits(probe.network, probe.ids, Context(source=probe.source()))
    return max(gap(stepped(probe, step), whole) for step in (1, 3, 7))


def prompts(probe: Probe) -> float:
    """Prompts of unequal length go on together; each row is then read alone."""
    network, ids, source = probe.network, probe.ids, probe.source()
    rows, half = len(ids), ids.shape[1] // 2
    lengths = 1 + torch.arange(rows, device=ids.device) * 5 % half
    seen = torch.arange(half, device=ids.device) < lengths[:, None]
    states, memory = network.decode(ids[:, :half], Context(source=source, padding=seen, remember=True))
    parts = [states]
    for t in range(half, ids.shape[1]):
        now = Context(source=source, start=lengths + t - half, end=t + 1, remember=True)
        states, memory = network.decode(ids[:, t : t + 1], now, memory)
        parts.append(states)
    found = said(network, torch.cat(parts, dim=1))
    real = torch.cat([seen, seen.new_ones(rows, ids.shape[1] - half)], dim=1)
    worst = 0.0
    for row in range(rows):
        context = Context(source=select(source, torch.tensor([row], device=ids.device)))
        worst = max(worst, gap(found[row, real[row]], logits(network, ids[row : row + 1, real[row]], context)[0]))
    return worst


def future(probe: Probe) -> float:
    """Other tokens in the second half; the first half is compared."""
    cut = probe.ids.shape[1] // 2
    context = Context(source=probe.source())
    changed = torch.cat([probe.ids[:, :cut], probe.other(probe.ids[:, cut:])], dim=1)
    found, whole = (logits(probe.network, ids, context)[:, :cut] for ids in (changed, probe.ids))
    return gap(found, whole)


def right(probe: Probe, side: str = "") -> float:
    """Other tokens where there is padding, and more padding."""
    ids, seen = probe.inputs[f"{side}ids"], probe.inputs[f"{side}padding"]
    more = room(probe.network, _MORE, ids.shape[1])
    real = seen if ids.dim() == 2 else seen[..., None]
    junk = torch.where(real, ids, probe.other(ids, side))
    wider = {
        f"{side}ids": torch.cat([junk, ids.new_ones(len(ids), more, *ids.shape[2:])], dim=1),
        f"{side}padding": torch.cat([seen, seen.new_zeros(len(ids), more)], dim=1),
    }
    found = probe.read(**wider)[:, : probe.ids.shape[1]]
    return gap(found[probe.padding], probe.read()[probe.padding])


def left(probe: Probe) -> float:
    """Every row moved to the right end of its slots."""
    moved = {}
    for side in probe.sides:
        ids, seen = probe.inputs[f"{side}ids"], probe.inputs[f"{side}padding"]
        free = (~seen).sum(dim=1).tolist()
        moved[f"{side}ids"] = torch.stack([row.roll(n, 0) for row, n in zip(ids, free)])
        moved[f"{side}padding"] = seen.flip(1)
    found = probe.read(**moved)
    return gap(found[probe.padding.flip(1)], probe.read()[probe.padding])


def company(probe: Probe) -> float:
    """Each row alone, in a batch, and in the same batch the other way round."""
    whole = probe.read()
    turned = probe.read(**{name: tensor.flip(0) for name, tensor in probe.inputs.items()}).flip(0)
    worst = gap(turned[probe.padding], whole[probe.padding])
    for row in range(len(whole)):
        alone = answers(probe.network, probe.row(row))[0]
        worst = max(worst, gap(alone, whole[row, : len(alone)]))
    return worst


def looking(probe: Probe) -> float:
    """Read with and without a record, at once and, where there is a decoder, by steps."""
    worst = gap(probe.states(Record()), probe.states())
    if probe.network.decoder is not None:
        worst = max(worst, gap(stepped(probe, 3, Record()), stepped(probe, 3)))
    return worst


def weights(probe: Probe) -> float | None:
    """How far a row of weights is from one, or above it where less is allowed; what falls on the unseen; the most
    negative weight.
    """
    record = Record()
    probe.states(record)
    worst = 0.0
    for name in record.rows:
        matrix = record.matrix(name)
        more = matrix.sum(-1) - 1
        missing = more.abs() if _whole(probe.network.description) else more
        off = torch.stack([missing.max(), matrix[~_visible(probe, name, matrix)].sum(), -matrix.min()])
        worst = max(worst, float(off.max()) if bool(off.isfinite().all()) else math.inf)
    return worst if record.rows else None


def _whole(model: Model) -> bool:
    """False where weights are made smaller after the softmax (local-p), so that they sum to one at most."""
    return all(getattr(getattr(part, "see", None), "whole", True) for part in _parts(model))


def steady(model: Model) -> bool:
    """False where what a token sees changes with all that is read beside it (chunks of hashed tokens, as published)."""
    return all(stack.steady for stack in (model.encoder, model.decoder) if stack)


def _parts(model: Model) -> list[AnySublayer]:
    """Every sublayer of a model."""
    return [part for stack in (model.encoder, model.decoder) if stack for layer in stack.layers for part in layer]


def _visible(probe: Probe, name: str, matrix: Tensor) -> Tensor:
    """BHTS, True where a layer may look: the past of its own text, or all of the other side's.

    Where there is no token nobody asks, so it may look anywhere.
    """
    if name.startswith("decoder") and name.endswith("self"):
        return torch.ones_like(matrix, dtype=torch.bool).tril()
    real = probe.inputs[f"{probe.sides[-1]}padding"]
    seen = real[:, None, None].expand_as(matrix)
    return seen | ~real[:, None, :, None] if name.endswith("self") else seen


def recording(probe: Probe) -> float | None:
    """The weights of a reading at once, and of one token at a time."""
    whole, parts = Record(), Record()
    logits(probe.network, probe.ids, Context(source=probe.source(), record=whole))
    stepped(probe, 1, parts)
    if whole.rows.keys() != parts.rows.keys():
        return math.inf
    return max((gap(parts.matrix(name), whole.matrix(name)) for name in whole.rows), default=None)


def remembering(probe: Probe) -> float:
    """Rows are doubled, then swapped, every other sentence dropped; then each is read anew."""
    network, ids = probe.network, probe.ids
    rows, length = ids.shape
    context = Context(source=probe.source(), remember=True)
    twice = torch.arange(rows, device=ids.device).repeat_interleave(2)
    _, memory = network.decode(ids[:, :-2], context)
    following = _apart(probe, ids[:, -2])
    _, memory = network.decode(following, replace(context, start=length - 2), select(memory, twice))
    keep = torch.arange(0, rows, 2, device=ids.device)
    swapped = torch.stack([2 * keep + 1, 2 * keep], dim=1).flatten()
    last = _apart(probe, ids[keep, -1])
    now = replace(context, source=select(context.source, keep), start=length - 1)
    found = said(network, network.decode(last, now, select(memory, swapped, keep))[0])
    old = twice[swapped]
    read = torch.cat([ids[old, :-2], following[swapped], last], dim=1)
    return gap(found, logits(network, read, Context(source=select(context.source, old)))[:, -1:])


def _apart(probe: Probe, tokens: Tensor) -> Tensor:
    """B -> 2B x 1: each token, and another one."""
    return torch.stack([tokens, probe.other(tokens)], dim=1).reshape(-1, 1)


def silence(probe: Probe) -> float:
    """One source without a token among others."""
    row = len(probe.ids) // 2
    empty = probe.inputs["source_padding"].clone()
    empty[row] = False
    found = probe.read(source_padding=empty)
    others = probe.padding.clone()
    others[row] = False
    if not bool(found.isfinite().all()):
        return math.inf
    return gap(found[others], probe.read()[others]) if bool(others.any()) else 0.0


def packing(probe: Probe) -> float:
    """Three documents in a row, then with the first of them padded away, and each alone."""
    ids = probe.ids
    rows, length = ids.shape
    cuts = [0, length // 3, length // 2, length]
    sizes = torch.tensor([stop - start for start, stop in pairwise(cuts)], device=ids.device)
    document = torch.arange(3, device=ids.device).repeat_interleave(sizes).expand(rows, -1)
    begins = torch.tensor(cuts[:-1], device=ids.device).repeat_interleave(sizes)
    positions = (torch.arange(length, device=ids.device) - begins).expand(rows, -1)
    packed = probe.network(ids, document=document, positions=positions)
    worst = max(gap(packed[:, a:b], probe.network(ids[:, a:b])) for a, b in pairwise(cuts))
    seen = torch.ones_like(probe.padding)
    seen[0, : cuts[1]] = False
    padded = probe.network(ids, document=document, positions=positions, padding=seen)
    return max(worst, gap(padded[seen], packed[seen]))


def searching(probe: Probe) -> float:
    """How many answers of greedy and beam search differ alone and in a batch.

    Where two ways on are as good as each other, rounding decides; with twice the digits it does not.
    """
    if not _disagreements(probe.network, probe):
        return 0.0
    return float(_disagreements(deepcopy(probe.network).cpu().double(), probe))


def _disagreements(network: Network, probe: Probe) -> int:
    requests = []
    for row in range(len(probe.ids)):
        given = {name: tuple(ids[0].tolist()) for name, ids in probe.row(row).items()}
        source = given.get("source_ids")
        prompt = given["ids"][: 1 if source else len(given["ids"]) // 2 + 1]
        requests.append(Request(prompt, source, room(network, _SAID, len(prompt))))
    count = 0
    for options in (Options(beam=1), Options(beam=4)):
        together = answer(network, requests, options, end=probe.end)
        alone = [answer(network, [request], options, end=probe.end)[0] for request in requests]
        count += sum(one[0].tokens != other[0].tokens for one, other in zip(together, alone))
    return count


def numbers(probe: Probe) -> float:
    """How many weights are not finite."""
    return float(sum(int((~parameter.isfinite()).sum()) for parameter in probe.network.parameters()))


@dataclass(frozen=True)
class Law:
    """What must hold, how far a network is off (None: nothing to compare), and what it needs to have."""

    name: str
    off: Callable[[Probe], float | None]
    needs: Literal["nothing", "decoder", "words", "source", "one text"] = "nothing"
    allowed: float = TOLERANCE
    counts: str = "largest difference"
    steady: bool = False  # holds only where what a token sees does not change with what is read beside it

    def lacks(self, model: Model) -> str | None:
        """Why the law does not apply to a model, if it does not."""
        both = model.encoder is not None and model.decoder is not None
        if self.needs in ("decoder", "words") and model.decoder is None:
            return "it has no decoder"
        if self.needs == "words" and model.readout.says != "words":
            return "it says no words"
        if self.needs == "one text" and not model.readout.tokenwise:
            return "it says one thing of the whole text"
        if self.needs == "source" and not both:
            return "it reads no source"
        if self.needs == "one text" and not all(getattr(part, "packs", True) for part in _parts(model)):
            return "its state goes on from one document to the next"
        return "it reads a source" if self.needs == "one text" and both else None


LAWS = (
    Law("every weight is a finite number", numbers, allowed=0, counts="weights that are not"),
    Law("stepping with memory equals reading at once", stepping, "decoder", steady=True),
    Law("prompts of unequal length go on as if alone", prompts, "decoder", steady=True),
    Law("the future does not change the past", future, "decoder", allowed=1e-6, steady=True),
    Law("padding on the right changes nothing", right, steady=True),
    Law("padding of the source changes nothing", partial(right, side="source_"), "source", steady=True),
    Law("padding on the left changes nothing", left),
    Law("a sentence gets the same answer alone and in any batch", company, steady=True),
    Law("a search finds the same alone and in any batch", searching, "words", 0, "answers that differ", True),
    Law("rows of memory can be repeated, reordered, dropped", remembering, "decoder"),
    Law("looking changes nothing", looking, allowed=0),
    Law("weights sum to one over what is seen", weights),
    Law("stepping records what reading at once does", recording, "decoder", steady=True),
    Law("a source without tokens hurts nobody", silence, "source"),
    Law("packed documents do not see each other", packing, "one text", steady=True),
)
