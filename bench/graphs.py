"""What the benchmarks solve: the reference repository's graphs, and real training graphs."""

from dataclasses import replace
from pathlib import Path

from poet_host.device.board import Paper, load_board
from poet_host.graph import models
from poet_host.plan.build import cost_graph
from poet_host.plan.costgraph import load_cost_graph
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.profile.profile import estimate_profile

INSTANCES = Path(__file__).with_name("instances")
TOKENS = 128
M4 = "nrf52840_dk"  # whose costs the instances have


def reference(name: str, board: str = M4) -> CostGraph:
    """A graph of the reference repository, as "vgg16-cifar", with the paper's costs of a board.

    The instances are FLOP / rate of an M4. Another board's times are those times the ratio of
    the rates, its transfers latency + bytes / bandwidth; energy is time x power for both.
    """
    graph = load_cost_graph(INSTANCES / f"ref-{name}-m4.graph.json")
    if board == M4:
        return graph
    m4, other = _paper(M4), _paper(board)
    nodes = tuple(_on(node, m4, other) for node in graph.nodes)
    return replace(graph, name=f"{graph.name} on {board}", nodes=nodes)


def training(name: str, board: str) -> CostGraph:
    """A built-in model's training graph, with parameters, updates and estimated costs.

    Texts have 128 tokens.
    """
    length = TOKENS if name.startswith("bert") else None
    graph = models.load(name, sequence_length=length)
    return cost_graph(graph, estimate_profile(load_board(board)))


def _paper(board: str) -> Paper:
    paper = load_board(board).paper
    if paper is None:
        raise ValueError(f"the paper gives no figures for {board}")
    return paper


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
