"""Make a cost graph, the input of planners, from a training graph and a profile."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType

from ..device.board import load_board, names
from ..graph.cuts import BLOCK, Cut
from ..graph.graph import Graph
from ..isa import record_size
from ..profile.profile import Profile, Use
from .plan import Plan, written_by_commits
from .problem import CostGraph, CostNode

_PLAN_BLOCKS = 4  # of most plans, and of the commit
_CHECK_BYTES = 4  # of each block of the schedule that the board reads


def cost_graph(
    graph: Graph,
    profile: Profile,
    storage: bool = True,
    cuts: Mapping[str, Cut] = MappingProxyType({}),
    commit_every: int | None = None,
) -> CostGraph:
    """Price every node of `graph` on the profile's board, in the graph's order.

    `cuts`: the cuts of tensors, by node. A node that renews a stored tensor has that tensor's cut.

    Data, parameters and state get the flag `stored`. A node that updates one of these gets two
    flags: `keep`, since its result must be on storage at the end, and `once`, since it must not be
    computed again. Without storage nothing can be paged, and the stored nodes start in RAM. What
    the host does not send for each step, parameters and state, must then be in RAM at the end too.
    A profile of a board without a card always gives a graph without storage.

    `commit_every`: parameters and state may stay in RAM from step to step, and are written once in
    so many steps, if that takes less energy than transfers in each step; the host may put data into
    RAM. None: each step begins with empty RAM.
    """
    storage = storage and profile.storage
    profile = with_cached_records(profile, graph) if storage else profile.without_card()
    renewed = {node.updates for node in graph}
    may_stay, every = storage and commit_every is not None, commit_every or 1
    # Their new values come to be elsewhere:
    moved = {node.updates for node in graph if node.updates != node.overwrites}
    index = {node.name: i for i, node in enumerate(graph)}
    nodes = []
    for node in graph:
        time_us, energy_uj = (0.0, 0.0) if node.stored else profile.cost(node, graph)
        use: Use = "stored" if node.stored else "page" if node.updates is None else "renewed"
        cut = cuts.get(node.updates or node.name)
        pieces = cut.piece_sizes if cut else ()
        stays = may_stay and node.stored and node.role != "data" and node.name not in moved
        if stays and node.name in renewed:
            stays = profile.gains_if_it_stays(node.size_bytes, every, pieces)
        nodes.append(
            CostNode(
                node.name,
                tuple(index[name] for name in dict.fromkeys(node.inputs)),
                node.size_bytes,
                time_us=time_us,
                energy_uj=energy_uj,
                **asdict(profile.transfer(node.size_bytes, use, pieces)),
                stored=node.stored,
                keep=node.updates is not None
                or (
                    not storage
                    and node.stored
                    and node.name not in (graph.data, graph.label, *renewed)
                ),
                overwrites=None if node.overwrites is None else index[node.overwrites],
                workspace_bytes=int(node.attrs.get("workspace_bytes", 0)),
                once=node.updates is not None,
                stays=stays,
                given=may_stay and node.role == "data",
            )
        )
    every, base_uw = every if may_stay else 1, profile.power.base_uw
    return CostGraph(graph.name, tuple(nodes), storage, base_uw, commit_every=every)


def with_cached_records(profile: Profile, graph: Graph) -> Profile:
    """Return the profile without the time in which a step reads records of the model and the plan.

    The board reads none if its cache has room for all of them. Otherwise, return `profile`.
    """
    if profile.board not in names():
        return profile
    computed_bytes = record_size("poet_op") * sum(not node.stored for node in graph)
    model_bytes = record_size("poet_model") + record_size("poet_tensor") * len(graph.nodes)
    blocks = -(-(model_bytes + computed_bytes) // (BLOCK - _CHECK_BYTES)) + _PLAN_BLOCKS
    if blocks > load_board(profile.board).cache_blocks:
        return profile
    return replace(profile, statements=profile.statements.without_reading())


def commit_costs(profile: Profile, costs: CostGraph, plan: Plan) -> tuple[float, float]:
    """Return a step's mean share of the time (us) and energy (uJ) of commits.

    What a commit writes from RAM is read back. Without storage, only few steps commit. Then these
    are the costs of the check of new weights.
    """
    assert plan.time_us is not None
    return _commit(profile, costs, plan.time_us, written_by_commits(costs, plan).values())


def longest_commit_us(profile: Profile, costs: CostGraph, step_us: float, stays: bool) -> float:
    """Return the time of a commit that writes all that may stay in RAM, or nothing of it."""
    return _commit(profile, costs, step_us, costs.may_commit.values() if stays else ())[0]


def _commit(
    profile: Profile, costs: CostGraph, step_us: float, homes: Iterable[int]
) -> tuple[float, float]:
    if not costs.storage:
        return profile.check(sum(node.bytes for node in costs.nodes if node.keep and node.once))
    sizes, every = [costs.nodes[i].bytes for i in homes], costs.commit_every
    time_us, energy_uj = profile.commit(costs.kept_sizes, every * step_us, sizes)
    return time_us / every, energy_uj / every
