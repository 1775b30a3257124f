"""`make bench-host`: the kernels on this computer and PyTorch, side by side, on one thread.

Steps of both alternate, so that other processes slow both down alike. Both train resnet18-cifar
from the same weights on the same batch, and must find the same losses. The time of the kernels is
that of all kernels of a step, called one after the other. The whole step is that of a native board,
whose card is a file. Counts the instructions of a convolution on AArch64, too. Prints tables and
writes RESULTS-host.md.
"""

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import cffi
import numpy as np
import poet_host as poet
import torch
from poet_host import isa
from poet_host.errors import PoetError
from poet_host.files import write_whole
from poet_host.firmware_build.native import build_library, vector_flags
from poet_host.graph.builder import Model
from poet_host.graph.models import MODELS, load as load_model
from poet_host.graph.training_options import TrainingOptions
from poet_host.graph.weights import start_values
from poet_host.resources import resource

from .instructions import instructions_per_mac
from .report import about, filled, number, table
from .torch_layers import outputs

RESULTS = Path(__file__).with_name("RESULTS-host.md")
MODEL, DATA, BATCHES, RATE = "resnet18-cifar", "synthetic:3x32x32:10", (1, 16), 0.01
WARM_UP = 5  # steps that are not measured
COMPARED = 3  # steps after which the losses may differ, as PyTorch adds in another order
LOSS_TOLERANCE = 1e-3  # relative


def _ffi() -> cffi.FFI:
    """Return the declarations of a kernel's call."""
    header = (resource("firmware") / "include" / "poet" / "kernel.h").read_text(encoding="utf-8")
    found = re.search(r"struct poet_call \{.*?\};", header, flags=re.S)
    assert found is not None
    call = re.sub(r"/\*.*?\*/", "", found[0], flags=re.S)
    ffi = cffi.FFI()
    ffi.include(isa.ffi())
    ffi.cdef(call.replace("POET_INPUTS", str(isa.constants()["POET_INPUTS"])))
    ffi.cdef("void (*poet_kernel(uint8_t code))(const struct poet_call *call);")
    return ffi


class Kernels:
    """A training step of a graph as calls of the kernels. The tensors keep their addresses."""

    def __init__(self, graph: poet.Graph, values: dict[str, np.ndarray]) -> None:
        ffi = _ffi()
        library: Any = ffi.dlopen(str(build_library()))
        self.tensors: dict[str, np.ndarray] = {}
        self.calls = []
        self._kept: list[Any] = [library]  # what the calls point to
        self.loss = graph.loss
        for node in graph:
            if node.stored:
                self.tensors[node.name] = values[node.name].copy()
                continue
            op = ffi.new("struct poet_op *", {"input_count": len(node.inputs), **node.attrs})
            op.kernel = isa.by_name("KERNEL")[node.op].code
            op.sink = isa.by_name("SINK")[node.sink].code
            out = np.zeros(node.shape, np.float32)
            if node.overwrites is not None:
                out = self.tensors[node.overwrites]
            self.tensors[node.name] = out
            call = ffi.new(
                "struct poet_call *",
                {"op": op, "whole": op, "step": 1, "first": True, "last": True},
            )
            for i, name in enumerate(node.inputs):
                getattr(call, "in")[i] = ffi.cast("void *", self.tensors[name].ctypes.data)
            call.out = ffi.cast("void *", out.ctypes.data)
            self._kept.append(op)
            self.calls.append((node, library.poet_kernel(op.kernel), call))
        # A value that was computed in new memory replaces the old one when the step ends.
        self._renewed = [
            (self.tensors[node.updates], self.tensors[node.name])
            for node in graph
            if node.updates and self.tensors[node.updates] is not self.tensors[node.name]
        ]

    def step(self, spent: dict[str, float] | None = None) -> tuple[float, float]:
        """Train one step. Return the seconds of its kernels and the loss.

        `spent`: gets the seconds of each operator added.
        """
        total = 0.0
        for node, function, call in self.calls:
            began = time.perf_counter()
            function(call)
            seconds = time.perf_counter() - began
            total += seconds
            if spent is not None:
                spent[node.op] = spent.get(node.op, 0.0) + seconds
        for old, new in self._renewed:
            old[...] = new.reshape(old.shape)
        return total, float(self.tensors[self.loss][0])


class Torch:
    """The same training step in PyTorch."""

    def __init__(self, model: Model, graph: poet.Graph, values: dict[str, np.ndarray]) -> None:
        self.model = model
        self.values = {
            node.name: torch.tensor(values[node.name]).requires_grad_(node.role == "parameter")
            for node in model.parameters
        }
        self.x = torch.tensor(values[graph.data])
        self.label = torch.tensor(values[graph.label]).long()
        trained = [value for value in self.values.values() if value.requires_grad]
        self.optimiser = torch.optim.SGD(trained, lr=RATE)

    def step(self) -> tuple[float, float]:
        """Train one step. Return the seconds that it took and the loss."""
        began = time.perf_counter()
        self.optimiser.zero_grad()
        found = outputs(self.model, self.values, self.x, self.label)
        loss = found[self.model.layers[-1].name]
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return time.perf_counter() - began, loss.item()


@dataclass(frozen=True)
class Measured:
    """Medians of a batch size, in seconds, and ratios of times that followed each other."""

    batch: int
    steps: int
    kernels: float
    whole: float
    torch: float
    kernels_ratio: float  # to PyTorch
    whole_ratio: float
    operators: dict[str, float]  # of all calls of an operator in a step


def measure(batch: int, steps: int) -> Measured:
    """Train a batch on the board, by the kernels and in PyTorch, in turns.

    Raises PoetError if the losses of the kernels and of PyTorch differ.
    """
    graph = load_model(MODEL, TrainingOptions(batch=batch))
    rng = np.random.default_rng(0)
    values = dict(start_values(graph, seed=0))
    values[graph.data] = rng.standard_normal(graph[graph.data].shape, dtype=np.float32)
    values[graph.label] = rng.integers(0, 10, graph[graph.label].shape).astype(np.int32)
    kernels, theirs = Kernels(graph, values), Torch(MODELS[MODEL].forward(batch), graph, values)
    times: list[tuple[float, float, float]] = []
    operators: list[dict[str, float]] = []

    def alternate(step: Any, _: int) -> None:
        spent: dict[str, float] = {}
        ours, loss = kernels.step(spent)
        other, wanted = theirs.step()
        if step.step <= COMPARED and abs(loss - wanted) > LOSS_TOLERANCE * wanted:
            raise PoetError(f"step {step.step}: the loss is {loss}, in PyTorch {wanted}")
        times.append((ours, step.time_us / 1e6, other))
        operators.append(spent)

    profile = poet.estimate_profile(poet.load_board("native"))
    plan = poet.keep_everything(poet.costs_of(graph, profile))
    with poet.connect("native", arena_bytes=plan.ram_bytes // 4 * 4) as board:
        schedule = poet.encode(graph, profile, plan)
        poet.train(schedule, board, DATA, steps=steps + WARM_UP, on_step=alternate)
    del times[:WARM_UP], operators[:WARM_UP]
    return Measured(
        batch=batch,
        steps=steps,
        kernels=median(ours for ours, _, _ in times),
        whole=median(whole for _, whole, _ in times),
        torch=median(other for _, _, other in times),
        kernels_ratio=median(ours / other for ours, _, other in times),
        whole_ratio=median(whole / other for _, whole, other in times),
        operators={op: median(spent[op] for spent in operators) for op in operators[0]},
    )


def report(measured: Sequence[Measured], counts: dict[str, float]) -> str:
    """Return the tables as Markdown. `counts`: instructions per multiply-add of AArch64."""
    rows = [
        [
            str(m.batch),
            number(1e3 * m.kernels),
            number(1e3 * m.whole),
            number(1e3 * m.torch),
            number(m.kernels_ratio),
            number(m.whole_ratio),
        ]
        for m in measured
    ]
    names = sorted(measured[-1].operators, key=lambda op: -measured[-1].operators[op])
    shares = [[op, *(number(1e3 * m.operators[op], 3) for m in measured)] for op in names]
    steps = "; ".join(f"{m.steps} steps of batch size {m.batch}" for m in measured)
    head = ["batch size", "kernels, ms", "whole step, ms", "PyTorch, ms",
            "kernels / PyTorch", "whole step / PyTorch"]  # fmt: skip
    return filled(
        "host_kernels",
        about=about("numpy", "torch"),
        model=MODEL,
        steps=steps,
        vectors=" ".join(vector_flags()) or "those that every such processor has",
        times=table(head, rows),
        shares=table(["operator", *(f"batch size {m.batch}" for m in measured)], shares),
        instructions=table(
            ["kernel", "instructions"], [[op, number(n, 3)] for op, n in counts.items()]
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.host_kernels", description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=100, metavar="N", help="steps of each batch size (default 100)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = [measure(batch, options.steps) for batch in BATCHES]
    text = report(measured, instructions_per_mac())
    print(text)
    write_whole(RESULTS, text)


if __name__ == "__main__":
    main()
