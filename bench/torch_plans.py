"""Plans for training steps of PyTorch, executed next to eager execution: `make bench-torch`."""

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import poet_host as poet
import torch
from poet_host.errors import PoetError
from poet_host.files import write_whole
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from .report import about, filled, table
from .torch_modules import MODULES, Example
from .torch_step import Executor, Named, TorchStep, allocated, timed_us

SHARES = ("100%", "50%", "30%", "least")
BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.0)
TIMED = 5  # runs, of which the median counts
RESULTS = Path(__file__).with_name("RESULTS-torch.md")
GROWTH = 1.04  # from one budget to the next, from the least that is not proved too small


def example(name: str) -> Example:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module, inputs = MODULES[name]()
    return module.train(), inputs


def eager(module: Any, inputs: tuple[Tensor, ...], by: Any = None) -> Named:
    """Return loss, gradients and renewed buffers of one step. The module does not change.

    `by`: the compiled module that computes instead of it.
    """
    before = {name: it.clone() for name, it in module.named_buffers()}
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = (module if by is None else by)(*inputs)[0]
    loss.backward()
    found = {"loss": loss.detach()} | {f"grad {n}": p.grad for n, p in module.named_parameters()}
    found |= {f"new {name}": it.clone() for name, it in module.named_buffers()}
    with torch.no_grad():
        for name, it in module.named_buffers():
            it.copy_(before[name])
    return found


def executed(executor: Executor) -> Named:
    torch.manual_seed(1)
    return executor.run()


def same(found: Named, wanted: Named) -> str:
    """Say how many of the tensors have the same bits."""
    equal = sum(torch.equal(found[name], wanted[name]) for name in found)
    return f"{equal} of {len(wanted)}"


def solved(graph: CostGraph, ram: str, limit_s: float) -> Plan:
    """Return a plan. "least": for the least RAM for which there is one, in steps of GROWTH."""
    if ram != "least":
        return poet.solve(poet.problem(graph, ram=ram, objective="time"), time_limit_s=limit_s)
    size: float = poet.solve(poet.problem(graph, ram=64)).smallest_ram_bytes or 64
    while True:
        plan = poet.solve(
            poet.problem(graph, ram=int(size), objective="time"), time_limit_s=limit_s
        )
        if plan.statements:
            return plan
        size = max(size * GROWTH, plan.smallest_ram_bytes or 0)


def plan_rows(name: str, limit_s: float) -> Iterator[list[str]]:
    module, inputs = example(name)
    step, wanted = TorchStep(module, *inputs), eager(module, inputs)
    eager_ms = median(timed_us(lambda: eager(module, inputs)) for _ in range(TIMED)) / 1e3
    with tempfile.TemporaryDirectory() as folder:
        graph = step.cost_graph(name, Path(folder))
        for ram in SHARES:
            plan = solved(graph, ram, limit_s)
            if plan.peak_bytes is None or plan.time_us is None:
                yield [name, ram, f"{plan.ram_bytes:,}", plan.status, *(["-"] * 9)]
                continue
            ops = [statement.op for statement in plan.statements]
            computed = {it.node for it in plan.statements if it.op == "compute"}
            executor = Executor(step, plan, Path(folder))
            run = partial(executed, executor)
            found, peak = allocated(run)
            if executor.live_bytes > plan.peak_bytes:
                raise PoetError(f"{name} at {ram}: more bytes were live than the plan says")
            in_place = executed(Executor(step, plan, Path(folder), in_place=True))
            took_ms = median(timed_us(run) for _ in range(TIMED)) / 1e3
            yield [
                name, ram, f"{plan.ram_bytes:,}", f"{ops.count('compute') - len(computed)}",
                f"{ops.count('page_in')}, {ops.count('page_out')}", f"{plan.peak_bytes:,}",
                f"{executor.live_bytes:,}", f"{peak:,}", same(found, wanted),
                same(in_place, wanted), f"{plan.time_us / 1e3:.1f}", f"{took_ms:.1f}",
                f"{eager_ms:.1f}",
            ]  # fmt: skip


def budget_rows(name: str) -> Iterator[list[str]]:
    module, inputs = example(name)
    for it in module.modules():
        if isinstance(
            it, nn.BatchNorm2d
        ):  # torch.compile fails here if a batch norm renews buffers
            it.running_mean = it.running_var = it.num_batches_tracked = None
    wanted, peak = allocated(lambda: eager(module, inputs))

    def row(setting: str, run: Any, peak: int, found: Named) -> list[str]:
        took_ms = median(timed_us(run) for _ in range(TIMED)) / 1e3
        gradients = [key for key in wanted if key.startswith("grad ")]
        worst = max(_error(found[key], wanted[key]) for key in gradients)
        verdict = "equal" if not worst else f"off by {worst:.1g}"
        return [name, setting, f"{peak:,}", f"{took_ms:.1f}", verdict]

    yield row("eager", lambda: eager(module, inputs), peak, wanted)
    for share in BUDGETS:
        torch._dynamo.reset()
        backend = aot_autograd(
            fw_compiler=_plain, bw_compiler=_plain,
            partition_fn=min_cut_rematerialization_partition,
        )  # fmt: skip
        with config.patch(activation_memory_budget=share):
            compiled = torch.compile(module, backend=backend)

            def run(by: Any = compiled) -> Named:
                return eager(module, inputs, by)

            run()
            found, peak = allocated(run)
            yield row(f"{share:.1f}", run, peak, found)


def _error(found: Tensor, wanted: Tensor) -> float:
    """Return the largest error relative to the largest number; 0 for the same bits."""
    if torch.equal(found, wanted):
        return 0.0
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))


def _plain(module: Any, _: object) -> Any:
    return make_boxed_func(module.forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=5.0, metavar="S")
    parser.add_argument("--modules", nargs="*", default=list(MODULES), metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    given = parser.parse_args()
    plans, budgets = [], []
    for name in given.modules:
        for row in plan_rows(name, given.time_limit):
            print("  ".join(row), flush=True)
            plans.append(row)
        for row in budget_rows(name):
            print("  ".join(row), flush=True)
            budgets.append(row)
    head = [
        "module", "RAM", "bytes", "computed again", "page-ins, page-outs", "plan's peak", "live",
        "allocator", "equal to eager", "in place", "planned ms", "ms", "eager ms",
    ]  # fmt: skip
    text = filled(
        "torch-step", about=about("torch", "highspy"), torch=torch.__version__.partition("+")[0],
        plans=table(head, plans),
        budgets=table(["module", "budget", "allocator", "ms", "gradients"], budgets),
    )  # fmt: skip
    write_whole(given.output, text)


if __name__ == "__main__":
    main()
