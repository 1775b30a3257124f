"""Evidence for the claims: tables, and the plans that the numbers come from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.plan import Plan, moved_bytes
from poet_host.plan.problem import Objective

from ..graphs import UNCACHED_BYTES_PER_US, UNCACHED_PAGE_OUT_US, Kind
from ..report import number, percent
from .claims import (
    Found,
    Rival,
    Setting,
    View,
    no_plan_but_poet,
    resnet_on_a72,
    rivals,
    savings,
    views,
)
from .points import (
    CARD_BOARDS,
    GAP,
    MODELS,
    PREFIX,
    RANKED,
    VARIANTS,
    reference_case,
)

OVERHEAD_HEAD = (
    "graph, constants", "RAM, bytes", "poet", "poet-paging", "poet-remat", "dtr", "capuchin",
    "poet, waiting", "capuchin, waiting", "poet began from",
)  # fmt: skip


def overhead_rows(found: Found) -> Iterator[Sequence[str]]:
    """ResNet-18 on the A72, a row for each RAM budget."""
    for view in (*views(found)[:1], *_variants(found), *views(found)[1:]):
        for setting in resnet_on_a72(view):
            methods = ("poet", "poet-paging", "poet-remat", "dtr", "capuchin")
            overs = [percent(setting.overhead(m), 1) for m in methods]
            overs += [percent(_waiting(setting, m), 1) for m in ("poet", "capuchin")]
            yield view.title, f"{setting.point.ram_bytes:,}", *overs, setting.began_from()


def _variants(found: Found) -> Iterator[View]:
    for kind, words in VARIANTS.items():
        yield View(f"its graphs, its constants, {words}", False, kind, "added-energy", found)


def _waiting(setting: Setting, method: str) -> float | None:
    """Energy above keeping everything, as a share of it, as if nothing overlapped."""
    plan, keeping = setting.plan(method), setting.point.case.keeping
    if plan is None or keeping is None:
        return None
    return _waiting_uj(setting, plan) / _waiting_uj(setting, keeping) - 1


def _waiting_uj(setting: Setting, plan: Plan) -> float:
    """As if nothing overlapped: during transfers the processor draws its power and waits."""
    nodes = {node.name: node for node in setting.point.case.costs.nodes}
    outs = sum(nodes[it.node].page_out_us for it in plan.statements if it.op == "page_out")
    ins = sum(nodes[it.node].page_in_us for it in plan.statements if it.op == "page_in")
    power = max(node.energy_uj / node.time_us for node in nodes.values() if node.time_us)
    base_uj = 0.0
    if setting.objective == "energy":
        computed = sum(
            nodes[it.node].mode(it.mode).time_us for it in plan.statements if it.op == "compute"
        )
        base_uj = setting.point.case.costs.base_power_uw * (computed + outs + ins) / 1e6
    return (plan.energy_uj or 0.0) + (outs + ins) * power + base_uj


def paging_everything() -> dict[str, str]:
    """The energy of paging every result of ResNet-18 out and in on the A72.

    It is a share of the energy of computing them, for each of the two energies per FLOP. `ratio` is
    that of the two energies.
    """
    shares, computing = [], []
    kinds: tuple[Kind, ...] = ("paper", "repository")
    for kind in kinds:
        costs = reference_case("resnet18-cifar", "rpi4b", kind).costs
        once_uj = sum(node.energy_uj for node in costs.nodes)
        paged_uj = sum(node.page_out_uj + node.page_in_uj for node in costs.nodes)
        shares.append(percent(paged_uj / once_uj, 1))
        computing.append(once_uj)
    return {
        "all_paged": shares[0], "all_paged_repository": shares[1],
        "ratio": number(computing[1] / computing[0], 1),
        "uncached_us": number(UNCACHED_PAGE_OUT_US, 0), "uncached_rate": f"{UNCACHED_BYTES_PER_US}",
    }  # fmt: skip


ALONE_HEAD = (
    "graph, constants", "model", "points", "than paging alone", "proved to have no plan",
    "than rematerialisation alone", "proved to have no plan", "than the better of both",
)  # fmt: skip


def alone_rows(found: Found) -> Iterator[Sequence[str]]:
    for view in views(found):
        for model in MODELS:
            settings = list(view.of(model=model, free=False))
            if settings:
                yield (view.title, model, f"{len(settings)}", *_alone(settings))


def _alone(settings: Sequence[Setting]) -> Iterator[str]:
    for other in ("poet-paging", "poet-remat"):
        known = [share for share, _ in savings(settings, other)]
        yield percent(max(known), 1) if known else "-"
        yield str(no_plan_but_poet(settings, other))
    both = [min(shares) for setting in settings if (shares := _savings(setting))]
    yield percent(max(both), 1) if both else "-"


def _savings(setting: Setting) -> list[float]:
    found = [setting.saving(other) for other in ("poet-paging", "poet-remat")]
    return [share for share in found if share is not None]


SAME = 0.0005
DTR_HEAD = (
    "graph, constants", "model", "RAM, bytes", "poet", "dtr", "dtr-eq", "less than dtr",
    "poet-remat", "poet began from",
)  # fmt: skip


def dtr_rows(found: Found) -> Iterator[Sequence[str]]:
    """Overheads on the TX2, where they are not the same to 0.1 per cent."""
    for view in views(found):
        for model in MODELS:
            for setting in view.of(model=model, board="jetson_tx2"):
                saved = setting.saving("dtr")
                if "dtr" in setting.results and (saved is None or abs(saved) >= SAME):
                    overs = [percent(setting.overhead(m), 1) for m in ("poet", "dtr", "dtr-eq")]
                    yield (
                        view.title, model, f"{setting.point.ram_bytes:,}", *overs,
                        percent(saved, 1), percent(setting.overhead("poet-remat"), 1),
                        setting.began_from(),
                    )  # fmt: skip


POFO_HEAD = (
    "graph, constants", "model", "board", "plan of", "RAM, bytes", "RAM, %", "time, ms",
    "throughput, %", "added energy, mJ", "whole board, mJ",
)  # fmt: skip


def pofo_rows(found: Found) -> Iterator[Sequence[str]]:
    """Table 3: POET's fastest plans of those tried, next to POFO's."""
    for view in views(found):
        for rival in rivals(view):
            case = rival.least.point.case
            names = (view.title, case.model, case.board)
            yield *names, "pofo", *_costs(rival, (rival.least, "pofo"))
            for less in (False, True):
                fastest = rival.fastest(less=less)
                if fastest is not None:
                    yield *names, "poet", *_costs(rival, (fastest, "poet"))


def _costs(rival: Rival, planned: tuple[Setting, str]) -> Iterator[str]:
    """RAM, time and energies; RAM and throughput also as shares of POFO's."""
    setting, method = planned
    ram, time_us = setting.point.ram_bytes, setting.value(method, "time_us") or 0.0
    yield f"{ram:,}"
    yield percent(ram / rival.least.point.ram_bytes, 1)
    yield number(time_us / 1e3, 1)
    yield f"{100 * (rival.time_us / time_us - 1) + 0.0:+.1f}"
    for key in ("energy_uj", "total_energy_uj"):
        yield number((setting.value(method, key) or 0.0) / 1e3)


BEATEN_HEAD = (
    "graph, constants", "model", "board", "RAM, bytes", "poet", "its gap", "the best", "by",
)  # fmt: skip


def beaten_rows(found: Found) -> Iterator[Sequence[str]]:
    """Settings in which another method's plan needs less energy than poet's, by more than GAP."""
    for view in views(found):
        for setting in view.of():
            mine = setting.energy_uj("poet")
            energies = {name: setting.energy_uj(name) for name in setting.results}
            others = {name: uj for name, uj in energies.items() if uj is not None}
            best = min(others, key=lambda name: others[name], default="poet")
            if mine is not None and others[best] < mine * (1 - GAP):
                case, over = setting.point.case, setting.overhead("poet")
                gap = setting.value("poet", "gap")
                yield (
                    view.title, case.model, case.board, f"{setting.point.ram_bytes:,}",
                    percent(over, 1), percent(gap, 1), best, percent(setting.overhead(best), 1),
                )  # fmt: skip


RANKED_HEAD = (
    "graph", "model", "board", "RAM, bytes", "energy", "methods", "100 mA, mJ", "20 mA, mJ",
)  # fmt: skip


def ranked_rows(found: Found) -> Iterator[Sequence[str]]:
    """Pairs of methods, of which a card of 20 mA makes the other one need less energy."""
    for one, other, pair in ranked_pairs(found):
        yield from _turned(one, other, pair)


def ranked_pairs(found: Found) -> Iterator[tuple[Setting, Setting, tuple[str, str]]]:
    """Pairs of methods with plans for both cards, and their settings at 100 mA and at 20 mA."""
    objectives: tuple[Objective, ...] = ("added-energy", "energy")
    for whole, objective in product((False, True), objectives):
        usual, frugal = (
            View("", whole, kind, objective, found) for kind in ("estimate", "estimate-20mA")
        )
        for one, other in _same_places(usual, frugal):
            known = [m for m in RANKED if one.plan(m) is not None and other.plan(m) is not None]
            for pair in combinations(known, 2):
                yield one, other, pair


def _same_places(usual: View, frugal: View) -> Iterator[tuple[Setting, Setting]]:
    others = {_place(setting): setting for setting in frugal.of()}
    for setting in usual.of():
        if setting.point.case.board in CARD_BOARDS and _place(setting) in others:
            yield setting, others[_place(setting)]


def _place(setting: Setting) -> tuple[str, str, int]:
    return setting.point.case.model, setting.point.case.board, setting.point.ram_bytes


def _turned(one: Setting, other: Setting, pair: tuple[str, str]) -> Iterator[Sequence[str]]:
    energies = [[setting.energy_uj(method) for method in pair] for setting in (one, other)]
    if _sign(*energies[0]) * _sign(*energies[1]) >= 0:
        return
    case = one.point.case
    yield (
        "the paper’s" if case.model.startswith(PREFIX) else "whole step", case.model, case.board,
        f"{one.point.ram_bytes:,}",
        "added" if one.objective == "added-energy" else "whole board", f"{pair[0]}, {pair[1]}",
        *(", ".join(number((uj or 0.0) / 1e3) for uj in mine) for mine in energies),
    )  # fmt: skip


def _sign(one: float | None, other: float | None) -> int:
    """Which one is less, if they differ by more than the gap to which points are solved."""
    one, other = one or 0.0, other or 0.0
    return 0 if abs(one - other) <= GAP * max(one, other) else 1 if one > other else -1


STREAMED_HEAD = (
    "model", "board", "RAM, KiB", "floor, KiB", "time, x", "added energy, x", "whole board, x",
    "moved, MB", "gap, %",
)  # fmt: skip


def streamed_rows(found: Found) -> Iterator[Sequence[str]]:
    """Whole steps below their floor, in multiples of keeping everything."""
    for point, result in found:
        case, plan, row = point.case, result.plan, result.row
        if case.profile == "streamed" and plan is not None and case.keeping is not None:
            assert case.whole_costs is not None
            floor = largest_operator_bytes(case.whole_costs)
            shares = [
                number(row[key] / getattr(case.keeping, key))
                for key in ("time_us", "energy_uj", "total_energy_uj")
            ]
            yield (
                case.model, case.board, f"{point.ram_bytes // 1024}", f"{floor / 1024:.0f}",
                *shares, number(sum(moved_bytes(case.costs, plan)) / 1e6),
                percent(row["gap"], 1),
            )  # fmt: skip


ORIGINS_HEAD = ("graph, constants", "plans of poet", "began from")


def origins_rows(found: Found) -> Iterator[Sequence[str]]:
    """Whose plans the searches of poet began from, where these were better than its own."""
    for view in views(found):
        began = [
            setting.began_from() for setting in view.of(free=False) if setting.plan("poet")
        ]  # fmt: skip
        if began:
            counted = Counter(began).most_common()
            yield (
                view.title, f"{len(began)}", ", ".join(f"{name} {n}" for name, n in counted),
            )  # fmt: skip


def cited(found: Found) -> list[dict[str, Any]]:
    """Rows whose plans stay with the report: extremes of the claims, and plans at the floors."""
    rows = [
        result.row for point, result in found
        if point.ram_bytes == largest_operator_bytes(point.case.costs)
    ]  # fmt: skip
    for view in views(found):
        rows += _tightest(resnet_on_a72(view), "capuchin")
        rows += _farthest(list(view.of(board="jetson_tx2")), "dtr")
        for other in ("poet-paging", "poet-remat"):
            rows += _farthest(list(view.of(free=False)), other)
        for rival in rivals(view):
            if rival.least.point.case.board == "jetson_tx2":
                rows += [
                    setting.results[method].row
                    for setting in (rival.least, *rival.others)
                    for method in ("poet", "pofo")
                    if method in setting.results
                ]
    return [row for row in rows if row["plan"]]


def _tightest(settings: Sequence[Setting], other: str) -> list[dict[str, Any]]:
    known = [setting for _, setting in savings(settings, other)]
    return _both(min(known, key=lambda setting: setting.point.ram_bytes, default=None), other)


def _farthest(settings: Sequence[Setting], other: str) -> list[dict[str, Any]]:
    _, farthest = max(savings(settings, other), key=lambda pair: pair[0], default=(0.0, None))
    return _both(farthest, other)


def _both(setting: Setting | None, other: str) -> list[dict[str, Any]]:
    return [] if setting is None else [setting.results[name].row for name in ("poet", other)]
