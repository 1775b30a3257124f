"""Execute a plan of this planner on a training step of PyTorch, statement by statement.

AOTAutograd exports the forward and backward pass of a module as one graph of ATen operators. Its
nodes are timed, and become a cost graph. Any plan for this graph is then executed: with tensors of
PyTorch's allocator, or in one buffer at the plan's offsets. A thread does the transfers; storage is
a folder of files. Optimisers are not part of the step: its results are the loss, the gradients and
the renewed buffers.

Views and parts of tuples have no node in the cost graph: whoever reads one makes it from its node,
at no cost.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from poet_host.plan.costgraph import parse_cost_graph
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_module
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

ATEN = torch.ops.aten
LINE_BYTES = 64  # sizes are multiples of it, so that each offset in a buffer fits each type
RUNS = 5  # of which the first is not counted
SMALL = 8  # a part of a tuple this many times smaller than the largest gets memory of its own
Value = Any  # a tensor, or a tuple of tensors and None
Named = dict[str, Tensor]


def _is_view(node: Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target in (ATEN._unsafe_view.default, ATEN.detach.default):
        return True
    results = node.target._schema.returns
    alias = results[0].alias_info if results else None
    return alias is not None and not alias.is_write


def _is_part(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _split_gradients(graph: torch.fx.Graph) -> None:
    """Give each gradient of a convolution a node of its own: their tensors then live apart."""
    for node in list(graph.nodes):
        if node.target is not ATEN.convolution_backward.default:
            continue
        for part in list(node.users):
            mask = [i == part.args[1] and wanted for i, wanted in enumerate(node.args[-1])]
            with graph.inserting_before(part):
                alone = graph.call_function(node.target, (*node.args[:-1], mask))
                part.replace_input_with(node, alone)
        graph.erase_node(node)


def _copied(graph: torch.fx.Graph, node: Node) -> Node:
    with graph.inserting_after(node):
        return graph.call_function(ATEN.clone.default, (node,))


def _separate_small_parts(graph: torch.fx.Graph) -> None:
    """Copy small results, such as statistics of a batch norm: the large one can then be freed."""
    for node in list(graph.nodes):
        sizes = {
            it: it.meta["val"].numel() for it in node.users if _is_part(it) and "val" in it.meta
        }
        for part, size in sizes.items():
            if SMALL * size < max(sizes.values()):
                own = _copied(graph, part)
                part.replace_all_uses_with(
                    own, delete_user_cb=lambda user, own=own: user is not own
                )


class TorchStep:
    """One training step of a module whose forward pass returns a tuple with the loss."""

    def __init__(self, module: nn.Module, *inputs: Tensor) -> None:
        made, signature = aot_export_module(module, inputs, trace_joint=True, output_loss_index=0)
        assert isinstance(made, GraphModule)
        graph = made.graph
        _split_gradients(graph)
        _separate_small_parts(graph)
        results = next(node for node in graph.nodes if node.op == "output")
        outs: list[Node] = list(results.args[0])
        for i, out in enumerate(outs):
            if _is_view(out) or _is_part(out) or out.op == "placeholder" or out in outs[:i]:
                outs[i] = _copied(graph, out)
        results.args = (tuple(outs),)
        graph.eliminate_dead_code()
        named = dict(module.named_parameters()) | dict(module.named_buffers())
        trained = [name for name, it in module.named_parameters() if it.requires_grad]
        meanings = [f"new {name}" for name in signature.buffers_to_mutate.values()]
        meanings += ["loss", *(f"grad {name}" for name in trained)]
        self.outputs = dict(zip((out.name for out in outs), meanings, strict=True))
        self.nodes = [
            it for it in graph.nodes if it.op != "output" and not _is_view(it) and not _is_part(it)
        ]
        self.by_name = {node.name: node for node in self.nodes}
        states = [named[name].detach() for name in (*signature.parameters, *signature.buffers)]
        places = [node.name for node in self.nodes if node.op == "placeholder"]
        self.given: Named = dict(zip(places, (*states, *inputs), strict=True))

    def reads(self, node: Node) -> list[str]:
        """Return the names of the nodes that `node` reads, without views and parts."""
        found: dict[str, None] = {}
        for it in node.all_input_nodes:
            found |= dict.fromkeys(self.reads(it) if _is_view(it) or _is_part(it) else [it.name])
        return list(found)

    def compute(self, node: Node, values: dict[str, Value], states: dict[str, Tensor]) -> Value:
        """Return the result of an operator. A random operator that is repeated draws the same.

        `states`: those of the random generator before each random operator that was computed.
        """
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            now = torch.get_rng_state()
            torch.set_rng_state(states.setdefault(node.name, now))
            found = self._called(node, values)
            if states[node.name] is not now:
                torch.set_rng_state(now)
        else:
            found = self._called(node, values)
        if not isinstance(found, tuple | list):
            return found
        used = {user.args[1] for user in node.users if _is_part(user)}
        return tuple(part if i in used else None for i, part in enumerate(found))

    def _called(self, node: Node, values: dict[str, Value]) -> Value:
        def value(it: Node) -> Value:
            if _is_part(it):
                return value(it.args[0])[it.args[1]]  # type: ignore[arg-type]
            return self._called(it, values) if _is_view(it) else values[it.name]

        assert callable(node.target)
        return node.target(*map_arg(node.args, value), **map_arg(node.kwargs, value))

    def cost_graph(self, name: str, folder: Path) -> CostGraph:
        """Time each operator, and transfers to `folder`. An energy of 1 uJ is a microsecond."""
        write_us, read_us = transfer_us(folder)
        values: dict[str, Value] = dict(self.given)
        rows = []
        for node in self.nodes:
            stored = node.op == "placeholder"
            time_us, workspace_bytes = 0.0, 0
            if not stored:
                run = partial(self.compute, node, values, {})
                time_us = median([timed_us(run) for _ in range(RUNS)][1:])
                values[node.name], peak = allocated(run)
                workspace_bytes = max(0, peak - size_bytes(values[node.name]))
            own = size_bytes(values[node.name])
            into, out = read_us(own), write_us(own)
            rows.append({
                "name": node.name, "inputs": self.reads(node), "bytes": own,
                "workspace_bytes": -(-workspace_bytes // LINE_BYTES) * LINE_BYTES,
                "time_us": time_us, "energy_uj": time_us, "page_in_us": into, "page_in_uj": into,
                "page_out_us": out, "page_out_uj": out, "stored": stored,
                "keep": node.name in self.outputs,
            })  # fmt: skip
        return parse_cost_graph(
            {"format": "poet-cost-graph", "version": 1, "name": name, "nodes": rows}
        )


@dataclass
class Executor:
    """Executes a plan. `in_place`: one buffer holds all tensors, at the plan's offsets."""

    step: TorchStep
    plan: Plan
    folder: Path
    in_place: bool = False
    live_bytes: int = 0  # the most bytes of tensors in RAM at once, in the last run

    def __post_init__(self) -> None:
        room = max(1, self.plan.ram_bytes) if self.in_place else 0
        self._buffer = torch.empty(room, dtype=torch.uint8)
        self._shapes: dict[str, Value] = {}
        for name, value in self.step.given.items():
            self._shapes[name] = _shaped(value, "meta")
            _save(value, self.folder / name)

    def run(self) -> Named:
        """Return loss, gradients and renewed buffers, by their meaning."""
        values: dict[str, Value] = {}
        states: Named = {}
        arriving: dict[str, Future[Value]] = {}
        leaving: dict[str, Future[None]] = {}
        held: dict[str, int] = {}
        self.live_bytes = 0

        def wait(name: str) -> None:
            if name in arriving:
                values[name] = arriving.pop(name).result()
                held[name] = size_bytes(values[name])

        def fetch(name: str, room: Value, offset: int | None) -> Value:
            return self._placed(_load(self.folder / name, room), offset)

        with ThreadPoolExecutor(1) as lane:
            for statement in self.plan.statements:
                name, offset = statement.node, statement.offset
                if statement.op == "compute":
                    node = self.step.by_name[name]
                    for read in self.step.reads(node):
                        wait(read)
                    found = self.step.compute(node, values, states)
                    values[name] = self._placed(found, offset)
                    held[name] = size_bytes(found)
                    del found
                elif statement.op == "page_in":
                    # PyTorch's profiler counts the allocations of this thread alone.
                    room = _shaped(self._shapes[name])
                    held[name] = size_bytes(room)
                    arriving[name] = lane.submit(fetch, name, room, offset)
                    del room
                elif statement.op == "page_out":
                    wait(name)
                    self._shapes[name] = _shaped(values[name], "meta")
                    leaving[name] = lane.submit(_save, values[name], self.folder / name)
                else:
                    wait(name)
                    if name in leaving:
                        leaving.pop(name).result()
                    del values[name], held[name]
                self.live_bytes = max(self.live_bytes, sum(held.values()))
        values.clear()
        return {
            meaning: _load(self.folder / name, _shaped(self._shapes[name]))
            for name, meaning in self.step.outputs.items()
        }

    def _placed(self, value: Value, offset: int | None) -> Value:
        """Return the value, in the buffer if there is one."""
        if not self.in_place:
            return value
        assert offset is not None
        placed: list[Tensor | None] = []
        for part in value if isinstance(value, tuple) else (value,):
            if part is not None:
                whole = self._buffer[offset : offset + part.numel() * part.element_size()]
                offset += size_bytes(part)
                room = whole.view(part.dtype)
                part = room.as_strided(part.shape, part.stride(), room.storage_offset()).copy_(part)
            placed.append(part)
        return tuple(placed) if isinstance(value, tuple) else placed[0]


def timed_us(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return 1e6 * (time.perf_counter() - began)


def allocated(function: Callable[[], Value]) -> tuple[Value, int]:
    """Return the result, and the peak of PyTorch's allocator above the start, in bytes."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _silent(), torch.profiler.profile(activities=activities, profile_memory=True) as seen:
        found = function()
    now = peak = 0
    assert seen.profiler is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return found, peak


@contextmanager
def _silent() -> Iterator[None]:
    """Hide what PyTorch's profiler prints on stderr each time."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def transfer_us(folder: Path) -> list[Callable[[int], float]]:
    """Return the times of writing and of reading a file of n bytes: lines through two sizes."""
    few, many = 1 << 14, 1 << 21
    path = folder / "probe"
    values = [torch.rand(count // 4) for count in (few, many)]
    times = []
    for value in values:
        written = median(timed_us(partial(_save, value, path)) for _ in range(2 * RUNS))
        times.append((written, median(timed_us(partial(_load, path, value)) for _ in range(RUNS))))

    def line(low: float, high: float) -> Callable[[int], float]:
        return lambda n: max(1.0, low + (n - few) * max(0.0, high - low) / (many - few))

    return [line(low, high) for low, high in zip(*times, strict=True)]


def size_bytes(value: Value) -> int:
    return sum(
        -(-it.numel() * it.element_size() // LINE_BYTES) * LINE_BYTES for it in _tensors(value)
    )


def _tensors(value: Value) -> Iterable[Tensor]:
    parts = value if isinstance(value, tuple) else (value,)
    return [part for part in parts if part is not None]


def _shaped(value: Value, device: str = "cpu") -> Value:
    """Return an empty value of the same shapes. Device "meta": shapes alone, without memory."""
    if isinstance(value, tuple):
        return tuple(None if part is None else _shaped(part, device) for part in value)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _flat(part: Tensor) -> memoryview:
    return part.as_strided((part.numel(),), (1,)).numpy().data.cast("B")


def _save(value: Value, path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for part in _tensors(value):
            file.write(_flat(part))


def _load(path: Path, room: Value) -> Value:
    with path.open("rb", buffering=0) as file:
        for part in _tensors(room):
            file.readinto(_flat(part))
    return room
