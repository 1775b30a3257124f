"""Bound search: find higher and higher lower bounds of the value of all plans.

It solves the stage model (stage_model.py), an integer program. The incumbent is the best plan so
far. The model offers every recomputation that a better plan may contain. The incumbent is proved
optimal when the bound reaches its value.

The whole model is large, so the search begins with a relaxation, in which recomputations need no
inputs. Few recomputations are part of its solution. Where their inputs are not in RAM, these inputs
become *strict*: in the next model, recomputations of the node need them. So the models grow only
where a solution was too good to be true. A solution that lacks no input is one of the whole model
too.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from ..plan.events import Candidate, tidy
from ..plan.problem import TOLERANCE
from ..work import now_s
from .models import solution
from .models.conflicts import Conflict, forbid, violated_sets
from .models.model import Columns
from .models.stage_columns import ALWAYS_IN_RAM, Stage, StageModel
from .policy import Phase, always, run_phases
from .program import INFINITY, Outcome, Values, minimise
from .search import Search, Task
from .states.bound import bounds, holds_few
from .workers import Channel


@dataclass
class Learnt:
    """Strict inputs and conflicts, for all bound searches of the same graph and RAM budget."""

    strict: dict[int, set[int]] = field(default_factory=dict)  # see `Modes.relaxed`
    conflicts: list[Conflict] = field(default_factory=list)


def first_bound(search: Search) -> tuple[float, bool]:
    """Find a lower bound quickly, as if recomputations needed no inputs. Emit it.

    Return it, and whether no better bound can be found in this way. If a plan is found that is
    better than the incumbent of `search`, it becomes the incumbent.
    """
    first = BoundSearch(search.task, search.channel, search.incumbent, search.incumbent_value)
    outcome = first.relax(search.policy.relaxation_time_share)
    search.incumbent, search.incumbent_value = first.incumbent, first.incumbent_value
    return first.bound, outcome != "stopped"


def search_bounds(
    task: Task, incumbent: Candidate | None, is_relaxed: bool, learnt: Learnt, channel: Channel
) -> None:
    """Emit higher and higher bounds on all plans. `incumbent` is the best plan known so far.

    `is_relaxed`: whether `first_bound` found the best bound that it can find. `learnt`: what it, or
    another bound search for the same graph and RAM budget, has learnt.
    """
    search = BoundSearch(task, channel, learnt=learnt, is_relaxed=is_relaxed)
    if incumbent is not None:
        search.incumbent = incumbent
        search.incumbent_value = task.value(incumbent)
    run_phases(PHASES, search, task.policy.skipped)


@dataclass
class BoundSearch(Search):
    bound: float = -INFINITY
    learnt: Learnt = field(default_factory=Learnt)
    is_relaxed: bool = False
    # Bounds by a search over states, each with the labels so far, and the highest of them:
    states: Iterator[tuple[float, int]] = field(default_factory=lambda: iter(()))
    by_states: float = -INFINITY
    # Least value of a solution that lacks no expensive input. Solutions on the way to the next one
    # are offered only if they are better.
    offered: float = INFINITY

    def may_relax_longer(self) -> bool:
        has_modes = self.task.padded.has_streaming_modes
        return not self.is_relaxed and has_modes and not self.states_lead()

    def relax_longer(self) -> None:
        self.relax(self.policy.long_relaxation_time_share)

    def begin_states(self) -> None:
        """Begin a search over states (states/bound.py), and compare it with the stage model.

        Stop it early if the linear relaxation bounds better than many states.
        """
        policy, relaxed = self.policy, -INFINITY
        model = self.relaxed_model()
        if model is not None:
            limit_s = self.task.left_s * policy.relaxation_time_share
            worst = self.incumbent_value
            relaxed = minimise(model.program, limit_s, worst=worst, integer=False).bound
            self.raise_bound(relaxed)
        self.states = bounds(self.task, lambda: self.incumbent_value, self.is_interrupted)
        self.search_states(policy.states_time_share, relaxed)
        if self.states_lead():
            self.relax(policy.relaxation_time_share)

    def search_states(self, share: float = 1.0, relaxed: float = -INFINITY) -> None:
        ends_at = now_s() + self.task.left_s * share
        for bound, labels in self.states:
            self.by_states = max(bound, self.by_states)
            self.raise_bound(bound)
            is_worse = bound < relaxed and labels > self.policy.patient_state_labels
            if is_worse or now_s() > ends_at:
                return

    def states_lead(self) -> bool:
        """Return whether the search over states bounds best so far."""
        return -INFINITY < self.by_states >= self.bound and not self.is_interrupted()

    def is_interrupted(self) -> bool:
        self.receive()
        return self.is_over or self.is_proved

    def relaxed_model(self) -> StageModel | None:
        """Return the stage model in which recomputations need no inputs but strict ones."""
        ram_bytes, deadline_us = self.task.padded_ram_bytes, self.task.deadline_us
        return self.stage_model(self.candidates(self.learnt.strict), ram_bytes, deadline_us)

    def receive(self) -> bool:
        """Take a better plan that the primal search has found. Return whether there is one."""
        plan = self.channel.receive()
        if plan is None or self.task.value(plan) >= self.incumbent_value:
            return False
        self.incumbent, self.incumbent_value = plan, self.task.value(plan)
        return True

    def run(self) -> None:
        """Solve larger and larger models, until a solution is a plan, or time is up."""
        goes_on = True
        while goes_on and not self.is_proved and not self.is_over:
            model, worst = self.next_model(), self.incumbent_value
            values = None if model is None else self.solve(model)
            if model is None or values is None:
                return
            goes_on = self.tighten(model, values) or self.is_finer_now(model, worst)
            self.channel.emit("learnt", self.learnt)

    def is_finer_now(self, model: StageModel, worst: float) -> bool:
        """Return whether tolerances are finer than when the incumbent's value was `worst`."""
        least = self.incumbent_value * (1 + TOLERANCE)
        return any(least < cost <= worst for cost in model.program.cost)

    def next_model(self) -> StageModel | None:
        """Return the model with all that was learnt from the solutions before it."""
        candidates = self.candidates(
            self.learnt.strict,
            overhead=self.overhead,
            conflict_stages={conflict.stage for conflict in self.learnt.conflicts},
        )
        model = self.stage_model(candidates, self.task.padded_ram_bytes, self.task.deadline_us)
        if model is not None:
            for conflict in self.learnt.conflicts:
                forbid(model, conflict)
        return model

    def tighten(self, model: StageModel, values: Values) -> bool:
        """Learn from a solution of the model what forbids it. Return False if nothing does.

        Missing inputs become strict, the expensive ones first: without them, chains of cheap
        recomputations end early. Then conflicts become known. Inputs that cost little to page in
        may be missing until then.
        """
        missing = list(_missing(model, values))
        if self.add_expensive(missing):
            return True
        self.offer(model, values)
        self.offered = model.program.objective(values)
        self.try_solution(model, values, self.task.left_s)
        every = violated_sets(model, values)
        new = [conflict for conflict in every if conflict not in self.learnt.conflicts]
        self.learnt.conflicts += new
        inputs = self.task.modes.exact.again
        self._add_strict((j, i) for conflict in new for j in conflict.computed for i in inputs[j])
        self._add_strict(missing)
        return bool(new or missing)

    def add_expensive(self, needs: Iterable[tuple[int, int]]) -> bool:
        """Make the expensive ones of missing inputs strict. Return whether there are any."""
        missing = sorted(needs, key=self._page_in_uj)
        sums_uj = accumulate(map(self._page_in_uj, missing))
        least_sum_uj = self.gap * self.bound
        dear = missing[bisect_left(list(sums_uj), least_sum_uj) :]
        costs_uj = [self._least_uj(i) for _, i in dear]
        least_uj = max(costs_uj, default=0.0) * self.policy.strict_share
        costs = zip(dear, costs_uj, strict=True)
        self._add_strict(need for need, cost_uj in costs if cost_uj >= least_uj)
        return bool(dear)

    def offer(self, model: StageModel, values: Values) -> None:
        """Emit a solution, for the primal search to make a plan from it."""
        self.channel.emit("solution", tidy(model.modes.given, solution.events(model, values)))

    def _add_strict(self, needs: Iterable[tuple[int, int]]) -> None:
        for j, i in needs:
            self.learnt.strict.setdefault(j, set()).add(i)

    def _least_uj(self, i: int) -> float:
        """Return the least energy that brings tensor i into RAM, without its inputs."""
        node, modes = self.task.padded.nodes[i], self.task.modes
        way = None if node.once else modes.least_way[i]
        page_out_uj = 0.0 if modes.certainly_stored(i) else node.page_out_uj
        paged_uj = node.page_in_uj + page_out_uj
        return paged_uj if way is None else min(paged_uj, way.energy_uj)

    def _page_in_uj(self, missing: tuple[int, int]) -> float:
        """Return the energy to page in a missing input, which must be on storage then."""
        j, i = missing
        stored = self.task.modes.certainly_stored(i) and self.task.modes.exact.has_one_way[j]
        return self.task.padded.nodes[i].page_in_uj if stored else INFINITY

    def relax(self, share: float) -> Outcome:
        """Solve a stage model in which recomputations need no inputs, and try its solution.

        `share`: the share of the time left that each program may take.
        """
        model = self.relaxed_model()
        if model is None:
            return "stopped"
        for integer in (False, True):
            result = minimise(
                model.program,
                self.task.left_s * share,
                gap=self.gap,
                worst=self.incumbent_value,
                integer=integer,
                presolve=self.task.presolve,
                on_progress=self.on_relaxed_progress,
            )
            self.raise_bound(result.bound)
        if result.outcome == "optimal" and not self.learnt.strict:
            self.add_expensive(_missing(model, result.values))
            self.channel.emit("learnt", self.learnt)
        if result.values is not None and self.task.padded.has_streaming_modes:
            recomputed = solution.recomputed(model, result.values)
            limit_s = self.task.left_s * self.policy.plan_time_share
            if any(recomputed):
                self.try_recomputations(recomputed, limit_s)
            else:
                self.try_solution(model, result.values, limit_s)
        return result.outcome

    def on_relaxed_progress(self, bound: float, values: Values | None) -> bool:
        self.raise_bound(bound)
        return self.is_over or self.is_proved

    @property
    def gap(self) -> float:
        """Return the gap that each model may leave."""
        return self.task.gap * self.policy.bound_gap_share

    @property
    def is_proved(self) -> bool:
        return self.bound >= self.incumbent_value * (1 - TOLERANCE)

    def raise_bound(self, bound: float) -> None:
        """Emit the bound if it is higher than the last one.

        The model leaves out plans that are worse than the incumbent, the best plan so far. So its
        bounds are valid only up to the incumbent's value, and higher ones are cut to it.
        """
        bound = min(bound, self.incumbent_value)
        if bound > self.bound:
            self.bound = bound
            self.channel.emit("bound", bound)

    def solve(self, model: StageModel) -> Values | None:
        """Solve the integer program. Return its optimum, unless the incumbent is proved optimal."""
        task = self.task

        def on_progress(bound: float, values: Values | None) -> bool:
            self.raise_bound(bound)
            if values is not None and model.program.objective(values) < self.offered:
                self.offer(model, values)
            return self.is_over or self.is_proved

        def receive() -> Values | None:
            if not self.receive() or self.incumbent is None:
                return None
            return solution.values_of(model, self.incumbent.events)

        result = minimise(
            model.program,
            task.left_s,
            gap=self.gap,
            worst=self.incumbent_value,
            initial=solution.values_of(model, self.incumbent.events) if self.incumbent else None,
            presolve=task.presolve,
            on_progress=on_progress,
            receive=receive,
        )
        self.raise_bound(result.bound)
        return result.values if result.outcome == "optimal" and not self.is_proved else None


PHASES: tuple[Phase[BoundSearch], ...] = (
    ("states", lambda search: holds_few(search.task), BoundSearch.begin_states),
    ("relaxation", BoundSearch.may_relax_longer, BoundSearch.relax_longer),
    ("more states", BoundSearch.states_lead, BoundSearch.search_states),
    ("models", always, BoundSearch.run),
)


def _missing(model: StageModel, values: Values) -> Iterator[tuple[int, int]]:
    """Yield (node, input) where a solution recomputes a node although the input is not in RAM.

    All inputs of a node with several ways are missing if the model relaxes them (`Modes.relaxed`).
    """
    for stage in model.stages:
        for j, column in stage.computed.items():
            if values[column] < 0.5:
                continue
            exact = model.modes.exact
            if not exact.has_one_way[j]:
                if model.modes.ways[j] != exact.ways[j]:
                    yield from ((j, i) for i in model.graph.nodes[j].all_inputs)
                continue
            for i in exact.again[j]:
                if i not in model.modes.again[j] and not _is_in_ram(stage, values, i):
                    yield j, i


def _is_in_ram(stage: Stage, values: Values, i: int) -> bool:
    def has(columns: Columns) -> bool:
        return i in columns and (columns[i] == ALWAYS_IN_RAM or values[columns[i]] > 0.5)

    return any(map(has, (stage.before, stage.computed, stage.paged)))
