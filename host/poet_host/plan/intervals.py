"""What a step of a plan needs if what stays in RAM is written to storage more or less often."""

from dataclasses import dataclass, replace

from ..profile.profile import Profile
from .effects import effects_of
from .plan import Plan, written_by_commits
from .pricing import commit_costs
from .problem import CostGraph

COMMIT_EVERY = (10, 100)  # shown in addition to that of the plan


@dataclass(frozen=True)
class Interval:
    """The mean of all steps, with commits after so many steps each."""

    commit_every: int
    total_energy_uj: float  # with the sleeping board's
    written_bytes: float  # to storage
    more_may_stay: bool  # whether another plan for this interval may let more tensors stay


def intervals(plan: Plan, graph: CostGraph, profile: Profile | None) -> list[Interval]:
    """Return the means for a plan as it is. If tensors may stay, add those for COMMIT_EVERY.

    There is no search. A tensor that stays is written in each step if the step reads its copy on
    storage. Without a profile, commit records cost nothing.
    """
    assert plan.total_energy_uj is not None
    assert plan.time_us is not None
    effects = effects_of(graph, plan.statements)
    read = {i for effect in effects for i in effect.reads}
    committed = written_by_commits(graph, plan)
    seldom = [graph.nodes[k] for k, i in committed.items() if i not in read]
    always_bytes = sum(effect.moved_out_bytes for effect in effects) + sum(
        graph.nodes[k].bytes for k, i in committed.items() if i in read
    )
    commit_uj = sum(
        node.page_out_uj + node.page_out_us * graph.base_power_uw / 1e6 for node in seldom
    )
    every, others = graph.commit_every, COMMIT_EVERY if graph.starting else ()
    plan_uj = plan.total_energy_uj

    def step_uj(number: int) -> float:
        share_uj = plan_uj + commit_uj * (1 / number - 1 / every)
        often = replace(graph, commit_every=number)
        time_us, record_uj = commit_costs(profile, often, plan) if profile else (0.0, 0.0)
        return share_uj + record_uj + time_us * graph.base_power_uw / 1e6

    return [
        Interval(
            number,
            step_uj(number),
            always_bytes + sum(node.bytes for node in seldom) / number,
            number > every and profile is not None and _more_may_stay(graph, profile, number),
        )
        for number in (every, *(it for it in others if it != every))
    ]


def _more_may_stay(graph: CostGraph, profile: Profile, commit_every: int) -> bool:
    """Return whether tensors that may not stay in `graph` gain from it with this interval."""
    renewed = (node.overwrites for node in graph.nodes if node.keep and node.once)
    paged = (graph.nodes[i] for i in renewed if i is not None)
    return any(
        node.stored and not node.stays and profile.gains_if_it_stays(node.bytes, commit_every)
        for node in paged
    )
