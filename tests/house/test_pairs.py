"""pairs.py: the cases hold every pair, and are fewer than all combinations."""

import itertools

import pytest
from pairs import rows_of_pairs


@pytest.mark.parametrize(
    "sizes, at_most", [((2,) * 3, 6), ((3, 2, 2, 6), 21), ((3, 2, 3, 2, 2), 12), ((4, 2, 5), 20)]
)
def test_each_pair_of_values_is_in_a_row(sizes, at_most):
    values = [[f"{i}{a}" for a in range(size)] for i, size in enumerate(sizes)]
    rows = rows_of_pairs(values)
    for one, other in itertools.combinations(values, 2):
        for pair in itertools.product(one, other):
            assert any(set(pair) <= set(row) for row in rows), pair
    assert all(len(row) == len(sizes) for row in rows) and len(rows) <= at_most
