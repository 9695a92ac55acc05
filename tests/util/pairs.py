"""Cases that hold each pair of two values of different parameters, in place of all combinations.

A fault of one parameter, or of two together, fails in one of them.
"""

import itertools

import pytest

WORLDS = ["session", "eager", "function"]


def rows_of_pairs(values):
    """Lists with one value of each parameter: each pair of values of two parameters is in one of them at least.

    Args:
      values: the values of each parameter, a list of lists.
    """
    numbers = [range(len(choices)) for choices in values]
    missing = {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(values)), 2)
        for a in numbers[i]
        for b in numbers[j]
    }
    found = []
    while missing:
        row = dict(min(missing))
        for i in range(len(values)):
            if i not in row:
                row[i] = max(numbers[i], key=lambda a, i=i: len(_pairs({**row, i: a}) & missing))
        missing -= _pairs(row)
        found.append([values[i][row[i]] for i in range(len(values))])
    return found


def _pairs(row):
    return set(itertools.combinations(sorted(row.items()), 2))


def pairwise(**values):
    """Parametrizes a test with pairs: @pairwise(world=WORLDS, parts=[1, 3], combiner=["sum", "mean"])."""
    indirect = [name for name in values if name == "world"]
    rows = rows_of_pairs([list(choices) for choices in values.values()])
    return pytest.mark.parametrize(list(values), rows, indirect=indirect)
