"""The native board as a process: its life, its card, power cuts by SIGKILL, sanitizers."""

import multiprocessing
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from poet_host import isa
from poet_host.device.board import load_board
from poet_host.device.device import TENSOR, Device, connect
from poet_host.errors import BadInput, BoardError, LinkBroken, NoDevice, PoetError
from poet_host.firmware_build import native as native_build
from poet_host.firmware_build.native import build_library, build_native
from poet_host.graph import models
from poet_host.graph.weights import start_values
from poet_host.plan.keepall import keep_everything
from poet_host.plan.pricing import cost_graph
from poet_host.profile.profile import estimate_profile
from poet_host.reference.step import run_step as reference_step
from poet_host.resources import resource
from poet_host.schedule.encode import encode
from poet_host.sim.native import NativeBoard, create_storage
from poet_host.sim.start_board import prepare_storage
from support import toy
from support.compiler import use_small_sources
from support.memory_board import card
from support.overlap import Overlap
from support.toy_boards import load, prepare, run_step, trained, weights, weights_of

CARD_BYTES = 64 << 20
TRACED = 18  # statements that the board with sanitizers traces at a time


@pytest.fixture(params=[False, True], ids=["plain", "sanitized"])
def board(storage: Path, request: pytest.FixtureRequest) -> Iterator[NativeBoard]:
    with NativeBoard(storage, sanitize=request.param) as found:
        yield found
        assert found.process.poll() is None  # no sanitizer has ended the board


# Building.

SLOW_COMPILER = """#!/bin/sh
sleep 1
while [ $# -gt 1 ]; do
  [ "$1" != -o ] || echo built > "$2"
  shift
done
"""


@pytest.mark.slow
def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_sources(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build_native()
    stamp = first.stat().st_mtime_ns
    assert build_native() == first
    assert first.stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    monkeypatch.setattr(native_build, "FLAGS", (*native_build.FLAGS, "-DOTHER"))
    assert build_native() != first


@pytest.mark.slow
def test_builds_at_the_same_time_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "slow-compiler"
    compiler.write_text(SLOW_COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = {job.get() for job in [pool.apply_async(build_library) for _ in range(4)]}
    assert len(found) == 1
    assert os.listdir(tmp_path / "poet-host") == [found.pop().name]


def test_a_missing_compiler_is_an_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(PoetError, match=r"no C compiler.*apt install gcc"):
        build_native()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(PoetError, match=r"cannot compile.*install"):
        build_native()
    assert os.listdir(tmp_path / "poet-host") == []
    broken = tmp_path / "broken-compiler"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(PoetError, match=r"broken-compiler does not run.*install"):
        build_native()


@pytest.mark.parametrize("folder", ["src", "port/native"])
def test_sources_compile_without_a_warning(folder: str, tmp_path: Path) -> None:
    firmware = resource("firmware")
    sources = sorted(map(str, (firmware / folder).glob("*.c")))
    assert sources
    found = subprocess.run(
        ["cc", "-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
         "-Wconversion", "-Wshadow", "-Wdouble-promotion", "-I", str(firmware / "include"),
         "-c", *sources],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")


# Storage files.


def test_storage_files_are_sparse_and_have_our_partition(storage: Path) -> None:
    image = storage.read_bytes()
    assert len(image) == CARD_BYTES
    assert storage.stat().st_blocks * 512 < CARD_BYTES // 8
    kind, first, count = struct.unpack_from("<4xB3xII", image, 446)
    assert (kind, first, first + count) == (0xDA, 8192, CARD_BYTES // 512)
    assert image[510:512] == b"\x55\xaa"


def test_storage_files_need_room_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no room"):
        create_storage(tmp_path / "card", 8192 * 512)
    with pytest.raises(BadInput, match="no-such-folder"):
        prepare_storage(tmp_path / "no-such-folder" / "card", CARD_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_storage_that_is_missing_foreign_or_small_is_reported(tmp_path: Path) -> None:
    foreign, small = tmp_path / "foreign", tmp_path / "small"
    foreign.write_bytes(os.urandom(1 << 20))
    create_storage(small, CARD_BYTES)
    os.truncate(small, CARD_BYTES // 2)
    cases = ((tmp_path / "missing", "no_storage"), (foreign, "foreign_storage"),
             (small, "storage_small"), (tmp_path, "no_storage"))  # fmt: skip
    before = foreign.read_bytes()
    for path, name in cases:
        with NativeBoard(path) as board, connect(board.port) as device:
            assert device.info.storage_status == isa.by_name("ERROR")[name].code
            with pytest.raises(BoardError) as found:
                device.format()
            assert found.value.name == name
    assert foreign.read_bytes() == before
    assert not (tmp_path / "missing").exists()


def test_a_storage_file_that_appears_later_is_found(tmp_path: Path) -> None:
    path = tmp_path / "card"
    with NativeBoard(path) as board, connect(board.port) as device:
        assert device.info.storage_status == isa.by_name("ERROR")["no_storage"].code
        create_storage(path, CARD_BYTES)
        prepare(device)
        assert device.step(1).step == 1


def test_two_boards_never_share_a_storage_file(storage: Path) -> None:
    with NativeBoard(storage), pytest.raises(PoetError, match="another board uses"):
        NativeBoard(storage)
    with NativeBoard(storage), pytest.raises(PoetError, match="another board uses"):
        prepare_storage(storage, CARD_BYTES)
    with NativeBoard(storage):
        pass


# The process.


def test_who_it_is(storage: Path) -> None:
    board = NativeBoard(storage, arena_bytes=5000, unique_id="bench 7")
    with board, connect(board.port) as device:
        info = device.info
    assert (info.board, info.unique_id) == ("native", "bench 7")
    assert (info.arena_bytes, info.tick_hz) == (5000, 10_000_000)
    assert (info.frame_bytes, info.queue_capacity, info.trace_capacity) == (65535, 64, 32768)


@pytest.mark.slow
def test_the_host_may_come_and_go(board: NativeBoard) -> None:
    for i in range(5):
        with connect(board.port) as device:
            if i == 0:
                prepare(device)
            run_step(device, i + 1)
            assert device.hello().committed_step == i + 1


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(storage: Path, sign: signal.Signals) -> None:
    with NativeBoard(storage) as board:
        board.process.send_signal(sign)
        assert board.process.wait(timeout=10) == -sign


def test_it_ends_with_the_process_that_started_it(storage: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from poet_host.sim.native import NativeBoard\n"
        "board = NativeBoard(Path(sys.argv[1])); print(board.process.pid, flush=True)\n"
        "time.sleep(600)"
    )
    host = subprocess.Popen(
        [sys.executable, "-c", script, str(storage)], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    os.kill(pid, 0)
    host.kill()
    host.communicate()
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # ended, but not yet reaped
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the board outlived its parent")


@pytest.mark.parametrize(
    "arguments",
    [[], ["--storage", "x"], ["--storage", "x", "--arena", "1k"], ["--bogus"],
     ["--storage", "x", "--arena", "99999999999"]],
)  # fmt: skip
def test_wrong_arguments_are_errors(arguments: list[str]) -> None:
    found = subprocess.run(
        [str(build_native()), *arguments], capture_output=True, text=True, timeout=10
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert "usage: poet-native --storage FILE --arena BYTES" in found.stderr


# Training.


@pytest.mark.slow
def test_whole_steps_of_two_plans_give_the_same_bits(board: NativeBoard) -> None:
    with connect(board.port) as device:
        seen = {}
        for kind in ("frugal", "lavish"):
            prepare(device, kind)
            losses, kinds = [], set()
            for step in range(1, 6):
                losses.append(run_step(device, step, (step - 1) * TRACED, 100).loss)
                kinds |= {isa.by_code("STATEMENT")[it.kind].name for it in device.trace()}
            seen[kind] = (losses, weights_of(device))
            assert kinds >= {"compute", "page_in", "page_out", "wait", "end"}
        assert seen["frugal"] == seen["lavish"]
        assert device.probe_commit(repeat=2) > 0
        for write in (True, False):
            ticks, cpu_ticks = device.probe_transfer(write, 5000, repeat=2)
            assert min(ticks, cpu_ticks) > 0


@pytest.mark.slow
def test_a_step_of_a_whole_network_equals_the_reference(storage: Path) -> None:
    """The trained tensors on the board have the bits that NumPy computes for each operator."""
    graph = models.load("resnet-digits")
    costs = cost_graph(graph, estimate_profile(load_board("native")))
    plan = keep_everything(costs)
    assert plan.peak_bytes is not None
    schedule = encode(graph, plan)
    stored = dict(start_values(graph, 3))
    rng = np.random.default_rng(4)
    stored[graph.data] = rng.uniform(0, 1, graph[graph.data].shape).astype(np.float32)
    stored[graph.label] = rng.integers(0, 10, graph[graph.label].shape).astype(np.int32)
    nodes = [node for node in graph if node.stored]
    numbers = [i for i, node in enumerate(nodes) if node.role == "data"]
    with (
        NativeBoard(storage, arena_bytes=plan.peak_bytes, sanitize=True) as board,
        connect(board.port) as device,
    ):
        device.format()
        device.load(schedule.model_part, schedule.plan_part)
        for number, node in enumerate(nodes):
            device.write(TENSOR, number, stored[node.name].tobytes())
        device.begin(0)
        for step in (1, 2):
            for number in numbers:
                device.write(TENSOR, number, stored[nodes[number].name].tobytes())
            result = device.step(step)
            values = reference_step(graph, stored, step)
            assert np.float32(result.loss) == values[graph.loss].ravel()[0]
            for node in graph:
                if node.updates is not None:
                    stored[node.updates] = values[node.name]
            for number, node in enumerate(nodes):
                if number in numbers:  # a batch belongs to the step that has used it
                    continue
                read = device.read(TENSOR, number, node.size_bytes)
                assert read == stored[node.name].tobytes(), node.name
        assert result.peak_bytes <= plan.peak_bytes


def test_a_transfer_runs_while_an_operator_computes(storage: Path) -> None:
    with NativeBoard(storage, arena_bytes=1 << 20) as board, connect(board.port) as device:
        overlap = Overlap(device, (1, 256, 16, 16))
        for step in range(1, 3001):  # a busy computer may run the lanes one after the other
            page_in, compute = overlap.run(step)
            if page_in.begin < compute.end and compute.begin < page_in.end:
                return
    pytest.fail("no step has run both at the same time")


@pytest.mark.slow
def test_a_power_cut_leaves_a_whole_step(storage: Path) -> None:
    """After SIGKILL at any moment of a training, the weights of step N-1 or N are there."""
    rng = random.Random(6)
    with NativeBoard(storage) as board, connect(board.port) as device:
        prepare(device)
        truth = [weights_of(device)]
    counts = []
    for _ in range(30):
        with NativeBoard(storage) as board, connect(board.port) as device:
            load(device)
            before = device.hello().committed_step
            confirmed = train_until_killed(board, device, before, rng.uniform(0, 0.05))
        with NativeBoard(storage) as board, connect(board.port) as device:
            load(device)
            step = device.hello().committed_step
            assert step in (confirmed, confirmed + 1)
            while len(truth) <= step:
                truth.append(following(truth[-1]))
            assert weights_of(device) == truth[step]
        counts.append(step - before)
    assert len(set(counts)) >= 3  # it was cut at different moments
    assert len(set(truth)) == len(truth)


def train_until_killed(board: NativeBoard, device: Device, step: int, seconds: float) -> int:
    """Return the last step that the board has confirmed."""
    killer = threading.Timer(seconds, board.kill)
    killer.start()
    try:
        while True:
            run_step(device, step + 1)
            step += 1
    except (LinkBroken, NoDevice):
        return step
    finally:
        killer.join()


def following(state: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """The weights one step later, on a board whose power nobody cuts."""
    board = trained(card(), kind="lavish")
    for number, data in ((toy.W, state[0]), (toy.V, state[1])):
        board.write(TENSOR, number, 0, data)
    board.begin(0)
    board.step(1)
    return weights(board)
