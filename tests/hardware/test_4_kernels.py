"""One step of models that use every kernel gives the host's bits."""

from collections.abc import Callable

import numpy as np
import pytest
from poet_host import api
from poet_host.device.device import Device
from poet_host.graph.autodiff import Adam, Sgd, training_graph
from poet_host.graph.builder import Model
from poet_host.graph.graph import Graph
from poet_host.reference.step import run_step
from poet_host.schedule.schedule import Schedule

from tests.firmware.test_kernels_step import classifier, random_value, regression, transformer
from tests.hardware.rig import look, prepare, weights

MODELS: dict[str, Callable[[], tuple[Model, Sgd | Adam, str]]] = {
    "convolutions": lambda: (classifier(), Sgd(0.05, 0.9, 0.01), "all"),
    "frozen": lambda: (classifier(), Sgd(0.05), "last:1"),
    "linear": lambda: (regression(), Sgd(0.05, 0.9), "all"),
    "attention": lambda: (transformer(), Adam(0.01), "all"),
}


def fitting(device: Device, graph: Graph) -> Schedule:
    """A schedule for the board's arena, and for its tables: less RAM holds fewer tensors."""
    info = device.info
    profile = api.estimate_profile(api.load_board(info.board))
    ram = min(info.arena_bytes, api.keep_everything(api.costs_of(graph, profile)).peak_bytes or 0)
    for share in (1.0, 0.7, 0.5, 0.35):
        plan = api.solve(graph, profile, ram=int(share * ram), gap=0.99, time_limit_s=60)
        schedule = api.encode(graph, profile, plan)
        header = schedule.header
        if (
            header.resident_max <= info.resident_capacity
            and header.queue_max <= info.queue_capacity
        ):
            return schedule
    raise AssertionError(f"no schedule of {graph.name} fits the tables of {info.board}")


@pytest.mark.parametrize("name", MODELS)
def test_a_step_has_the_bits_of_the_host(device: Device, name: str) -> None:
    model, optimiser, trained = MODELS[name]()
    graph = training_graph(model, optimiser, trained)
    rng = np.random.default_rng(1)
    stored = {node.name: random_value(rng, node) for node in graph if node.stored}
    schedule = fitting(device, graph)
    wanted = run_step(graph, stored, 1)
    with look("the compiler's flags (-ffp-contract=off, no fast-math) and the FPU's rounding mode"):
        prepare(device, schedule, stored)
        result = device.step(1)
        assert result.loss == np.float32(wanted[graph.loss][0])
        found = weights(device, graph, schedule)
        for node in graph:
            if node.updates:
                assert found[node.updates] == wanted[node.name].tobytes(), (
                    f"{node.updates}, renewed by {node.op}, differs from the host's"
                )
