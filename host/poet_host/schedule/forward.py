"""Encode a forward program: the plan of an inference, next to that of a training step."""

from collections.abc import Mapping
from dataclasses import replace

from ..graph.cuts import Cut
from ..graph.graph import Graph
from ..plan.costgraph import dump_cost_graph
from ..plan.plan import Plan
from ..plan.problem import CostGraph
from .decode import initial_offsets
from .encode import QUEUE_CAPACITY, Nests, encode_model
from .layout import model_of_forward
from .meta import names_of
from .model import model_bytes, part_crc
from .schedule import Schedule, plan_of


def with_forward(
    schedule: Schedule,
    graph: Graph,
    plan: Plan,
    queue_capacity: int = QUEUE_CAPACITY,
    cuts: Mapping[str, Cut] | None = None,
    nests: Nests | None = None,
    *,
    has_homes: bool = True,
    costs: CostGraph | None = None,
) -> Schedule:
    """Return the schedule with a forward program: a plan of `graph` (`inference.forward_graph`).

    The plan has an initial offset for its own data. Tensors that stay in RAM during training are in
    their places, unless `has_homes` is False: then it cannot run between steps. `costs` of the plan
    are kept with it. Raises PoetError if the plan breaks a rule.
    """
    homes = (initial_offsets(schedule) if has_homes else {}) | dict(plan.initial_offsets)
    every = schedule.header.commit_every
    plan = replace(plan, initial_offsets=tuple(homes.items()), commit_every=every)
    model = model_of_forward(schedule.model, graph, cuts or {})
    if model.data_blocks > schedule.model.data_blocks:
        part = model_bytes(replace(schedule.model, data_blocks=model.data_blocks))
        schedule = replace(schedule, model_part=part, plan_part=plan_of(part, schedule))
        model = replace(model, trained_by=part_crc(part))
    about = {"costs": dump_cost_graph(costs)} if costs else {}
    forward = encode_model(model, names_of(graph), plan, about, queue_capacity, nests=nests)
    meta = {**schedule.meta, "forward": forward.meta}
    return replace(schedule, meta=meta, forward_part=forward.model_part + forward.plan_part)
