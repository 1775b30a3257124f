"""Tensors that are in RAM when a step begins: their homes, and slots for steps without a commit."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from ..errors import BadInput
from ..graph.graph import Graph
from ..plan.nests import Nest
from ..plan.plan import Plan
from .layout import numbered
from .model import Model
from .nests import Streamed, with_nests

Nests = Mapping[tuple[str, int], Nest]  # by node and number of the mode
MOST_STEPS = 0xFFFF  # from one commit to the next


def interval_of(plan: Plan) -> int:
    """Return the number of steps from one commit to the next. Raises BadInput if too large."""
    every = plan.commit_every or 1
    check_interval(every)
    return every


def check_interval(every: int) -> None:
    """Raise BadInput if boards cannot count so many steps from one commit to the next."""
    if every > MOST_STEPS:
        raise BadInput(
            f"a board commits after at most {MOST_STEPS:,} steps, not {every:,}: choose a smaller "
            "--commit-every"
        )


def writes_uncommitted(graph: Graph, plan: Plan, nests: Nests) -> bool:
    """Return whether a step can write new values to storage without a commit."""
    renewals = {node.name for node in graph if node.updates is not None}
    statements = with_nests(plan.statements, nests, [node.name for node in numbered(graph)])
    written = {
        statement.own if isinstance(statement, Streamed) else statement.node
        for statement in statements
        if statement.op == "page_out"
        or (isinstance(statement, Streamed) and statement.nest.operands[-1] is not None)
    }
    return (plan.commit_every or 1) > 1 and bool(renewals & written)


def homes_of(model: Model, names: Sequence[str], plan: Plan) -> dict[int, int]:
    """Return the offset of each stored tensor that is in RAM at the start of a step, by number.

    Without storage, these are all stored tensors.
    """
    known, found = dict(plan.initial_offsets), {}
    if unknown := known.keys() - set(names[: model.stored_count]):
        raise BadInput(f"the plan lets {min(unknown)} stay, which is not a stored tensor")
    if not (model.storage or known):
        ends = accumulate((t.size_bytes for t in model.tensors[: model.stored_count]), initial=0)
        return dict(enumerate(list(ends)[:-1]))
    for number, name in enumerate(names[: model.stored_count]):
        if name in known or not model.storage:
            offset = known.get(name)
            if offset is None:
                raise BadInput(
                    f"the plan has no initial offset of {name}: solve without --unplaced"
                )
            found[number] = offset
    return found
