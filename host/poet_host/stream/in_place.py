"""Add to a problem the modes in which an operator overwrites an input that is needed later."""

from dataclasses import replace

from ..graph.graph import Graph
from ..graph.in_place import choices
from ..plan.problem import Problem

LEAST_RAM_SHARE = 0.2
"""A tensor that may be overwritten as a choice needs at least this share of RAM. Plans gain from
modes in place where RAM holds few such tensors, and each mode makes the search slower."""


def with_modes_in_place(problem: Problem, graph: Graph) -> Problem:
    """Return the problem with modes in which operators of `graph` overwrite an input.

    A node that overwrites no input in mode 0 has one such mode for each large input that its kernel
    may overwrite. The mode computes the node as mode 0 does, at the same costs. If mode 0 is a
    nest, the output and the input must be cut into the same parts.
    """
    costs, streaming = problem.graph, problem.streaming
    nests = dict(streaming.nests) if streaming else {}
    cuts = streaming.cuts if streaming else {}
    nodes = list(costs.nodes)
    for name, inputs in choices(graph).items():
        i = costs.index[name]
        if nodes[i].bytes < problem.ram_bytes * LEAST_RAM_SHARE:
            continue
        nest = nests.get((name, 0))
        for over in inputs:
            if nest is None or cuts.get(over) == cuts.get(name):
                mode = replace(nodes[i].mode(0), overwrites=costs.index[over])
                nodes[i] = replace(nodes[i], modes=(*nodes[i].modes, mode))
                if nest is not None:
                    nests[name, len(nodes[i].modes)] = nest
    streaming = replace(streaming, nests=nests) if streaming else None
    return replace(problem, graph=costs.with_modes(nodes), streaming=streaming)
