"""`make zoo`: 90 networks of torchvision, timm, transformers and papers train as in PyTorch.

Each network has random weights. It is imported from its module, then trained for 20 steps on a
native board and in PyTorch, with three seeds: momentum of 0.9, learning rate 0.01, batches of 4
random samples. Dropout is off and batchnorm is on. A network is well posed with a seed if noise on
the weights, of 1e-6 relative to each of them, moves PyTorch's third loss by less than 1e-3 relative
to that loss.

Needs torchvision, timm and transformers, which no other part needs: `make zoo` installs them into
build/zoo. Appends a line of JSON for each network to build/zoo.jsonl. If it is run again, it trains
those that have no result there. Prints and writes the table in RESULTS-zoo.md.
"""

import argparse
import copy
import json
import logging
import multiprocessing
import time
import traceback
import warnings
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import poet_host as poet
import torch
from poet_host.files import write_whole
from poet_host.graph.weights import start_values
from torch import Tensor, nn
from torch.nn import functional

from .commits import commit
from .report import about, filled, table
from .streaming import native
from .zoo_models import ZOO

RESULTS = Path(__file__).with_name("RESULTS-zoo.md")
LOG = Path("build/zoo.jsonl")
BATCH, STEPS, SEEDS, RATE, MOMENTUM = 4, 20, 3, 0.01, 0.9
NOISE, WELL_POSED, TOLERANCE = 1e-6, 1e-3, 1e-4
TIME_LIMIT_S = 1200.0
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
Row = dict[str, Any]


class Samples:
    """Random batches for a network: a tuple of inputs, and targets for each output."""

    def __init__(self, name: str) -> None:
        make, example, loss = ZOO[name]
        self.module = make().eval()
        for part in self.module.modules():
            # In evaluation, timm keeps attention biases for the next step, without gradients.
            if isinstance(part, NORMS) or hasattr(part, "attention_bias_cache"):
                part.training = True
        self.is_mse = loss == "mse"
        self.inputs = [example(BATCH) for _ in range(STEPS)]
        outputs = self.outputs(copy.deepcopy(self.module), self.inputs[0])
        self.loss = "mse" if self.is_mse else "cross-entropy"
        if len(outputs) > 1:
            self.loss = " ".join(f"output{i}={self.loss}" for i in range(1, len(outputs) + 1))
        self.targets = [[self._target(output) for output in outputs] for _ in self.inputs]

    @staticmethod
    def outputs(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = module(*inputs)
        return found if isinstance(found, tuple) else (found,)

    def _target(self, output: Tensor) -> Tensor:
        if self.is_mse:
            return torch.randn_like(output)
        classes = 1 if output.ndim == 4 else output.ndim - 1
        shape = [n for axis, n in enumerate(output.shape) if axis != classes]
        return torch.randint(0, output.shape[classes], shape)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self.is_mse:
            return functional.mse_loss(output, target)
        return functional.cross_entropy(
            output.transpose(1, 2) if output.ndim == 3 else output, target
        )

    def losses(self, noise: torch.Generator | None = None) -> list[float]:
        """Train a copy of the module in PyTorch."""
        module = copy.deepcopy(self.module)
        if noise:
            with torch.no_grad():
                for weight in module.parameters():
                    weight.mul_(1 + NOISE * torch.randn(weight.shape, generator=noise))
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        optimizer = torch.optim.SGD(weights, RATE, momentum=MOMENTUM)
        found = []
        for inputs, targets in zip(self.inputs, self.targets, strict=True):
            optimizer.zero_grad()
            outputs = self.outputs(module, inputs)
            loss = sum(map(self._loss, outputs, targets), torch.zeros(()))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found.append(loss.item())
        return found

    def arrays(self) -> Any:
        """Return all samples and targets as poet.train takes them."""
        x = tuple(torch.cat(parts).numpy() for parts in zip(*self.inputs, strict=True))
        y = [torch.cat(parts).numpy() for parts in zip(*self.targets, strict=True)]
        if len(y) == 1:
            return x if len(x) > 1 else x[0], y[0]
        named = {"x": x[0]} if len(x) == 1 else {f"input{i}": one for i, one in enumerate(x, 1)}
        return named | {f"output{i}": labels for i, labels in enumerate(y, 1)}


def largest_difference(losses: list[float], expected: list[float]) -> float:
    both = np.array([losses, expected])
    return float(np.max(np.abs(both[0] - both[1]) / np.maximum(np.abs(both[1]), 1e-9)))


def graph_of(samples: Samples) -> poet.Graph:
    inputs = samples.inputs[0]
    graph = poet.load(
        samples.module, inputs if len(inputs) > 1 else inputs[0], batch=BATCH, lr=RATE,
        optimizer="momentum", momentum=MOMENTUM, loss=samples.loss,
    )  # fmt: skip
    assert isinstance(graph, poet.Graph)
    return graph


def schedule_of(graph: poet.Graph) -> tuple[poet.Schedule, int]:
    """Return a schedule that keeps everything in RAM, and its bytes of RAM."""
    whole = poet.problem(graph, "native", ram="100%", streaming=False)
    plan = poet.solve(whole, method="keep-everything")
    assert plan.peak_bytes is not None
    return poet.encode(graph, plan, forward=False), plan.peak_bytes


def measure(name: str, only_import: bool, into: Any) -> None:
    """Put the results of one network so far into a queue, and again after each seed."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    row: Row = {"name": name, "commit": commit(), "seeds": []}
    began_s = time.monotonic()
    try:
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            samples = Samples(name)
            graph = graph_of(samples)
            if not seed:
                row["operators"] = sum(1 for node in graph.nodes if not node.stored)
                row["parameters"] = sum(it.numel() for it in samples.module.parameters())
                row["import_s"] = round(time.monotonic() - began_s)
                into.put(dict(row))
                if only_import:
                    return
                schedule, arena_bytes = schedule_of(graph)
            expected = samples.losses()
            disturbed = samples.losses(noise=torch.Generator().manual_seed(seed))
            values = start_values(graph, 0)
            weights = {n.name: values[n.name] for n in graph.trainable if n.name in values}
            with native(arena_bytes) as board:
                run = poet.train(
                    schedule, board, samples.arrays(), shuffle=False,
                    weights=weights,
                )  # fmt: skip
            found = {
                "moved": abs(disturbed[2] / expected[2] - 1),
                "disturbed": largest_difference(disturbed, expected),
                "board": largest_difference([step.loss for step in run.steps], expected),
            }
            row["seeds"] = [*row["seeds"], found]
            row["s"] = round(time.monotonic() - began_s)
            into.put(dict(row))
    except poet.PoetError as error:
        row["refused"] = str(error)
    except Exception:  # noqa: BLE001 - of a network
        row["error"] = traceback.format_exc()
    into.put(row)


def measured(name: str, only_import: bool) -> Row:
    """Measure one network in a process of its own, for a limited time."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=measure, args=(name, only_import, queue))
    process.start()
    row: Row = {"name": name, "commit": commit(), "seeds": []}
    end_s = time.monotonic() + TIME_LIMIT_S
    while process.is_alive() and time.monotonic() < end_s:
        try:
            row = queue.get(timeout=1)
        except Empty:
            continue
    while not queue.empty():
        row = queue.get()
    if process.is_alive():
        process.kill()
        row["error"] = f"stopped after {TIME_LIMIT_S:,.0f} s"
    process.join()
    return row


def is_trained(row: Row) -> bool:
    """Return True if the network was trained or refused, not only imported or stopped."""
    return bool(row["seeds"]) or "refused" in row


def read() -> dict[str, Row]:
    """Return the last row of each network in the log. An import alone replaces no training."""
    found: dict[str, Row] = {}
    for line in LOG.read_text().splitlines() if LOG.exists() else ():
        row = json.loads(line)
        old = found.get(row["name"], row)
        found[row["name"]] = row if is_trained(row) or not is_trained(old) else {**row, **old}
    return found


def cells(row: Row) -> list[str]:
    """Return one row of the table."""
    posed = [seed for seed in row["seeds"] if seed["moved"] < WELL_POSED]
    imports = "yes" if "operators" in row else "no"
    differences = [
        max((seed[what] for seed in posed), default=None) for what in ("board", "disturbed")
    ]
    return [
        row["name"],
        imports,
        f"{row['operators']:,}" if "operators" in row else "-",
        f"{row['parameters']:,}" if "parameters" in row else "-",
        f"{len(posed)} of {len(row['seeds'])}" if row["seeds"] else "-",
        *("-" if value is None else f"{value:.0e}" for value in differences),
    ]


def _is_noisy(row: Row) -> bool:
    """Return True if PyTorch with noise differs from itself, too, by more than the tolerance."""
    return any(it["disturbed"] > TOLERANCE for it in row["seeds"] if it["moved"] < WELL_POSED)


def _commits(found: list[Row]) -> str:
    """Return the commits at which the rows ran: the most frequent, then others with names."""
    names: dict[str, list[str]] = {}
    for row in found:
        names.setdefault(row["commit"], []).append(f"`{row['name']}`")
    first, *others = sorted(names, key=lambda commit: -len(names[commit]))
    return "; ".join(
        [f"{first} ({len(names[first])} networks)"]
        + [f"{commit} ({', '.join(names[commit])})" for commit in others]
    )


def report(rows: dict[str, Row]) -> str:
    found = [rows[name] for name in ZOO if name in rows]
    head = ["network", "imports", "operators", "parameters", "seeds well posed",
            "largest difference", "of PyTorch with noise"]  # fmt: skip
    lines = (
        row["refused"].split("\n  supported")[0].split(":\n")[-1]
        for row in found
        if "refused" in row
    )
    trained = [row for row in found if any(it["moved"] < WELL_POSED for it in row["seeds"])]
    equal = [
        row for row in trained
        if all(it["board"] < TOLERANCE for it in row["seeds"] if it["moved"] < WELL_POSED)
    ]  # fmt: skip
    noisy = [row for row in trained if row not in equal and _is_noisy(row)]
    other = [f"`{row['name']}`" for row in trained if row not in equal and row not in noisy]
    names = (row["name"] for row in found if "refused" in row)
    return filled(
        "zoo",
        about=about("torch", "torchvision", "timm", "transformers"),
        count=len(found),
        imported=sum("operators" in row for row in found),
        trained=len(trained),
        equal=len(equal),
        noisy=len(noisy),
        other=", ".join(other) or "none",
        unposed=sum(bool(row["seeds"]) for row in found) - len(trained),
        untrained=", ".join(f"`{row['name']}`" for row in found if not is_trained(row)) or "none",
        commits=_commits(found),
        refused="\n".join(
            f"- {name}: {line.strip()}" for name, line in zip(names, lines, strict=True)
        ),
        table=table(head, map(cells, found)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.zoo")
    parser.add_argument("--only-import", action="store_true", help="do not train")
    parser.add_argument(
        "names", nargs="*", help="networks to measure again (default: all that have no result yet)"
    )
    options = parser.parse_args()
    done = {
        name for name, row in read().items()
        if is_trained(row) or (options.only_import and "operators" in row)
    }  # fmt: skip
    for name in options.names or [name for name in ZOO if name not in done]:
        row = measured(name, options.only_import)
        with LOG.open("a") as log:
            log.write(json.dumps(row) + "\n")
        print(*cells(row), flush=True)
    write_whole(RESULTS, report(read()))


if __name__ == "__main__":
    main()
