"""Positions on a grid: a row and a column each, any length, and more rows for longer texts."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.embedding import Embed
from regard.layers.positions import Axial, Learned


@pytest.mark.parametrize(("widths", "expected"), [(None, (4, 5)), ((2, 7), (2, 7))])
def test_a_position_is_its_row_beside_its_column(widths: tuple[int, int] | None, expected: tuple[int, int]):
    layer = Axial((3, 5), widths).build(9)
    assert (layer.rows.shape, layer.columns.shape) == ((3, expected[0]), (5, expected[1]))
    for length in (1, 4, 5, 7, 15):  # whether it fills rows or not
        found = layer.table(torch.arange(length))
        for place in range(length):
            row, column = divmod(place, 5)
            assert torch.equal(found[place], torch.cat([layer.rows[row], layer.columns[column]]))


def test_positions_may_differ_by_row_and_start_anywhere():
    layer = Axial((3, 5)).build(8)
    positions = torch.tensor([[0, 1, 2], [9, 10, 11]])
    x = torch.randn(2, 3, 8)
    assert torch.equal(layer(x, positions)[1], x[1] + layer.table(torch.arange(15))[9:12])


def test_every_vector_learns_from_the_positions_that_have_it():
    layer = Axial((3, 5)).build(8)
    layer.table(torch.arange(7)).sum().backward()
    assert layer.rows.grad[:, 0].tolist() == [5, 2, 0]
    assert layer.columns.grad[:, 0].tolist() == [2, 2, 1, 1, 1]


@pytest.mark.parametrize("scaled", [False, True])
def test_an_embedding_with_axial_positions_reads_as_far_as_they_go(scaled: bool):
    embed = Embed(Axial((3, 5)), scaled=scaled).build(8, 20)
    assert embed.max_positions == 15
    ids = torch.randint(20, (2, 15))
    factor = 8**0.5 if scaled else 1.0
    assert torch.allclose(embed(ids, Context()), embed.table(ids) * factor + embed.position.table(torch.arange(15)))
    with pytest.raises(InputError, match="16 tokens, this model reads 15"):
        embed(torch.randint(20, (2, 16)), Context())


@pytest.mark.parametrize(
    ("longest", "shape"), [(15, (3, 5)), (16, (4, 5)), (20, (4, 5)), (1_048_576, (209_716, 5))]
)  # fmt: skip
def test_a_grid_grows_by_whole_rows(longest: int, shape: tuple[int, int]):
    assert Axial((3, 5), (1, 7)).grown(longest) == Axial(shape, (1, 7))
    assert Learned(3).grown(longest) == Learned(longest)


@pytest.mark.parametrize(
    ("shape", "widths", "width", "said"),
    [((3, 0), None, 8, "shape of 1 or more"), ((3, 5), (0, 8), 8, "widths of 1 or more"),
     ((3, 5), (3, 4), 8, "width 8"), ((3, 5), None, 1, "width 1")],
)  # fmt: skip
def test_a_grid_that_makes_no_position_is_refused(shape, widths, width, said):
    with pytest.raises(InputError, match=said):
        Axial(shape, widths).build(width)
