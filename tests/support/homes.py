"""Plans by hand, changed so that tensors stay in RAM from step to step."""

from collections.abc import Collection
from dataclasses import replace
from random import Random

from poet_host.graph.graph import Graph
from poet_host.plan.plan import Plan


def staying(plan: Plan, graph: Graph, names: Collection[str], every: int) -> Plan:
    """Keep these tensors where the plan pages them in, and commit every so many steps."""
    ends = {node.updates: node.name for node in graph if node.updates}
    left_out = [("page_in", name) for name in names]
    left_out += [("page_out", ends[name]) for name in names if name in ends]
    homes = tuple(
        (it.node, it.offset)
        for it in plan.statements
        if it.op == "page_in" and it.node in names and it.offset is not None
    )
    statements = tuple(it for it in plan.statements if (it.op, it.node) not in left_out)
    return replace(plan, statements=statements, initial_offsets=homes, commit_every=every)


def some_staying(plan: Plan, graph: Graph, rng: Random) -> Plan:
    """Keep about half of what the plan pages in, and commit every third step."""
    paged = [it.node for it in plan.statements if it.op == "page_in"]
    return staying(plan, graph, [name for name in paged if rng.random() < 0.5], 3)
