"""The Pareto front of columns of costs."""

import numpy as np

from .nest_traffic import Array


def front(rows: Array) -> list[int]:
    """Return the columns of `rows` that no other column equals or beats in every row.

    Of equal columns, one is returned.
    """
    order = np.lexsort(rows[::-1])
    found: list[int] = []
    while len(order):
        left = rows[:, order]
        least = np.minimum.accumulate(left, axis=1)
        certain = np.ones(len(order), bool)
        certain[1:] = (left[1:, 1:] < least[1:, :-1]).any(axis=0)
        best = order[certain]
        found += [int(i) for i in best]
        rest = order[~certain]
        for i in best:
            if not len(rest):
                break
            rest = rest[~(rows[:, rest] >= rows[:, i, None]).all(axis=0)]
        order = rest
    return found
