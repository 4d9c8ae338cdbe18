"""How words came to be said: what else might have been, and the tree that a search went through."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenize.tokenizer import Tokenizer
from regard.decode.fill import encode_spans
from regard.decode.generate import Answer, require_room, speak, to_extend, translation
from regard.decode.inputs import require_verb
from regard.decode.options import Options
from regard.decode.search import Candidates
from regard.errors import InputError
from regard.models.model import Network

_NUMBERS = 1 << 24  # logits held at once
NOTHING = -1
"""Where no token is asked for."""

Node = dict[str, Any]


@torch.inference_mode()
def generation(
    network: Network, tokenizer: Tokenizer, inputs: Mapping[str, Any], said: Sequence[int], *, candidates: int = 10
) -> list[dict[str, Any]]:
    """What each row says, how likely that is, and the likeliest it might have said; nothing where no words are said.

    `said`: what an encoder-decoder says, from its first word to its end. A masked model is asked at its masks, or at
    all tokens if there are none.
    """
    asked = words_asked(network, inputs, said)
    if asked is None:
        return []
    states = network.hidden_states(**inputs)[0]
    rows = torch.arange(len(asked), device=states.device)
    if network.decoder is None:
        hidden = asked == _mask(tokenizer)
        # What stands at a mask is the mask; what was meant is not known.
        rows, asked = (hidden.nonzero().flatten() if bool(hidden.any()) else rows), asked.masked_fill(hidden, NOTHING)
    logs, probabilities, tokens = likeliest(network, states[rows], asked[rows], candidates)
    numbers = torch.where(asked[rows] == NOTHING, tokens[:, 0], asked[rows])
    texts = tokenizer.token_texts(numbers.tolist())
    return [
        {"row": row, "chosen": [text, share], "candidates": [[*pair] for pair in zip(others, shares)]}
        for row, text, share, others, shares in zip(
            rows.tolist(),
            texts,
            logs.exp().tolist(),
            map(tokenizer.token_texts, tokens.tolist()),
            probabilities.tolist(),
        )
    ]


def words_asked(network: Network, inputs: Mapping[str, Any], said: Sequence[int]) -> Tensor | None:
    """-> T: the token that each row is to say, or -1; None of a model that says no words, or each from two sides.

    With a source: `said`. A decoder alone: what follows each token it reads. An encoder alone: the tokens it reads.
    """
    readout, ids = network.description.readout, inputs["ids"]
    if readout.says != "words" or readout.sides > 1:
        return None
    if network.encoder is not None and network.decoder is not None:
        return torch.tensor(list(said), dtype=torch.long, device=ids.device)
    read: Tensor = ids[0] if ids.dim() == 2 else torch.tensor(list(said), dtype=torch.long, device=ids.device)
    if len(read) < ids.shape[1]:  # letters, and nobody says of which tokens
        return None
    return read if network.decoder is None else torch.cat([read[1:], read.new_full((1,), NOTHING)])


def likeliest(network: Network, states: Tensor, asked: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """PD, P -> P, Pk, Pk: the log-probability of what is asked for (the likeliest, at -1), and the likeliest `count`.

    Some rows at a time, so that a long text does not take one number for each of its tokens and each word there is.
    """
    size = max(1, _NUMBERS // network.vocabulary)
    logs, probabilities, tokens = [], [], []
    for some, wanted in zip(states.split(size), asked.split(size)):
        values: Tensor = network.readout(some).float().log_softmax(-1)
        best = values.topk(min(count, values.shape[-1]), dim=-1)
        wanted = torch.where(wanted == NOTHING, best.indices[:, 0], wanted)
        logs.append(values.gather(1, wanted[:, None])[:, 0])
        probabilities.append(best.values.exp())
        tokens.append(best.indices)
    return torch.cat(logs), torch.cat(probabilities), torch.cat(tokens)


def beam_tree(
    network: Network, tokenizers: tuple[Tokenizer, Tokenizer], text: str, options: Options, *, prefix: str = ""
) -> tuple[list[Node], Answer]:
    """Every candidate that a search went through, step by step, and the answer it found.

    Of a translation from its `prefix` on; of a language model, what it says behind the text.
    """
    require_verb(network.description, tokenizers[0], "generate" if network.encoder is None else "translate")
    options = replace(options, n_best=1)
    if network.encoder is None:
        requests = to_extend(network, tokenizers[0], [text], options)
    else:
        read = (*encode_spans(tokenizers[0], text), tokenizers[0].end)
        require_room(network, len(read), "the text")
        requests = [translation(network, tokenizers[1], read, options, prefix=tokenizers[1].encode(prefix))]
    target = tokenizers[0 if network.encoder is None else 1]
    tree = Tree(target)
    answer = speak(network, target, requests, options, watch=tree.grow)[0][0]
    return tree.marked(answer), answer


class Tree:
    """Grows while a search over one sentence is watched."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.nodes: list[Node] = []
        self.rows = [-1]  # the node at which each row of the search stands
        self.finished: dict[int, tuple[int, ...]] = {}  # what was said by nodes that finished, without an end token
        self.steps = 0

    def grow(self, sentences: Tensor, candidates: Candidates, order: Tensor) -> None:
        """One step further: the candidates become nodes; those that go on are the next step's parents."""
        assert len(sentences) == 1, "a tree is of one sentence"
        beam, goes_on = order.shape[1], set(order[0].tolist())
        numbers: dict[int, int] = {}
        columns = (candidates.sums, candidates.parents, candidates.finished, candidates.ending, candidates.tokens)
        for place, (score, parent, finished, ending, tokens) in enumerate(zip(*(one[0].tolist() for one in columns))):
            if score == -math.inf:
                continue
            numbers[place] = len(self.nodes)
            if finished:
                self.finished[numbers[place]] = tuple(tokens[:-1] if ending else tokens)
            self.nodes.append(
                {
                    "step": self.steps,
                    "parent": self.rows[parent],
                    "text": self.tokenizer.token_texts(tokens[-1:])[0],
                    "score": score,
                    # What ends among the best is kept as an answer; what ends further behind is forgotten.
                    "kept": place < beam if finished else place in goes_on,
                    "best": False,
                }
            )
        self.rows = [numbers.get(place, -1) for place in order[0].tolist()]
        self.steps += 1

    def marked(self, answer: Answer) -> list[Node]:
        """The nodes, those on the way to this answer marked as the best."""
        said = answer.tokens, answer.log_probability
        ends = (number for number, tokens in self.finished.items() if (tokens, self.nodes[number]["score"]) == said)
        node = next(ends, -1)
        while node >= 0:
            self.nodes[node]["best"] = True
            node = self.nodes[node]["parent"]
        return self.nodes


def _mask(tokenizer: Tokenizer) -> int:
    """The token that hides another, or -1 where there is none."""
    try:
        return tokenizer.mask
    except InputError:
        return NOTHING
