"""The demo network trains on the board as it does on the host, within the board's stack."""

import numpy as np
from poet_host import api
from poet_host.data.datasets import load_data
from poet_host.data.fitted import batch_of_step, fit
from poet_host.graph.weights import start_values
from support import whole_runs as runs

from tests.hardware.rig import Rig, look, prepare, weights

STEPS = 4
STACK_SPARE_BYTES = 128


def test_training_gives_the_weights_of_the_host(rig: Rig) -> None:
    graph, data = runs.digits(), load_data("digits")
    wanted = runs.train(runs.schedule(graph), data, steps=STEPS)
    profile = api.estimate_profile(api.load_board(rig.board))
    plan = api.solve(graph, profile, ram="24KiB", gap=0.99, time_limit_s=60)
    schedule = api.encode(graph, profile, plan)
    fitted, start = fit(data, graph), dict(start_values(graph, 0))
    with (
        look("the tests before this one: the first differing step names the tensor"),
        rig.connect() as device,
    ):
        x, y = batch_of_step(fitted, graph.batch, 0, 0)
        prepare(device, schedule, {**start, graph.data: x, graph.label: y})
        for step in range(STEPS):
            x, y = batch_of_step(fitted, graph.batch, 0, step)
            for name, array in ((graph.data, x), (graph.label, y)):
                device.write(2, schedule.names.index(name), np.ascontiguousarray(array).tobytes())
            result = device.step(step + 1)
            assert result.loss == wanted.steps[step].loss, f"step {step + 1} has another loss"
            assert result.peak_bytes <= 24 * 1024
        for name, found in weights(device, graph, schedule).items():
            assert found == wanted.weights[name].tobytes(), f"{name} differs from the host's"
    if rig.simulated:
        spare = rig.simulated.meter.stack_free_bytes
        assert spare >= STACK_SPARE_BYTES, f"only {spare} bytes of stack were left"
        assert rig.simulated.ended is None
