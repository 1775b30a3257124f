"""Leave out the modes that a plan does not use."""

from dataclasses import replace

from ..plan.plan import Plan
from ..plan.problem import Problem


def with_used_modes(problem: Problem, plan: Plan) -> tuple[Problem, Plan]:
    """Return the problem without the modes that `plan` does not use, and the same plan of it.

    The modes that the plan uses get the numbers from 1, in their order.
    """
    if not problem.graph.has_modes:
        return problem, plan
    computes = [statement for statement in plan.statements if statement.op == "compute"]
    used: dict[str, set[int]] = {}
    for statement in computes:
        used.setdefault(statement.node, set()).add(statement.mode)
    number = {(node.name, 0): 0 for node in problem.graph.nodes}
    nodes = []
    for node in problem.graph.nodes:
        mine = sorted(used.get(node.name, set()) - {0})
        number |= {(node.name, mode): i + 1 for i, mode in enumerate(mine)}
        nodes.append(replace(node, modes=tuple(node.mode(mode) for mode in mine)))
    streaming = problem.streaming
    if streaming is not None:
        nests = {
            (name, number[name, mode]): nest
            for (name, mode), nest in streaming.nests.items()
            if (name, mode) in number
        }
        streaming = replace(streaming, nests=nests)
    statements = (replace(it, mode=number[it.node, it.mode]) for it in plan.statements)
    graph = replace(problem.graph, nodes=tuple(nodes))
    smaller = replace(problem, graph=graph, streaming=streaming)
    return smaller, replace(plan, statements=tuple(statements), problem=smaller)
