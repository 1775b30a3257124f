"""Primal search where tensors may stay in RAM from step to step.

Models that choose what stays are large, and their first plans are poor. So the search begins from a
plan in which nothing stays (solve.py), and lets tensors stay where that plan leaves room for them.
"""

from collections.abc import Sequence

from ..plan.events import Event
from . import primal_search
from .greedy import greedy_plans
from .policy import Phase, always, run_phases
from .primal_search import FIRST_PHASES, LATER_PHASES, PrimalSearch
from .search import Task
from .staying import all_may_stay, with_staying
from .workers import Channel


def search_plans(task: Task, channel: Channel) -> None:
    """Emit better and better plans, and "ready for bounds" after the first plans."""
    if task.padded.starting:
        run_phases(PHASES, StayingSearch.of(task, channel), task.policy.skipped)
    else:
        primal_search.search_plans(task, channel)


class StayingSearch(PrimalSearch):
    def try_greedy_plans(self) -> None:
        super().try_greedy_plans()
        if self.task.page:
            for events in greedy_plans(self.task.modes, self.task.padded_ram_bytes, self.policy):
                self.try_plan(self.with_staying(events))

    def with_staying(self, events: Sequence[Event]) -> list[Event]:
        task = self.task
        return with_staying(task.padded, task.value_per_us, events, task.padded_ram_bytes)

    def try_staying(self) -> None:
        """Let more tensors of the incumbent stay in RAM from step to step."""
        if self.incumbent is not None:
            self.try_plan(self.with_staying(self.incumbent.events))

    def is_roomy(self) -> bool:
        return all_may_stay(self.task.padded, self.task.padded_ram_bytes, self.policy)

    def solve_around_staying(self) -> None:
        """Solve models in which all tensors stay that may.

        What stays leaves little RAM for the others: long chains of recomputations pay.
        """
        task, ram_bytes = self.task, self.task.padded_ram_bytes
        staying = frozenset(task.padded.starting)
        for limit, time_share in self.policy.staying_limits:
            if self.is_over:
                return
            limit_s = task.left_s * time_share
            self.solve(self.limited(limit), ram_bytes, task.deadline_us, limit_s, staying)


_Phases = tuple[Phase[StayingSearch], ...]
PHASES: _Phases = (
    *FIRST_PHASES,
    ("staying", always, StayingSearch.try_staying),
    ("staying", StayingSearch.is_roomy, StayingSearch.solve_around_staying),
    ("bounds", always, StayingSearch.allow_bound_search),
    ("staying", always, StayingSearch.try_staying),
    *LATER_PHASES,
)
