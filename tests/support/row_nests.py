"""Nests that renew a table of 24 pieces of 2 rows, of which a step selects three rows."""

from poet_host.graph.cuts import Cut
from poet_host.plan.nests import Loop, Nest, NestedOperator, Ring
from support.kernel_cases import Case, make
from support.nests import operator_of

ROWS, WIDTH, TOKENS = 24, 70, 3
PAIRS = Cut(4 * WIDTH, (1, 1, ROWS), (1, 1, 2))  # 12 pieces of two blocks
HALVES = Cut(4, (1, ROWS, WIDTH), (1, 2, 40))  # 24 pieces of one block
N, C, K, K2 = Loop("n", 1), Loop("c", 40), Loop("k", 2), Loop("k", 4)


def nest(loops: tuple[Loop, ...], ring: Ring) -> Nest:
    return Nest(loops, (None, None, ring, ring))


NESTS = {
    "rows": (PAIRS, nest((K,), Ring(2, 1))),
    "terms": (PAIRS, nest((K, N), Ring(1, 1))),
    "columns last": (HALVES, nest((K, C, N), Ring(2, 2))),
    "columns first": (HALVES, nest((C, K, N), Ring(1, 2))),
    "two pieces": (PAIRS, nest((K2,), Ring(2, 1))),
}


def case(sink: str = "sgd", decay: float = 0.0) -> Case:
    sizes = {"n": TOKENS, "k": ROWS, "c": WIDTH}
    return make("embedding_grad", sizes, 5, sink=sink, decay=decay)


def nested(one: Case, cut: Cut, nest: Nest) -> NestedOperator:
    """The case as a nest, whole but for its table: other operands of its sink are not cut."""
    more = [None] * (len(one.inputs) - 3)
    operands = (*nest.operands[:3], *more, nest.operands[-1])
    cuts = (None, None, cut, *more, cut)
    return NestedOperator(operator_of(one), cuts, Nest(nest.loops, operands))
