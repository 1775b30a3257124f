"""Fixtures that several folders of tests use."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: threads of PyTorch only wait

import poet_host as package
import pytest
from poet_host.schedule.schedule import Schedule
from poet_host.sim.native import create_storage
from support.command import Command, Result

MIB = 1 << 20

# Ctrl-C works in all tests, also if they were started in the background, where it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files whose tests take longest. They start first, so that no worker is left with one at the end.
LONG = (
    "cli/test_demo.py", "sim/test_predict.py", "firmware/test_kernels_sanitized.py",
    "sim/test_commands.py", "examples/test_gesture.py", "examples/test_gait.py", "test_docs.py",
    "examples/test_machine.py", "sim/test_doctor_port.py", "test_package.py",
    "cli/test_whole_outputs.py", "sim/test_floats.py", "run/test_streaming.py",
    "onnx/test_roundtrip.py", "sim/test_firmware.py", "firmware/test_damage.py",
    "sim/test_hardware_suite.py", "stream/test_nest_search.py", "plan/test_transfers.py",
    "firmware/test_contents.py", "firmware/test_nest_fuzz.py", "test_other_systems.py",
    "sim/test_usb.py", "cli/test_outputs.py", "firmware_build/test_firmware_build.py",
    "baselines/test_seed_plans.py", "firmware/test_native.py", "schedule/test_board.py",
    "solver/test_deadline.py", "solver/test_smallest_ram.py", "solver/test_workers.py",
    "run/test_reports.py", "bench/paper/test_paper.py", "sim/test_usb_fuzz.py",
    "sim/test_resnet18.py", "sim/test_library.py", "sim/test_usb_alone.py",
)  # fmt: skip
TESTS = Path(__file__).parent
# What needs a cross compiler or a simulated chip is slow.
SLOW_ROOMS = {TESTS / room for room in ("bench", "firmware_build", "hardware", "sim")}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which -m selects no test: each worker would import them all."""
    if collection_path.suffix != ".py":
        return None
    is_slow = bool(SLOW_ROOMS & {*collection_path.parents})
    if config.option.markexpr == "slow":
        is_slow = is_slow or "slow" in collection_path.read_text("utf-8").lower()
        return None if is_slow else True
    return True if is_slow and config.option.markexpr == "not slow" else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_ROOMS & {*item.path.parents}:
            item.add_marker("slow")
    rank = {TESTS / name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(LONG)))


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """A test draws the same numbers from PyTorch, whichever tests ran before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """An image of a 64 MiB card with a partition of ours, but no store in it."""
    create_storage(tmp_path / "card.img", 64 << 20)
    return tmp_path / "card.img"


@pytest.fixture
def poet_host(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `poet-host ...` inside the test."""
    return Command(capsys)


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """An image of a 64 MiB card with an empty store."""
    path = tmp_path / "card.img"
    package.prepare_storage(path, 64 * MIB)
    return path


@pytest.fixture
def train(poet_host: Command, tmp_path: Path) -> Any:
    """`train(schedule, *options)` saves w.safetensors, which bad input leaves unwritten."""

    def call(
        schedule: Schedule | Path, *options: object, data: object = "digits", port: str = "native"
    ) -> Result:
        path, weights = tmp_path / "trained.poet", tmp_path / "w.safetensors"
        if isinstance(schedule, Schedule):
            schedule.save(path)
        else:
            path = schedule
        before = weights.read_bytes() if weights.exists() else None
        given = ("--port", port, "--data", data, "--save-weights", weights)
        result = poet_host("train", path, *given, *options)
        if result.code in (2, 3, 4):
            assert before == (weights.read_bytes() if weights.exists() else None)
        return result

    return call
