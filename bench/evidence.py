"""Evidence for the claims: tables, and the plans that the numbers come from."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.plan import Plan

from .claims import Found, Setting, View, no_plan_but_poet, resnet_on_a72, rivals, savings, views
from .graphs import Kind
from .paper_points import FASTER, GAP, LESS_PEAK, MODELS, reference_case
from .report import number, percent

OVERHEAD_HEAD = (
    "graph, constants", "RAM, bytes", "poet", "poet-paging", "poet-remat", "dtr", "capuchin",
    "poet, waiting", "capuchin, waiting", "poet, whole board", "capuchin, whole board",
)  # fmt: skip
Account = Callable[[Setting, Plan], float]
"""The energy of a plan by another rule than the verifier's."""


def overhead_rows(found: Found) -> Iterator[Sequence[str]]:
    """ResNet-18 on the A72, a row for each RAM budget."""
    kinds = {"paper": "its", "repository": "its repository’s", "estimate": "realistic"}
    for whole in (False, True):
        for kind, word in kinds.items():
            view = View("", whole, kind, found)
            for setting in resnet_on_a72(view):
                methods = ("poet", "poet-paging", "poet-remat", "dtr", "capuchin")
                overs = [percent(setting.overhead(m), 1) for m in methods]
                for account in (_waiting_uj, _whole_board_uj):
                    overs += [percent(_over(setting, m, account), 1) for m in ("poet", "capuchin")]
                name = f"{'whole step' if whole else 'the paper’s'}, {word}"
                yield name, f"{setting.point.ram_bytes:,}", *overs


def _over(setting: Setting, method: str, account: Account) -> float | None:
    """Energy above keeping everything, as a share of it; both by `account`."""
    plan, keeping = setting.plan(method), setting.point.case.keeping
    if plan is None or keeping is None:
        return None
    return account(setting, plan) / account(setting, keeping) - 1


def _waiting_uj(setting: Setting, plan: Plan) -> float:
    """As if nothing overlapped: during transfers the processor draws its power and waits."""
    nodes = {node.name: node for node in setting.point.case.costs.nodes}
    outs = sum(nodes[it.node].page_out_us for it in plan.statements if it.op == "page_out")
    ins = sum(nodes[it.node].page_in_us for it in plan.statements if it.op == "page_in")
    power = max(node.energy_uj / node.time_us for node in nodes.values() if node.time_us)
    return (plan.energy_uj or 0.0) + (outs + ins) * power


def _whole_board_uj(setting: Setting, plan: Plan) -> float:
    """With the power of the sleeping board, during the whole step."""
    base_uw = setting.point.case.costs.base_power_uw
    return (plan.energy_uj or 0.0) + base_uw * (plan.time_us or 0.0) / 1e6


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
    }  # fmt: skip


ALONE_HEAD = (
    "graph, constants", "model", "points", "than paging alone", "it has no plan",
    "than rematerialisation alone", "it has no plan", "than the better of both",
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
DTR_HEAD = ("graph, constants", "model", "RAM, bytes", "poet", "dtr", "less", "poet-remat")


def dtr_rows(found: Found) -> Iterator[Sequence[str]]:
    """Overheads on the TX2, where they are not the same to 0.1 per cent."""
    for view in views(found):
        for model in MODELS:
            for setting in view.of(model=model, board="jetson_tx2"):
                saved = setting.saving("dtr")
                if "dtr" in setting.results and (saved is None or abs(saved) >= SAME):
                    overs = [percent(setting.overhead(m), 1) for m in ("poet", "dtr")]
                    yield (
                        view.title, model, f"{setting.point.ram_bytes:,}", *overs,
                        percent(saved, 1), percent(setting.overhead("poet-remat"), 1),
                    )  # fmt: skip


POFO_HEAD = (
    "graph, constants", "model", "board", "POFO: least RAM", "time, ms", "energy, mJ",
    "POET: the same RAM: time, ms", "energy, mJ", "POET: less RAM", "time, ms", "energy, mJ",
)  # fmt: skip


def pofo_rows(found: Found) -> Iterator[Sequence[str]]:
    """Table 3: POET's fastest plans of those tried."""
    for view in views(found):
        for rival in rivals(view):
            case, least = rival.least.point.case, rival.least
            same, less_ram = rival.fastest(less=False), rival.fastest(less=True)
            theirs = (least.point.ram_bytes, rival.time_us, least.value("pofo", "energy_uj") or 0.0)
            yield (
                view.title, case.model, case.board, *_costs(theirs), *_costs(same)[1:],
                *_costs(less_ram),
            )  # fmt: skip


def _costs(found: tuple[int, float, float] | None) -> tuple[str, str, str]:
    if found is None:
        return ("-", "-", "-")
    return (f"{found[0]:,}", number(found[1] / 1e3, 1), number(found[2] / 1e3))


ASKED = (
    f"POET was asked for the least energy, and for a plan {percent(FASTER - 1, 0)} % faster than "
    f"POFO's, in the same RAM and in {percent(1 - LESS_PEAK, 1)} % less (or at the floor, which "
    "is more); its fastest plan stands here."
)


BEATEN_HEAD = (
    "graph, constants", "model", "board", "RAM, bytes", "poet", "its gap", "the best", "by",
)  # fmt: skip


def beaten_rows(found: Found) -> Iterator[Sequence[str]]:
    """Settings in which another method's plan needs less energy than poet's, by more than GAP."""
    for view in views(found):
        for setting in view.of():
            mine = setting.value("poet", "energy_uj")
            energies = {name: setting.value(name, "energy_uj") for name in setting.results}
            others = {name: uj for name, uj in energies.items() if uj is not None}
            best = min(others, key=lambda name: others[name], default="poet")
            if mine is not None and others[best] < mine * (1 - GAP):
                case, over = setting.point.case, setting.overhead("poet")
                gap = setting.value("poet", "gap")
                yield (
                    view.title, case.model, case.board, f"{setting.point.ram_bytes:,}",
                    percent(over, 1), percent(gap, 1), best, percent(setting.overhead(best), 1),
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
            if rival.least.point.case.board == "nrf52840_dk":
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
