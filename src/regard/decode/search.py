"""Beam search, greedy search and sampling for every model: a batch of sentences, each with k beams, over a KV cache.

What the decoder remembers between steps is its memory: the KV cache of attention, the state of a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.inputs import Tokens, pad
from regard.decode.options import Options, Propose, RandomNumbers, beam_candidates, constrain, greedy, sample
from regard.errors import InputError
from regard.layers.contract import Ablation, Context, Memory, Source, map_rows, select
from regard.layers.record import Record
from regard.models.model import Network

NO_EOS = -1  # the end token of a model that has none, so that only a limit ends its texts
_PREFILL_CHUNK = 1024  # tokens of a long prompt per call of the decoder


@dataclass(frozen=True)
class Hypothesis:
    """A generated sequence: the tokens after the prompt, without the end token."""

    tokens: tuple[int, ...]
    score: float  # what the search ranks by: log-probability over length penalty, plus coverage penalty
    log_probability: float
    ended: bool  # by an end token or a stop string, not by the length limit


EMPTY = Hypothesis((), 0.0, 0.0, False)
"""The result where no token can be generated."""


@dataclass(frozen=True)
class FinishedHypotheses:
    """Finished hypotheses as tensors, A sentences by k (by L tokens), best first; score minus infinity: none."""

    scores: Tensor
    sums: Tensor
    lengths: Tensor
    ended: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, sentences: int, size: int, device: torch.device) -> FinishedHypotheses:
        low = torch.full((sentences, size), -torch.inf, device=device)
        zeros = torch.zeros(sentences, size, dtype=torch.long, device=device)
        return cls(low, low, zeros, zeros.bool(), zeros[..., None][..., :0])

    def merge(self, other: FinishedHypotheses) -> FinishedHypotheses:
        """The best k of both."""
        _, order = torch.cat([self.scores, other.scores], dim=1).topk(self.scores.shape[1], dim=1)

        def pick(mine: Tensor, theirs: Tensor) -> Tensor:
            if mine.dim() == 2:
                return torch.cat([mine, theirs], dim=1).gather(1, order)
            longer = F.pad(mine, (0, theirs.shape[2] - mine.shape[2]))
            return torch.cat([longer, theirs], dim=1).gather(1, order[..., None].expand(-1, -1, theirs.shape[2]))

        return FinishedHypotheses(*(pick(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))

    def select(self, sentences: Tensor) -> FinishedHypotheses:
        return FinishedHypotheses(*(getattr(self, f.name)[sentences] for f in fields(self)))

    def n_best(self, sentence: int, count: int) -> list[Hypothesis]:
        columns = [getattr(self, f.name)[sentence].tolist() for f in fields(self)]
        return [
            Hypothesis(tuple(tokens[:length]), score, total, ended)
            for score, total, length, ended, tokens in zip(*columns)
            if score > -torch.inf
        ][:count]


@dataclass(frozen=True)
class Candidates:
    """The candidates of one step: A sentences by c continuations."""

    sums: Tensor  # summed log-probabilities
    parents: Tensor  # the beam that each continues
    tokens: Tensor  # A c L, the new token last
    eos: Tensor  # whether the new token is an end token
    finished: Tensor  # by an end token, a stop string or the limit
    at_limit: Tensor  # by the limit


StepCallback = Callable[[Tensor, Candidates, Tensor], None]
"""Called at each step with the active sentences A, the candidates, and the indices A k of those that continue."""


def search(
    network: Network,
    prompts: Tokens,
    options: Options,
    *,
    eos: int,
    limits: Sequence[int],
    source: Source | None = None,
    seeds: Sequence[int] | None = None,
    stopping_criterion: Callable[[list[int]], bool] | None = None,
    on_step: StepCallback | None = None,
    ablation: Ablation | None = None,
) -> list[list[Hypothesis]]:
    """The n-best continuations of each prompt, at most `limits[i]` tokens long.

    `seeds` gives each row its own random numbers; `stopping_criterion` tells whether a row's tokens hold a stop string;
    `ablation` switches heads of the decoder off.
    """
    beams = _Beams(
        network, prompts, options, eos, limits, source, seeds or range(len(prompts)), stopping_criterion, ablation
    )
    while len(beams.active):
        beams.step(on_step)
    return beams.results


class _Beams:
    """The state of a beam search: A active sentences with k beams each (one until the prompt is read)."""

    def __init__(
        self, network: Network, prompts: Tokens, options: Options, eos: int, limits: Sequence[int],
        source: Source | None, seeds: Sequence[int], stopping_criterion: Callable[[list[int]], bool] | None,
        ablation: Ablation | None,
    ) -> None:  # fmt: skip
        self.network, self.options, self.eos, self.stopping_criterion = network, options, eos, stopping_criterion
        self.device = next(network.parameters()).device
        self.results: list[list[Hypothesis]] = [[EMPTY] for _ in prompts]
        self.prompt, _ = pad(prompts, self.device, value=-1)
        self.prompt_lengths = (self.prompt >= 0).sum(dim=1)
        self.limits = torch.tensor(list(limits), device=self.device)
        self.active = (self.limits > 0).nonzero().flatten()
        self.beam = options.beam if options.temperature == 0 else 1
        self.propose = self._proposer(seeds)
        self.new_tokens, self.rows_per_sentence = 0, 1
        self.finished = FinishedHypotheses.empty(len(self.active), self.beam, self.device)
        self.tokens = torch.zeros(len(self.active), 1, 0, dtype=torch.long, device=self.device)
        self.sums = torch.zeros(len(self.active), 1, device=self.device)
        self.memory: Memory = None  # the KV cache
        self._set_prompts(source, ablation)

    def _proposer(self, seeds: Sequence[int]) -> Propose:
        if self.options.temperature == 0:
            return greedy if self.beam == 1 else beam_candidates(self.beam, 1 + len(self.options.extra_eos))
        streams = RandomNumbers(seeds)
        return sample(self.options, lambda: streams.at(self.new_tokens)[self.active.cpu()])

    def _set_prompts(self, source: Source | None, ablation: Ablation | None) -> None:
        """Set the decoder's first input: the prompts of the active sentences."""
        if len(self.active) < len(self.results):
            self.prompt, self.prompt_lengths, self.limits = (
                part[self.active] for part in (self.prompt, self.prompt_lengths, self.limits)
            )
            source = map_rows(lambda tensor: tensor[self.active], source)
        self.longest_prompt = int(self.prompt_lengths.max()) if len(self.prompt_lengths) else 0
        self.equal_lengths = bool((self.prompt_lengths == self.longest_prompt).all())
        self.prompt = self.prompt[:, : self.longest_prompt]
        self.input_ids = self.prompt.clamp_min(0)
        padding = None if self.equal_lengths else self.prompt >= 0
        self.context = Context(source=source, remember=True, padding=padding, ablation=ablation)
        self.coverage: Tensor | None = None
        if self.options.coverage_penalty > 0 and source is not None:
            self.coverage = torch.zeros(len(self.active), 1, source.states.shape[1], device=self.device)

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
        sums, parents, chosen = self.propose(log_probabilities, self.sums)
        self.new_tokens += 1
        generated = self.tokens.gather(1, parents[..., None].expand(-1, -1, self.tokens.shape[2]))
        tokens = torch.cat([generated, chosen[..., None]], dim=2)
        eos = chosen == self.eos
        for extra in self.options.extra_eos:
            eos |= chosen == extra
        finished = eos | self.meets_stopping_criterion(tokens, eos)
        at_limit = (self.new_tokens >= self.limits)[:, None] & ~finished
        return Candidates(sums, parents, tokens, eos, finished | at_limit, at_limit)

    def next_log_probabilities(self) -> Tensor:
        """-> RN: the log-probabilities of each row's next token, under the options' constraints."""
        record = None if self.coverage is None else Record(lambda name: name.endswith("cross"))
        self.context = replace(self.context, record=record)
        last = torch.zeros(len(self.input_ids), dtype=torch.long, device=self.device)
        if self.new_tokens == 0:
            last = self.prompt_lengths - 1 - self.prefill()
        states, self.memory = self.network.decode(self.input_ids, self.context, self.memory)
        logits = self.network.readout(states[torch.arange(len(states), device=self.device), last]).float()
        if record is not None and self.coverage is not None:
            if not record.rows:
                raise InputError("this model has no cross-attention, so it covers no source (coverage_penalty). Leave "
                                 "out --coverage-penalty.")  # fmt: skip
            weights = torch.stack([record.matrix(name).mean(dim=1) for name in record.rows]).mean(dim=0)
            if self.context.padding is not None:
                weights = weights * self.context.padding[..., None]
            self.coverage = self.coverage + weights.sum(dim=1).unflatten(0, (len(self.active), self.rows_per_sentence))
        prompts = self.prompt.repeat_interleave(self.rows_per_sentence, dim=0)
        history = torch.cat([prompts, self.tokens.flatten(0, 1)], dim=1)
        if self.beam > 1 and self.options.normalization == "length":
            # Hugging Face's beam search constrains log-probabilities: the other tokens do not become more likely.
            found = self.constrain(logits.log_softmax(dim=-1), history)
            return found.log_softmax(dim=-1) if self.options.renormalize_logits else found
        return self.constrain(logits, history).log_softmax(dim=-1)

    def prefill(self) -> int:
        """Chunked prefill: read long prompts in chunks, all but the last, if memory is constant; -> tokens read."""
        chunks = (int(self.prompt_lengths.min()) - 1) // _PREFILL_CHUNK
        read = chunks * _PREFILL_CHUNK if self.network.description.constant_memory else 0
        for start in range(0, read, _PREFILL_CHUNK):
            context = replace(self.context, padding=None, start=start)
            ids = self.input_ids[:, start : start + _PREFILL_CHUNK]
            _, self.memory = self.network.decode(ids, context, self.memory)
        padding, self.input_ids = self.context.padding, self.input_ids[:, read:]
        self.context = replace(self.context, start=read, padding=None if padding is None else padding[:, read:])
        return read

    def constrain(self, logits: Tensor, history: Tensor) -> Tensor:
        at_limit = None
        if self.options.forced_eos:
            at_limit = (self.new_tokens + 1 >= self.limits).repeat_interleave(self.rows_per_sentence)
        return constrain(logits, history, self.options, new_tokens=self.new_tokens, eos=self.eos, at_limit=at_limit)

    def meets_stopping_criterion(self, tokens: Tensor, eos: Tensor) -> Tensor:
        """Which candidates hold a stop string."""
        if self.stopping_criterion is None:
            return torch.zeros_like(eos)
        stopped = [self.stopping_criterion(row) for row in tokens.flatten(0, 1).tolist()]
        return torch.tensor(stopped, device=self.device).view_as(eos) & ~eos

    def collect_finished(self, candidates: Candidates) -> None:
        """Add finished candidates among the best `beam` to the finished hypotheses of their sentence."""
        ranks = torch.arange(candidates.sums.shape[1], device=self.device)
        scores = candidates.sums / self.options.penalty(float(self.new_tokens))
        if self.coverage is not None:
            scores = scores + self.coverage_penalty().gather(1, candidates.parents)
        scores = scores.masked_fill(~candidates.finished | (ranks >= self.beam), -torch.inf)
        lengths = self.new_tokens - candidates.eos.long()
        ended = candidates.finished & ~candidates.at_limit
        new = FinishedHypotheses(scores, candidates.sums, lengths, ended, candidates.tokens)
        self.finished = self.finished.merge(new)

    def keep_best(self, candidates: Candidates) -> Tensor:
        """Keep the best `beam` unfinished candidates; -> A k: their indices."""
        unfinished = candidates.sums.masked_fill(candidates.finished, -torch.inf)
        self.sums, order = unfinished.topk(self.beam, dim=1)
        self.tokens = candidates.tokens.gather(1, order[..., None].expand(-1, -1, self.new_tokens))
        return order

    def drop_finished(self, parents: Tensor) -> None:
        """Drop sentences that cannot improve any more, and reorder the KV cache of the others by parent beam."""
        stay = self.can_improve()
        dropping = len(stay) < len(self.active)
        if dropping:
            done = torch.ones(len(self.active), dtype=torch.bool, device=self.device).index_fill(0, stay, False)
            for index in done.nonzero().flatten().tolist():
                self.results[int(self.active[index])] = self.finished.n_best(index, self.options.n_best) or [EMPTY]
        rows = torch.arange(len(self.active), device=self.device)[:, None] * self.rows_per_sentence + parents
        if dropping or self.beam > 1:
            self.memory = select(self.memory, rows[stay].flatten(), stay if dropping else None)
        if self.coverage is not None:
            self.coverage = self.coverage.flatten(0, 1)[rows[stay]]
        if dropping:
            source = map_rows(lambda tensor: tensor.index_select(0, stay), self.context.source)
            self.context = replace(self.context, source=source)
            self.finished = self.finished.select(stay)
            self.tokens, self.sums, self.active = self.tokens[stay], self.sums[stay], self.active[stay]
            self.limits, self.prompt = self.limits[stay], self.prompt[stay]
            self.prompt_lengths = self.prompt_lengths[stay]
            self.longest_prompt = int(self.prompt_lengths.max()) if len(stay) else self.longest_prompt
        self.rows_per_sentence = self.beam
        self.advance()

    def can_improve(self) -> Tensor:
        """The sentences in which an unfinished hypothesis may still beat the worst finished one (early stopping).

        Sums of log-probabilities only fall, and the coverage penalty is never positive. So no hypothesis can score more
        than its sum now over the most favourable length penalty: that of the limit, or of the next token if short
        hypotheses are favoured. That bound is exact ("never"); the other settings of `EarlyStopping` are heuristics.
        """
        exact = self.options.early_stopping == "never"
        longest = exact and self.options.length_penalty > 0
        length = self.limits if longest else torch.full_like(self.limits, self.new_tokens + (1 if exact else 0))
        bound = self.sums[:, 0] / self.options.penalty(length.float())
        if self.options.early_stopping is True:
            bound = torch.where(self.sums[:, 0] > -torch.inf, torch.inf, bound)
            bound = bound.masked_fill(self.finished.scores[:, -1] > -torch.inf, -torch.inf)
        worst = (min(self.options.n_best, self.beam) if exact else self.beam) - 1
        return (bound > self.finished.scores[:, worst]).nonzero().flatten()

    def advance(self) -> None:
        """Set the next input: one token per row, at the position after the last."""
        self.input_ids = self.tokens[:, :, self.new_tokens - 1].reshape(-1, 1)
        start: int | Tensor = self.longest_prompt + self.new_tokens - 1
        if not self.equal_lengths:
            start = (self.prompt_lengths + self.new_tokens - 1).repeat_interleave(self.rows_per_sentence)
        self.context = replace(self.context, start=start, end=self.longest_prompt + self.new_tokens, padding=None)

    def coverage_penalty(self) -> Tensor:
        """-> A k: the coverage penalty for source tokens that got little attention (Wu 2016, equation 14)."""
        assert self.coverage is not None
        assert self.context.source is not None
        missed = self.coverage.clamp(1e-9, 1.0).log()
        if self.context.source.padding is not None:
            missed = missed.masked_fill(~self.context.source.padding[:, None], 0.0)
        return self.options.coverage_penalty * missed.sum(dim=-1)
