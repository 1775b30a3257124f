"""The typed device against the real firmware: the native board at its pty."""

import random
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from poet_host import isa
from poet_host.device.device import MODEL, NOTHING_COMMITTED, PLAN, TENSOR, Device, connect
from poet_host.errors import BoardError, LinkBroken, NoDevice, PoetError
from poet_host.schedule.decode import Wait, decode
from poet_host.sim import start_board
from poet_host.sim.native import NativeBoard, create_storage, unused_storage
from support import toy
from support.bad_line import DAMAGES, BadLine
from support.toy_boards import prepare, run_step

STATEMENT = {row.name: row.code for row in isa.rows("STATEMENT")}


@pytest.fixture
def native(storage: Path) -> Iterator[NativeBoard]:
    with NativeBoard(storage, arena_bytes=8192, unique_id="number-5") as board:
        yield board


@pytest.fixture
def device(native: NativeBoard) -> Iterator[Device]:
    with connect(native.port) as found:
        found.format()
        yield found


def train(device: Device) -> None:
    for step in range(1, 1_000_000):
        run_step(device, step)


def test_hello_and_rows(device: Device) -> None:
    assert (device.info.board, device.info.unique_id) == ("native", "number-5")
    assert device.info.arena_bytes == 8192
    assert device.hello().committed_step == NOTHING_COMMITTED
    assert device.rows().encode() == isa.fingerprint_text()
    assert not device.status().running


def test_a_step_with_its_trace(device: Device) -> None:
    prepare(device)
    schedule = toy.schedule()
    assert device.hello().loaded_plan == schedule.header.crc
    result = device.step(1, 0, 1000)
    assert (result.step, result.peak_bytes) == (1, schedule.header.arena_bytes)
    kinds = [STATEMENT["wait" if isinstance(s, Wait) else s.op] for s in decode(schedule)]
    records = device.trace()
    assert [record.kind for record in records[: len(kinds)]] == kinds
    assert [record.statement for record in records[: len(kinds)]] == list(range(len(kinds)))
    assert device.step(1) == result  # repeated, not run again
    before, after = toy.values(1), device.read(TENSOR, toy.W, toy.SIZES[toy.W])
    assert after != before[toy.W]
    assert device.hello().committed_step == 1
    with pytest.raises(BoardError, match="does not follow") as caught:
        device.step(7)
    assert (caught.value.name, caught.value.detail) == ("wrong_step", 1)


def test_objects_are_read_as_written(device: Device) -> None:
    prepare(device)
    schedule = toy.schedule()
    for object, part in ((MODEL, schedule.model_part), (PLAN, schedule.plan_part)):
        assert device.holds(object, 0, part)
        assert device.checksum(object, 0, len(part)) == zlib.crc32(part)
        assert device.read(object, 0, len(part)) == part
    for number, data in enumerate(toy.values(1)):
        assert device.read(TENSOR, number, len(data)) == data
    with pytest.raises(BoardError, match="no such object"):
        device.read(TENSOR, 99, 4)


def test_an_upload_needs_few_requests(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A native board takes 127 blocks in a request: 17 requests for 1 MiB."""
    data = random.Random(1).randbytes(1 << 20)
    with NativeBoard(storage, arena_bytes=1 << 20) as board, connect(board.port) as device:
        codes: list[int] = []
        send = device.link._send

        def count(sequence: int, code: int, *rest: Any) -> None:
            codes.append(code)
            send(sequence, code, *rest)

        monkeypatch.setattr(device.link, "_send", count)
        device.probe_write(0, data)
        assert device.probe_read(0, len(data)) == data
        assert len(codes) - device.link.resent == 17 + 17


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_line_changes_no_byte(storage: Path, damage: str) -> None:
    """Whole frames of the native board are lost, damaged, repeated or late."""
    data = random.Random(1).randbytes(2 << 16)
    timeout_s = 10 if damage == "twice" else 0.03  # a board does not answer a damaged request
    with (
        NativeBoard(storage, arena_bytes=len(data)) as native,
        BadLine(native.port, damage) as line,
        connect(line.port, timeout_s=timeout_s) as device,
    ):
        device.format()
        prepare(device)
        device.probe_write(0, data)
        assert device.probe_read(0, len(data)) == data
        for number, value in enumerate(toy.values(1)):
            assert device.read(TENSOR, number, len(value)) == value
        assert line.spoiled > 10
        assert device.link.resent == 0 if damage == "twice" else device.link.resent > 5


def test_a_loaded_schedule_is_not_sent_again(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = toy.schedule()
    first = device.load(schedule.model_part, schedule.plan_part)
    monkeypatch.setattr(device, "write", lambda *_: pytest.fail("was sent again"))
    assert device.load(schedule.model_part, schedule.plan_part) == first
    assert first.statement_count == schedule.header.statement_count


def test_a_damaged_schedule_is_refused(device: Device) -> None:
    schedule = toy.schedule()
    damaged = schedule.plan_part[:-1] + bytes([schedule.plan_part[-1] ^ 1])
    with pytest.raises(BoardError, match="damaged") as caught:
        device.load(schedule.model_part, damaged)
    assert caught.value.name == "bad_crc"


def test_a_killed_board_is_noticed_at_once(native: NativeBoard, device: Device) -> None:
    prepare(device)
    killer = threading.Timer(0.3, native.kill)
    killer.start()
    with pytest.raises(LinkBroken, match="went away"):
        train(device)
    killer.join()
    with pytest.raises(NoDevice):
        connect(native.port)


def test_two_programs_do_not_share_a_board(native: NativeBoard, device: Device) -> None:
    with pytest.raises(NoDevice, match="in use"):
        connect(native.port)


def test_a_card_that_appears_later_belongs_to_one_board(tmp_path: Path) -> None:
    path = tmp_path / "card.img"
    with NativeBoard(path) as first, NativeBoard(path) as second:
        create_storage(path, 64 << 20)
        with connect(first.port) as device, connect(second.port) as other:
            for board, has_blocks in ((device, True), (other, False), (other, False)):
                assert bool(board.hello().storage_blocks) == has_blocks


def test_probes_count_ticks(device: Device) -> None:
    op = isa.pack_op(
        isa.by_name("KERNEL")["relu"].code, 0, [0], 1, None, {"n": 1, "c": 64, "h": 1, "w": 1}
    )
    device.probe_write(0, bytes(256))
    one = device.probe_op(op, [0, 256, 0], repeat=1000)
    many = device.probe_op(op, [0, 256, 0], repeat=60_000)
    assert many > one > 0
    ticks, cpu_ticks = device.probe_transfer(True, 4088, repeat=50)
    assert min(ticks, cpu_ticks) > 0
    assert device.probe_commit(repeat=2) > 0
    with pytest.raises(BoardError, match="breaks a rule"):
        device.probe_op(op, [0, 8190, 0])


def test_an_image_gets_its_name_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the process is killed while the board formats, the old file is still there."""
    path = tmp_path / "card.img"
    path.write_bytes(b"before")
    seen: list[bytes] = []

    def fail(port: str) -> Device:
        seen.append(path.read_bytes())
        raise LinkBroken("killed")

    with monkeypatch.context() as patched:
        patched.setattr(start_board.devices, "connect", fail)
        with pytest.raises(LinkBroken):
            start_board.prepare_storage(path, 64 << 20)
    assert seen == [b"before"]
    assert path.read_bytes() == b"before"
    start_board.prepare_storage(path, 64 << 20)
    assert path.stat().st_size == 64 << 20
    assert [item.name for item in tmp_path.iterdir()] == ["card.img"]


def test_an_image_is_locked_until_another_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "card.img"
    path.write_bytes(bytes(1 << 20))
    rename, renamed = Path.replace, []

    def locked_rename(new: Path, to: Path) -> Path:
        with pytest.raises(PoetError, match="another board uses"), unused_storage(path):
            pass
        renamed.append(to)
        return rename(new, to)

    monkeypatch.setattr(Path, "replace", locked_rename)
    with start_board.new_storage(path, None):
        pass
    assert renamed == [path]
