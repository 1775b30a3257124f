"""Nodes with default costs, and plans of bare statements."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostNode, Problem
from poet_host.plan.verify import Totals, verify
from poet_host.solver.search import Task


def node_with(**defaults: Any) -> Callable[..., CostNode]:
    """A function (name, bytes, *positions of inputs, **fields) that makes nodes."""

    def node(name: str, size: int, *inputs: int, **fields: Any) -> CostNode:
        return CostNode(name, inputs, size, **(defaults | fields))

    return node


def plan_of(statements: Sequence[Statement], **more: Any) -> Plan:
    return Plan(**{"status": "feasible", "ram_bytes": 0, "statements": tuple(statements)} | more)


def totals(problem: Problem, statements: Sequence[Statement], placed: bool = False) -> Totals:
    """What the statements cost, if they are a plan of the problem."""
    return verify(problem, plan_of(statements), placed)


def task_of(problem: Problem) -> Task:
    """The task of the search, without offsets."""
    value_per_us, ram_bytes = problem.value_per_us, problem.ram_bytes
    return Task(problem, problem.counted, value_per_us, ram_bytes, True, True, 1, 0.0, inf)
