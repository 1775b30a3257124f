"""Change the optimiser's rates in a schedule. The plan stays the same."""

from collections.abc import Mapping
from dataclasses import replace

from .. import isa
from ..errors import BadInput
from ..graph.graph import Node
from ..graph.optimisers import Sgd
from .layout import model_of_graph
from .model import model_bytes, read_model, with_crc
from .schedule import Schedule


def with_rates(schedule: Schedule, **rates: float | None) -> Schedule:
    """Return the schedule with another `learning_rate`, `momentum` or `weight_decay`.

    If a rate is None, the schedule keeps its rate. Raises BadInput for a rate that the schedule was
    solved without: momentum and weight decay may need tensors that the plan does not have.
    """
    given = {name: rate for name, rate in rates.items() if rate is not None}
    if not given:
        return schedule
    Sgd(**{"learning_rate": 0.0, **given})  # checks the numbers
    graph = schedule.graph
    used: set[str] = set()
    nodes = tuple(_changed(node, given, used) for node in graph)
    for name in given:
        if name not in used:
            option = "--" + name.replace("_", "-")
            raise BadInput(
                f"the schedule of {graph.name} was solved without {name.replace('_', ' ')}, so "
                f"{option} cannot change it: solve again with {option}"
            )
    part = model_bytes(model_of_graph(replace(graph, nodes=nodes)))
    size = isa.record_size("poet_plan_header")
    header = isa.unpack("poet_plan_header", schedule.plan_part[:size])
    header["model_crc"] = read_model(part, "schedule").crc
    plan_part = with_crc(isa.pack("poet_plan_header", **header) + schedule.plan_part[size:])
    options = {**(schedule.meta.get("options") or {}), **given}
    return replace(
        schedule, model_part=part, plan_part=plan_part, meta={**schedule.meta, "options": options}
    )


def _changed(node: Node, given: Mapping[str, float], used: set[str]) -> Node:
    """Return the node with the rates in `given`. Add the names of its changed rates to `used`."""
    mine = [name for name in given if name in _rates_of(node)]
    used.update(mine)
    return replace(node, attrs={**node.attrs, **{name: given[name] for name in mine}})


def _rates_of(node: Node) -> tuple[str, ...]:
    """Return the names of the rates that a node uses (see kernels/sink.c, kernels/update.c)."""
    decays = bool(node.attrs.get("weight_decay"))
    if node.sink == "sgd":
        return ("learning_rate", "weight_decay")
    if node.sink == "momentum":
        return ("momentum", "weight_decay") if decays else ("momentum",)
    if node.op in ("momentum_step", "adam_step"):
        return ("learning_rate",)
    if node.op in ("average", "average_square"):
        return ("weight_decay",) if decays else ()
    return ()
