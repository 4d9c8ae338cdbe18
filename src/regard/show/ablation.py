"""What a model says when heads are switched off: how much less likely its words become, and which it would change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.classify import names_of
from regard.decode.generate import Progress, speak, translation
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.contract import Ablation, Context
from regard.models.model import Network
from regard.show.generation import NOTHING, likeliest, words_asked

Tokenizers = tuple[Tokenizer, Tokenizer]
Head = tuple[str, int]
"""The name of a layer, and the number of a head."""

Changed = list[list[Any]]
"""Row, what was likeliest, what is now; the row of what is said of a text as a whole is -1."""

Judge = Callable[[Tensor], tuple[float, Changed]]
"""The states 1TD of a changed model -> what is lost, and what is said otherwise."""


def heads_of(network: Network) -> dict[str, int]:
    """How many heads each layer has that attends, by its name."""
    found: dict[str, int] = {}
    for name, stack in (("encoder", network.description.encoder), ("decoder", network.description.decoder)):
        for number, layer in enumerate(stack.layers if stack is not None else ()):
            attending = (part for part in layer if hasattr(part, "see"))
            found |= {f"{name}.{number}.{part.name}": getattr(part, "heads", 1) for part in attending}
    return found


@torch.inference_mode()
def ablations(
    network: Network,
    tokenizers: Tokenizers,
    inputs: Mapping[str, Any],
    said: Sequence[int],
    layers: Mapping[str, int],
    *,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What is lost when each single head of these layers is switched off, and what is then said instead.

    Of words, in nats a token: of what is `said` where there is a source, else of the tokens read (of a single one: of
    what the unchanged model would go on with). Of a label, in nats: of the one that the unchanged model prefers. Of a
    number, by how much it moves; of a vector, one minus the cosine.
    """
    states = _reading(network, inputs)
    whole = states(())
    measure, judge = _judging(network, tokenizers, inputs, said, whole)
    heads = []
    for head in ((layer, number) for layer, count in layers.items() for number in range(count)):
        loss, changed = judge(states([head]))
        heads.append({"layer": head[0], "head": head[1], "loss": loss, "changed": changed})
        if progress is not None:
            progress(1)
    return {"loss": judge(whole)[0], "measure": measure, "heads": heads}


@torch.inference_mode()
def without(
    network: Network,
    tokenizers: Tokenizers,
    inputs: Mapping[str, Any],
    said: Sequence[int],
    heads: Sequence[Head],
    *,
    options: Options = Options(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """What is lost when all of these heads are switched off at once; where there is a source, what is said of it then.

    `options`: how to search for that.
    """
    require_heads(network, heads)
    states = _reading(network, inputs)
    _, judge = _judging(network, tokenizers, inputs, said, states(()))
    loss, changed = judge(states(heads))
    text = None
    if "source_ids" in inputs:
        request = translation(network, tokenizers[1], tuple(inputs["source_ids"][0].tolist()), options)
        text = speak(network, tokenizers[1], [request], options, ablation=_switched_off(heads))[0][0].text
    return {"loss": loss, "changed": changed, "said": text}


def require_heads(network: Network, heads: Iterable[Head]) -> None:
    """Refuse heads that a network does not have."""
    known = heads_of(network)
    for layer, head in heads:
        if not 0 <= head < known.get(layer, 0):
            raise InputError(f'this model has no head {head} in "{layer}". Name one that it has.')


def _switched_off(heads: Iterable[Head]) -> Ablation:
    off: dict[str, tuple[int, ...]] = {}
    for layer, head in heads:
        off[layer] = (*off.get(layer, ()), head)
    return Ablation(off)


def _reading(network: Network, inputs: Mapping[str, Any]) -> Callable[[Sequence[Head]], Tensor]:
    """How the states 1TD are read with some heads off; the source is read again only if one of them reads it."""
    source = None
    if inputs.keys() == {"ids", "source_ids"} and network.mix is None:
        source = network.encode_source(inputs["source_ids"])

    def states(heads: Sequence[Head]) -> Tensor:
        ablation = _switched_off(heads)
        if source is None or any(layer.startswith("encoder.") for layer, _ in heads):
            return network.hidden_states(**inputs, ablation=ablation)
        return network.decode(inputs["ids"], Context(source=source, ablation=ablation))[0]

    return states


def _judging(
    network: Network, tokenizers: Tokenizers, inputs: Mapping[str, Any], said: Sequence[int], whole: Tensor
) -> tuple[str, Judge]:
    """What the loss counts, and how a changed model is judged against the unchanged one's states."""
    readout, names = network.description.readout, names_of(network)
    if readout.says == "numbers":
        return "change of the number", _by_number(network, whole)
    if readout.says == "names" and not readout.tokenwise:
        label, judge = _by_label(network, whole)
        return f"nats, label {label}", judge
    asked = _tags(network, whole) if names else words_asked(network, inputs, said)
    if asked is None:
        return "one minus the cosine", _by_vector(network, whole)
    translates = network.encoder is not None and network.decoder is not None

    def texts(numbers: list[int]) -> list[str]:
        return [names[n] for n in numbers] if names else tokenizers[1 if translates else 0].token_texts(numbers)

    return "nats a token", _by_tokens(network, whole, asked, texts)


def _by_tokens(network: Network, whole: Tensor, asked: Tensor, texts: Callable[[list[int]], list[str]]) -> Judge:
    """Of what each row says: the mean, in nats, of what is asked for."""
    real = asked != NOTHING
    was = likeliest(network, whole[0], asked, 1)[2][:, 0]
    if not bool(real.any()):  # nothing follows a text of one token: what the unchanged model would say
        asked, real = was, torch.ones_like(real)

    def judge(states: Tensor) -> tuple[float, Changed]:
        logs, _, best = likeliest(network, states[0], asked, 1)
        rows = (best[:, 0] != was).nonzero().flatten()
        pairs = zip(rows.tolist(), texts(was[rows].tolist()), texts(best[rows, 0].tolist()))
        return float(-logs[real].mean()), [list(pair) for pair in pairs]

    return judge


def _tags(network: Network, whole: Tensor) -> Tensor:
    """-> T: the names that the unchanged model prefers."""
    answers: Tensor = network.readout(whole)
    return answers[0].argmax(-1)


def _by_label(network: Network, whole: Tensor) -> tuple[str, Judge]:
    """Of the label that the unchanged model prefers, in nats."""
    names = names_of(network)

    def values(states: Tensor) -> Tensor:
        answer: Tensor = network.readout(states)[0]
        return answer.float().log_softmax(-1)

    was = int(values(whole).argmax())

    def judge(states: Tensor) -> tuple[float, Changed]:
        found = values(states)
        now = int(found.argmax())
        return float(-found[was]), [[-1, names[was], names[now]]] if now != was else []

    return names[was], judge


def _by_number(network: Network, whole: Tensor) -> Judge:
    """By how much the number moves."""
    was = float(network.readout(whole))

    def judge(states: Tensor) -> tuple[float, Changed]:
        now = float(network.readout(states))
        texts = f"{was:.3g}", f"{now:.3g}"
        return now - was, [[-1, *texts]] if texts[0] != texts[1] else []

    return judge


def _by_vector(network: Network, whole: Tensor) -> Judge:
    """By how far the text's vector turns, or in the mean those of its tokens, where no words can be asked for."""

    def vectors(states: Tensor) -> Tensor:
        found: Tensor = network.readout(states) if network.description.readout.says == "vectors" else states
        return found

    was = vectors(whole)
    return lambda states: (float(1 - F.cosine_similarity(vectors(states), was, dim=-1).mean()), [])
