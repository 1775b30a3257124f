"""The firmware of both boards on simulated chips: bits, faults of the card, power cuts."""

import shutil
from pathlib import Path

import pytest
from poet_host import resources
from poet_host.device import wire
from poet_host.errors import BadInput, BoardError, LinkBroken, NoDevice
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.image import read_elf
from poet_host.sim.native import create_storage
from poet_host.sim.simulated_chip import CardFault, SimulatedChip
from support.chip_runs import ask
from support.sim_helper import needs_compiler
from support.toy_boards import load, prepare, run_step, running, truth, weights_of

pytestmark = needs_compiler
BOARDS = ["mkr1000", "nrf52840_dk"]
both = pytest.mark.parametrize("name", BOARDS)
HELLO = wire.frame(1, wire.messages()["hello"].code, b"")


@both
def test_the_image_begins_at_the_right_address(name: str) -> None:
    image = read_elf(build_firmware(name))
    if name == "mkr1000":
        assert image.segments[0][0] == 0x2000  # after the boot loader
    else:  # anomaly 198: what SPIM3 sends has a RAM block of its own
        inside = [n for n, a in image.symbols.items() if 0x20000000 <= a < 0x20002000]
        assert inside == ["bounce"]


@both
def test_a_training_run_has_the_bits_of_the_library(name: str, storage: Path) -> None:
    with running(name, storage) as (board, device):
        for kind in ("frugal", "lavish"):
            prepare(device, kind)
            for step in range(1, 5):
                run_step(device, step, 0, 30)
                assert weights_of(device) == truth()[step]
            assert len(device.trace()) >= 12
        assert board.ended is None
        assert board.meter.stack_free_bytes >= 256


@both
def test_cards_of_standard_capacity_work(name: str, storage: Path) -> None:
    with running(name, storage, high_capacity=0) as (_, device):
        prepare(device)
        device.step(1)
        assert weights_of(device) == truth()[1]


@both
def test_slow_cards_and_errors_change_no_weights(name: str, storage: Path) -> None:
    with running(name, storage) as (board, device):
        prepare(device)
        device.hello()
        reads, writes = board.meter.card_reads, board.meter.card_writes
    faults = [
        CardFault("read_crc", reads + 2),
        CardFault("read_error", reads + 6),
        CardFault("slow_read", reads + 8, argument=90_000),
        CardFault("write_crc", writes + 2),
        CardFault("slow_write", writes + 4, argument=240_000),
        CardFault("write_error", writes + 6),
    ]
    with running(name, storage, *faults, stall_one_in=3) as (board, device):
        prepare(device)
        for step in (1, 2):
            run_step(device, step)
        assert weights_of(device) == truth()[2]
        assert board.ended is None


def test_a_lasting_error_of_the_card_is_reported(storage: Path) -> None:
    with running("mkr1000", storage) as (board, device):
        prepare(device)
        writes = board.meter.card_writes
    broken = CardFault("write_error", writes + 1, times=1000)
    with running("mkr1000", storage, broken) as (_, device):
        prepare(device)
        with pytest.raises(BoardError) as found:
            device.step(1)
    assert found.value.name == "storage_failed"


def test_a_removed_card_is_reported_and_found_again(storage: Path) -> None:
    with running("mkr1000", storage) as (board, device):
        prepare(device)
        board.ask("set_card_present", False)
        with pytest.raises(BoardError):
            device.step(1)
        assert device.hello().storage_status < 0
        board.ask("set_card_present", True)
        load(device)
        device.step(1)
        assert weights_of(device) == truth()[1]
    with running("nrf52840_dk", None) as (_, device):
        assert device.hello().storage_status < 0


def test_a_card_that_was_swapped_is_not_written(storage: Path) -> None:
    with running("mkr1000", storage) as (board, device):
        prepare(device)
        device.hello()
        writes = board.meter.card_writes
    before = storage.read_bytes()
    swap = CardFault("swapped", 2)
    with running("mkr1000", storage, swap) as (board, device):
        load(device)
        with pytest.raises(BoardError):
            device.step(1)
        assert board.ended is None
    assert writes > 2
    after = storage.read_bytes()
    changed = [i for i in range(0, len(before), 512) if before[i : i + 512] != after[i : i + 512]]
    assert len(changed) <= 1  # the block before the swap


def committed_after_cut(
    name: str,
    folder: Path,
    prepared: Path,
    write: int,
    lose_group: int,
) -> bool:
    """Cut the power at this write in two steps, and check the card. False: there was no cut."""
    image = folder / "cut.img"
    shutil.copyfile(prepared, image)
    confirmed = 0
    cut = CardFault("power_cut", write, argument=lose_group)
    with running(name, image, cut, seed=write) as (board, device):
        try:
            load(device)
            for step in (1, 2):
                run_step(device, step)
                confirmed = step
        except (LinkBroken, NoDevice):
            board.process.wait(5)
            assert board.ended == "power cut"
        was_cut = board.ended is not None
    with running(name, image) as (_, device):
        load(device)
        step = device.hello().committed_step
        assert step in (confirmed, confirmed + 1)
        assert weights_of(device) == truth()[step]
        while step < 3:
            step += 1
            run_step(device, step)
        assert weights_of(device) == truth()[3]
    return was_cut


@pytest.mark.slow  # 20 s for each board
@pytest.mark.parametrize("lose_group", [0, 1])
@both
def test_a_power_cut_at_every_write_leaves_a_whole_step(
    name: str, tmp_path: Path, storage: Path, lose_group: int
) -> None:
    with running(name, storage) as (_, device):
        prepare(device)
    write = 1
    while committed_after_cut(name, tmp_path, storage, write, lose_group):
        write += 1
    assert write > 12


@both
def test_the_same_input_takes_the_same_cycles(name: str, storage: Path) -> None:
    found = []
    for _ in range(2):
        create_storage(storage, 64 << 20)
        chip = SimulatedChip(name, build_firmware(name), storage)
        assert chip.run(10**9) == "idle"
        chip.give(HELLO)
        assert chip.run(10**9) == "idle"
        reply = chip.take()
        assert reply.endswith(b"\0")
        found.append((chip.meter, reply))
    assert found[0] == found[1]
    # Without a host, the board looks for a job, and then once more for HELLO. Each time it reads
    # two blocks: MBR and store. The CSD is not a block.
    assert found[0][0].card_reads == 2 * 2


@both
@pytest.mark.parametrize(("code", "exception", "offset"), [(0xDE00, 3, 0), (0xDF00, 11, 2)])
def test_a_fault_is_sent_over_serial_and_the_board_restarts(
    name: str, code: int, exception: int, offset: int, storage: Path
) -> None:
    """An undefined instruction and a supervisor call are exceptions without a handler."""
    chip = SimulatedChip(name, build_firmware(name), storage)
    address = chip.image.symbols["poet_serve"] & ~1
    assert chip.lib.machine_load(chip.machine, address, code.to_bytes(2, "little"), 2)
    chip.lib.machine_take_faults(chip.machine, True)
    assert chip.run(10**9) == "reset"
    text = chip.take().decode()
    assert text.startswith(f"poet: fault {exception:02x} at {address + offset:08x}, from ")
    chip.reset()
    assert chip.run(10**9) == "idle"


def test_without_its_crystal_the_mkr1000_still_answers(storage: Path) -> None:
    chip = SimulatedChip("mkr1000", build_firmware("mkr1000"), storage, config={"no_crystal": True})
    assert chip.run(10**9) == "idle"
    assert chip.meter.time_us > 3e6  # it waited for the crystal
    assert ask(chip, "hello").board == "mkr1000"


@pytest.mark.parametrize("name", ["my-board", "mkr1000-2"])
def test_a_board_with_a_known_chip_is_a_folder(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, storage: Path
) -> None:
    (tmp_path / "firmware").symlink_to(resources.resource("firmware"))
    shutil.copytree(resources.resource("boards") / "mkr1000", tmp_path / "boards" / name)
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path)
    chip = SimulatedChip(name, build_firmware(name), storage)
    assert chip.run(10**9) == "idle"
    assert ask(chip, "hello").board == name


@pytest.mark.parametrize("name", ["my board", "a.b", "a_name_of_17_char"])
def test_names_that_a_firmware_cannot_send_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "firmware").symlink_to(resources.resource("firmware"))
    shutil.copytree(resources.resource("boards") / "mkr1000", tmp_path / "boards" / name)
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path)
    with pytest.raises(BadInput, match="rename the folder"):
        build_firmware(name)


def test_boards_without_an_image_are_refused() -> None:
    with pytest.raises(BadInput, match="rpi4b"):
        build_firmware("rpi4b")
