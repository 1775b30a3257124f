"""Measuring the native board: every operator that fits, on the values of a training step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from poet_host.device.board import load_board
from poet_host.device.device import Device, connect
from poet_host.device.wire import messages
from poet_host.errors import BoardError
from poet_host.graph import models, weights
from poet_host.graph.training_options import TrainingOptions
from poet_host.profile.measure import distinct, measure
from poet_host.profile.profile import estimate_profile, signature
from poet_host.profile.transfer import moved_bytes
from poet_host.reference.step import run_step
from poet_host.sim.start_board import start_board
from support import whole_runs

# The largest operator of this batch does not fit the arena.
GRAPH = models.load("resnet-digits", TrainingOptions(batch=8))
ARENA_BYTES = 18 * 1024


def stored_values() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    values = dict(weights.start_values(GRAPH, 0))
    values[GRAPH.data] = rng.standard_normal(GRAPH[GRAPH.data].shape).astype(np.float32)
    values[GRAPH.label] = rng.integers(0, 10, GRAPH[GRAPH.label].shape).astype(np.int32)
    return values


@pytest.fixture
def device() -> Iterator[Device]:
    with start_board(arena_bytes=ARENA_BYTES) as board, connect(board.port) as found:
        yield found


def test_measured_on_the_board(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, str]] = []
    sent: list[tuple[int, bytes]] = []
    write = device.probe_write

    def probe_write(offset: int, data: bytes) -> None:
        sent.append((offset, data))
        write(offset, data)

    monkeypatch.setattr(device, "probe_write", probe_write)
    values = stored_values()
    profile = measure(device, load_board("native"), GRAPH, values, lambda *step: seen.append(step))

    def working_set(node: Any) -> int:
        inputs = sum(GRAPH[name].size_bytes for name in dict.fromkeys(node.inputs))
        return inputs + (0 if node.overwrites else node.size_bytes)

    fits = [node for node in distinct(GRAPH) if working_set(node) <= ARENA_BYTES]
    assert 0 < len(fits) < len(distinct(GRAPH))
    # Of all operators, parts are measured.
    parts = set(profile.operators) - {signature(node) for node in fits}
    assert {signature(node) for node in fits} < set(profile.operators)
    kernels = {name.split()[0] for name in parts}
    assert {"linear", "relu", "batchnorm", "maxpool2d_grad"} <= kernels
    assert kernels <= {node.op for node in GRAPH}
    assert all(measured.time_us > 0 for measured in profile.operators.values())
    assert profile.kind == "measured"
    assert profile.board == "native"
    assert profile.unique_id == device.info.unique_id
    assert profile.commit_us > 0
    assert profile.transfer(8192).page_in_us > 0
    assert profile.transfer(8192).page_out_us > 0
    # Progress counts up to its end.
    assert [step[0] for step in seen] == list(range(len(seen)))
    assert {step[1] for step in seen} == {len(seen) - 1}
    # The operators ran on the tensors of a real step.
    last = fits[-1]
    first_input = np.ascontiguousarray(run_step(GRAPH, values, 1)[last.inputs[0]]).tobytes()
    assert (0, first_input) in sent
    # The other operators are fitted, and their cost is not 0.
    assert all(profile.cost(node, GRAPH)[0] > 0 for node in GRAPH if not node.stored)


def test_a_request_waits_as_long_as_the_operator_may_take(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []
    request = device.link.request

    def seen(code: int, payload: bytes, patience_s: float | None, expected_s: float) -> bytes:
        if code == messages()["probe_op"].code:
            waits_s.append(expected_s)
        return request(code, payload, patience_s, expected_s)

    monkeypatch.setattr(device.link, "request", seen)
    board = load_board("mkr1000")
    measured = measure(device, board, GRAPH, stored_values(), storage=False).operators
    nodes = {signature(node): node for node in distinct(GRAPH)}
    slowest_us = max(
        estimate_profile(board).cost(nodes[form], GRAPH)[0] for form in measured if form in nodes
    )
    assert max(waits_s) == pytest.approx(slowest_us / 1e6, rel=0.1)


@pytest.mark.parametrize("name", ["native", "mkr1000"])
def test_other_processes_do_not_count_as_costs_of_transfers(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """On a chip there are no other processes: a long transfer is a card's pause, a true cost."""
    tick_us, asked = device.us(1), dict[tuple[bool, int], int]()

    def probe_transfer(write: bool, size_bytes: int, *, repeat: int) -> tuple[int, int]:
        times = asked[write, size_bytes] = asked.get((write, size_bytes), 0) + 1
        slow = 100 if times % 7 in (1, 3, 4, 6) else 1
        return slow * repeat * (500 + moved_bytes(size_bytes)), slow * repeat * 40

    monkeypatch.setattr(device, "probe_transfer", probe_transfer)
    found = measure(device, load_board(name), GRAPH, stored_values())
    slow = 1 if name == "native" else 100
    assert set(asked.values()) == {7 if name == "native" else 1}
    for lane in (found.page_in, found.page_out):
        times_us = lane.times_us(4096)
        assert times_us[0] == pytest.approx(slow * tick_us * (500 + moved_bytes(4096)))
        assert times_us[1] == pytest.approx(slow * tick_us * 40)


def test_parts_of_slices_are_parts_that_boards_compute() -> None:
    graph = whole_runs.steps()
    values = dict(weights.start_values(graph, 0))
    values[graph.data] = np.ones(graph[graph.data].shape, np.float32)
    values[graph.label] = np.ones(graph[graph.label].shape, np.float32)
    with start_board(arena_bytes=ARENA_BYTES) as board, connect(board.port) as device:
        found = measure(device, load_board("native"), graph, values, storage=False)
    assert "slice" in {form.split()[0] for form in found.operators}


def test_nothing_fits_a_tiny_arena() -> None:
    with start_board(arena_bytes=16) as board, connect(board.port) as device:
        profile = measure(device, load_board("native"), GRAPH, {})
    assert profile.operators == {}
    conv = GRAPH["conv1"]
    assert profile.cost(conv, GRAPH)[0] > 0


def test_storage_without_a_store_is_refused(tmp_path: Path) -> None:
    storage = tmp_path / "card.img"
    storage.write_bytes(bytes(1 << 20))
    with (
        start_board("native", storage, 16) as board,
        connect(board.port) as device,
        pytest.raises(BoardError) as caught,
    ):
        measure(device, load_board("native"), GRAPH, {})
    assert caught.value.name == "foreign_storage"
