"""Race: the two searches (search.py) beside each other, until one of them settles it."""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait

from .bound_search import prove
from .candidate import Candidate
from .primal_search import climb
from .program import INFINITY, TOLERANCE
from .search import Task
from .workers import POOL, Worker, WorkerKilled


@dataclass
class Found:
    """What the searches have found; the order of `plans` decides between equal ones."""

    first: Candidate | None = None  # of the climber, before the prover starts
    proved: Candidate | None = None  # of the prover
    later: Candidate | None = None
    fastest: Candidate | None = None
    bound_uj: float = 0.0
    interrupted: bool = False
    ended: bool = False  # by themselves, before time was out

    @property
    def best(self) -> Candidate | None:
        plans = [plan for plan in (self.first, self.proved, self.later) if plan is not None]
        least_uj = min((plan.totals.energy_uj for plan in plans), default=INFINITY)
        return next(
            (plan for plan in plans if plan.totals.energy_uj <= least_uj * (1 + TOLERANCE)), None
        )

    @property
    def energy_uj(self) -> float:
        return self.best.totals.energy_uj if self.best else INFINITY

    @property
    def infeasible(self) -> bool:
        return self.bound_uj == INFINITY and self.best is None

    def proves(self, gap: float) -> bool:
        """Nothing better than the plan exists (within the gap), or no plan at all."""
        return self.bound_uj >= self.energy_uj * (1 - gap) * (1 - TOLERANCE)

    def settled(self, gap: float) -> bool:
        """More time would find nothing else."""
        return self.ended or self.proves(gap)


class Race:
    """The climber, and from its first plans on the prover, until one of them settles it."""

    def __init__(self, task: Task, found: Found, report: Callable[[Found], None]) -> None:
        self.task, self.found, self.report = task, found, report
        self.climber: Worker | None = None
        self.prover: Worker | None = None

    def run(self) -> None:
        try:
            self.climber = POOL.take()
            self.climber.search(climb, self.task)
            while self._going():
                busy = {worker.results: worker for worker in self._busy()}
                ready = wait(list(busy), self.task.left_s)
                if not ready:
                    break
                for results in ready:
                    self._hear(busy[results])  # type: ignore[index]
            self.found.ended = not self._busy() and self.task.left_s > 0
        except KeyboardInterrupt:
            self.found.interrupted = True
        finally:
            for worker in (self.climber, self.prover):
                if worker is not None:
                    POOL.give_back(worker)

    def _busy(self) -> list[Worker]:
        return [it for it in (self.climber, self.prover) if it is not None and it.busy]

    def _going(self) -> bool:
        """Until a plan is proved good enough; where the minimum is wanted, by the prover.

        What the climber finds beside the prover depends on their speeds, so that equal input
        would not give equal plans.
        """
        if self.found.proves(self.task.gap):
            racing = self.prover is not None and self.prover.busy
            return racing and self.task.gap == 0
        return bool(self._busy())

    def _hear(self, worker: Worker) -> None:
        found = self.found
        try:
            kind, content = worker.receive()
        except WorkerKilled:
            if found.best is None:
                raise
            return  # the plan so far, and its bound, are true
        if kind == "climbed" and not found.proves(self.task.gap):
            self.prover = POOL.take()
            self.prover.search(prove, self.task, found.best)
        elif kind == "plan":
            self._take(worker, content)
            if worker is self.climber and self.prover is not None and self.task.gap:
                self.prover.tell(content)
        elif kind == "solution" and self.climber is not None and self.climber.busy:
            self.climber.tell(content)
        elif kind == "fastest":
            found.fastest = content
        elif kind == "bound" and content > found.bound_uj:
            found.bound_uj = content
            self.report(found)

    def _take(self, worker: Worker, plan: Candidate) -> None:
        found = self.found
        if worker is self.prover:
            found.proved = plan
        elif self.prover is None:
            found.first = plan
        else:
            found.later = plan
        self.report(found)
