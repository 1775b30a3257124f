"""A step whose page-in can overlap with a compute: two tensors come in, one is computed on."""

from typing import Any

from poet_host.device.device import TENSOR, Device
from poet_host.graph.graph import Graph, Node
from poet_host.plan.plan import Plan, Statement
from poet_host.schedule.encode import encode


class Overlap:
    """The step on a board. `shape`: of the tensors a and b that come in one after the other."""

    def __init__(self, device: Device, shape: tuple[int, int, int, int]) -> None:
        attrs = dict(zip("nchw", shape, strict=True))
        nodes = (
            Node("a", shape, "data"),
            Node("b", shape, "data"),
            Node("r", shape, op="relu", inputs=("a",), attrs=attrs),
            Node("loss", (1,), op="mse", inputs=("r", "b"), attrs=attrs),
        )
        size = nodes[0].size_bytes
        statements = (
            Statement("page_in", "a", 0),
            Statement("page_in", "b", size),
            Statement("compute", "r", 2 * size),
            Statement("compute", "loss", 3 * size),
        )
        plan = Plan("feasible", 4 * size, statements=statements)
        schedule = encode(Graph("overlap", nodes, "a", "b", "loss", "r"), plan)
        device.format()
        device.load(schedule.model_part, schedule.plan_part)
        self.device, self.size_bytes = device, size
        self.send_batch()
        device.begin(0)

    def send_batch(self) -> None:
        for number in (0, 1):
            self.device.write(TENSOR, number, bytes(self.size_bytes))

    def run(self, step: int) -> tuple[Any, Any]:
        """Run a step; return the trace records of the page-in of b and of the compute of r."""
        self.send_batch()
        self.device.step(step, 0, 10)
        trace = self.device.trace()  # page_in a, page_in b, wait, compute r, wait, compute loss
        return trace[1], trace[3]
