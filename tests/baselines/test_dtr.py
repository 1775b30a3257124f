"""DTR against an example worked by hand, its theorem, and the simulator of its authors."""

from math import inf, isqrt
from zlib import crc32

import pytest
from poet_host.baselines import dtr
from poet_host.baselines.method import EXTENSION
from poet_host.baselines.registry import plan_by
from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.settings import Settings
from support.chains import chain, with_parameters

from bench import graphs

# The authors' simulator simrd (github.com/uwsampl/dtr-prototype, commit
# eff53cc4804cc7d6246a6e5086861ce2b846f62b, RuntimeV2EagerOptimized) on the reference graphs, at 2,
# 5, 10, 15, 30, 50 and 70 % of the way from the largest operator to keep-everything. Graph, RAM
# budget in bytes, and results of its heuristics DTR and DTREqClass: the number of recomputations,
# and the CRC-32 of all computed nodes, in order, as decimal numbers with spaces between them. None:
# it runs out of memory.
RECORDED = (
    ("linear", 3336, (5, 505273221), (5, 505273221)),
    ("linear", 3464, (5, 505273221), (5, 505273221)),
    ("linear", 3672, (5, 505273221), (5, 505273221)),
    ("linear", 3880, (3, 438493284), (3, 438493284)),
    ("linear", 4504, (1, 553400009), (1, 553400009)),
    ("linear", 5336, (1, 553400009), (1, 553400009)),
    ("linear", 6168, (1, 553400009), (1, 553400009)),
    ("transformer", 31583108, (4, 2430548929), (4, 2430548929)),
    ("transformer", 31771852, (4, 2430548929), (4, 2430548929)),
    ("transformer", 32086424, (4, 2430548929), (4, 2430548929)),
    ("transformer", 32400996, (4, 2430548929), (4, 2430548929)),
    ("transformer", 33344716, (2, 704816278), (2, 704816278)),
    ("transformer", 34603008, (2, 704816278), (2, 704816278)),
    ("transformer", 35861296, (2, 704816278), (2, 704816278)),
    ("vgg16-cifar", 1076920, (15, 3625404433), (15, 3625404433)),
    ("vgg16-cifar", 1119436, (16, 2351231036), (16, 2351231036)),
    ("vgg16-cifar", 1190300, (19, 3545197575), (19, 3545197575)),
    ("vgg16-cifar", 1261164, (16, 188287641), (16, 188287641)),
    ("vgg16-cifar", 1473752, (8, 1542437962), (8, 1542437962)),
    ("vgg16-cifar", 1757204, (5, 3219719305), (5, 3219719305)),
    ("vgg16-cifar", 2040652, (3, 1753440061), (3, 1753440061)),
    ("resnet18-cifar", 305976, None, None),
    ("resnet18-cifar", 371724, (149, 862724606), (152, 3375737337)),
    ("resnet18-cifar", 481304, (78, 4086101098), (80, 415873889)),
    ("resnet18-cifar", 590884, (70, 1204756644), (66, 427965632)),
    ("resnet18-cifar", 919628, (39, 3416788205), (39, 3302738171)),
    ("resnet18-cifar", 1357952, (22, 3095577796), (22, 3095577796)),
    ("resnet18-cifar", 1796272, (13, 2738142592), (13, 2738142592)),
    ("bert", 38503708, (285, 3631733015), (287, 2171171706)),
    ("bert", 49073356, (221, 2394492339), (194, 3757206234)),
    ("bert", 66689432, (147, 1583417635), (142, 2528149178)),
    ("bert", 84305508, (120, 142026660), (110, 2536920741)),
    ("bert", 137153740, (67, 659492457), (64, 251234871)),
    ("bert", 207618048, (52, 1136885598), (49, 3563140712)),
    ("bert", 278082352, (37, 1670505823), (36, 1579113994)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ram_bytes", "exact", "classes"), RECORDED)
def test_every_computation_is_that_of_the_authors_simulator(
    name: str, ram_bytes: int, exact: tuple[int, int] | None, classes: tuple[int, int] | None
) -> None:
    graph = graphs.reference(name)
    for is_classes, recorded in ((False, exact), (True, classes)):
        events = dtr.run(graph, ram_bytes, pinned=True, classes=is_classes)
        if events is None:
            assert recorded is None
            continue
        order = " ".join(str(event.node) for event in events)
        assert (len(events) - len(graph.nodes), crc32(order.encode())) == recorded


def four(*costs: tuple[float, int]) -> dtr._Runtime:
    """a -> b -> c -> d, with times and sizes, after their computation; e needs all of them."""
    nodes = [
        CostNode(name, (k - 1,) if k else (), size, time_us=us, energy_uj=1.0)
        for k, (name, (us, size)) in enumerate(zip("abcd", costs, strict=True))
    ]
    nodes.append(CostNode("e", (0, 1, 2, 3), 4, 1.0, 1.0))
    return dtr._Runtime(CostGraph("four", tuple(nodes)), 100, True, False)


def test_the_score_by_hand() -> None:
    """b is gone. e*(a) = {b} below it; e*(c) = {b} above it."""
    machine = four((4.0, 8), (2.0, 8), (6.0, 4), (1.0, 4))
    for i in range(4):
        machine._perform(i)
    machine._run("free", 1)
    assert machine.clock_us == 13.0
    # b asked for a at 4, d for c at 12.
    assert machine.score(0) == (4.0 + 2.0) / (8 * (13.0 - 4.0))
    assert machine.score(2) == (6.0 + 2.0) / (4 * (13.0 - 12.0))
    assert machine.score(3) == inf  # computed just now
    machine._run("free", 0)
    assert machine.score(2) == (6.0 + 2.0 + 4.0) / 4  # b, and a beyond it
    machine._perform(1)  # brings back a and b
    machine._run("free", 2)
    assert machine.score(3) == (1.0 + 6.0) / (4 * (machine.clock_us - 13.0))


def test_a_class_of_evicted_tensors_is_never_split() -> None:
    """a, b and c are gone: one class of 12 us. When b is back, a and c are still one class."""
    machine = four((4.0, 8), (2.0, 8), (6.0, 4), (1.0, 4))
    machine.around = dtr._Classes(machine.around.edges)
    for i in range(4):
        machine._perform(i)
    for i in (0, 2, 1):
        machine._run("free", i)
    assert machine.around.time_us(3) == 12.0
    machine._change(1, there=True)
    assert machine.around.time_us(3) == machine.around.time_us(1) == 4.0 + 6.0
    exact = dtr._Neighbourhoods(machine.around.edges)
    assert (exact.time_us(3), exact.time_us(1)) == (6.0, 10.0)


@pytest.mark.parametrize("n", [49, 100, 196])
def test_dtr_needs_linear_work_in_root_memory(n: int) -> None:
    """The theorem on linear networks: n layers in O(n) operations with O(sqrt n) memory."""
    graph = chain([1] * n)
    plan = plan_by("dtr", Problem(graph, 2 * isqrt(n) + 3), Settings(placed=False))
    assert plan.statements
    assert sum(it.op == "compute" for it in plan.statements) <= 4 * len(graph.nodes)
    assert not plan.note


def test_dtr_keeps_parameters_unless_there_is_no_room() -> None:
    graph = with_parameters()
    assert not plan_by("dtr", Problem(graph, 160)).note
    assert plan_by("dtr", Problem(graph, 72)).note == EXTENSION
    assert plan_by("dtr", Problem(graph, 52)).status == "infeasible"
