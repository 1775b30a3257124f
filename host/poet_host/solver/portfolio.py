"""Portfolio: run primal search and bound search until the result is proved.

Both run at the same time. If counted work limits them (work.py), they run in turn, so that neither
depends on the speed of the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait

from ..plan.events import Candidate, Event
from ..plan.problem import TOLERANCE
from ..work import counted_s
from .bound_search import Learnt, search_bounds
from .primal_search import search_again
from .program import INFINITY
from .search import Task
from .staying_search import search_plans
from .workers import POOL, Worker, WorkerHung, WorkerKilled


@dataclass
class Results:
    """The results of the searches so far."""

    task: Task
    # `best` is one of the next three plans. At equal value, the first of the three is taken.
    early_plan: Candidate | None = None  # found by the primal search before the bound search
    bound_plan: Candidate | None = None  # by the bound search
    late_plan: Candidate | None = None  # found by the primal search during the bound search
    bound: float = 0.0  # lower bound of the value of all plans
    learnt: Learnt = field(default_factory=Learnt)  # by the bound search
    began_from: str = ""  # see Plan
    is_interrupted: bool = False  # by Ctrl-C
    is_exhausted: bool = False  # whether all searches ended before the time limit

    @property
    def best(self) -> Candidate | None:
        plans = [plan for plan in (self.early_plan, self.bound_plan, self.late_plan) if plan]
        least = min(map(self.task.value, plans), default=INFINITY)
        return next(
            (plan for plan in plans if self.task.value(plan) <= least * (1 + TOLERANCE)), None
        )

    @property
    def value(self) -> float:
        return self.task.value(self.best) if self.best else INFINITY

    @property
    def is_infeasible(self) -> bool:
        return self.bound == INFINITY and self.best is None

    def is_proved(self, gap: float) -> bool:
        """Return whether `best` is proved optimal within the gap, or no plan can exist."""
        return self.bound >= self.value * (1 - gap) * (1 - TOLERANCE)


class Portfolio:
    """Runs the primal search, which looks for better plans.

    After its first plans, the bound search runs in parallel: it raises the lower bound.
    """

    def __init__(self, results: Results, report: Callable[[Results], None]) -> None:
        self.task, self.results, self.report = results.task, results, report
        self.primal: Worker | None = None
        self.bound: Worker | None = None
        self.is_relaxed = True  # whether the primal search solved its first relaxation to the end

    def run(self) -> None:
        """Search until the result is proved, all searches end, time is up, or Ctrl-C is pressed."""
        try:
            self._search()
            self.results.is_exhausted = not self._busy() and self.task.left_s > 0
        except KeyboardInterrupt:
            self.results.is_interrupted = True
        finally:
            for worker in (self.primal, self.bound):
                if worker is not None:
                    POOL.give_back(worker)

    def _search(self) -> None:
        self.primal = POOL.take()
        self.primal.search(search_plans, self.task)
        while self._goes_on():
            busy = {worker.results: worker for worker in self._busy()}
            ready = wait(list(busy), self.task.left_s)
            if not ready:
                break
            for results in ready:
                self._receive(busy[results])  # type: ignore[index]

    def _busy(self) -> list[Worker]:
        return [worker for worker in (self.primal, self.bound) if worker and worker.busy]

    def _goes_on(self) -> bool:
        """Return whether a search that may change the result still runs.

        For a gap of 0, the bound search runs to its end even after the proof: it finds equal plans
        for equal input. The primal search does not, since its plans depend on the speed of both
        searches.
        """
        if self.results.is_proved(self.task.gap):
            return self.bound is not None and self.bound.busy and self.task.gap == 0
        return bool(self._busy())

    def _receive(self, worker: Worker) -> None:
        results = self.results
        try:
            kind, content = worker.receive()
        except WorkerHung:
            self._restart(worker)
            return
        except WorkerKilled:
            if results.best is None:
                raise
            return  # the best plan so far and the bound are still valid
        if kind == "ready for bounds":
            self._allow_bounds(content)
        elif kind == "learnt":
            results.learnt = content
        elif kind == "plan":
            self._take_plan(worker, content)
            if worker is self.primal and self.bound is not None and self.task.gap:
                self.bound.send(content)
        elif kind == "began from":
            results.began_from = content
        elif kind == "solution":
            self._offer(content)
        elif kind == "bound" and content > results.bound:
            results.bound = content
            self.report(results)

    def _allow_bounds(self, is_relaxed: bool) -> None:
        if self.bound is None and not self.results.is_proved(self.task.gap):
            self.bound, self.is_relaxed = POOL.take(), is_relaxed
            self._search_bounds(self.bound)

    def _offer(self, solution: Sequence[Event]) -> None:
        if self.primal is not None and self.primal.busy:
            self.primal.send(solution)

    def _restart(self, worker: Worker) -> None:
        """Start a search again, from the best plan, after its solver ignored its time limit.

        Only HiGHS's presolve is known to do this. If it happens without presolve, the search ends.
        """
        if not self.task.presolve:
            return
        self.task = replace(self.task, presolve=False, known=self.results.best)
        worker.end()
        another = POOL.take()
        if worker is self.primal:
            self.primal = another
            another.search(search_plans, self.task)
        else:
            self.bound = another
            self._search_bounds(another)

    def _search_bounds(self, worker: Worker) -> None:
        results = self.results
        worker.search(search_bounds, self.task, results.best, self.is_relaxed, results.learnt)

    def _take_plan(self, worker: Worker, plan: Candidate) -> None:
        if worker is self.bound:
            self.results.bound_plan = plan
        elif self.bound is None:
            self.results.early_plan = plan
        else:
            self.results.late_plan = plan
        self.report(self.results)


class InTurn(Portfolio):
    """Runs the searches in turn, in one process.

    First the primal search, then the bound search. Then the primal search goes on, and makes plans
    from the last solution of the bound search.
    """

    may_bound = False  # whether the primal search allows the bound search
    solution: Sequence[Event] | None = None  # the last one of the bound search

    def _search(self) -> None:
        whole, self.primal = self.task, POOL.take()
        self.task = whole.within(whole.policy.plans_work_share)
        self.primal.search(search_plans, self.task)
        if self._ended() and self.may_bound:
            self.bound, self.primal = self.primal, None
            self.task = whole.within(whole.policy.bounds_work_share)
            self._search_bounds(self.bound)
            if self._ended() and whole.left_s > 0:
                self.primal, self.bound, self.task = self.bound, None, whole
                again = replace(whole, known=self.results.best)
                self.primal.search(search_again, again, self.solution)
                self._ended()
        self.task = whole

    def _ended(self) -> bool:
        """Receive the results of a search. Return whether it has ended without a proof."""
        while (busy := self._busy()) and self._goes_on():
            self._receive(busy[0])  # another worker after a restart
        return not self.results.is_proved(self.task.gap)

    def _allow_bounds(self, is_relaxed: bool) -> None:
        self.may_bound, self.is_relaxed = True, is_relaxed

    def _offer(self, solution: Sequence[Event]) -> None:
        self.solution = solution


def run_searches(results: Results, report: Callable[[Results], None] = lambda _: None) -> None:
    """Search until the result is proved, all searches end, time is up, or Ctrl-C is pressed."""
    (Portfolio if counted_s() is None else InTurn)(results, report).run()
