"""What the benchmarks solve: the reference repository's graphs, and real training graphs."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from poet_host.device.board import Board, Paper, load_board
from poet_host.plan.costgraph import load_cost_graph
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.profile.profile import Profile, estimate_profile

INSTANCES = Path(__file__).with_name("instances")
M4 = "nrf52840_dk"  # whose costs the instances have
FLOP_PER_MAC = 2

# ShishirPatil/poet, poet/chipsets.py, RPi: 16283 x 10^5 FLOP in 13.53 s at 3 W. Its times are
# those of 2 GFLOP/s. On the other boards, energies and times have the same rate.
A72_FLOP_PER_UJ = 1628.3 / (13.53 * 3.0)

# The same file, RPiNoCache: page-outs of a Raspberry Pi that does not cache them.
UNCACHED_PAGE_OUT_US, UNCACHED_BYTES_PER_US = 4235.32, 17.1

# An SD card may draw 100 mA at default speed (SD specification); small cards draw 20 mA at the
# clocks of these boards. At 3.3 V.
FRUGAL_CARD_UW = 20 * 3300

Kind = Literal[
    "paper", "repository", "nocache", "x10", "nocache-x10", "estimate", "estimate-20mA"
]  # fmt: skip


def reference(name: str, board: str = M4, kind: Kind = "paper") -> CostGraph:
    """A graph of the reference repository, as "vgg16-cifar", with a board's costs.

    The times in the instances are FLOP / rate of an M4, which gives the FLOP. "paper": time is
    FLOP / the paper's rate, a transfer takes latency + bytes / bandwidth, energy is time x power.
    "repository": the same, but the A72's energy of computing is FLOP / (FLOP per joule), as in the
    repository's table. "nocache": page-outs of a Raspberry Pi without its cache. "x10": transfers
    with ten times the power, which the repository's option `mem_power_scale` sets. "estimate": the
    board's estimated rate for multiply-accumulates, and its estimated transfers. "estimate-20mA":
    the same, with a card that draws 20 mA instead of 100 mA.
    """
    graph = load_cost_graph(INSTANCES / f"ref-{name}-m4.graph.json")
    if kind in ("estimate", "estimate-20mA"):
        return _estimated(graph, profile_of(board, kind))
    if kind == "repository":
        return _with_flop_per_uj(reference(name, board), graph, A72_FLOP_PER_UJ)
    if board == M4:
        return graph
    m4, other = _paper(M4), _variant(_paper(board), kind)
    nodes = tuple(_on(node, m4, other) for node in graph.nodes)
    return replace(graph, name=f"{graph.name} on {board}", nodes=nodes)


def profile_of(board: str, kind: Kind = "estimate") -> Profile:
    """The estimated profile of a board: "estimate" or "estimate-20mA"."""
    return estimate_profile(_with_frugal_card(load_board(board)) if kind != "estimate" else board)


EIGHT_LAYERS_RAM = 44 * 1024  # of the 68 KiB of keeping everything


def eight_layers() -> CostGraph:
    """A chain of eight layers and their gradients, for the story of the paper's figure 2.

    Layers 2 and 3 are cheap (5 ms and 5 uJ), layers 5 and 6 dear (60), the others between them
    (20). A transfer takes 8 ms and 8 uJ.
    """
    costs = (20, 5, 5, 20, 60, 60, 20, 20)
    sizes = (4, 4, 4, 4, 8, 8, 4, 16)
    nodes: list[CostNode] = []

    def add(name: str, layer: int, inputs: Iterable[int], times: int = 1) -> int:
        cost = float(times * costs[layer])
        nodes.append(
            CostNode(
                name, tuple(inputs), 1024 * sizes[layer], time_us=1e3 * cost, energy_uj=cost,
                page_in_us=8e3, page_in_uj=8.0, page_out_us=8e3, page_out_uj=8.0,
            )
        )  # fmt: skip
        return len(nodes) - 1

    for layer in range(8):
        add(f"L{layer + 1}", layer, range(layer - 1, layer) if layer else ())
    gradient: tuple[int, ...] = ()
    for layer in reversed(range(8)):
        inputs = (*range(max(0, layer - 1), layer + 1), *gradient)
        gradient = (add(f"G{layer + 1}", layer, inputs, times=2),)
    return CostGraph("eight layers", tuple(nodes))


def training(name: str, board: str) -> CostGraph:
    """A whole training step, priced by the board.toml files of commit 13d07bf."""
    return load_cost_graph(INSTANCES / f"step-{name}-{board}.graph.json")


def _paper(board: str) -> Paper:
    paper = load_board(board).paper
    if paper is None:
        raise ValueError(f"the paper gives no figures for {board}")
    return paper


def _variant(paper: Paper, kind: Kind) -> Paper:
    """The paper's constants, with the changes of the repository that `kind` names."""
    if kind.startswith("nocache"):
        paper = replace(
            paper, page_out_us=UNCACHED_PAGE_OUT_US, page_out_bytes_per_us=UNCACHED_BYTES_PER_US
        )
    return replace(paper, storage_uw=10 * paper.storage_uw) if kind.endswith("x10") else paper


def _with_frugal_card(board: Board) -> Board:
    power = replace(
        board.power, storage_read_uw=FRUGAL_CARD_UW, storage_write_uw=FRUGAL_CARD_UW
    )  # fmt: skip
    return replace(board, power=power)


def _flop(node: CostNode) -> float:
    """The FLOP of a node with an M4's costs."""
    return node.time_us * _paper(M4).flop_per_us


def _on(node: CostNode, m4: Paper, other: Paper) -> CostNode:
    time_us = node.time_us * m4.flop_per_us / other.flop_per_us
    page_in_us = other.page_in_us + node.bytes / other.page_in_bytes_per_us
    page_out_us = other.page_out_us + node.bytes / other.page_out_bytes_per_us
    return replace(
        node,
        time_us=time_us,
        energy_uj=time_us * other.processor_active_uw / 1e6,
        page_in_us=page_in_us,
        page_in_uj=page_in_us * other.storage_uw / 1e6,
        page_out_us=page_out_us,
        page_out_uj=page_out_us * other.storage_uw / 1e6,
    )


def _with_flop_per_uj(graph: CostGraph, of_m4: CostGraph, flop_per_uj: float) -> CostGraph:
    nodes = tuple(
        replace(node, energy_uj=_flop(m4) / flop_per_uj)
        for node, m4 in zip(graph.nodes, of_m4.nodes, strict=True)
    )
    return replace(graph, nodes=nodes)


def _estimated(of_m4: CostGraph, profile: Profile) -> CostGraph:
    return replace(
        of_m4,
        name=f"{of_m4.name} on {profile.board}, estimated",
        nodes=tuple(_estimated_node(node, profile) for node in of_m4.nodes),
        base_power_uw=profile.power.base_uw,
    )


def _estimated_node(m4: CostNode, profile: Profile) -> CostNode:
    """The node with estimated costs. A node without work, such as the data, stays free."""
    flop, rates = _flop(m4), profile.rates
    time_us = rates.base_us + rates.us_per_mac * flop / FLOP_PER_MAC if flop else 0.0
    return replace(
        m4,
        time_us=time_us,
        energy_uj=time_us * profile.power.compute_uw / 1e6,
        **asdict(profile.transfer(m4.bytes, "page")),
    )
