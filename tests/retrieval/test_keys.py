"""Tiles, products and their adjoint for both layouts, against plain indexing and matmul."""

import pytest
import torch

from recollect.retrieval.keys import ROWS, Keys, OwnKeys, SharedKeys, pad_rows
from tests.reference import dense_keys
from tests.retrieval.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_tile_is_float32_and_padded_with_zeros(case: Case) -> None:
    keys = case.build().keys
    before = 20 if case.tail == 0 else keys.num_items - 5  # with a tail, begin in the table
    start, stop = keys.num_items - before, keys.num_items + 10
    tile = keys.tile(start, stop)
    assert tile.dtype == torch.float32
    torch.testing.assert_close(
        tile[..., :before, : keys.width].double(), dense_keys(keys)[..., start:, :], rtol=0, atol=0
    )
    assert bool((tile[..., before:, :] == 0).all())
    assert bool((tile[..., keys.width :] == 0).all())


def test_a_whole_tile_of_float32_keys_is_not_copied() -> None:
    keys = torch.randn(300, 4)
    assert SharedKeys(keys).tile(10, 200).data_ptr() == keys[10:].data_ptr()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_and_weighted_sums_are_adjoint(case: Case) -> None:
    problem = case.build()
    tile = problem.keys.tile(3, 103)
    products = problem.keys.products(problem.queries, tile)
    dense = dense_keys(problem.keys)[..., 3:103, :]
    torch.testing.assert_close(products.double(), problem.queries.double() @ dense.mT, rtol=1e-5, atol=1e-5)
    weights = torch.rand(products.shape)
    summed = torch.ones_like(problem.queries)
    problem.keys.add_weighted_sum_(summed, weights, tile)
    adjoint = ((summed - 1) * problem.queries).sum()
    torch.testing.assert_close(adjoint, (products * weights).sum(), rtol=1e-5, atol=1e-3)


def test_products_of_a_shared_table_fill_the_buffer_they_are_given() -> None:
    keys, queries = SharedKeys(torch.randn(40, 5)), torch.randn(3, 3, 5)
    buffer = torch.full((1000,), torch.nan)
    products = keys.products(queries, keys.tile(0, 40), buffer)
    assert products.data_ptr() == buffer.data_ptr()
    torch.testing.assert_close(products, queries @ keys.keys.T)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_keys_at_positions(case: Case) -> None:
    problem = case.build()
    batch = problem.queries.shape[0]
    positions = torch.randint(case.items, (batch, 7))
    positions[:, 0] = problem.keys.num_items - 1
    dense = dense_keys(problem.keys).expand(batch, -1, -1)
    expected = dense.gather(1, positions.unsqueeze(-1).expand(-1, -1, dense.shape[2]))
    torch.testing.assert_close(problem.keys.at(positions).double(), expected, rtol=0, atol=0)


def test_both_layouts_are_keys() -> None:
    assert isinstance(SharedKeys(torch.zeros(2, 3)), Keys)
    assert isinstance(OwnKeys(torch.zeros(1, 2, 3)), Keys)


def test_a_block_of_own_keys_is_no_larger_than_the_history() -> None:
    assert [OwnKeys(torch.zeros(1, items, 2)).block for items in (0, 1, 100, 1000)] == [1, 1, 100, 256]


def test_rows_are_padded_with_zeros() -> None:
    rows = torch.ones(2, 3, 4)
    padded = pad_rows(rows)
    assert padded.shape == (2, ROWS, 4)
    assert torch.equal(padded[:, :3], rows)
    assert bool((padded[:, 3:] == 0).all())
    assert pad_rows(torch.ones(ROWS, 4)).shape == (ROWS, 4)


@pytest.mark.parametrize("width", [16, 21, 65])
@pytest.mark.parametrize("items", [40, 300])
def test_products_with_own_keys_do_not_depend_on_the_place_in_the_batch(width: int, items: int) -> None:
    keys, queries = torch.randn(1, items, width), torch.randn(1, 3, width)
    many = OwnKeys(keys.repeat(32, 1, 1))
    products = many.products(queries.repeat(32, 1, 1), many.tile(0, items))
    assert all(torch.equal(product, products[0]) for product in products)
