"""What both programs say of tensors that stay in RAM; stage_model.py explains the variables."""

from ...plan.problem import CostGraph
from ..program import Program
from .stage_columns import Columns


def add_commits(
    graph: CostGraph, program: Program, starts: Columns, ram_bytes: int, value_per_us: float
) -> Columns:
    """Add y_k <= s_i for the kept nodes that a commit may write. Return the y_k by node.

    `starts`: the s_i by tensor. All tensors that are in RAM when the step begins must fit.
    """
    sizes = [graph.nodes[i].bytes for i in starts]
    program.knapsack(list(starts.values()), sizes, ram_bytes)
    commits: Columns = {}
    for k, i in graph.may_commit.items():
        node = graph.nodes[k]
        value = node.page_out_uj + value_per_us * node.page_out_us
        commits[k] = program.number(value / graph.commit_every, 0.0, 1.0)
        program.row([(commits[k], 1.0), (starts[i], -1.0)], upper=0.0)
    return commits
