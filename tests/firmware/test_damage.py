"""Damaged schedules on a board with sanitizers: they cause errors, never a crash."""

import random
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path

import pytest
from poet_host import isa
from poet_host.device.device import PLAN, TENSOR, Device, connect
from poet_host.errors import BoardError, LinkBroken, NoDevice
from poet_host.firmware_build import native as native_build
from poet_host.resources import resource
from poet_host.schedule.model import with_crc
from poet_host.sim.native import NativeBoard, create_storage
from support import toy
from support.card_image import PREPARED
from support.parts import plan_of_model
from support.reverted import changed_copy
from support.schedule_copy import MODEL_BLOCK, PLAN_BLOCK, put_in_copy
from support.toy_boards import load, prepare, run_step

pytestmark = pytest.mark.slow  # a board with sanitizers is compiled


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    path = tmp_path_factory.mktemp("damage") / "card.img"
    create_storage(path, 64 << 20)
    with NativeBoard(path, sanitize=True) as board, connect(board.port) as device:
        prepare(device)
        yield device
        assert board.process.poll() is None


def try_load(device: Device, model: bytes, plan: bytes) -> str:
    """Load a schedule and run a step. Return the board's error, or `ok`."""
    try:
        device.load(model, plan)
        for number, data in enumerate(toy.values(1)):
            device.write(TENSOR, number, data)
        device.begin(0)
        device.step(1)
    except BoardError as error:
        return error.name
    return "ok"


def test_every_damaged_byte_of_a_schedule_is_noticed(sanitized: Device) -> None:
    schedule = toy.schedule()
    rng = random.Random(8)
    whole = schedule.model_part + schedule.plan_part
    cut = len(schedule.model_part)
    for at in range(len(whole)):
        bad = whole[:at] + bytes([whole[at] ^ rng.randint(1, 255)]) + whole[at + 1 :]
        assert try_load(sanitized, bad[:cut], bad[cut:]) != "ok", f"byte {at}"
    assert try_load(sanitized, whole[:cut], whole[cut:]) == "ok"


def test_every_truncated_schedule_is_noticed(sanitized: Device) -> None:
    schedule = toy.schedule()
    for size in range(0, len(schedule.model_part), 13):
        assert try_load(sanitized, schedule.model_part[:size], schedule.plan_part) != "ok"
    for size in range(len(schedule.plan_part)):
        assert try_load(sanitized, schedule.model_part, schedule.plan_part[:size]) != "ok"


@pytest.mark.slow
def test_damage_with_a_right_crc_never_crashes(sanitized: Device) -> None:
    """A schedule that the validator accepts must run: only the CRC protects from such bytes."""
    schedule = toy.schedule()
    rng = random.Random(9)
    seen: dict[str, int] = {}
    for _ in range(400):
        model, plan = bytearray(schedule.model_part), bytearray(schedule.plan_part)
        part = rng.choice((model, plan, plan))
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(8, len(part))
            part[at] = rng.choice(
                (0, 1, 0xFF, rng.randrange(256), part[at] ^ 1 << rng.randrange(8))
            )
        model_fixed = with_crc(bytes(model))
        name = try_load(sanitized, model_fixed, plan_of_model(bytes(plan), model_fixed))
        seen[name] = seen.get(name, 0) + 1
    assert set(seen) >= {"ok", "bad_plan", "bad_table"}
    assert try_load(sanitized, schedule.model_part, schedule.plan_part) == "ok"


def test_schedules_changed_on_storage_under_a_loaded_board_never_crash(storage: Path) -> None:
    """The card returns other bytes at every read: errors, but no wrong access to memory."""
    schedule = toy.schedule()
    rng = random.Random(10)
    with NativeBoard(storage, sanitize=True) as board, connect(board.port) as device:
        prepare(device)
        names = set()
        for _ in range(150):
            load(device)
            block, part = rng.choice(
                ((MODEL_BLOCK, schedule.model_part), (PLAN_BLOCK, schedule.plan_part))
            )
            with storage.open("r+b") as file, mmap(file.fileno(), 0) as card:
                for _ in range(rng.randint(1, 3)):
                    at = rng.randrange(isa.record_size("poet_model"), len(part))
                    changed = bytes([rng.randrange(256)])
                    put_in_copy(card, PREPARED, part, block, at, changed)
            step = device.hello().committed_step + 1
            try:
                run_step(device, step)
                names.add("ok")
            except BoardError as error:
                names.add(error.name)
            device.write(PLAN, 0, schedule.plan_part)  # so that nothing is cached
        assert names >= {"ok", "bad_plan", "bad_table"}
        assert board.process.poll() is None


@pytest.mark.slow
def test_the_sanitizer_finds_a_kernel_that_reads_outside_its_tensor(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arena memory without a tensor is poisoned: otherwise these tests would prove little."""
    file, sound = "kernels/activation.c", "poet_elements(call->op);"
    copy = changed_copy(resource("firmware"), tmp_path, file, sound, f"1 + {sound}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(native_build, "resource", lambda name: copy)
    board = NativeBoard(storage, sanitize=True)
    with connect(board.port) as device:
        prepare(device)
        with pytest.raises((LinkBroken, NoDevice)):
            device.step(1)
    _, report = board.process.communicate(timeout=30)
    assert "use-after-poison" in report
    assert "poet_relu" in report
