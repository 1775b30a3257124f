"""Plan an inference next to a training step, in the RAM of the step."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..baselines.registry import plan_by
from ..data.fitted import example
from ..errors import BadInput, PoetWarning
from ..graph.cuts import Cut
from ..graph.graph import Graph, Node
from ..graph.losses import loss_text
from ..graph.training_options import TrainingOptions
from ..graph.weights import start_values, weight_nodes
from ..onnx.importer import training
from ..onnx.model import read_bytes
from ..plan.keepall import kept_statements
from ..plan.parts import LawError
from ..plan.placed_plan import PLACEMENT_LIMIT_S, PlacedPlan, finish
from ..plan.placement import Placement, arrange, arrange_next_to, moved
from ..plan.plan import Plan, Statement
from ..plan.pricing import cost_graph
from ..plan.problem import CostGraph, CostNode, Problem
from ..reference.inference import (
    answer_shape,
    evaluation,
    forward_graph,
    is_own_data,
    logits,
    takes_any_number,
)
from ..schedule.forward import with_forward
from ..schedule.schedule import Schedule
from ..solver.settings import Settings
from ..stream.streaming import with_nests
from ..stream.used_modes import with_used_modes
from ..work import counting

SEARCH_LIMIT_S = 10.0  # of counted work
GAP = 0.05
_UNUSABLE_BYTES = 1 << 40  # more workspace than any board has


def with_inference(
    graph: Graph, plan: Plan, problem: Problem, encode: Callable[[Plan], Schedule]
) -> Schedule:
    """Return the schedule of a training plan, with a forward program.

    The inference runs in the RAM of the step. Tensors that stay in RAM keep their places; if these
    are in its way, both are placed again. If that fails, a program is made that finds nothing in
    RAM, or not even its data: `evaluate` runs it, but not between steps. If no plan is
    found, the schedule has no forward program, and a PoetWarning says why.
    """
    profile, problem = problem.profile, replace(problem, ram_bytes=plan.ram_bytes)
    assert profile is not None
    stays = {name: at for name, at in plan.initial_offsets if at is not None}
    inference = forward_graph(graph, one=_with_one_sample(graph))
    tries = [(inference, stays)]
    if problem.graph.storage:
        tries += [(inference, {})] if stays else []
        tries += [(forward_graph(graph, of_batch=True), {})]
    least_bytes = 0
    for inference, homes in tries:
        found = _planned(inference, problem, plan, homes)
        if isinstance(found, int):
            least_bytes = found
        else:
            plan, used, forward = found
            streaming = used.streaming
            cuts, nests = (streaming.cuts, streaming.nests) if streaming else ({}, {})
            return with_forward(
                encode(plan), inference, forward, profile.transfer_queue, cuts, nests,
                has_homes=bool(homes), costs=_as_stored(used.graph, inference),
            )  # fmt: skip
    why = f"it needs {least_bytes:,} bytes or more" if least_bytes else "the search ended first"
    warnings.warn(
        f"the schedule has no forward program: no plan of an inference was found that fits the "
        f"RAM of a step, {plan.ram_bytes:,} bytes ({why}). Boards train with it, but cannot "
        "evaluate. Solve with more --ram",
        PoetWarning, stacklevel=3,
    )  # fmt: skip
    return encode(plan)


def _with_one_sample(graph: Graph) -> Graph | None:
    """Return an imported model with a batch of one sample, if its operators mix samples.

    Return None if the graph itself does for one sample, or if the model needs its batch.
    """
    if not graph.origin or graph.batch == 1 or takes_any_number(graph, evaluation(graph)):
        return None
    length = None if graph.inputs else [*graph[graph.data].shape, None][1]
    options = TrainingOptions(loss=loss_text(graph), sequence_length=length)
    try:
        one, two = (
            training(read_bytes(graph.origin, graph.name), graph.name, replace(options, batch=size))
            for size in (1, 2)
        )
    except BadInput:
        return None
    read, own = (
        {name for node in evaluation(it) for name in node.inputs} & {n.name for n in it if n.stored}
        for it in (one, graph)
    )
    is_same = all(_is_same(one[name], graph) for name in read - {one.data})
    is_whole = all(name in read for name in own if graph[name].role == "parameter")
    fits = is_same and is_whole and answer_shape(one) == answer_shape(graph)
    return one if fits and _has_answers_of(two, one) else None


def _has_answers_of(graph: Graph, one: Graph) -> bool:
    """Return whether samples alone have the outputs that they have in a batch, to the same bits.

    `graph`: the model with a batch. `one`: the model with a batch of one sample. The values are
    random, since zeros among the first weights would hide a difference.
    """
    rng = np.random.default_rng(0)
    values = start_values(graph, 0)
    for node in weight_nodes(graph):
        if node.role == "parameter":
            noise = rng.standard_normal(node.shape, np.float32)
            values[node.name] = values[node.name] + np.float32(0.01) * noise
    rows = {
        name: value[:1] if name in one.by_name and one[name].shape != value.shape else value
        for name, value in values.items()
    }
    x, _ = example(graph)
    return logits(graph, values, x).tobytes() == logits(one, rows, x).tobytes()


def _is_same(node: Node, graph: Graph) -> bool:
    """Return True if a graph has this stored node, or the same zeros for each of its samples."""
    other = graph.by_name.get(node.name)
    if other is None or not other.stored:
        return False
    zeros = (1, *other.shape[1:]) if other.start == "zeros" and other.role == "state" else None
    return node.shape in (other.shape, zeros)


def _planned(
    graph: Graph, problem: Problem, plan: Plan, homes: Mapping[str, int]
) -> tuple[Plan, Problem, Plan] | int:
    """Return the training plan, and the problem and the plan of an inference.

    If none was found, return the least RAM for it in bytes, next to all homes; 0: not known.
    """
    priced = _priced(graph, problem, homes)
    if priced is None:
        return 0
    gap = _largest_gap(graph, homes, problem.ram_bytes)
    kept = kept_statements(priced.graph)
    placement = _within(arrange(priced.graph, kept, len(gap), thorough=False), gap)
    if placement is None and homes:
        placement, plan = _both(priced, kept, problem, plan)
        homes = {name: at for name, at in plan.initial_offsets if at is not None}
    if placement is None:
        with counting():
            settings = Settings(SEARCH_LIMIT_S, GAP, counted=True)
            found = plan_by("poet", replace(priced, ram_bytes=len(gap)), settings)
        if not found.statements or any(
            (it.op, it.node) == ("page_out", graph.data) for it in found.statements
        ):
            taken_bytes = problem.ram_bytes - len(gap)
            return found.smallest_ram_bytes + taken_bytes if found.smallest_ram_bytes else 0
        placement = _within(Placement(found.statements, (), len(gap)), gap)
        assert placement is not None
    done = finish(priced, placement, time_limit_s=0.0, effort="none")
    assert isinstance(done, PlacedPlan)
    used, forward = with_used_modes(priced, done.as_plan(priced))
    return plan, used, _with_input(forward, graph, homes)


def _largest_gap(graph: Graph, homes: Mapping[str, int], ram_bytes: int) -> range:
    """Return the largest range of RAM without a home. Its ends are multiples of 4."""
    ends = sorted((at, at + graph[name].size_bytes) for name, at in homes.items())
    edges = [0, *(edge for home in ends for edge in home), ram_bytes // 4 * 4]
    return max((range(*it) for it in zip(edges[::2], edges[1::2], strict=True)), key=len)


def _within(placement: Placement, gap: range) -> Placement | None:
    return moved(placement, gap.start) if placement.height_bytes <= len(gap) else None


def _both(
    inference: Problem, statements: Sequence[Statement], problem: Problem, plan: Plan
) -> tuple[Placement | None, Plan]:
    """Place a training plan again, together with an inference. It stays as it is if that fails."""
    graph, step = problem.graph, plan.statements
    if graph.storage:
        step = (*(Statement("start", name) for name, _ in plan.initial_offsets), *step)
    ram_bytes, limit_s = problem.ram_bytes, PLACEMENT_LIMIT_S
    own, placement = arrange_next_to(inference.graph, statements, (graph, step), ram_bytes, limit_s)
    if placement.height_bytes > ram_bytes:
        return None, plan
    done = finish(problem, placement, time_limit_s=0.0, effort="none")
    assert isinstance(done, PlacedPlan)
    initial, peak_bytes = done.initial_offsets, done.totals.peak_bytes
    return own, replace(
        plan, statements=done.statements, initial_offsets=initial, peak_bytes=peak_bytes
    )


def _priced(graph: Graph, problem: Problem, homes: Mapping[str, int]) -> Problem | None:
    assert problem.profile is not None
    priced = replace(
        problem, graph=cost_graph(graph, problem.profile, problem.graph.storage),
        deadline_us=None, streaming=None, streamable=None,
    )  # fmt: skip
    if problem.streaming is not None and problem.graph.storage:
        both = (
            (name, cut) for name, cut in problem.streaming.cuts.items() if name in graph.by_name
        )
        found = {name: _for_size(cut, graph[name]) for name, cut in both}
        cuts = {name: cut for name, cut in found.items() if cut is not None}
        try:
            priced = with_nests(priced, graph, cuts)
        except LawError:
            return None
    return replace(priced, graph=_among_homes(priced.graph, homes, graph))


def _for_size(cut: Cut, node: Node) -> Cut | None:
    """Return the cut of a tensor for one sample, by that for a batch.

    Return None if it has one part, or if samples are not the first axis of the tensor.
    """
    samples = cut.size_bytes // node.size_bytes
    if samples == 1:
        return cut
    first = next((i for i, size in enumerate(cut.size) if size > 1), 0)
    if cut.size[first] % samples or node.shape[0] != 1:
        return None
    size, part = list(cut.size), list(cut.part)
    size[first] //= samples
    part[first] = min(part[first], size[first])
    pieces = replace(cut, size=tuple(size), part=tuple(part), piece_parts=1)
    count = len(pieces.piece_sizes)
    return None if count == 1 else replace(pieces, piece_parts=min(cut.piece_parts, count))


def _among_homes(graph: CostGraph, homes: Mapping[str, int], of: Graph) -> CostGraph:
    """Return the graph as if tensors with homes needed no RAM and no transfers.

    The data is computed first, without costs: it is in RAM when an inference begins. It has no
    place on storage, so paging it out costs more than all else. The logits are in RAM at the end.
    """
    most_us = sum(node.time_us + node.page_in_us + node.page_out_us for node in graph.nodes)
    most_uj = sum(node.energy_uj + node.page_in_uj + node.page_out_uj for node in graph.nodes)
    index = {graph.index[name] for name in homes}
    own = {graph.index[of.data]} if is_own_data(of) else set()
    whole = index | own

    def changed(i: int, node: CostNode) -> CostNode:
        modes = tuple(
            mode
            if whole.isdisjoint(mode.streamed_inputs)
            and not (mode.streamed_output and node.name == of.logits)
            else replace(mode, workspace_bytes=_UNUSABLE_BYTES)
            for mode in node.modes
        )
        node = replace(node, modes=modes, stays=False, given=False)
        if i in index:
            return replace(node, bytes=0, page_in_us=0.0, page_in_uj=0.0, page_in_cpu_us=0.0)
        if i in own:
            return replace(
                node, stored=False, once=True, keep=False, page_out_us=most_us, page_out_uj=most_uj
            )
        return node

    nodes = tuple(changed(i, node) for i, node in enumerate(graph.nodes))
    return replace(graph, nodes=nodes, commit_every=1)


def _as_stored(costs: CostGraph, graph: Graph) -> CostGraph:
    """Return the costs with the stored tensors of the graph: the reverse of `_among_homes`."""
    nodes = tuple(
        replace(node, bytes=graph[node.name].size_bytes, stored=True, once=False, modes=())
        if graph[node.name].stored
        else node
        for node in costs.nodes
    )
    return replace(costs, nodes=nodes)


def _with_input(plan: Plan, graph: Graph, homes: Mapping[str, int]) -> Plan:
    """Return the plan in which the data is in its place at the start, and the logits at the end."""
    first = [s for s in plan.statements if s.op == "compute" and s.node == graph.data]
    rest = (s for s in plan.statements if s not in first and s.node not in homes)
    rest = (s for s in rest if (s.op, s.node) != ("free", graph.logits))
    initial = (*homes.items(), *((graph.data, it.offset) for it in first))
    return replace(plan, statements=tuple(rest), initial_offsets=initial)
