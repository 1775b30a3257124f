"""The policy of the searches: the numbers that steer them, and the phases that they skip.

Three kinds of numbers are not policy: tolerances of arithmetic; what one unit of work counts, which
defines a work limit; and the sizes of parts in stream/, which are part of a problem.
"""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from math import inf
from typing import TypeVar


@dataclass(frozen=True)
class DepthLimit:
    """A heuristic limit: offer only short and cheap chains of recomputations.

    Each chain ends in a tensor that the operator of the same stage needs.
    """

    depth: int | None = None  # longest chain of recomputations; None: no limit
    # Largest cost of a chain, divided by the cost of paging its result out and in.
    max_paging_ratio: float = inf


@dataclass(frozen=True)
class SearchPolicy:
    """How the searches divide their time, and when they give up.

    A time share is a share of the time that is left when a phase begins. An ablation is one changed
    field: `Settings(policy=replace(DEFAULT_POLICY, skipped={"deep"}))`.
    """

    skipped: Set[str] = frozenset()  # names of phases that do not run

    # If the largest operator needs more than this share of RAM, a second search may let operators
    # stream. Then the first search, with whole operators, has a share of the time limit.
    tight_ram_share: float = 0.75
    whole_time_share: float = 0.5
    # If tensors may stay in RAM from step to step, searches in which nothing stays come first, and
    # longer if what stays saves at most `much_saved` of the value of a step. If it saves more,
    # and all of it fits `max_staying_share` of RAM, these searches come last.
    much_saved: float = 0.05
    plain_time_share: float = 0.7
    long_plain_time_share: float = 0.9
    roomy_time_share: float = 0.8  # for the others, if these searches come last
    least_search_s: float = 1.0  # of a time limit that pricing has used up
    reserve_s: float = 1.0  # to reorder transfers after the search; more for large graphs
    max_reserve_time_share: float = 0.4
    # To order the transfers of one plan, with little effort and then with more:
    transfer_order_time_share: float = 0.15
    max_transfer_order_s: float = 8.0
    effort_time_share: float = 0.7
    # Beyond the time limit, for greedy plans and seed plans if no search has found a plan. The
    # first plan of a large graph needs seconds on a busy computer.
    last_resort_s: float = 1.0
    last_resort_s_per_node: float = 0.01
    budget_time_share: float = 0.5  # for each budget that is tried to find the smallest one

    # If the time of a step matters, the first search counts the processor's time, but no waits for
    # transfers. Waits are cheap if they cost at most this share of what the transfers cost.
    first_time_share: float = 0.1
    cheap_waits_time_share: float = 0.9  # the same, if waits are cheap
    more_time_share: float = 0.8  # to continue the first search while its plans are good enough
    max_wait_share: float = 0.02
    # Searches for plans whose transfers run while the processor computes. They add weighted time to
    # the objective. After a plan that is late, the weight is multiplied by a factor, otherwise it
    # is divided by the factor. Then factor ** decay replaces the factor.
    overlapped_time_share: float = 0.3  # for no weight, and for time alone
    weighted_time_share: float = 0.1  # for each weight
    max_time_weights: int = 5
    time_weight_factor: float = 16.0
    time_weight_decay: float = 0.6

    # Shares of the work left, if the searches run in turn; the third search has the rest.
    plans_work_share: float = 0.4
    bounds_work_share: float = 0.7

    # Greedy plans and seed plans come first if the graph is large, or if little time is left.
    large_graph_nodes: int = 500  # more nodes make a graph large: its programs take long
    short_time_s: float = 2.0
    greedy_ram_shares: tuple[float, ...] = (1.0, 0.9, 0.7, 0.5)  # tried until a plan fits
    max_exact_nodes: int = 16  # of the largest graph whose states are all searched
    exact_labels_first: int = 100_000
    exact_labels_last: int = 1_000_000
    exact_time_share: float = 0.2  # for the first search over all states
    seed_plan_gap: float = 0.01  # above this gap, seed plans precede the bound search
    seed_plans_time_share: float = 0.5  # for all seed plans together
    seed_plans_time_share_deadline: float = 0.15

    # Stage models with more and more recompute candidates. The time shares are for each model.
    shallow_limits: tuple[DepthLimit, ...] = (DepthLimit(1), DepthLimit(2))
    shallow_time_share: float = 0.12
    shallow_time_share_deadline: float = 0.05  # if no plan has met the deadline yet
    medium_limits: tuple[DepthLimit, ...] = (DepthLimit(4, 0.5), DepthLimit(3), DepthLimit(6))
    medium_time_share: float = 0.1
    deep_limits: tuple[DepthLimit, ...] = (DepthLimit(None, 1.0), DepthLimit(None))
    deep_time_share: float = 0.5
    # First models of graphs in which tensors may stay: if all of them fill at most this share of
    # RAM, all of them stay. Each model has recompute candidates and a time share.
    max_staying_share: float = 0.75
    staying_limits: tuple[tuple[DepthLimit, float], ...] = (
        (DepthLimit(2), 0.05), (DepthLimit(None, 1.0), 0.5),
    )  # fmt: skip
    model_gap_share: float = 0.5  # of the wanted gap, at which a model counts as solved
    max_tightenings: int = 4  # attempts with less RAM or time for a model, until its plan fits
    max_cut_rounds: int = 2  # solutions of a model, each without the conflicts of the one before
    max_nonzeros: int = 3_000_000  # of a model; HiGHS takes about 150 bytes for each
    max_conflict_states: int = 2_000  # visited to find the least RAM of one conflict

    # Stop a program when value - bound is at most this share of the overhead: what the best plan
    # spends in addition to what every plan must spend.
    overhead_gap: float = 0.02
    enough_gaps: float = 2.0  # a plan is good enough if its solution is better by fewer such gaps
    plan_time_share: float = 0.1  # to make a plan from a solution
    # With more effort for the order of transfers, a plan may save these shares of the deadline and
    # of its value. A plan that is late, or worse than the best one, by more is dropped.
    max_lateness: float = 0.02
    max_gain: float = 0.005

    # A neighbourhood is a share of the stages. It grows after each one that was solved, and shrinks
    # after the others.
    neighbourhood_share: float = 0.1
    neighbourhood_growth: float = 1.1
    neighbourhood_decay: float = 0.8
    max_failed_neighbourhoods: int = 50  # in a row
    neighbourhood_limit_s: float = 3.0
    neighbourhood_depths: tuple[int, ...] = (16, 6, 4, 3, 2)  # tried until the model is small
    max_neighbourhood_columns: int = 40_000
    improvements_per_gap: float = 20  # ignore what improves by less than the gap divided by this

    # To repair a solution of the bound search, stages before and after each faulty stage are solved
    # again. If that gives no solution, their number is multiplied by the growth.
    repair_time_share: float = 0.2
    repair_margin: int = 2
    repair_margin_growth: int = 4
    max_repaired_share: float = 0.3  # of all stages

    # A search over states bounds if RAM holds few large tensors. The largest tensors are listed, as
    # long as at most so many sets of them fit RAM. They must be at least this share of the bytes of
    # all, and at most so many of them fit RAM on average.
    most_sets: int = 500_000
    least_listed_share: float = 0.5
    most_fitting: float = 4.5
    patient_state_labels: int = 500_000  # before a worse bound than that of a program is given up
    most_state_labels: int = 3_000_000  # about 100 bytes each
    states_time_share: float = 0.25  # before the comparison with a program
    relaxation_time_share: float = 0.1  # for each program of the first relaxation
    long_relaxation_time_share: float = 0.6  # if operators stream, for the relaxation again
    bound_gap_share: float = 0.2  # of the wanted gap, which each model of a bound may leave
    # Of the missing inputs of a solution, those become strict that cost at least this share of the
    # most expensive one.
    strict_share: float = 0.02


DEFAULT_POLICY = SearchPolicy()
_Search = TypeVar("_Search")
Guard = Callable[[_Search], bool]
Phase = tuple[str, Guard[_Search], Callable[[_Search], object]]
"""A name, whether the phase runs, and what it does. If that returns True, the search is over."""


def run_phases(phases: Iterable[Phase[_Search]], search: _Search, skipped: Set[str]) -> bool:
    """Run the phases in order. Return whether one of them ended the search."""
    return any(
        name not in skipped and guard(search) and run(search) is True for name, guard, run in phases
    )


def always(_: object) -> bool:
    return True


def unless(guard: Guard[_Search]) -> Guard[_Search]:
    return lambda search: not guard(search)
