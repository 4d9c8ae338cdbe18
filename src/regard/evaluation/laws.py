"""The laws that every model obeys: each is a function that measures how far a network breaks it.

`regard check` tests a trained model against them, tests/laws every model of the zoo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.decode.generate import Request, generate_tokens
from regard.decode.inputs import clamp_max_tokens
from regard.decode.options import Options
from regard.layers.cache import Layout
from regard.layers.contract import Context, Memory, Source, facts_of, select
from regard.layers.record import AttentionWeights, Record
from regard.models.model import Model, Network


@dataclass(frozen=True, eq=False)
class Probe:
    """A network with a batch of inputs: ids and padding, and those of the source if there is one.

    Padding is on the right. Every position holds some token id, so a law may ignore the padding and read whole rows.
    """

    network: Network
    inputs: Mapping[str, Tensor]
    end: int  # the end token

    @property
    def ids(self) -> Tensor:
        """BT: the token ids; the target's where there is a source."""
        return self.inputs["ids"]

    @property
    def padding(self) -> Tensor:
        """BT, True where there is a token."""
        return self.inputs["padding"]

    @property
    def sides(self) -> tuple[str, ...]:
        """The prefixes of the inputs' names: "" and, with a source, "source_"."""
        return ("", "source_") if "source_ids" in self.inputs else ("",)

    def source(self) -> Source | None:
        """The encoded sources, for a decoder to attend to."""
        if "source_ids" not in self.inputs:
            return None
        return self.network.encode_source(self.inputs["source_ids"], self.inputs["source_padding"])

    def logits(self, **changed: Tensor) -> Tensor:
        """-> BTN: the logits, with some inputs changed."""
        return token_logits(self.network, {**self.inputs, **changed})

    def hidden_states(self, record: Record | None = None) -> Tensor:
        """-> BTD: the last layer's hidden states, with a record of the attention or without."""
        arguments: dict[str, Any] = {**self.inputs, "record": record}
        return self.network.hidden_states(**arguments)

    def row(self, row: int) -> dict[str, Tensor]:
        """The ids of one row without its padding, by side."""
        lengths = {side: int(self.inputs[f"{side}padding"][row].sum()) for side in self.sides}
        return {f"{side}ids": self.inputs[f"{side}ids"][row : row + 1, :n] for side, n in lengths.items()}

    def other(self, ids: Tensor, side: str = "") -> Tensor:
        """Ids of the same shape, with a different token at every position."""
        embed = self.network.source_embed if side else self.network.embed
        return (ids + 1) % embed.table.num_embeddings


def gap(found: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest expected value; infinite if shapes differ or a value is NaN."""
    if found.shape != expected.shape:
        return math.inf
    difference = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    return float(difference) if bool(difference.isfinite()) else math.inf


def token_logits(network: Network, inputs: Mapping[str, Tensor]) -> Tensor:
    """-> BTN: the logits per token; a model with one output per text repeats it at every token."""
    found: Tensor = network(**inputs)
    if network.description.readout.tokenwise:
        return found
    return found[:, None].expand(-1, inputs["ids"].shape[1], -1)


def read_out(network: Network, states: Tensor) -> Tensor:
    """BTD -> BTN: the logits, or the hidden states themselves if the readout gives one output per text."""
    found: Tensor = network.readout(states) if network.description.readout.tokenwise else states
    return found


def decoder_logits(network: Network, ids: Tensor, context: Context) -> Tensor:
    """BT -> BTN: the decoder's logits in one full pass."""
    return read_out(network, network.decode(ids, context)[0])


def incremental_logits(probe: Probe, step: int, record: Record | None = None) -> Tensor:
    """-> BTN: the decoder's logits with memory (KV cache, recurrent state), `step` tokens per call."""
    context = Context(source=probe.source(), remember=True, record=record)
    memory: Memory = None
    parts = []
    for start in range(0, probe.ids.shape[1], step):
        now = replace(context, start=start)
        states, memory = probe.network.decode(probe.ids[:, start : start + step], now, memory)
        parts.append(read_out(probe.network, states))
    return torch.cat(parts, dim=1)


TOLERANCE = 1e-4
LEAST = 4
"""The fewest tokens that a model must be able to read."""

_EXTRA_PADDING = 5  # columns that a law adds if the model reads that many
_NEW_TOKENS = 20  # tokens that a search generates
_STEPS = (1e-5, 1e-6)  # of finite differences, over all parameters together; a kink (ReLU) may lie within the larger
_MOST_PARAMETERS = 100_000_000  # a float64 copy with gradients takes 32 bytes for each


def incremental_decoding(probe: Probe) -> float:
    """Compare one full pass with decoding 1, 3 or 7 tokens per call with memory."""
    whole = decoder_logits(probe.network, probe.ids, Context(source=probe.source()))
    return max(gap(incremental_logits(probe, step), whole) for step in (1, 3, 7))


def unequal_prompts(probe: Probe) -> float:
    """Continue prompts of unequal length in one batch, and compare each row with a full pass of its own."""
    network, ids, source = probe.network, probe.ids, probe.source()
    rows, half = len(ids), ids.shape[1] // 2
    lengths = 1 + torch.arange(rows, device=ids.device) * 5 % half
    padding = torch.arange(half, device=ids.device) < lengths[:, None]
    states, memory = network.decode(ids[:, :half], Context(source=source, padding=padding, remember=True))
    parts, layout = [states], Layout.of_prompts(padding)
    for t in range(half, ids.shape[1]):
        layout = layout.advanced(lengths + t - half)
        now = Context(source=source, start=t, layout=layout, remember=True)
        states, memory = network.decode(ids[:, t : t + 1], now, memory)
        parts.append(states)
    found = read_out(network, torch.cat(parts, dim=1))
    real = torch.cat([padding, padding.new_ones(rows, ids.shape[1] - half)], dim=1)
    errors = []
    for row in range(rows):
        context = Context(source=select(source, torch.tensor([row], device=ids.device)))
        alone = decoder_logits(network, ids[row : row + 1, real[row]], context)[0]
        errors.append(gap(found[row, real[row]], alone))
    return max(errors)


def causality(probe: Probe) -> float:
    """Change the tokens of the second half, and compare the logits of the first half."""
    cut = probe.ids.shape[1] // 2
    context = Context(source=probe.source())
    changed = torch.cat([probe.ids[:, :cut], probe.other(probe.ids[:, cut:])], dim=1)
    found, whole = (decoder_logits(probe.network, ids, context)[:, :cut] for ids in (changed, probe.ids))
    return gap(found, whole)


def right_padding(probe: Probe, side: str = "") -> float:
    """Change the ids under the padding, and add more padding."""
    ids, padding = probe.inputs[f"{side}ids"], probe.inputs[f"{side}padding"]
    more = clamp_max_tokens(probe.network, _EXTRA_PADDING, ids.shape[1])
    real = padding if ids.dim() == 2 else padding[..., None]
    junk = torch.where(real, ids, probe.other(ids, side))
    wider = {
        f"{side}ids": torch.cat([junk, ids.new_ones(len(ids), more, *ids.shape[2:])], dim=1),
        f"{side}padding": torch.cat([padding, padding.new_zeros(len(ids), more)], dim=1),
    }
    found = probe.logits(**wider)[:, : probe.ids.shape[1]]
    return gap(found[probe.padding], probe.logits()[probe.padding])


def left_padding(probe: Probe) -> float:
    """Move the padding of every row to the left."""
    moved = {}
    for side in probe.sides:
        ids, padding = probe.inputs[f"{side}ids"], probe.inputs[f"{side}padding"]
        free = (~padding).sum(dim=1).tolist()
        moved[f"{side}ids"] = torch.stack([row.roll(n, 0) for row, n in zip(ids, free)])
        moved[f"{side}padding"] = padding.flip(1)
    found = probe.logits(**moved)
    return gap(found[probe.padding.flip(1)], probe.logits()[probe.padding])


def batch_invariance(probe: Probe) -> float:
    """Compare each row alone, in a batch, and in the same batch in reverse order."""
    whole = probe.logits()
    turned = probe.logits(**{name: tensor.flip(0) for name, tensor in probe.inputs.items()}).flip(0)
    worst = gap(turned[probe.padding], whole[probe.padding])
    for row in range(len(whole)):
        alone = token_logits(probe.network, probe.row(row))[0]
        worst = max(worst, gap(alone, whole[row, : len(alone)]))
    return worst


def recording_changes_nothing(probe: Probe) -> float:
    """Compare hidden states with and without a record, in a full pass and step by step."""
    worst = gap(probe.hidden_states(Record()), probe.hidden_states())
    if probe.network.shape != "encoder":
        worst = max(worst, gap(incremental_logits(probe, 3, Record()), incremental_logits(probe, 3)))
    return worst


def weights_sum_to_one(probe: Probe) -> float | None:
    """The worst of: a row's sum minus one, the weight on masked keys, the most negative weight."""
    record = Record()
    probe.hidden_states(record)
    # Local-p scales weights down after the softmax, so that they sum to at most one.
    exactly = all(facts_of(part).weights_sum_to_one for part in probe.network.description.parts)
    worst = 0.0
    for name in record.rows:
        matrix = record.matrix(name)
        more = matrix.sum(-1) - 1
        missing = more.abs() if exactly else more
        off = torch.stack([missing.max(), matrix[~_visible(probe, name, matrix)].sum(), -matrix.min()])
        worst = max(worst, float(off.max()) if bool(off.isfinite().all()) else math.inf)
    return worst if record.rows else None


def _visible(probe: Probe, name: str, matrix: Tensor) -> Tensor:
    """BHTS, True for keys that a query may attend to: the past in a decoder, real tokens in an encoder or source.

    A query that is padding may attend to anything.
    """
    if name.startswith("decoder") and name.endswith("self"):
        return torch.ones_like(matrix, dtype=torch.bool).tril()
    real = probe.inputs[f"{probe.sides[-1]}padding"]
    visible = real[:, None, None].expand_as(matrix)
    return visible | ~real[:, None, :, None] if name.endswith("self") else visible


def stepwise_record(probe: Probe) -> float | None:
    """Compare the attention weights of a full pass with those of decoding token by token."""
    whole, parts = Record(), Record()
    decoder_logits(probe.network, probe.ids, Context(source=probe.source(), record=whole))
    incremental_logits(probe, 1, parts)
    if whole.rows.keys() != parts.rows.keys():
        return math.inf
    return max((gap(parts.matrix(name), whole.matrix(name)) for name in whole.rows), default=None)


def memory_rows(probe: Probe) -> float:
    """Repeat, swap and drop rows of memory, as beam search does, and compare with full passes."""
    network, ids = probe.network, probe.ids
    rows, length = ids.shape
    context = Context(source=probe.source(), remember=True)
    twice = torch.arange(rows, device=ids.device).repeat_interleave(2)
    _, memory = network.decode(ids[:, :-2], context)
    following = _two_continuations(probe, ids[:, -2])
    _, memory = network.decode(following, replace(context, start=length - 2), select(memory, twice))
    keep = torch.arange(0, rows, 2, device=ids.device)
    swapped = torch.stack([2 * keep + 1, 2 * keep], dim=1).flatten()
    last = _two_continuations(probe, ids[keep, -1])
    now = replace(context, source=select(context.source, keep), start=length - 1)
    found = read_out(network, network.decode(last, now, select(memory, swapped, keep))[0])
    old = twice[swapped]
    read = torch.cat([ids[old, :-2], following[swapped], last], dim=1)
    return gap(found, decoder_logits(network, read, Context(source=select(context.source, old)))[:, -1:])


def _two_continuations(probe: Probe, tokens: Tensor) -> Tensor:
    """B -> 2B x 1: each token, and a different one."""
    return torch.stack([tokens, probe.other(tokens)], dim=1).reshape(-1, 1)


def empty_source(probe: Probe) -> float:
    """Give one row of the batch an empty source, and compare the others."""
    row = len(probe.ids) // 2
    empty = probe.inputs["source_padding"].clone()
    empty[row] = False
    found = probe.logits(source_padding=empty)
    others = probe.padding.clone()
    others[row] = False
    if not bool(found.isfinite().all()):
        return math.inf
    return gap(found[others], probe.logits()[others]) if bool(others.any()) else 0.0


def packed_documents(probe: Probe) -> float:
    """Pack three documents into each row; compare with each alone, and with the first one masked as padding."""
    ids = probe.ids
    rows, length = ids.shape
    cuts = [0, length // 3, length // 2, length]
    sizes = torch.tensor([stop - start for start, stop in pairwise(cuts)], device=ids.device)
    document = torch.arange(3, device=ids.device).repeat_interleave(sizes).expand(rows, -1)
    begins = torch.tensor(cuts[:-1], device=ids.device).repeat_interleave(sizes)
    positions = (torch.arange(length, device=ids.device) - begins).expand(rows, -1)
    packed = probe.network(ids, document=document, positions=positions)
    worst = max(gap(packed[:, a:b], probe.network(ids[:, a:b])) for a, b in pairwise(cuts))
    kept = torch.ones_like(probe.padding)
    kept[0, : cuts[1]] = False
    padded = probe.network(ids, document=document, positions=positions, padding=kept)
    return max(worst, gap(padded[kept], packed[kept]))


def search_in_batch(probe: Probe) -> float:
    """Count the results of greedy and beam search that differ between a batch and one request at a time.

    Near ties are decided by rounding, so a difference counts only if float64 shows it too.
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
        requests.append(Request(prompt, source, clamp_max_tokens(network, _NEW_TOKENS, len(prompt))))
    count = 0
    for options in (Options(beam=1), Options(beam=4)):
        together = generate_tokens(network, requests, options, eos=probe.end)
        alone = [generate_tokens(network, [request], options, eos=probe.end)[0] for request in requests]
        count += sum(one[0].tokens != other[0].tokens for one, other in zip(together, alone))
    return count


def finite_weights(probe: Probe) -> float:
    """Count the weights that are NaN or infinite."""
    return float(sum(int((~parameter.isfinite()).sum()) for parameter in probe.network.parameters()))


class _OutputCheck(Record):
    """A record that compares weights times values with the output of each attention layer."""

    worst: float | None = None

    @torch.no_grad()
    def record_attention(self, name: str, weights: AttentionWeights, output: Tensor) -> None:
        """Compare the layer's output with what its recorded weights make of its values."""
        rows = weights.weights(slice(0, weights.queries))
        expected = rows @ weights.values.repeat_interleave(len(rows) // len(weights.values), 0)
        self.worst = max(self.worst or 0.0, gap(expected.reshape(output.shape), output))


def recorded_weights_are_used(probe: Probe) -> float | None:
    """Compare recorded weights times values with the output of every attention layer."""
    record = _OutputCheck()
    probe.hidden_states(record)
    return record.worst


def gradients(probe: Probe) -> float | None:
    """Compare autograd with finite differences of the loss along a random direction, in float64."""
    count = sum(parameter.numel() for parameter in probe.network.parameters())
    if count > _MOST_PARAMETERS:
        return None
    with torch.inference_mode(False), torch.enable_grad():
        network = deepcopy(probe.network).cpu().double().requires_grad_(True)
        inputs = {name: tensor.cpu().clone() for name, tensor in probe.inputs.items()}
        weights = list(network.parameters())
        draw = torch.Generator().manual_seed(0)
        direction = [torch.randn(weight.shape, generator=draw, dtype=weight.dtype) for weight in weights]
        for module in network.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:  # a row that is zero and stays zero
                place = next(i for i, weight in enumerate(weights) if weight is module.weight)
                direction[place][module.padding_idx] = 0.0
        found = torch.autograd.grad(_objective(network, inputs), weights, allow_unused=True)
        derivative = sum(float((g * d).sum()) for g, d in zip(found, direction) if g is not None)
        size = math.sqrt(sum(float(g.square().sum()) for g in found if g is not None))
        errors = []
        with torch.no_grad():
            for step in (length / math.sqrt(count) for length in _STEPS):
                losses = []
                for move in (step, -2 * step, step):  # one step forward, one step back, and return
                    losses.append(_objective(network, inputs))
                    for weight, d in zip(weights, direction):
                        weight.add_(d, alpha=move)
                difference = float(losses[1] - losses[2]) / (2 * step)
                errors.append(abs(derivative - difference) / max(abs(difference), size, 1e-30))
    return min(errors) if all(map(math.isfinite, errors)) else math.inf


def _objective(network: Network, inputs: Mapping[str, Tensor]) -> Tensor:
    """The loss of predicting each token from those before it, or a smooth function of other readouts' outputs."""
    if network.description.readout.outputs == "tokens" and network.shape != "encoder":
        return network.loss(inputs, inputs["ids"].roll(-1, 1))
    outputs: Tensor = network(**inputs)
    draw = torch.Generator().manual_seed(1)
    return (outputs * torch.randn(outputs.shape[-1], generator=draw, dtype=outputs.dtype)).tanh().sum()


@dataclass(frozen=True)
class Law:
    """A property that must hold, the function that measures its error (None: nothing to compare), and what it needs."""

    name: str
    error: Callable[[Probe], float | None]
    needs: Literal["nothing", "decoder", "tokens", "source", "one text"] = "nothing"
    allowed: float = TOLERANCE
    measures: str = "largest difference"
    incremental: bool = False  # holds only if later tokens do not change what earlier ones attend to
    nothing: str = "no layer has attention weights"  # why there may be nothing to compare

    def lacks(self, model: Model) -> str | None:
        """Why the law does not apply to a model, if it does not."""
        if self.needs in ("decoder", "tokens") and model.shape == "encoder":
            return "it has no decoder"
        if self.needs == "tokens" and model.readout.outputs != "tokens":
            return "it generates no tokens"
        if self.needs == "one text" and not model.readout.tokenwise:
            return "it has one output per text"
        if self.needs == "source" and model.shape != "encoder-decoder":
            return "it reads no source"
        if self.needs == "one text" and model.shape == "encoder-decoder":
            return "it reads a source"
        if self.needs == "one text" and not all(facts_of(part).packs for part in model.parts):
            return "its state carries over from one packed document to the next"
        return None


LAWS = (
    Law("every weight is a finite number", finite_weights, allowed=0, measures="weights that are not"),
    Law("decoding step by step equals one forward pass", incremental_decoding, "decoder", incremental=True),
    Law("prompts of unequal length continue as if alone", unequal_prompts, "decoder", incremental=True),
    Law("the future does not change the past", causality, "decoder", allowed=1e-6, incremental=True),
    Law("padding on the right changes nothing", right_padding, incremental=True),
    Law("padding of the source changes nothing", partial(right_padding, side="source_"), "source", incremental=True),
    Law("padding on the left changes nothing", left_padding),
    Law("a sentence gets the same answer alone and in any batch", batch_invariance, incremental=True),
    Law("a search finds the same alone and in any batch", search_in_batch, "tokens", 0, "results that differ", True),
    Law("rows of memory can be repeated, reordered, dropped", memory_rows, "decoder"),
    Law("recording changes nothing", recording_changes_nothing, allowed=0),
    Law("attention weights sum to one over visible keys", weights_sum_to_one),
    Law("what is shown is what was used", recorded_weights_are_used, incremental=True),
    Law("decoding step by step records what one forward pass does", stepwise_record, "decoder", incremental=True),
    Law("a source without tokens changes no other row", empty_source, "source"),
    Law("packed documents do not see each other", packed_documents, "one text", incremental=True),
    Law("gradients are those of the loss", gradients, nothing=f"more than {_MOST_PARAMETERS:,} parameters"),
)
