"""solve: find a plan of least value for a problem, and verify it. See Problem for the value."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from ..packing.blocks import ALIGNMENT
from ..plan.events import Candidate, Event, normal_order
from ..plan.infeasible import largest_operator_bytes
from ..plan.plan import Plan, StoppedBy, plan_of
from ..plan.problem import TOLERANCE, CostGraph, Problem, with_staying_of, without_staying
from ..stream.streaming import with_streaming
from ..work import counting
from .phases import Searches
from .policy import Phase, SearchPolicy, always, run_phases
from .program import INFINITY
from .search import SeedPlan
from .settings import DEFAULT_SETTINGS, Method, Settings, Stopwatch
from .staying import all_may_stay, most_saved, saves_much

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
        both = _Problems(problem, settings, method, tuple(seed_plans), clock)
        return both.run_with_staying() if problem.graph.starting else both.run()


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
    plan: Plan = field(init=False)  # the best one so far
    best: Candidate | None = None  # the same plan
    # The problems that were searched, each with the plan and the bound of its search:
    searched: list[tuple[Problem, Plan]] = field(default_factory=list)
    other_bound: float = INFINITY  # of the searched problems other than that of the plan

    def run(self) -> Plan:
        self.plan = plan_of(self.problem, "unknown", method=self.method)
        run_phases(PHASES, self, self.settings.policy.skipped)
        return self.plan

    def search_whole(self) -> None:
        settings, policy = self.settings, self.settings.policy
        if may_stream(self.problem, policy):
            limit_s = self.clock.left_s * policy.whole_time_share
            settings = replace(settings, time_limit_s=limit_s)
        self.plan, self.best = self.search(self.problem, settings)

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
        offered = self.best and for_streaming(self.problem.graph, self.best.events, problem.graph)
        second, best = self.search(problem, settings, offered=offered or ())
        self.plan = better(first, replace(second, problem=problem), settings.gap)
        self.best = best if self.plan.problem is problem else self.best

    def run_with_staying(self) -> Plan:
        """Let tensors stay in RAM from step to step, or none if that is better."""
        settings, policy = self.settings, self.settings.policy
        limit_s, graph = settings.time_limit_s, self.problem.graph
        much = saves_much(self.problem, policy)
        if much and all_may_stay(graph, self.problem.ram_bytes, policy):
            self.settings = replace(settings, time_limit_s=limit_s * policy.roomy_time_share)
            found = self.run()
            if found.stopped_by not in ("exhausted", "time-limit", "work-limit"):
                return found
            return not_worse(found, self.where_nothing_stays(self.clock.left_s).plan)
        share = policy.plain_time_share if much else policy.long_plain_time_share
        plain = self.where_nothing_stays(limit_s * share)
        first, problem = plain.plan, plain.plan.problem or self.problem
        if first.stopped_by == "interrupt":
            return first
        settings = replace(settings, time_limit_s=self.clock.left_s)
        found, _ = self.search(problem, settings, plain.best)
        found = replace(found, problem=problem, solve_s=first.solve_s + found.solve_s)
        found = not_worse(found, first)
        bounds = [plan.bound for plan in (found, first) if plan.bound is not None]
        if not bounds or found.value is None:
            return found
        found = replace(found, status="feasible").with_bound(min(max(bounds), plain.other_bound))
        is_over = found.stopped_by in ("proof", "gap") and not found.is_within(settings.gap)
        return replace(found, stopped_by=first.stopped_by) if is_over else found

    def where_nothing_stays(self, limit_s: float) -> "_Problems":
        """Search within `limit_s`. The plan is of the problem where tensors may stay."""
        graph, report = self.problem.graph, self.settings.progress

        def on_progress(value: float | None, _: float, __: float | None, elapsed_s: float) -> None:
            """Report no bound: that of plans in which nothing stays is none of all plans."""
            assert report is not None
            report(value, 0.0, None, elapsed_s)

        settings = replace(self.settings, time_limit_s=limit_s, progress=report and on_progress)
        plain = replace(self.problem, graph=without_staying(graph))
        both = _Problems(plain, settings, self.method, self.seed_plans, Stopwatch(limit_s))
        plan = both.run()
        problem = plan.problem or self.problem
        problem = replace(problem, graph=with_staying_of(problem.graph, graph))
        both.plan = replace(
            plan, problem=problem, bound=None, gap=None,
            status="feasible" if plan.statements else "unknown",
            commit_every=graph.commit_every if graph.commit_every > 1 else None,
        )  # fmt: skip
        saved = max(map(most_saved, (self.problem, problem)))
        is_known = self.problem.deadline_us is None  # what stays may make a late plan possible
        if plan.bound is not None and plan.statements and is_known:
            both.plan = both.plan.with_bound(max(0.0, plan.bound - saved))
        chosen = plan.problem or plain
        for other, found in both.searched:
            if other is not chosen and not (is_known and found.status == "infeasible"):
                other = replace(other, graph=with_staying_of(other.graph, graph))
                least = (found.bound or 0.0) - most_saved(other) if is_known else 0.0
                both.other_bound = min(both.other_bound, max(0.0, least))
        return both

    def search(
        self,
        problem: Problem,
        settings: Settings,
        known: Candidate | None = None,
        offered: Sequence[Event] = (),
    ) -> tuple[Plan, Candidate | None]:
        """Search for a plan that is at least as good as `known`. `offered`: see Task."""
        # Searches do not need the nests, so they are not sent to the processes of the search.
        costs = replace(problem, streaming=None, streamable=None)
        clock = Stopwatch(settings.time_limit_s)
        searches = Searches(costs, settings, self.method, self.seed_plans, clock, known, offered)
        plan = replace(searches.run(), method=self.method, solve_s=clock.elapsed_s)
        self.searched.append((problem, plan))
        return plan, searches.results.best


def not_worse(found: Plan, other: Plan) -> Plan:
    """Return the better one of two plans for one problem, with the bound of `found`."""
    value = other.value
    if value is None or (found.value is not None and found.value <= value * (1 + TOLERANCE)):
        return found
    plan = replace(other, stopped_by=found.stopped_by, solve_s=found.solve_s)
    return plan if found.bound is None else plan.with_bound(found.bound)


def better(first: Plan, second: Plan, wanted_gap: float) -> Plan:
    """Return the better plan of two searches, with a bound that holds for the problem of each."""
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
    if best.is_within(wanted_gap):
        return replace(best, stopped_by="gap" if best.gap else "proof")
    ends = {plan.stopped_by for plan in searched}
    limits: tuple[StoppedBy, ...] = ("interrupt", "time-limit", "work-limit", "exhausted")
    return replace(best, stopped_by=next((end for end in limits if end in ends), ""))


PHASES: tuple[Phase[_Problems], ...] = (
    ("whole operators", always, _Problems.search_whole),
    ("streaming", _Problems.streaming_may_be_better, _Problems.search_streaming),
)


def for_streaming(given: CostGraph, events: Sequence[Event], other: CostGraph) -> list[Event]:
    """Return the events for the same nodes in another order, each in the most similar mode.

    The result may break limits, since tensors in parts cost more.
    """

    def names(graph: CostGraph, i: int, k: int) -> set[str]:
        mode = graph.nodes[i].mode(k)
        over = [] if mode.overwrites is None else [("over", mode.overwrites)]
        also = [("also", it.node) for it in mode.also]
        places = [*over, *also, *(("in", j) for j in mode.streamed_inputs)]
        found = {f"{what} {graph.nodes[j].name}" for what, j in places}
        return found | ({"out"} if mode.streamed_output else set())

    @cache
    def mapped(event: Event) -> Event:
        i, number = other.index[given.nodes[event.node].name], 0
        if event.op == "compute":
            wanted = names(given, event.node, event.mode)
            numbers = range(len(other.nodes[i].modes) + 1)
            number = min(numbers, key=lambda k: len(wanted ^ names(other, i, k)))
        return Event(event.op, i, number)

    stages, done = [list[Event]()], set[int]()
    for event in map(mapped, normal_order(given, events)):
        stages[-1].append(event)
        if event.op == "compute" and event.node not in done:
            done.add(event.node)
            stages.append([])
    stages[:-1] = sorted(stages[:-1], key=lambda stage: stage[-1].node)
    return normal_order(other, [event for stage in stages for event in stage])
