"""A simulated board as a process: its port, clock, energy and end."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import serial
from poet_host.card.card_file import CardFile
from poet_host.device.board import load_board
from poet_host.errors import BadInput, PoetError
from poet_host.firmware_build.recipe import simulated_boards
from poet_host.resources import resource
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.chipfile import load_card, load_cards, load_chip, parse_cards, parse_chip
from poet_host.sim.simulated_chip import CardFault, SimulatedChip
from support.sim_helper import build, needs_compiler

pytestmark = needs_compiler
ACCEPTED = b"\x05"


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    return build("m0plus", "samd21_cases.c", tmp_path, "-DCASE=6")


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    """A program that fills block n with n for each byte n that it receives."""
    return build("m0plus", "samd21_cases.c", tmp_path, "-DCASE=7")


def talk(board: SimulatedBoard, data: bytes, answer: int, pieces: int = 1) -> bytes:
    with serial.Serial(board.port, 1_000_000, timeout=20) as port:
        step = -(-len(data) // pieces)
        for at in range(0, len(data), step):
            port.write(data[at : at + step])
            if pieces > 1:
                time.sleep(0.02)
        return port.read(answer)


def settled(board: SimulatedBoard) -> int:
    """The cycles when the board has gone to sleep."""
    before = -1
    while before != board.cycles:
        before = board.cycles
        time.sleep(0.3)
    return before


FRAME = bytes(range(1, 200)) + b"\0"
ECHO = bytes(b + 1 for b in FRAME)


def test_echo_through_the_port(echo: Path) -> None:
    with SimulatedBoard("mkr1000", echo, None) as board:
        assert board.port.startswith("/dev/")
        started = board.meter
        assert talk(board, FRAME, 200) == ECHO
        settled(board)
        assert 2000 <= board.meter.time_us - started.time_us <= 2030  # 10 us a byte at 1 Mbaud
        assert talk(board, FRAME, 200) == ECHO  # opened again
        assert board.ended is None


def test_cycles_depend_on_the_input_but_not_on_its_time(echo: Path) -> None:
    found = []
    for pieces in (1, 7):
        with SimulatedBoard("mkr1000", echo, None) as board:
            assert talk(board, b"\0" + FRAME, 201, pieces) == b"\1" + ECHO  # as hosts begin frames
            found.append((settled(board), board.meter.ticks))
    assert found[0] == found[1]


def test_two_boards_at_once(echo: Path) -> None:
    with SimulatedBoard("mkr1000", echo, None) as a, SimulatedBoard("mkr1000", echo, None) as b:
        assert a.port != b.port
        assert talk(a, b"\x01\0", 2) == b"\x02\x01"
        assert talk(b, b"\x07\0", 2) == b"\x08\x01"


def test_energy_is_power_times_time(writer: Path, storage: Path) -> None:
    with SimulatedBoard("mkr1000", writer, storage) as board:
        assert talk(board, b"\x09\0", 1) == ACCEPTED
        settled(board)
        meter, energy, power = board.meter, board.energy, load_board("mkr1000").power
        assert storage.read_bytes()[9 * 512 : 10 * 512] == b"\x09" * 512
        awake_s = (meter.ticks - meter.asleep_ticks) / 48e6
        assert energy.processor_active_uj == pytest.approx(power.processor_active_uw * awake_s)
        assert energy.other_uj == pytest.approx(power.other_uw * meter.ticks / 48e6)
        assert meter.card_writes == 1
        assert 2.1e6 < meter.card_writing_ns < 4e6  # first busy time opens an erase group
        writing = power.storage_write_uw * meter.card_writing_ns / 1e9
        idle = power.storage_idle_uw * meter.ticks / 48e6
        assert energy.storage_uj == pytest.approx(writing + idle)
        assert energy.total_uj == pytest.approx(
            energy.processor_active_uj
            + energy.processor_asleep_uj
            + energy.storage_uj
            + energy.other_uj
        )


def test_a_card_that_is_not_there_draws_no_power(echo: Path) -> None:
    with SimulatedBoard("mkr1000", echo, None) as board:
        assert talk(board, b"\x01\0", 2) == b"\x02\x01"
        assert board.energy.other_uj > 0
        assert board.energy.storage_uj == 0


def test_a_killed_board_leaves_the_written_blocks(writer: Path, storage: Path) -> None:
    with SimulatedBoard("mkr1000", writer, storage) as board:
        assert talk(board, b"\x03\0", 1) == ACCEPTED
        cycles = settled(board)
        board.kill()
        assert board.cycles == cycles
        assert board.process.poll() is not None
    assert storage.read_bytes()[3 * 512 : 4 * 512] == b"\x03" * 512


def test_a_power_cut_ends_the_board(writer: Path, storage: Path) -> None:
    cut = CardFault("power_cut", 2)
    with SimulatedBoard("mkr1000", writer, storage, faults=[cut], seed=3) as board:
        assert talk(board, b"\x03\0", 1) == ACCEPTED
        with serial.Serial(board.port, timeout=1) as port:
            port.write(b"\x04\0")
            board.process.wait(10)
        assert board.ended == "power cut"
    data = storage.read_bytes()
    assert data[3 * 512 : 4 * 512] == b"\x03" * 512
    assert data[4 * 512 : 5 * 512] != b"\x04" * 512  # with this seed the block is torn


def test_the_card_can_be_removed(writer: Path, storage: Path) -> None:
    with SimulatedBoard("mkr1000", writer, storage) as board:
        assert talk(board, b"\x03\0", 1) == ACCEPTED
        settled(board)
        board.ask("set_card_present", False)
        time.sleep(0.5)
        assert talk(board, b"\x04\0", 1) == b"\xff"  # no response
        assert storage.read_bytes()[4 * 512 : 5 * 512] == bytes(512)


def test_an_error_of_the_program_is_reported(tmp_path: Path) -> None:
    elf = build("m0plus", "samd21_cases.c", tmp_path, "-DCASE=26")
    with pytest.raises(PoetError, match=r"0x42004000.*ADC"):
        SimulatedBoard("mkr1000", elf, None)


@pytest.mark.parametrize("kind", ["card", "flash"])
def test_two_boards_never_share_a_file(kind: str, echo: Path, storage: Path) -> None:
    def board() -> SimulatedBoard:
        if kind == "card":
            return SimulatedBoard("mkr1000", echo, storage)
        return SimulatedBoard("mkr1000", echo, None, flash=storage.with_name("flash"))

    with board():
        with pytest.raises(PoetError, match="another board uses"):
            board()
        if kind == "card":
            with pytest.raises(PoetError, match="uses the card image"):
                CardFile(storage)
    with board() as again:
        again.kill()
        board().close()


def test_user_errors(tmp_path: Path, echo: Path, storage: Path) -> None:
    assert simulated_boards() == ["mkr1000", "nano_33_iot", "nrf52840_dk"]
    with pytest.raises(BadInput, match="rpi4b"):
        SimulatedChip("rpi4b", echo, None)
    with pytest.raises(BadInput, match="bent"):
        CardFault("bent", 1)
    with pytest.raises(PoetError, match="No such file"):
        SimulatedBoard("mkr1000", echo, tmp_path / "none.img")
    with pytest.raises(BadInput, match="32 faults"):
        SimulatedChip("mkr1000", echo, storage, faults=[CardFault("slow_read", 1)] * 33)


CHIP = (resource("boards") / "mkr1000" / "chip.toml").read_text(encoding="utf-8")
CARDS = (resource("firmware").parent / "host/poet_host/sim/cards.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", simulated_boards())
def test_every_chip_is_complete(name: str) -> None:
    found = load_chip(name)
    assert found.chip in ("samd21", "nrf52840")
    assert load_card(found.card).strict


def refuses_a_change(
    parse: Callable[[str, str], object], text: str, name: str, old: str, new: str, place: str
) -> None:
    """Check that `parse` refuses the text with `new` in place of `old` and names file and place."""
    assert old in text
    with pytest.raises(BadInput, match=place) as caught:
        parse(text.replace(old, new, 1), name)
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("[wiring]", "[wiring", "not TOML"),
        ('chip = "samd21"', 'chip = "z80"', r"\$\.chip: "),
        ('chip = "samd21"', 'chip = "nrf52840"', r"wiring, at \$\."),
        ('"PA16"', '"PA99"', r"wiring, at \$\.spi\.pins\[0\]: "),
        ("sercom = 5", "sercom = 1.5", r"wiring, at \$\.uart\.sercom: "),
        ("card_select =", "card_chosen =", r"wiring, at \$\.card_select: "),
    ],
)
def test_an_error_names_the_wrong_key(old: str, new: str, place: str) -> None:
    refuses_a_change(parse_chip, CHIP, "chip.toml", old, new, place)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("\n[strict]", "\n[strict", "not TOML"),
        ("\nwrite_us = 660", "", r"strict, .*write_us"),
        ("write_us = 660", f"write_us = {10**400}", r"strict, at \$\.write_us: "),
        ("response_bytes = 1", "response_bytes = 9", r"strict, at \$\.response_bytes: "),
        ("busy_bytes = 8", "busy_bytes = 9", r"no-name, at \$\.busy_bytes: "),
        ("burst_us = 3550", "burst = 3550", r"samsung-evo, .*burst"),
    ],
)
def test_an_error_names_the_wrong_card_and_key(old: str, new: str, place: str) -> None:
    refuses_a_change(parse_cards, CARDS, "cards.toml", old, new, place)


def test_cards_have_the_rules_of_the_strict_one_unless_they_say_otherwise() -> None:
    cards = load_cards()
    assert [name for name, card in cards.items() if not card.strict] == ["kind"]
    assert len(cards) >= 5
    with pytest.raises(BadInput, match="card fast: choose one of strict, kind"):
        load_card("fast")
