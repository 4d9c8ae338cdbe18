"""Beam search, greedy search and sampling for every model: a batch of sentences, each with k beams, over a KV cache.

What the decoder remembers between steps is its memory: the KV cache of attention, the state of a recurrent layer.
A search advances step by step, and the sentences of another search can join it (continuous batching).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.beams import BeamMemory
from regard.decode.candidates import Propose, RandomNumbers, beam_candidates, constrain, greedy, sample
from regard.decode.constraints import SearchConstraint
from regard.decode.hypotheses import EMPTY, Candidates, FinishedHypotheses, Hypothesis
from regard.decode.inputs import Tokens, pad
from regard.decode.options import Options
from regard.errors import InputError
from regard.layers.cache import Layout, fill_gaps
from regard.layers.contract import Ablation, Context, Source, concatenate, map_rows
from regard.layers.record import Record
from regard.models.generator import Generator

NO_EOS = -1  # the end token of a model that has none, so that only a limit ends its texts
_PREFILL_CHUNK = 1024  # tokens of a long prompt per call of the decoder


StoppingCriterion = Callable[[list[int]], bool]
"""Whether a sentence's generated tokens hold a stop string."""

StepCallback = Callable[[Tensor, Candidates, Tensor], None]
"""Called at each step with the active sentences A, the candidates, and the indices A k of those that continue."""


def search(
    network: Generator,
    prompts: Tokens,
    options: Options,
    *,
    eos: int,
    limits: Sequence[int],
    source: Source | None = None,
    seeds: Sequence[int] | None = None,
    stopping_criterion: StoppingCriterion | None = None,
    on_step: StepCallback | None = None,
    ablation: Ablation | None = None,
    constraint: SearchConstraint | None = None,
) -> list[list[Hypothesis]]:
    """The n-best continuations of each prompt, at most `limits[i]` tokens long.

    `seeds` gives each row its own random numbers; `stopping_criterion` tells whether a row's tokens hold a stop string;
    `ablation` switches heads of the decoder off; `constraint` is what the texts must be like.
    """
    beams = Search(
        network, prompts, options, eos=eos, limits=limits, source=source, seeds=seeds,
        stopping_criteria=[stopping_criterion] * len(prompts), ablation=ablation, constraint=constraint,
    )  # fmt: skip
    while len(beams.active):
        beams.step(on_step)
    return [beams.results[number] for number in range(len(prompts))]


class Search:
    """The state of a beam search: A active sentences with k beams each (one until the prompt is read).

    Sentences leave when they finish or are removed; those of another search with the same options `join` at any step.
    `numbers` are the sentences' keys in `results`.
    """

    def __init__(
        self, network: Generator, prompts: Tokens, options: Options, *, eos: int, limits: Sequence[int],
        source: Source | None = None, seeds: Sequence[int] | None = None, numbers: Sequence[int] | None = None,
        stopping_criteria: Sequence[StoppingCriterion | None] = (), ablation: Ablation | None = None,
        constraint: SearchConstraint | None = None,
    ) -> None:  # fmt: skip
        self.network, self.options, self.eos = network, options, eos
        self.device = next(network.parameters()).device
        numbers = range(len(prompts)) if numbers is None else numbers
        # What no token can be generated for is finished before the first step.
        self.results: dict[int, list[Hypothesis]] = {n: [EMPTY] for n, limit in zip(numbers, limits) if limit <= 0}
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        self.active = self.tensor([numbers[row] for row in rows])
        self.limits = self.tensor([limits[row] for row in rows])
        self.stopping_criteria = [stopping_criteria[row] if stopping_criteria else None for row in rows]
        self.beam = options.beam if options.temperature == 0 else 1
        self.random_numbers = RandomNumbers([(seeds or range(len(prompts)))[row] for row in rows])
        self.constraint = constraint
        self.propose = self._proposer()
        self.rows_per_sentence, self.started = 1, False
        self.new_tokens: int | Tensor = 0  # generated so far; per sentence once sentences joined that have fewer
        self.finished = FinishedHypotheses.empty(len(rows), self.beam, self.device)
        self.any_finished = False  # of all sentences so far
        self.tokens = torch.zeros(len(rows), 1, 0, dtype=torch.long, device=self.device)  # -1 after a sentence's last
        self.sums = torch.zeros(len(rows), 1, device=self.device)
        self.memory = BeamMemory(network.window)  # the KV cache
        if len(rows) < len(prompts):
            if constraint is not None:
                constraint.select(self.tensor(rows))
            source = map_rows(lambda tensor: tensor[self.tensor(rows)], source)
        self._set_prompts([prompts[row] for row in rows], source, ablation)

    def tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.long, device=self.device)

    def _proposer(self) -> Propose:
        if self.constraint is not None and self.constraint.banks:
            return partial(self.constraint.propose, (2 + len(self.options.extra_eos)) * self.beam)
        if self.options.temperature == 0:
            return greedy if self.beam == 1 else beam_candidates(self.beam, 1 + len(self.options.extra_eos))
        return sample(self.options, lambda: self.random_numbers.at(self.new_tokens))

    def _set_prompts(self, prompts: Tokens, source: Source | None, ablation: Ablation | None) -> None:
        """Set the decoder's first input: the prompts of the active sentences."""
        self.prompt, padding = pad(prompts or [[-1]], self.device, value=-1)
        self.prompt_lengths = self.tensor([*map(len, prompts)])
        self.longest_prompt = max(map(len, prompts), default=0)
        self.equal_lengths = padding is None
        self.input_ids = self.prompt.clamp_min(0)
        self.context = Context(source=source, remember=True, padding=padding, ablation=ablation)
        self.coverage: Tensor | None = None
        if self.options.coverage_penalty > 0 and source is not None:
            self.coverage = torch.zeros(len(prompts), 1, source.states.shape[1], device=self.device)

    @torch.no_grad()
    def step(self, on_step: StepCallback | None = None) -> None:
        """One step of beam search: run the decoder, propose candidates, keep the best, drop finished sentences."""
        candidates = self.candidates()
        self.collect_finished(candidates)
        order = self.keep_best(candidates)
        if on_step is not None:
            on_step(self.active, candidates, order)
        self.drop_finished(candidates.parents.gather(1, order))

    def candidates(self) -> Candidates:
        log_probabilities = self.next_log_probabilities().unflatten(0, (len(self.active), self.rows_per_sentence))
        if self.constraint is not None:
            left = self.limits - self.new_tokens
            self.constraint.mask(log_probabilities, left, (self.eos, *self.options.extra_eos))
        sums, parents, chosen = self.propose(log_probabilities, self.sums)
        generated = self.tokens.gather(1, parents[..., None].expand(-1, -1, self.tokens.shape[2]))
        tokens = self.append(generated, chosen)
        self.new_tokens = self.new_tokens + 1
        eos = chosen == self.eos
        for extra in self.options.extra_eos:
            eos |= chosen == extra
        if self.constraint is not None:
            self.constraint.advance(parents, chosen, eos)
        finished = eos | self.meets_stopping_criterion(tokens, eos) if any(self.stopping_criteria) else eos
        at_limit = (self.new_tokens >= self.limits)[:, None] & ~finished
        return Candidates(sums, parents, tokens, eos, finished | at_limit, at_limit, log_probabilities)

    def append(self, generated: Tensor, chosen: Tensor) -> Tensor:
        """A c L and A c -> A c L: each sentence's tokens with its new one after its last."""
        if isinstance(self.new_tokens, int):
            return torch.cat([generated, chosen[..., None]], dim=2)
        longer = F.pad(generated, (0, 1 + int(self.new_tokens.max()) - generated.shape[2]), value=-1)
        slots = self.new_tokens[:, None, None].expand(-1, chosen.shape[1], 1)
        return longer.scatter(2, slots, chosen[..., None])

    def next_log_probabilities(self) -> Tensor:
        """-> RN: the log-probabilities of each row's next token, under the options' constraints."""
        record = None if self.coverage is None else Record(lambda name: name.endswith("cross"))
        self.context = replace(self.context, record=record)
        logits = self.network.readout(self.last_states()).float()
        if record is not None and self.coverage is not None:
            if not record.rows:
                raise InputError("this model has no cross-attention, so it covers no source (coverage_penalty). Leave "
                                 "out --coverage-penalty.")  # fmt: skip
            weights = torch.stack([record.matrix(name).mean(dim=1) for name in record.rows]).mean(dim=0)
            if self.context.padding is not None:
                weights = weights * self.context.padding[..., None]
            self.coverage = self.coverage + weights.sum(dim=1).unflatten(0, (len(self.active), self.rows_per_sentence))
        if self.beam > 1 and self.options.normalization == "length":
            # Hugging Face's beam search constrains log-probabilities: the other tokens do not become more likely.
            found = self.constrain(self.network.log_probabilities(logits))
            return self.network.log_probabilities(found) if self.options.renormalize_logits else found
        return self.network.log_probabilities(self.constrain(logits))

    def last_states(self) -> Tensor:
        """-> RD: run the decoder, and take the hidden state of each row's last token."""
        first, self.started = not self.started, True
        last = self.prompt_lengths - 1 - self.prefill() if first else None
        states, memory = self.network.decode(self.input_ids, self.context, self.memory.tree)
        self.memory.remember(memory, self.input_ids.shape[1] if last is not None else self.memory.beams)
        if last is None:
            return states[:, 0]
        if self.beam > 1 or not self.equal_lengths:
            self.memory.use_layout(Layout.of_prompts(self.prompt >= 0))
        return states[torch.arange(len(states), device=self.device), last]

    def prefill(self) -> int:
        """Chunked prefill: read long prompts in chunks, all but the last, if memory is constant; -> tokens read."""
        chunks = (int(self.prompt_lengths.min()) - 1) // _PREFILL_CHUNK
        read = chunks * _PREFILL_CHUNK if self.network.constant_memory else 0
        for start in range(0, read, _PREFILL_CHUNK):
            context = replace(self.context, padding=None, start=start)
            ids = self.input_ids[:, start : start + _PREFILL_CHUNK]
            _, memory = self.network.decode(ids, context, self.memory.tree)
            self.memory.remember(memory, _PREFILL_CHUNK)
        padding, self.input_ids = self.context.padding, self.input_ids[:, read:]
        self.context = replace(self.context, start=read, padding=None if padding is None else padding[:, read:])
        return read

    def constrain(self, logits: Tensor) -> Tensor:
        if not self.options.constrains_logits:
            return logits
        prompts = self.prompt.repeat_interleave(self.rows_per_sentence, dim=0)
        history = torch.cat([prompts, self.tokens.flatten(0, 1)], dim=1)
        at_limit = None
        if self.options.forced_eos:
            at_limit = (self.new_tokens + 1 >= self.limits).repeat_interleave(self.rows_per_sentence)
        count = self.new_tokens
        count = count if isinstance(count, int) else count.repeat_interleave(self.rows_per_sentence)
        return constrain(logits, history, self.options, new_tokens=count, eos=self.eos, at_limit=at_limit)

    def meets_stopping_criterion(self, tokens: Tensor, eos: Tensor) -> Tensor:
        """Which candidates hold a stop string."""
        lengths = self.generated_lengths()
        stopped = [
            [criterion is not None and criterion(row[:length]) for row in rows]
            for rows, criterion, length in zip(tokens.tolist(), self.stopping_criteria, lengths)
        ]
        return torch.tensor(stopped, device=self.device) & ~eos

    def generated_lengths(self) -> list[int]:
        """The number of tokens that each active sentence has generated."""
        counts = self.new_tokens
        found: list[int] = [counts] * len(self.active) if isinstance(counts, int) else counts.tolist()
        return found

    def longest_row(self) -> int:
        """The most tokens of a row, its prompt included."""
        lengths = self.prompt_lengths + self.new_tokens
        return int(lengths.max()) if len(lengths) else 0

    def last_tokens(self, candidates: Candidates) -> Tensor:
        """-> A: the new token of each sentence's best candidate."""
        if isinstance(self.new_tokens, int):
            return candidates.tokens[:, 0, self.new_tokens - 1]
        return candidates.tokens[:, 0].gather(1, self.new_tokens[:, None] - 1)[:, 0]

    def collect_finished(self, candidates: Candidates) -> None:
        """Add finished candidates among the best `beam` to the finished hypotheses of their sentence."""
        if not bool(candidates.finished.any()):
            return
        ranks = torch.arange(candidates.sums.shape[1], device=self.device)
        if self.constraint is not None:
            ranks = self.constraint.ranks(candidates.sums)
        lengths = self.new_tokens if isinstance(self.new_tokens, int) else self.new_tokens[:, None]
        scores = candidates.sums / self.length_penalty(lengths)
        if self.coverage is not None:
            scores = scores + self.coverage_penalty().gather(1, candidates.parents)
        scores = scores.masked_fill(~candidates.finished | (ranks >= self.beam), -torch.inf)
        ended = candidates.finished & ~candidates.at_limit
        without_end = lengths - candidates.eos.long()
        new = FinishedHypotheses(scores, candidates.sums, without_end, ended, candidates.tokens)
        self.finished, self.any_finished = self.finished.merge(new), True

    def length_penalty(self, lengths: int | Tensor) -> float | Tensor:
        """The length penalty, computed in double precision whether lengths are equal or not."""
        if isinstance(lengths, int):
            return self.options.penalty(float(lengths))
        return self.options.penalty(lengths.double()).float()

    def keep_best(self, candidates: Candidates) -> Tensor:
        """Keep the best `beam` unfinished candidates; -> A k: their indices."""
        unfinished = candidates.sums.masked_fill(candidates.finished, -torch.inf)
        if self.constraint is None:
            self.sums, order = unfinished.topk(self.beam, dim=1)
        else:
            order = self.constraint.allocate(unfinished, self.beam)
            self.sums = unfinished.gather(1, order)
            self.constraint.keep(order)
        self.tokens = candidates.tokens.gather(1, order[..., None].expand(-1, -1, candidates.tokens.shape[2]))
        return order

    def drop_finished(self, parents: Tensor) -> None:
        """Drop sentences that cannot improve any more; the beams of the others continue their parents."""
        stay = self.can_improve()
        dropping = len(stay) < len(self.active)
        if dropping:
            done = torch.ones(len(self.active), dtype=torch.bool, device=self.device).index_fill(0, stay, False)
            for index in done.nonzero().flatten().tolist():
                self.results[int(self.active[index])] = self.finished.n_best(index, self.options.n_best) or [EMPTY]
            stay = self.tensor(fill_gaps(stay.tolist()))
            parents = parents[stay]
        if self.coverage is not None:
            rows = stay[:, None] * self.rows_per_sentence + parents
            self.coverage = self.coverage.flatten(0, 1)[rows]
        if dropping:
            self.keep(stay)
        self.rows_per_sentence = self.beam
        self.advance(parents if self.beam > 1 else None, stay if dropping else None)

    def keep(self, stay: Tensor) -> None:
        """Keep the state of these active sentences only, except for their memory and coverage."""
        source = map_rows(lambda tensor: tensor.index_select(0, stay), self.context.source)
        self.context = replace(self.context, source=source)
        self.finished = self.finished.select(stay)
        if self.constraint is not None:
            self.constraint.select(stay)
        self.tokens, self.sums, self.active = self.tokens[stay], self.sums[stay], self.active[stay]
        self.limits, self.prompt = self.limits[stay], self.prompt[stay]
        self.prompt_lengths = self.prompt_lengths[stay]
        self.longest_prompt = int(self.prompt_lengths.max()) if len(stay) else self.longest_prompt
        kept = stay.tolist()
        self.stopping_criteria = [self.stopping_criteria[row] for row in kept]
        self.random_numbers.select(kept)
        if isinstance(self.new_tokens, Tensor):
            self._set_counts(self.new_tokens[stay])

    def remove(self, numbers: Sequence[int]) -> None:
        """Drop these sentences without a result, after any step."""
        known = self.active.tolist()
        stay = self.tensor([index for index, number in enumerate(known) if number not in set(numbers)])
        if len(stay) == len(known):
            return
        stay = self.tensor(fill_gaps(stay.tolist()))
        self.coverage = None if self.coverage is None else self.coverage[stay]
        self.memory.keep(stay, None)
        self.keep(stay)
        self.set_inputs()

    def can_join(self, other: Search) -> bool:
        """Whether `join` gives the results of both searches: equal options, and output that no padding changes."""
        own, theirs = (joinable_options(search.options) for search in (self, other))
        same = self.network is other.network and self.eos == other.eos and own == theirs
        same &= self.constraint is None and other.constraint is None
        return same and self.network.incremental and self.context.ablation == other.context.ablation

    def join(self, other: Search) -> None:
        """Take over the active sentences of another search; both have advanced by one step at least."""
        assert self.started
        assert other.started
        assert self.can_join(other)
        for search in (self, other):
            rows, slots = len(search.active), search.memory.start + 1
            search.memory.use_layout(Layout.of_prompts(torch.ones(rows, slots, dtype=torch.bool, device=self.device)))
        self.memory.join(other.memory)
        self.coverage = concatenate(self.coverage, other.coverage)
        source = _join_sources(self.context.source, other.context.source)
        self.context = replace(self.context, source=source)
        self.finished = self.finished.join(other.finished)
        self.any_finished |= other.any_finished
        self.tokens, self.prompt = _pad_and_join(self.tokens, other.tokens), _pad_and_join(self.prompt, other.prompt)
        counts = [*self.generated_lengths(), *other.generated_lengths()]
        for name in ("active", "sums", "limits", "prompt_lengths"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self.stopping_criteria = [*self.stopping_criteria, *other.stopping_criteria]
        self.random_numbers.join(other.random_numbers)
        self.results |= other.results
        self.longest_prompt = max(self.longest_prompt, other.longest_prompt)
        self._set_counts(self.tensor(counts))
        self.set_inputs()

    def _set_counts(self, counts: Tensor) -> None:
        """Set how many tokens each sentence has generated: one number while all have the same."""
        equal = len(counts) > 0 and bool((counts == counts[0]).all())
        self.new_tokens = int(counts[0]) if equal else counts
        self.equal_lengths = bool((self.prompt_lengths == self.longest_prompt).all())
        self.prompt = self.prompt[:, : self.longest_prompt]
        if equal:
            self.tokens = self.tokens[:, :, : int(counts[0])]

    def can_improve(self) -> Tensor:
        """The sentences in which an unfinished hypothesis may still beat the worst finished one (early stopping).

        Sums of log-probabilities only fall, and the coverage penalty is never positive. So up to some length no
        hypothesis can score more than its sum now over the most favourable length penalty (`Options.best_length`).
        """
        if not self.any_finished:
            return (self.sums[:, 0] > -torch.inf).nonzero().flatten()
        length = self.options.best_length(torch.zeros_like(self.limits) + self.new_tokens, self.limits)
        bound = self.sums[:, 0] / self.options.penalty(length.minimum(self.limits).float())
        if self.options.early_stopping is True:
            bound = torch.where(self.sums[:, 0] > -torch.inf, torch.inf, bound)
            bound = bound.masked_fill(self.finished.scores[:, -1] > -torch.inf, -torch.inf)
        as_hugging_face = isinstance(self.options.early_stopping, bool)
        worst = (self.beam if as_hugging_face else min(self.options.n_best, self.beam)) - 1
        return (bound > self.finished.scores[:, worst]).nonzero().flatten()

    def advance(self, parents: Tensor | None, stay: Tensor | None) -> None:
        """Go on with these beams and sentences (None: all), one token further."""
        self.memory.advance(self.prompt_lengths + self.new_tokens - 1, parents, stay)
        self.set_inputs()

    def set_inputs(self) -> None:
        """Set the next input: one token per row, in the slot after the last."""
        if isinstance(self.new_tokens, int):
            self.input_ids = self.tokens[:, :, self.new_tokens - 1].reshape(-1, 1)
        else:
            last = (self.new_tokens - 1)[:, None, None].expand(-1, self.rows_per_sentence, 1)
            self.input_ids = self.tokens.gather(2, last).reshape(-1, 1)
        self.context = replace(self.context, start=self.memory.start, layout=self.memory.layout, padding=None)

    def coverage_penalty(self) -> Tensor:
        """-> A k: the coverage penalty for source tokens that got little attention (Wu 2016, equation 14)."""
        assert self.coverage is not None
        assert self.context.source is not None
        missed = self.coverage.clamp(1e-9, 1.0).log()
        if self.context.source.padding is not None:
            missed = missed.masked_fill(~self.context.source.padding[:, None], 0.0)
        return self.options.coverage_penalty * missed.sum(dim=-1)


def joinable_options(options: Options) -> Options:
    """What the options of two searches must have in common to be joined; the rest belongs to each sentence."""
    samples = 1 if options.temperature > 0 else options.n_best
    return replace(options, seed=0, max_tokens=None, stop=(), n_best=samples)


def _join_sources(one: Source | None, other: Source | None) -> Source | None:
    """The sources of both, with padding where their lengths differ."""
    if one is None or other is None:
        return None
    sources = one, other
    if one.states.shape[1] != other.states.shape[1] or any(source.padding is not None for source in sources):
        one, other = (
            source if source.padding is not None
            else replace(source, padding=torch.ones_like(source.states[..., 0], dtype=torch.bool))
            for source in sources
        )  # fmt: skip
    joined: Source = concatenate(one, other)
    return joined


def _pad_and_join(one: Tensor, other: Tensor) -> Tensor:
    """Rows of tokens of both, -1 after the last of each row."""
    joined: Tensor = concatenate(one + 1, other + 1) - 1
    return joined
