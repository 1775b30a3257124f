"""Boards that run Linux: the native port, cross-compiled and run by QEMU; boards on a network."""

import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import poet_host as poet
import pytest
from poet_host.device import link
from poet_host.device.device import connect
from poet_host.errors import BadInput, LinkBroken, NoDevice, PoetError
from poet_host.firmware_build.native import build_native, linux_boards
from poet_host.sim.native import NativeBoard
from support import whole_runs as runs
from support.command import Command

STEPS = 3
needs_cross = pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-gcc") is None or shutil.which("qemu-aarch64") is None,
    reason="aarch64-linux-gnu-gcc or qemu-aarch64 is missing",
)


def test_the_papers_linux_boards_are_known() -> None:
    assert linux_boards() == ["jetson_tx2", "rpi4b"]


@needs_cross
def test_a_program_for_a_linux_board_needs_nothing_there() -> None:
    program = build_native(target="aarch64-linux-gnu")
    start = program.read_bytes()[:20]
    assert start[:5] == b"\x7fELF\x02"  # 64 bits
    assert int.from_bytes(start[18:20], "little") == 183  # EM_AARCH64
    shown = subprocess.run(
        ["aarch64-linux-gnu-readelf", "--dynamic", program], capture_output=True, text=True
    )
    assert "no dynamic section" in shown.stdout


@needs_cross
@pytest.mark.parametrize("method", ["poet-paging", "poet-remat"])
def test_weights_trained_on_aarch64_are_the_same_bits(method: str) -> None:
    """About 10 s."""
    graph = runs.digits()
    plan = runs.plan(graph, "60%", method)
    activations = {node.name for node in graph if not node.stored}
    computed = [statement.node for statement in plan.statements if statement.op == "compute"]
    paged = [statement.node for statement in plan.statements if statement.op == "page_in"]
    again = (len(computed) > len(set(computed)), bool(activations & set(paged)))
    assert again == (method == "poet-remat", method == "poet-paging")
    schedule = runs.schedule(graph, "60%", method)
    wanted = runs.train(schedule, steps=STEPS)
    with poet.connect("sim:rpi4b", arena_bytes=plan.ram_bytes // 4 * 4) as board:
        assert board.board.name == "rpi4b"
        assert board.is_emulated == (platform.machine() != "aarch64")
        found = poet.train(schedule, board, "digits", steps=STEPS)
    assert found.board == "rpi4b"
    assert [step.loss for step in found.steps] == [step.loss for step in wanted.steps]
    assert found.peak_bytes == wanted.peak_bytes <= plan.ram_bytes
    assert runs.same(found, wanted)


@needs_cross
def test_commands_warn_that_emulated_times_mean_nothing(tmp_path: Path, poet_host: Command) -> None:
    schedule, weights = tmp_path / "digits.poet", tmp_path / "w.safetensors"
    runs.schedule(runs.digits()).save(schedule)
    for command in (
        ("profile", "lenet-digits", "--no-validate", "--output", tmp_path / "profile.json"),
        ("train", schedule, "--data", "digits", "--steps", 1, "--save-weights", weights),
        ("evaluate", schedule, "--data", "digits", "--samples", 4, "--weights", weights),
    ):
        done = poet_host(*command, "--port", "sim:jetson_tx2", "--json")
        assert (done.code, done.json["board"]) == (0, "jetson_tx2")
        assert ("QEMU" in done.err) == (platform.machine() != "aarch64")
        assert "QEMU" not in poet_host(*command, "--port", "native").err


def test_a_missing_cross_compiler_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PoetError, match=r"aarch64-linux-gnu-gcc is not on the PATH.*apt install"):
        build_native(target="aarch64-linux-gnu")


@needs_cross
def test_a_missing_emulator_is_an_error_with_advice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: Path
) -> None:
    for name in ("aarch64-linux-gnu-gcc", "cc"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PoetError, match=r"no emulator.*apt install qemu-user"):
        NativeBoard(card, board="rpi4b")


# Over the network.


@pytest.fixture
def far(storage: Path) -> Iterator[NativeBoard]:
    with NativeBoard(storage, board="native", listen="0") as board:
        assert re.fullmatch(r"socket://[0-9a-f]{32}@127\.0\.0\.1:\d+", board.port)
        yield board


def test_hosts_take_turns_at_a_socket(far: NativeBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not far.is_emulated
    monkeypatch.setattr(link, "TOKEN_WAIT_S", 0.5)
    for _ in range(3):
        with connect(far.port) as device:
            device.format()
            device.probe_write(0, bytes(4000))
    with connect(far.port), pytest.raises(NoDevice, match="another program uses"):
        connect(far.port)
    with connect(far.port) as device:
        assert device.info.board == "native"


def test_a_board_serves_on_after_a_host_hangs_up(far: NativeBoard) -> None:
    number = int(far.port.rpartition(":")[2])
    for sent in (b"", b"\x01\x02\x03", bytes(5000)):
        with socket.create_connection(("127.0.0.1", number)) as host:
            host.sendall(sent)
    with connect(far.port) as device:
        device.format()
    assert far.ended is None


def _where(far: NativeBoard) -> tuple[str, int]:
    host, _, number = far.port.rpartition("@")[2].partition(":")
    return host, int(number)


def test_a_host_needs_the_token(far: NativeBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    token = far.port.removeprefix("socket://").partition("@")[0]
    monkeypatch.delenv("POET_TOKEN", raising=False)
    url = "socket://{}:{}".format(*_where(far))
    wrong = (token[:-1], token + "0", "x", "0" * 32, "\udcff", "y" * 5000, f"{token}\n\0")
    for text in (f"socket://{other}@{url.removeprefix('socket://')}" for other in wrong):
        with pytest.raises(NoDevice, match="has another token") as refused:
            connect(text)
        assert "@127" not in str(refused.value)
        assert refused.value.exit_code == 3
    with pytest.raises(NoDevice, match="asks for a token"):
        connect(url)
    monkeypatch.setenv("POET_TOKEN", token)
    with connect(url) as device:
        assert token not in device.link.port
    monkeypatch.setenv("POET_TOKEN", "wrong")
    with connect(far.port) as device:  # the URL precedes the variable
        device.format()


def test_a_token_can_be_chosen(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POET_TOKEN", "a-token_of-24-Characters")
    with NativeBoard(storage, listen="0") as board:
        assert board.port.startswith("socket://a-token_of-24-Characters@")
        with connect("socket://{}:{}".format(*_where(board))) as device:
            device.format()
    for unfit in ("short", "x" * 65, "with a space in it", "with@another:sign"):
        monkeypatch.setenv("POET_TOKEN", unfit)
        with pytest.raises(BadInput, match="POET_TOKEN must have"):
            NativeBoard(storage, listen="0")


def test_a_token_may_come_in_pieces(far: NativeBoard) -> None:
    token = far.port.removeprefix("socket://").partition("@")[0]
    with socket.create_connection(_where(far)) as host:
        for byte in f"poet {token}\n".encode():
            host.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host.sendall(bytes([byte]))
        assert host.recv(100) == b"poet yes\n"
    with socket.create_connection(_where(far)) as host:
        host.sendall(b"poet " + b"x" * 100_000)
        assert host.recv(100) == b"poet no\n"


def test_hosts_that_keep_silent_do_not_keep_others_out(storage: Path) -> None:
    """About 6 s: without a token for 3 s, with it for the idle time, while another host waits."""
    with NativeBoard(storage, listen="0", idle_s=1) as board:
        with socket.create_connection(_where(board)):  # a stranger
            begin = time.monotonic()
            with connect(board.port) as device:
                device.format()
            assert time.monotonic() - begin > 1  # it waits for the stranger's token
        with connect(board.port) as first:
            time.sleep(1.5)
            first.format()  # nobody else waits
            with connect(board.port) as second:
                second.format()
            with pytest.raises(LinkBroken):
                first.format()
        assert board.ended is None


def test_training_over_a_socket_has_the_same_bits(card: Path) -> None:
    schedule = runs.small()
    arena_bytes = schedule.meta["plan"]["ram_bytes"] // 4 * 4
    with (
        NativeBoard(card, arena_bytes, listen="127.0.0.1:0") as board,
        poet.connect(board.port) as connection,
    ):
        found = poet.train(schedule, connection, "digits", steps=STEPS)
    assert runs.same(found, runs.train(schedule, steps=STEPS))


@pytest.mark.parametrize(
    "where", ["", "x", "70000", "1.2.3:80", "1.2.3.4.5.6.7.8.9:80", "127.0.0.1:", "-1", "80x"]
)
def test_a_wrong_address_is_refused(storage: Path, where: str) -> None:
    with pytest.raises(BadInput, match="cannot listen there"):
        NativeBoard(storage, listen=where)


def test_a_port_in_use_is_refused(far: NativeBoard, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot listen there: Address already in use"):
        NativeBoard(tmp_path / "none.img", listen=far.port.rpartition(":")[2])


def test_simulated_chips_have_no_socket(storage: Path) -> None:
    with pytest.raises(BadInput, match="mkr1000 has no option socket"):
        poet.start_board("mkr1000", storage, listen="0")


@needs_cross
def test_the_program_is_built_for_the_board(tmp_path: Path, poet_host: Command) -> None:
    done = poet_host("build", "rpi4b", "--output", tmp_path / "poet-native", "--json")
    assert done.code == 0
    program = Path(done.json["file"])
    assert program.read_bytes() == build_native(target="aarch64-linux-gnu").read_bytes()
    assert done.json["bytes"] == program.stat().st_size
    done = subprocess.run(["qemu-aarch64", program, "--help"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: poet-native --storage FILE --arena BYTES" in done.stderr
