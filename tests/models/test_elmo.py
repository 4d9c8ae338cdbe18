"""ELMo as a bidirectional language model."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InputError
from regard.layers.character_cnn import CharacterCNN
from regard.layers.embedding import Embed
from regard.models import zoo
from regard.models.model import Model, Network
from regard.schema import from_dict, to_dict

SMALL = CharacterCNN(12, 4, filters=((1, 8), (2, 8), (3, 8)), highways=1, characters=6)
WORDS = 20


def tiny(embed: CharacterCNN | Embed = SMALL, clip: float | None = 3.0) -> Network:
    torch.manual_seed(0)
    return zoo.elmo(width=32, inner=48, embed=embed, clip=clip, dropout=0.0).build(WORDS)


def batch(characters: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Texts that count upwards from anywhere, so that a word determines both its neighbours."""
    draw = torch.Generator().manual_seed(1)
    starts = torch.randint(WORDS, (16, 1), generator=draw)
    words = (starts + torch.arange(9)) % WORDS
    padding = torch.arange(9) < torch.randint(3, 10, (16, 1), generator=draw)
    targets = torch.stack([words.roll(-1, 1), words.roll(1, 1)], dim=-1)
    targets[:, 0, 1] = -100
    targets[~padding] = -100
    targets[torch.arange(16), padding.sum(1) - 1, 0] = -100
    table = torch.randint(1, 12, (WORDS, 6), generator=draw)
    return {"ids": table[words] if characters else words, "padding": padding}, targets


@pytest.mark.parametrize(("size", "millions"), [("small", 13.6), ("medium", 28.0), ("original", 93.6)])
def test_sizes_are_the_published_ones(size: str, millions: float):
    with torch.device("meta"):
        network = zoo.elmo(size).build(1)
    readout = sum(p.numel() for p in network.readout.parameters())
    count = sum(p.numel() for p in network.parameters()) - readout
    # The published count leaves out the second bias that torch's cells have.
    spare = sum(p.numel() for name, p in network.named_parameters() if "bias_hh" in name)
    assert round((count - spare) / 1e6, 1) == millions


@pytest.mark.parametrize("embed", [SMALL, Embed()])
@pytest.mark.parametrize("clip", [3.0, None])
def test_training_fits_both_neighbours_of_each_word(embed: CharacterCNN | Embed, clip: float | None):
    network = tiny(embed, clip)
    inputs, targets = batch(isinstance(embed, CharacterCNN))
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    count = int((targets >= 0).sum())
    first = float(network.loss(inputs, targets).detach()) / count
    for _ in range(60):
        optimizer.zero_grad()
        loss = network.loss(inputs, targets) / count
        loss.backward()
        optimizer.step()
    assert first > 2.0
    assert float(loss.detach()) < 0.3
    logits = network(**inputs)
    assert logits.shape == (16, 9, 2, WORDS)
    right = logits.argmax(-1) == targets
    assert right[targets >= 0].float().mean() > 0.95


def test_neither_direction_sees_its_target():
    network = tiny().eval()
    inputs, _ = batch(True)
    ids = inputs["ids"][:1]
    changed = ids.clone()
    changed[0, 4] = 12 - changed[0, 4]
    with torch.no_grad():
        before, after = network(ids), network(changed)
    assert before[0, :4, 0].equal(after[0, :4, 0])
    assert before[0, 5:, 1].equal(after[0, 5:, 1])
    assert not before[0, 5:, 0].allclose(after[0, 5:, 0])
    assert not before[0, :4, 1].allclose(after[0, :4, 1])


def test_its_description_survives_being_saved():
    model = zoo.elmo("small")
    assert from_dict(Model, to_dict(model), where="here") == model


def test_token_ids_instead_of_characters_are_refused():
    with pytest.raises(InputError, match="reads the 6 characters per word"):
        tiny()(torch.ones(2, 3, dtype=torch.long))
