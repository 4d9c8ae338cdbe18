"""One measurement in its own process: a training step at a length, or one layer of attention.

`python -m bench.reformers '{"who": "regard", "length": 1024}'` prints time and memory as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BYTES = 256
ENOUGH = 20.0  # seconds, after which no further step is taken
_MAPPED = 8 * 1024**3
SLICE = 16_384  # tokens that a peer's feed-forward reads at a time

Loss = Callable[[Tensor, Tensor], Tensor]
"""Ids and targets, 1T -> the mean loss."""

Attend = Callable[[Tensor], Tensor]
"""1TD -> 1TD."""


@dataclass(frozen=True)
class Case:
    """The model, the kind of work and the length; sizes are the same for all models."""

    who: str
    length: int
    depth: int = 6
    rounds: int = 2
    work: Literal["step", "attention"] = "step"
    width: int = 256
    heads: int = 4
    window: int = 64  # keys: ours of a bucket; theirs of a chunk, and of the chunk before it
    threads: int = 2
    seed: int = 1
    steps: int = 5  # at most

    @property
    def buckets(self) -> int | tuple[int, int]:
        """Length / window, as two factors if that is more than 128."""
        count = max(2, self.length // self.window)
        half = 2 ** ((count - 1).bit_length() // 2)
        return count + count % 2 if count <= 128 else (half, max(2, count // half // 2 * 2))

    @property
    def axes(self) -> tuple[int, int]:
        """Rows and columns of the positions."""
        columns = 2 ** (max(2, self.length - 1).bit_length() // 2)
        return -(-self.length // columns), columns

    @property
    def axial_widths(self) -> tuple[int, int]:
        """The widths of the row vectors and the column vectors."""
        return self.width // 4, self.width - self.width // 4


def ours(case: Case, form: Literal["RankWindow", "Chunks"] = "RankWindow") -> tuple[nn.Module, Loss]:
    """`zoo.reformer`; a query attends to the last keys of its own bucket, or in chunks as published."""
    from regard.layers.lsh import attention as lsh
    from regard.layers.positions import Axial
    from regard.models import zoo

    return _built(
        zoo.reformer(
            case.width, case.depth, case.heads, attention=("lsh",), pattern=getattr(lsh, form)(case.window),
            buckets=case.buckets, rounds=case.rounds, dropout=0.0, position=Axial(case.axes, case.axial_widths),
        )
    )  # fmt: skip


def ours_full(case: Case) -> tuple[nn.Module, Loss]:
    """`zoo.gpt2` with reversible layers: fused full attention, everything else as in `ours`."""
    from regard.layers.positions import Sinusoid
    from regard.layers.reversible import Reversible
    from regard.models import zoo

    position, join = Sinusoid(), Reversible()
    return _built(
        zoo.gpt2(
            case.width, case.depth, case.heads, dropout=0.0, activation="relu", position=position, join=join
        )
    )  # fmt: skip


def _built(description: Any) -> tuple[nn.Module, Loss]:
    network = description.build(BYTES)
    return network, lambda ids, targets: network.loss({"ids": ids}, targets) / targets.numel()


class Block(nn.Module):
    """Attention and a feed-forward as one writes them in plain torch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """BTD -> BTD."""
        x = x + self.attend(self.first(x))
        return x + self.feed(self.second(x))

    def attend(self, x: Tensor) -> Tensor:
        """BTD -> BTD by the fused kernel."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mixed(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def plain(case: Case) -> tuple[nn.Module, Loss]:
    """Fused attention in residual blocks that keep all activations for the backward pass."""
    blocks = [Block(case.width, case.heads) for _ in range(case.depth)]
    model = nn.Sequential(nn.Embedding(BYTES, case.width), *blocks, nn.Linear(case.width, BYTES))
    return model, _entropy(model)


def reformer_pytorch(case: Case) -> tuple[nn.Module, Loss]:
    """reformer-pytorch; hashing one head at a time, feed-forward in slices."""
    from reformer_pytorch import ReformerLM

    model = ReformerLM(
        BYTES, case.width, case.depth, case.length, heads=case.heads, dim_head=case.width // case.heads,
        bucket_size=case.window, n_hashes=case.rounds, causal=True, ff_chunks=-(-case.length // SLICE),
        attn_chunks=case.heads, axial_position_emb=True, axial_position_shape=case.axes, ff_activation=nn.ReLU,
    )  # fmt: skip
    return model, _entropy(model)


def transformers(case: Case) -> tuple[nn.Module, Loss]:
    """The Reformer of transformers; feed-forward and logits in slices."""
    from transformers import ReformerModelWithLMHead

    model = ReformerModelWithLMHead(_config(case))
    return model, _entropy(lambda ids: model(input_ids=ids, use_cache=False).logits)


def _config(case: Case) -> Any:
    from transformers import ReformerConfig

    return ReformerConfig(
        attn_layers=["lsh"] * case.depth, hidden_size=case.width, num_attention_heads=case.heads,
        attention_head_size=case.width // case.heads, feed_forward_size=4 * case.width, hidden_act="relu",
        lsh_attn_chunk_length=case.window, lsh_num_chunks_before=1, lsh_num_chunks_after=0,
        num_hashes=case.rounds, num_buckets=None, hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0, axial_pos_shape=case.axes, axial_pos_embds_dim=case.axial_widths,
        max_position_embeddings=case.length, is_decoder=True, vocab_size=BYTES, use_cache=False,
        chunk_size_feed_forward=min(SLICE, case.length), chunk_size_lm_head=min(SLICE, case.length),
    )  # fmt: skip


def _entropy(model: Callable[[Tensor], Tensor]) -> Loss:
    return lambda ids, targets: F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def ours_alone(case: Case, form: Literal["RankWindow", "Chunks"] = "RankWindow") -> tuple[nn.Module, Attend]:
    """One layer of our LSH attention."""
    from regard.layers.contract import Context
    from regard.layers.lsh import attention as lsh

    pattern = getattr(lsh, form)(case.window)
    layer = lsh.LSHAttention(case.heads, pattern=pattern, buckets=case.buckets, rounds=case.rounds).build(case.width)
    return layer, lambda x: layer(x, Context())[0]


def plain_alone(case: Case) -> tuple[nn.Module, Attend]:
    """One layer of torch's fused attention."""
    block = Block(case.width, case.heads)
    return block, block.attend


def reformer_pytorch_alone(case: Case) -> tuple[nn.Module, Attend]:
    """One layer of reformer-pytorch's LSH attention."""
    from reformer_pytorch import LSHSelfAttention

    layer = LSHSelfAttention(
        case.width, case.heads, case.window, case.rounds, causal=True, attn_chunks=case.heads, full_attn_thres=0
    )
    return layer, layer


def transformers_alone(case: Case) -> tuple[nn.Module, Attend]:
    """One layer of transformers' LSH attention, with its output projection."""
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    layer, out = LSHSelfAttention(_config(case)), nn.Linear(case.width, case.width, bias=False)
    return nn.ModuleList([layer, out]), lambda x: out(layer(x).hidden_states)


LSH = "regard, LSH"
CHUNKS = "regard, LSH in chunks"
FULL = "regard, full fused"
PLAIN = "torch, full fused"
REFORMER_PYTORCH = "reformer-pytorch"
TRANSFORMERS = "transformers"

MODELS: Mapping[str, Callable[[Case], tuple[nn.Module, Loss]]] = {
    LSH: ours,
    CHUNKS: lambda case: ours(case, "Chunks"),
    FULL: ours_full,
    PLAIN: plain,
    REFORMER_PYTORCH: reformer_pytorch,
    TRANSFORMERS: transformers,
}
LAYERS: Mapping[str, Callable[[Case], tuple[nn.Module, Attend]]] = {
    LSH: ours_alone,
    CHUNKS: lambda case: ours_alone(case, "Chunks"),
    PLAIN: plain_alone,
    REFORMER_PYTORCH: reformer_pytorch_alone,
    TRANSFORMERS: transformers_alone,
}


def work(case: Case) -> Callable[[], None]:
    """What is timed: a training step, or the forward and backward pass of a layer."""
    if case.work == "attention":
        layer, attend = LAYERS[case.who](case)
        layer.train()
        x, gradient = torch.randn(2, 1, case.length, case.width)

        def forward_backward() -> None:
            attend(x.requires_grad_()).backward(gradient)

        return forward_backward
    model, loss = MODELS[case.who](case)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    text = torch.randint(BYTES, (1, case.length + 1))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(text[:, :-1], text[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def memory(what: Literal["VmHWM", "VmRSS"]) -> int:
    """Peak (VmHWM) or current (VmRSS) bytes of this process; unlike getrusage, without those of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))


def hold(limit: int) -> None:
    """Limit memory to this and what libraries map; the system kills this process first if memory runs out."""
    resource.setrlimit(resource.RLIMIT_AS, (limit + _MAPPED, limit + _MAPPED))
    Path("/proc/self/oom_score_adj").write_text("1000")


def main(words: list[str]) -> int:
    """Repeat the work `steps` times or for twenty seconds; the first time does not count if there is another."""
    case = Case(**json.loads(words[0]))
    if len(words) > 1:
        hold(int(words[1]))
    torch.set_num_threads(case.threads)
    torch.manual_seed(case.seed)
    run = work(case)
    before, times = memory("VmRSS"), []
    while len(times) < case.steps and sum(times) < ENOUGH:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    print(json.dumps({"seconds": median(times[1:] or times), "before": before, "peak": memory("VmHWM")}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
