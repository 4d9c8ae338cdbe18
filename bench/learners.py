"""Peers that train, each in a process of its own and in its own environment, where there is no regard.

`python learners.py NAME FILE THREADS` reads sizes and batches from a file of torch, then one request per line of
standard input, and writes one reply per line, as JSON.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Sizes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = dict[str, Any]
Learner = tuple[nn.Module, Callable[[Batch], Tensor]]
"""A model, and the mean loss over a batch's targets."""


def by_logits(sizes: Sizes, model: nn.Module, logits: Callable[[Batch], Tensor]) -> Learner:
    """A model whose loss is plain cross entropy of all logits."""

    def loss(batch: Batch) -> Tensor:
        scores = logits(batch).flatten(0, 1)
        return F.cross_entropy(scores, batch["targets"].flatten(), label_smoothing=sizes.smoothing)

    return model, loss


def marian(sizes: Sizes) -> Learner:
    """Transformers' Marian: the Transformer of the paper."""
    from transformers import MarianConfig, MarianMTModel

    own: dict[str, Any] = {
        "d_model": sizes.width, "activation_function": "relu", "scale_embedding": True, "dropout": sizes.dropout,
        "attention_dropout": 0.0, "activation_dropout": 0.0, "vocab_size": sizes.vocabulary, "bos_token_id": sizes.bos,
        "eos_token_id": sizes.eos, "pad_token_id": sizes.pad, "decoder_start_token_id": sizes.bos,
        "forced_eos_token_id": None,
    }  # fmt: skip
    for stack in ("encoder", "decoder"):
        own |= {
            f"{stack}_layers": sizes.depth,
            f"{stack}_attention_heads": sizes.heads,
            f"{stack}_ffn_dim": sizes.inner,
        }
    model = MarianMTModel(MarianConfig(**own))
    model.set_attn_implementation("sdpa")
    return by_logits(sizes, model, lambda batch: model(
        input_ids=batch["source"], attention_mask=batch["source"] != sizes.pad, decoder_input_ids=batch["ids"],
        use_cache=False,
    ).logits)  # fmt: skip


def x_transformer(sizes: Sizes) -> Learner:
    """x-transformers' encoder-decoder, with the fused kernel."""
    from x_transformers import XTransformer

    own: dict[str, Any] = {"dim": sizes.width, "tie_token_emb": True}
    for stack in ("enc", "dec"):
        own |= {f"{stack}_num_tokens": sizes.vocabulary, f"{stack}_depth": sizes.depth, f"{stack}_heads": sizes.heads,
                f"{stack}_max_seq_len": 256, f"{stack}_attn_flash": True, f"{stack}_ff_dropout": sizes.dropout,
                f"{stack}_ff_mult": sizes.inner // sizes.width, f"{stack}_attn_dim_head": sizes.width // sizes.heads,
                f"{stack}_emb_dropout": sizes.dropout}  # fmt: skip
    model = XTransformer(**own)

    def logits(batch: Batch) -> Tensor:
        mask = batch["source"] != sizes.pad
        states = model.encoder(batch["source"], mask=mask, return_embeddings=True)
        found: Tensor = model.decoder.net(batch["ids"], context=states, context_mask=mask)
        return found

    return by_logits(sizes, model, logits)


def torch_transformer(sizes: Sizes) -> Learner:
    """Torch's own nn.Transformer between one embedding, sinusoids and a tied readout."""
    model = nn.Transformer(
        sizes.width, sizes.heads, sizes.depth, sizes.depth, sizes.inner, sizes.dropout, batch_first=True
    )
    model.embed, model.drop = nn.Embedding(sizes.vocabulary, sizes.width), nn.Dropout(sizes.dropout)
    nn.init.normal_(model.embed.weight, std=sizes.width**-0.5)
    angles = torch.arange(1024)[:, None] * 1e4 ** (-torch.arange(0, sizes.width, 2) / sizes.width)
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)

    def embedded(ids: Tensor) -> Tensor:
        found: Tensor = model.drop(model.embed(ids) * sizes.width**0.5 + table[: ids.shape[1]])
        return found

    def logits(batch: Batch) -> Tensor:
        padding, ids = batch["source"] == sizes.pad, batch["ids"]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        states = model(embedded(batch["source"]), embedded(ids), tgt_mask=mask, tgt_is_causal=True,
                       src_key_padding_mask=padding, memory_key_padding_mask=padding)  # fmt: skip
        return F.linear(states, model.embed.weight)

    return by_logits(sizes, model, logits)


class Words(list[str]):
    """A vocabulary for Joey NMT's models with our token ids; its own fixes those of <pad> and the like."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(map(str, range(sizes.vocabulary)))
        self.pad_index, self.bos_index, self.eos_index = sizes.pad, sizes.bos, sizes.eos
        self.unk_index, self.sep_index, self.specials, self.lang_tags = sizes.unk, None, [], []


def joey(sizes: Sizes) -> Learner:
    """Joey NMT's Transformer, with its own loss and batches."""
    from joeynmt.batch import Batch as JoeyBatch
    from joeynmt.model import build_model

    stack = {"type": "transformer", "num_layers": sizes.depth, "num_heads": sizes.heads, "hidden_size": sizes.width,
             "ff_size": sizes.inner, "dropout": sizes.dropout,
             "embeddings": {"embedding_dim": sizes.width, "scale": True, "dropout": sizes.dropout}}  # fmt: skip
    words = Words(sizes)
    model = build_model(
        {"tied_embeddings": True, "tied_softmax": True, "encoder": stack, "decoder": stack}, words, words
    )
    model.loss_function = ("crossentropy", sizes.smoothing)

    def loss(batch: Batch) -> Tensor:
        source, targets = batch["source"], batch["targets"]
        given = JoeyBatch(
            src=source, src_length=(source != sizes.pad).sum(1), src_prompt_mask=None,
            trg=torch.cat([batch["ids"][:, :1], targets.masked_fill(targets < 0, sizes.pad)], dim=1),
            trg_prompt_mask=None, indices=torch.arange(len(source)), device=source.device, pad_index=sizes.pad,
            eos_index=sizes.eos,
        )  # fmt: skip
        given.sort_by_src_length()
        found: Tensor = given.normalize(model(return_type="loss", **vars(given))[0], "tokens")
        return found

    return model, loss


def gpt2(sizes: Sizes) -> Learner:
    """Transformers' GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), sizes.dropout)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=sizes.vocabulary, n_positions=1024, n_embd=sizes.width, n_layer=sizes.depth, n_head=sizes.heads,
        bos_token_id=None, eos_token_id=None, **dropout,
    ))  # fmt: skip
    model.set_attn_implementation("sdpa")
    return by_logits(sizes, model, lambda batch: model(input_ids=batch["ids"], use_cache=False).logits)


def litgpt(sizes: Sizes) -> Learner:
    """Litgpt's GPT with GPT-2's sizes: it has rotary positions instead of learned ones, and no dropout."""
    from litgpt import GPT, Config

    model = GPT(Config(
        block_size=1024, n_layer=sizes.depth, n_head=sizes.heads, n_embd=sizes.width, vocab_size=sizes.vocabulary,
        padded_vocab_size=sizes.vocabulary, rotary_percentage=1.0, parallel_residual=False, bias=True,
        lm_head_bias=False, norm_class_name="LayerNorm", mlp_class_name="GptNeoxMLP", intermediate_size=4 * sizes.width,
        gelu_approximate="tanh",
    ))  # fmt: skip
    model.lm_head.weight = model.transformer.wte.weight
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.02)
    return by_logits(sizes, model, lambda batch: model(batch["ids"]))


class Block(nn.Module):
    """A layer of the plain GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """BTD -> BTD."""
        parts = self.query_key_value(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


def plain_gpt(sizes: Sizes) -> Learner:
    """A GPT-2 as nanoGPT writes it: plain modules, the fused kernel, tied weights."""
    model = nn.Module()
    model.tokens, model.positions = nn.Embedding(sizes.vocabulary, sizes.width), nn.Embedding(1024, sizes.width)
    model.blocks = nn.Sequential(*(Block(sizes.width, sizes.heads) for _ in range(sizes.depth)))
    model.norm = nn.LayerNorm(sizes.width)
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.02)

    def logits(batch: Batch) -> Tensor:
        ids = batch["ids"]
        x = model.tokens(ids) + model.positions.weight[: ids.shape[1]]
        return F.linear(model.norm(model.blocks(x)), model.tokens.weight)

    return by_logits(sizes, model, logits)


LEARNERS: dict[str, tuple[Callable[[Sizes], Learner] | None, Callable[[Sizes], Learner] | None]] = {
    "transformers": (marian, gpt2), "x-transformers": (x_transformer, None),
    "nn.Transformer": (torch_transformer, None), "Joey NMT": (joey, None),
    "litgpt": (None, litgpt), "plain": (None, plain_gpt),
}  # fmt: skip
"""By name: how each builds its encoder-decoder and its language model, if it has one."""


class Loop:
    """Logits, cross entropy, backward pass, clipping, AdamW: the loop that people write."""

    def __init__(self, learner: Learner, batches: list[Batch], learning_rate: float) -> None:
        (self.model, self.loss), self.batches = learner, itertools.cycle(batches)
        self.model.train()
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        groups = [{"params": [weight for weight in weights if (weight.dim() > 1) == large], "weight_decay": decay}
                  for large, decay in ((True, 0.01), (False, 0.0))]  # fmt: skip
        self.optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=True)

    def advance(self) -> tuple[float, int]:
        """Take one step; -> its loss and its tokens without padding."""
        batch = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item(), batch["tokens"]


def answer(advance: Callable[[], tuple[float, int]], facts: dict[str, Any]) -> None:
    """Answer requests until standard input ends; what else is printed goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        reply = facts
        if request["task"] == "train":
            begun, cpu = time.perf_counter(), time.process_time()
            done = [advance() for _ in range(request["steps"])]
            seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
            reply = {
                "seconds": seconds, "cpu_seconds": cpu, "tokens": sum(tokens for _, tokens in done),
                "answers": [f"{loss:.4f}" for loss, _ in done], "peak_memory": 1024 * int(peak[1] if peak else 0),
            }  # fmt: skip
        print(json.dumps(reply), file=out, flush=True)


def main(name: str, file: str, threads: str) -> None:
    """Build the learner of this name, and answer requests."""
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    given = torch.load(file, weights_only=True)
    sizes = Sizes(**given["sizes"])
    build = LEARNERS[name]["source" not in given["batches"][0]]
    assert build is not None
    loop = Loop(build(sizes), given["batches"], sizes.learning_rate)
    count = sum(weight.numel() for weight in {id(one): one for one in loop.model.parameters()}.values())
    answer(loop.advance, {"parameters": count, "torch": torch.__version__})


if __name__ == "__main__":
    main(*sys.argv[1:])
