"""Climb: better and better plans.

Stage models (milp.py) of growing reach are solved, small ones first; their solutions become
plans. Then parts of the best plan are solved again with everything else as it is.
"""

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..plan.plan import Plan
from ..plan.verify import verify
from . import conflicts, exhaustive, solution
from . import stage_model as milp
from .bound_search import relax
from .candidate import Candidate, Misfit
from .events import energy_uj, everything_paged, lazy, tidy
from .greedy import drafts
from .program import INFINITY, TOLERANCE, Result, minimise
from .recompute_candidates import Reach, Rung
from .search import Searcher, Start, Task
from .workers import Line

LITTLE, MUCH = 40_000, 2_000_000  # labels of the exhaustive search: first, and at the end
FIRST = (Rung(1), Rung(2))  # soon solved
HIGHER = (Rung(4, 0.5), Rung(3), Rung(6))
HIGHEST = (Rung(None, 1.0), Rung(None))
ROUNDS = 4  # of tightening what a plan may use, until it fits
CUT_ROUNDS = 2
GAP = 0.02  # of what is spent beyond the unavoidable: good enough for a rung
WIDE, MOST_COLUMNS = (16, 6, 4, 3, 2), 40_000  # recomputations in a row, of parts
PART, PART_S = 0.1, 3.0  # share of the stages to begin with; time for one part
MOST_VAIN = 50  # parts in a row without a better plan
MANY_NODES = 500  # plans without search come first, the prover does not wait for the first rungs
WEIGHTS = 8  # of time, tried for a deadline
FAR = 0.01  # from the first bound, relative: no proof is to be expected soon
EXHAUSTING = 0.2  # of the time, for the first exhaustive search
SHORT_S = 2.0  # of time: plans without search come first here, too
STARTING = 0.5  # of the time, for the plans of other methods: most take next to nothing, ...
LATE = 0.15  # ... but for a deadline, which asks for their transfers to begin early
SEED = 1


def climb(task: Task, line: Line) -> None:
    """Emit better and better plans, and "climbed" when the first few are out."""
    climber = _Climber(task, line, starts=task.starts)
    if task.known is not None:
        climber.best, climber.best_uj = task.known, energy_uj(task.graph, task.known.events)
    many = len(task.graph.nodes) > MANY_NODES
    at_once = many or task.left_s < SHORT_S
    if at_once:
        climber.begin()
        climber.start()
    if climber.exhaust(LITTLE, EXHAUSTING):
        return
    if not at_once:
        climber.begin()
    bound_uj = relax(task, line)
    late = task.deadline_us is not None and task.known is None
    share = 0.05 if late else 0.25
    climber.climb(FIRST[:1], share)
    if many:
        climber.climbed(bound_uj)
    climber.climb(FIRST[1:], share)
    if late:
        climber.hurry()
    if not many:
        climber.climbed(bound_uj)
    climber.start()
    climber.climb(HIGHER, 0.1)
    climber.improve()
    climber.climb(HIGHEST, 0.5)
    climber.exhaust(MUCH)


@dataclass
class _Climber(Searcher):
    known: dict[conflicts.Conflict, None] = field(default_factory=dict)
    starts: tuple[Start, ...] = ()

    def exhaust(self, most_labels: int, share: float = 1.0) -> bool:
        """Whether exhaustive search, in a share of the time that is left, has settled it."""
        task, deadline_us = self.task, self.task.deadline_us
        ends_at = time.monotonic() + task.left_s * share
        if self.over:
            return False
        found = exhaustive.exhaust(
            task.unpadded,
            task.problem.ram_bytes,
            task.again,
            page=task.page,
            deadline_us=deadline_us,
            unit=task.unit,
            most_labels=most_labels,
            out_of_time=lambda: self.over or time.monotonic() > ends_at,
        )
        if found is None:
            return False
        if found.events is None:
            self.line.emit("bound", INFINITY)
            return True
        events = found.events if deadline_us is not None else tidy(task.graph, found.events)
        self.offer(events)
        least_uj = energy_uj(task.graph, events)
        self.line.emit("bound", least_uj)
        return self.best_uj <= least_uj * (1 + TOLERANCE)

    def begin(self) -> None:
        """A plan without search: what is needed latest is paged; if need be, everything."""
        task = self.task
        if not task.graph.storage or not task.page:
            return
        if len(task.graph.nodes) > MANY_NODES:
            self.offer(everything_paged(task.graph))
        for events in drafts(task.graph, task.ram_bytes):
            if self.offer(events):
                return
        if self.best is None:
            self.offer(everything_paged(task.graph))

    def climbed(self, bound_uj: float) -> None:
        """Let the prover begin: where it is far from a proof, with the plans of other methods."""
        if self.best_uj * (1 - FAR) > bound_uj:
            self.start()
        self.line.emit("climbed", None)

    def start(self) -> None:
        """Plans of other methods, once; of the best one's recomputations, the best plan."""
        task, before_uj = self.task, self.best_uj
        starts, self.starts = self.starts, ()
        share = STARTING if task.deadline_us is None else LATE
        ends_at = time.monotonic() + task.left_s * share
        for start in starts:
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                break
            plan = start(task.problem, task.placed, self.best_uj, left_s)
            if plan is not None:
                self.adopt(plan)
        if self.best is not None and self.best_uj < before_uj:
            stages = solution.again(task.graph, self.best.events).values()
            self.sequenced([sorted(stage) for stage in stages], task.left_s * 0.1)

    def adopt(self, plan: Plan) -> None:
        """Take a plan as it is, unless it can be taken in the order that the models know."""
        task = self.task
        numbers = {node.name: i for i, node in enumerate(task.graph.nodes)}
        events = [(it.op, numbers[it.node]) for it in plan.statements]
        plan_uj = energy_uj(task.graph, events)
        self.offer(lazy(task.graph, events))
        if plan_uj < self.best_uj * (1 - TOLERANCE):
            free = replace(task.problem, deadline_us=None)
            totals = verify(free, replace(plan, deadline_us=None), task.placed)
            self.best_uj = plan_uj
            self.best = Candidate(plan.statements, plan.initial_offsets, totals, tuple(events))
            self.line.emit("plan", self.best)

    def climb(self, rungs: Iterable[Rung], share: float) -> None:
        """Solve the models of some rungs, each within a share of the time that is left."""
        offered = -1
        for rung in rungs:
            if self.over:
                break
            reach = self.reach(rung)
            before, offered = offered, _offered(reach)
            if offered != before:
                self.step(reach, share)
            self.hear()

    def reach(self, rung: Rung) -> Reach:
        graph, best = self.task.graph, self.best
        also = solution.again(graph, best.events) if best else None
        return Reach(graph, self.task.again, spare_uj=self.spare_uj, rung=rung, also=also)

    def step(self, reach: Reach, share: float) -> None:
        """Solve the model of a reach; with less RAM or time as long as its plan does not fit."""
        ram_bytes, deadline_us = self.task.ram_bytes, self.task.deadline_us
        for _ in range(ROUNDS):
            self.solve(reach, ram_bytes, deadline_us, self.task.left_s * share)
            if self.misfit.excess_bytes:
                ram_bytes -= -(-self.misfit.excess_bytes // 4) * 4
            elif self.misfit.excess_us and deadline_us is not None:
                deadline_us -= self.misfit.excess_us
            else:
                break

    def solve(
        self, reach: Reach, ram_bytes: int, deadline_us: float | None, limit_s: float
    ) -> None:
        """The minimum of a stage model, as a plan."""
        self.misfit = Misfit()
        model = self.informed(reach, ram_bytes, deadline_us)
        for _ in range(CUT_ROUNDS):
            if model is None or self.over:
                return
            found = self.minimise(model, limit_s)
            if found.values is None:
                return
            plan_uj = self.planned(model, found.values, self.task.left_s * 0.1, deadline_us)
            if plan_uj - found.objective <= 2 * self.slack_uj:
                return
            if not self.learn(model, found.values):
                return

    def learn(self, model: milp.StageModel, values: milp.Values) -> bool:
        """What about a solution cannot be; False if that is not known."""
        found = [it for it in conflicts.sets(model, values) if it not in self.known]
        self.known.update(dict.fromkeys(found))
        for conflict in found:
            conflicts.forbid(model, conflict)
        return bool(found)

    def informed(
        self, reach: Reach, ram_bytes: int, deadline_us: float | None
    ) -> milp.StageModel | None:
        """The stage model with what has been learnt from others."""
        model = self.build(reach, ram_bytes, deadline_us)
        if model is not None:
            for conflict in self.known:
                conflicts.forbid(model, conflict)
        return model

    @property
    def slack_uj(self) -> float:
        return GAP * self.spare_uj if self.best else 0.0

    def hear(self) -> None:
        """A solution of the prover's program may make a better plan."""
        again = self.line.news()
        if again is not None:
            self.sequenced(again, self.task.left_s * 0.1)

    def minimise(self, model: milp.StageModel, limit_s: float) -> Result:
        start = solution.start(model, self.best.events) if self.best else None
        return minimise(
            model.program,
            limit_s,
            gap=self.task.gap / 2,
            slack=self.slack_uj,
            start=start,
            watch=self.watch,
        )

    def hurry(self) -> None:
        """Plans for a deadline, by weighing time beside energy: as little as is in time."""
        fastest = self.hasty(INFINITY)
        if fastest is None:
            return
        self.line.emit("fastest", fastest)
        nodes = self.task.graph.nodes
        total_uj = sum(node.energy_uj for node in nodes)
        weight = total_uj / max(sum(node.time_us for node in nodes), 1.0)
        factor = 16.0
        for _ in range(WEIGHTS):
            if self.over or self.hasty(weight) is None:
                break
            weight *= factor if self.misfit.excess_us else 1 / factor
            factor **= 0.6

    def hasty(self, weight: float) -> Candidate | None:
        """The best plan with time beside energy, offered for the deadline."""
        ends_at = time.monotonic() + self.task.left_s * 0.1
        task = replace(self.task.hasty(weight), ends_at=min(ends_at, self.task.ends_at))
        climber = _Climber(task, Line(lambda kind, found: None, self.line.stopped))
        climber.begin()
        climber.climb(FIRST, 0.4)
        if climber.best is not None:
            self.offer(climber.best.events)
        return climber.best

    def wide(self) -> milp.StageModel | None:
        """The model in which parts are solved: of the highest rung that is not too large."""
        for depth in WIDE:
            reach = self.reach(Rung(depth, 1.0))
            model = self.informed(reach, self.task.ram_bytes, self.task.deadline_us)
            if model is None or len(model.program.cost) <= MOST_COLUMNS:
                break
        return model

    def improve(self) -> None:
        """Solve parts of the best plan again, the rest as it is, as long as that helps."""
        chance, share, vain = random.Random(SEED), PART, 0
        model, values = None, None
        while not self.over and self.best is not None and vain < MOST_VAIN:
            self.hear()
            if model is None:
                model = self.wide()
                if model is None:
                    return
                values = solution.start(model, self.best.events)
                spent = solution.spent_uj(model, values)
            stages = len(model.stages)
            length = max(2, round(stages * share))
            begin = chance.choices(range(stages), spent)[0] - length // 2
            window = range(max(0, begin), min(begin + length, stages))
            found = minimise(
                solution.around(model, values, window),
                min(PART_S, self.task.left_s),
                slack=self.slack_uj / 20,
                start=values,
                watch=self.watch,
            )
            vain += 1
            before_uj = self.best_uj
            if found.values is not None and found.objective < before_uj - self.slack_uj / 20:
                self.planned(model, found.values, PART_S)
                if self.best_uj > found.objective + self.slack_uj / 20:
                    self.learn(model, found.values)
            if self.best_uj < before_uj:
                model, vain = None, 0
            share = min(1.0, share * 1.1) if found.outcome == "optimal" else share * 0.8


def _offered(reach: Reach) -> int:
    return sum(len(reach.demanded(node.inputs)) for node in reach.graph.nodes)
