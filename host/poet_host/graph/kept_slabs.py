"""Tables of which a step uses only some rows (FORMAT.md, "Kept slabs").

Plain SGD changes only rows that tokens select. A board keeps each slab of which the tokens of three
steps have selected no row, and an embedding reads only slabs of which its tokens select rows. Which
slabs these are is not known before, so costs are an upper bound: each token selects a slab of its
own.
"""

from .. import isa
from .operands import Operator

STEPS = isa.constants()["POET_SLOTS"]  # whose tokens decide which slabs a step renews
ROWS = "k"  # the axis of the rows of a table


def renews_some_rows(operator: Operator) -> bool:
    """Return whether the operator changes only rows of a table that tokens select."""
    is_plain = operator.sink == "sgd" and not operator.attrs.get("weight_decay")
    return operator.kernel == "embedding_grad" and is_plain


def table_of(operator: Operator) -> int:
    """Return the operand of an embedding, or of its gradient, that is the table."""
    return 1 if operator.kernel == "embedding" else operator.input_count


def most_used(operator: Operator, rows: int, table_slabs: int) -> int:
    """Return the most rows of a table that a step uses, if slabs have `rows` rows.

    `table_slabs`: number of slabs of which the board knows whether it must renew them; 0: the board
    uses all rows. The result is 0 if the operator uses all rows.
    """
    count, tokens = -(-operator.size(ROWS) // rows), operator.size("n")
    if operator.kernel == "embedding":
        slabs, most = tokens + 1, count if table_slabs else 0  # the first slab is always read
    else:
        slabs, most = STEPS * tokens, table_slabs if renews_some_rows(operator) else 0
    return slabs * rows if slabs < count <= most else 0
