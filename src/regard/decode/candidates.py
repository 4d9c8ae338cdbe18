"""The candidates of a search step: beam search, greedy search, sampling; and the constraints on the logits before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.options import Options

_FOLDS, _MANY = 8, 2048  # rows into which at least so many values are folded

Propose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(next-token log-probabilities A k N, sums A k so far) -> candidates A c: their sums, parent beams and tokens."""


def beam_candidates(beam: int, eos_tokens: int = 1) -> Propose:
    """Beam search: the best 2k continuations of a sentence's k beams, so that k remain even if k of them end.

    With several end tokens, each of the k beams can end in as many ways.
    """
    count = (1 + eos_tokens) * beam

    def propose(log_probabilities: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # The best of all beams are among the best of each.
        best, tokens = best_tokens(log_probabilities, min(count, log_probabilities.shape[-1]))
        totals = (sums[..., None] + best).flatten(1)
        missing = max(0, count - totals.shape[1])
        totals, flat = F.pad(totals, (0, missing), value=-torch.inf).topk(count, dim=1)
        parents = (flat // best.shape[-1]).clamp_max(sums.shape[1] - 1)
        return totals, parents, F.pad(tokens.flatten(1), (0, missing)).gather(1, flat)

    return propose


def greedy(log_probabilities: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Greedy search: the best continuation of the one hypothesis per sentence."""
    best, tokens = best_tokens(log_probabilities[:, 0], 1)
    return sums + best, torch.zeros_like(tokens), tokens


def best_tokens(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """...N -> the `count` largest values, best first, and their indices.

    They are in the columns with the largest maxima, if rows of N are folded into a few rows; measured for 8,000 tokens,
    this takes about half the time of `topk`.
    """
    size = values.shape[-1]
    width = size // _FOLDS
    if size < _MANY or count * 4 > width:
        return values.topk(count, dim=-1)
    maxima = values[..., : _FOLDS * width].unflatten(-1, (_FOLDS, width)).amax(dim=-2)
    columns = maxima.topk(count, dim=-1, sorted=False).indices if count > 1 else maxima.argmax(dim=-1, keepdim=True)
    folds = width * torch.arange(_FOLDS, device=values.device)
    rest = torch.arange(_FOLDS * width, size, device=values.device).expand(*columns.shape[:-1], -1)
    indices = torch.cat([(columns[..., None] + folds).flatten(-2), rest], dim=-1)
    best, found = values.gather(-1, indices).topk(count, dim=-1)
    return best, indices.gather(-1, found)


def sample(options: Options, random_numbers: Callable[[], Tensor]) -> Propose:
    """Sampling with temperature, top-k, min-p, top-p (Holtzman 2020), typical and epsilon sampling: one token per row.

    `random_numbers` gives each row the next number of its own stream, so that the batch does not change a sample.
    """

    def propose(log_probabilities: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_probabilities = log_probabilities[:, 0]
        probabilities, order = (log_probabilities / options.temperature).softmax(dim=-1).sort(dim=-1, descending=True)
        ranks = torch.arange(order.shape[-1], device=order.device)
        keep = probabilities >= options.min_p * probabilities[:, :1]
        keep &= probabilities.cumsum(-1) - probabilities < options.top_p
        if options.top_k:
            keep &= ranks < options.top_k
        if options.typical < 1:
            keep &= _typical(probabilities, options.typical)
        keep &= probabilities >= options.epsilon
        keep |= (ranks == 0) & ~keep.any(dim=-1, keepdim=True)
        cumulative = (probabilities * keep).double().cumsum(dim=-1)
        drawn = random_numbers().to(cumulative) * cumulative[:, -1]
        chosen = (cumulative <= drawn[:, None]).sum(dim=-1, keepdim=True)
        # A number close to 1 must not select a token after the last that is kept.
        chosen = torch.minimum(chosen, (keep * ranks).amax(dim=-1, keepdim=True))
        tokens = order.gather(1, chosen)
        return sums + log_probabilities.gather(1, tokens), torch.zeros_like(tokens), tokens

    return propose


def _typical(probabilities: Tensor, mass: float) -> Tensor:
    """RN -> RN: the tokens whose surprise is nearest to the entropy, up to this probability together (Meister 2022)."""
    surprise = -probabilities.clamp_min(1e-30).log()
    entropy = (probabilities * surprise).sum(dim=-1, keepdim=True)
    order = (surprise - entropy).abs().argsort(dim=-1, stable=True)
    sorted_values = probabilities.gather(1, order)
    before = sorted_values.cumsum(dim=-1) - sorted_values
    return torch.zeros_like(probabilities, dtype=torch.bool).scatter(1, order, before < mass)


class RandomNumbers:
    """One stream of random numbers in [0, 1) per row, each from its own seed, drawn in blocks."""

    block = 64

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(seed % (1 << 63)) for seed in seeds]
        self.drawn = torch.zeros(len(seeds), 0)

    def at(self, step: int | Tensor) -> Tensor:
        """-> R: each row's number at this step, or at its own step of R."""
        self._draw(1 + (int(step.max()) if isinstance(step, Tensor) else step))
        return self.drawn.gather(1, step.cpu()[:, None])[:, 0] if isinstance(step, Tensor) else self.drawn[:, step]

    def _draw(self, count: int) -> None:
        while count > self.drawn.shape[1]:
            more = [torch.rand(self.block, generator=generator) for generator in self.generators]
            self.drawn = torch.cat([self.drawn, torch.stack(more)], dim=1)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows only."""
        self.generators, self.drawn = [self.generators[row] for row in rows], self.drawn[list(rows)]

    def join(self, other: RandomNumbers) -> None:
        """Add the rows of other streams."""
        for streams, count in ((self, other.drawn.shape[1]), (other, self.drawn.shape[1])):
            streams._draw(count)
        self.generators, self.drawn = [*self.generators, *other.generators], torch.cat([self.drawn, other.drawn])


def constrain(
    logits: Tensor, history: Tensor, options: Options, *, new_tokens: int | Tensor, eos: int,
    at_limit: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Apply the options' constraints to RN logits (Hugging Face: logits processors).

    `history` RL is the prompt and the generated tokens (-1: no token); `new_tokens` counts the generated ones,
    per row R when they differ. `at_limit` R marks rows that may generate one more token only.
    """
    ends = tuple(token for token in (eos, *options.extra_eos) if token >= 0)
    logits = _suppress(logits, options.suppress_tokens, True)
    logits = _suppress(logits, ends, new_tokens < options.min_tokens)
    logits = _suppress(logits, options.begin_suppress_tokens, new_tokens == (options.forced_bos is not None))
    if options.repetition_penalty != 1.0:
        present = torch.zeros_like(logits, dtype=torch.bool)
        present.scatter_(1, history.clamp_min(0), history >= 0)
        # Clamped padding also writes to token 0, so that token is set again.
        present[:, 0] = (history == 0).any(dim=1)
        penalized = torch.where(logits > 0, logits / options.repetition_penalty, logits * options.repetition_penalty)
        logits = torch.where(present, penalized, logits)
    if options.presence_penalty or options.frequency_penalty:
        counts = _generated_counts(logits, history, new_tokens)
        logits = logits - options.frequency_penalty * counts - options.presence_penalty * (counts > 0)
    if options.logit_bias:
        tokens, biases = zip(*options.logit_bias)
        logits = logits.index_add(
            1, torch.tensor(tokens, device=logits.device), logits.new_tensor([biases]).expand(len(logits), -1)
        )
    if options.no_repeat_ngram:
        logits = logits.clone()
        for row, tokens in enumerate(history.tolist()):
            banned = _repeating_tokens([token for token in tokens if token >= 0], options.no_repeat_ngram)
            logits[row, banned] = -torch.inf
    if options.forced_bos is not None and (isinstance(new_tokens, Tensor) or new_tokens == 0):
        logits = _force(logits, (options.forced_bos,), (history >= 0).sum(dim=1) == 1)
    if options.forced_eos and at_limit is not None:
        logits = _force(logits, options.forced_eos, at_limit)
    return logits


def _generated_counts(logits: Tensor, history: Tensor, new_tokens: int | Tensor) -> Tensor:
    """-> RN: how often each token was generated: the last `new_tokens` of a row's history, prompts left out."""
    present = history >= 0
    from_end = present.flip(1).cumsum(1).flip(1)
    generated = present & (from_end <= (new_tokens[:, None] if isinstance(new_tokens, Tensor) else new_tokens))
    return torch.zeros_like(logits).scatter_add_(1, history.clamp_min(0), generated.to(logits))


def _suppress(logits: Tensor, tokens: tuple[int, ...], rows: bool | Tensor) -> Tensor:
    """In the rows marked, or in all, logits minus infinity for these tokens."""
    if not tokens or rows is False:
        return logits
    suppressed = logits.index_fill(1, torch.tensor(tokens, device=logits.device), -torch.inf)
    return torch.where(rows[:, None], suppressed, logits) if isinstance(rows, Tensor) else suppressed


def _force(logits: Tensor, tokens: tuple[int, ...], rows: Tensor) -> Tensor:
    """In the rows marked, logits 0 for these tokens and minus infinity for all others."""
    forced = torch.full_like(logits[:1], -torch.inf)
    forced[:, list(tokens)] = 0.0
    return torch.where(rows[:, None], forced, logits)


def _repeating_tokens(tokens: list[int], size: int) -> list[int]:
    """The tokens that would complete an n-gram of this size that already occurred."""
    if len(tokens) < size:
        return []
    tail = tokens[len(tokens) - size + 1 :]
    return [tokens[i + size - 1] for i in range(len(tokens) - size + 1) if tokens[i : i + size - 1] == tail]
