"""Encode a forward program: the plan of an inference, next to that of a training step."""

from collections.abc import Mapping
from dataclasses import replace

from ..graph.cuts import Cut
from ..graph.graph import Graph
from ..plan.plan import Plan
from .encode import QUEUE_CAPACITY, Nests, encode_model
from .layout import model_of_forward
from .meta import names_of
from .schedule import Schedule


def with_forward(
    schedule: Schedule,
    graph: Graph,
    plan: Plan,
    queue_capacity: int = QUEUE_CAPACITY,
    cuts: Mapping[str, Cut] | None = None,
    nests: Nests | None = None,
) -> Schedule:
    """Return the schedule with a forward program: a plan of `graph` (`inference.forward_graph`).

    To run between steps, the plan needs the initial offsets of the training plan, and one for its
    own data. Raises PoetError if the plan breaks a rule.
    """
    plan = replace(plan, commit_every=schedule.header.commit_every)
    model = model_of_forward(schedule.model, graph, cuts or {})
    forward = encode_model(model, names_of(graph), plan, None, queue_capacity, nests=nests)
    meta = {**schedule.meta, "forward": forward.meta}
    return replace(schedule, meta=meta, forward_part=forward.model_part + forward.plan_part)
