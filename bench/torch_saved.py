"""What PyTorch's partitioner keeps for the backward pass, as nodes of our graphs.

torch.compile splits a training step into a forward and a backward graph. `activation_memory_budget`
(torch._functorch.config) bounds what the forward graph hands over: 1 saves what costs no dear
recomputation, 0 saves the inputs alone. For a budget between them, PyTorch relaxes its rules, then
solves a knapsack over results that are dear to recompute, by their bytes and estimated time, and
takes a minimum cut. The backward graph recomputes the rest, each result once, before its first use.

The layers run in PyTorch without decomposition of its operators, whose results are then those of
our nodes. A result of PyTorch is that of our node with the same numbers, in any order, because
heads of attention are transposed. Mean and inverse deviation stand for our node of statistics, and
the logarithm of softmax for the logits. What else PyTorch saves has no node of ours: it is counted,
and our backward pass does not need it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import getitem
from typing import Any

import numpy as np
import poet_host as poet
import torch
from poet_host.baselines.checkmate import results_only
from poet_host.baselines.replay import Replay
from poet_host.graph.builder import Model
from poet_host.graph.models import MODELS, load
from poet_host.graph.weights import start_values
from poet_host.packing.blocks import aligned
from poet_host.plan.completion import complete
from poet_host.plan.events import Event
from poet_host.plan.placed_plan import Excess, realise
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph, Problem
from torch import Tensor, fx
from torch._functorch import config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomRuntimeEstimator
from torch.utils._python_dispatch import _disable_current_modes

from .torch_layers import outputs

STATISTICS = ":stats"  # our node of the statistics of a layer
LEAST_UJ = 1e-3  # PyTorch's estimates are positive
PLACEMENT_LIMIT_S = 5.0


@dataclass(frozen=True)
class Saved:
    """The saved set of a budget, without inputs of the step and views of them."""

    nodes: frozenset[int]  # indices in the cost graph
    other_bytes: int  # saved bytes that no node of ours has

    def bytes_of(self, graph: CostGraph) -> int:
        return sum(graph.nodes[i].bytes for i in self.nodes)


class _Values(fx.Interpreter):
    """Keeps the results of all operators."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n.name] = result = super().run_node(n)
        return result


class _OurEnergy(CustomRuntimeEstimator):
    """Estimates the time of an operator of PyTorch by the energy of our nodes."""

    def __init__(self, energy_uj: Callable[[str], float]) -> None:
        self.energy_uj = energy_uj

    def __call__(self, node: fx.Node) -> float:
        return max(self.energy_uj(node.name), LEAST_UJ)

    def uuid(self) -> None:
        return None


class Step:
    """The training step of a built-in model, in our graph and in PyTorch.

    `costs`: the computed nodes alone, with the costs of the board. Parameters and data are outside.
    """

    def __init__(self, name: str, board: str) -> None:
        graph = load(name)
        self.costs = results_only(poet.costs_of(graph, poet.estimate_profile(board)))
        self.model: Model = MODELS[name].forward(graph.batch)
        self.loss = self.costs.index[graph.loss]
        values: dict[str, Any] = dict(start_values(graph, seed=0))
        rng = np.random.default_rng(0)
        data, label = graph[graph.data], graph[graph.label]
        is_image = data.dtype == "float32"
        x = rng.standard_normal(data.shape) if is_image else rng.integers(1, 100, data.shape)
        self.parameters = [it.name for it in self.model.parameters if it.role == "parameter"]
        self.inputs = [
            torch.tensor(x, dtype=torch.float32 if is_image else torch.int64),
            torch.tensor(rng.integers(0, 10, label.shape)),
            *(torch.tensor(values[it]).requires_grad_() for it in self.parameters),
        ]
        self.names: dict[str, str] = {}  # our tensors by PyTorch's results
        self.wanted = {name: value.detach() for name, value in self._outputs(*self.inputs).items()}

    def _outputs(self, x: Tensor, label: Tensor, *values: Tensor) -> dict[str, Tensor]:
        return outputs(self.model, dict(zip(self.parameters, values, strict=True)), x, label)

    def saved(self, budget: float, *, by_energy: bool = False) -> Saved:
        """Return what PyTorch saves within an `activation_memory_budget`.

        `by_energy`: PyTorch weighs operators by our energies; otherwise by FLOP, its default.
        """
        found: list[Saved] = []

        def partition(joint: fx.GraphModule, given: Any, **options: Any) -> Any:
            if not self.names:  # the joint graph is the same for all budgets
                with _disable_current_modes():
                    self.names = self._names(joint)
            estimator = _OurEnergy(lambda name: self._energy_uj(self.names.get(name)))
            with config.patch(
                activation_memory_budget=budget,
                activation_memory_budget_runtime_estimator=estimator if by_energy else "flops",
            ):
                forward, backward = min_cut_rematerialization_partition(joint, given, **options)
            found.append(self._saved(forward))
            return forward, backward

        def run(gm: fx.GraphModule, example_inputs: Any) -> Any:
            return make_boxed_func(gm.forward)

        def loss(*inputs: Tensor) -> Tensor:
            return self._outputs(*inputs)[self.model.layers[-1].name]

        aot_function(loss, run, run, partition_fn=partition)(*self.inputs)
        return found[0]

    def _names(self, joint: fx.GraphModule) -> dict[str, str]:
        """Return our tensors, which may be parameters, by the names of PyTorch's results."""
        ran = _Values(joint)
        ran.run(*(it.detach() for it in self.inputs), torch.tensor(1.0))
        names: dict[str, str] = {}
        for name, value in ran.values.items():
            if isinstance(value, Tensor):
                same = (ours for ours, wanted in self.wanted.items() if _same(value, wanted))
                if (ours := next(same, None)) is not None:
                    names[name] = ours
        for node in joint.graph.nodes:
            if node.target is getitem:
                norm, number = node.args
                output = next((names.get(it.name) for it in norm.users if it.args[1] == 0), None)
                if output is not None:
                    names[norm.name] = output
                    if number and output + STATISTICS in self.costs.index:
                        names[node.name] = output + STATISTICS
            elif node.target is torch.ops.aten._log_softmax.default:
                names[node.name] = names[node.args[0].name]
        return names

    def _energy_uj(self, name: str | None) -> float:
        index, nodes = self.costs.index, self.costs.nodes
        both = [name, f"{name}{STATISTICS}"]
        return sum(nodes[index[it]].energy_uj for it in both if it in index)

    def _saved(self, forward: fx.GraphModule) -> Saved:
        nodes: set[int] = set()
        other_bytes = 0
        results: Any = forward.graph.output_node().args[0]
        for it in results[1:]:  # after the loss
            name = self.names.get(it.name)
            if name in self.costs.index:
                nodes.add(self._survivor(self.costs.index[name]))
            elif name is None and it.op != "placeholder":
                other_bytes += it.meta["val"].nbytes
        return Saved(frozenset(nodes), other_bytes)

    def _survivor(self, i: int) -> int:
        """Return the result of the forward pass that is in the memory of a result at its end.

        An operator in place, such as relu, leaves its output instead of its input.
        """
        for j in range(i + 1, self.loss):
            if self.costs.nodes[j].overwrites == i:
                return self._survivor(j)
        return i

    def events(self, saved: Saved) -> list[Event]:
        """Return a step that keeps the saved set, and recomputes the rest as late as possible."""
        step = Replay(self.costs)
        for i in range(len(self.costs.nodes)):
            if i == self.loss + 1:
                step.have &= saved.nodes
            step.ensure(self.costs.nodes[i].inputs)
            step.run("compute", i)
        return step.events


def replayed(graph: CostGraph, events: list[Event]) -> Plan:
    """Return the verified plan of the events, within the least RAM in which they are placed."""
    ram_bytes = complete(graph, events, 0).least_bytes
    while True:
        problem = Problem(graph, aligned(ram_bytes), objective="added-energy")
        statements = complete(graph, events, problem.ram_bytes).statements
        assert statements is not None
        found = realise(problem, statements, placed=True, time_limit_s=PLACEMENT_LIMIT_S)
        if not isinstance(found, Excess):
            return found.as_plan(problem)
        ram_bytes += found.ram_bytes


def _same(value: Tensor, wanted: Tensor) -> bool:
    """Whether two tensors have the same numbers, in any order."""
    if value.dtype != wanted.dtype or value.numel() != wanted.numel():
        return False
    first, second = (it.flatten().sort().values for it in (value, wanted))
    return torch.allclose(first, second, rtol=1e-5, atol=1e-7)
