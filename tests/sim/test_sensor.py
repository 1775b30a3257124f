"""The I2C host of the SAM D21, and the board with an accelerometer, a button and an LED."""

import csv
import math
import re
import struct
from functools import cache
from pathlib import Path

import pytest
from poet_host import sim
from poet_host.errors import BadInput
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.scene import Scene, press, read_motion
from poet_host.sim.simulated_chip import SimulatedChip
from support.sim_helper import NANO_33_IOT, build_with_sensor, needs_compiler, run, words

BOARD, MG_AT_4_G, RATE_HZ = "nano_33_iot", 0.122, 104
MODEL = Path(sim.__file__).parent / "chip" / "lsm6ds3.c"
FACTS = Path(__file__).parent / "registers" / "lsm6ds3.csv"
pytestmark = needs_compiler


@cache
def facts() -> dict[str, int]:
    lines = (line for line in FACTS.read_text().splitlines() if not line.startswith("#"))
    return {row["name"]: int(row["value"], 16) for row in csv.DictReader(lines)}


def test_the_sensor_has_the_registers_of_its_makers_driver() -> None:
    text = MODEL.read_text(encoding="utf-8")
    names = dict(re.findall(r"(\w+) = (0x[0-9a-f]{2}),$", text, re.MULTILINE))
    rows = re.findall(r"^    \{(\w+), 1", text, re.MULTILINE)
    assert len(rows) == 30
    for name in rows:
        assert int(names[name], 16) == facts()[name], name
    assert re.findall(r"WHO_AM_I, 1, .constant = (0x..)", text) == [hex(facts()["ID"])]
    driver = (NANO_33_IOT / "accelerometer.h").read_text(encoding="utf-8")
    found = re.findall(r"^  SENSOR_(\w+) = (0x..),", driver, re.MULTILINE)
    assert len(found) == 13
    assert {name: int(value, 16) for name, value in found}.items() <= facts().items()
    addresses = [facts()[f"I2C_ADD_{level}"] >> 1 for level in "LH"]
    assert f"SENSOR_ADDRESS = {addresses[0]:#x}" in driver
    assert addresses[1] != addresses[0]


def moving(folder: Path, text: str) -> Scene:
    (path := folder / "motion.csv").write_text(text)
    return Scene(str(path))


def ramp(rows: int, step_s: float) -> str:
    """A motion whose row k has k units of 0.061 mg on the x axis."""
    lines = (f"{k * step_s:.9f},{k * 61e-6:.6f},-0.25,3.0" for k in range(rows))
    return "\n".join(("time_s,ax,ay,az", *lines))


class Case:
    """A run of a case of motion_cases.c."""

    def __init__(self, number: int, folder: Path, text: str = "") -> None:
        elf = build_with_sensor("motion_cases.c", folder, f"-DCASE={number}")
        scene = moving(folder, text) if text else None
        # The program of the tests waits for a crystal.
        self.chip = SimulatedChip(BOARD, elf, None, config={"no_crystal": False}, scene=scene)
        self.meter: list[tuple[int, int]] = []
        self.outcome = run(self.chip.machine, slice_ticks=100_000, slices=2000, between=self.look)

    def look(self, _: object) -> None:
        self.meter.append((self.chip.meter.ticks, self.chip.meter.sensor_nj))

    @property
    def words(self) -> list[int]:
        assert (self.outcome.message, self.outcome.result, self.outcome.code) == ("", "exit", 0)
        return words(self.outcome.text)


def test_the_sensor_answers_at_its_address_only(tmp_path: Path) -> None:
    assert Case(1, tmp_path).words == [0x69, 0, 0, 0x40, 0, 4, 0x69]


def test_each_full_scale_has_its_resolution(tmp_path: Path) -> None:
    found = Case(2, tmp_path, "time_s,ax,ay,az\n0,1.5,-0.25,3.0").words
    for code, (full_scale_g, mg) in enumerate(((2, 0.061), (16, 0.488), (4, 0.122), (8, 0.244))):
        *axes, status = found[4 * code : 4 * code + 4]
        wanted = [round(g * 1000 / mg) for g in (1.5, -0.25, 3.0)]
        if full_scale_g == 2:
            wanted[2] = 0x7FFF  # 3 g do not fit
        assert [(axis ^ 0x8000) - 0x8000 for axis in axes] == wanted
        assert status == 0  # the sample has been read


def test_each_data_rate_fills_the_fifo(tmp_path: Path) -> None:
    rates = [12.5 if code == 1 else 13 * 2 ** (code - 1) for code in range(1, 7)] + [
        833,
        1660,
        3330,
        6660,
    ]
    for count, rate_hz in zip(Case(3, tmp_path).words, rates, strict=True):
        assert count % 3 == 0
        assert abs(count / 3 - 0.1 * rate_hz) <= 1 + 0.001 * rate_hz


def test_a_full_fifo_keeps_the_oldest_or_the_newest_samples(tmp_path: Path) -> None:
    """The motion has one row for each sample: x counts them."""
    found = Case(4, tmp_path, ramp(10_000, 1 / 6660)).words
    kept, followed = found[:6], found[6:12]
    for status, count, *_ in (kept, followed):
        assert status == 0x60 | 4095 >> 8  # full and overrun
        assert count == 4095
    assert (kept[5], followed[5]) == (0x40 | 4092 >> 8, 0x00 | 4092 >> 8)
    in_300_ms = 0.3 * 6660
    started = kept[2]
    assert followed[2] - started == pytest.approx(2 * in_300_ms - 1365, rel=0.02)
    pattern, empty, reached, decimated = found[12:]
    assert (pattern, empty, reached) == (1, 0x10, 0x80)
    assert decimated == 2 * 3


def test_halves_of_a_sample_belong_together_with_bdu_only(tmp_path: Path) -> None:
    """The samples alternate between 0x00ff and 0x0100."""
    lines = (f"{k / 104:.9f},{(0xFF + k % 2) * 61e-6:.6f},0,0" for k in range(200))
    mixed, whole = Case(5, tmp_path, "\n".join(("time_s,ax,ay,az", *lines))).words
    assert mixed in (0x0000, 0x01FF)
    assert whole in (0x00FF, 0x0100)


def test_the_meter_counts_the_sensors_typical_current(tmp_path: Path) -> None:
    case = Case(6, tmp_path)
    marks, found = case.outcome.marks, []
    for first, last in zip(marks[::2], marks[1::2], strict=True):
        inside = [(ticks, nj) for ticks, nj in case.meter if first <= ticks <= last]
        (start, before_nj), (end, after_nj) = inside[0], inside[-1]
        found.append(round((after_nj - before_nj) / 3.3 / ((end - start) / 48e6) / 1000))
    assert found == [6, 240, 70, 24, 240]


def test_an_address_on_a_bus_of_unknown_state_is_an_error(tmp_path: Path) -> None:
    assert Case(7, tmp_path).words == [1, 1]


def test_smart_mode_reads_one_byte_after_another(tmp_path: Path) -> None:
    assert Case(8, tmp_path).words == [0x69000004]


def test_a_byte_that_was_sent_is_an_interrupt(tmp_path: Path) -> None:
    case = Case(9, tmp_path)
    assert case.words == [3, 0x40]
    assert case.outcome.exceptions == 3
    bits = 10 + 9 + 9
    assert case.outcome.asleep_ticks > 0.8 * bits * 48e6 / 400e3


MISUSES = {
    20: "SERCOM4: SCL is faster than 400 kHz",
    21: "SERCOM4: PORT does not give it the pins",
    22: "does not cover the value 0x40 of register 0x11",
    23: "FIFO_DATA_OUT is read while the FIFO is empty",
    24: "SERCOM4: DATA written while INTFLAG.MB is clear",
    25: "a stop after an acknowledged byte",
    26: "an operation while SYNCBUSY is not 0",
    27: "ODR_FIFO is not ODR_XL",
    28: "the button's pin floats",
    29: "a command while it does not hold SCL",
    30: "does not cover the value 0x03 of register 0x0a",
    31: "does not cover register 0x40",
}


@pytest.mark.parametrize("number", MISUSES)
def test_misuse_stops_with_a_reason(number: int, tmp_path: Path) -> None:
    Case(number, tmp_path).outcome.fails(MISUSES[number])


SECONDS = 2.0
ROWS = [
    (k / RATE_HZ, 1.5 * math.sin(k / 5), math.cos(k / 7), 1 - k / 100)
    for k in range(round(SECONDS * RATE_HZ))
]
MOTION = "az,time_s,ax,note,ay\n" + "".join(f"{z},{t},{x},,{y}\n" for t, x, y, z in ROWS)
IN_BITS = [tuple(round(g * 1000 / MG_AT_4_G) for g in axes) for _, *axes in ROWS]


def samples(data: bytes) -> list[tuple[int, ...]]:
    return [*struct.iter_unpack("<3h", data[: len(data) // 6 * 6])]


def test_a_program_reads_the_motion_and_the_button(tmp_path: Path) -> None:
    scene = Scene(moving(tmp_path, MOTION).motion, ((0.5, 0.2), (1.0, 0.05)))
    chip = SimulatedChip(BOARD, build_with_sensor("motion.c", tmp_path), None, scene=scene)
    data, changes = b"", []
    for slice_number in range(1, 81):
        assert chip.run(1_000_000) == "slice", chip.message
        data += chip.take()
        changes += chip.led_changes()
        if slice_number == 30:  # 0.625 s: the button is pressed
            before = samples(data)
            data = b""
            chip.reset("pin")
    assert before == IN_BITS[1 : 1 + len(before)]  # the first sample comes after one period
    after = samples(data)
    start = IN_BITS.index(after[0])
    assert after == IN_BITS[start : start + len(after)]
    assert len(before) + len(after) > 0.95 * RATE_HZ * 80 / 48
    loop_s = 0.001
    wanted = [(0.5, True), (0.625, False), (0.635, True), (0.7, False), (1.0, True), (1.05, False)]
    assert [is_on for _, is_on in changes] == [is_on for _, is_on in wanted]
    for k, ((found_s, _), (time_s, _)) in enumerate(zip(changes, wanted, strict=True)):
        assert 0 <= found_s - time_s <= loop_s or k == 2


def test_a_board_at_rest_measures_gravity(tmp_path: Path) -> None:
    chip = SimulatedChip(BOARD, build_with_sensor("motion.c", tmp_path), None)
    assert chip.run(10_000_000) == "slice", chip.message
    assert set(samples(chip.take())) == {(0, 0, round(1000 / MG_AT_4_G))}


def test_the_firmware_flashes_the_led_while_it_waits() -> None:
    chip = SimulatedChip(BOARD, build_firmware(BOARD), None, scene=Scene())
    assert chip.run(18 * 48_000_000) == "slice"
    (on_s, _), (off_s, _), (again_s, is_on), *_ = chip.led_changes()
    assert is_on
    assert off_s - on_s == pytest.approx(0.2, abs=0.01)
    assert again_s - on_s == pytest.approx(6.2, abs=0.01)


def test_the_process_ends_at_its_time_and_meters_the_sensor(tmp_path: Path) -> None:
    elf = build_with_sensor("motion.c", tmp_path)
    with SimulatedBoard(BOARD, elf, None, scene=Scene(None, ((0.1, 0.1),), 0.5)) as board:
        assert board.wait(30) == "exit code 0"
        lines = board.led_changes().splitlines()
        assert [line.split()[2:] for line in lines] == [["LED", "on"], ["LED", "off"]]
        assert [round(float(line.split()[0]), 2) for line in lines] == [0.1, 0.2]
        assert board.meter.time_us == pytest.approx(0.5e6, abs=100)
        assert board.energy.sensor_uj == pytest.approx(240e-6 * 3.3 * 0.5e6, rel=0.01)
        assert board.energy.total_uj > board.energy.sensor_uj


def test_a_board_without_a_sensor_has_no_scene(tmp_path: Path) -> None:
    elf = build_with_sensor("motion.c", tmp_path)
    with pytest.raises(BadInput, match="mkr1000"):
        SimulatedChip("mkr1000", elf, None, scene=Scene(presses=((1, 1),)))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "time_s, ax, ay, az"),
        ("time_s,ax,ay\n0,0,0", "no column az"),
        ("time_s,ax,ay,az\n", "no rows"),
        ("time_s,ax,ay,az\n0,0,0,1\n1,0,0", "line 3"),
        ("time_s,ax,ay,az\n0,0,0,one", "line 2"),
        ("time_s,ax,ay,az\n0,0,0,nan", "line 2"),
        ("time_s,ax,ay,az\n0,0,0,1\n0,0,0,1", "line 3"),
        ("time_s,ax,ay,az\n-1,0,0,1", "line 2"),
        ("time_s,ax,ay,az\ninf,0,0,1", "line 2"),
        ("time_s,ax,ay,az\n0,0,0," + "1" * (csv.field_size_limit() + 1), "line 2"),
    ],
)
def test_a_wrong_motion_is_refused(text: str, place: str, tmp_path: Path) -> None:
    (path := tmp_path / "m.csv").write_text(text)
    with pytest.raises(BadInput, match=place) as caught:
        read_motion(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["3.5s", "3.5:1s", "1s:", "s:ms", "1s:-2s", "1m:1s"])
def test_a_wrong_press_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"3\.5s"):
        press(text)
