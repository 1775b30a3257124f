"""`make bench-transfers`: what transfers cost the simulated boards, and how they use the bus.

The processor's cycles are those of the simulated chip's meter: CRCs and driver, not sleep. The
least time of a transfer is that of its bytes on the bus, plus the card's own times (cards.toml).

The goals are 8 cycles a byte in and 10 out on the MKR1000, 6 and 8 on the nRF52840, which computes
both CRCs itself. That limits it: CRC-32 takes 10 cycles a word, for three look-ups in tables of
20 KiB (two look-ups need 512 KiB), and CRC-16 takes 22 cycles for four words. With loads, loops
and calls both take 2,430 of the 3,072 cycles of a block at 6 cycles a byte. The driver takes 1,400:
two interrupts, the search for the token, and the checks before the core sleeps again. A write also
copies the block (420) and polls twice.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import poet_host as poet
from poet_host.device import wire
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.chipfile import load_card, load_chip
from poet_host.sim.simulated_chip import SimulatedChip

from .report import number, percent, table

BUS_HZ = {"mkr1000": 12e6, "nrf52840_dk": 16e6}
BLOCK, TRAILER = 512, 8
BLOCKS = 48  # of a transfer, about the arena of the MKR1000
TIMES = 8
TOKEN_AND_CRC = 3  # bytes of a block on the bus that are not data
ANSWER = 1  # byte with which the card answers a written block
CARD_BYTES = 64 << 20


@dataclass(frozen=True)
class Moved:
    """What transfers of one direction took."""

    board: str
    write: bool
    cycles_per_byte: float  # of the processor
    bus_share: float  # least time of the transfers / their time


def measure(board: str, write: bool) -> Moved:
    """Move the arena to or from a card of cards.toml, without its rare stalls."""
    with TemporaryDirectory() as folder:
        card = Path(folder) / "card.img"
        poet.prepare_storage(card, CARD_BYTES)
        chip = SimulatedChip(board, build_firmware(board), card, card={"stall_one_in": 0})
        chip.run(10**9)
        _probe(chip, True, 1)  # mounts the card
        few, _ = _probe(chip, write, 1)
        many, lane_us = _probe(chip, write, 1 + TIMES)
        least_us = (1 + TIMES) * _least_us(board, write)
    size_bytes = BLOCKS * BLOCK - TRAILER
    return Moved(board, write, (many - few) / (TIMES * size_bytes), least_us / lane_us)


def _least_us(board: str, write: bool) -> float:
    """Return the mean least time of a transfer: its bytes on the bus, and the card's own times."""
    card = load_card(load_chip(board).card)
    mean = 1 + card.spread_percent / 200
    block_bytes = BLOCK + TOKEN_AND_CRC + (ANSWER if write else 0)
    bus_us = BLOCKS * block_bytes * 8 / BUS_HZ[board] * 1e6
    if write:
        groups = BLOCKS / card.erase_group_blocks
        own_us = BLOCKS * card.write_next_us + groups * card.erase_us + card.stop_us
    else:
        own_us = card.read_first_us + (BLOCKS - 1) * card.read_next_us + card.stop_us
    return bus_us + mean * own_us


def _probe(chip: SimulatedChip, write: bool, repeat: int) -> tuple[int, float]:
    """Return the processor's cycles of a request, and the time of its transfers."""
    before = chip.meter.cycles
    size_bytes = BLOCKS * BLOCK - TRAILER
    reply = _ask(chip, "probe_transfer", write=int(write), size=size_bytes, repeat=repeat)
    return chip.meter.cycles - before, float(reply["ticks"])


def _ask(chip: SimulatedChip, name: str, **values: Any) -> dict[str, Any]:
    message = wire.messages()[name]
    chip.give(b"\0" + wire.frame(1, message.code, wire.pack(message.request, values)))
    received = b""
    while not received.endswith(b"\0"):
        if chip.run(10**9) not in ("slice", "idle"):
            raise poet.PoetError(chip.message)
        received += chip.take()
    frame = next(filter(None, received.split(b"\0")))
    status, _, rest = wire.unpack_status(wire.unframe(frame)[2])
    if status:
        raise poet.PoetError(f"the board answers {name} with the error {status}")
    return wire.unpack(message.reply, rest)


def report(moved: list[Moved]) -> str:
    head = ["board", "direction", "processor, cycles a byte", "least time / time, %"]
    rows = [
        [m.board, "out" if m.write else "in", number(m.cycles_per_byte), percent(m.bus_share, 1)]
        for m in moved
    ]
    return table(head, rows, words=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.transfers_board", description=__doc__)
    parser.parse_args()
    print(report([measure(board, write) for board in BUS_HZ for write in (False, True)]))


if __name__ == "__main__":
    main()
