"""A tokenizer of few tokens, in which a text has many tokenizations, and networks of the zoo over its vocabulary."""

from __future__ import annotations

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models

from regard.data.tokenize.tokenizer import SPECIALS, Tokenizer
from regard.layers.contract import Context, Source
from regard.models.generator import Generator
from regard.models.model import Network
from tests.laws.zoo import GENERATORS

PIECES = (" ", "a", "b", ".", " a", " b", "ab", " ab")
MERGES = [(" ", "a"), (" ", "b"), ("a", "b"), (" a", "b")]
END = 2


def tiny_tokenizer() -> Tokenizer:
    """BPE over three characters and the space: "ab" is one token, or two."""
    vocabulary = {token: number for number, token in enumerate((*SPECIALS, *PIECES))}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, MERGES, unk_token="<unk>"))
    library.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    library.decoder = decoders.Fuse()
    return Tokenizer(library)


def tiny_network(name: str, seed: int = 0) -> Network:
    """A network of the zoo over the tiny vocabulary, with random weights and a likely end."""
    torch.manual_seed(seed)
    network = GENERATORS[name].build(len(SPECIALS) + len(PIECES))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return network.eval()


def source_of(network: Generator, seed: int = 5) -> Source | None:
    """The encoded source of one sentence."""
    if network.shape == "decoder":
        return None
    return network.encode_source(torch.randint(5, 13, (1, 6), generator=torch.Generator().manual_seed(seed)))


def next_values(network: Generator, source: Source | None, prompt: list[int], tokens: list[int]) -> list[float]:
    """The log-probabilities of the next token, without a KV cache."""
    states, _ = network.decode(torch.tensor([prompt + tokens]), Context(source=source))
    return network.log_probabilities(network.readout(states[0, -1:]).float())[0].tolist()
