"""Strict cards and their faults: resets of the processor, status registers, and what is stored."""

from pathlib import Path

import pytest
from poet_host.device import wire
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.chipfile import load_cards
from poet_host.sim.simulated_chip import CardFault, SimulatedChip
from support.sd_card import BLOCK, Card, pattern
from support.sim_helper import needs_compiler
from support.toy_boards import prepare, run_step, running, truth, weights_of

both = pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])


def request(name: str, **values: int) -> bytes:
    message = wire.messages()[name]
    return wire.frame(1, message.code, wire.pack(message.request, values))


def answer(chip: SimulatedChip) -> int:
    """Run until the reply has come; its status."""
    reply = b""
    while not reply:
        assert chip.run(10**9) in ("idle", "slice"), chip.message
        reply = chip.take()
    return wire.unpack_status(wire.unframe(reply[:-1])[2])[0]


@needs_compiler
@both
@pytest.mark.parametrize("wait", range(1_000, 60_000, 4_373))
def test_a_reset_within_a_write_finds_the_card_again(name: str, wait: int, storage: Path) -> None:
    """Reset the processor `wait` ticks after the first block that `format` has written."""
    chip = SimulatedChip(name, build_firmware(name), storage)
    assert chip.run(10**9) == "idle"
    chip.give(request("format", total_blocks=0))
    before = chip.meter.card_writes
    while chip.meter.card_writes == before:
        assert chip.run(500) == "slice"
    chip.run(wait)
    chip.reset()
    assert chip.run(10**9) == "idle", chip.message
    chip.give(request("format", total_blocks=0))
    assert answer(chip) == 0


@needs_compiler
@both
def test_the_processor_sleeps_while_the_card_programs(name: str, storage: Path) -> None:
    """It wakes every 60 us to look whether the card is busy."""
    programming_us = 100_000

    def write(slow: bool) -> tuple[int, float]:
        """The processor's cycles of a write of 40 blocks, and its time in microseconds."""
        chip = SimulatedChip(name, build_firmware(name), storage)
        assert chip.run(10**9) == "idle"
        chip.give(b"\0" + request("format", total_blocks=0))
        assert answer(chip) == 0
        if slow:
            fault = (chip.lib.CARD_SLOW_WRITE, chip.meter.card_writes + 20, 1, programming_us)
            assert chip.lib.sdcard_add_fault(chip.card, *fault)
        before = chip.meter
        chip.give(b"\0" + request("probe_transfer", write=1, size=40 * BLOCK - 8, repeat=1))
        assert answer(chip) == 0
        return chip.meter.cycles - before.cycles, chip.meter.time_us - before.time_us

    quick, slow = write(False), write(True)
    assert slow[1] - quick[1] > 0.95 * programming_us
    awake_us = (slow[0] - quick[0]) / {"mkr1000": 48, "nrf52840_dk": 64}[name]
    assert 0 < awake_us < {"mkr1000": 0.28, "nrf52840_dk": 0.12}[name] * programming_us


@needs_compiler
@pytest.mark.parametrize("card", load_cards())
def test_each_card_trains_the_same_weights(card: str, storage: Path) -> None:
    with running("mkr1000", storage, name=card) as (board, device):
        assert device.info.allocation_mib == (64 if card == "sdxc" else 4)
        prepare(device)
        for step in (1, 2):
            assert run_step(device, step).storage_retries == 0
        assert weights_of(device) == truth()[2]
        assert board.ended is None


@needs_compiler
@both
def test_each_step_reports_its_retries(name: str, storage: Path) -> None:
    for _ in range(2):  # the second time, the copies of the schedule are right already
        with running(name, storage) as (board, device):
            prepare(device)
            device.hello()
            writes = board.meter.card_writes
    faults = [CardFault("write_crc", writes + 2), CardFault("late_error", writes + 3)]
    with running(name, storage, *faults) as (_, device):
        prepare(device)
        assert device.step(1).storage_retries == 2
        assert run_step(device, 2).storage_retries == 0
        assert weights_of(device) == truth()[2]


@needs_compiler
@both
@pytest.mark.parametrize("clean_khz", [8000, 1000])
def test_a_noisy_wire_gets_a_slower_clock(name: str, clean_khz: int, storage: Path) -> None:
    with running(name, storage, clean_khz=clean_khz, noise_one_in=1000) as (board, device):
        prepare(device)
        for step in (1, 2):
            run_step(device, step)
        assert weights_of(device) == truth()[2]
        assert device.health().card_khz == clean_khz
        assert device.card().retries > 0
        assert board.ended is None


# -- the card alone --


def test_within_a_write_a_strict_card_understands_only_tokens(image: Path) -> None:
    for strict in (1, 0):
        card = Card(image, strict=strict).start()
        assert card.command(25, 8) == [0]
        assert card.give(pattern(60), 0xFC) == 0x05
        card.wait()
        answers = (card.command(13, size=2), card.command(0))
        assert answers == (([], []) if strict else ([0, 0], [1]))


def test_after_a_refused_block_a_strict_card_ignores_the_others(image: Path) -> None:
    card = Card(image).start()
    card.fault("WRITE_ERROR", 2)
    assert card.command(25, 8) == [0]
    assert card.give(pattern(60), 0xFC) == 0x05
    card.wait()
    assert [card.give(pattern(k), 0xFC) for k in (61, 62)] == [0x0D, 0x0D]
    assert card.command(13, size=2) == []
    assert card.command(12) == [0]
    card.wait()
    assert card.command(13, size=2) == [0, 4]
    assert card.command(13, size=2) == [0, 0], "an error is reported once"
    assert card.application(22, 0) == [0]
    assert card.block(4) == bytes([0, 0, 0, 1])
    assert image.read_bytes()[8 * BLOCK : 10 * BLOCK] == pattern(60) + pattern(9)
    assert card.complaint == ""


def test_the_allocation_unit_is_in_the_sd_status(image: Path) -> None:
    card = Card(image).start()
    card.send(55)
    assert card.answer() == [0]
    assert card.command(13, size=2) == [0, 0]
    status = card.block(64)
    assert isinstance(status, bytes)
    assert int.from_bytes(status, "big") >> 428 & 15 == 9  # 4 MiB


def test_a_card_may_refuse_its_sd_status(image: Path) -> None:
    card = Card(image, sd_status=0).start()
    assert card.application(13, 0) == [4]
    assert card.command(13, size=2) == [0, 0], "CMD13 is another command"


def test_a_late_error_is_reported_by_a_later_block_or_by_the_status(image: Path) -> None:
    for later in (2, 0):
        card = Card(image).start()
        card.fault("LATE_ERROR", 2, argument=later)
        assert card.command(25, 8) == [0]
        answers = []
        for k in range(4):
            answers.append(card.give(pattern(70 + k), 0xFC))
            card.wait()
        assert answers == [5, 5, 5, 13 if later else 5]
        card.swap(0xFD)
        card.swap()
        card.wait()
        assert card.command(13, size=2) == [0, 4]
        assert card.application(22, 0) == [0]
        assert card.block(4) == bytes([0, 0, 0, 1])
        assert image.read_bytes()[8 * BLOCK : 10 * BLOCK] == pattern(70) + pattern(9)


@pytest.mark.parametrize(
    ("kind", "argument", "stored"),
    [
        ("DROPPED_WRITE", 0, {}),
        ("MISDIRECTED_WRITE", 3, {11: pattern(60)}),
        (
            "FLIPPED_WRITE",
            17,
            {8: bytes(b ^ (2 if i == 2 else 0) for i, b in enumerate(pattern(60)))},
        ),
    ],
)
def test_a_false_write_is_acknowledged(
    image: Path, kind: str, argument: int, stored: dict[int, bytes]
) -> None:
    before = image.read_bytes()
    card = Card(image).start()
    card.fault(kind, 1, argument=argument)
    assert card.command(24, 8) == [0]
    assert card.give(pattern(60)) == 0x05
    card.wait()
    assert card.command(13, size=2) == [0, 0]
    expected = [before[at : at + BLOCK] for at in range(0, len(before), BLOCK)]
    for block, content in stored.items():
        expected[block] = content
    assert image.read_bytes() == b"".join(expected)


@pytest.mark.parametrize("later", [0, 1, 8])
def test_a_card_may_be_busy_some_bytes_after_the_stop_token(image: Path, later: int) -> None:
    card = Card(image, busy_bytes=later).start()
    assert card.command(25, 8) == [0]
    assert card.give(pattern(60), 0xFC) == 0x05
    card.wait()
    card.swap(0xFD)
    assert [card.swap() for _ in range(later + 1)] == [0xFF] * later + [0]


def test_bursts_come_after_so_many_blocks(image: Path) -> None:
    card = Card(image, burst_blocks=4, burst_us=9000, erase_us=0).start()
    waits = []
    for _ in range(8):
        assert card.command(24, 6) == [0]
        assert card.give(pattern(1)) == 0x05
        waits.append(card.wait() > 9000)
    assert waits == [False, False, False, True] * 2


def test_lying_faults_are_acknowledged(image: Path) -> None:
    before = image.read_bytes()
    card = Card(image).start()
    card.fault("DROPPED_WRITE", 1, 2)
    card.fault("MISDIRECTED_WRITE", 3, argument=5)
    card.fault("FLIPPED_WRITE", 4, argument=8 * 100 + 3)
    for k in range(5):
        assert card.command(24, 20 + k) == [0]
        assert card.give(pattern(80 + k)) == 0x05
        card.wait()
        assert card.command(13, size=2) == [0, 0]
    flipped = bytearray(pattern(83))
    flipped[100] ^= 1 << 3
    stored = {23: bytes(flipped), 24: pattern(84), 27: pattern(82)}
    after = image.read_bytes()
    for block in range(len(after) // BLOCK):
        at = slice(block * BLOCK, (block + 1) * BLOCK)
        assert after[at] == stored.get(block, before[at]), block
