"""Tables of which a step renews only some rows (FORMAT.md, "Kept slabs").

Plain SGD changes only rows that tokens select. A board keeps each slab of which the tokens of three
steps have selected no row. Which slabs these are is not known before, so costs are an upper bound:
each token of these steps selects a slab of its own.
"""

from .. import isa
from .operands import Operator

STEPS = isa.constants()["POET_SLOTS"]  # whose tokens decide which slabs a step renews
ROWS = "k"  # the axis of the rows of a table


def renews_some_rows(operator: Operator) -> bool:
    """Return whether the operator changes only rows of a table that tokens select."""
    is_plain = operator.sink == "sgd" and not operator.attrs.get("weight_decay")
    return operator.kernel == "embedding_grad" and is_plain


def most_renewed(operator: Operator, rows: int, table_slabs: int) -> int:
    """Return the most rows that a step renews, if slabs have `rows` rows.

    `table_slabs`: number of slabs of which the board knows whether it must renew them. The result
    is 0 if the operator renews all rows.
    """
    count, slabs = -(-operator.size(ROWS) // rows), STEPS * operator.size("n")
    can = renews_some_rows(operator) and slabs < count <= table_slabs
    return slabs * rows if can else 0
