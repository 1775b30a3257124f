"""Commands with simulated boards: cards that fail, power cuts, two boards at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
from poet_host import api
from poet_host.errors import LinkBroken
from poet_host.schedule.schedule import Schedule
from poet_host.sim import start_board as sim_start
from poet_host.sim.simulated_chip import FAULT_KINDS
from support import whole_runs as runs
from support.command import Command, Process, Result, children, spawn
from support.sim_helper import needs_compiler, with_other_relu

pytestmark = needs_compiler
BOARD = "nrf52840_dk"  # the faster one to simulate
STEPS = 2


def start(*arguments: object) -> Process:
    return spawn(*arguments, start_new_session=True)


def end(process: Process) -> Result:
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    return Result(process.returncode, out, err)


@contextmanager
def simulated(
    card: Path, *faults: str, board: str = BOARD, kind: str = "strict"
) -> Iterator[tuple[str, Any]]:
    """`poet-host simulate`: its port and its process, which Ctrl-C ends if it still runs."""
    options = ["--card", kind, *(part for fault in faults for part in ("--card-fault", fault))]
    process = start("simulate", board, "--storage", card, *options)
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    assert port.startswith("/dev/"), end(process).err
    try:
        yield port, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph, profile = runs.digits(), api.estimate_profile(api.load_board(BOARD))
    plan = api.solve(graph, profile, ram="24KiB", gap=0.99)
    path = tmp_path_factory.mktemp("schedule") / "digits.poet"
    api.encode(graph, profile, plan).save(path)
    return path


@pytest.fixture(scope="module")
def wanted() -> str:
    """The digest of the weights that a native board trains in unlimited memory."""
    return str(runs.train(runs.schedule(runs.digits()), steps=STEPS).to_json()["weights_sha256"])


def train(port: str, schedule: Path, *options: object) -> Process:
    saved = schedule.with_name(f"{Path(port).name}.safetensors")
    return start(
        "train", schedule, "--port", port, "--data", "digits", "--steps", STEPS,
        "--save-weights", saved, "--json", *options,
    )  # fmt: skip


# Transient faults of a card, which its driver corrects.
TRANSIENT = (
    "slow_read:60:1:90000", "slow_write:60:1:240000", "read_error:70", "read_crc:80",
    "write_crc:70", "write_error:80", "late_error:60:1:1",
)  # fmt: skip
# Permanent faults, and what the error names.
BROKEN = ("storage", "contacts")
DAMAGED = ("CRC", "replace the card")
FATAL = {
    "read_error:60:100000": BROKEN,
    "read_crc:60:100000": BROKEN,
    "write_crc:60:100000": BROKEN,
    "write_error:60:100000": BROKEN,
    "torn_write:60:100000:100": DAMAGED,
    "removed:60": BROKEN,
    "swapped:60": BROKEN,
}


def test_transient_faults_of_a_card_are_corrected(schedule: Path, card: Path, wanted: str) -> None:
    with simulated(card, *TRANSIENT) as (port, _):
        ended = end(train(port, schedule))
    assert ended.code == 0, ended.err
    assert ended.json["weights_sha256"] == wanted


@pytest.mark.parametrize(("kind", "warnings"), [("strict", 0), ("sdxc", 1)])
def test_a_card_with_too_large_allocation_units_gets_a_warning(
    schedule: Path, card: Path, wanted: str, kind: str, warnings: int
) -> None:
    with simulated(card, kind=kind) as (port, _):
        ended = end(train(port, schedule))
    assert ended.code == 0, ended.err
    assert ended.err.count("64 MiB") == ended.err.count("power cut") == warnings
    assert ended.json["weights_sha256"] == wanted


@pytest.mark.parametrize("fault", FATAL)
def test_permanent_faults_of_a_card_are_errors(schedule: Path, card: Path, fault: str) -> None:
    with simulated(card, fault) as (port, _):
        ended = end(train(port, schedule))
    assert ended.code == 1, ended.err
    for words in FATAL[fault]:
        assert words in ended.json["error"]


# Faults that the card does not report. All are within the steps of the run.
FALSE_WRITES = (
    "dropped_write:100", "dropped_write:140:2", "misdirected_write:110:1:1",
    "misdirected_write:150:1:8192", "flipped_write:120:1:1234",
)  # fmt: skip


@pytest.mark.parametrize("fault", FALSE_WRITES)
def test_a_false_write_never_changes_the_weights(
    schedule: Path, card: Path, wanted: str, fault: str
) -> None:
    with simulated(card, fault) as (port, _):
        ended = end(train(port, schedule))
    if ended.code:
        assert ended.code == 1, ended.err
        assert "--resume" in ended.json["error"]
        with simulated(card) as (port, _):
            ended = end(train(port, schedule, "--resume"))
        assert ended.code == 0, ended.err
    assert ended.json["weights_sha256"] == wanted


def test_every_kind_of_fault_is_tested() -> None:
    tested = {fault.partition(":")[0] for fault in (*TRANSIENT, *FATAL, *FALSE_WRITES, "power_cut")}
    assert tested == set(FAULT_KINDS) - {"flash_power_cut"}  # test_no_card.py


@pytest.mark.parametrize("lost", ["0", "1"])
def test_after_a_power_cut_training_resumes(
    schedule: Path, card: Path, wanted: str, lost: str
) -> None:
    with simulated(card) as (port, _):
        assert end(train(port, schedule, "--steps", 1)).code == 0
    with simulated(card, f"power_cut:40:1:{lost}") as (port, process):
        cut = end(train(port, schedule, "--resume"))
        cut.fails(4, "--resume")
        end(process).fails(1, BOARD, card)
    with simulated(card) as (port, _):
        ended = end(train(port, schedule, "--resume"))
    assert ended.code == 0, ended.err
    assert ended.json["weights_sha256"] == wanted


def test_two_boards_train_at_once(schedule: Path, wanted: str, tmp_path: Path) -> None:
    """Two of one kind at ports of their own, and one of each kind inside a command."""
    cards = [tmp_path / f"{number}.img" for number in range(2)]
    for path in cards:
        poet.prepare_storage(path, 64 * runs.MIB)
    with simulated(cards[0]) as (one, _), simulated(cards[1]) as (other, _):
        assert one != other
        both = [train(port, schedule) for port in (one, other)]
        found = [end(process) for process in both]
    both = [train(f"sim:{name}", schedule) for name in (BOARD, "mkr1000")]
    found += [end(process) for process in both]
    assert [ended.code for ended in found] == [0] * 4, [ended.err for ended in found]
    assert {ended.json["weights_sha256"] for ended in found} == {wanted}
    assert [ended.json["card_khz"] for ended in found] == [16_000, 16_000, 16_000, 12_000]
    assert all(0 < ended.json["asleep_share"] < 1 for ended in found)


def test_two_boards_in_one_program() -> None:
    with poet.connect("sim:mkr1000") as a, poet.connect(f"sim:{BOARD}") as b:
        assert (a.board.name, b.board.name) == ("mkr1000", BOARD)
        for _ in range(3):
            assert (a.device.hello().board, b.device.hello().board) == ("mkr1000", BOARD)


@pytest.mark.parametrize("board", ["mkr1000", BOARD])
def test_a_board_runs_until_ctrl_c(board: str) -> None:
    process = start("simulate", board)
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    for _ in range(2):
        with poet.connect(port) as connection:
            assert connection.board.name == board
    boards = children(process.pid)
    process.send_signal(signal.SIGINT)
    ended = end(process)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.splitlines() == ["the board runs until Ctrl-C", "stopping the board"]
    assert boards
    assert not any(Path(f"/proc/{number}").exists() for number in boards)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("simulate", "mkr2000"), "mkr2000"),
        (("simulate", "mkr1000", "--arena", "20KiB"), "mkr1000"),
        (("simulate", "mkr1000", "--listen", "3333"), "socket"),
        (("simulate", "native", "--listen", "70000"), "70000"),
        (("simulate", "rpi4b", "--arena", "4GiB"), "4 GiB"),
        (("simulate", "mkr1000", "--storage", "/no/card.img"), "storage prepare /no/card.img"),
        (("simulate", "mkr1000", "--card-fault", "bent:1"), "bent"),
        (("simulate", "mkr1000", "--card-fault", "power_cut"), "KIND:FIRST"),
        (("simulate", "mkr1000", "--card-fault", "power_cut:0"), "from 1"),
        (("simulate", "mkr1000", "--card-fault", "slow_read:-3"), "KIND:FIRST"),
        (("simulate", "mkr1000", "--card-fault", f"power_cut:{10**23}"), "KIND:FIRST"),
        (("simulate", "mkr1000", "--card-fault", f"slow_read:1:1:{2**32}"), "KIND:FIRST"),
        (("simulate", "mkr1000", "--no-card", "--card-fault", "slow_read:1"), "slow_read"),
        (("simulate", "nano_33_iot", "--card-fault", "slow_read:1", "--for", "1s"), "slow_read"),
        (("simulate", "native", "--no-card"), "--no-card"),
        (("simulate", "native", "--card-fault", "removed:3"), "mkr1000"),
        (("simulate", "rpi4b", "--card-fault", "removed:3"), "mkr1000"),
    ],
)
def test_impossible_options_of_simulate_are_refused(
    poet_host: Command, arguments: tuple[str, ...], named: str
) -> None:
    result = poet_host(*arguments)
    result.fails(2, named)
    assert result.out == ""


def test_a_fault_of_the_firmware_names_its_address(
    monkeypatch: pytest.MonkeyPatch, schedule: Path, tmp_path: Path
) -> None:
    """An image whose relu is an undefined instruction."""
    elf, address = with_other_relu(BOARD, b"\x00\xde", tmp_path)
    monkeypatch.setattr(sim_start, "build_firmware", lambda board: elf)
    with (
        pytest.raises(LinkBroken, match=f"{BOARD}.*0xde00 at 0x{address:08x}"),
        poet.connect(f"sim:{BOARD}") as connection,
    ):
        poet.train(Schedule.load(schedule), connection, "digits", steps=1)
