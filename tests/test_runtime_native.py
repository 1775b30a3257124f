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

import pytest
import toy
from memory_board import MemoryBoard, card
from poet_host import isa
from poet_host.device.device import PLAN, TENSOR, Device, connect
from poet_host.errors import BadInput, BoardError, LinkBroken, NoDevice, PoetError
from poet_host.graph.graph import Graph, Node
from poet_host.plan.plan import Plan, Statement
from poet_host.schedule.encode import encode
from poet_host.schedule.model import with_crc
from poet_host.sim import native
from poet_host.sim.native import NativeBoard, build_library, build_native, create_storage

CARD_BYTES = 4 << 20
NO_STEP = 0xFFFFFFFF


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    path = tmp_path / "card.img"
    create_storage(path, CARD_BYTES)
    return path


@pytest.fixture(params=[False, True], ids=["plain", "sanitized"])
def board(storage: Path, request: pytest.FixtureRequest) -> Iterator[NativeBoard]:
    with NativeBoard(storage, sanitize=request.param) as found:
        yield found
        assert found.process.poll() is None  # no sanitizer has ended it


def prepare(device: Device, kind: str = "frugal", seed: int = 1) -> None:
    schedule = toy.schedule(kind)
    device.format()
    device.load(schedule.model_part, schedule.plan_part)
    for number, data in enumerate(toy.values(seed)):
        device.write(TENSOR, number, data)
    device.begin(0)


def weights(device: Device) -> tuple[bytes, bytes]:
    w, v = toy.SIZES[toy.W], toy.SIZES[toy.V]
    return device.read(TENSOR, toy.W, w), device.read(TENSOR, toy.V, v)


# Building.


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build_native()
    stamp = first.stat().st_mtime_ns
    assert build_native() == first
    assert first.stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    monkeypatch.setattr(native, "_FLAGS", (*native._FLAGS, "-DOTHER"))
    assert build_native() != first


def test_builds_at_the_same_time_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = {job.get() for job in [pool.apply_async(build_library) for _ in range(4)]}
    assert len(found) == 1
    assert os.listdir(tmp_path / "poet-host") == [found.pop().name]


def test_without_a_compiler_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(PoetError, match=r"no C compiler.*apt install gcc"):
        build_native()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(PoetError, match="cannot compile"):
        build_native()
    assert os.listdir(tmp_path / "poet-host") == []


# Storage files.


def test_storage_files_are_sparse_and_have_our_partition(storage: Path) -> None:
    image = storage.read_bytes()
    assert len(image) == CARD_BYTES
    assert storage.stat().st_blocks * 512 < CARD_BYTES // 8
    kind, first, count = struct.unpack_from("<4xB3xII", image, 446)
    assert (kind, first, first + count) == (0xDA, 2048, CARD_BYTES // 512)
    assert image[510:512] == b"\x55\xaa"


def test_storage_files_need_room_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no room"):
        create_storage(tmp_path / "card", 2048 * 512)
    with pytest.raises(BadInput, match="no-such-folder"):
        create_storage(tmp_path / "no-such-folder" / "card", CARD_BYTES)
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
    with NativeBoard(storage):
        pass


# The process.


def test_who_it_is(storage: Path) -> None:
    board = NativeBoard(storage, arena_bytes=5000, unique_id="bench 7")
    with board, connect(board.port) as device:
        info = device.info
    assert (info.board, info.unique_id) == ("native", "bench 7")
    assert (info.arena_bytes, info.tick_hz) == (5000, 10_000_000)
    assert (info.frame_bytes, info.queue_capacity, info.trace_capacity) == (4096, 64, 32768)


def test_the_host_may_come_and_go(board: NativeBoard) -> None:
    for i in range(5):
        with connect(board.port) as device:
            if i == 0:
                prepare(device)
            device.step(i + 1)
            assert device.hello().committed_step == i + 1


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_told_to(storage: Path, sign: signal.Signals) -> None:
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
        if state == "Z":  # gone, but for whoever adopted it
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the board outlived its parent")


@pytest.mark.parametrize(
    "arguments",
    [[], ["--storage", "x"], ["--storage", "x", "--arena", "1k"], ["--bogus"],
     ["--storage", "x", "--arena", "99999999999"]],
)  # fmt: skip
def test_wrong_arguments_are_explained(arguments: list[str]) -> None:
    found = subprocess.run(
        [str(build_native()), *arguments], capture_output=True, text=True, timeout=10
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert "usage: poet-native --storage FILE --arena BYTES" in found.stderr


# Training.


def test_whole_steps_of_two_plans_give_the_same_bits(board: NativeBoard) -> None:
    with connect(board.port) as device:
        seen = {}
        for kind in ("frugal", "lavish"):
            prepare(device, kind)
            losses = [device.step(step, 0, 100).loss for step in range(1, 6)]
            seen[kind] = (losses, weights(device))
            kinds = {isa.by_code("STATEMENT")[record.kind].name for record in device.trace()}
            assert kinds >= {"compute", "page_in", "page_out", "wait", "end"}
        assert seen["frugal"] == seen["lavish"]
        assert device.probe_commit(repeat=2) > 0
        for write in (True, False):
            ticks, cpu_ticks = device.probe_transfer(write, 5000, repeat=2)
            assert 0 < cpu_ticks <= ticks


def test_a_transfer_runs_while_an_operator_computes(storage: Path) -> None:
    shape, size_bytes = (1, 256, 16, 16), 1 << 18
    attrs = dict(zip("nchw", shape, strict=True))
    graph = Graph(
        "lanes",
        (
            Node("a", shape, "data"),
            Node("b", shape, "data"),
            Node("r", shape, op="relu", inputs=("a",), attrs=attrs),
            Node("loss", (1,), op="mse", inputs=("r", "b"), attrs=attrs),
        ),
        "a", "b", "loss", "r",
    )  # fmt: skip
    statements = (
        Statement("page_in", "a", 0),
        Statement("page_in", "b", size_bytes),
        Statement("compute", "r", 2 * size_bytes),
        Statement("compute", "loss", 3 * size_bytes),
    )
    plan = Plan("feasible", 1 << 20, None, 1.0, 1.0, 0.0, 1.0, 1.0, None, 0.0, statements)
    schedule = encode(graph, plan)
    with NativeBoard(storage, arena_bytes=1 << 20) as board, connect(board.port) as device:
        device.format()
        device.load(schedule.model_part, schedule.plan_part)
        for number in (0, 1):
            device.write(TENSOR, number, bytes(size_bytes))
        device.begin(0)
        together = 0
        for step in range(1, 41):
            device.step(step, 0, 10)
            # page_in a, page_in b, wait 1, compute r, wait 0, compute loss, end
            trace = device.trace()
            page_in_b, compute_r = trace[1], trace[3]
            together += page_in_b.begin < compute_r.end and compute_r.begin < page_in_b.end
        assert together > 0


def test_a_power_cut_leaves_a_whole_step(storage: Path) -> None:
    """SIGKILL at any moment of a running training: step N-1 or N is there, bit for bit."""
    rng = random.Random(6)
    schedule = toy.schedule()
    with NativeBoard(storage) as board, connect(board.port) as device:
        prepare(device)
        truth = [weights(device)]
    counts = []
    for _ in range(30):
        with NativeBoard(storage) as board, connect(board.port) as device:
            device.load(schedule.model_part, schedule.plan_part)
            before = device.hello().committed_step
            confirmed = train_until_killed(board, device, before, rng.uniform(0, 0.05))
        with NativeBoard(storage) as board, connect(board.port) as device:
            device.load(schedule.model_part, schedule.plan_part)
            step = device.hello().committed_step
            assert step in (confirmed, confirmed + 1)
            while len(truth) <= step:
                truth.append(following(truth[-1]))
            assert weights(device) == truth[step]
        counts.append(step - before)
    assert len(set(counts)) >= 3  # it was cut at different moments
    assert len(set(truth)) == len(truth)


def train_until_killed(board: NativeBoard, device: Device, step: int, seconds: float) -> int:
    """The last step that the board has confirmed before its end."""
    killer = threading.Timer(seconds, board.kill)
    killer.start()
    try:
        while True:
            device.step(step + 1)
            step += 1
    except (LinkBroken, NoDevice):
        return step
    finally:
        killer.join()


def following(state: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """The weights one step later, from a board whose power nobody cuts."""
    board = MemoryBoard(card())
    board.format()
    schedule = toy.schedule("lavish")
    board.load(schedule.model_part, schedule.plan_part)
    for number, data in enumerate([*toy.values(1)[:2], *state]):
        board.write(TENSOR, number, 0, data)
    board.begin(0)
    board.step(1)
    return board.tensor(toy.W, toy.SIZES[toy.W]), board.tensor(toy.V, toy.SIZES[toy.V])


# Damaged schedules, under the sanitizers.


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    path = tmp_path_factory.mktemp("damage") / "card.img"
    create_storage(path, CARD_BYTES)
    with NativeBoard(path, sanitize=True) as board, connect(board.port) as device:
        prepare(device)
        yield device
        assert board.process.poll() is None


def try_load(device: Device, model: bytes, plan: bytes) -> str:
    """What the board says of a schedule; if it takes it, it also runs a step of it."""
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


def test_damage_with_a_right_crc_never_crashes(sanitized: Device) -> None:
    """What the validator lets pass must run: nothing but the CRC protects from such bytes."""
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
        header = isa.unpack("poet_plan_header", bytes(plan[:28]))
        header["model_crc"] = isa.unpack("poet_model", model_fixed[:28])["crc"]
        plan_fixed = with_crc(isa.pack("poet_plan_header", **header) + bytes(plan[28:]))
        name = try_load(sanitized, model_fixed, plan_fixed)
        seen[name] = seen.get(name, 0) + 1
    assert set(seen) >= {"ok", "bad_plan", "bad_table"}
    assert try_load(sanitized, schedule.model_part, schedule.plan_part) == "ok"


def test_schedules_changed_on_storage_under_a_loaded_board_never_crash(storage: Path) -> None:
    """The card returns other bytes at every reading: errors, but no memory is touched wrongly."""
    schedule = toy.schedule()
    rng = random.Random(10)
    model_at, plan_at = (2048 + 192) * 512, (2048 + 1216) * 512
    with NativeBoard(storage, sanitize=True) as board, connect(board.port) as device:
        prepare(device)
        names = set()
        for _ in range(150):
            device.load(schedule.model_part, schedule.plan_part)
            at, part = rng.choice(
                ((model_at, schedule.model_part), (plan_at, schedule.plan_part))
            )  # fmt: skip
            with storage.open("r+b") as file:
                for _ in range(rng.randint(1, 3)):
                    file.seek(at + rng.randrange(28, len(part)))
                    file.write(bytes([rng.randrange(256)]))
            step = device.hello().committed_step + 1
            try:
                device.step(step)
                names.add("ok")
            except BoardError as error:
                names.add(error.name)
            with storage.open("r+b") as file:
                file.seek(model_at)
                file.write(schedule.model_part)
                file.seek(plan_at)
                file.write(schedule.plan_part)
            device.write(PLAN, 0, schedule.plan_part)  # so that nothing is cached
        assert names >= {"ok", "bad_plan", "bad_table"}
        assert board.process.poll() is None
