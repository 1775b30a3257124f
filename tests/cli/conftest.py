"""Fixtures of the tests that train on the command line."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from poet_host.plan.costgraph import dump_cost_graph
from poet_host.plan.problem import CostGraph, CostNode
from support import whole_runs as runs

SMALL = CostGraph(
    "small",
    (
        CostNode("x", (), 8, 1.0, 1.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("a", (0,), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("b", (1,), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("c", (2,), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("d", (3, 1), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0),
        CostNode("e", (4, 0), 8, 2.0, 5.0, 3.0, 2.0, 3.0, 2.0, keep=True),
    ),
)


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    """A schedule of resnet-digits that recomputes or pages."""
    path = tmp_path / "digits.poet"
    runs.small().save(path)
    return path


@pytest.fixture
def train(train: Any, schedule: Path) -> Any:
    """`train(*options)` trains with `schedule`."""
    return partial(train, schedule)


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """The file of a small cost graph."""
    path = tmp_path / "small.graph.json"
    path.write_text(json.dumps(dump_cost_graph(SMALL)))
    return path
