"""The paper's claims, and the same numbers from our table of plans, as text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from poet_host import api
from poet_host.compare.sweep import Case, Point, Result
from poet_host.errors import PoetError
from poet_host.plan.plan import VALUES, Plan, objective_value
from poet_host.plan.problem import Objective
from poet_host.schedule.encode import encode, encode_costs
from poet_host.schedule.schedule import Schedule

from ..report import number, percent
from .points import GAP, PREFIX, RIVALS, WHOLE

Found = Sequence[tuple[Point, Result]]
NOTHING = "not swept"


@dataclass(frozen=True)
class Setting:
    """One problem, with the results of all methods that were tried on it."""

    point: Point  # of any method
    results: dict[str, Result]
    objective: Objective

    def value(self, method: str, key: str) -> float | None:
        """A column of a method's plan; None if the method has no plan."""
        found = self.results.get(method)
        known = found is not None and found.row["plan"] and found.row[key] is not None
        return float(found.row[key]) if found is not None and known else None

    def plan(self, method: str) -> Plan | None:
        found = self.results.get(method)
        return found.plan if found is not None and found.row["plan"] else None

    def energy_uj(self, method: str) -> float | None:
        """The energy that the objective counts."""
        return self.value(method, VALUES[self.objective])

    @property
    def kept_uj(self) -> float:
        """The same energy of keeping everything."""
        keeping = self.point.case.keeping
        return 0.0 if keeping is None else objective_value(self.objective, keeping) or 0.0

    def overhead(self, method: str) -> float | None:
        """Energy above keeping everything, as a share of that energy."""
        mine = self.energy_uj(method)
        return None if mine is None else mine / self.kept_uj - 1

    def saving(self, other: str) -> float | None:
        """How much less energy poet spends, as a share of the other method's energy."""
        mine, theirs = self.energy_uj("poet"), self.energy_uj(other)
        return None if mine is None or not theirs else 1 - mine / theirs

    def began_from(self, method: str = "poet") -> str:
        """The method from whose plan the search started; "itself" if no other's was better."""
        found = self.results.get(method)
        if found is None or not found.row["plan"]:
            return "-"
        return found.row["began_from"] or "itself"

    @property
    def name(self) -> str:
        case = self.point.case
        return f"{case.model} on {case.board}, {self.point.ram_bytes:,} bytes"


@dataclass(frozen=True)
class View:
    """Part of the table."""

    title: str
    whole: bool  # whole training steps, not the paper's graphs
    kind: str  # of constants: the profile of the cases
    objective: Objective  # says which energy counts
    found: Found

    @cached_property
    def settings(self) -> list[Setting]:
        groups: dict[tuple[object, ...], Setting] = {}
        for point, result in self.found:
            case = point.case
            is_whole = not case.model.startswith(PREFIX)
            mine = (self.whole, self.kind, self.objective)
            if (is_whole, case.profile, point.objective) == mine:
                key = (case.model, case.board, point.ram_bytes, point.deadline_us)
                empty = Setting(point, {}, self.objective)
                groups.setdefault(key, empty).results[point.method] = result
        return list(groups.values())

    def model(self, name: str) -> str:
        """The name of one of the paper's models in this part of the table."""
        return WHOLE.get(name, "") if self.whole else PREFIX + name

    def of(
        self, *, model: str | None = None, board: str | None = None, free: bool = True
    ) -> Iterator[Setting]:
        """Settings of a paper's model and a board; with `free` only those without a deadline."""
        for setting in self.settings:
            case = setting.point.case
            right_model = model is None or case.model == self.model(model)
            right_board = board is None or case.board == board
            if right_model and right_board and (not free or setting.point.deadline_us is None):
                yield setting


def views(found: Found) -> list[View]:
    """The paper's constants have no power of the sleeping board: both energies are the same."""
    realistic = "realistic constants"
    return [
        View("its graphs, its constants", False, "paper", "added-energy", found),
        View(f"its graphs, {realistic}, added energy", False, "estimate", "added-energy", found),
        View(f"its graphs, {realistic}, whole board", False, "estimate", "energy", found),
        View(f"whole steps, {realistic}, added energy", True, "estimate", "added-energy", found),
        View(f"whole steps, {realistic}, whole board", True, "estimate", "energy", found),
    ]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper."""

    text: str
    paper: str  # the paper's number
    ours: Callable[[View], str]  # the same number in a view


def claims() -> list[Claim]:
    return [
        Claim(
            "Energy overhead over keeping everything, ResNet-18 on the Cortex-A72",
            "POET below 1 %, Capuchin 73 to 141 %",
            overheads,
        ),
        Claim("Less energy than DTR on the Jetson TX2", "up to 35 %", less_than_dtr),
        Claim(
            "Less energy than paging alone, than rematerialisation alone", "up to 40 %", less_alone
        ),
        Claim("Less peak memory, more throughput than POFO", "8.3 %, 13 %", against_pofo),
        Claim("Time for solving", "under ten minutes", solving),
        Claim("Size of a schedule", "a few hundred bytes", sizes),
    ]


def overheads(view: View) -> str:
    settings = resnet_on_a72(view)
    texts = []
    for method in ("poet", "capuchin"):
        known = [share for setting in settings if (share := setting.overhead(method)) is not None]
        span = f"{percent(min(known), 1)} to {percent(max(known), 1)} %" if known else "no plan"
        texts.append(f"{method} {span}")
    return ", ".join(texts) if settings else NOTHING


def resnet_on_a72(view: View) -> list[Setting]:
    """Settings with Capuchin too, in the order of RAM."""
    found = view.of(model="resnet18-cifar", board="rpi4b")
    tried = [setting for setting in found if "capuchin" in setting.results]
    return sorted(tried, key=lambda setting: setting.point.ram_bytes)


def less_than_dtr(view: View) -> str:
    return less(list(view.of(board="jetson_tx2")), "dtr") or NOTHING


def less_alone(view: View) -> str:
    settings = list(view.of(free=False))
    texts = [less(settings, other) for other in ("poet-paging", "poet-remat")]
    return "; ".join(text for text in texts if text) or NOTHING


def savings(settings: Iterable[Setting], other: str) -> list[tuple[float, Setting]]:
    """Settings in which poet and another method have plans, with what poet saves."""
    shares = ((setting.saving(other), setting) for setting in settings)
    return [(share, setting) for share, setting in shares if share is not None]


def less(settings: Sequence[Setting], other: str) -> str:
    """How much less poet spends than another method: the largest saving and the median.

    Empty if there is no plan to compare with.
    """
    known = savings(settings, other)
    if not known:
        return ""
    most, where = max(known, key=lambda pair: pair[0])
    middle = percent(median(share for share, _ in known), 1)
    alone = no_plan_but_poet(settings, other)
    text = f"{other}: up to {percent(most, 1)} % ({where.name}), median {middle} % of {len(known)}"
    return text + (f"; at {alone} more it is proved to have none" if alone else "")


def no_plan_but_poet(settings: Sequence[Setting], other: str) -> int:
    """Settings in which poet has a plan, and the other is proved to have none."""
    tried = [setting for setting in settings if other in setting.results]
    proved = [s for s in tried if s.results[other].row["status"] == "infeasible"]
    return sum(s.plan("poet") is not None for s in proved)


def against_pofo(view: View) -> str:
    """For each model, over its boards: peak memory, and steps per hour there and in POFO's RAM."""
    texts = []
    every = rivals(view)
    for model in dict.fromkeys(rival.least.point.case.model for rival in every):
        mine = [rival for rival in every if rival.least.point.case.model == model]
        below = [won for rival in mine if (won := rival.won(less=True)) is not None]
        equal = [won for rival in mine if (won := rival.won(less=False)) is not None]
        if below and equal:
            texts.append(
                f"{model}: {percent(max(share for share, _ in below), 1)} % less with "
                f"{_span(below)} throughput, {_span(equal)} in the same RAM"
            )
    return "; ".join(texts) or NOTHING


def _span(found: Sequence[tuple[float, float]]) -> str:
    """The range of the second numbers."""
    shares = sorted(round(100 * share, 1) + 0.0 for _, share in found)  # no -0.0
    least, most = f"{shares[0]:+.1f}", f"{shares[-1]:+.1f}"
    return f"{least} %" if least == most else f"{least} to {most} %"


@dataclass(frozen=True)
class Rival:
    """POFO in the least RAM in which it has a plan, and POET's plans there and in less."""

    least: Setting
    others: list[Setting]

    @property
    def time_us(self) -> float:
        return self.least.value("pofo", "time_us") or 0.0

    def fastest(self, *, less: bool) -> Setting | None:
        """The setting of POET's fastest plan in POFO's RAM, or in less."""
        most = self.least.point.ram_bytes
        planned = [
            setting
            for setting in (self.least, *self.others)
            if (setting.point.ram_bytes < most) == less and setting.plan("poet")
        ]
        return min(planned, key=lambda it: it.value("poet", "time_us") or 0.0, default=None)

    def won(self, *, less: bool) -> tuple[float, float] | None:
        """Shares: how much less RAM POET's fastest plan needs, how many more steps an hour."""
        found = self.fastest(less=less)
        time_us = found.value("poet", "time_us") if found else None
        if found is None or not time_us:
            return None
        ram = found.point.ram_bytes
        return 1 - ram / self.least.point.ram_bytes, self.time_us / time_us - 1


def rivals(view: View) -> list[Rival]:
    """One for each model and board on which POET was tried in less RAM than POFO's least."""
    found = []
    for model in RIVALS:
        boards = dict.fromkeys(setting.point.case.board for setting in view.of(model=model))
        for board in boards:
            every = [
                setting
                for setting in view.of(model=model, board=board, free=False)
                if "poet" in setting.results
            ]
            known = [s for s in every if s.plan("pofo") and s.point.deadline_us is None]
            if known:
                least = min(known, key=lambda setting: setting.point.ram_bytes)
                most = least.point.ram_bytes
                others = [s for s in every if s.point.ram_bytes <= most and s is not least]
                if others:
                    found.append(Rival(least, others))
    return found


def solving(view: View) -> str:
    settings = view.of(free=False)
    rows = [setting.results["poet"].row for setting in settings if "poet" in setting.results]
    if not rows:
        return NOTHING
    seconds = [float(row["solve_s"]) for row in rows]
    gaps = [row["gap"] for row in rows if row["gap"] is not None]
    never = sum(row["status"] == "infeasible" for row in rows)
    proved = sum(gap <= GAP for gap in gaps) + never
    unbound = len(rows) - len(gaps) - never
    text = (
        f"median {number(median(seconds), 1)} s, at most {number(max(seconds), 1)} s; {proved} of "
        f"{len(rows)} proved to {percent(GAP, 1)} %"
    )
    if gaps and max(gaps) > GAP:
        text += f", {len(gaps) + never - proved} to {percent(max(gaps), 1)} % at worst"
    return text + (f", {unbound} without answer" if unbound else "")


def _encoded(case: Case, plan: Plan) -> Schedule:
    if case.model.startswith(PREFIX):
        return encode_costs(case.costs, plan)
    return encode(api.load_graph(case.model), plan)  # costs cannot hold tensors that stay


def sizes(view: View) -> str:
    """The sizes of poet's schedules, as boards receive them."""
    found, too_large = [], 0
    for setting in view.of(free=False):
        plan = setting.plan("poet")
        if plan is not None:
            try:
                found.append(len(_encoded(setting.point.case, plan).plan_part))
            except PoetError:
                too_large += 1
    if not found:
        return NOTHING
    text = f"{min(found):,} to {max(found):,} bytes, median {median(found):,.0f}"
    return text + (f"; {too_large} exceed the format" if too_large else "")
