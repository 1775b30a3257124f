"""A plan small enough to follow by hand, with every kind of statement, and a run of it."""

from poet_host.plan.plan import Statement
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.run.run import Run, Step, Traced

GRAPH = CostGraph(
    "small",
    (
        CostNode("w", (), 8, page_in_us=4.0, page_in_cpu_us=1.0, page_out_us=5.0, stored=True),
        CostNode("a", (), 16, time_us=10.0, page_in_us=6.0, page_out_us=7.0, page_out_cpu_us=2.0),
        CostNode("b", (0, 1), 16, time_us=20.0, workspace_bytes=4),
        CostNode("w2", (0, 1, 2), 8, time_us=3.0, page_out_us=5.0, keep=True, overwrites=0),
    ),
)
PLAN = (
    Statement("compute", "a", 0),
    Statement("page_in", "w", 16),
    Statement("page_out", "a"),
    Statement("compute", "b", 24, workspace_offset=40),
    Statement("free", "a"),
    Statement("compute", "a", 0),
    Statement("compute", "w2", 16),
    Statement("page_out", "w2"),
)
SPANS_US = ((0, 11), (12, 17), (17, 25), (18, 40), (40, 41), (41, 50), (50, 54), (54, 60))


def run_of(spans_us: tuple[tuple[float, float], ...] = SPANS_US) -> Run:
    trace = tuple(
        Traced(one.op, one.node, False, True, end - begin, number, begin, end)
        for number, (one, (begin, end)) in enumerate(zip(PLAN, spans_us, strict=False))
    )
    step = Step(1, 0.5, 63.0, 46.0, 19.0, 2.0, 0.0, 5.0, 13.0, 0.0, 44)
    return Run("small", "native", "data", 0, 1, 7, 9, "done", (step,), trace, 1.0, 2.0, weights={})
