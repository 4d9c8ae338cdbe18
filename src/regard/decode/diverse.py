"""Diverse beam search (Vijayakumar 2016): groups of beams, each of which avoids the tokens of the groups before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, zip_longest

import torch
from torch import Tensor

from regard.decode.candidates import Propose, beam_candidates
from regard.decode.hypotheses import Hypothesis
from regard.decode.inputs import Tokens
from regard.decode.options import Options
from regard.decode.search import Search, StepCallback, StoppingCriterion
from regard.layers.contract import Ablation, Source, map_rows
from regard.models.generator import Generator


def diverse_search(
    network: Generator, prompts: Tokens, options: Options, *, eos: int, limits: Sequence[int],
    source: Source | None = None, seeds: Sequence[int] | None = None,
    stopping_criterion: StoppingCriterion | None = None, on_step: StepCallback | None = None,
    ablation: Ablation | None = None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """The n-best continuations of each prompt: the best of each group first, sorted by score.

    A group is searched as a sentence of its own with its share of the beams; only its candidates depend on the others.
    """
    groups = options.beam_groups
    share = options.beam // groups
    rows = [row for row in range(len(prompts)) for _ in range(groups)]
    if source is not None:
        numbers = torch.tensor(rows, device=source.states.device)
        source = map_rows(lambda tensor: tensor.index_select(0, numbers), source)
    plain = replace(options, beam=share, n_best=min(options.n_best, share), beam_groups=1)
    beams = Search(
        network, [prompts[row] for row in rows], plain, eos=eos, limits=[limits[row] for row in rows], source=source,
        stopping_criteria=[stopping_criterion] * len(rows), ablation=ablation,
        seeds=None if seeds is None else [seeds[row] for row in rows],
    )  # fmt: skip
    beams.propose = _propose(beams, groups, options)
    while len(beams.active):
        beams.step(on_step)
    return [
        best_of_groups([beams.results[row * groups + group] for group in range(groups)], options.n_best)
        for row in range(len(prompts))
    ]


def best_of_groups(groups: Sequence[Sequence[Hypothesis]], count: int) -> list[Hypothesis]:
    """The best hypothesis of each group, then the second of each, and so on; sorted by score, each once."""
    in_turn = dict.fromkeys(one for one in chain.from_iterable(zip_longest(*groups)) if one is not None)
    distinct = {one.tokens: one for one in reversed(list(in_turn))}
    chosen = [one for one in in_turn if distinct[one.tokens] is one][:count]
    return sorted(chosen, key=lambda one: -one.score)


def _propose(beams: Search, groups: int, options: Options) -> Propose:
    """The candidates of all groups, one group after the other; what does not continue or end has minus infinity."""
    ends = [end for end in (beams.eos, *options.extra_eos) if end >= 0]
    plain = beam_candidates(beams.beam, 1 + len(options.extra_eos))

    def propose(log_probabilities: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sentences, group_of = beams.active // groups, beams.active % groups
        names, places = sentences.unique(return_inverse=True)
        taken = log_probabilities.new_zeros(len(names), log_probabilities.shape[-1])
        found: list[Tensor] = []
        for group in range(groups):
            rows = (group_of == group).nonzero().flatten()
            if not len(rows):
                continue
            own = log_probabilities[rows]
            penalized, parents, tokens = plain(own - options.diversity * taken[places[rows], None], sums[rows])
            chosen = _chosen(penalized, tokens, ends, beams.beam)
            totals = sums[rows].gather(1, parents) + own.flatten(1).gather(1, parents * own.shape[-1] + tokens)
            totals = totals.masked_fill(~chosen | (penalized == -torch.inf), -torch.inf)
            continuing = chosen & ~_is_end(tokens, ends)
            taken.index_put_((places[rows, None], tokens), continuing.to(taken), accumulate=True)
            found += [rows, totals, parents, tokens]
        order = torch.cat(found[::4]).argsort()
        totals, parents, tokens = (torch.cat(found[index::4])[order] for index in (1, 2, 3))
        return totals, parents, tokens

    return propose


def _chosen(penalized: Tensor, tokens: Tensor, ends: Sequence[int], beam: int) -> Tensor:
    """A c: the candidates that end among the best k, and the best k that do not end."""
    end = _is_end(tokens, ends)
    ranks = torch.arange(tokens.shape[1], device=tokens.device)
    going = (~end).cumsum(dim=1) <= beam
    return torch.where(end, ranks < beam, going) & (penalized > -torch.inf)


def _is_end(tokens: Tensor, ends: Sequence[int]) -> Tensor:
    return torch.isin(tokens, torch.tensor(ends, device=tokens.device, dtype=torch.long))
