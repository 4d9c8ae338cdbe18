"""What a search has finished: the hypotheses of each sentence, best first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from regard.decode.options import Options, Propose, RandomNumbers, competing, constrain, drawing, greedy
from regard.layers.contract import Ablation, Context, Memory, Source, map_rows, select
from regard.layers.record import Record
from regard.models.model import Network


@dataclass(frozen=True)
class Hypothesis:
    """Something a model said: the tokens after the prompt, without the end token."""

    tokens: tuple[int, ...]
    score: float  # what the search ranked it by
    log_probability: float
    ended: bool  # said its end token or a stop string, rather than running into the limit


NOTHING = Hypothesis((), 0.0, 0.0, False)
"""What is said when nothing may be."""


@dataclass(frozen=True)
class Pool:
    """Finished hypotheses as tensors: A sentences by k places (by L tokens); minus infinity marks an empty place."""

    scores: Tensor
    sums: Tensor
    lengths: Tensor
    ended: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, sentences: int, places: int, device: torch.device) -> Pool:
        """A pool without hypotheses."""
        low = torch.full((sentences, places), -torch.inf, device=device)
        none = torch.zeros(sentences, places, dtype=torch.long, device=device)
        return cls(low, low, none, none.bool(), none[..., None][..., :0])

    def merged(self, other: Pool) -> Pool:
        """The best of both, as many as before."""
        _, order = torch.cat([self.scores, other.scores], dim=1).topk(self.scores.shape[1], dim=1)

        def pick(mine: Tensor, theirs: Tensor) -> Tensor:
            if mine.dim() == 2:
                return torch.cat([mine, theirs], dim=1).gather(1, order)
            longer = torch.nn.functional.pad(mine, (0, theirs.shape[2] - mine.shape[2]))
            return torch.cat([longer, theirs], dim=1).gather(1, order[..., None].expand(-1, -1, theirs.shape[2]))

        return Pool(*(pick(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))

    def select(self, sentences: Tensor) -> Pool:
        """The pool of these sentences."""
        return Pool(*(getattr(self, f.name)[sentences] for f in fields(self)))

    def hypotheses(self, sentence: int, most: int) -> list[Hypothesis]:
        """The best `most` of a sentence."""
        columns = [getattr(self, f.name)[sentence].tolist() for f in fields(self)]
        return [
            Hypothesis(tuple(tokens[:length]), score, total, ended)
            for score, total, length, ended, tokens in zip(*columns)
            if score > -torch.inf
        ][:most]


_PIECE = 1024  # tokens of a long prompt that are read at once


def search(
    network: Network,
    prompts: Sequence[Sequence[int]],
    options: Options,
    *,
    end: int,
    limits: Sequence[int],
    source: Source | None = None,
    seeds: Sequence[int] | None = None,
    stopped: Callable[[list[int]], bool] | None = None,
    watch: Watch | None = None,
    ablation: Ablation | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of each prompt, at most `limits[i]` tokens long, best first.

    `seeds` gives each row its own random numbers; `stopped` says of a row's tokens whether they hold a stop string.
    `watch` is told of each step; `change` switches heads of the decoder off.
    """
    rows = _Rows(network, prompts, options, end, limits, source, seeds or range(len(prompts)), stopped, ablation)
    while len(rows.alive):
        rows.step(watch)
    return rows.answers


@dataclass(frozen=True)
class Candidates:
    """What may come next: A sentences by c continuations."""

    sums: Tensor
    parents: Tensor
    tokens: Tensor  # A c L, the chosen one among them
    ending: Tensor  # the last token is the end token
    finished: Tensor  # ended, stopped, or at the limit
    over: Tensor  # at the limit without an end


Watch = Callable[[Tensor, Candidates, Tensor], None]
"""Is told at each step which sentences are alive A, what competed, and which of it goes on A k, the finished last."""


class _Rows:
    """The state of a search: A sentences that are still alive, each with `width` rows."""

    def __init__(
        self,
        network: Network,
        prompts: Sequence[Sequence[int]],
        options: Options,
        end: int,
        limits: Sequence[int],
        source: Source | None,
        seeds: Sequence[int],
        stopped: Callable[[list[int]], bool] | None,
        ablation: Ablation | None,
    ) -> None:
        self.network, self.options, self.end, self.stopped = network, options, end, stopped
        self.device = next(network.parameters()).device
        self.answers: list[list[Hypothesis]] = [[NOTHING] for _ in prompts]
        self.prompt = _padded(prompts, self.device)
        self.lengths = (self.prompt >= 0).sum(dim=1)
        self.limit = torch.tensor(list(limits), device=self.device)
        self.alive = (self.limit > 0).nonzero().flatten()
        sentences = len(self.alive)
        self.beam = options.beam if options.temperature == 0 else 1
        self.propose = self._proposer(seeds)
        self.made, self.width = 0, 1
        self.pool = Pool.empty(sentences, self.beam, self.device)
        self.tokens = torch.zeros(sentences, 1, 0, dtype=torch.long, device=self.device)
        self.sums = torch.zeros(sentences, 1, device=self.device)
        self.memory: Memory = None
        self._keep_prompts(source, ablation)

    def _proposer(self, seeds: Sequence[int]) -> Propose:
        if self.options.temperature == 0:
            return greedy if self.beam == 1 else competing(self.beam, 1 + len(self.options.also_end))
        streams = RandomNumbers(seeds)
        return drawing(self.options, lambda: streams.at(self.made)[self.alive.cpu()])

    def _keep_prompts(self, source: Source | None, ablation: Ablation | None) -> None:
        """Begin with the prompts of the rows that have something to say."""
        if len(self.alive) < len(self.answers):
            self.prompt, self.lengths, self.limit = (
                part[self.alive] for part in (self.prompt, self.lengths, self.limit)
            )
            source = map_rows(lambda tensor: tensor[self.alive], source)
        self.furthest = int(self.lengths.max()) if len(self.lengths) else 0
        self.even = bool((self.lengths == self.furthest).all())
        self.prompt = self.prompt[:, : self.furthest]
        self.last = self.prompt.clamp_min(0)
        padding = None if self.even else self.prompt >= 0
        self.context = Context(source=source, remember=True, padding=padding, ablation=ablation)
        weighty = self.options.coverage_penalty > 0 and source is not None
        self.coverage: Tensor | None = None
        if weighty and source is not None:
            self.coverage = torch.zeros(len(self.alive), 1, source.states.shape[1], device=self.device)

    def step(self, watch: Watch | None = None) -> None:
        """Read the last tokens, propose what may follow, keep the best, and let finished sentences leave."""
        candidates = self.candidates()
        self.finish(candidates)
        order = self.survive(candidates)
        if watch is not None:
            watch(self.alive, candidates, order)
        self.leave(candidates.parents.gather(1, order))

    def candidates(self) -> Candidates:
        """What may come next, as the network sees it."""
        following = self.read().unflatten(0, (len(self.alive), self.width))
        sums, parents, chosen = self.propose(following, self.sums)
        self.made += 1
        said = self.tokens.gather(1, parents[..., None].expand(-1, -1, self.tokens.shape[2]))
        tokens = torch.cat([said, chosen[..., None]], dim=2)
        ending = chosen == self.end
        for other in self.options.also_end:
            ending |= chosen == other
        finished = ending | self.at_stop(tokens, ending)
        over = (self.made >= self.limit)[:, None] & ~finished
        return Candidates(sums, parents, tokens, ending, finished | over, over)

    def read(self) -> Tensor:
        """-> RN: the log-probabilities of the next token of every row, under the options' rules."""
        record = None if self.coverage is None else Record(lambda name: name.endswith("cross"))
        self.context = replace(self.context, record=record)
        ahead = self.ahead() if self.made == 0 else 0
        states, self.memory = self.network.decode(self.last, self.context, self.memory)
        at = (
            self.lengths - 1 - ahead
            if self.made == 0
            else torch.zeros(len(states), dtype=torch.long, device=self.device)
        )
        logits = self.network.readout(states[torch.arange(len(states), device=self.device), at]).float()
        if record is not None and self.coverage is not None:
            weights = torch.stack([record.matrix(name).mean(dim=1) for name in record.rows]).mean(dim=0)
            if self.context.padding is not None:
                weights = weights * self.context.padding[..., None]
            self.coverage = self.coverage + weights.sum(dim=1).unflatten(0, (len(self.alive), self.width))
        said = self.tokens.flatten(0, 1)
        history = torch.cat([self.prompt.repeat_interleave(self.width, dim=0), said], dim=1)
        if self.beam > 1 and self.options.normalization == "length":
            # Hugging Face's beams shun and forbid after the softmax: the others do not become likelier.
            found = self.ruled(logits.log_softmax(dim=-1), history)
            return found.log_softmax(dim=-1) if self.options.renormalised else found
        return self.ruled(logits, history).log_softmax(dim=-1)

    def ahead(self) -> int:
        """Read long prompts piece by piece, where that takes less memory, up to their last; -> how many tokens."""
        pieces = (int(self.lengths.min()) - 1) // _PIECE if self.network.description.constant_memory else 0
        for start in range(0, pieces * _PIECE, _PIECE):
            context = replace(self.context, padding=None, start=start)
            _, self.memory = self.network.decode(self.last[:, start : start + _PIECE], context, self.memory)
        read, padding = pieces * _PIECE, self.context.padding
        self.last = self.last[:, read:]
        self.context = replace(self.context, start=read, padding=None if padding is None else padding[:, read:])
        return read

    def ruled(self, logits: Tensor, history: Tensor) -> Tensor:
        """RN under the options' rules."""
        over = (self.made + 1 >= self.limit).repeat_interleave(self.width) if self.options.last else None
        return constrain(logits, history, self.options, made=self.made, end=self.end, over=over)

    def at_stop(self, tokens: Tensor, ending: Tensor) -> Tensor:
        """Which candidates hold a stop string."""
        if self.stopped is None:
            return torch.zeros_like(ending)
        said = tokens.flatten(0, 1).tolist()
        held = torch.tensor([self.stopped(row) for row in said], device=self.device)
        return held.view_as(ending) & ~ending

    def finish(self, candidates: Candidates) -> None:
        """Put finished candidates among the best `beam` into the pool of their sentence."""
        ranks = torch.arange(candidates.sums.shape[1], device=self.device)
        scores = candidates.sums / self.options.penalty(float(self.made))
        if self.coverage is not None:
            scores = scores + self.coverage_penalty().gather(1, candidates.parents)
        scores = scores.masked_fill(~candidates.finished | (ranks >= self.beam), -torch.inf)
        lengths = self.made - candidates.ending.long()
        ended = candidates.finished & ~candidates.over
        self.pool = self.pool.merged(Pool(scores, candidates.sums, lengths, ended, candidates.tokens))

    def survive(self, candidates: Candidates) -> Tensor:
        """Keep the best `beam` that go on; -> A k, which of the candidates they are."""
        going = candidates.sums.masked_fill(candidates.finished, -torch.inf)
        self.sums, order = going.topk(self.beam, dim=1)
        self.tokens = candidates.tokens.gather(1, order[..., None].expand(-1, -1, self.made))
        return order

    def leave(self, parents: Tensor) -> None:
        """Drop sentences that cannot do better any more, and reorder what the others remember."""
        stay = self.hopeful()
        leaving = len(stay) < len(self.alive)
        if leaving:
            gone = torch.ones(len(self.alive), dtype=torch.bool, device=self.device).index_fill(0, stay, False)
            for place in gone.nonzero().flatten().tolist():
                found = self.pool.hypotheses(place, self.options.n_best)
                self.answers[int(self.alive[place])] = found or [NOTHING]
        rows = torch.arange(len(self.alive), device=self.device)[:, None] * self.width + parents
        if leaving or self.beam > 1:
            self.memory = select(self.memory, rows[stay].flatten(), stay if leaving else None)
        if self.coverage is not None:
            self.coverage = self.coverage.flatten(0, 1)[rows[stay]]
        if leaving:
            source = map_rows(lambda tensor: tensor.index_select(0, stay), self.context.source)
            self.context = replace(self.context, source=source)
            self.pool = self.pool.select(stay)
            self.tokens, self.sums, self.alive = self.tokens[stay], self.sums[stay], self.alive[stay]
            self.limit, self.lengths, self.prompt = self.limit[stay], self.lengths[stay], self.prompt[stay]
            self.furthest = int(self.lengths.max()) if len(stay) else self.furthest
        self.width = self.beam
        self.advance()

    def hopeful(self) -> Tensor:
        """The sentences in which something still alive may end better than the worst answer that counts.

        A sum of log-probabilities only falls, and coverage only costs. So no row can end with more than its sum now,
        divided by the penalty of the length that flatters it most: the limit's, or the next when short is favoured.
        That is exact. Other endings guess: that it ends now, or that as many answers as beams are enough.
        """
        long = self.options.ending == "exact" and self.options.length_penalty > 0
        now = self.made + (1 if self.options.ending == "exact" else 0)
        flattering = self.limit if long else torch.full_like(self.limit, now)
        bound = self.sums[:, 0] / self.options.penalty(flattering.float())
        if self.options.ending == "full":
            bound = torch.where(self.sums[:, 0] > -torch.inf, torch.inf, bound)
            bound = bound.masked_fill(self.pool.scores[:, -1] > -torch.inf, -torch.inf)
        worst = (min(self.options.n_best, self.beam) if self.options.ending == "exact" else self.beam) - 1
        return (bound > self.pool.scores[:, worst]).nonzero().flatten()

    def advance(self) -> None:
        """The next call reads one token a row, in the slot after its last."""
        self.last = self.tokens[:, :, self.made - 1].reshape(-1, 1)
        start: int | Tensor = self.furthest + self.made - 1
        if not self.even:
            start = (self.lengths + self.made - 1).repeat_interleave(self.width)
        self.context = replace(self.context, start=start, end=self.furthest + self.made, padding=None)

    def coverage_penalty(self) -> Tensor:
        """-> A k: how much source text nobody attended to (Wu 2016, equation 14)."""
        assert self.coverage is not None
        assert self.context.source is not None
        missed = self.coverage.clamp(1e-9, 1.0).log()
        if self.context.source.padding is not None:
            missed = missed.masked_fill(~self.context.source.padding[:, None], 0.0)
        return self.options.coverage_penalty * missed.sum(dim=-1)


def _padded(prompts: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """-> B x longest, -1 where a prompt has no token."""
    longest = max((len(prompt) for prompt in prompts), default=0)
    return torch.tensor([[*prompt, *[-1] * (longest - len(prompt))] for prompt in prompts], device=device)
