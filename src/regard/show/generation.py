"""Generation steps: the probability of each token, the candidates at each step, and the tree of a beam search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.classify import label_names
from regard.decode.fill import encode_sentinels
from regard.decode.generate import QUIET, GeneratedText, Progress, generate_texts, prompt_requests, translation_request
from regard.decode.hypotheses import Candidates
from regard.decode.inputs import add_special_tokens, check_length, require_capability
from regard.decode.options import Options
from regard.errors import InputError
from regard.models.model import Network
from regard.show.collect import Stopped

_MAX_LOGITS = 1 << 24  # logits computed at once
IGNORED = -1
"""The label of a row that has none."""

Node = dict[str, Any]
Tokenizers = tuple[Tokenizer, Tokenizer]


@torch.inference_mode()
def predicted(network: Network, inputs: Mapping[str, Any], most: int = 5) -> list[list[Any]] | None:
    """What a classifier predicts for a text: its labels with their probabilities, best first, or its number.

    None for models that predict something else.
    """
    readout = network.description.readout
    if readout.tokenwise or readout.outputs not in ("labels", "numbers"):
        return None
    found = network.readout(network.hidden_states(**inputs))[0].float()
    if readout.outputs == "numbers":
        return [[f"{float(found[0]):.4g}", None]]
    best = found.softmax(-1).topk(min(most, len(found)))
    names = label_names(network)
    return [[names[index], value] for index, value in zip(best.indices.tolist(), best.values.tolist())]


@torch.inference_mode()
def generation_steps(
    network: Network,
    tokenizer: Tokenizer,
    inputs: Mapping[str, Any],
    target_ids: Sequence[int],
    *,
    generated: tuple[int, int] = (0, 0),
    candidates: int = 10,
) -> list[dict[str, Any]]:
    """The token of each row, its probability and the most probable candidates; empty if the model predicts no tokens.

    `target_ids`: the target of an encoder-decoder, with its end token. A masked language model predicts at its masks,
    or at all tokens if there are none. The `origin` of a token: "chosen" by the model, if it is one of the `generated`
    tokens; else "given"; or "predicted", where the text has no token.
    """
    labels = label_ids(network, inputs, target_ids)
    if labels is None:
        return []
    states = network.hidden_states(**inputs)[0]
    rows = torch.arange(len(labels), device=states.device)
    if network.shape == "encoder":
        masked = labels == mask_id(tokenizer)
        # The token at a mask is the mask itself; the original is unknown.
        rows, labels = (masked.nonzero().flatten() if bool(masked.any()) else rows), labels.masked_fill(masked, IGNORED)
    logs, probabilities, tokens = token_probabilities(network, states[rows], labels[rows], candidates)
    chosen = torch.where(labels[rows] == IGNORED, tokens[:, 0], labels[rows])
    texts = tokenizer.token_texts(chosen.tolist())
    others = map(tokenizer.token_texts, tokens.tolist())
    ahead = int(network.shape == "decoder")  # its row predicts the next token
    origins = [
        "predicted" if label == IGNORED else "chosen" if generated[0] <= row + ahead < generated[1] else "given"
        for row, label in zip(rows.tolist(), labels[rows].tolist())
    ]
    columns = zip(rows.tolist(), origins, texts, logs.exp().tolist(), others, probabilities.tolist())
    return [
        {"row": row, "origin": origin, "chosen": [text, p], "candidates": [[*pair] for pair in zip(some, values)]}
        for row, origin, text, p, some, values in columns
    ]


def label_ids(network: Network, inputs: Mapping[str, Any], target_ids: Sequence[int]) -> Tensor | None:
    """-> T: the token that each row predicts, or -1; None if the model predicts no tokens, or in both directions.

    Encoder-decoder: `target_ids`. Decoder-only: the next token of the text. Encoder-only: the tokens of the text.
    """
    readout, ids = network.description.readout, inputs["ids"]
    if readout.outputs != "tokens" or readout.directions > 1:
        return None
    targets = torch.tensor(list(target_ids), dtype=torch.long, device=ids.device)
    if network.shape == "encoder-decoder":
        return targets
    text: Tensor = ids[0] if ids.dim() == 2 else targets
    if len(text) < ids.shape[1]:  # the inputs are characters, and their tokens are unknown
        return None
    return text if network.shape == "encoder" else torch.cat([text[1:], text.new_full((1,), IGNORED)])


def token_probabilities(network: Network, states: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """PD, P -> P, Pk, Pk: the labels' log-probabilities (at -1, the best token's); probabilities and ids of the top k.

    Works on some rows at a time, so that the logits of a long text never exist at once.
    """
    size = max(1, _MAX_LOGITS // network.vocabulary)
    logs, probabilities, tokens = [], [], []
    for some, wanted in zip(states.split(size), labels.split(size)):
        values: Tensor = network.readout(some).float().log_softmax(-1)
        best = values.topk(min(count, values.shape[-1]), dim=-1)
        wanted = torch.where(wanted == IGNORED, best.indices[:, 0], wanted)
        logs.append(values.gather(1, wanted[:, None])[:, 0])
        probabilities.append(best.values.exp())
        tokens.append(best.indices)
    return torch.cat(logs), torch.cat(probabilities), torch.cat(tokens)


def beam_tree(
    network: Network,
    tokenizers: Tokenizers,
    text: str,
    options: Options,
    *,
    prefix: str = "",
    progress: Progress = QUIET,
) -> tuple[list[Node], GeneratedText]:
    """Every candidate of a beam search as a node of a tree, and the best hypothesis.

    A translation starts after its `prefix`, a language model's continuation after the text. Reports progress in
    tokens; when `progress` raises Stopped, the best hypothesis so far counts.
    """
    require_capability(network.description, tokenizers[0], "generate" if network.shape == "decoder" else "translate")
    options = replace(options, n_best=1)
    if network.shape == "decoder":
        requests = prompt_requests(network, tokenizers[0], [text], options)
    else:
        source = add_special_tokens(network, tokenizers[0], encode_sentinels(tokenizers[0], text))
        check_length(network, len(source), "the text")
        requests = [translation_request(network, tokenizers[1], source, options, prefix=tokenizers[1].encode(prefix))]
    target_tokenizer = tokenizers[0 if network.shape == "decoder" else 1]
    tree = BeamTree(target_tokenizer)

    def add_step(sentences: Tensor, candidates: Candidates, order: Tensor) -> None:
        tree.add_step(sentences, candidates, order)
        progress(1)

    try:
        best = generate_texts(network, target_tokenizer, requests, options, on_step=add_step)[0][0]
    except Stopped:
        best = tree.unfinished()
    return tree.mark_best(best), best


class BeamTree:
    """The tree of a beam search over one sentence, built step by step."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.nodes: list[Node] = []
        self.beams = [-1]  # the node of each beam
        self.finished: dict[int, tuple[int, ...]] = {}  # the tokens of finished nodes, without an end token
        self.steps = 0
        self.best_beam = torch.zeros(0, dtype=torch.long)  # the tokens of the best beam that continues

    def add_step(self, sentences: Tensor, candidates: Candidates, order: Tensor) -> None:
        """Add the candidates of a step as nodes; those in `order` continue and are the next step's parents."""
        assert len(sentences) == 1, "a tree is of one sentence"
        beam, continued = order.shape[1], set(order[0].tolist())
        nodes: dict[int, int] = {}
        columns = (candidates.sums, candidates.parents, candidates.finished, candidates.eos, candidates.tokens)
        for rank, (score, parent, finished, eos, tokens) in enumerate(zip(*(one[0].tolist() for one in columns))):
            if score == -math.inf:
                continue
            nodes[rank] = len(self.nodes)
            if finished:
                self.finished[nodes[rank]] = tuple(tokens[:-1] if eos else tokens)
            text = self.tokenizer.token_texts(tokens[-1:])[0]
            node = {"step": self.steps, "parent": self.beams[parent], "text": text, "score": score}
            # A hypothesis that finishes among the best is kept; one that finishes below them is pruned.
            kept = rank < beam if finished else rank in continued
            self.nodes.append(node | {"kept": kept, "best": False})
        self.beams = [nodes.get(rank, -1) for rank in order[0].tolist()]
        self.steps += 1
        self.best_beam = candidates.tokens[0, order[0, 0]]

    def unfinished(self) -> GeneratedText:
        """The best hypothesis of a search that was stopped: the best beam."""
        node, tokens = self.beams[0], tuple(self.best_beam.tolist())
        score = self.nodes[node]["score"] if node >= 0 else 0.0
        self.finished[node] = tokens
        return GeneratedText(self.tokenizer.decode(tokens), score, score, tokens, ended=False)

    def mark_best(self, best: GeneratedText) -> list[Node]:
        """The nodes, those on the path of the best hypothesis marked."""
        found = best.tokens, best.log_probability
        ends = (number for number, tokens in self.finished.items() if (tokens, self.nodes[number]["score"]) == found)
        node = next(ends, -1)
        while node >= 0:
            self.nodes[node]["best"] = True
            node = self.nodes[node]["parent"]
        return self.nodes


def mask_id(tokenizer: Tokenizer) -> int:
    """The mask token, or -1 if there is none."""
    try:
        return tokenizer.mask
    except InputError:
        return IGNORED
