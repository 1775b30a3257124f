"""solve: find a plan of least value for a problem, and verify it. See Problem for the value."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..packing.blocks import ALIGNMENT
from ..plan.infeasible import largest_operator_bytes
from ..plan.plan import Plan, StoppedBy, plan_of
from ..plan.problem import Problem
from ..stream.streaming import with_streaming
from ..work import counting
from .phases import Searches
from .policy import Phase, SearchPolicy, always, run_phases
from .search import SeedPlan
from .settings import DEFAULT_SETTINGS, Method, Settings, Stopwatch

DEFAULT_GAP = 0.01  # default of the API and the command line; a gap of 0 may take hours


def solve(
    problem: Problem,
    settings: Settings = DEFAULT_SETTINGS,
    *,
    method: Method = "poet",
    seed_plans: Sequence[SeedPlan] = (),
) -> Plan:
    """Find the plan that the objective wants, within the RAM budget and the deadline.

    `method`: "poet" mixes recomputation and paging; "poet-paging" computes everything once;
    "poet-remat" pages no computed tensor. `seed_plans`: importable functions that make plans. The
    search starts from these plans too, unless its own first plan is soon proved good enough.

    If no plan is found, no error is raised: the status is "infeasible" (proved) or "unknown" (out
    of time). An "optimal" plan is proved to be the best of all plans of the method. A "feasible"
    plan comes with a lower bound of the objective. Every plan has been verified. Ctrl-C
    ends the search with the best plan so far. Equal input gives equal plans, unless the time limit
    or `gap` ends the search early.
    """
    with counting(settings.counted):
        clock = Stopwatch(settings.time_limit_s)
        none = plan_of(problem, "unknown", method=method)
        both = _Problems(problem, settings, method, tuple(seed_plans), clock, none)
        run_phases(PHASES, both, settings.policy.skipped)
    return both.plan


def may_stream(problem: Problem, policy: SearchPolicy) -> bool:
    """Return whether a second search may let operators stream: the largest one hardly fits."""
    if problem.streamable is None or "streaming" in policy.skipped:
        return False
    largest_bytes = largest_operator_bytes(problem.graph, ALIGNMENT)
    return largest_bytes > policy.tight_ram_share * problem.ram_bytes


@dataclass
class _Problems:
    """The problem with whole operators, and perhaps the one with operators that stream."""

    problem: Problem
    settings: Settings
    method: Method
    seed_plans: tuple[SeedPlan, ...]
    clock: Stopwatch
    plan: Plan  # the best one so far

    def search_whole(self) -> None:
        settings, policy = self.settings, self.settings.policy
        if may_stream(self.problem, policy):
            limit_s = self.clock.left_s * policy.whole_time_share
            settings = replace(settings, time_limit_s=limit_s)
        self.plan = self.search(self.problem, settings)

    def streaming_may_be_better(self) -> bool:
        plan = self.plan
        is_proved = plan.stopped_by in ("proof", "gap") and plan.status != "infeasible"
        is_over = is_proved or plan.stopped_by == "interrupt"
        return not is_over and may_stream(self.problem, self.settings.policy)

    def search_streaming(self) -> None:
        """Let operators stream, and take the better plan, with a bound for both problems."""
        first, report = self.plan, self.settings.progress
        assert self.problem.streamable is not None
        try:
            problem = with_streaming(self.problem, self.problem.streamable)
        except KeyboardInterrupt:
            self.plan = replace(first, stopped_by="interrupt")
            return

        def on_progress(
            value: float | None, bound: float, gap: float | None, elapsed_s: float
        ) -> None:
            """Report the better one of both plans so far."""
            values = [known for known in (first.value, value) if known is not None]
            bound = bound if first.bound is None else min(bound, first.bound)
            least = min(values, default=None)
            gap = (least - bound) / least if least else gap
            assert report is not None
            report(least, bound, gap, first.solve_s + elapsed_s)

        settings = replace(
            self.settings, time_limit_s=self.clock.left_s, progress=report and on_progress
        )
        second = replace(self.search(problem, settings), problem=problem)
        self.plan = better(first, second, settings.gap)

    def search(self, problem: Problem, settings: Settings) -> Plan:
        # Searches do not need the nests, so they are not sent to the processes of the search.
        costs = replace(problem, streaming=None, streamable=None)
        clock = Stopwatch(settings.time_limit_s)
        plan = Searches(costs, settings, self.method, self.seed_plans, clock).run()
        return replace(plan, method=self.method, solve_s=clock.elapsed_s)


def better(first: Plan, second: Plan, wanted_gap: float) -> Plan:
    """Return the better one of the plans of two searches, with a bound for both problems."""
    solve_s = first.solve_s + second.solve_s
    with_plans = [plan for plan in (first, second) if plan.value is not None]
    if not with_plans:
        return replace(second if first.status == "infeasible" else first, solve_s=solve_s)
    best = min(with_plans, key=lambda plan: plan.value or 0.0)
    searched = [plan for plan in (first, second) if plan.status != "infeasible"]
    best = replace(best, status="feasible", bound=None, gap=None, solve_s=solve_s)
    bounds = [plan.bound for plan in searched if plan.bound is not None]
    if len(bounds) == len(searched):
        best = best.with_bound(min(bounds))
    if best.gap is not None and best.gap <= wanted_gap:
        return replace(best, stopped_by="gap" if best.gap else "proof")
    ends = {plan.stopped_by for plan in searched}
    limits: tuple[StoppedBy, ...] = ("interrupt", "time-limit", "work-limit", "exhausted")
    return replace(best, stopped_by=next((end for end in limits if end in ends), ""))


PHASES: tuple[Phase[_Problems], ...] = (
    ("whole operators", always, _Problems.search_whole),
    ("streaming", _Problems.streaming_may_be_better, _Problems.search_streaming),
)
